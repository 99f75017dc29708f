# Draining a node, reloading its driver, and removing the chart. Sourced by stories.sh.

# full.yaml has all objects of defaults.yaml, and more. With the defaults, the engine ends with its agent again.
kubectl apply -f "$folder/defaults.yaml"
wait_for rolled_out
name=$(agent)
check drain_ends_the_pods_of_users kubectl drain node --ignore-daemonsets --force --delete-emptydir-data --pod-selector='app!=admin' --timeout=120s
check drain_leaves_the_agent ready mpu-system "$name"
check driver_unloads_under_the_engine on_node rmmod nvidia
check agent_without_driver_is_not_ready wait_for not agent_is_ready
check driver_is_loaded_again on_node insmod /node/nvidia.ko
check agent_with_driver_is_ready_again wait_for agent_is_ready
kubectl uncordon node
for namespace in one two; do pod $namespace; done | kubectl apply -f -
check pods_start_after_drain wait_for holders_hold
check pods_after_drain_are_right both_are_right

check chart_is_removed kubectl delete -f "$folder/full.yaml" --wait=false
check removal_unloads_the_module wait_for on_node sh -c '! grep "^mpu" /proc/modules'
check pods_are_wrong_after_removal both_are_wrong
no_objects() {
	kinds=$(kubectl api-resources --verbs=list --no-headers -o name | paste -sd,)
	kubectl get "$kinds" --all-namespaces -l app.kubernetes.io/instance=mpu -o name >"$logs/objects"
	cat "$logs/objects"
	! [ -s "$logs/objects" ]
}
check removal_leaves_no_object wait_for no_objects
# The files that docs/kubernetes.md names.
only_named_files() {
	on_node sh -c 'rm /lib/modules/$(uname -r)/updates/dkms/mpu*.ko'
	files_of_node >"$logs/files-now"
	diff "$logs/files" "$logs/files-now" | grep '^[<>]' | grep -v -x -e '> /run/mpu' -e '> /run/mpu/agents' -e '> /run/mpu/agents/gate' \
		-e '> /var/lib/mpu' -e '> /usr/src' >"$logs/differences"
	cat "$logs/differences"
	! [ -s "$logs/differences" ]
}
check removal_leaves_only_named_files only_named_files
