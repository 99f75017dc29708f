# Containers of runc under SELinux, each with categories of its own, served by the notify engine; sourced by stories.sh.

. $here/served.sh

# The kernel must log every denial.
sysctl -qw kernel.printk_ratelimit=0

# The wrapper in the domain of container engines, as they start it. A container may write to their pipes and to no others.
as_engine() { runcon -t container_engine_t -- env "$@"; }
runtime() {
	as_engine sh -c '{ timeout 60 "$@" </dev/null 2>&1; echo $? >/run/containerd/rc; } | cat; exit "$(cat /run/containerd/rc)"' \
		sh nvidia-container-runtime "$@"
}

# start NAME CATEGORIES: a container with that name's files, all of it labelled as engines label theirs.
start() {
	bundle=/run/containerd/$1
	mkdir -p "$bundle"
	cp -a /run/image "$bundle/rootfs"
	restorecon /run/containerd "$bundle"
	chcon -R "system_u:object_r:container_file_t:s0:$2" "$bundle/rootfs"
	# As an engine's root, it is a mount of its own: runc may not change that of /run.
	mount --bind "$bundle/rootfs" "$bundle/rootfs"
	cat >"$bundle/config.json" <<JSON
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", "$hold"],
  "selinuxLabel": "system_u:system_r:container_t:s0:$2",
  "env": ["PATH=/bin:/usr/bin", "LD_LIBRARY_PATH=$libraries", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}, {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}],
 "linux": {"cgroupsPath": "/mpu/$1", "mountLabel": "system_u:object_r:container_file_t:s0:$2",
  "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}], "resources": {"devices": [{"allow": false, "access": "rwm"}]}}}
JSON
	as_engine timeout 60 nvidia-container-runtime --log "$bundle/log" create --bundle "$bundle" "$1" </dev/null >/dev/null 2>&1 &&
		runtime start "$1" && return
	cat "$bundle/log"
	return 1
}

stop() {
	runtime delete --force "$1"
	umount "/run/containerd/$1/rootfs"
	rm -rf "/run/containerd/$1"
}

label_of() { tr -d '\0' <"/proc/$1/attr/current"; }

# labelled CONTAINER CATEGORIES: whether its processes have the label that it was given.
labelled() {
	label=$(runtime exec "$1" cat /proc/self/attr/current | tr -d '\0')
	echo "$label"
	[ "$label" = "system_u:system_r:container_t:s0:$2" ]
}

enforcing() { setenforce 1 && getenforce && [ "$(getenforce)" = Enforcing ]; }

denied() { dmesg | grep 'avc:  *denied'; }

# means_it: a container reads a file of its own categories, but not the same file with another's, and the kernel logs the denial.
means_it() {
	file=/run/containerd/one/rootfs/tmp/secret
	echo secret >$file
	chcon system_u:object_r:container_file_t:s0:c1,c2 $file
	runtime exec one cat /tmp/secret || return 1
	chcon system_u:object_r:container_file_t:s0:c3,c4 $file
	! runtime exec one cat /tmp/secret || return 1
	denied | grep 'comm="cat".*tcontext=system_u:object_r:container_file_t:s0:c3,c4.*permissive=0'
}

# by_service: the supervisor has a service's label, from systemd.
by_service() {
	label=$(label_of "$(systemctl show -p MainPID --value mpu-notify)")
	echo "$label"
	case $label in system_u:system_r:initrc_t:s0*) ;; *) return 1 ;; esac
}

# asks CONTAINER: lists its processes, and queries its own and every other of the host. Fails unless it was answered.
asks() {
	own=$(runtime exec "$1" cat /tmp/own) && [ -n "$own" ] || return 1
	for number in $(nvctl pids | sed -n 's/^pid //p'); do
		[ "$number" = "$own" ] || echo "$number"
	done >/tmp/foreign
	[ "$(grep -c . /tmp/foreign)" -ge 2 ] || return 1
	runtime exec "$1" nvctl pids | grep '^pid' | sort -u >/tmp/listed
	runtime exec "$1" nvctl pidinfo "$own" $(cat /tmp/foreign) | grep '^pid' >/tmp/infos
	echo "own $own, listed:" $(cat /tmp/listed) "asked:" $(cat /tmp/infos)
	[ -s /tmp/listed ] && [ "$(grep -c . /tmp/infos)" -gt "$(grep -c . /tmp/foreign)" ]
}

# sees_own_only CONTAINER: of all GPU processes of the host, the container gets only its own, whatever PID it queries.
sees_own_only() {
	asks "$1" || return 1
	[ "$(cat /tmp/listed)" = "pid $own" ] && [ "$(grep -c 'mem [1-9]' /tmp/infos)" = 1 ] && grep -q "^pid $own .*mem [1-9]" /tmp/infos
}

# sees_foreign CONTAINER: the container gets the memory of a foreign process by its host PID.
sees_foreign() {
	asks "$1" || return 1
	for number in $(cat /tmp/foreign); do
		grep -q "^pid $number .*mem [1-9]" /tmp/infos && return
	done
	return 1
}

# kept_from_the_socket CONTAINER: the kernel's log shows that its wrapper was denied access to the supervisor, and so its list is wrong.
kept_from_the_socket() {
	is_wrong runtime "$1" || return 1
	way='tcontext=[^ ]*:initrc(_runtime)?_t:[^ ]* tclass=(dir|sock_file|unix_stream_socket) permissive=0'
	denied | grep -E "comm=\"nvidia-contain[^\"]*\".* scontext=[^ ]*:container_engine_t:[^ ]* $way"
}

# unhindered: the kernel denied nothing to our programs, and no access to our sockets.
unhindered() {
	! denied | grep -E 'comm="(mpu|nvidia-con|nvidia-cdi|runc)|scontext=[^ ]*:initrc_t:|tcontext=[^ ]*:initrc(_runtime)?_t:.*sock'
}

insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never &
install_driver
make_image
mkdir -p /etc/nvidia-container-runtime
dpkg -i $here/mpu-container.deb >/tmp/output 2>&1 || cat /tmp/output
cat >/etc/nvidia-container-runtime/config.toml <<TOML
[nvidia-container-runtime]
runtimes = ["runc"]
[nvidia-container-runtime.modes.jit-cdi]
nvcdi-disable-hooks = ["update-ldcache"]
TOML
# GPUs in containers need this on such a node, with or without MPU.
chcon -R -t etc_t /etc/nvidia-container-runtime
restorecon /dev/nvidia*
setsebool container_mounton_non_security 1
check selinux_is_enforcing enforcing
check selinux_container_starts start one c1,c2
check selinux_container_has_its_label labelled one c1,c2
check selinux_means_it means_it
check selinux_container_is_wrong_before is_wrong runtime one
check selinux_container_sees_foreign_pid_before sees_foreign one
stop one
check selinux_install_takes_the_notify_engine $here/mpu install
hash -r
check selinux_supervisor_is_a_service by_service
dmesg --clear
start one c1,c2
check selinux_denies_confined_engine_the_socket kept_from_the_socket one
stop one
check selinux_policy_module_is_taken semodule -i $here/mpu.cil
dmesg --clear
start one c1,c2
check selinux_container_is_right shows_itself runtime one
check selinux_exec_of_a_user_is_right shows_itself runtime one --user 1000
start two c3,c4
check selinux_second_container_is_right shows_itself runtime two
check selinux_first_container_is_right_beside_it shows_itself runtime one
check selinux_container_sees_no_foreign_pid sees_own_only one
check selinux_containers_are_counted served 2
check selinux_containers_outlive_supervisor_kill kill_supervisor
check selinux_killed_supervisors_container_is_right shows_itself runtime one
check selinux_killed_supervisors_second_container_is_right shows_itself runtime two
check selinux_second_container_has_its_label labelled two c3,c4
check selinux_denied_us_nothing unhindered
stop one
stop two
check selinux_leaves_no_listener served 0
denied | sed 's/.*avc/avc/; s/pid=[0-9]* //; s/ino=[0-9]* //' | sort | uniq -c | sort -rn | head -n 30 | cut -c1-250
