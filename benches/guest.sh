#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# Process 1 of the guest that `cargo xtask bench` boots. Reads /plan (CLIENT, MODULES, ROWS, CROWD, FIRST_PID), measures everything with
# every module, and prints figures on the console; the host (xtask/src/bench) knows the goals and makes the table.
#
#   cost MODULE CALLER WHAT N [RIGHT/ROWS]     in instructions     failed MODULE CALLER WHAT why
#   GUEST-RC=n                                 0: everything was tried
#
# A module is mpu, a peer, none, or the notify engine, which is no module but measured beside them. Its figures are taken on the same
# processes, one module after the other, in the host's PID namespace and in a fresh one, which is all of a container that a driver can see.

echo # the firmware leaves its last line open
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t debugfs debug /sys/kernel/debug
mkdir -p /tmp /run
. /plan
export LD_LIBRARY_PATH=/nvidia/$CLIENT

end() {
	echo "GUEST-RC=$1"
	poweroff -f
}

broken() {
	echo "guest: $*"
	end 69
}

# A module that says of itself, as mpu does, that it is not at work would have figures of nothing.
load() {
	if [ "$1" = notify ]; then
		mpu up --engine notify >/tmp/out 2>/tmp/err || broken "the notify engine is not up: $(tr '\n' ' ' </tmp/err)"
		return
	fi
	[ "$1" = none ] || insmod /modules/"$1".ko || broken "cannot load $1"
	said=$(cat /sys/module/"$1"/parameters/state 2>/dev/null)
	case $said in
	*state=armed* | *state=placed* | '') ;;
	*) broken "$1 is not at work: $(echo $said)" ;;
	esac
}

unload() {
	if [ "$1" = notify ]; then
		mpu down >/tmp/out 2>/tmp/err || broken "the notify engine is not down: $(tr '\n' ' ' </tmp/err)"
		return
	fi
	[ "$1" = none ] || rmmod "$1" || broken "cannot unload $1"
}

# Processes that hold the GPU, in a new PID namespace whose process 1 will be $init. On the host their PIDs are high, as on a machine
# that has been up for long (a look-up costs more then), and so that a number is never right on both sides by chance.
populate() {
	echo >/tmp/ready
	[ "$(cat /proc/sys/kernel/ns_last_pid)" -ge $FIRST_PID ] || echo $FIRST_PID >/proc/sys/kernel/ns_last_pid
	unshare -p -f -m sh -c "mount -t proc proc /proc; sleep 1000000 | gpu-hold --fork $1 >/tmp/ready" &
	holder=$!
	until grep -q ready /tmp/ready; do
		[ -d /proc/$holder ] || broken "gpu-hold cannot make $1 processes"
		sleep 0.1
	done
	init=$(cat /proc/$holder/task/$holder/children)
	init=${init%% *}
}

clear_out() {
	kill -9 "$init"
	wait "$holder" 2>/dev/null # it says "Killed"
}

# What leads a program into the container; for the notify engine, as its runtime does it.
inside() {
	echo nsenter -t "$init" -p -m $([ "$1" != notify ] || echo mpu notify join --)
}

# MODULE CALLER PROGRAM...: runs it as that caller, and its output's lines become figures.
take() {
	module=$1 caller=$2
	shift 2
	if [ "$caller" = host ]; then "$@" >/tmp/out 2>/tmp/err; else $(inside $module) "$@" >/tmp/out 2>/tmp/err; fi
	status=$?
	sed "s/^[a-z_0-9]*/cost $module $caller &$suffix/" /tmp/out
	[ $status = 0 ] || echo "failed $module $caller $1$suffix $(tr '\n' ' ' </tmp/err)"
}

# nvidia-smi as a whole. How many of the processes it shows is part of the figure.
take_smi() {
	module=$1 caller=$2
	if [ "$caller" = host ]; then in=; else in=$(inside $module); fi
	shown=$($in /nvidia/$CLIENT/nvidia-smi | grep -c 'gpu-hold')
	if least=$($in run_cost 4 /nvidia/$CLIENT/nvidia-smi 2>/tmp/err); then
		echo "cost $module $caller nvidia_smi ${least% *} $shown/$SMI_ROWS"
	else
		echo "failed $module $caller nvidia_smi $(tr '\n' ' ' </tmp/err)"
	fi
}

# A container's first call arms the probe, and the kernel makes a jump of it some moments after it says so: until then each call takes a
# breakpoint.
settle() {
	$(inside none) ioctl_cost >/tmp/out 2>/tmp/err
	sleep 2
	[ "$1" != mpu ] || grep -q rm_ioctl /sys/kernel/debug/kprobes/list || broken "the module has no probe"
	! grep rm_ioctl /sys/kernel/debug/kprobes/list | grep -v '\[OPTIMIZED\]' || broken "the probe is no jump after two seconds"
}

take_all() {
	for module in $MODULES; do
		load "$module"
		[ "$1" != $SMI_ROWS ] || [ -n "$suffix" ] || (suffix=_alone && take "$module" host ioctl_cost)
		settle "$module"
		for caller in host container; do
			[ "$1" != $SMI_ROWS ] || [ -n "$suffix" ] || take "$module" $caller ioctl_cost
			take "$module" $caller ioctl_cost "$1"
			[ "$1" != $SMI_ROWS ] || [ -n "$suffix" ] || take_smi "$module" $caller
		done
		unload "$module"
	done
}

# mpu's own comings and goings. `begin` and `end` let the host take the real time, too.
comings_and_goings() {
	for turn in 1 2 3; do
		for what in up down; do
			words="up --module /modules/mpu.ko"
			[ $what = up ] || words=down
			echo "begin mpu_$what"
			took=$(run_cost 1 mpu $words 2>/tmp/err)
			status=$?
			echo "end mpu_$what"
			[ $status = 0 ] || { echo "failed mpu host mpu_$what $(tr '\n' ' ' </tmp/err)"; return; }
			echo "cost mpu host mpu_$what ${took% *}"
		done
	done
}

SMI_ROWS=10
suffix=
echo 4194304 >/proc/sys/kernel/pid_max # what distributions set
insmod /nvidia.ko || broken "cannot load the simulated driver"
nvctl pids >/dev/null # makes the device nodes
for rows in $ROWS; do
	populate "$rows"
	take_all "$rows"
	[ "$rows" != $SMI_ROWS ] || comings_and_goings
	clear_out
done
if [ -n "$CROWD" ]; then
	echo >/tmp/crowd
	crowd $CROWD >/tmp/crowd &
	until grep -q ready /tmp/crowd; do
		[ -d /proc/$! ] || broken "cannot make a crowd of $CROWD"
		sleep 0.1
	done
	echo "crowd $(ls /proc | grep -c '^[0-9]')"
	populate 950
	suffix=_crowd
	MODULES="none mpu notify"
	take_all 950
fi
end 0
