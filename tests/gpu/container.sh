#!/bin/bash
# Injects a real GPU into containers with mpu-container in three ways, and checks the containers.
#
#   sudo tests/gpu/container.sh PATH-TO-MPU-CONTAINER [WORK-FOLDER]
#
# Needs: an NVIDIA GPU with its driver, runc, busybox (static), nvcc, root. Changes nothing outside of its folder, /run and
# /etc/cdi. Prints each command before its output; ends with 1 if an answer is wrong.
set -u
export LC_ALL=C PATH=$PATH:/usr/local/cuda/bin:/usr/sbin:/sbin
here=$(dirname "$(readlink -f "$0")")
container=$(readlink -f "$1")
work=${2:-/run/mpu-gpu}

# Prints everything below a folder: kind, mode, owner, size, path, target. This shows mount points that an ended container left.
tree() { (cd "$1" && find . -xdev -printf '%y %m %u:%g %s %p %l\n' | sort -k5); }

for tool in runc busybox nvcc; do
	command -v "$tool" >/dev/null || {
		echo "$tool is missing" >&2
		exit 3
	}
done
. "$here/toolkit.sh"
nvcc -O2 -o saxpy "$here/saxpy.cu" || exit 3

# A small root: busybox, the C library, the program.
root() {
	local name
	mkdir -p "$1"/{bin,dev,etc,proc,sys,tmp,usr/bin,lib64,lib/x86_64-linux-gnu}
	cp "$(command -v busybox)" "$1/bin/busybox"
	for name in sh ls cat grep sleep mount umount; do ln -sf busybox "$1/bin/$name"; done
	cp saxpy "$1/bin/saxpy"
	for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libgcc_s.so.1 libstdc++.so.6; do
		cp -L "/lib/x86_64-linux-gnu/$name" "$1/lib/x86_64-linux-gnu/" || exit 3
	done
	cp -L /lib64/ld-linux-x86-64.so.2 "$1/lib64/"
}

# bundle NAME ENV...: a bundle as a container engine writes it. Only ENV requests the GPU.
bundle() {
	local name=$1
	shift
	root "$name/rootfs"
	env=$(printf ',"%s"' "$@")
	cat >"$name/config.json" <<JSON
{"ociVersion": "1.0.2", "hostname": "$name", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sleep", "1000000"],
  "env": ["PATH=/usr/bin:/bin:/usr/local/nvidia/bin"$env],
  "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "permitted": ["CAP_KILL"]}},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
  {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "network"}],
  "resources": {"devices": [{"allow": false, "access": "rwm"}]}}}
JSON
}

# inside NAME: checks that a program computes on the GPU, and that nvidia-smi shows it and nothing else.
inside() {
	show runc exec "$1" nvidia-smi -L
	check "nvidia-smi lists the GPU" "runc exec $1 nvidia-smi -L | grep -q 'GPU 0:'"
	local job pid
	runc exec "$1" saxpy 8 >"$1.saxpy" 2>&1 &
	job=$!
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		grep -q process "$1.saxpy" && break
		sleep 0.5
	done
	echo "\$ runc exec $1 saxpy 8 &"
	cat "$1.saxpy"
	check "the program computed right" "grep -q ' 0 wrong' $1.saxpy"
	show runc exec "$1" nvidia-smi
	show runc exec "$1" nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv
	pid=$(sed -n 's/.*process \([0-9]*\),.*/\1/p' "$1.saxpy")
	check "nvidia-smi shows that process and no other" \
		"[ -n '$pid' ] && [ \"\$(runc exec $1 nvidia-smi --query-compute-apps=pid --format=csv,noheader)\" = '$pid' ]"
	wait $job
}

headline "this machine"
show uname -r
show cat /proc/driver/nvidia/version
show nvidia-container-cli info
show nvidia-container-cli list --binaries --libraries

headline "a foreign process computes on the host meanwhile"
./saxpy 300 >foreign 2>&1 &
foreign=$!
while ! grep -q process foreign && kill -0 $foreign; do sleep 0.2; done
cat foreign

headline "1. by hand: namespaces, a small root, nvidia-container-cli configure, pivot_root"
root hand
tree hand >hand.before
cat >hand.sh <<'SH'
set -e
mount --make-rprivate /
mount --bind hand hand
mount -t proc proc hand/proc
mount -t sysfs -o ro sysfs hand/sys
mount -t tmpfs tmpfs hand/tmp
echo '$ nvidia-container-cli configure --utility --no-cgroups --ldconfig=@/sbin/ldconfig --device 0 '"$PWD/hand"
nvidia-container-cli configure --utility --no-cgroups --ldconfig=@/sbin/ldconfig --device 0 "$PWD/hand"
cd hand
mkdir -p old
pivot_root . old
exec /bin/sh -c 'umount -l /old; export PATH=/bin:/usr/bin:/usr/local/nvidia/bin
for words in "nvidia-smi -L" nvidia-smi "ls -l /dev" "grep ModifyDeviceFiles /proc/driver/nvidia/params" \
	"ls /proc/driver/nvidia/gpus"; do echo "$ $words"; $words || exit 1; done'
SH
show unshare --mount --pid --fork sh hand.sh >hand.out
status=$?
cat hand.out
check "the hand-made container worked" "[ $status -eq 0 ]"
check "nvidia-smi shows the GPU" "grep -q 'GPU 0:' hand.out"
check "no process may make device nodes" "grep -q 'ModifyDeviceFiles: 0' hand.out"
rmdir hand/old
tree hand >hand.after
echo '$ diff (the root before, and after the namespaces are gone)'
diff hand.before hand.after
check "nothing was removed from the root or changed in it but directories that got entries" \
	"! diff hand.before hand.after | grep '^<' | grep -qv '^< d'"

headline "2. runtime wrapper and runc, NVIDIA_VISIBLE_DEVICES=0"
bundle asks NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility
show runc run --detach --bundle asks bare </dev/null >/dev/null 2>&1
check "without the wrapper there is no nvidia-smi" "! runc exec bare nvidia-smi -L >/dev/null 2>&1"
check "without the wrapper there is no device" "! runc exec bare ls /dev/nvidiactl >/dev/null 2>&1"
runc delete --force bare
for mode in jit-cdi legacy; do
	configuration $mode
	rm -rf asks && bundle asks NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility
	echo "mode = $mode"
	show nvidia-container-runtime create --bundle asks $mode </dev/null
	check "$mode: created" "[ $? -eq 0 ]"
	show nvidia-container-runtime start $mode
	inside $mode
	nvidia-container-runtime delete --force $mode
done

headline "3. a CDI file"
show nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml
show nvidia-ctk cdi list
configuration cdi
rm -rf asks && bundle asks NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0
show nvidia-container-runtime create --bundle asks cdi </dev/null
check "cdi: created" "[ $? -eq 0 ]"
show nvidia-container-runtime start cdi
inside cdi
nvidia-container-runtime delete --force cdi
rm -f /etc/cdi/nvidia.yaml

kill $foreign
exit $failed
