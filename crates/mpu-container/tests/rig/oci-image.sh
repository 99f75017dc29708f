# The image of root-glibc as containerd imports it, under the name localhost/rig:1; a pod's sandbox sleeps in it.
set -e
mkdir -p /tmp/oci/blobs/sha256
cd /tmp/oci
keep() {
	sum=$(sha256sum "$1" | cut -d ' ' -f 1)
	mv "$1" "blobs/sha256/$sum"
}
tar -C /rig/trees/root-glibc -cf layer .
keep layer
layer=$sum
size=$(stat -c %s "blobs/sha256/$layer")
printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/sbin:/usr/bin"],"Cmd":["sleep","infinity"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' "$layer" > config
keep config
config=$sum
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' \
	"$config" "$(stat -c %s "blobs/sha256/$config")" "$layer" "$size" > manifest
keep manifest
printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"annotations":{"io.containerd.image.name":"localhost/rig:1"}}]}' \
	"$sum" "$(stat -c %s "blobs/sha256/$sum")" > index.json
printf '{"imageLayoutVersion":"1.0.0"}' > oci-layout
tar -cf /tmp/oci.tar .
ctr --namespace k8s.io images import /tmp/oci.tar > /dev/null
rm -r /tmp/oci /tmp/oci.tar
