# Each right of the agent is needed: without it something is missing. Sourced by stories.sh; the agent is that of full.yaml.

# allow KIND NAMESPACE NAME VERBS: what the first rule of that role allows.
allow() {
	kubectl patch "$1" -n "$2" "$3" --type=json -p "[{\"op\": \"replace\", \"path\": \"/rules/0/verbs\", \"value\": [$4]}]"
}
agent_logs() { agent_log | grep "$1"; }
# A new agent sends its first Event as soon as a container got a right answer.
new_agent() {
	kubectl delete events -n default --field-selector source=mpu
	kubectl delete pod -n mpu-system "$(agent)"
	wait_for agent_is_ready
}
no_event_is_made() { agent_logs "no Events are made on the node: .*403" && [ -z "$(event_field node.mpuserved count)" ]; }

allow role default mpu-mpu-system '"patch"'
new_agent
check event_needs_create_of_events wait_for no_event_is_made
allow role default mpu-mpu-system '"create"'
new_agent
check event_needs_patch_of_events wait_for no_event_is_made
allow role default mpu-mpu-system '"create", "patch"'
check event_is_made_with_both wait_for event MpuServed 'Normal: '

no_label_is_read() { agent_logs "the node's label is not read: .*403" && not event MpuEngineLabelInvalid modul; }
allow clusterrole default mpu-mpu-system '"list"'
kubectl label node node mpu-project.github.io/engine=modul
check label_needs_get_of_nodes wait_for no_label_is_read
allow clusterrole default mpu-mpu-system '"get"'
check label_is_read_with_get_of_nodes wait_for event MpuEngineLabelInvalid 'Warning: .*modul'
kubectl label node node mpu-project.github.io/engine-

# By a rule, a monitor sees the host's processes. The agent lists the rule's pods.
no_pod_is_found() { agent_logs "the pods of rules with a label are not looked for: .*403" && is_right two; }
sees_both() { table two && [ "$(echo "$shown" | wc -w)" = 2 ]; }
allow role two mpu-mpu-system-pods '"get"'
kubectl label pod -n two holder app=monitor
check rule_needs_list_of_pods wait_for no_pod_is_found
allow role two mpu-mpu-system-pods '"list"'
check rule_works_with_list_of_pods wait_for sees_both
kubectl label pod -n two holder app-
check rule_ends_with_its_label wait_for is_right two
