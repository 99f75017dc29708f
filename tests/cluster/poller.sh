#!/bin/sh
# Polls the GPU's processes in a pod: with real nvidia-smi, and with nvctl, which calls without a pause for half a second of each 1.5 s.
# `poller start` starts both. `poller stop` stops them, and prints the number of answers and each wrong one. It fails after a wrong answer, or
# without any answer.
read -r own </tmp/own

# Prints `calls N`, for N right answers.
ask_once() {
	case $1 in
	caller) nvctl spin 0.5 "$own" 2>&1 && sleep 1 ;;
	nvidia-smi)
		table=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>&1)
		[ "$(echo $table)" = "$own" ] && echo calls 1 || echo "shown was '$table'"
		sleep 0.5
		;;
	esac
}

case $1 in
start)
	rm -f /tmp/enough /tmp/asked-* /tmp/wrong
	for way in nvidia-smi caller; do poller $way >/dev/null 2>&1 </dev/null & done
	;;
stop)
	touch /tmp/enough
	for i in $(seq 600); do ! [ -e /tmp/asked-nvidia-smi ] || ! [ -e /tmp/asked-caller ] || break; sleep 0.2; done
	cat /tmp/asked-nvidia-smi /tmp/asked-caller || exit 1
	cat /tmp/wrong 2>/dev/null && exit 1
	! grep -q '^0 ' /tmp/asked-*
	;;
*)
	calls=0
	until [ -e /tmp/enough ]; do
		answer=$(ask_once "$1")
		case $answer in
		"calls "*) more=${answer#calls } calls=$((calls + ${more%%[!0-9]*})) ;;
		*) read -r now _ </proc/uptime && echo "$1 at $now s: $answer" >>/tmp/wrong ;;
		esac
	done
	echo "$calls right answers by $1" >"/tmp/asked-$1"
	;;
esac
