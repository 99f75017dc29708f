# A cluster's stories: sourced by cluster.sh, which has the API server and kubectl. Verdicts go to standard output, one line each;
# docs/cluster-stories.md has what each shows.

set -u
failed=0

# verdict STORY pass|fail [reason]
verdict() {
	story=$1 result=$2
	shift 2
	[ "$result" = fail ] && failed=$((failed + 1))
	echo "STORY $story engine=module era=1 client=550.163.01 verdict=$result $*"
}

# check STORY COMMAND…: the command must succeed.
check() {
	story=$1
	shift
	if "$@" >"$logs/output" 2>&1; then
		verdict "$story" pass
	else
		verdict "$story" fail "$* failed: $(tail -n 4 "$logs/output" | tr '\n' ';')"
	fi
}

not() { ! "$@"; }

# in_time COMMAND…: once it succeeds, within minutes: an emulated node is slow.
in_time() {
	end=$(($(date +%s) + 300))
	until "$@"; do
		[ "$(date +%s)" -lt $end ] || return 1
		sleep 1
	done
}

on_node() { kubectl exec -n kube-system admin -- nsenter -t 1 -m -u -i -n -p -- env PATH=/usr/sbin:/usr/bin "$@"; }

# The agent's pod, without those that end.
agent() {
	kubectl get pods -n mpu-system -o \
		'jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.deletionTimestamp}{.metadata.name}{"\n"}{end}' |
		grep '^mpu-' | head -n 1
}

# ready TYPE-OF-CONDITION NAMESPACE POD
ready() { [ "$(kubectl get pod -n "$1" "$2" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
agent_is_ready() { name=$(agent) && [ -n "$name" ] && ready mpu-system "$name"; }

# event REASON WORDS: whether the node has that Event.
event() {
	kubectl get events -n default --field-selector "source=mpu,reason=$1" -o 'jsonpath={.items[*].type}: {.items[*].message}{"\n"}' |
		tee /dev/stderr | grep -q -e "$2"
}

# What real nvidia-smi shows in a namespace's pod, and the process that is there.
shown() {
	kubectl exec -n "$1" "${2:-holder}" -- nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>&1 | tr -d ' ' | sort | tr '\n' ' '
}
own() { kubectl exec -n "$1" "${2:-holder}" -- cat /tmp/own; }
is_right() {
	own=$(own "$@") shown=$(shown "$@")
	echo "$1: nvidia-smi shows '$shown', the pod's own process is $own"
	[ -n "$own" ] && [ "$shown" = "$own " ]
}
is_wrong() { ! is_right "$@" && [ -n "$own" ] && ! echo "$shown" | grep -q -i -e error -e failed; }
both_are_right() { is_right one && is_right two; }
both_are_wrong() { is_wrong one && is_wrong two; }

# The pods of users: a namespace each, and a GPU that our wrapper of runc gives them.
pod() {
	cat <<YAML
apiVersion: v1
kind: Pod
metadata: {name: ${2:-holder}, namespace: $1}
spec:
  runtimeClassName: nvidia
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: docker.io/test/pod:1
      imagePullPolicy: Never
      env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}, {name: NVIDIA_DRIVER_CAPABILITIES, value: utility},
            {name: LD_LIBRARY_PATH, value: /usr/lib/x86_64-linux-gnu}]
      command: [sh, -c, "sleep 1000000 | gpu-hold --mem 40 --clients 2 >/tmp/held & echo \$! >/tmp/own; wait"]
---
YAML
}

kubectl wait --for=condition=Ready node/node --timeout=1s >/dev/null 2>&1
check node_joins in_time kubectl wait --for=condition=Ready node/node --timeout=5s
kubectl label node node nvidia.com/gpu.present=true
in_time kubectl get serviceaccount default -n kube-system
kubectl apply -f - <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: admin, namespace: kube-system}
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
kubectl apply -f "$folder/manifest.yaml"
check agent_pod_runs in_time agent
check missing_headers_make_an_event in_time event MpuEngineFailed 'Warning: .*headers'
check agent_without_engine_is_not_ready not agent_is_ready
on_node sh -c 'mkdir -p /lib/modules/$(uname -r)/updates/dkms; cp /node/mpu*.ko /lib/modules/$(uname -r)/updates/dkms/'
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

echo "GUEST-RC=$failed"
