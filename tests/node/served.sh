# Containers of real engines, and checks that the notify engine serves them. Sourced by engines.sh and selinux.sh.

hold='gpu-hold --mem 40 --clients 2 <>/never >/tmp/held & echo $! >/tmp/own; exec sleep 100000'
query='nvidia-smi --query-compute-apps=pid --format=csv,noheader'

# Makes an image with a C library, a shell and gpu-hold.
make_image() {
	root=/run/image
	mkdir -p $root/bin $root/lib64 $root/tmp $root/proc $root/dev $root/etc $root$libraries
	chmod 1777 $root/tmp
	mkfifo -m 666 $root/never
	cp /bin/dash $root/bin/sh
	cp /bin/sleep /bin/cat /usr/bin/gpu-hold /usr/bin/nvctl $root/bin/
	cp -L /lib64/ld-linux-x86-64.so.2 $root/lib64/
	for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
		cp -L $libraries/$name $root$libraries/
	done
	tar -C $root -cf /run/image.tar .
}

# shows_itself ENGINE CONTAINER [exec's options…]: nvidia-smi in the container shows exactly the container's process.
shows_itself() {
	engine=$1 name=$2 own=
	shift 2
	wait_for $engine exec "$name" sh -c '[ -s /tmp/held ]' || { $engine logs "$name"; return 1; }
	own=$($engine exec "$name" cat /tmp/own)
	answer=$($engine exec "$@" "$name" sh -c "$query" | tr -d ' ')
	echo "own $own, shown:" $answer
	[ -n "$own" ] && [ "$own" = "$answer" ]
}

# is_wrong ENGINE CONTAINER: nvidia-smi in the container works, and does not show exactly the container's process.
is_wrong() {
	! shows_itself "$@" && [ -n "$own" ] && $1 exec "$2" sh -c "$query" >/tmp/wrong
}

# served N: waits until the engine serves N containers. It notices an unused listener with a delay.
served() {
	count() { mpu status >/tmp/status; grep -q "^state  *armed.* by $1 listeners" /tmp/status; }
	wait_for count "$1" || { cat /tmp/status; return 1; }
}

kill_supervisor() {
	old=$(systemctl show -p MainPID --value mpu-notify)
	kill -9 "$old"
	another() { new=$(systemctl show -p MainPID --value mpu-notify) && [ "$new" != "$old" ] && [ "$new" != 0 ]; }
	wait_for another
}
