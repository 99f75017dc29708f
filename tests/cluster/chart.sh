# The chart's life on a node: sourced by stories.sh.

kubectl wait --for=condition=Ready node/node --timeout=1s >/dev/null 2>&1
check node_joins in_time kubectl wait --for=condition=Ready node/node --timeout=5s
kubectl label node node nvidia.com/gpu.present=true
in_time kubectl get serviceaccount default -n kube-system
kubectl apply -f - <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: admin, namespace: kube-system, labels: {app: admin}}
spec:
  hostPID: true
  hostNetwork: true
  containers: [{name: main, image: docker.io/test/pod:1, imagePullPolicy: Never, securityContext: {privileged: true}}]
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: nvidia}
handler: nvidia
YAML
check privileged_pod_runs in_time ready kube-system admin
on_node sh -c 'insmod /node/nvidia.ko && release=$(sed -n "s/.* \([0-9.]*\)  .*/\1/p" /proc/driver/nvidia/version | head -n 1) &&
	cp /node/nvidia/nvidia-smi /usr/bin/ && cp /node/nvidia/libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.$release && ldconfig'
for namespace in one two; do
	kubectl create namespace $namespace >/dev/null
	in_time kubectl get serviceaccount default -n $namespace >/dev/null
	pod $namespace
done | kubectl apply -f -
holders_hold() { kubectl exec -n one holder -- cat /tmp/held && kubectl exec -n two holder -- grep ready /tmp/held; }
check gpu_pods_start_by_runtime_class in_time holders_hold
check pods_are_wrong_without_mpu both_are_wrong

# The node has neither headers nor a module: what the agent says of it, and that it goes on by itself when there is one.
on_node sh -c 'mkdir -p /lib/modules/$(uname -r)/updates/dkms'
files_of_node >"$logs/files"
kubectl apply -f "$folder/defaults.yaml"
check agent_pod_runs in_time agent
check missing_headers_make_an_event in_time event MpuEngineFailed 'Warning: .*headers'
check agent_without_engine_is_not_ready not agent_is_ready
on_node sh -c 'cp /node/mpu*.ko /lib/modules/$(uname -r)/updates/dkms/'
check agent_becomes_ready in_time agent_is_ready
check pods_that_ran_before_are_right both_are_right
check served_makes_an_event in_time event MpuServed 'Normal: '
pod two later | kubectl apply -f -
check later_pod_runs in_time ready two later
later_is_right() { kubectl exec -n two later -- grep ready /tmp/held && is_right two later; }
check later_pod_is_right in_time later_is_right
kubectl exec -n two later -- nvidia-smi
kubectl delete pod -n two later --wait=false

kubectl label node node mpu-project.github.io/engine=modul
check unknown_label_makes_a_warning in_time event MpuEngineLabelInvalid 'Warning: .*modul'
kubectl label node node --overwrite mpu-project.github.io/engine=notify
no_agent() { [ -z "$(kubectl get pods -n mpu-system -o name)" ]; }
check label_takes_the_pod_away in_time no_agent
check pods_are_wrong_while_agent_is_away both_are_wrong
kubectl label node node mpu-project.github.io/engine-
check label_brings_the_pod_back in_time agent_is_ready
check pods_are_right_again both_are_right
