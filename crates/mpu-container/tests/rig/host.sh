# Makes a host of its own around this shell: PID 1 of new PID, mount, network, IPC and host-name namespaces. Its file system is a tree of
# `xtask/rig.toml` under an overlay, so that every change to it can be read off the overlay's upper layer.
#
# From the environment: TREES, HOST (a tree's name), WORK (an empty folder), PROGRAM (mpu-container), NODES (`name major minor` a line).
# $WORK/facts has the files of /proc/driver, $WORK/devices is /proc/devices.
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 rig "$WORK/rig"
rig=$WORK/rig
mkdir "$rig/upper" "$rig/work" "$rig/root" "$rig/c"
mount -t overlay -o "lowerdir=$TREES/$HOST,upperdir=$rig/upper,workdir=$rig/work" host "$rig/root"
new=$rig/root

mkdir -p "$new/rig" "$new/usr/bin" "$new/old"
cp "$PROGRAM" "$new/usr/bin/mpu-container"
for name in nvidia-container-runtime nvidia-container-runtime.cdi nvidia-container-runtime.legacy nvidia-container-runtime-hook \
    nvidia-container-toolkit nvidia-container-cli nvidia-ctk nvidia-cdi-hook; do
    ln -s mpu-container "$new/usr/bin/$name"
done

mount -t proc proc "$new/proc"
mount --rbind /sys "$new/sys"
# crun refuses controllers in both cgroup versions. If version 1 is in use, only that is visible.
umount "$new/sys/fs/cgroup/unified" 2>/dev/null || true
mount -t tmpfs -o mode=755 dev "$new/dev"
mkdir "$new/dev/pts" "$new/dev/shm" "$new/dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$new/dev/pts"
mount -t tmpfs shm "$new/dev/shm"
while read -r name major minor; do
    [ -n "$name" ] || continue
    mkdir -p "$(dirname "$new/dev/$name")"
    mknod -m 666 "$new/dev/$name" c "$major" "$minor"
done <<NODES
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse 10 229
$NODES
NODES
ln -s pts/ptmx "$new/dev/ptmx"
ln -s /proc/self/fd "$new/dev/fd"
ln -s fd/0 "$new/dev/stdin"
ln -s fd/1 "$new/dev/stdout"
ln -s fd/2 "$new/dev/stderr"
for folder in run var/lib; do mount -t tmpfs -o mode=755 "$folder" "$new/$folder"; done
for folder in tmp var/tmp; do mount -t tmpfs -o mode=1777 "$folder" "$new/$folder"; done
mount -t tmpfs -o mode=755,uid=1000,gid=1000 user "$new/home/user"
mkdir -p "$new/run/user/1000"
chown 1000:1000 "$new/run/user/1000"

# Facts of GPUs. On a real host every procfs has them. Here a runtime's new procfs lacks them: see `world.sh`.
if [ -e "$WORK/facts" ]; then
    mount -t tmpfs driver "$new/proc/driver"
    cp -a "$WORK/facts/." "$new/proc/driver/"
    cp "$WORK/devices" "$rig/devices"
    mount --bind "$rig/devices" "$new/proc/devices"
fi

mount --bind "$rig" "$new/rig"
# A user who is not root can mount a new procfs only if a whole one is visible, without mounts over its parts.
mkdir "$new/rig/trees" "$new/rig/proc"
mount -t proc proc "$new/rig/proc"
mount --bind "$TREES" "$new/rig/trees"
cd "$new"
pivot_root . old
cd /
umount -l /old
rmdir /old
ip link set lo up 2>/dev/null || true
echo ready
# Bash reaps the orphans of a PID namespace. It runs until the test closes its input; the namespaces end with it.
exec /bin/bash -c 'while read -r _; do :; done'
