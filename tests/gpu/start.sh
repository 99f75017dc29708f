#!/bin/bash
# Measures the time until a container with a real GPU is created, by image: all of our work is done by then.
#
#   sudo tests/gpu/start.sh PATH-TO-MPU PATH-TO-MPU-CONTAINER WORK-FOLDER IMAGE...     an image is a root file system's folder
#
# Needs: an NVIDIA GPU with its driver, runc, Python, root. Each start has a fresh overlay over the image, as an engine makes it. Prints
# medians of $STARTS starts (30), in milliseconds: runc alone, runc with the same mounts and no hooks, the wrapper (mode jit-cdi).
[ $# -ge 4 ] || {
	echo "usage: start.sh PATH-TO-MPU PATH-TO-MPU-CONTAINER WORK-FOLDER IMAGE..." >&2
	exit 2
}
here=$(dirname "$(readlink -f "$0")")
. "$here/common.sh"
starts=${STARTS:-30}
images=("${@:4}")
mkdir -p layers && mount -t tmpfs layers layers || exit 3
trap 'umount layers' EXIT

# times CONFIG PROGRAM: the median. Programs see the bundle's config.json, which the wrapper edits.
times() {
	for _ in $(seq "$starts"); do
		rm -rf layers/* && mkdir -p layers/{upper,work} rootfs
		mount -t overlay overlay -o "lowerdir=$image,upperdir=layers/upper,workdir=layers/work" rootfs || exit 3
		cp "$1" config.json
		began=$(date +%s%N)
		"$2" create --bundle . timed </dev/null >/dev/null 2>err || {
			cat err >&2
			umount rootfs
			exit 3
		}
		echo $((($(date +%s%N) - began) / 10000))
		cp config.json edited.json
		runc delete --force timed && umount rootfs || exit 3
	done | sort -n | sed -n "$((starts / 2 + 1))s/..\$/.&/p"
}

request() {
	cat <<-JSON
		{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
		 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": ["PATH=/usr/bin:/bin"$1]},
		 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
		  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}],
		 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}]}}
	JSON
}
request '' >plain.json
request ', "NVIDIA_VISIBLE_DEVICES=all"' >gpu.json

for image in "${images[@]}"; do
	echo "$image: $(find "$image" -xdev -name '*.so*' | wc -l) libraries"
	for turn in 1 2 3; do
		plain=$(times plain.json runc) with=$(times gpu.json nvidia-container-runtime)
		"$python" -c 'import json; c = json.load(open("edited.json")); print(len(c["mounts"])); c.pop("hooks")
json.dump(c, open("mounts.json", "w"))' >mounts
		echo "turn $turn: runc $plain, with $(cat mounts) mounts $(times mounts.json runc), wrapper $with"
	done
done
