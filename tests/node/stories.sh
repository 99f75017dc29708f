#!/bin/sh
# Tests MPU's installation, upgrade, use and removal on a whole Debian with a real kernel, systemd, dpkg and DKMS. docs/node-stories.md
# lists the stories. Each story prints one verdict line on the console.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH DEBIAN_FRONTEND=noninteractive
here=/node
libraries=/usr/lib/x86_64-linux-gnu
release=$(uname -r)
failed=0
exec >/dev/console 2>&1

log() { echo "node: $(cut -d' ' -f1 /proc/uptime) $*"; }

# verdict STORY pass|fail [reason]
verdict() {
	story=$1 result=$2
	shift 2
	[ "$result" = fail ] && failed=$((failed + 1))
	echo "STORY $story engine=node era=1 client=550.163.01 verdict=$result $*"
}

# Prints type, mode, owner, link target and checksum of every file of the node, except files that dpkg, apt, systemd and the clock change.
snapshot() {
	since=${began:-0}
	began=${began:-$(($(date +%s) - 1))}
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /node -o -path /root \
		-o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/systemd/random-seed \
		-o -path /var/lib/systemd/timers -o -path /var/lib/systemd/timesync -o -path /var/lib/systemd/catalog \
		-o -path /var/lib/systemd/coredump -o -path /var/tmp \) -prune -o -printf '%y %#m %U:%G %p %l\n' \
		-type f -newerct "@$since" -fprint /tmp/changed | sort >/tmp/tree
	# Only files with a newer ctime can have other contents than in the first snapshot: no program can set a ctime.
	xargs -d '\n' -r sha256sum </tmp/changed >/tmp/sums.changed 2>/dev/null
	[ -s /tmp/sums ] || cp /tmp/sums.changed /tmp/sums
	# Of two lines for one path, keep the first: the changed one.
	sort -s -u -k 2 /tmp/sums.changed /tmp/sums | cat /tmp/tree -
}

# same STORY BEFORE: the node must be as in that snapshot.
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

# refused STORY: `mpu up --engine module` must be refused, print a fix, and leave nothing loaded.
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

# Installs the driver's files as a distribution does, with the loaded module's release in their names.
install_driver() {
	loaded=$(sed -n 's/.* \([0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version | head -n 1)
	cp $here/nvidia/nvidia-smi /usr/bin/nvidia-smi
	cp $here/nvidia/libnvidia-ml.so.1 "$libraries/libnvidia-ml.so.$loaded"
	ldconfig
}

# wait_for COMMAND…: waits until it succeeds, for two minutes at least: an emulated node is slow.
wait_for() {
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

# Scrapes the hardened unit over the loopback address.
metrics_unit_answers() {
	systemctl start mpu-metrics
	wait_for bash -c 'exec 3<>/dev/tcp/127.0.0.1/19567 && printf "GET /metrics HTTP/1.0\r\n\r\n" >&3 && cat <&3' >/tmp/page 2>&1
	systemctl stop mpu-metrics
	tail -n 3 /tmp/page
	grep -q '^mpu_engine_up 1' /tmp/page
}

# gpu-hold runs until its standard input ends. This FIFO, opened for reading and writing, never does.
mkfifo /tmp/never

# Starts a container: new PID and mount namespaces, an init, and a GPU process with two clients.
container_start() {
	unshare --fork --pid --mount --mount-proc --kill-child \
		sh -c "gpu-hold --mem 40 --clients 2 <>/tmp/never >/tmp/held & echo \$! >/tmp/inside; exec sleep 100000" &
	wait_for grep -qs ready /tmp/held
	inside=$(cat /tmp/inside)
	wait_for pgrep -fx 'sleep 100000' >/dev/null
	init=$(pgrep -fx 'sleep 100000')
}

container_stop() {
	kill -9 "$init"
	wait_for has_ended "$init"
	rm -f /tmp/inside /tmp/held
}

# A zombie counts as ended.
has_ended() { ! [ -e "/proc/$1" ] || grep -qs '^State:.*Z (' "/proc/$1/status"; }

in_container() { nsenter -t "$init" -p -m "$@"; }

# The PIDs that the real nvidia-smi shows in the container, one a line.
query_inside() {
	in_container env LD_LIBRARY_PATH=$here/nvidia $here/nvidia/nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>&1
}

shown() { query_inside | tr -d ' ' | sort | tr '\n' ' '; }

is_right() { [ "$(shown)" = "$inside " ]; }

log_of_unit() { journalctl -u mpu -n 3 --no-pager -o cat | tr '\n' ';'; }

# right STORY: nvidia-smi in the container must show exactly its own process.
right() {
	is_right && verdict "$1" pass && return
	verdict "$1" fail "nvidia-smi shows '$(shown)', the container's own is '$inside ': $(log_of_unit)"
}
# wrong STORY: without MPU nvidia-smi must be wrong, or the story proves nothing.
wrong() {
	is_right && verdict "$1" fail "right without MPU" && return
	query_inside >/tmp/wrong || { verdict "$1" fail "nvidia-smi fails: $(tr '\n' ';' </tmp/wrong)"; return; }
	verdict "$1" pass "nvidia-smi shows '$(shown)'"
}

# Starts a container of the notify engine: a GPU process, and a loop that runs nvidia-smi on request.
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
	wait_for grep -qs ready /tmp/held
}
# nvidia-smi in that container must show exactly its process. The loop takes the request first and renames the answer into place.
supervised_is_right() {
	rm -f /tmp/answer
	touch /tmp/ask
	wait_for test -e /tmp/answer || echo nothing >/tmp/answer
	echo "own $(cat /tmp/own), shown: $(cat /tmp/answer)"
	[ "$(tr -d ' ' </tmp/answer)" = "$(cat /tmp/own)" ]
}
supervised_stop() {
	rm /tmp/go-on
	wait "$supervised"
}

# Calls in rounds until /tmp/enough exists. Stops at the first wrong answer.
spin_until_stopped() {
	until [ -e /tmp/enough ]; do
		in_container nice -n 19 nvctl spin 1 "$inside" || return 1
		# While the compiler runs, no version changes: leave the emulated processors to it.
		! pidof cc1 >/dev/null || sleep 2
	done
}

# check_stays_right STORY COMMAND…: runs the command while a caller in the container calls. Each answer must be right. One niced caller is
# enough here: tests/guest has a story with four callers.
check_stays_right() {
	story=$1
	shift
	rm -f /tmp/spin /tmp/enough
	spin_until_stopped >/tmp/spin 2>&1 &
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
