#!/bin/sh
# Asks in a pod all the time: real nvidia-smi, and a caller that does not wait between two calls, half a second of each one and a half.
# `poller start` begins; `poller stop` ends it, prints how many answers there were, and each that did not have exactly the pod's own process,
# and fails if there is one, or no answer.
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
