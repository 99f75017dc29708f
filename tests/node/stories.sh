#!/bin/sh
# Plays on a whole Debian with a real kernel, systemd, dpkg and DKMS: what happens to a node when MPU is installed, upgraded, used and
# removed. docs/node-stories.md says what each story shows. Verdicts go to the console, one line each.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH DEBIAN_FRONTEND=noninteractive
here=/node
libraries=/usr/lib/x86_64-linux-gnu
release=$(uname -r)
failed=0
exec >/dev/console 2>&1

say() { echo "node: $(cut -d' ' -f1 /proc/uptime) $*"; }

# verdict STORY pass|fail [reason]
verdict() {
	story=$1 result=$2
	shift 2
	[ "$result" = fail ] && failed=$((failed + 1))
	echo "STORY $story engine=node era=1 client=550.163.01 verdict=$result $*"
}

# Everything that an administrator would call the node: type, mode, owner, link and contents of every file. Left out is what dpkg, apt,
# systemd and the clock write by themselves.
snapshot() {
	since=${began:-0}
	began=${began:-$(($(date +%s) - 1))}
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /node -o -path /root \
		-o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/systemd/random-seed \
		-o -path /var/lib/systemd/timers -o -path /var/lib/systemd/timesync -o -path /var/lib/systemd/catalog \
		-o -path /var/lib/systemd/coredump -o -path /var/tmp \) -prune -o -printf '%y %#m %U:%G %p %l\n' \
		-type f -newerct "@$since" -fprint /tmp/changed | sort >/tmp/tree
	# What was not changed since the first time has the contents that it had then: no program can set a ctime.
	xargs -d '\n' -r sha256sum </tmp/changed >/tmp/sums.changed 2>/dev/null
	[ -s /tmp/sums ] || cp /tmp/sums.changed /tmp/sums
	# Of two lines of one path the first, which is of the change.
	sort -s -u -k 2 /tmp/sums.changed /tmp/sums | cat /tmp/tree -
}

# same STORY BEFORE: whether the node is as it was.
same() {
	snapshot >/tmp/now
	if diff "$2" /tmp/now >/tmp/diff; then
		verdict "$1" pass
	else
		verdict "$1" fail "the node differs: $(head -n 6 /tmp/diff | tr '\n' ';')"
	fi
}

# check STORY COMMAND…: the command must succeed.
check() {
	story=$1
	shift
	if "$@" >/tmp/output 2>&1; then
		verdict "$story" pass
	else
		verdict "$story" fail "$* failed: $(tail -n 4 /tmp/output | tr '\n' ';')"
	fi
}

# refused STORY: `mpu up --engine module` must be refused, say what to do, and leave nothing loaded.
refused() {
	${mpu:-mpu} up --engine module >/tmp/output 2>&1
	rc=$?
	if [ $rc -eq 4 ] && grep -q '^fix: ' /tmp/output && ! [ -d /sys/module/mpu ]; then
		verdict "$1" pass "$(head -n 1 /tmp/output)"
	else
		verdict "$1" fail "exit code $rc: $(head -n 4 /tmp/output | tr '\n' ';')"
	fi
}

not() { ! "$@"; }

# The driver as a distribution installs it: the files bear the loaded module's release.
install_driver() {
	loaded=$(sed -n 's/.* \([0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version | head -n 1)
	cp $here/nvidia/nvidia-smi /usr/bin/nvidia-smi
	cp $here/nvidia/libnvidia-ml.so.1 "$libraries/libnvidia-ml.so.$loaded"
	ldconfig
}

# in_time COMMAND…: once it succeeds. How fast an emulated node is says nothing of MPU: this waits for minutes, and only for what never comes.
in_time() {
	left=600
	until "$@"; do
		left=$((left - 1))
		[ $left -gt 0 ] || return 1
		sleep 0.2
	done
}

unit_is_up() {
	systemctl status mpu --no-pager | tail -n 4
	systemctl is-active --quiet mpu && systemctl is-enabled --quiet mpu
}

# built_for KERNEL: whether DKMS has the module installed for it.
built_for() {
	dkms status -k "$1" >/tmp/built
	cat /tmp/built
	grep -q '^mpu/.*installed' /tmp/built
}

# The hardened unit, asked over the loopback address as Prometheus would.
metrics_unit_answers() {
	systemctl start mpu-metrics
	in_time bash -c 'exec 3<>/dev/tcp/127.0.0.1/19567 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && cat <&3' >/tmp/page 2>&1
	systemctl stop mpu-metrics
	tail -n 3 /tmp/page
	grep -q '^mpu_engine_up 1' /tmp/page
}

# gpu-hold holds until its standard input ends, which this never does: it is its own other end.
mkfifo /tmp/never

# A container: PID and mount namespaces of its own, its init, and a GPU process of two clients in it.
container_start() {
	unshare --fork --pid --mount --mount-proc --kill-child \
		sh -c "gpu-hold --mem 40 --clients 2 <>/tmp/never >/tmp/held & echo \$! >/tmp/inside; exec sleep 100000" &
	in_time grep -qs ready /tmp/held
	inside=$(cat /tmp/inside)
	in_time pgrep -fx 'sleep 100000' >/dev/null
	init=$(pgrep -fx 'sleep 100000')
}

container_stop() {
	kill -9 "$init"
	in_time gone "$init"
	rm -f /tmp/inside /tmp/held
}

# A process that its parent has not reaped has ended, too.
gone() { ! [ -e "/proc/$1" ] || grep -qs '^State:.*Z (' "/proc/$1/status"; }

in_container() { nsenter -t "$init" -p -m "$@"; }

# What real nvidia-smi shows inside, one PID a line.
ask_inside() {
	in_container env LD_LIBRARY_PATH=$here/nvidia $here/nvidia/nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>&1
}

shown() { ask_inside | tr -d ' ' | sort | tr '\n' ' '; }

is_right() { [ "$(shown)" = "$inside " ]; }

log_of_unit() { journalctl -u mpu -n 3 --no-pager -o cat | tr '\n' ';'; }

# right STORY: the container must be seen right now.
right() {
	is_right && verdict "$1" pass && return
	verdict "$1" fail "nvidia-smi shows '$(shown)', the container's own is '$inside ': $(log_of_unit)"
}
# wrong STORY: without MPU it must be wrong, or the story proves nothing.
wrong() {
	is_right && verdict "$1" fail "right without MPU" && return
	ask_inside >/tmp/wrong || { verdict "$1" fail "nvidia-smi fails: $(tr '\n' ';' </tmp/wrong)"; return; }
	verdict "$1" pass "nvidia-smi shows '$(shown)'"
}

# A container of the notify engine: a GPU process, and beside it a loop that runs nvidia-smi on each request.
supervised_start() {
	rm -f /tmp/held
	touch /tmp/go-on
	mpu run -- sh -c "gpu-hold --mem 40 <>/tmp/never >/tmp/held & echo \$! >/tmp/own
		while [ -e /tmp/go-on ]; do
			if mv /tmp/ask /tmp/asked 2>/dev/null; then
				LD_LIBRARY_PATH=$here/nvidia $here/nvidia/nvidia-smi --query-compute-apps=pid \
					--format=csv,noheader >/tmp/output.inside 2>&1
				mv /tmp/output.inside /tmp/answer
			fi
			sleep 0.2
		done" &
	supervised=$!
	in_time grep -qs ready /tmp/held
}
# nvidia-smi must show that process and no other, by its number there. Each question is taken before it is answered, and an answer comes
# whole.
supervised_is_right() {
	rm -f /tmp/answer
	touch /tmp/ask
	in_time test -e /tmp/answer || echo nothing >/tmp/answer
	echo "own $(cat /tmp/own), shown: $(cat /tmp/answer)"
	[ "$(tr -d ' ' </tmp/answer)" = "$(cat /tmp/own)" ]
}
supervised_stop() {
	rm /tmp/go-on
	wait "$supervised"
}

# One caller: asks in rounds until it is enough, and stops at the first answer that is not the container's own process.
ask() {
	until [ -e /tmp/enough ]; do
		in_container nice -n 19 nvctl spin 1 "$inside" || return 1
		# While the compiler runs no version changes: the emulator's processors are for it.
		! pidof cc1 >/dev/null || sleep 2
	done
}

# stays_right STORY COMMAND…: a caller in the container asks meanwhile, and all the time when versions change; each answer must be right. One is
# enough here, and a nice one; the same under eight callers is a story of tests/guest.
stays_right() {
	story=$1
	shift
	rm -f /tmp/spin /tmp/enough
	ask >/tmp/spin 2>&1 &
	caller=$!
	sleep 1
	"$@" >/tmp/output 2>&1
	rc=$?
	touch /tmp/enough
	wrong=0
	wait "$caller" || wrong=1
	if [ $rc -ne 0 ]; then
		verdict "$story" fail "$* ended with $rc: $(tail -n 3 /tmp/output | tr '\n' ';')"
	elif [ $wrong -ne 0 ]; then
		verdict "$story" fail "the caller was not answered right: $(grep -v '^list' /tmp/spin | tail -n 1)"
	elif ! grep -q '^calls [1-9]' /tmp/spin; then
		verdict "$story" fail "the caller never asked: $(tail -n 1 /tmp/spin)"
	else
		verdict "$story" pass
	fi
}

. $here/order.sh

echo "GUEST-RC=$failed"
sync
systemctl poweroff --force --force
