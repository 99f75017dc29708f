# Containers in the jobs of a real Slurm, and how MPU names the jobs; sourced by stories.sh.

jobs=/run/jobs

# within SECONDS COMMAND…: waits until it succeeds. Slurm's programs wait for each other, so each gets a few seconds and not wait_for's many tries.
within() {
	end=$(($(date +%s) + $1))
	shift
	until "$@"; do
		[ "$(date +%s)" -lt $end ] || return 1
		sleep 0.5
	done
}

slurm_logs() {
	tail -n 8 /var/log/slurm/*.log
	journalctl -n 8 --no-pager -o cat -u munge -u slurmctld -u slurmd
}

# An address besides the loopback's: without one, the C library finds no address for Slurm's names.
network_up() {
	printf '[Match]\nName=lo\n[Network]\nAddress=10.9.9.9/32\n' >/etc/systemd/network/lo.network
	systemctl start systemd-networkd
	within 60 grep -q 10.9.9.9 /proc/net/fib_trie
}

# A cluster of this node alone, with the paths and units of Debian's packages. Its slurmd chooses cgroup v2 by itself.
slurm_up() {
	echo "127.0.0.1 localhost $(hostname)" >/etc/hosts
	cat >/etc/slurm/slurm.conf <<-CONF
		ClusterName=stories
		SlurmctldHost=$(hostname)(127.0.0.1)
		SlurmUser=root
		AuthType=auth/munge
		CredType=cred/munge
		MpiDefault=none
		ProctrackType=proctrack/cgroup
		TaskPlugin=task/cgroup
		SelectType=select/cons_tres
		SelectTypeParameters=CR_Core
		StateSaveLocation=/var/lib/slurm/slurmctld
		SlurmdSpoolDir=/var/lib/slurm/slurmd
		SlurmctldPidFile=/run/slurmctld.pid
		SlurmdPidFile=/run/slurmd.pid
		SlurmctldLogFile=/var/log/slurm/slurmctld.log
		SlurmdLogFile=/var/log/slurm/slurmd.log
		SlurmdParameters=config_overrides
		ReturnToService=2
		KillWait=2
		GresTypes=gpu,shard
		NodeName=$(hostname) NodeAddr=127.0.0.1 CPUs=4 Gres=gpu:2,shard:4 State=UNKNOWN
		PartitionName=all Nodes=ALL Default=YES State=UP
	CONF
	printf 'CgroupPlugin=autodetect\nConstrainDevices=yes\n' >/etc/slurm/cgroup.conf
	printf 'Name=gpu File=/dev/nvidia%s\n' 0 1 >/etc/slurm/gres.conf
	echo 'Name=shard Count=4' >>/etc/slurm/gres.conf
	chown -R root:root /var/lib/slurm /var/log/slurm
	mkdir -p /var/lib/slurm/slurmctld /var/lib/slurm/slurmd
	network_up && timeout 60 systemctl start munge slurmctld slurmd || return 1
	within 120 is_idle
}
is_idle() { timeout 5 sinfo --noheader --format %t | grep -x idle; }

# Writes a user's container in a job: new user, PID and mount namespaces, as Apptainer and enroot make them without root. It has a GPU
# process, and a loop that runs nvidia-smi on each request.
make_container() {
	mkdir -p $jobs
	mkfifo -m 666 $jobs/never
	cat >$jobs/contain <<-SH
		#!/bin/sh
		exec unshare --user --map-root-user --pid --fork --kill-child --mount-proc sh $jobs/inside "\$1"
	SH
	cat >$jobs/inside <<-SH
		cd $jobs/\$1
		for gpu in 0 1; do
			(: </dev/nvidia\$gpu) 2>/dev/null && echo \$gpu
		done >opened
		gpu-hold --gpu "\$(head -n 1 opened)" --mem 40 --clients 2 --thread --name "\$1" <>$jobs/never >held 2>&1 &
		echo \$! >own
		while sleep 0.2; do
			mv ask asked 2>/dev/null || continue
			nvidia-smi --query-compute-apps=pid --format=csv,noheader >answering 2>&1 || echo "ended with \$?" >>answering
			mv answering answer
		done
	SH
	chmod 755 $jobs/contain
}

# folder USER NAME: makes a container's folder.
folder() {
	mkdir -p "$jobs/$2"
	chown "$1" "$jobs/$2"
}
is_held() { within 120 grep -qs ready "$jobs/$1/held" || { ls -l "$jobs/$1"; cat "$jobs/$1"/*; slurm_logs; return 1; } >/dev/console; }

# batch USER NAME GRES: a batch job that is a container; prints the job's number.
batch() {
	folder "$1" "$2"
	timeout 20 runuser -u "$1" -- sbatch --parsable --gres="$3" --chdir="$jobs/$2" --output=log --wrap "exec $jobs/contain $2"
}
# step USER JOB NAME: another step of the job that is a container.
step() {
	folder "$1" "$3"
	runuser -u "$1" -- srun --jobid="$2" --overlap --chdir="$jobs/$3" --output="$jobs/$3/log" $jobs/contain "$3" </dev/null &
	is_held "$3"
}

opens_only() { grep -x "$2" "$jobs/$1/opened" && [ "$(wc -l <"$jobs/$1/opened")" = 1 ]; }

# Whether nvidia-smi shows the container's own process and no other, by its PID there.
shows_itself() {
	rm -f "$jobs/$1/answer"
	touch "$jobs/$1/ask"
	wait_for test -e "$jobs/$1/answer"
	answer=$(tr -d ' ' <"$jobs/$1/answer")
	own=$(cat "$jobs/$1/own")
	echo "own $own, shown:" $answer
	[ -n "$own" ] && [ "$answer" = "$own" ]
}
# Whether nvidia-smi works and shows something, but not that process.
is_wrong() {
	! shows_itself "$1" && [ -n "$answer" ] && ! grep 'ended with' "$jobs/$1/answer" && ! echo "$answer" | grep -x "$own"
}

holders() { pgrep -x 'gpu-hold|first.*|second.*|third.*'; }

# Every GPU process with its job and step, one a line, by Slurm and by MPU.
by_slurm() {
	timeout 20 scontrol listpids >/tmp/listed
	for pid in $(holders); do
		awk -v pid="$pid" '$1 == pid { found = 1; print $1, $2, $3 } END { if (!found) print pid, "-", "-" }' /tmp/listed
	done | sort
}
# A driver of this era lists the thread that made a client, on the host, too.
by_process() {
	while read -r id job; do
		echo "$(sed -n 's/^Tgid:\t//p' "/proc/$id/status") $job"
	done | sort
}
of_json='.processes[] | "\(.pid) \(.job.id // "-") \(.job.step // "-")"'
by_ps() { $mpu ps --json | jq -r "$of_json" | by_process; }
by_who() { $mpu who --json | jq -r "$of_json" | by_process; }
by_metrics() {
	$mpu metrics --once --label pid --label slurm_job --label slurm_step |
		sed -n 's/^mpu_gpu_memory_used_bytes{.*pid="\([0-9]*\)".*slurm_job="\([^"]*\)",slurm_step="\([^"]*\)".*/\1 \2 \3/p' |
		sed 's/  $/ - -/' | by_process
}
# names TOOL STEP…: each GPU process has the job and the step that Slurm gives it, and the steps are these.
names() {
	by_slurm >/tmp/by-slurm
	"by_$1" >/tmp/by-mpu
	shift
	cat /tmp/by-mpu
	diff /tmp/by-slurm /tmp/by-mpu && [ "$(cut -d' ' -f2- /tmp/by-mpu | sort)" = "$(printf '%s\n' "$@" | sort)" ]
}

# in_step USER JOB COMMAND: what a step without a container prints.
in_step() { timeout 60 runuser -u "$1" -- srun --jobid="$2" --overlap --chdir=/ sh -c "$3" </dev/null; }

# cli_lists USER JOB NODE: nvidia-container-cli lists only the job's GPU.
cli_lists() {
	listed=$(in_step "$1" "$2" 'nvidia-container-cli list --device all')
	echo "$listed"
	[ "$(echo "$listed" | grep '/dev/nvidia[0-9]')" = "$3" ]
}

# As on the host: a job has no PID namespace of its own.
job_sees_the_host() {
	query='nvidia-smi --id=0 --query-compute-apps=pid --format=csv,noheader'
	in_job=$(in_step "$1" "$2" "$query")
	echo "$in_job"
	[ -n "$in_job" ] && [ "$in_job" = "$($query)" ]
}

# The command that `mpu who` names for a process ends its step.
who_ends() {
	pid=$(pgrep -x "$1")
	command=$($mpu who --json | jq -r ".processes[] | select(.pid == $pid).end")
	echo "$command"
	[ "$command" = "$2" ] && timeout 20 sh -c "$command" && within 60 has_ended "$pid"
}

job_ends() {
	pid=$(pgrep -x "$2")
	timeout 20 scancel "$1" && within 60 has_ended "$pid"
}

mpu=$here/mpu
insmod $here/nvidia.ko gpus=2
for gpu in 0 1; do
	gpu-hold --gpu $gpu --mem 300 <>/tmp/never >/tmp/held-$gpu &
	wait_for grep -qs ready /tmp/held-$gpu
done
install_driver
mkdir -p /usr/lib/mpu/modules/$release
cp $here/prebuilt-slurm/*.ko /usr/lib/mpu/modules/$release/
useradd --uid 1001 first
useradd --uid 1002 second
useradd --uid 1003 third
make_container
dpkg -i $here/mpu-container.deb >/tmp/output 2>&1 || cat /tmp/output

log "Slurm"
check slurm_begins slurm_up
within 60 is_idle || { slurm_logs; return; }
slurmd -V
one=$(batch first first-batch gpu:1)
two=$(batch second second-batch shard:1)
three=$(batch third third-batch shard:1)
is_held first-batch && is_held second-batch && is_held third-batch || { timeout 5 squeue; return; }
cat /proc/$(pgrep -x first-batch)/cgroup
check slurm_first_job_has_the_first_gpu opens_only first-batch 0
check slurm_second_job_has_the_second_gpu opens_only second-batch 1
check slurm_third_job_shares_the_second_gpu opens_only third-batch 1
check slurm_first_job_is_wrong_before is_wrong first-batch
check slurm_second_job_is_wrong_before is_wrong second-batch
check slurm_third_job_is_wrong_before is_wrong third-batch
grep . $jobs/*/own $jobs/*/answer

log "with MPU"
check slurm_engine_comes_up $mpu up --engine module
check slurm_first_job_is_right shows_itself first-batch
check slurm_second_job_is_right shows_itself second-batch
check slurm_third_job_is_right_on_the_same_gpu shows_itself third-batch
check slurm_container_cli_lists_the_jobs_gpu cli_lists second "$two" /dev/nvidia1
check slurm_job_without_container_sees_the_hosts job_sees_the_host first "$one"
set -- "$one batch" "$two batch" "$three batch" "- -" "- -"
check slurm_ps_names_batch_jobs names ps "$@"
check slurm_who_names_batch_jobs names who "$@"
check slurm_metrics_name_batch_jobs names metrics "$@"

log "steps of the first job, on its GPU"
check slurm_step_begins step first "$one" first-step
check slurm_step_is_right shows_itself first-step
check slurm_batch_is_right_beside_it shows_itself first-batch
check slurm_second_step_begins step first "$one" first-again
check slurm_second_step_is_right shows_itself first-again
check slurm_first_step_is_right_beside_it shows_itself first-step
set -- "$one batch" "$one 1" "$one 2" "$two batch" "$three batch" "- -" "- -"
check slurm_ps_names_steps names ps "$@"
check slurm_who_names_steps names who "$@"
check slurm_metrics_name_steps names metrics "$@"

log "the end of a step, and of a job"
check slurm_who_names_the_command_that_ends_a_step who_ends first-again "scancel $one.2"
check slurm_batch_is_right_after_a_step shows_itself first-batch
check slurm_ended_job_ends job_ends "$two" second-batch
check slurm_third_job_is_right_after_it shows_itself third-batch
set -- "$one batch" "$one 1" "$three batch" "- -" "- -"
check slurm_ps_names_no_ended_job names ps "$@"
check slurm_who_names_no_ended_job names who "$@"
check slurm_metrics_name_no_ended_job names metrics "$@"
