# Measures the agent, the exporter and the plugin on a node with many pods: docs/kubernetes.md has the figures. This is no story. Run
# STORIES="toolkit plugin chart cost" . "$scripts/stories.sh", in the shell of `./x cluster --shell`.

kubectl apply -f "$folder/cost.yaml" >/dev/null
wait_for rolled_out >/dev/null 2>&1
# started APP: the times at which its newest pod was made, its containers were started, and it was ready.
started() {
	kubectl get pods -n mpu-system -l "app.kubernetes.io/name=$1" --sort-by=.metadata.creationTimestamp -o json | python3 -c '
import json, sys
pod = json.load(sys.stdin)["items"][-1]
status = pod["status"]
names = {state["name"]: state["state"]["running"]["startedAt"] for state in status["containerStatuses"]}
ready = [row["lastTransitionTime"] for row in status["conditions"] if row["type"] == "Ready"]
print(pod["metadata"]["creationTimestamp"], names, *ready)'
}
# used: for each program its name, memory of its cgroup, resident memory, anonymous memory (bytes), and µs of a processor so far.
used() {
	on_node sh -c 'for what in "agent run" metrics nri; do
		pid=$(pgrep -o -f "^/usr/bin/mpu $what") && group=/sys/fs/cgroup$(cut -d: -f3 "/proc/$pid/cgroup") || continue
		echo "${what% run}" $(cat "$group/memory.current") $(awk "/^VmRSS|^RssAnon/ { print \$2 * 1024 }" "/proc/$pid/status") \
			$(sed -n "s/^usage_usec //p" "$group/cpu.stat")
	done'
}
kubectl create namespace load >/dev/null
wait_for kubectl get serviceaccount default -n load >/dev/null
made=0
for pods in 30 110; do
	# Each fifth pod has a GPU, and two clients on it.
	while [ $made -lt 200 ] && [ "$(kubectl get pods --all-namespaces --no-headers | wc -l)" -lt $pods ]; do
		for _ in 1 2 3 4 5; do
			made=$((made + 1))
			[ "$(kubectl get pods --all-namespaces --no-headers | wc -l)" -lt $pods ] || continue
			if [ $((made % 5)) = 0 ]; then pod load load-$made | kubectl apply -f -; else
				kubectl run -n load load-$made --image="$REGISTRY/test:1" -- sleep 1000000
			fi >/dev/null
		done
	done
	end=$(($(date +%s) + 1800))
	while kubectl get pods --all-namespaces --no-headers | grep -v ' Running ' >/dev/null && [ "$(date +%s)" -lt $end ]; do sleep 5; done
	sleep 60
	for app in mpu mpu-nri; do
		kubectl delete pod -n mpu-system -l "app.kubernetes.io/name=$app" >/dev/null
		sleep 15
		wait_for rolled_out >/dev/null 2>&1
		echo "cost: $pods pods: $(started $app)"
	done
	sleep 60
	used >"$logs/used"
	begin=$(date +%s)
	for _ in 1 2 3 4 5 6 7 8; do page >"$logs/page"; sleep 14; done
	used | paste -d' ' "$logs/used" - | awk -v seconds=$(($(date +%s) - begin)) -v pods=$pods '{
		printf "cost: %d pods: %s: %.1f MB in its cgroup, %.1f MB resident (%.1f MB its own), %.2f %% of a processor\n",
			pods, $1, $7 / 1e6, $8 / 1e6, $9 / 1e6, ($10 - $5) / seconds / 1e4 }'
	running=$(kubectl get pods --all-namespaces --no-headers | grep -c ' Running ')
	echo "cost: $pods pods: $running run, the page has $(wc -l <"$logs/page") lines"
done
