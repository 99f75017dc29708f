#!/bin/sh
# Process 1 of new namespaces: starts the control plane, the node's guest, and the stories or a shell. All of them end with it.
# cluster.sh PROGRAMS FOLDER stories|- QEMU…
programs=$1 folder=$2 play=$3
shift 3
trap 'exit 130' INT TERM
export SERVER=10.96.0.1 REGISTRY=10.96.0.1:5000 NODE=10.96.0.20 KUBECONFIG="$folder/pki/admin.kubeconfig"
export PATH="$programs:/usr/sbin:/usr/bin:/sbin:/bin" folder logs="$folder/log" scripts="$(dirname "$0")"
pki=$folder/pki
mkdir -p "$logs"
mount -t tmpfs data "$folder/etcd"
ip link set lo up
# The guest reaches the API server on this loopback. QEMU forwards a port here to the kubelet.
ip address add "$SERVER/32" dev lo
ip address add "$NODE/32" dev lo
# The guest drops packets from its own address.
ip route replace local "$NODE" dev lo table local src 127.0.0.1

etcd --data-dir "$folder/etcd" --unsafe-no-fsync >"$logs/etcd" 2>&1 &
api_server() {
	exec kube-apiserver --etcd-servers=http://127.0.0.1:2379 --advertise-address=$SERVER --bind-address=0.0.0.0 --secure-port=443 \
		--service-cluster-ip-range=10.96.0.0/28 --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
		--client-ca-file="$pki/ca.crt" --kubelet-client-certificate="$pki/caller.crt" --kubelet-client-key="$pki/caller.key" \
		--kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP --allow-privileged=true \
		--service-account-issuer=https://kubernetes.default.svc --service-account-signing-key-file="$pki/sa.key" \
		--service-account-key-file="$pki/sa.key" --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction
}
api_server >"$logs/apiserver" 2>&1 &
server=$!
printf 'version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: ":5000"}\n' "$folder/etcd/registry" >"$folder/registry.yml"
docker-registry serve "$folder/registry.yml" >"$logs/registry" 2>&1 &
for image in "mpu:$VERSION" "mpu:$NEXT" "mpu-toolkit:$VERSION" test:1; do
	buildah --root "$STORAGE" --runroot "$STORAGE-run" push --quiet --tls-verify=false "$image" "docker://$REGISTRY/$image" || exit
done
until kubectl get --raw /readyz >/dev/null 2>&1; do
	kill -0 $server || { tail -n 20 "$logs/apiserver"; exit 1; }
	sleep 0.5
done
echo "cluster: the API server is ready after $(ps -o etimes= -p $server | tr -d ' ') s"
kube-controller-manager --kubeconfig="$pki/manager.kubeconfig" --authentication-kubeconfig="$pki/manager.kubeconfig" \
	--authorization-kubeconfig="$pki/manager.kubeconfig" --port=0 --leader-elect=false --use-service-account-credentials=true \
	--root-ca-file="$pki/ca.crt" --service-account-private-key-file="$pki/sa.key" >"$logs/manager" 2>&1 &
kube-scheduler --kubeconfig="$pki/scheduler.kubeconfig" --port=0 --leader-elect=false >"$logs/scheduler" 2>&1 &
"$@" </dev/null &
if [ "$play" = - ]; then
	sh -i </dev/tty >/dev/tty 2>&1
else
	. "$scripts/stories.sh" &
	wait $!
fi
