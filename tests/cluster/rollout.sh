# A rollout while pods poll. Sourced by stories.sh. Kubernetes 1.20 has no maxSurge, so the old agent ends first.

# The last agent takes the engine down. poller.sh must notice this, or the next story would prove nothing.
both poller start
kubectl apply -f "$folder/full.yaml"
check changed_values_roll_out wait_for rolled_out
check rollout_without_surge_has_wrong_answers not none_was_wrong

# From here on agent.keepOnRemoval keeps the engine.
both poller start
# engine_is VERSION: the loaded module's.
engine_is() { [ "$(on_node sh -c 'cat /sys/module/mpu*/version' | tee /dev/stderr)" = "$1" ]; }
check agent_has_its_versions_engine engine_is "$VERSION"
kubectl set image -n mpu-system daemonset/mpu "agent=$REGISTRY/mpu:$NEXT" "metrics=$REGISTRY/mpu:$NEXT"
check newer_image_rolls_out wait_for rolled_out
check newer_agent_brings_its_engine wait_for engine_is "$NEXT"
kubectl rollout undo -n mpu-system daemonset/mpu
check older_image_rolls_back wait_for rolled_out
check older_agent_brings_its_engine_back wait_for engine_is "$VERSION"
check rollout_with_kept_engine_has_no_wrong_answer none_was_wrong

# As with maxSurge: the newer agent's pod starts before the older one ends.
both poller start
kubectl apply -f "$folder/second.yaml"
check newer_second_agent_becomes_ready wait_for rolled_out mpu-second
check newer_second_agent_brings_its_engine wait_for engine_is "$NEXT"
first_stands_by() { agent_log | tail -n 3 | grep "standing by: agent .* manages the engine"; }
check first_agent_stands_by wait_for first_stands_by
kubectl delete daemonset,serviceaccount,networkpolicy,clusterrole,clusterrolebinding,role,rolebinding --all-namespaces --wait=false \
	-l app.kubernetes.io/name=mpu-second
first_manages() { [ -z "$(agent mpu-second)" ] && agent_log | tail -n 3 | grep "is up, by module"; }
check first_agent_manages_again wait_for first_manages
check first_agent_brings_its_engine_back wait_for engine_is "$VERSION"
check hand_over_and_back_has_no_wrong_answer none_was_wrong
