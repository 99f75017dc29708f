#!/bin/sh
# The node's guest: `node.sh` is its first process, `node.sh join` the unit that starts the kubelet.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
if [ "$1" != join ]; then
	# runc calls pivot_root, which fails on the initramfs.
	mount --bind / /mnt
	cd /mnt || exit
	mount --move . /
	exec chroot . /sbin/init
fi
exec >/dev/console 2>&1
for module in /node/modules/*.ko; do insmod "$module" || echo "node: no $module"; done
# Pods are in the network of the guest's only card, without NAT and proxy.
ip link add br0 type bridge
ip link set eth0 master br0
ip link set eth0 up
ip link set br0 up
ip address add "$NODE/24" dev br0
ip route add default via "$SERVER"
systemctl stop containerd
mkdir -p /var/lib/kubelet /var/lib/containerd
mount -t tmpfs -o size=2g,mode=711 containerd /var/lib/containerd
systemctl start containerd
until ctr version >/dev/null 2>&1; do sleep 0.5; done
echo "node: the kubelet starts after $(cut -d' ' -f1 /proc/uptime) s"
kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.kubeconfig --container-runtime=remote \
	--container-runtime-endpoint=unix:///run/containerd/containerd.sock --hostname-override=node --node-ip="$NODE" >/var/log/kubelet 2>&1
tail -n 20 /var/log/kubelet
