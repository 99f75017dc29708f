#!/bin/sh
# The first process of a node with SELinux. An initramfs archive has no labels, and the policy does not allow labels on the initramfs. So this
# moves the node to another root, loads the policy and labels every file. Then it executes systemd, which gets its label.
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
