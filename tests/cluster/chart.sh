# The chart's installation and use on a node. Sourced by stories.sh.

# The node has neither headers nor a module: the agent must report it, and continue by itself once there is a module.
on_node sh -c 'mkdir -p /lib/modules/$(uname -r)/updates/dkms'
files_of_node >"$logs/files"
kubectl apply -f "$folder/defaults.yaml"
agent_runs() { [ -n "$(agent)" ]; }
check agent_pod_runs wait_for agent_runs
digest() { python3 -c '
import sys, urllib.request
request = urllib.request.Request(f"http://{sys.argv[1]}/v2/mpu/manifests/{sys.argv[2]}", method="HEAD")
request.add_header("Accept", "application/vnd.oci.image.manifest.v1+json")
print(urllib.request.urlopen(request).headers["Docker-Content-Digest"])' "$REGISTRY" "$VERSION"; }
is_pulled() { [ "$(agent_field '.status.containerStatuses[0].imageID' | tee /dev/stderr)" = "$REGISTRY/mpu@$(digest)" ]; }
check agent_has_the_registrys_image wait_for is_pulled
check missing_headers_make_an_event wait_for event MpuEngineFailed 'Warning: .*headers'
check agent_without_engine_is_not_ready not agent_is_ready
on_node sh -c 'cp /node/mpu*.ko /lib/modules/$(uname -r)/updates/dkms/'
check agent_becomes_ready wait_for agent_is_ready
check pods_that_ran_before_are_right both_are_right
check plugins_pods_are_right plugins_pods_are_right
check served_makes_an_event wait_for event MpuServed 'Normal: '
pod two later | kubectl apply -f -
check later_pod_runs wait_for ready two later
later_is_right() { holds two later && is_right two later; }
check later_pod_is_right wait_for later_is_right
kubectl exec -n two later -- nvidia-smi
kubectl delete pod -n two later variable --wait=false
kubectl delete pod -n one cdi --wait=false

kubectl label node node mpu-project.github.io/engine=modul
check unknown_label_makes_a_warning wait_for event MpuEngineLabelInvalid 'Warning: .*modul'
kubectl label node node --overwrite mpu-project.github.io/engine=notify
no_agent() { [ -z "$(kubectl get pods -n mpu-system -o name)" ]; }
check label_takes_the_pod_away wait_for no_agent
check pods_are_wrong_while_agent_is_away both_are_wrong
kubectl label node node mpu-project.github.io/engine-
check label_brings_the_pod_back wait_for agent_is_ready
check pods_are_right_again both_are_right
