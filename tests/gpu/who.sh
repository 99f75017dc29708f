#!/bin/bash
# Compares `mpu who` on a real GPU with /proc, fuser and lsof, and the exporter's busy time with NVML's.
#
#   sudo tests/gpu/who.sh PATH-TO-MPU [WORK-FOLDER]
#
# Needs: an NVIDIA GPU with its driver that nothing else uses, Python with torch and pynvml (PYTHON names it), root of the host's PID
# namespace; optionally fuser, lsof and nvidia-cuda-mps-control. No engine. Takes seven minutes (SECONDS_LONG is the time of each load).
# Changes nothing outside of its folder but a node in /dev that it removes. Ends with 1 if an answer is wrong.
set -u
export LC_ALL=C PATH=$PATH:/usr/sbin:/sbin PYTHONDONTWRITEBYTECODE=1
here=$(dirname "$(readlink -f "$0")")
. "$here/report.sh"
mpu=$(readlink -f "$1")
work=${2:-/run/mpu-gpu}
python=${PYTHON:-python3}
long=${SECONDS_LONG:-60} port=19569
mkdir -p "$work" && cd "$work" || exit 3
rm -f -- *.held who.json
export CUDA_MPS_PIPE_DIRECTORY=$work/mps CUDA_MPS_LOG_DIRECTORY=$work/mps

has_mps=
tasks=
clean() {
	[ -n "$has_mps" ] && echo quit | timeout 20 nvidia-cuda-mps-control
	# shellcheck disable=SC2086
	kill $tasks 2>/dev/null
	rm -f /dev/other-name
}
trap clean EXIT
# hold KIND ENV...: starts a holder of this kind.
hold() {
	local kind=$1
	shift
	env "$@" "$python" "$here/holders.py" hold "$kind" >"$kind.held" 2>&1 &
	tasks="$tasks $!"
	for _ in $(seq 150); do
		grep -q ^holds "$kind.held" && break
		kill -0 $! 2>/dev/null || break
		sleep 0.2
	done
	tail -n 1 "$kind.held"
}
# pid KIND: the holder's PID.
pid() { sed -n "s/^holds $1 //p" "$1.held"; }
# field EXPRESSION: its value; `who` is the list.
field() { "$python" -c "import json; who = json.load(open('who.json')); print(*$1)"; }
# look: the processes that mpu lists, and those that other tools find; sorted, one line each.
look() {
	"$mpu" who --json >who.json
	ours=$(field "[row['pid'] for row in who['processes']]")
	proc=$("$python" "$here/holders.py" find)
	fuser=$(fuser /dev/nvidia* /dev/nvidia-caps/* 2>/dev/null | xargs -n 1 | sort -nu | xargs)
	lsof=$(lsof -t /dev/nvidia* 2>/dev/null | sort -nu | xargs)
	printf '%s\n' "mpu who:  $ours" "/proc:    $proc" "fuser:    $fuser" "lsof:     $lsof"
}
# unreadable: the processes that root may not inspect here, as in a virtual machine whose first process has more capabilities.
unreadable() {
	for process in /proc/[0-9]*; do
		cat "$process/maps" >/dev/null 2>&1 || [ ! -e "$process" ] || echo "${process#/proc/}"
	done | sort -n | xargs
}
# without A B: the words of A that are not in B.
without() { comm -23 <(tr ' ' '\n' <<<"$1" | sort) <(tr ' ' '\n' <<<"$2" | sort) | sort -n | xargs; }

headline "this machine"
show uname -r
show head -1 /proc/driver/nvidia/version
show "$mpu" --version

headline "1. nothing of ours"
look
check "mpu lists what /proc shows" "[ '$ours' = '$proc' ]"
before=$proc

headline "2. a holder of each kind"
kinds='control gpu renamed passed thread_table cuda mapped'
[ -e /dev/nvidia-uvm ] && kinds="$kinds uvm"
ls /dev/nvidia-caps/nvidia-cap* >/dev/null 2>&1 && kinds="$kinds caps"
for kind in $kinds path waiting; do hold "$kind"; done
check "each of them holds what it should" "[ \$(cat ./*.held | grep -c ^holds) = $(wc -w <<<"$kinds path waiting") ]"
expected=$(for kind in $kinds; do pid "$kind"; done | sort -n | xargs)
look
show "$mpu" who
[ -x "$(command -v fuser)" ] && show fuser -v /dev/nvidia*
check "mpu lists what /proc shows" "[ '$ours' = '$proc' ]"
check "these are our holders" "[ '$(without "$proc" "$before")' = '$expected' ]"
if [ -n "$fuser" ]; then
	check "fuser shows one more: the process that has a path alone" "[ '$(without "$fuser" "$ours")' = '$(pid path)' ]"
	echo "only mpu shows (renamed is $(pid renamed), thread_table $(pid thread_table)): $(without "$ours" "$fuser")"
fi
[ -n "$lsof" ] && check "lsof shows one more, too" "[ '$(without "$lsof" "$ours")' = '$(pid path)' ]"
check "the mapping alone is one" "grep -q . <<<'$(field "[use['node'] for row in who['processes'] if row['pid'] == $(pid mapped)
	for use in row['uses'] if use['mappings'] and not use['descriptors']]")'"
check "the descriptor in flight has its socket's owner" "grep -qw '$(pid waiting)' <<<'$(field "[row['pid'] for row in who['in_flight']]")'"
check "nothing was left unread but what nobody may read here" "[ '$(field "who['not_read']")' = '$(unreadable)' ]"

headline "3. MPS"
if command -v nvidia-cuda-mps-control >/dev/null && mkdir -p mps && nvidia-cuda-mps-control -d; then
	has_mps=1
	mv cuda.held first.held
	hold cuda
	look
	show "$mpu" who
	check "mpu lists what /proc shows" "[ '$ours' = '$proc' ]"
	check "the server has its role" "grep -q mps_server <<<'$(field "[row['role'] for row in who['processes']]")'"
	echo quit | timeout 20 nvidia-cuda-mps-control
	has_mps=
else
	echo "no MPS here"
fi
# shellcheck disable=SC2086
kill $tasks
# shellcheck disable=SC2086
wait $tasks 2>/dev/null
tasks=

headline "4. --wait ends once they have ended"
show timeout 60 "$mpu" who --gpu 0 --wait 30
look
check "nothing of ours holds it" "[ '$ours' = '$before' ]"

headline "5. busy time, of containers that work for these parts of $long s"
"$mpu" metrics --listen "127.0.0.1:$port" 2>exporter.log &
tasks=$!
sleep 1
for shares in 0.5 "0.4 0.2 0.1" "0.3 0.3" "0.7 0.05"; do
	# shellcheck disable=SC2086
	env -u CUDA_MPS_PIPE_DIRECTORY "$python" "$here/busy.py" "$long" "$port" $shares
	check "the exporter's sum for $shares is right" "[ $? -eq 0 ]"
done
[ "$failed" = 0 ] && echo "all right"
exit "$failed"
