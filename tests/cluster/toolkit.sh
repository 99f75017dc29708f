# The toolkit's image as the GPU Operator starts it, on a node whose containerd has no runtime of NVIDIA's: sourced by stories.sh.

check node_joins wait_for kubectl wait --for=condition=Ready node/node --timeout=5s
kubectl label node node nvidia.com/gpu.present=true
wait_for kubectl get serviceaccount default -n kube-system
kubectl apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: admin, namespace: kube-system, labels: {app: admin}}
spec:
  hostPID: true
  hostNetwork: true
  containers: [{name: main, image: "$REGISTRY/test:1", securityContext: {privileged: true}}]
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia}, handler: nvidia}
---
{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: nvidia-legacy}, handler: nvidia-legacy}
YAML
check privileged_pod_runs wait_for ready kube-system admin
on_node sh -c 'insmod /node/nvidia.ko && release=$(sed -n "s/.* \([0-9.]*\)  .*/\1/p" /proc/driver/nvidia/version | head -n 1) &&
	cp /node/nvidia/nvidia-smi /usr/bin/ && cp /node/nvidia/libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.$release && ldconfig
	mknod -m 666 /dev/nvidiactl c 195 255 && mknod -m 666 /dev/nvidia0 c 195 0
	mkdir -p /run/nvidia/validations
	printf "%s=/\n%s=/host\n" NVIDIA_DRIVER_ROOT DRIVER_ROOT_CTR_PATH >/run/nvidia/validations/driver-ready'
for namespace in one two; do
	kubectl create namespace $namespace >/dev/null
	wait_for kubectl get serviceaccount default -n $namespace >/dev/null
	pod $namespace
done | kubectl apply -f -
# no_runtime POD: the kubelet's Event that the runtime is missing.
no_runtime() { kubectl get events -n one --field-selector "involvedObject.name=$1" -o name -o wide | grep 'no runtime for "nvidia" is configured'; }
check gpu_pods_wait_without_toolkit wait_for no_runtime holder

# Variables and mounts are those of the operator's DaemonSet for a driver on the host, and CDI. CREATE_DEVICE_NODES is ours: the simulated
# driver has no nvidia-uvm.
host_path() { echo "{name: $1, hostPath: {path: $2, type: DirectoryOrCreate}}"; }
toolkit() {
	kubectl apply -f - <<YAML
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: toolkit, namespace: kube-system}
spec:
  selector: {matchLabels: {app: toolkit}}
  template:
    metadata: {labels: {app: toolkit}}
    spec:
      hostPID: true
      priorityClassName: system-node-critical
      containers:
        - name: toolkit
          image: $REGISTRY/mpu-toolkit:$VERSION
          command: [sh, -c]
          args:
            - |
              until [ -f /run/nvidia/validations/driver-ready ]; do sleep 1; done
              set -a
              . /run/nvidia/validations/driver-ready
              sleep 5
              exec nvidia-toolkit
          securityContext: {privileged: true}
          env:
$(for pair in RUNTIME=containerd ROOT=/usr/local/nvidia TOOLKIT_PID_FILE=/run/nvidia/toolkit/toolkit.pid CDI_ENABLED=true \
		NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND=management.nvidia.com/gpu NVIDIA_CONTAINER_RUNTIME_MODE=cdi \
		NVIDIA_RUNTIME_SET_AS_DEFAULT=false CONTAINERD_RUNTIME_CLASS=nvidia NVIDIA_VISIBLE_DEVICES=void CREATE_DEVICE_NODES=none \
		CONTAINERD_CONFIG=/runtime/config-dir/config.toml RUNTIME_DROP_IN_CONFIG=/runtime/config-dir.d/99-nvidia.toml \
		RUNTIME_DROP_IN_CONFIG_HOST_PATH=/etc/containerd/conf.d/99-nvidia.toml CONTAINERD_SOCKET=/runtime/sock-dir/containerd.sock; do
		echo "            - {name: ${pair%%=*}, value: \"${pair#*=}\"}"
	done)
          volumeMounts:
            - {name: toolkit, mountPath: /run/nvidia/toolkit}
            - {name: validations, mountPath: /run/nvidia/validations}
            - {name: install, mountPath: /usr/local/nvidia}
            - {name: cdi, mountPath: /var/run/cdi}
            - {name: host, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
            - {name: config, mountPath: /runtime/config-dir}
            - {name: drop-ins, mountPath: /runtime/config-dir.d}
            - {name: socket, mountPath: /runtime/sock-dir}
      volumes:
        - $(host_path toolkit /run/nvidia/toolkit)
        - $(host_path validations /run/nvidia/validations)
        - $(host_path install /usr/local/nvidia)
        - $(host_path cdi /var/run/cdi)
        - $(host_path host /)
        - $(host_path config /etc/containerd)
        - $(host_path drop-ins /etc/containerd/conf.d)
        - $(host_path socket /run/containerd)
YAML
}
toolkit_waits() { kubectl logs -n kube-system -l app=toolkit --tail=-1 | grep 'waiting for a signal'; }
holders_hold() { holds one holder && holds two holder; }
toolkit
check toolkit_sets_the_node_up wait_for toolkit_waits
check gpu_pods_start_by_runtime_class wait_for holders_hold

toolkit_restarts() { kubectl get pods -n kube-system -l app=toolkit -o 'jsonpath={.items[0].status.containerStatuses[0].restartCount}'; }
before=$(toolkit_restarts)
on_node pkill -KILL -f '^nvidia-toolkit'
was_restarted() { [ "$(toolkit_restarts)" -gt "$before" ]; }
check killed_toolkit_is_restarted wait_for was_restarted
check killed_toolkit_sets_the_node_up_again wait_for toolkit_waits
pod one second | kubectl apply -f -
check gpu_pod_starts_after_toolkits_restart wait_for holds one second
kubectl delete pod -n one second --wait=false

kubectl delete daemonset -n kube-system toolkit
wait_for not toolkit_waits
pod one third | kubectl apply -f -
check removed_toolkit_takes_its_runtime_away wait_for no_runtime third
check gpu_pods_outlive_the_toolkit holders_hold
toolkit
check next_toolkit_starts_the_pod_that_waits wait_for holds one third
kubectl delete pod -n one third --wait=false
check pods_are_wrong_without_mpu both_are_wrong
