# Docker's and podman's containers on a node that can build no module, served by the notify engine; sourced by stories.sh.

. $here/served.sh

# The initramfs supports neither pivot_root nor overlays: both engines get options for that.
export DOCKER_RAMDISK=true
options="--network none --env NVIDIA_VISIBLE_DEVICES=all --env NVIDIA_DRIVER_CAPABILITIES=utility"

docker_up() {
	nvidia-ctk runtime configure --runtime=docker || return 1
	jq '. + {iptables: false, ip6tables: false, bridge: "none", "storage-driver": "vfs"}' /etc/docker/daemon.json >/tmp/daemon.json
	cp /tmp/daemon.json /etc/docker/daemon.json
	dockerd >/tmp/dockerd.log 2>&1 &
	wait_for docker version || { tail -n 5 /tmp/dockerd.log; return 1; }
	docker import /run/image.tar box
}

podman_up() {
	mkdir -p /etc/containers
	cat >/etc/containers/storage.conf <<-TOML
		[storage]
		driver = "vfs"
		runroot = "/run/containers/storage"
		graphroot = "/var/lib/containers/storage"
	TOML
	printf '[engine]\nno_pivot_root = true\n' >/etc/containers/containers.conf
	podman import --quiet /run/image.tar box
}

in_docker() { docker run --runtime nvidia $options "$@"; }
in_podman() { podman run --runtime /usr/bin/nvidia-container-runtime $options "$@"; }

# A container that queries by itself and ends, without an exec.
asks_by_itself() {
	script="gpu-hold --mem 40 <>/never >/tmp/held & echo \$!; while ! [ -s /tmp/held ]; do sleep 0.1; done; $query"
	answer=$("$@" --rm box sh -c "$script" | tr -d ' ')
	echo "own and shown:" $answer
	set -- $answer
	[ $# = 2 ] && [ "$1" = "$2" ]
}

insmod $here/nvidia.ko
gpu-hold --mem 300 <>/tmp/never &
install_driver
make_image
mkdir -p /etc/nvidia-container-runtime
dpkg -i $here/mpu-container.deb >/tmp/output 2>&1 || cat /tmp/output
printf '[nvidia-container-cli]\nno-pivot = true\n[nvidia-container-runtime]\nruntimes = ["runc"]\n' >/etc/nvidia-container-runtime/config.toml
check docker_begins docker_up
in_docker --detach --name before box sh -c "$hold"
check docker_container_is_wrong_before is_wrong docker before
check podman_begins podman_up
in_podman --detach --name before box sh -c "$hold"
check podman_container_is_wrong_before is_wrong podman before
check engines_install_takes_the_notify_engine $here/mpu install
hash -r
check docker_container_from_before_stays_wrong is_wrong docker before
check podman_container_from_before_stays_wrong is_wrong podman before
docker rm --force before
podman rm --force --time 0 before

log "docker"
check docker_container_by_itself_is_right asks_by_itself in_docker
in_docker --detach --name one box sh -c "$hold"
check docker_exec_is_right shows_itself docker one
check docker_exec_of_a_user_is_right shows_itself docker one --user 1000
check docker_user_container_is_right asks_by_itself in_docker --user 1000
docker restart --time 0 one
check docker_restarted_container_is_right shows_itself docker one
check docker_container_outlives_supervisor_kill kill_supervisor
check docker_killed_supervisors_container_is_right shows_itself docker one
in_docker --detach --name two box sh -c "$hold"
check docker_second_container_is_right shows_itself docker two
check docker_first_container_is_right_beside_it shows_itself docker one
check docker_containers_are_counted served 2
docker rm --force one two
check docker_leaves_no_listener served 0

log "podman"
check podman_container_by_itself_is_right asks_by_itself in_podman
in_podman --detach --name three box sh -c "$hold"
check podman_exec_is_right shows_itself podman three
podman rm --force --time 0 three
check podman_leaves_no_listener served 0

log "the first ten minutes: from nothing of ours to a right nvidia-smi, as README.md says, each command as the doctor names it"
mpu uninstall >/tmp/output 2>&1 || cat /tmp/output
hash -r
dpkg --purge mpu-container >/tmp/output 2>&1 || cat /tmp/output
jq 'del(.runtimes)' /etc/docker/daemon.json >/tmp/daemon.json
cp /tmp/daemon.json /etc/docker/daemon.json
pkill -HUP -x dockerd
# next_is COMMAND: the doctor's next command begins with it.
next_is() {
	$here/mpu doctor >/tmp/doctor
	grep '^next: ' /tmp/doctor
	grep -q "^next: $1" /tmp/doctor
}
docker_knows_the_runtime() { docker info -f '{{json .Runtimes}}' | grep nvidia; }
# Three commands. The goal is two minutes on a real machine; a busy emulated one has five. Docker has no unit here, so pkill sends the signal
# of `systemctl reload docker`.
three_commands() {
	began=$(date +%s)
	$here/mpu install && dpkg -i $here/mpu-container.deb || return 1
	printf '[nvidia-container-cli]\nno-pivot = true\n[nvidia-container-runtime]\nruntimes = ["runc"]\n' >/etc/nvidia-container-runtime/config.toml
	nvidia-ctk runtime configure --runtime=docker && pkill -HUP -x dockerd || return 1
	wait_for docker_knows_the_runtime || return 1
	asks_by_itself in_docker || return 1
	took=$(($(date +%s) - began))
	echo "$took s"
	[ $took -le 300 ]
}
up_says_what_to_try() {
	mpu up >/tmp/up
	cat /tmp/up
	grep -q '^try  *docker run --rm --runtime=nvidia' /tmp/up
}
check doctor_first_names_up next_is 'sudo mpu up'
$here/mpu up >/tmp/output 2>&1 || cat /tmp/output
check doctor_then_names_the_container_package next_is 'sudo apt-get install ./mpu-container_'
dpkg -i $here/mpu-container.deb >/tmp/output 2>&1 || cat /tmp/output
check doctor_then_names_the_docker_command next_is 'sudo nvidia-ctk runtime configure --runtime=docker'
$here/mpu down >/tmp/output 2>&1 || cat /tmp/output
dpkg --purge mpu-container >/tmp/output 2>&1
check three_commands_are_enough three_commands
hash -r
check up_names_the_command_to_try up_says_what_to_try
