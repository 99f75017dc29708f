# GPU containers on a node with systemd, by the package mpu-container; sourced by stories.sh.

# start_in MODE: starts a container that requests the GPU, in a systemd scope. pivot_root fails on this root, the initramfs.
start_in() {
	printf '[nvidia-container-cli]\nno-pivot = true\n[nvidia-container-runtime]\nmode = "%s"\nruntimes = ["runc"]\n%s\n' "$1" \
		'[nvidia-container-runtime.modes.jit-cdi]
nvcdi-disable-hooks = ["update-ldcache"]' >/etc/nvidia-container-runtime/config.toml
	mkdir -p /run/bundle/rootfs/bin /run/bundle/rootfs/lib64 /run/bundle/rootfs/dev /run/bundle/rootfs/proc "/run/bundle/rootfs$libraries"
	cp /bin/dash /run/bundle/rootfs/bin/sh
	cp /bin/sleep /run/bundle/rootfs/bin/sleep
	cp -L /lib64/ld-linux-x86-64.so.2 /run/bundle/rootfs/lib64/
	cp -L $libraries/libc.so.6 "/run/bundle/rootfs$libraries/"
	cat >/run/bundle/config.json <<JSON
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sleep", "100000"],
  "env": ["PATH=/bin", "LD_LIBRARY_PATH=$libraries", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
 "linux": {"cgroupsPath": "system.slice:mpu:$1", "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}],
  "resources": {"devices": [{"allow": false, "access": "rwm"}]}}}
JSON
	nvidia-container-runtime --systemd-cgroup create --no-pivot --bundle /run/bundle "$1" </dev/null >/tmp/created 2>&1 ||
		{ cat /tmp/created; return 1; }
	runc --systemd-cgroup start "$1"
}

# opens CONTAINER: whether it may open the GPU's control node now.
opens() { runc --systemd-cgroup exec "$1" /bin/sh -c ': </dev/nvidiactl'; }

insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never >/tmp/held &
wait_for grep -qs ready /tmp/held
install_driver
mkdir -p /etc/nvidia-container-runtime
snapshot >/tmp/before
check container_package_installs dpkg -i $here/mpu-container.deb
check cdi_file_comes_with_the_driver wait_for grep -q nvidia.com/gpu /var/run/cdi/nvidia.yaml
check cdi_container_starts start_in jit-cdi
check cdi_container_opens_its_gpu opens jit-cdi
runc delete --force jit-cdi
# The wrapper's configuration with runc alone: nothing makes the links again.
rm -f /dev/char/195:*
runc --systemd-cgroup run --no-pivot --detach --bundle /run/bundle bare </dev/null >/tmp/created 2>&1
opens bare && systemctl daemon-reload
check daemon_reload_without_links_loses_gpu not opens bare
runc delete --force bare
for mode in jit-cdi legacy; do
	start_in $mode
	systemctl daemon-reload
	opens $mode
	echo $? >/tmp/kept-$mode
	runc delete --force $mode
done
check daemon_reload_keeps_cdi_gpu grep -qx 0 /tmp/kept-jit-cdi
check daemon_reload_keeps_legacy_gpu grep -qx 0 /tmp/kept-legacy
killall gpu-hold
wait_for rmmod nvidia
check cdi_file_goes_with_the_driver wait_for test ! -e /var/run/cdi/nvidia.yaml
rm -f /etc/nvidia-container-runtime/config.toml
check container_package_purges dpkg --purge mpu-container
same container_package_leaves_nothing /tmp/before
