#!/bin/sh
# Makes a cluster's certificates and kubeconfigs: pki.sh FOLDER SERVER NODE. The node finds its own in /etc/kubernetes.
set -eu
mkdir -p "$1"
cd "$1"
server=$2 node=$3
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 3650 -subj /CN=cluster
openssl genrsa -out sa.key 2048

# certificate NAME SUBJECT [ALTERNATIVE-NAMES]
certificate() {
	openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
	echo "extendedKeyUsage=clientAuth,serverAuth${3:+
subjectAltName=$3}" >"$1.ext"
	openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile "$1.ext" -out "$1.crt"
}

# kubeconfig NAME FOLDER: by the certificate of that name, with the files where they are used.
kubeconfig() {
	cat >"$1.kubeconfig" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$server", certificate-authority: $2/ca.crt}}]
users: [{name: u, user: {client-certificate: $2/$1.crt, client-key: $2/$1.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
YAML
}

certificate apiserver /CN=kube-apiserver "IP:$server,IP:127.0.0.1,DNS:kubernetes.default.svc"
certificate caller /O=system:masters/CN=apiserver-kubelet-client
certificate admin /O=system:masters/CN=admin
certificate manager /CN=system:kube-controller-manager
certificate scheduler /CN=system:kube-scheduler
certificate kubelet /O=system:nodes/CN=system:node:node "IP:$node"
for name in admin manager scheduler; do kubeconfig $name "$PWD"; done
kubeconfig kubelet /etc/kubernetes
