"""Checks what packaging/kubernetes holds: renders the chart by Helm's own engine, validates what comes out against
Kubernetes' schemas, and holds it to what docs/kubernetes.md promises. Prints a line per finding; none is good."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

KUBERNETES = Path(sys.argv[1]) / "packaging/kubernetes"
CHART = KUBERNETES / "chart/mpu"
VERSION, TOOLS = sys.argv[2], Path(sys.argv[3])
# Where to put the manifests; without it, everything is checked.
OUT = Path(sys.argv[4]) if len(sys.argv) > 4 else None
ABOUT = yaml.safe_load((CHART / "Chart.yaml").read_text())
# The oldest release that the chart allows, and the newest that has schemas: 1.N.
OLDEST = int(re.match(r">=1\.(\d+)\.", ABOUT["kubeVersion"])[1])
NEWEST = int(kubernetes_validate.latest_version().split(".")[1])
# A schema is read from a file of megabytes each time.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)
NAMESPACE = "mpu-system"
FOLDER = tempfile.TemporaryDirectory()
found = []


def fault(where, what):
    found.append(f"{where}: {what}")


def rendered(values, chart=CHART, name="mpu"):
    """The objects, by file, as a release of this name."""
    files = Chart.load(str(chart)).render(values, name=name, namespace=NAMESPACE)
    for path, text in sorted(files.items()):
        if path.endswith(".yaml"):
            for document in yaml.safe_load_all(text):
                if document is not None:
                    yield path, text, document


def releases(oldest=OLDEST):
    return [f"1.{minor}" for minor in range(oldest, NEWEST + 1)]


@functools.cache
def chart_of(release):
    """The chart as a cluster of this release renders it: the engine's offline renderer takes no version by itself."""
    folder = Path(FOLDER.name) / release
    shutil.copytree(CHART, folder)
    release = release if release.count(".") > 1 else f"{release}.0"
    for template in (folder / "templates").iterdir():
        template.write_text(template.read_text().replace(".Capabilities.KubeVersion.Version", f'"v{release}"'))
    return folder


def check_valid(where, what, release, document):
    """Strictly: kubectl refuses a field that its server does not know."""
    try:
        kubernetes_validate.validate(document, release, strict=True)
    except kubernetes_validate.ValidationError as error:
        fault(where, f"{what}, Kubernetes {release}: {error.message} at {list(error.path)}")


def check_objects(where, values, oldest):
    for release in releases(oldest):
        for file, _, document in rendered(values, chart_of(release)):
            if document["apiVersion"].startswith("monitoring.coreos.com"):
                check_monitor(where, document)
            else:
                check_valid(where, file, release, document)


def check_case(path):
    values = yaml.safe_load(path.read_text())
    where = path.name
    # The first line of a file can have the oldest release for its values.
    since = re.match(r"# since 1\.(\d+)", path.read_text())
    oldest = int(since[1]) if since else OLDEST
    # By the oldest release, too: before 1.30 AppArmor was an annotation.
    both = [lint(str(CHART), values, strict=True, kube_version=f"v1.{minor}.0") for minor in (oldest, NEWEST)]
    for message in both[0]["messages"] + both[1]["messages"]:
        if message["severity"] > 1:
            fault(where, f"helm lint: {message['path']}: {message['error']}")
    check_objects(where, values, oldest)
    objects = [document for _, _, document in rendered(values)]
    check_promises(where, values, objects)


def check_monitor(where, monitor):
    """Its schema comes with the Prometheus operator; this is the part that the chart uses."""
    port = monitor["spec"]["endpoints"][0]
    if set(port) != {"port", "path", "interval", "honorLabels", "relabelings"} or port["port"] != "metrics":
        fault(where, f"the ServiceMonitor's endpoint is not what was looked at: {port}")


# The capabilities that each container adds, unless it is privileged.
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
ADDED = {"agent": ["SYS_MODULE", "SYS_ADMIN"], "metrics": [], "nri": ["SYS_PTRACE"]}


def check_promises(where, values, objects):
    """What docs/kubernetes.md says of privileges, and what the schemas cannot see."""
    of = lambda kind: [document for document in objects if document["kind"] == kind]
    promise = lambda so, what: so or fault(where, what)
    selectors = [daemons["spec"]["selector"]["matchLabels"] for daemons in of("DaemonSet")]
    on = lambda part, default: values.get(part, {}).get("enabled", default)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    speaks = on("agent", True) and on("events", True)
    rbac = [document for document in objects if document["kind"] in RBAC]
    check_pod_roles(promise, values, [document for document in rbac if document["metadata"]["name"].endswith("-pods")])
    rbac = [document for document in rbac if not document["metadata"]["name"].endswith("-pods")]
    check_rbac(promise, values, objects if speaks else [], rbac)
    for policy in of("NetworkPolicy"):
        is_agents = policy["metadata"]["name"] == "mpu"
        out = [([rule["port"] for rule in rule["ports"]], [peer["ipBlock"]["cidr"] for peer in rule.get("to", [])])
               for rule in policy["spec"]["egress"]]
        wanted = [([443, 6443], values.get("networkPolicy", {}).get("apiServerCIDRs", [])), ([53, 53], [])]
        promise(out == (wanted if is_agents and speaks else []), f"{policy['metadata']['name']}: lets out to {out}")
    promise(len(selectors) == on("agent", True) + on("nri", False), "a DaemonSet too many, or one too few")
    promise(all(selectors.count(one) == 1 for one in selectors), "two DaemonSets have the same pods")
    for daemons in of("DaemonSet"):
        check_pod(promise, values, daemons, speaks)
        check_nodes(promise, values, defaults, daemons)
    for kind in ("NetworkPolicy", "Service", "ServiceMonitor"):
        for document in of(kind):
            has = document["spec"].get("podSelector", document["spec"].get("selector", {}))
            promise(has.get("matchLabels", has) in selectors, f"the {kind} selects other pods")


RBAC = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]


def check_rbac(promise, values, objects, rbac):
    """The agent may read nodes and write Events in default, and no more; without Events, nothing."""
    rules = {document["kind"]: document["rules"] for document in rbac if "rules" in document}
    wanted = {"ClusterRole": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
              "Role": [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]}
    promise(rules == (wanted if objects else {}), f"RBAC allows {rules}")
    promise(all(document["metadata"].get("namespace") == "default" for document in rbac if "Cluster" not in document["kind"]),
            "a Role is not where a node's Events are")
    accounts = [document["metadata"]["name"] for document in objects if document["kind"] == "ServiceAccount"]
    held = [subject["name"] for binding in rbac for subject in binding.get("subjects", [])]
    promise("default" not in held, "every pod of the namespace has the agent's rights")
    for binding in rbac:
        if "roleRef" in binding:
            named = [(subject["name"], subject["namespace"]) for subject in binding["subjects"]]
            account = accounts[0] if accounts else values["serviceAccount"]["name"]
            promise(named == [(account, NAMESPACE)], f"{binding['kind']} is for {named}")
            role = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
            promise(role in [(document["kind"], document["metadata"]["name"]) for document in rbac], f"there is no {role}")


def check_pod_roles(promise, values, rbac):
    """Where the configuration has rules with a label, the agent may list the pods of their namespaces, and no others."""
    rules = tomllib.loads(values.get("config", "")).get("rule", [])
    wanted = sorted({rule["namespace"] for rule in rules if "namespace" in rule})
    of = lambda kind: sorted(document["metadata"]["namespace"] for document in rbac if document["kind"] == kind)
    promise(of("Role") == of("RoleBinding") == wanted, f"pods are listed in {of('Role')}")
    for document in rbac:
        allows = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        promise(document.get("rules", allows) == allows, f"RBAC allows {document.get('rules')}")
        for subject in document.get("subjects", []):
            promise((subject["name"], subject["namespace"]) == ("mpu", NAMESPACE), f"{subject} lists pods")
        promise(document.get("roleRef", document["metadata"])["name"] == document["metadata"]["name"], "a binding of another role")


ENGINE, UPGRADE, CLIENT = "mpu-project.github.io/engine", "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/gpu.deploy.client"
GPU = {"nvidia.com/gpu.present": "true"}
# Labels of a node, and whether the agent and the plugin are there, by the chart's engine: auto, module, notify.
NODES = [
    ({}, "yes yes no", "yes no yes"),
    ({ENGINE: "auto"}, "yes yes yes", "yes yes yes"),
    ({ENGINE: "module"}, "yes yes yes", "no no no"),
    ({ENGINE: "notify"}, "no no no", "yes yes yes"),
    # No engine's name: the agent reports it, and the chart's engine applies.
    ({ENGINE: "modul"}, "yes yes no", "yes no yes"),
    ({CLIENT: "true", UPGRADE: "upgrade-done"}, "yes yes no", "yes no yes"),
    # The GPU Operator evicts the driver's clients. The plugin is none.
    ({CLIENT: "paused-for-driver-upgrade"}, "no no no", "yes no yes"),
    ({CLIENT: "paused-for-mig-change", ENGINE: "module"}, "no no no", "no no no"),
    ({UPGRADE: "pod-restart-required"}, "no no no", "yes no yes"),
    # Jobs may still run, or run again.
    ({UPGRADE: "wait-for-jobs-required"}, "yes yes no", "yes no yes"),
    ({UPGRADE: "validation-required"}, "yes yes no", "yes no yes"),
]


def matches(expression, labels):
    """As Kubernetes' selectors: NotIn is true of a label that is not there, too."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values", [])
    return {"In": key in labels and labels[key] in values, "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels, "DoesNotExist": key not in labels}[operator]


def check_nodes(promise, values, defaults, daemons):
    """On which nodes a DaemonSet's pods are: a controller deletes the pods of a node whose labels match no longer."""
    pod = daemons["spec"]["template"]["spec"]
    column = 2 if pod["containers"][0]["name"] == "nri" else 1
    engine = ["auto", "module", "notify"].index(values.get("engine", defaults["engine"]))
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    wanted = values.get("affinity", defaults["affinity"])
    base = {**GPU, "example.com/gpu": ""}
    for row in NODES:
        labels = {**base, **row[0]}
        there = any(all(matches(expression, labels) for expression in term["matchExpressions"]) for term in affinity)
        promise(there == (row[column].split()[engine] == "yes"), f"{daemons['metadata']['name']}: is {there} on a node with {row[0]}")
    alone = [term for term in affinity if all(matches(expression, {}) for expression in term["matchExpressions"])]
    asked = [term for term in (wanted or {}).get("nodeAffinity", {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])]
    fields = [term["matchFields"] for term in affinity if "matchFields" in term]
    promise(all("matchFields" in term for term in alone) or not asked or engine == 2, "it is on nodes outside the affinity")
    promise({json.dumps(field) for field in fields} == {json.dumps(term["matchFields"]) for term in asked if "matchFields" in term},
            f"matchFields are lost: {fields}")
    selector = {**defaults["nodeSelector"], **(values.get("nodeSelector") or {})}
    selector = {key: value for key, value in selector.items() if value is not None}
    promise(pod.get("nodeSelector", {}) == selector, f"the node selector is {pod.get('nodeSelector')}, not {selector}")
    kept = {key for key in pod["affinity"] if key != "nodeAffinity"}
    promise(kept == {key for key in (wanted or {}) if key != "nodeAffinity"}, f"of the affinity is left {kept}")


def check_pod(promise, values, daemons, speaks):
    """A DaemonSet's pod, and that it holds what its DaemonSet looks for."""
    template = daemons["spec"]["template"]
    pod = template["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    has = template["metadata"]["labels"]
    promise(all(has[key] == value for key, value in daemons["spec"]["selector"]["matchLabels"].items()), "other pods")
    promise(pod["automountServiceAccountToken"] is False, "a pod has a token")
    promise("hostNetwork" not in pod and "hostIPC" not in pod, "a pod is in the host's network or IPC namespace")
    plugin = pod["containers"][0]["name"] == "nri"
    exporter = values.get("metrics", {}).get("enabled", False)
    promise(pod.get("hostPID", False) == (plugin or exporter), "hostPID is the exporter's and the plugin's")
    agent = values.get("agent", {})
    # On a node whose /usr is read-only, /usr/src cannot be made: a pod that mounts it never starts there.
    compiles = not (plugin or agent.get("module") or any(agent.get("prebuilt", {}).values()))
    promise(("sources" in volumes) == compiles, f"/usr/src is {'not ' * compiles}asked of the node")
    promise(plugin or volumes["modules"]["hostPath"]["type"] == "DirectoryOrCreate",
            "a node without /lib/modules keeps the pod from starting, and so from saying why")
    asked = {"agent": values.get("gpu", {}).get("privileged", True),
             "metrics": bool(values.get("metrics", {}).get("privileged")), "nri": False}
    promise("runtimeClassName" not in pod or values.get("gpu", {}).get("runtimeClassName"), "a pod needs a RuntimeClass")
    tokens = [volume["name"] for volume in pod["volumes"] if "projected" in volume]
    holders = [container["name"] for container in pod["containers"]
               if any(mount["name"] in tokens for mount in container["volumeMounts"])]
    promise(holders == (["agent"] if speaks and not plugin else []), f"a token is with {holders}")
    rollout = daemons["spec"]["updateStrategy"]
    if "updateStrategy" not in values:
        promise(rollout["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}, f"an upgrade takes engines down: {rollout}")
    for container in pod["containers"]:
        security, name = container["securityContext"], container["name"]
        privileged = asked[name]
        promise(security["readOnlyRootFilesystem"] is True, f"{name}: its root file system is writable")
        promise(security.get("privileged", False) == privileged, f"{name}: privileged is {not privileged}, the values ask for {privileged}")
        added = security.get("capabilities", {}).get("add", [])
        if not privileged:
            promise(security.get("capabilities", {}).get("drop") == ["ALL"], f"{name}: keeps capabilities")
            promise(added == ADDED[name], f"{name}: adds {added}")
            promise(security.get("allowPrivilegeEscalation") is False or name == "agent", f"{name}: may escalate")
        check_confined(promise, values, template, container)
        # The API server refuses these, beyond its schema.
        unescalated = security.get("allowPrivilegeEscalation") is False
        promise(not (unescalated and (privileged or "SYS_ADMIN" in added)), f"{name}: cannot both escalate and not")
        for mount in container["volumeMounts"]:
            promise(mount["name"] in volumes, f"{name}: mounts {mount['name']}, which is no volume")
            path = volumes[mount["name"]].get("hostPath", {}).get("path")
            chosen = [(agent.get("prebuilt", {}).get("onNode"), "/usr/lib/mpu/modules")]
            promise(path in (None, mount["mountPath"]) or (path, mount["mountPath"]) in chosen, f"{name}: {path} is not at its own path")
            written = {"/run/mpu/nri"} if plugin else {"/sys/module", "/var/lib/mpu", "/run/mpu", "/tmp"}
            promise(mount.get("readOnly") or mount["mountPath"] in written, f"{name}: may write {mount['mountPath']}")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            # The kubelet expands no field references in the commands of probes.
            promise("$(" not in json.dumps(container.get(probe, {})), f"{name}: {probe} wants a variable")


def check_confined(promise, values, template, container):
    """The profiles that the administrator names are in every container; but an exporter is never unconfined."""
    security, name = container["securityContext"], container["name"]
    own = values.get("securityContext", {})
    # As Helm merges: null removes a default, and {} does not.
    named = {key: {} if own.get(key, {}) is None else {**default, **own.get(key, {})}
             for key, default in yaml.safe_load((CHART / "values.yaml").read_text())["securityContext"].items()}
    apparmor = named["appArmorProfile"]
    if name == "metrics" and apparmor.get("type") == "Unconfined":
        apparmor = {}
    noted = template["metadata"].get("annotations", {}).get(APPARMOR + name)
    words = {"Unconfined": "unconfined", "RuntimeDefault": "runtime/default",
             "Localhost": f"localhost/{apparmor.get('localhostProfile')}"}
    promise(security.get("seccompProfile", {}) == named["seccompProfile"], f"{name}: its seccomp profile is another")
    has = security.get("appArmorProfile", {}) == apparmor or noted == words.get(apparmor.get("type"))
    promise(has, f"{name}: its AppArmor profile is another")
    promise(security.get("seLinuxOptions", {}) == named["seLinuxOptions"], f"{name}: its SELinux options are others")


# Values that the first chart lacked. `helm upgrade --reuse-values` gives a new chart only the old one's values.
NEWER = ["engine", "events", "minReadySeconds", "agent.prebuilt", "metrics.privileged", "networkPolicy.apiServerPorts",
         "networkPolicy.apiServerCIDRs"]


def check_reused():
    """A release that was made by an older chart can be upgraded with its own values."""
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "mpu"
        shutil.copytree(CHART, old)
        values = yaml.safe_load((old / "values.yaml").read_text())
        for path in NEWER:
            *above, last = path.split(".")
            del functools.reduce(dict.__getitem__, above, values)[last]
        values["gpu"] = {"privileged": False, "runtimeClassName": "nvidia"}
        values["metrics"]["enabled"] = values["nri"]["enabled"] = True
        (old / "values.yaml").write_text(yaml.safe_dump(values))
        try:
            objects = [document for _, _, document in rendered({}, old)]
        except HelmError as error:
            return fault("--reuse-values", str(error))
        has = sorted(document["kind"] for document in objects)
        if has != ["DaemonSet", "DaemonSet", "NetworkPolicy", "NetworkPolicy", "Service", "ServiceAccount"]:
            fault("--reuse-values", f"makes {has}: what an older release had not is off")
        for document in objects:
            if document["kind"] == "DaemonSet":
                check_valid("--reuse-values", "the DaemonSet", releases()[-1], document)


def check_refused():
    for word, values in yaml.safe_load((KUBERNETES / "cases/refused.yaml").read_text()):
        chart = Chart.load(str(CHART))
        try:
            chart.validate_schema(values)
            chart.render(values, name="mpu", namespace=NAMESPACE)
        except HelmError as error:
            if word not in str(error):
                fault("refused.yaml", f"{values} is refused without the word {word}: {error}")
        else:
            fault("refused.yaml", f"{values} is accepted")


def check_schema_covers_values():
    try:
        Chart.load(str(CHART)).validate_schema(yaml.safe_load((CHART / "values.yaml").read_text()))
    except HelmError as error:
        fault("values.schema.json", str(error))


def manifest(name, values, what, chart=CHART):
    """What those without Helm apply: the chart with these values, and the namespace."""
    head = (
        f"# MPU on every GPU node, for those without Helm: docs/kubernetes.md. Made from {what}, for Kubernetes 1.30 and\n"
        f"# newer. Replace the image, `mpu:VERSION`, by yours; then kubectl apply -f {name}\n"
    )
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    texts = [yaml.safe_dump(namespace, sort_keys=False)]
    order = ["ServiceAccount", *RBAC, "ConfigMap", "NetworkPolicy", "Service", "DaemonSet"]
    files = {text: min(order.index(other["kind"]) for _, same, other in rendered(values, chart) if same == text)
             for _, text, _ in rendered(values, chart)}
    for text in sorted(files, key=files.get):
        lines = [line for line in text.splitlines() if not re.search(r"managed-by: Helm|helm\.sh/chart:", line)]
        texts.append("\n".join(lines).strip() + "\n")
    return head + "---\n".join(texts)


def manifests():
    restricted = yaml.safe_load((KUBERNETES / "cases/runtime-class.yaml").read_text())
    return {name: manifest(name, values, what) for name, values, what in (
        ("manifest.yaml", {}, "the chart's defaults"),
        ("manifest-runtime-class.yaml", restricted, "cases/runtime-class.yaml"))}


def check_manifests():
    for name, text in manifests().items():
        for document in yaml.safe_load_all(text):
            for release in releases(30):
                check_valid(name, document["kind"], release, document)


def check_long_names():
    """What the schemas do not know: a label's value and a Service's name have 63 characters at most. Helm's releases have up to 53."""
    values = {"metrics": {"enabled": True, "privileged": False}, "nri": {"enabled": True}}
    for release, named in (("r" * 53, {}), ("r", {"nameOverride": "n" * 63}), ("r", {"fullnameOverride": "f" * 63})):
        for _, _, document in rendered(values | named, name=release):
            metadata = document["metadata"]
            labels = [metadata["labels"], document["spec"]["template"]["metadata"]["labels"] if "Daemon" in document["kind"] else {}]
            if document["kind"] == "Service" and len(metadata["name"]) > 63:
                fault("a long name", f"no Service can be called {metadata['name']}")
            for key, value in [pair for some in labels for pair in some.items()]:
                if len(value) > 63:
                    fault("a long name", f"no label can be {key}={value}")


def check_versions():
    for key in ("version", "appVersion"):
        if ABOUT[key] != VERSION:
            fault("Chart.yaml", f"{key} is {ABOUT[key]}, but MPU is {VERSION}")


def check_kmm():
    """The worker calls `modprobe -d DIRNAME mpu`, which looks for DIRNAME/lib/modules: the image of Dockerfile.modules has it in /opt."""
    container = yaml.safe_load((KUBERNETES / "kmm/module.yaml").read_text())["spec"]["moduleLoader"]["container"]
    if container["modprobe"] != {"moduleName": "mpu", "dirName": "/opt"}:
        fault("kmm/module.yaml", f"looks elsewhere: {container['modprobe']}")
    if any(not mapping["containerImage"].endswith(f":{VERSION}") for mapping in container["kernelMappings"]):
        fault("kmm/module.yaml", f"is of another version than {VERSION}")


def check_dockerfiles():
    for file in sorted(KUBERNETES.glob("Dockerfile*")):
        command = [str(TOOLS / "bin/hadolint"), "--no-color", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            fault(file.name, f"hadolint: {done.stdout.strip()}{done.stderr.strip()}")


if len(sys.argv) > 5:
    # A release, and a file of values: for the test cluster, which is older than the chart allows.
    case = yaml.safe_load(Path(sys.argv[6]).read_text())
    OUT.write_text(manifest(OUT.name, case, Path(sys.argv[6]).name, chart_of(sys.argv[5])))
    sys.exit()
if OUT:
    for name, text in manifests().items():
        (OUT / name).write_text(text)
    sys.exit()
check_versions()
check_schema_covers_values()
cases = [path for path in sorted((KUBERNETES / "cases").glob("*.yaml")) if path.name != "refused.yaml"]
for case in cases:
    check_case(case)
check_refused()
check_reused()
check_long_names()
check_manifests()
check_kmm()
check_dockerfiles()
for line in found:
    print(line)
print(f"{len(cases)} values files, Kubernetes 1.{OLDEST} to 1.{NEWEST}: {len(found)} findings", file=sys.stderr)
sys.exit(bool(found))
