# A cluster's stories: sourced by cluster.sh, which has the API server and kubectl. Verdicts go to standard output, one line each.
# docs/cluster-stories.md describes them.

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

# wait_for COMMAND…: waits until it succeeds, for ten minutes at most: an emulated node is slow.
wait_for() {
	end=$(($(date +%s) + 600))
	until "$@"; do
		[ "$(date +%s)" -lt $end ] || return 1
		sleep 1
	done
}

on_node() { kubectl exec -n kube-system admin -- nsenter -t 1 -m -u -i -n -p -- env PATH=/usr/sbin:/usr/bin "$@"; }

# agent [DAEMONSET]: the name of the agent's pod; terminating pods do not count.
agent() {
	kubectl get pods -n mpu-system -l "app.kubernetes.io/name=${1:-mpu}" -o \
		'jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.deletionTimestamp}{.metadata.name}{"\n"}{end}' |
		grep '^mpu-' | head -n 1
}
agent_field() { kubectl get pod -n mpu-system "$(agent)" -o "jsonpath={$1}"; }
agent_log() { kubectl logs -n mpu-system "$(agent "$@")" -c agent; }

# ready TYPE-OF-CONDITION NAMESPACE POD
ready() { [ "$(kubectl get pod -n "$1" "$2" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
rolled_out() { kubectl rollout status -n mpu-system "daemonset/${1:-mpu}" --timeout=1s && agent_is_ready "$@"; }
agent_is_ready() { name=$(agent "$@") && [ -n "$name" ] && ready mpu-system "$name"; }

# event REASON TEXT: whether the node has that Event.
event() {
	kubectl get events -n default --field-selector "source=mpu,reason=$1" -o 'jsonpath={.items[*].type}: {.items[*].message}{"\n"}' |
		tee /dev/stderr | grep -q -e "$2"
}
# event_field NAME FIELD: of the Event of that name, none if there is none.
event_field() { kubectl get event -n default "$1" --ignore-not-found -o "jsonpath={.$2}"; }

# The exporter's page as the node gets it by HTTP.
page() { kubectl exec -n kube-system admin -- busybox wget -q -O - "http://$(agent_field .status.podIP):19567/metrics"; }

# table NAMESPACE [POD]: the PIDs that the real nvidia-smi shows in that pod, and the pod's own process. Fails if nvidia-smi fails.
table() {
	own=$(kubectl exec -n "$1" "${2:-holder}" -- cat /tmp/own) || return
	shown=$(kubectl exec -n "$1" "${2:-holder}" -- nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>&1)
	code=$?
	shown=$(echo $(echo "$shown" | sort -n))
	echo "$1: nvidia-smi ends with $code and shows '$shown', the pod's own process is $own"
	[ $code -eq 0 ] && [ -n "$own" ] && ! echo "$shown" | grep -q '[^0-9 ]'
}
is_right() { table "$@" && [ "$shown" = "$own" ]; }
is_wrong() { table "$@" && [ "$shown" != "$own" ]; }
both_are_right() { is_right one && is_right two; }
both_are_wrong() { is_wrong one && is_wrong two; }

# pod NAMESPACE [NAME [RUNTIME-CLASS RESOURCE]]: a user's pod with a GPU: by the toolkit, or by a device plugin's RESOURCE.
pod() {
	env=', {name: NVIDIA_VISIBLE_DEVICES, value: all}' limits=
	[ -z "${4-}" ] || env= limits="limits: {$4: 1}"
	cat <<YAML
apiVersion: v1
kind: Pod
metadata: {name: ${2:-holder}, namespace: $1}
spec:
  runtimeClassName: ${3-nvidia}
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: $REGISTRY/test:1
      env: [{name: NVIDIA_DRIVER_CAPABILITIES, value: utility}$env]
      resources: {$limits}
      command: [sh, -c, "sleep 1000000 | gpu-hold --mem 40 --clients 2 >/tmp/held & echo \$! >/tmp/own; wait"]
---
YAML
}
holds() { kubectl exec -n "$1" "$2" -- grep ready /tmp/held; }

# The node's files, except those that the kubelet, containerd, systemd and the clock write.
files_of_node() {
	on_node find / /run -xdev \( -path /tmp -o -path /var/log -o -path /var/lib/kubelet -o -path /var/lib/cni -o -path /run/containerd \
		-o -path /run/netns -o -path /run/systemd -o -path /run/udev -o -path /run/log \) -prune -o -print | sort
}

# both COMMAND…: runs it in both pods.
both() { kubectl exec -n one holder -- "$@" && kubectl exec -n two holder -- "$@"; }
# Whether every answer since `both poller start` was right. Prints how many there were.
none_was_wrong() {
	code=0
	for namespace in one two; do
		kubectl exec -n $namespace holder -- poller stop >"$logs/answers" 2>&1 || code=1
		sed "s/^/cluster: $namespace: /" "$logs/answers" | head -n 6 | tee /dev/stderr
	done
	return $code
}

for play in ${STORIES:-toolkit plugin chart agent rollout metrics rights removal}; do . "$scripts/$play.sh"; done
echo "GUEST-RC=$failed"
