# GPUs from a device plugin, for pods that name no GPU themselves. Sourced by stories.sh.

# The CDI file that NVIDIA's plugin makes.
on_node /usr/local/nvidia/toolkit/nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml
pod two variable nvidia-legacy test.io/variable | kubectl apply -f -
pod one cdi "" test.io/cdi | kubectl apply -f -
waits() { kubectl get events -n "$1" --field-selector "involvedObject.name=$2,reason=FailedScheduling" -o wide | grep 'Insufficient test.io'; }
pods_wait() { waits one cdi && waits two variable; }
check pods_wait_without_device_plugin wait_for pods_wait
kubectl apply -f - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: plugin, namespace: kube-system, labels: {app: admin}}
spec:
  containers:
    - name: main
      image: $REGISTRY/test:1
      command: [python3, /usr/bin/plugin.py]
      volumeMounts: [{name: d, mountPath: /var/lib/kubelet/device-plugins}]
  volumes: [{name: d, hostPath: {path: /var/lib/kubelet/device-plugins}}]
YAML
check pod_gets_its_gpu_by_plugins_variable wait_for holds two variable
check pod_gets_its_gpu_by_cdi_annotation wait_for holds one cdi
plugins_pods_are_wrong() { is_wrong one cdi && is_wrong two variable; }
plugins_pods_are_right() { is_right one cdi && is_right two variable; }
check plugins_pods_are_wrong_without_mpu plugins_pods_are_wrong
