# A rollout under pods that ask all the time: sourced by stories.sh. Kubernetes 1.20 has no maxSurge, so the old agent goes first.

rolled_out() { kubectl rollout status -n mpu-system "daemonset/${1:-mpu}" --timeout=1s && agent_is_ready "$@"; }

# The last agent takes the engine down: that asker.sh notices this is what makes the next story one.
both asker start
kubectl apply -f "$folder/full.yaml"
check changed_values_roll_out in_time rolled_out
check rollout_without_surge_has_wrong_answers not none_was_wrong

# From here on by agent.keepOnRemoval.
both asker start
version=$(kubectl get daemonset -n mpu-system mpu -o 'jsonpath={.spec.template.spec.containers[0].image}')
on_node ctr -n k8s.io images tag "docker.io/library/$version" docker.io/library/mpu:again
kubectl set image -n mpu-system daemonset/mpu agent=mpu:again metrics=mpu:again
check changed_image_rolls_out in_time rolled_out
check rollout_with_kept_engine_has_no_wrong_answer none_was_wrong

# What maxSurge does on a node: the new agent's pod is there before the old one goes.
both asker start
kubectl apply -f "$folder/second.yaml"
check second_agent_becomes_ready in_time rolled_out mpu-second
first_stands_by() { agent_log | tail -n 3 | grep "standing by: agent .* manages the engine"; }
check first_agent_stands_by in_time first_stands_by
kubectl delete daemonset,serviceaccount,networkpolicy,clusterrole,clusterrolebinding,role,rolebinding --all-namespaces --wait=false \
	-l app.kubernetes.io/name=mpu-second
first_manages() { [ -z "$(agent mpu-second)" ] && agent_log | tail -n 3 | grep "is up, by module"; }
check first_agent_manages_again in_time first_manages
check hand_over_and_back_has_no_wrong_answer none_was_wrong
