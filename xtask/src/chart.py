"""Checks what packaging/kubernetes holds: renders the chart by Helm's own engine, validates what comes out against
Kubernetes' schemas, and holds it to what docs/kubernetes.md promises. Prints a line per finding; none is good."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

KUBERNETES = Path(sys.argv[1]) / "packaging/kubernetes"
CHART = KUBERNETES / "chart/mpu"
VERSION, BLESS, TOOLS = sys.argv[2], sys.argv[3] == "bless", Path(sys.argv[4])
# The oldest release that Chart.yaml allows, some in between, and the newest of the schemas.
RELEASES = ["1.25", "1.28", "1.30", "1.33", "1.37"]
NAMESPACE = "mpu-system"
found = []


def fault(where, what):
    found.append(f"{where}: {what}")


def rendered(values):
    """The objects, by file, as a release named mpu."""
    files = Chart.load(str(CHART)).render(values, name="mpu", namespace=NAMESPACE)
    for path, text in sorted(files.items()):
        if path.endswith(".yaml"):
            for document in yaml.safe_load_all(text):
                if document is not None:
                    yield path, text, document


def check_case(path):
    values = yaml.safe_load(path.read_text())
    where = path.name
    # A file may say since which release its values are for.
    since = re.match(r"# since 1\.(\d+)", path.read_text())
    oldest = int(since[1]) if since else 25
    releases = [release for release in RELEASES if int(release.split(".")[1]) >= oldest]
    # By the oldest release, too: before 1.30 AppArmor was an annotation.
    both = [lint(str(CHART), values, strict=True, kube_version=version) for version in (f"v1.{oldest}.0", "v1.37.0")]
    for message in both[0]["messages"] + both[1]["messages"]:
        if message["severity"] > 1:
            fault(where, f"helm lint: {message['path']}: {message['error']}")
    objects = []
    for file, _, document in rendered(values):
        objects.append(document)
        if document["apiVersion"].startswith("monitoring.coreos.com"):
            check_monitor(where, document)
            continue
        for release in releases:
            # Fields of later releases are what older API servers drop with a warning: strict only where they are known.
            strict = release != "1.25" and release != "1.28"
            try:
                kubernetes_validate.validate(document, release, strict=strict)
            except kubernetes_validate.ValidationError as error:
                fault(where, f"{file}, Kubernetes {release}: {error.message} at {list(error.path)}")
    check_promises(where, values, objects)


def check_monitor(where, monitor):
    """Its schema comes with the Prometheus operator; this is the part that the chart uses."""
    port = monitor["spec"]["endpoints"][0]
    if set(port) != {"port", "path", "interval", "honorLabels", "relabelings"} or port["port"] != "metrics":
        fault(where, f"the ServiceMonitor's endpoint is not what was looked at: {port}")


# What each container adds, unless it is privileged.
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
ADDED = {"agent": ["SYS_MODULE", "SYS_ADMIN"], "metrics": [], "nri": ["SYS_PTRACE"]}


def check_promises(where, values, objects):
    """What docs/kubernetes.md says of privileges, and what the schemas cannot see."""
    of = lambda kind: [document for document in objects if document["kind"] == kind]
    promise = lambda so, what: so or fault(where, what)
    selectors = [daemons["spec"]["selector"]["matchLabels"] for daemons in of("DaemonSet")]
    on = lambda part, default: values.get(part, {}).get("enabled", default)
    promise(len(selectors) == on("agent", True) + on("nri", False), "a DaemonSet too many, or one too few")
    promise(all(selectors.count(one) == 1 for one in selectors), "two DaemonSets have the same pods")
    for daemons in of("DaemonSet"):
        check_pod(promise, values, daemons)
    for kind in ("NetworkPolicy", "Service", "ServiceMonitor"):
        for document in of(kind):
            has = document["spec"].get("podSelector", document["spec"].get("selector", {}))
            promise(has.get("matchLabels", has) in selectors, f"the {kind} selects other pods")


def check_pod(promise, values, daemons):
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
    privileged = values.get("gpu", {}).get("privileged", False) and not plugin
    if "affinity" in values:
        promise(bool(pod.get("affinity")) == bool(values["affinity"]), "a pod has an affinity that nobody asked for")
    for container in pod["containers"]:
        security, name = container["securityContext"], container["name"]
        promise(security["readOnlyRootFilesystem"] is True, f"{name}: its root file system is writable")
        promise(security.get("privileged", False) == privileged, f"{name}: privileged although nobody asked for it")
        added = security.get("capabilities", {}).get("add", [])
        if not privileged:
            promise(security["capabilities"]["drop"] == ["ALL"], f"{name}: keeps capabilities")
            promise(added == ADDED[name], f"{name}: adds {added}")
            noted = template["metadata"].get("annotations", {})
            confined = security.get("appArmorProfile") or noted.get(APPARMOR + name)
            promise(confined or name not in ("agent", "nri") or "securityContext" in values, f"{name}: no AppArmor profile is named")
        # The API server refuses these, beyond its schema.
        unescalated = security.get("allowPrivilegeEscalation") is False
        promise(not (unescalated and (privileged or "SYS_ADMIN" in added)), f"{name}: cannot both escalate and not")
        for mount in container["volumeMounts"]:
            promise(mount["name"] in volumes, f"{name}: mounts {mount['name']}, which is no volume")
            path = volumes[mount["name"]].get("hostPath", {}).get("path")
            promise(path in (None, mount["mountPath"]), f"{name}: {path} is not at its own path")
            written = {"/sys/module", "/var/lib/mpu", "/run/mpu", "/tmp"}
            promise(mount.get("readOnly") or mount["mountPath"] in written, f"{name}: may write {mount['mountPath']}")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            # The kubelet expands no field references in the commands of probes.
            promise("$(" not in json.dumps(container.get(probe, {})), f"{name}: {probe} wants a variable")


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
    def keys(values, schema, at):
        for key, value in values.items():
            inner = schema.get("properties", {}).get(key)
            if inner is None:
                if "properties" in schema:
                    fault("values.schema.json", f"does not know {at}{key}")
            elif isinstance(value, dict):
                keys(value, inner, f"{at}{key}.")

    keys(yaml.safe_load((CHART / "values.yaml").read_text()),
         json.loads((CHART / "values.schema.json").read_text()), "")


def check_manifest():
    """What those without Helm apply: the chart with its defaults, and the namespace."""
    head = (
        "# MPU on every GPU node, for those without Helm: docs/kubernetes.md. Generated from the chart's defaults:\n"
        "# `./x chart --bless`. Replace the image, `mpu:VERSION`, by yours; then kubectl apply -f manifest.yaml\n"
    )
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    texts = [yaml.safe_dump(namespace, sort_keys=False)]
    order = {"ServiceAccount": 0, "NetworkPolicy": 1, "DaemonSet": 2}
    for _, text, document in sorted(rendered({}), key=lambda item: order[item[2]["kind"]]):
        lines = [line for line in text.splitlines() if not re.search(r"managed-by: Helm|helm\.sh/chart:", line)]
        texts.append("\n".join(lines).strip() + "\n")
    wanted = head + "---\n".join(texts)
    path = KUBERNETES / "manifest.yaml"
    if BLESS:
        path.write_text(wanted)
    elif not path.is_file() or path.read_text() != wanted:
        fault("manifest.yaml", "is behind the chart: ./x chart --bless")


def check_versions():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for key in ("version", "appVersion"):
        if chart[key] != VERSION:
            fault("Chart.yaml", f"{key} is {chart[key]}, but MPU is {VERSION}")


def check_dockerfiles():
    for file in sorted(KUBERNETES.glob("Dockerfile*")):
        command = [str(TOOLS / "bin/hadolint"), "--no-color", str(file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            fault(file.name, f"hadolint: {done.stdout.strip()}{done.stderr.strip()}")


check_versions()
check_schema_covers_values()
cases = [path for path in sorted((KUBERNETES / "cases").glob("*.yaml")) if path.name != "refused.yaml"]
for case in cases:
    check_case(case)
check_refused()
check_manifest()
check_dockerfiles()
for line in found:
    print(line)
print(f"{len(cases)} values files, Kubernetes {', '.join(RELEASES)}: {len(found)} findings", file=sys.stderr)
sys.exit(bool(found))
