#!/bin/bash
# The notify engine on a real GPU: containers made by mpu-container with runc, and `mpu run`, see their own GPU processes and no
# others, without a module.
#
#   sudo tests/gpu/notify.sh PATH-TO-MPU PATH-TO-MPU-CONTAINER [WORK-FOLDER]
#
# Needs: an NVIDIA GPU with its driver, runc, a C compiler, Python with torch and pynvml (PYTHON names it) and, to show their
# output, gpustat and nvitop in PYTHONPATH, root. Changes nothing outside of its folder and /run. Prints each command before its
# output; ends with 1 if an answer is wrong.
here=$(dirname "$(readlink -f "$0")")
. "$here/common.sh"
cc -O2 -o calls "$here/calls.c" -ldl && cc -O2 -o floor "$here/floor.c" || exit 3

apps() { "$@" nvidia-smi --query-compute-apps=pid --format=csv,noheader,nounits | sort -n | tr '\n' ' '; }
memory() { "$@" nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits | sed -n "s/^$pid, //p"; }

# took NAME TIMES COMMAND...: seconds in a container.
took() {
	local who=$1 times=$2
	shift 2
	runc exec "$who" bash -c "time for i in \$(seq $times); do $* >/dev/null; done" 2>&1 | sed -n 's/^real//p'
}

# inside WHO PIDS COMMAND...: every kind of client, run by COMMAND, must show PIDS.
inside() {
	local who=$1 pids=$2 seen
	shift 2
	show "$@" nvidia-smi
	show "$@" nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv
	check "$who: --query-compute-apps has its own and no others" "[ -n '$pids' ] && [ '$(apps "$@")' = '$pids ' ]"
	show "$@" nvidia-smi pmon -c 1
	check "$who: pmon, too" "[ \"\$($* nvidia-smi pmon -c 1 | awk '\$1 == 0 {print \$2}' | sort -n | xargs)\" = '${pids:-none}' ]"
	seen=$("$@" "$python" "/$inner/processes.py" 2>&1)
	printf '$ %s\n%s\n' "$* $python processes.py" "$seen"
	check "$who: pynvml's list" "[ \"\$(sed -n 's/^compute //p' <<<'$seen' | tr ' ' '\n' | cut -d: -f1 | sort -n | xargs)\" = '${pids:-none}' ]"
	check "$who: pynvml's utilisation" "[ \"\$(sed -n 's/^utilisation //p' <<<'$seen' | tr ' ' '\n' | sort -n | xargs)\" = '${pids:-none}' ]"
	show "$@" "$python" -m gpustat --no-color --show-pid --show-cmd
	show "$@" "$python" -m nvitop --once
}

headline "this machine"
show uname -r
show cat /proc/driver/nvidia/version
show unshare --mount sh -c 'mount -t securityfs none /sys/kernel/security 2>/dev/null; cat /sys/kernel/security/lockdown'
show cat /proc/sys/kernel/modules_disabled
show mpu --version

headline "1. without an engine: what the driver does by itself"
bundle a NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility
bundle b NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility
bundle off NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility MPU_NOTIFY=off
train host.out "$python" train.py 400 512
host=$trained
show mpu probe
check "a container is not seen right" "mpu probe | grep -q 'is not seen right'"

headline "2. the engine, and three containers beside a foreign process on the host"
show mpu up --engine notify
show mpu up --engine notify
start a
start b
train a.train runc exec a "$python" /gpu/train.py 150 256
a=$trained
train a2.train runc exec a "$python" /gpu/train.py 150 128
a2=$trained
train b.train runc exec b "$python" /gpu/train.py 150 384
b=$trained
show mpu status
show nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv
check "the host sees all four" "[ \$(apps env | wc -w) = 4 ]"
inner=gpu
inside "container a" "$(printf '%s\n' "$a" "$a2" | sort -n | xargs)" runc exec a
inside "container b" "$b" runc exec b

headline "3. figures are the host's"
show mpu ps
for pid in $a $a2; do
	hers=$(mpu ps --json | "$python" -c "import json,sys
print([round(p['memory'] / 2**20) for p in json.load(sys.stdin)['processes'] if p.get('container_pid') == $pid and p['container_pid'] != p['pid']])")
	mine=$(memory runc exec a)
	check "process $pid of a has the memory that the host sees: $mine of $hers" "[ -n '$mine' ] && grep -qw '$mine' <<<'$hers'"
done
show mpu probe
check "a container is seen right: no foreign process, no kernel address" "mpu probe | grep -q 'is seen right'"

host_of() {
	"$python" -c "import json, sys
print(*[p['pid'] for p in json.load(sys.stdin)['processes'] if '$1' in (p.get('container') or {}).values() and p['container_pid'] == $2])"
}
"$python" samples.py 4 >samples.host &
runc exec a "$python" /gpu/samples.py 4 >samples.a
wait $!
for pid in $a $a2; do
	outside=$(mpu ps --json | host_of a "$pid")
	show "$python" compare_samples.py samples.host samples.a "$outside" "$pid"
	check "samples of process $pid in a are the host's of $outside" "$python compare_samples.py samples.host samples.a '$outside' $pid >same"
done
check "a's samples name no other process" "[ \"\$(cut -d' ' -f1 samples.a | sort -nu | xargs)\" = '$(printf '%s\n' "$a" "$a2" | sort -n | xargs)' ]"

headline "4. another user, and namespaces within namespaces"
show runc exec --user 1000:1000 a id
show runc exec --user 1000:1000 a nvidia-smi --query-compute-apps=pid,used_memory --format=csv
both=$(apps runc exec a)
check "user 1000 sees the same" "[ -n '$both' ] && [ '$(apps runc exec --user 1000:1000 a)' = '$both' ]"
cat >nested.sh <<SH
$python $work/train.py 20 64 > nested.out & 
until grep -q ^process nested.out; do sleep 0.2; done
cat nested.out
nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv
touch nested.seen
wait
SH
cat >outer.sh <<SH
rm -f nested.seen
unshare --pid --fork --mount-proc sh nested.sh &
until [ -e nested.seen ]; do sleep 0.2; done
echo outside:
nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv
ps -e -o pid,args | grep "[t]rain.py 20 64" | grep -v unshare
SH
show mpu run -- sh outer.sh | tee nested.log
inner_says=$(sed -n 's/^process //p' nested.log)
inner_seen=$(sed -n '/^pid/{n;s/,.*//p;q}' nested.log)
outer_seen=$(sed -n '/^outside/,$s/^\([0-9]*\), .*/\1/p' nested.log)
outer_is=$(sed -n '/^outside/,$s/^ *\([0-9]*\) .*train.py.*/\1/p' nested.log | head -1)
check "the inner one is right" "[ -n '$inner_says' ] && [ '$inner_says' = '$inner_seen' ]"
check "the outer one has it by its own number" "[ -n '$outer_is' ] && [ '$outer_is' = '$outer_seen' ]"

headline "5. the supervisor is killed, ten times, while a container asks and two train"
runc exec a sh -c 'for i in $(seq 150); do nvidia-smi --query-compute-apps=pid --format=csv,noheader | sort -n | xargs; done' >asked 2>&1 &
asking=$!
for _ in 1 2 3 4 5 6 7 8 9 10; do
	sleep 0.5
	pkill -9 -f 'mpu notify serve' && echo killed
done
wait $asking
show sh -c 'sort asked | uniq -c'
check "150 answers, all right" "[ \"\$(sort asked | uniq -c | xargs)\" = \"150 \$(printf '%s\n' $a $a2 | sort -n | xargs)\" ]"
check "they train on" "runc exec a kill -0 $a && runc exec a kill -0 $a2"
show mpu status

headline "6. signals that interrupt"
for who in "env" "mpu run --" "runc exec a"; do
	show $who "$python" "$([ "$who" = "runc exec a" ] && echo /gpu || echo .)"/signals.py | tee signals.log
	check "CUDA and NVML do not mind ($who)" "grep -q '204800 computed.*errors: none.*many signals' signals.log"
done

headline "7. what it costs (no other process uses the GPU)"
kill "$host"
runc exec a kill "$a" "$a2"
runc exec b kill "$b"
sleep 2
start off
for round in 1 2; do
	for who in off a; do
		echo "container $who: with$([ $who = off ] && echo out) the engine"
		echo "  a call, in microseconds: $(runc exec $who /gpu/calls)"
		echo "  nvidia-smi, 20 times:" "$(took $who 20 nvidia-smi)"
		echo "  importing torch and a first tensor, 3 times:" "$(took $who 3 "$python" /gpu/first_tensor.py)"
		echo "  20,000 launches:" "$(runc exec $who "$python" /gpu/cost.py launches)"
		echo "  500 training steps:" "$(runc exec $who "$python" /gpu/cost.py steps)"
	done
done
echo "under a supervisor that does nothing: $(runc exec off /gpu/floor /gpu/calls)"
echo "under one that reads the argument: $(runc exec off /gpu/floor --read /gpu/calls)"
passed_on() { mpu status --json | "$python" -c 'import json,sys; print(json.load(sys.stdin)["notify_state"]["passed_on"])'; }
before=$(passed_on)
runc exec a "$python" /gpu/first_tensor.py
echo "controls of one import and tensor: $(($(passed_on) - before))"
show mpu status

# pollers NAME-PREFIX: sixteen containers call at once; prints the median of their times, in microseconds.
pollers() {
	local i
	rm -f polled.*
	for i in $(seq 16); do runc exec "$1$i" /gpu/calls >"polled.$i" & done
	for i in $(seq 16); do wait -n; done
	cat polled.* | grep -o 'without PIDs [0-9.]*, process list [0-9.]*' | "$python" -c 'import re, statistics, sys
figures = [tuple(map(float, re.findall("[0-9.]+", line))) for line in sys.stdin]
print("without PIDs %.2f, process list %.1f (medians of %d)" % (*map(statistics.median, zip(*figures)), len(figures)))'
}
headline "8. sixteen containers that ask at once"
show nproc
for i in $(seq 16); do
	bundle "on$i" NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility
	bundle "off$i" NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility MPU_NOTIFY=off
	start "on$i" >/dev/null
	start "off$i" >/dev/null
done
for round in 1 2; do
	for who in off on; do
		polled=$(pollers $who)
		echo "MPU_NOTIFY $who: $polled"
		check "all sixteen were answered" "[[ '$polled' == *'(medians of 48)' ]]"
	done
done
listeners=$(mpu status --json | "$python" -c 'import json,sys; print(json.load(sys.stdin)["notify_state"]["listeners"])')
check "the engine listens to sixteen of them" "[ $listeners -ge 16 ]"
show mpu status
for i in $(seq 16); do runc delete --force "on$i"; runc delete --force "off$i"; done

# Each GPU's processes, by their PIDs in the container.
by_gpu() { "$@" nvidia-smi --query-compute-apps=gpu_bus_id,pid --format=csv,noheader | sort | sed 's/.*, //' | xargs; }
if [ "$(nvidia-smi -L | grep -c '^GPU ')" -ge 2 ]; then
	headline "9. two GPUs"
	bundle both NVIDIA_VISIBLE_DEVICES=0,1 NVIDIA_DRIVER_CAPABILITIES=compute,utility
	bundle second NVIDIA_VISIBLE_DEVICES=1 NVIDIA_DRIVER_CAPABILITIES=compute,utility
	start both
	start second
	train both.0 runc exec --env CUDA_DEVICE_ORDER=PCI_BUS_ID --env CUDA_VISIBLE_DEVICES=0 both "$python" /gpu/train.py 60 256
	zero=$trained
	train both.1 runc exec --env CUDA_DEVICE_ORDER=PCI_BUS_ID --env CUDA_VISIBLE_DEVICES=1 both "$python" /gpu/train.py 60 256
	one=$trained
	train second.1 runc exec second "$python" /gpu/train.py 60 128
	alone=$trained
	show runc exec both nvidia-smi
	show runc exec second nvidia-smi
	check "a container with both GPUs has its process of each on its GPU" "[ '$(by_gpu runc exec both)' = '$zero $one' ]"
	check "a container with the second alone has its own" "[ -n '$alone' ] && [ '$(by_gpu runc exec second)' = '$alone' ]"
	for name in both second; do runc delete --force $name; done
else
	headline "9. two GPUs: skipped, this machine has one"
fi

headline "10. down"
show mpu down
show runc exec a nvidia-smi -L
for name in a b off; do runc delete --force $name; done
sleep 1
show mpu status
check "nothing is left in /run/mpu/notify" "[ -z \"\$(ls -A /run/mpu/notify 2>/dev/null | grep -v '^\(log\|keeper.lock\)\$')\" ]"
exit $failed
