# Pods in the output of the exporter, `mpu ps` and `mpu who`. Sourced by stories.sh. full.yaml switches the exporter on.

uid() { kubectl get pod -n "$1" holder -o 'jsonpath={.metadata.uid}'; }
# A holder has two clients of 40 MiB.
page_names() {
	row=$(grep '^mpu_gpu_memory_used_bytes{' "$logs/page" | grep -F "namespace=\"$1\"")
	echo "$row"
	for label in 'pod="holder"' "pod_uid=\"$(uid "$1")\"" "container_pid=\"$(kubectl exec -n "$1" holder -- cat /tmp/own)\""; do
		echo "$row" | grep -q -F "$label" || return
	done
	[ "${row##* }" = $((2 * 40 * 1024 * 1024)) ]
}
both_are_on_the_page() { page >"$logs/page" && page_names one && page_names two; }
check metrics_name_both_pods wait_for both_are_on_the_page
served_is_on_the_page() { grep '^mpu_engine_up 1$' "$logs/page" && grep '^mpu_translated_total{.*} [1-9]' "$logs/page"; }
check metrics_count_translations served_is_on_the_page

# named: whether the rows of a command's JSON name both pods by namespace, name and uid, with their processes.
named() {
	python3 -c '
import json, sys
rows = json.load(sys.stdin)["processes"]
pods = [row["container"]["pod"] for row in rows if row["container"] and row["container"]["pod"]]
found = {(pod["namespace"], pod["name"], pod["uid"]) for pod in pods}
print(found)
wanted = {("one", "holder", sys.argv[1]), ("two", "holder", sys.argv[2])}
sys.exit(not wanted <= found)' "$(uid one)" "$(uid two)"
}
ps_in_pod() { kubectl exec -n mpu-system "$(agent)" -c metrics -- mpu ps --json | named; }
ps_on_node() { on_node /node/mpu ps --json | named; }
who_on_node() { on_node /node/mpu who --json | named; }
check ps_names_both_pods_in_the_exporters_container ps_in_pod
check ps_names_both_pods_on_the_node ps_on_node
check who_names_both_pods_on_the_node who_on_node

# Real Prometheus, with MPU's alerts. It cannot reach pods in the guest's network, so kubectl forwards its scrapes.
kubectl port-forward -n mpu-system "$(agent)" 19567 >"$logs/forward" 2>&1 &
forward=$!
cat >"$folder/prometheus.yml" <<YAML
global: {scrape_interval: 3s}
rule_files: ["$scripts/../../packaging/prometheus/alerts.yml"]
scrape_configs: [{job_name: mpu, honor_labels: true, static_configs: [{targets: ["127.0.0.1:19567"]}]}]
YAML
"$PROMETHEUS" --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/etcd/prometheus" --web.listen-address=127.0.0.1:9090 \
	>"$logs/prometheus" 2>&1 &
prometheus=$!
prometheus_sums() {
	python3 -c '
import json, urllib.parse, urllib.request
query = "sum by (namespace, pod) (mpu_gpu_memory_used_bytes)"
answer = json.load(urllib.request.urlopen("http://127.0.0.1:9090/api/v1/query?query=" + urllib.parse.quote(query), timeout=5))
found = {(row["metric"].get("namespace"), row["metric"].get("pod")): row["value"][1] for row in answer["data"]["result"]}
print(found)
assert {pod: found.get((pod, "holder")) for pod in ("one", "two")} == {"one": "83886080", "two": "83886080"}'
}
check prometheus_sums_pods_memory wait_for prometheus_sums
kill "$forward" "$prometheus"
