#!/bin/sh
# The first process of a node with SELinux. No archive that the kernel unpacks carries labels, and its policy lets no file on the kernel's first
# root be labelled; so the node moves to another, loads the policy and labels every file, before systemd is executed and gets its own label.
PATH=/usr/sbin:/usr/bin
export PATH
mount -t proc proc /proc
if [ "${1:-}" != moved ]; then
	mkdir /root-of-node
	mount -t tmpfs -o size=3g,mode=755 node /root-of-node
	cp -ax / /root-of-node
	mkdir -p /root-of-node/proc /root-of-node/sys /root-of-node/dev /root-of-node/run
	umount /proc
	exec switch_root /root-of-node /node/label.sh moved
fi
mount -t sysfs sysfs /sys
mount -t selinuxfs selinuxfs /sys/fs/selinux
mount -t devtmpfs devtmpfs /dev
exec >/dev/console 2>&1
load_policy -i
setfiles -F -e /proc -e /sys -e /dev /etc/selinux/default/contexts/files/file_contexts /
exec /sbin/init
