#!/bin/sh
# Builds the images from the Dockerfiles with Debian's buildah: images.sh STORAGE FOLDER VERSION NEXT. FOLDER has the programs as from `./x dist`;
# its folder `next` has the newer agent and its modules. The Debian base image is made here, without a public registry.
set -eu
storage=$1 folder=$2 version=$3 next=$4
here=$(dirname "$0")
kubernetes=$here/../../packaging/kubernetes
buildah() { command buildah --root "$storage" --runroot "$storage-run" "$@"; }

debian=docker.io/library/$(sed -n 's/^FROM //p' "$kubernetes/Dockerfile")
if ! buildah inspect --type image "$debian" >/dev/null 2>&1; then
	rm -rf "$folder/debian"
	debootstrap --variant=minbase trixie "$folder/debian"
	(cd "$folder/debian" && rm -rf usr/share/doc usr/share/locale usr/share/man var/cache/apt/archives var/lib/apt/lists)
	tar -C "$folder/debian" -cf "$folder/debian.tar" .
	container=$(buildah from scratch)
	buildah add "$container" "$folder/debian.tar" /
	buildah commit --rm "$container" "$debian"
	rm -r "$folder/debian" "$folder/debian.tar"
fi

# build DOCKERFILE FOLDER NAME
build() { buildah bud --layers --isolation chroot --pull-never --build-arg TARGETARCH=amd64 -f "$1" -t "$3" "$2"; }
build "$kubernetes/Dockerfile" "$folder" "mpu:$version"
build "$kubernetes/Dockerfile.toolkit" "$folder" "mpu-toolkit:$version"
build "$here/Dockerfile" "$folder" test:1
# The node has no module of the newer version: docs/prebuilt.md has images with modules.
build "$kubernetes/Dockerfile" "$folder/next" "mpu:$next"
container=$(buildah from --pull-never "mpu:$next")
buildah copy --chown 0:0 "$container" "$folder/next/modules" /usr/lib/mpu/modules
buildah commit --rm "$container" "mpu:$next"
buildah rmi --prune
