# A killed agent, and an agent without an API server, while pods poll. Sourced by stories.sh.

both poller start

restarts() { agent_field '.status.containerStatuses[?(@.name=="agent")].restartCount'; }
started=$(restarts) count=$(event_field node.mpuserved count) first=$(event_field node.mpuserved firstTimestamp)
on_node pkill -KILL -f '^/usr/bin/mpu agent run'
was_restarted_once() { [ "$(restarts)" = $((started + 1)) ] && agent_is_ready; }
check killed_agent_is_restarted wait_for was_restarted_once
event_is_counted_on() {
	echo "was $count since $first, is $(event_field node.mpuserved count) since $(event_field node.mpuserved firstTimestamp)"
	[ "$(event_field node.mpuserved count)" = $((count + 1)) ] && [ "$(event_field node.mpuserved firstTimestamp)" = "$first" ]
}
check restarted_agent_counts_its_event_on wait_for event_is_counted_on
check tables_stay_right_without_agent none_was_wrong

# Outgoing TCP connections in the agent's network namespace, which only the agent opens.
connections() { on_node sh -c 'awk "/^Tcp: [0-9]/ { print \$6 }" "/proc/$(pgrep -f "^/usr/bin/mpu agent run")/net/snmp"'; }
both poller start
before=$(connections)
# First the server accepts connections and does not answer, then it accepts none.
kill -STOP "$server"
sleep 30
check stopped_api_server_answers_nothing not kubectl --request-timeout=5s get nodes
kill -KILL "$server"
sleep 30
api_server >>"$logs/apiserver" 2>&1 &
server=$!
check api_server_comes_back wait_for kubectl get --raw /readyz
after=$(wait_for connections)
asks_rarely() {
	echo "connections: $before before, $after after"
	[ "$after" -gt "$before" ] && [ $((after - before)) -le 8 ]
}
check agent_retries_rarely_without_api_server asks_rarely
check tables_stay_right_without_api_server none_was_wrong
check agent_outlives_api_servers_absence wait_for was_restarted_once
kubectl label node node --overwrite mpu-project.github.io/engine=nodule
check label_is_read_again_after_absence wait_for event MpuEngineLabelInvalid 'Warning: .*nodule'
kubectl label node node mpu-project.github.io/engine-
