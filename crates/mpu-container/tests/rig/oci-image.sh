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
blob() { printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s}' "$1" "$2" "$(stat -c %s "blobs/sha256/$2")"; }
jq -n --arg layer "sha256:$layer" '{architecture: "amd64", os: "linux", rootfs: {type: "layers", diff_ids: [$layer]},
	config: {Env: ["PATH=/usr/sbin:/usr/bin"], Cmd: ["sleep", "infinity"]}}' > config
keep config
jq -n --argjson config "$(blob config.v1+json "$sum")" --argjson layer "$(blob layer.v1.tar "$layer")" \
	'{schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: $config, layers: [$layer]}' > manifest
keep manifest
jq -n --argjson manifest "$(blob manifest.v1+json "$sum")" \
	'{schemaVersion: 2, manifests: [$manifest + {annotations: {"io.containerd.image.name": "localhost/rig:1"}}]}' > index.json
printf '{"imageLayoutVersion":"1.0.0"}' > oci-layout
tar -cf /tmp/oci.tar .
ctr --namespace k8s.io images import /tmp/oci.tar > /dev/null
rm -r /tmp/oci /tmp/oci.tar
