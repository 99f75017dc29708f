#!/bin/bash
# Eight containers on one GPU with the notify engine: none of the driver's answers has a foreign PID or a kernel address. All processes
# have host PIDs that occur nowhere else by chance.
#
#   sudo tests/gpu/taint.sh PATH-TO-MPU PATH-TO-MPU-CONTAINER [WORK-FOLDER]
#
# Needs what tests/gpu/notify.sh needs. Makes only the calls in tests/gpu/taint.allowed, at a limited rate, and ends after 150 seconds.
# Changes nothing outside of its folder and /run but pid_max, which it restores. Each line begins with the second of its output. A line
# precedes the first call of each kind. WORK-FOLDER/progress has the same lines, each synced: if the machine dies, the last line shows
# the call. Ends with 1 if an answer is wrong.
if [ -z "${TAINT_IS_BOUND-}" ]; then
	TAINT_IS_BOUND=1 exec timeout --kill-after=20 150 "$0" "$@"
fi
here=$(dirname "$(readlink -f "$0")")
. "$here/common.sh"
rm -f progress
exec > >(trap '' TERM
while IFS= read -r line; do
	printf '%4d %s\n' $SECONDS "$line" | tee -a progress
	sync progress
done) 2>&1
printer=$!
cc -O2 -pthread -Wno-missing-field-initializers -o nvtaint "$here/../../sim/nvtaint.c" || exit 3
cc -O2 -o nextpid "$here/nextpid.c" || exit 3
cp "$here/taint.allowed" .

tenants=$(seq -f t%g 8)
pid_max=$(cat /proc/sys/kernel/pid_max)
# No computing process ends before the last call: in a container without MPU the driver follows the kernel addresses in its samples,
# and an ended process leaves stale ones.
ended() {
	# shellcheck disable=SC2086
	for name in bare $tenants; do
		runc kill "$name" KILL
		runc delete --force "$name"
	done >/dev/null 2>&1
	kill "$foreign" 2>/dev/null
	mpu down
	echo "$pid_max" >/proc/sys/kernel/pid_max
	exec >/dev/null 2>&1
	wait "$printer"
}
foreign=
trap ended EXIT
trap 'echo "WRONG: it did not end in its time"; exit 1' TERM

headline "this machine"
show uname -r
show head -1 /proc/driver/nvidia/version
show nvidia-smi -L
show mpu --version

# If the kernel does not let us set the next PID, nextpid forks until it is reached, and PIDs have to stay small.
from=$((0x7601)) to=$((0x76ff))
if { echo 4194304 >/proc/sys/kernel/pid_max && echo $((0x2fee00)) >/proc/sys/kernel/ns_last_pid; } 2>/dev/null; then
	from=$((0x2fee01)) to=$((0x2feeff))
else
	echo "$pid_max" >/proc/sys/kernel/pid_max
fi
echo "host PIDs are from $from to below $to; pid_max was $pid_max"
# next: gives the next process the lowest free PID of the set.
next() { ./nextpid $from; }
# asks WHO HOW...: runs nvtaint in a container.
asks() {
	local who=$1
	shift
	next
	timeout 70 runc exec "$who" /gpu/nvtaint --allowed /gpu/taint.allowed "$@" $from $to </dev/null 2>&1
}
hits() { sed -n "s/^hits .*\b$1 \([0-9]*\).*/\1/p" "$2"; }
# clean FILE: nvtaint ended, and found only the exception of docs/notify.md: an error report has its caller's PID.
clean() { grep -q '^hits ' "$1" && ! grep '^hit ' "$1" | grep -v ' control 0x607 '; }

headline "1. the engine, eight tenants that compute, and a foreign process on the host"
show mpu up --engine notify
# One thread each, so that the set has PIDs for all.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
next
train foreign.train "$python" train.py 300 256
foreign=$trained
bundle bare NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility MPU_NOTIFY=off
start bare
for name in $tenants; do
	bundle "$name" NVIDIA_VISIBLE_DEVICES=0 NVIDIA_DRIVER_CAPABILITIES=compute,utility \
		OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
	next
	start "$name"
	next
	runc exec --detach "$name" "$python" /gpu/train.py 300 256 </dev/null >"$name.train" 2>&1
done
for _ in $(seq 150); do
	[ "$(cat t*.train | grep -c ^process)" = 8 ] && break
	sleep 0.2
done
mapfile -t computing < <(nvidia-smi --query-compute-apps=pid --format=csv,noheader)
echo "the host sees ${computing[*]}"
check "nine processes compute" "[ ${#computing[@]} = 9 ]"
outside=0
for pid in "${computing[@]}"; do
	[ "$pid" -ge $from ] && [ "$pid" -lt $to ] || outside=1
done
check "each has a number of the set" "[ $outside = 0 ]"

headline "2. without the engine, in a container: what is looked for is found"
asks bare --calls 200 --rate 200 | tee bare.log
check "PIDs of others come back" "[ 0\$(hits number bare.log) -gt 0 ]"
check "kernel addresses, too" "[ 0\$(hits address bare.log) -gt 0 ]"

headline "3. one tenant, for five seconds"
asks t1 --seconds 5 --rate 200 --calls 100000 --read /proc/driver/nvidia/version --read /proc/driver/nvidia/params | tee t1.log
check "the driver answers it" "grep -q '^calls .* accepted [1-9]' t1.log"
for row in pids memory samples-570; do
	check "$row is answered" "! grep -qx 'unanswered $row' t1.log"
done
check "it gets no foreign number" "clean t1.log"

headline "4. eight tenants at once, for forty seconds"
for name in $tenants; do
	asks "$name" --seconds 40 --rate 400 --calls 100000 >"$name.log" &
	eval "asking_$name=$!"
done
for name in $tenants; do
	eval "wait \$asking_$name"
	grep -E '^(calls|hit)' "$name.log" | sed "s/^/$name: /"
	check "$name gets no foreign number" "clean $name.log"
done
echo "calls in all: $(cat t?.log | awk '/^calls/ {sum += $2} END {print sum}')"

headline "5. a thread reads the answers while the driver writes them"
asks t2 --raced buffers --seconds 10 --rate 400 --calls 100000 | tee raced.log
check "t2 gets no foreign number" "clean raced.log"

headline "6. the residual of docs/notify.md: a control is exchanged once it was passed on"
asks t3 --raced argument --seconds 20 --rate 1000 --calls 100000 | tee residual.log
check "it is seen, so that the test can fail" "[ 0\$(hits number residual.log) -gt 0 ]"

headline "7. the engine, after that"
show mpu status
check "it is still at work" "mpu status | grep -q '^state *armed'"
[ "$failed" = 0 ] && echo "all right"
exit "$failed"
