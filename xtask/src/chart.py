"""Checks packaging/kubernetes: renders the chart by Helm's own engine, validates the objects by Kubernetes' schemas, and
compares them with docs/kubernetes.md. Prints one line for each finding."""

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
# The folder for the manifests. Without it, everything is checked.
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
    """The path, text and object of each document of a release with this name."""
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
    """A copy of the chart that renders as in a cluster of this release: the engine's offline renderer takes no version."""
    folder = Path(FOLDER.name) / release
    shutil.copytree(CHART, folder)
    release = release if release.count(".") > 1 else f"{release}.0"
    for template in (folder / "templates").iterdir():
        template.write_text(template.read_text().replace(".Capabilities.KubeVersion.Version", f'"v{release}"'))
    return folder


def check_valid(where, what, release, document):
    """Validates an object strictly: kubectl refuses a field that its server does not know."""
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
    check_documented(where, values, objects)


def check_monitor(where, monitor):
    """Checks the fields that the chart uses: the schema of a ServiceMonitor comes with the Prometheus operator."""
    port = monitor["spec"]["endpoints"][0]
    if set(port) != {"port", "path", "interval", "honorLabels", "relabelings"} or port["port"] != "metrics":
        fault(where, f"the ServiceMonitor's endpoint has other fields: {port}")


APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
# The capabilities that each container adds, unless it is privileged.
ADDED = {"agent": ["SYS_MODULE", "SYS_ADMIN"], "metrics": [], "nri": ["SYS_PTRACE"]}


def check_documented(where, values, objects):
    """Compares the objects with docs/kubernetes.md, and with rules that the schemas do not have."""
    of = lambda kind: [document for document in objects if document["kind"] == kind]
    require = lambda so, what: so or fault(where, what)
    selectors = [daemons["spec"]["selector"]["matchLabels"] for daemons in of("DaemonSet")]
    on = lambda part, default: values.get(part, {}).get("enabled", default)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    speaks = on("agent", True) and on("events", True)
    rbac = [document for document in objects if document["kind"] in RBAC]
    check_pod_roles(require, values, [document for document in rbac if document["metadata"]["name"].endswith("-pods")])
    rbac = [document for document in rbac if not document["metadata"]["name"].endswith("-pods")]
    check_rbac(require, values, objects if speaks else [], rbac)
    for policy in of("NetworkPolicy"):
        is_agents = policy["metadata"]["name"] == "mpu"
        out = [([rule["port"] for rule in rule["ports"]], [peer["ipBlock"]["cidr"] for peer in rule.get("to", [])])
               for rule in policy["spec"]["egress"]]
        wanted = [([443, 6443], values.get("networkPolicy", {}).get("apiServerCIDRs", [])), ([53, 53], [])]
        require(out == (wanted if is_agents and speaks else []), f"{policy['metadata']['name']}: allows egress to {out}")
    require(len(selectors) == on("agent", True) + on("nri", False), f"{len(selectors)} DaemonSets")
    require(all(selectors.count(one) == 1 for one in selectors), "two DaemonSets have the same pods")
    for daemons in of("DaemonSet"):
        check_pod(require, values, daemons, speaks)
        check_nodes(require, values, defaults, daemons)
    for kind in ("NetworkPolicy", "Service", "ServiceMonitor"):
        for document in of(kind):
            has = document["spec"].get("podSelector", document["spec"].get("selector", {}))
            require(has.get("matchLabels", has) in selectors, f"the {kind} selects other pods")


RBAC = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]


def check_rbac(require, values, objects, rbac):
    """With Events, the agent may read nodes and write Events in `default`. Without Events it has no rights."""
    rules = {document["kind"]: document["rules"] for document in rbac if "rules" in document}
    wanted = {"ClusterRole": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
              "Role": [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]}
    require(rules == (wanted if objects else {}), f"RBAC allows {rules}")
    require(all(document["metadata"].get("namespace") == "default" for document in rbac if "Cluster" not in document["kind"]),
            "a Role is not in the namespace of a node's Events")
    accounts = [document["metadata"]["name"] for document in objects if document["kind"] == "ServiceAccount"]
    held = [subject["name"] for binding in rbac for subject in binding.get("subjects", [])]
    require("default" not in held, "every pod of the namespace has the agent's rights")
    for binding in rbac:
        if "roleRef" in binding:
            named = [(subject["name"], subject["namespace"]) for subject in binding["subjects"]]
            account = accounts[0] if accounts else values["serviceAccount"]["name"]
            require(named == [(account, NAMESPACE)], f"{binding['kind']} is for {named}")
            role = (binding["roleRef"]["kind"], binding["roleRef"]["name"])
            require(role in [(document["kind"], document["metadata"]["name"]) for document in rbac], f"there is no {role}")


def check_pod_roles(require, values, rbac):
    """The agent may list the pods of the namespaces that the configuration's rules name, and of no others."""
    rules = tomllib.loads(values.get("config", "")).get("rule", [])
    wanted = sorted({rule["namespace"] for rule in rules if "namespace" in rule})
    of = lambda kind: sorted(document["metadata"]["namespace"] for document in rbac if document["kind"] == kind)
    require(of("Role") == of("RoleBinding") == wanted, f"pods are listed in {of('Role')}")
    for document in rbac:
        allows = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
        require(document.get("rules", allows) == allows, f"RBAC allows {document.get('rules')}")
        for subject in document.get("subjects", []):
            require((subject["name"], subject["namespace"]) == ("mpu", NAMESPACE), f"{subject} lists pods")
        require(document.get("roleRef", document["metadata"])["name"] == document["metadata"]["name"], "a binding of another role")


ENGINE, UPGRADE, CLIENT = "mpu-project.github.io/engine", "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/gpu.deploy.client"
GPU = {"nvidia.com/gpu.present": "true"}
# Labels of a node, and whether the agent and the plugin are there, by the chart's engine: auto, module, notify.
NODES = [
    ({}, "yes yes no", "yes no yes"),
    ({ENGINE: "auto"}, "yes yes yes", "yes yes yes"),
    ({ENGINE: "module"}, "yes yes yes", "no no no"),
    ({ENGINE: "notify"}, "no no no", "yes yes yes"),
    # This is no engine's name: the agent reports it, and the chart's engine applies.
    ({ENGINE: "modul"}, "yes yes no", "yes no yes"),
    ({CLIENT: "true", UPGRADE: "upgrade-done"}, "yes yes no", "yes no yes"),
    # The GPU Operator evicts the driver's clients. The plugin is not one.
    ({CLIENT: "paused-for-driver-upgrade"}, "no no no", "yes no yes"),
    ({CLIENT: "paused-for-mig-change", ENGINE: "module"}, "no no no", "no no no"),
    ({UPGRADE: "pod-restart-required"}, "no no no", "yes no yes"),
    # Jobs may still run, or run again.
    ({UPGRADE: "wait-for-jobs-required"}, "yes yes no", "yes no yes"),
    ({UPGRADE: "validation-required"}, "yes yes no", "yes no yes"),
]


def matches(expression, labels):
    """Whether labels match, as in Kubernetes' selectors: NotIn also matches a missing label."""
    key, operator, values = expression["key"], expression["operator"], expression.get("values", [])
    return {"In": key in labels and labels[key] in values, "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels, "DoesNotExist": key not in labels}[operator]


def check_nodes(require, values, defaults, daemons):
    """Checks which nodes get a DaemonSet's pods. When a node's labels stop matching, the controller deletes its pods."""
    pod = daemons["spec"]["template"]["spec"]
    column = 2 if pod["containers"][0]["name"] == "nri" else 1
    engine = ["auto", "module", "notify"].index(values.get("engine", defaults["engine"]))
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    wanted = values.get("affinity", defaults["affinity"])
    base = {**GPU, "example.com/gpu": ""}
    for row in NODES:
        labels = {**base, **row[0]}
        there = any(all(matches(expression, labels) for expression in term["matchExpressions"]) for term in affinity)
        require(there == (row[column].split()[engine] == "yes"), f"{daemons['metadata']['name']}: a node with {row[0]} has {'a' if there else 'no'} pod")
    alone = [term for term in affinity if all(matches(expression, {}) for expression in term["matchExpressions"])]
    asked = (wanted or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    asked = asked.get("nodeSelectorTerms", [])
    fields = [term["matchFields"] for term in affinity if "matchFields" in term]
    require(all("matchFields" in term for term in alone) or not asked or engine == 2, "a term selects nodes outside the affinity")
    require({json.dumps(field) for field in fields} == {json.dumps(term["matchFields"]) for term in asked if "matchFields" in term},
            f"matchFields are lost: {fields}")
    selector = {**defaults["nodeSelector"], **(values.get("nodeSelector") or {})}
    selector = {key: value for key, value in selector.items() if value is not None}
    require(pod.get("nodeSelector", {}) == selector, f"the node selector is {pod.get('nodeSelector')}, not {selector}")
    kept = {key for key in pod["affinity"] if key != "nodeAffinity"}
    require(kept == {key for key in (wanted or {}) if key != "nodeAffinity"}, f"the affinity has {kept}")


def check_pod(require, values, daemons, speaks):
    """Checks a DaemonSet's pod, its labels and its containers."""
    template = daemons["spec"]["template"]
    pod = template["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    has = template["metadata"]["labels"]
    require(all(has[key] == value for key, value in daemons["spec"]["selector"]["matchLabels"].items()), "the DaemonSet selects other pods")
    require(pod["automountServiceAccountToken"] is False, "a pod has a token")
    require("hostNetwork" not in pod and "hostIPC" not in pod, "a pod is in the host's network or IPC namespace")
    plugin = pod["containers"][0]["name"] == "nri"
    exporter = values.get("metrics", {}).get("enabled", False)
    require(pod.get("hostPID", False) == (plugin or exporter), "hostPID is not set for the exporter and the plugin alone")
    agent = values.get("agent", {})
    # On a node whose /usr is read-only, /usr/src cannot be made: a pod that mounts it never starts there.
    compiles = not (plugin or agent.get("module") or any(agent.get("prebuilt", {}).values()))
    require(("sources" in volumes) == compiles, f"/usr/src is {'not ' * compiles}mounted")
    require(plugin or volumes["modules"]["hostPath"]["type"] == "DirectoryOrCreate",
            "on a node without /lib/modules the pod does not start, and reports no reason")
    asked = {"agent": values.get("gpu", {}).get("privileged", True),
             "metrics": bool(values.get("metrics", {}).get("privileged")), "nri": False}
    require("runtimeClassName" not in pod or values.get("gpu", {}).get("runtimeClassName"), "a pod needs a RuntimeClass")
    tokens = [volume["name"] for volume in pod["volumes"] if "projected" in volume]
    holders = [container["name"] for container in pod["containers"]
               if any(mount["name"] in tokens for mount in container["volumeMounts"])]
    require(holders == (["agent"] if speaks and not plugin else []), f"these have a token: {holders}")
    rollout = daemons["spec"]["updateStrategy"]
    if "updateStrategy" not in values:
        require(rollout["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}, f"an upgrade stops engines: {rollout}")
    for container in pod["containers"]:
        security, name = container["securityContext"], container["name"]
        privileged = asked[name]
        require(security["readOnlyRootFilesystem"] is True, f"{name}: its root file system is writable")
        require(security.get("privileged", False) == privileged, f"{name}: privileged is {not privileged}, the values ask for {privileged}")
        added = security.get("capabilities", {}).get("add", [])
        if not privileged:
            require(security.get("capabilities", {}).get("drop") == ["ALL"], f"{name}: keeps capabilities")
            require(added == ADDED[name], f"{name}: adds {added}")
            require(security.get("allowPrivilegeEscalation") is False or name == "agent", f"{name}: allows privilege escalation")
        check_confined(require, values, template, container)
        # The API server refuses this, but its schema does not.
        unescalated = security.get("allowPrivilegeEscalation") is False
        require(not (unescalated and (privileged or "SYS_ADMIN" in added)), f"{name}: forbids escalation, but is privileged or has SYS_ADMIN")
        for mount in container["volumeMounts"]:
            require(mount["name"] in volumes, f"{name}: {mount['name']} is mounted, but is no volume")
            path = volumes[mount["name"]].get("hostPath", {}).get("path")
            chosen = [(agent.get("prebuilt", {}).get("onNode"), "/usr/lib/mpu/modules")]
            require(path in (None, mount["mountPath"]) or (path, mount["mountPath"]) in chosen, f"{name}: {path} is mounted at {mount['mountPath']}")
            written = {"/run/mpu/nri"} if plugin else {"/sys/module", "/var/lib/mpu", "/run/mpu", "/tmp"}
            require(mount.get("readOnly") or mount["mountPath"] in written, f"{name}: may write {mount['mountPath']}")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            # The kubelet expands no field references in the commands of probes.
            require("$(" not in json.dumps(container.get(probe, {})), f"{name}: {probe} uses a variable")


def check_confined(require, values, template, container):
    """Every container has the administrator's profiles, but an exporter is never unconfined."""
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
    require(security.get("seccompProfile", {}) == named["seccompProfile"], f"{name}: wrong seccomp profile")
    has = security.get("appArmorProfile", {}) == apparmor or noted == words.get(apparmor.get("type"))
    require(has, f"{name}: wrong AppArmor profile")
    require(security.get("seLinuxOptions", {}) == named["seLinuxOptions"], f"{name}: wrong SELinux options")


# Values that the first chart lacked. `helm upgrade --reuse-values` gives a new chart the old one's values only.
NEWER = ["engine", "events", "minReadySeconds", "agent.prebuilt", "metrics.privileged", "networkPolicy.apiServerPorts",
         "networkPolicy.apiServerCIDRs"]


def check_reused():
    """Checks that a release of the oldest chart can be upgraded with its own values."""
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
            fault("--reuse-values", f"makes {has}: objects that older releases lack are on")
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
    """A manifest for users without Helm: the namespace, and the chart with these values."""
    head = (
        f"# MPU on every GPU node, for those without Helm: docs/kubernetes.md. Made from {what}, for Kubernetes 1.30 and\n"
        f"# newer. Replace the image, `mpu:VERSION`, by yours; then kubectl apply -f {name}\n"
    )
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    texts = [yaml.safe_dump(namespace, sort_keys=False)]
    order = ["ServiceAccount", *RBAC, "ConfigMap", "NetworkPolicy", "Service", "DaemonSet"]
    files = {}
    for _, text, document in rendered(values, chart):
        files[text] = min(files.get(text, len(order)), order.index(document["kind"]))
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
    """Checks limits that the schemas lack: a label's value and a Service's name have at most 63 characters, a release's 53."""
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
    """The worker's `modprobe -d DIRNAME mpu` reads DIRNAME/lib/modules, which the image of Dockerfile.modules has in /opt."""
    container = yaml.safe_load((KUBERNETES / "kmm/module.yaml").read_text())["spec"]["moduleLoader"]["container"]
    if container["modprobe"] != {"moduleName": "mpu", "dirName": "/opt"}:
        fault("kmm/module.yaml", f"modprobe has {container['modprobe']}")
    if any(not mapping["containerImage"].endswith(f":{VERSION}") for mapping in container["kernelMappings"]):
        fault("kmm/module.yaml", f"is of another version than {VERSION}")


def check_dockerfiles():
    for file in sorted(KUBERNETES.glob("Dockerfile*")):
        command = [str(TOOLS / "bin/hadolint"), "--no-color", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            fault(file.name, f"hadolint: {done.stdout.strip()}{done.stderr.strip()}")


if len(sys.argv) > 5:
    # A release and a file of values, for the test cluster: the chart does not allow its release.
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
