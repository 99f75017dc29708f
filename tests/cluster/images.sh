#!/bin/sh
# Makes container images of one layer each, as `docker save` writes them: images.sh FOLDER MPU VERSION PROGRAM…
# mpu:VERSION is the agent's; test/pod has a shell, the programs, and what nvidia-smi is linked with.
set -eu
out=$1 mpu=$2 version=$3
shift 3
rm -rf "$out"
mkdir -p "$out"

# with_libraries ROOT PROGRAM: a program with what it, and nvidia-smi, is linked with.
with_libraries() {
	cp "$2" "$1/usr/bin/"
	for library in $(ldd "$2" 2>/dev/null | grep -o '/[^ ]*') /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/lib[cm].so.6 \
		/lib/x86_64-linux-gnu/libdl.so.2 /lib/x86_64-linux-gnu/librt.so.1 /lib/x86_64-linux-gnu/libpthread.so.0; do
		mkdir -p "$1$(dirname "$library")"
		cp -Ln "$library" "$1$library"
	done
}

# image NAME COMMAND: what is in $root.
image() {
	tar -C "$root" --owner=0 --group=0 -cf "$out/layer.tar" .
	sum=$(sha256sum "$out/layer.tar" | cut -d' ' -f1)
	printf '{"architecture":"amd64","os":"linux",' >"$out/config.json"
	printf '"config":{"Env":["PATH=/usr/bin:/bin"],"Cmd":[%s]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$2" "$sum" >>"$out/config.json"
	printf '[{"Config":"config.json","RepoTags":["docker.io/%s"],"Layers":["layer.tar"]}]' "$1" >"$out/manifest.json"
	tar -C "$out" -cf "$out/$(echo "$1" | tr /: --).tar" manifest.json config.json layer.tar
	rm -r "$root" "$out/layer.tar" "$out/config.json" "$out/manifest.json"
}

root=$out/root
mkdir -p "$root/usr/bin" "$root/etc/mpu" "$root/lib/modules" "$root/run/mpu" "$root/var/lib/mpu" "$root/tmp"
with_libraries "$root" "$mpu"
image "library/mpu:$version" '"/usr/bin/mpu","agent","run"'
mkdir -p "$root/usr/bin" "$root/bin" "$root/etc" "$root/tmp" "$root/proc" "$root/dev" "$root/sys"
with_libraries "$root" "$(command -v busybox)"
for name in sh sleep cat nsenter env touch grep tail rm; do ln -s /usr/bin/busybox "$root/bin/$name"; done
for program; do cp "$program" "$root/usr/bin/"; done
cp "$(dirname "$0")/asker.sh" "$root/usr/bin/asker"
image test/pod:1 '"/bin/sleep","2147483647"'
