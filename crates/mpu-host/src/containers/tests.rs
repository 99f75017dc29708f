//! Cgroup lines of each runtime: the writer, the line, and the expected layers.

use super::*;
use crate::host::fake::FakeHost;

/// Three long ids; `ID1` and so on stand for them in the rows. [`filled`] has the other placeholders.
const IDS: [&str; 3] = [
    "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90",
    "0f9e8d7c6b5a493827160f9e8d7c6b5a493827160f9e8d7c6b5a493827160f9e",
    "123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0",
];
const UID: &str = "2ca4a155-3599-498d-bb9d-4446693fa3ea";
const STATIC: &str = "8d9a0f6f2f0d5c0b8f6a9f4a5d9c1e37";

/// The writer, the line, and the layers, outermost first: `runtime id`, behind ` pod ` the pod's uid.
const LINES: &[(&str, &str, &str)] = &[
    // Docker
    ("systemd, v2", "0::/system.slice/docker-ID1.scope", "docker ID1"),
    ("systemd, v1", "4:memory:/system.slice/docker-ID1.scope", "docker ID1"),
    ("cgroupfs, v1", "12:pids:/docker/ID1", "docker ID1"),
    ("cgroupfs, v2", "0::/docker/ID1", "docker ID1"),
    ("a cgroup parent of its own", "0::/gpu.slice/gpu-jobs.slice/docker-ID1.scope", "docker ID1"),
    ("a cgroupfs parent of its own", "9:devices:/jobs/ID1", "unknown ID1"),
    ("rootless, v2", "0::ROOTLESS/user.slice/docker-ID1.scope", "docker ID1 user 1000"),
    ("rootless, older", "0::ROOTLESS/docker.service/docker/ID1", "docker ID1 user 1000"),
    ("processes below the scope", "0::/system.slice/docker-ID1.scope/init", "docker ID1"),
    ("systemd in it, v1", "1:name=systemd:/docker/ID1/system.slice/sshd.service", "docker ID1"),
    ("GitHub's runner", "5:cpu:/actions_job/ID1", "docker ID1"),
    ("Amazon ECS, v1", "8:memory:/ecs/0123456789abcdef0123456789abcdef/ID1", "unknown ID1"),
    (
        "Amazon ECS, v2",
        "0::/ecstasks.slice/ecstasks-0123456789abcdef0123456789abcdef.slice/docker-ID1.scope",
        "docker ID1",
    ),
    // Kubernetes
    ("containerd, systemd, burstable", "0::BURST/cri-containerd-ID1.scope", "containerd ID1 pod UID"),
    ("containerd, systemd, best effort", "0::EFFORT/cri-containerd-ID1.scope", "containerd ID1 pod UID"),
    (
        "containerd, systemd, guaranteed",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/cri-containerd-ID1.scope",
        "containerd ID1 pod UID",
    ),
    ("containerd, systemd, v1", "11:devices:BURST/cri-containerd-ID1.scope", "containerd ID1 pod UID"),
    ("containerd, cgroupfs, burstable", "7:cpuset:/kubepods/burstable/podUID/ID1", "unknown ID1 pod UID"),
    ("containerd, cgroupfs, guaranteed", "7:cpuset:/kubepods/podUID/ID1", "unknown ID1 pod UID"),
    ("containerd, cgroupfs, v2", "0::/kubepods/besteffort/podUID/ID1", "unknown ID1 pod UID"),
    (
        "containerd cgroupfs, kubelet systemd",
        "0::/system.slice/containerd.service/kubepods-burstable-podU_I_D.slice:cri-containerd:ID1",
        "containerd ID1 pod UID",
    ),
    ("the same, at the root", "3:cpu:/kubepods-podU_I_D.slice:cri-containerd:ID1", "containerd ID1 pod UID"),
    (
        "a static pod",
        "0::/kubepods.slice/kubepods-podSTATIC.slice/cri-containerd-ID1.scope",
        "containerd ID1 pod STATIC",
    ),
    ("a static pod, cgroupfs", "2:cpu:/kubepods/burstable/podSTATIC/ID1", "unknown ID1 pod STATIC"),
    (
        "kubelet with a cgroup root",
        "0::/e.slice/e-kubepods.slice/e-kubepods-podU_I_D.slice/cri-containerd-ID1.scope",
        "containerd ID1 pod UID",
    ),
    ("CRI-O, systemd", "0::BURST/crio-ID1.scope", "crio ID1 pod UID"),
    (
        "CRI-O, crun's inner group",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-ID1.scope/container",
        "crio ID1 pod UID",
    ),
    ("CRI-O, cgroupfs", "6:blkio:/kubepods/burstable/podUID/crio-ID1", "crio ID1 pod UID"),
    ("CRI-O's monitor", "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-conmon-ID1.scope", ""),
    ("dockershim, systemd", "8:memory:EFFORT/docker-ID1.scope", "docker ID1 pod UID"),
    ("dockershim, cgroupfs", "8:memory:/kubepods/besteffort/podUID/ID1", "unknown ID1 pod UID"),
    ("a pod's own group", "0::/kubepods.slice/kubepods-podU_I_D.slice", ""),
    (
        "seen from a cgroup namespace",
        "0::/../../kubepods-burstable-podU_I_D.slice/cri-containerd-ID1.scope",
        "containerd ID1 pod UID",
    ),
    ("seen from a pod's cgroup namespace", "0::/../cri-containerd-ID1.scope", "containerd ID1"),
    // containerd without Kubernetes
    ("nerdctl, systemd", "0::/system.slice/nerdctl-ID1.scope", "containerd ID1"),
    ("nerdctl, rootless", "0::ROOTLESS/user.slice/nerdctl-ID1.scope", "containerd ID1 user 1000"),
    ("nerdctl, cgroupfs", "0::/default/ID1", "unknown ID1"),
    // Podman
    ("systemd", "0::/machine.slice/libpod-ID1.scope", "podman ID1"),
    ("crun's inner group", "0::/machine.slice/libpod-ID1.scope/container", "podman ID1"),
    ("in a pod", "0::/machine.slice/machine-libpod_pod_ID2.slice/libpod-ID1.scope", "podman ID1"),
    ("rootless", "0::ROOTLESS/user.slice/libpod-ID1.scope", "podman ID1 user 1000"),
    (
        "rootless, in a pod",
        "0::ROOTLESS/user.slice/user-libpod_pod_ID2.slice/libpod-ID1.scope/container",
        "podman ID1 user 1000",
    ),
    ("cgroupfs", "10:freezer:/libpod_parent/libpod-ID1", "podman ID1"),
    ("a systemd service, split", "0::/system.slice/web.service/libpod-payload-ID1", "podman ID1"),
    ("its monitor", "0::/machine.slice/libpod-conmon-ID1.scope", ""),
    // LXC, nspawn, and runtimes by hand
    ("LXC and Incus", "0::/lxc.payload.gpu-box", "lxc gpu-box"),
    ("an Incus project", "0::/lxc.payload.team_gpu-box/system.slice/cron.service", "lxc team_gpu-box"),
    ("LXC 3", "0::/lxc.payload/gpu-box", "lxc gpu-box"),
    ("LXC, v1", "4:memory:/lxc/gpu-box", "lxc gpu-box"),
    ("Proxmox", "0::/lxc/101/ns/system.slice/cron.service", "lxc 101"),
    ("LXC's monitor", "0::/lxc.monitor.gpu-box", ""),
    ("nspawn, by machinectl", "0::/machine.slice/systemd-nspawn@gpu\\x2dbox.service/payload", "nspawn gpu-box"),
    ("nspawn, by hand", "0::/machine.slice/machine-gpu\\x2dbox.scope/payload", "nspawn gpu-box"),
    ("libvirt's LXC", "0::/machine.slice/machine-lxc\\x2d4242\\x2dbox.scope", "lxc lxc-4242-box"),
    ("a virtual machine", "0::/machine.slice/machine-qemu\\x2d1\\x2dwin.scope/libvirt/emulator", ""),
    ("runc, systemd", "0::/system.slice/runc-train.scope", "runc train"),
    ("crun, systemd", "0::/user.slice/user-0.slice/crun-train.scope", "crun train"),
    // One runtime inside another's container
    (
        "kind, systemd",
        "0::/system.slice/docker-ID1.scope/kubelet.slice/KIND/cri-containerd-ID2.scope",
        "docker ID1, containerd ID2 pod UID",
    ),
    ("kind, cgroupfs", "0::/docker/ID1/kubelet/kubepods/burstable/podUID/ID2", "docker ID1, unknown ID2 pod UID"),
    ("minikube with CRI-O in docker", "0::/docker/ID1EFFORT/crio-ID2.scope", "docker ID1, crio ID2 pod UID"),
    ("docker in docker", "0::/system.slice/docker-ID1.scope/docker/ID2", "docker ID1, docker ID2"),
    (
        "docker in a pod",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/cri-containerd-ID1.scope/docker/ID2",
        "containerd ID1 pod UID, docker ID2",
    ),
    ("docker in Incus", "0::/lxc.payload.ci/system.slice/docker-ID1.scope", "lxc ci, docker ID1"),
    ("three deep", "0::/lxc.payload.ci/docker/ID1/docker/ID2", "lxc ci, docker ID1, docker ID2"),
    // No containers
    ("the root", "0::/", ""),
    ("a service", "0::/system.slice/ssh.service", ""),
    ("docker itself", "0::/system.slice/docker.service", ""),
    ("containerd's shim", "0::/system.slice/containerd.service", ""),
    ("a login", "0::/user.slice/user-1000.slice/session-3.scope", ""),
    ("a desktop's program", "0::ROOTLESS/app.slice/app-gnome-firefox-4242.scope", ""),
    ("Slurm", "11:devices:/slurm/uid_1000/job_77/step_0", ""),
    ("an id that is too short", "0::/docker/a1b2c3d4e5f6", ""),
    ("a user's slice that is called a pod", "0::/user.slice/app-podcast.slice", ""),
];

fn filled(text: &str) -> String {
    let dashless = UID.replace('-', "_");
    let slices = [
        ("BURST", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice"),
        ("EFFORT", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice"),
        ("KIND", "kubelet-kubepods.slice/kubelet-kubepods-podU_I_D.slice"),
        ("ROOTLESS", "/user.slice/user-1000.slice/user@1000.service"),
    ];
    let text = slices.iter().fold(text.to_string(), |text, (mark, slices)| text.replace(mark, slices));
    let ids = [("ID1", IDS[0]), ("ID2", IDS[1]), ("U_I_D", &dashless), ("UID", UID), ("STATIC", STATIC)];
    ids.iter().fold(text, |text, (mark, id)| text.replace(mark, id))
}

fn describe(layers: &[path::Layer]) -> String {
    let one = |layer: &path::Layer| {
        let pod = layer.pod.as_ref().map(|uid| format!(" pod {uid}")).unwrap_or_default();
        let user = layer.user.map(|uid| format!(" user {uid}")).unwrap_or_default();
        format!("{} {}{pod}{user}", layer.runtime.name(), layer.id)
    };
    layers.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn lines_of_every_runtime_are_read() {
    assert!(LINES.len() >= 60);
    for (writer, line, expected) in LINES {
        assert_eq!(describe(&path::layers(&filled(line))), filled(expected), "{writer}: {line}");
    }
}

#[test]
fn most_specific_cgroup_hierarchy_wins() {
    let check =
        |text: &str, expected: &str| assert_eq!(describe(&path::layers(&filled(text))), filled(expected), "{text}");
    check("12:pids:/docker/ID1\n1:name=systemd:/docker/ID1\n0::/system.slice/containerd.service\n", "docker ID1");
    check("0::/\n5:devices:/kubepods/podUID/ID1\n", "unknown ID1 pod UID");
    check("4:memory:/jobs/ID1\n1:name=systemd:/system.slice/docker-ID1.scope\n", "docker ID1");
    check("no line\n0\n::\n0::/docker/ID1 (deleted)\n", "docker ID1");
}

#[test]
fn path_separators_and_dots_are_no_names() {
    for evil in ["..", ".", "", "/etc", "a/b", "-rf", "a b", "a\0b", &"x".repeat(300)] {
        assert!(!path::is_name(evil), "{evil:?}");
    }
    assert_eq!(path::in_path("/lxc.payload.../../etc"), []);
    assert_eq!(path::in_path("/machine.slice/machine-..\\x2f..\\x2fetc.scope"), []);
    assert_eq!(path::in_path("/machine.slice/machine-\\xff\\x.scope"), []);
}

fn container(fake: &FakeHost, line: &str) -> Container {
    Look::with_homes(&fake.host()).in_cgroups(&filled(line)).expect("a container")
}

#[test]
fn docker_names_its_container() {
    let fake = FakeHost::in_order();
    let config = r#"{"ID":"x","Name":"/train","Config":{"Labels":{"team":"vision"}}}"#;
    fake.write(&format!("/var/lib/docker/containers/{}/config.v2.json", IDS[0]), config);
    let found = container(&fake, "0::/system.slice/docker-ID1.scope");
    assert_eq!((found.name.as_deref(), &found.pod, found.short_id()), (Some("train"), &None, "a1b2c3d4e5f6"));
    let by_directory = container(&fake, "4:cpu:/jobs/ID1");
    assert_eq!((by_directory.runtime, by_directory.name.as_deref()), (Runtime::Docker, Some("train")));
}

#[test]
fn image_labels_set_no_pod_name() {
    let fake = FakeHost::in_order();
    let config = r#"{"Name":"/train","Config":{"Labels":{"io.kubernetes.container.name":"victim",
        "io.kubernetes.pod.name":"coredns","io.kubernetes.pod.namespace":"kube-system"}}}"#;
    fake.write(&format!("/var/lib/docker/containers/{}/config.v2.json", IDS[0]), config);
    let found = container(&fake, "0::/system.slice/docker-ID1.scope");
    assert_eq!((found.name.as_deref(), found.pod), (Some("train"), None));
}

#[test]
fn rootless_containers_are_read_from_users_home() {
    let fake = FakeHost::in_order();
    fake.write("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000:Ada:/home/ada:/bin/sh\n");
    let at = format!("/home/ada/.local/share/docker/containers/{}/config.v2.json", IDS[0]);
    fake.write(&at, r#"{"Name":"/notebook"}"#);
    let line = "0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-ID1.scope";
    assert_eq!(container(&fake, line).name.as_deref(), Some("notebook"));
    let list = format!(r#"[{{"id":"{}","names":["other"]}},{{"id":"{}","names":["lab"]}}]"#, IDS[1], IDS[0]);
    fake.write("/home/ada/.local/share/containers/storage/overlay-containers/containers.json", &list);
    let line = "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID1.scope";
    assert_eq!(container(&fake, line).name.as_deref(), Some("lab"));
}

#[test]
fn user_container_never_gets_other_users_name() {
    let fake = FakeHost::in_order();
    fake.write("/etc/passwd", "ada:x:1000:1000:Ada:/home/ada:/bin/sh\n");
    let cri = r#"{"annotations":{"io.kubernetes.cri.container-name":"worker","io.kubernetes.cri.sandbox-name":"train-0",
        "io.kubernetes.cri.sandbox-namespace":"vision"}}"#;
    let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json", IDS[0]);
    let userdata = format!("/run/containers/storage/overlay-containers/{}/userdata/config.json", IDS[0]);
    let docker = r#"{"Name":"/theirs","Config":{"Labels":{"io.kubernetes.pod.name":"train-0"}}}"#;
    fake.write(&bundle, cri);
    fake.write(&userdata, cri);
    fake.write(&format!("/var/lib/docker/containers/{}/config.v2.json", IDS[0]), docker);
    fake.write("/run/runc/train/state.json", "{}");
    let homes = format!("/home/ada/.local/share/docker/containers/{}/config.v2.json", IDS[1]);
    fake.write(&homes, r#"{"Name":"/mine","Config":{"Labels":{"io.kubernetes.pod.name":"theirs-0"}}}"#);
    for (unit, name) in [
        ("cri-containerd-ID1.scope", None),
        ("app.slice/docker-ID1.scope", None),
        ("crio-ID1.scope", None),
        ("libpod-ID1.scope", None),
        ("jobs/ID1", None),
        ("kubepods.slice/kubepods-podU_I_D.slice/cri-containerd-ID1.scope", None),
        ("app.slice/docker-ID2.scope", Some("mine")),
        ("train", None),
    ] {
        let found = container(&fake, &format!("0::ROOTLESS/{unit}"));
        assert_eq!((found.user, found.name.as_deref(), &found.pod), (Some(1000), name, &None), "{unit}");
        assert!(found.runtime_name().ends_with("@1000") && found.whole_id().ends_with("@1000"), "{found:?}");
        assert_eq!(
            Look::new(&fake.host()).in_cgroups(&filled(&format!("0::ROOTLESS/{unit}"))).expect("one").name,
            None
        );
    }
    let roots = container(&fake, "0::BURST/cri-containerd-ID1.scope");
    assert_eq!((roots.user, roots.whole_id().as_str(), roots.runtime_name().as_str()), (None, IDS[0], "containerd"));
    assert_eq!(roots.pod.and_then(|pod| pod.namespace).as_deref(), Some("vision"));
}

#[test]
fn runtime_files_are_read_once_within_limit() {
    let fake = FakeHost::in_order();
    let at = |id: &str| format!("/var/lib/docker/containers/{id}/config.v2.json");
    fake.write(&at(IDS[0]), r#"{"Name":"/train"}"#);
    let host = fake.host();
    let look = Look::new(&host);
    let name = |line: &str| look.in_cgroups(&filled(line)).and_then(|container| container.name);
    assert_eq!(name("0::/docker/ID1").as_deref(), Some("train"));
    fake.remove(&at(IDS[0]));
    assert_eq!(name("0::/docker/ID1/inside").as_deref(), Some("train"), "a cgroup in it is no other file");
    let large = |number: usize| format!("{number:064x}");
    for number in 0..12 {
        let text = format!("{{\"Name\":\"/n\",\"x\":\"{}\"}}", "y".repeat((4 << 20) - 64));
        fake.write(&at(&large(number)), &text);
    }
    let named = (0..12).filter(|number| name(&format!("0::/docker/{}", large(*number))).is_some()).count();
    assert_eq!(named, MAX_BYTES / (4 << 20), "as many as there is room for");
}

#[test]
fn very_long_path_is_read_in_part() {
    let fake = FakeHost::in_order();
    fake.write("/run/runc/train/state.json", "{}");
    let look = |path: &str| Look::new(&fake.host()).in_cgroups(&format!("0::{path}\n")).map(|container| container.id);
    assert_eq!(look("/a/train").as_deref(), Some("train"));
    assert_eq!(look(&format!("{}/train", "/a".repeat(1000))), None);
}

#[test]
fn containerd_and_crio_name_container_pod_and_namespace() {
    let line = "0::/kubepods.slice/kubepods-podU_I_D.slice/";
    let check = |path: &str, annotations: &str, unit: &str, runtime: Runtime| {
        let fake = FakeHost::in_order();
        fake.write(&path.replace("ID1", IDS[0]), &format!(r#"{{"annotations":{{{annotations}}}}}"#));
        let found = container(&fake, &format!("{line}{unit}"));
        let pod = found.pod.expect("a pod");
        assert_eq!((found.runtime, found.name.as_deref()), (runtime, Some("worker")));
        assert_eq!(pod.uid.as_deref(), Some(UID));
        assert_eq!((pod.name.as_deref(), pod.namespace.as_deref()), (Some("train-0"), Some("vision")));
    };
    let cri = r#""io.kubernetes.cri.container-name":"worker","io.kubernetes.cri.sandbox-name":"train-0",
        "io.kubernetes.cri.sandbox-namespace":"vision""#;
    let tasks = "io.containerd.runtime.v2.task/k8s.io/ID1/config.json";
    for root in ["/run/containerd", "/run/k3s/containerd"] {
        check(&format!("{root}/{tasks}"), cri, "cri-containerd-ID1.scope", Runtime::Containerd);
    }
    check(&format!("/run/containerd/{tasks}"), cri, "ID1", Runtime::Containerd);
    let crio = r#""io.kubernetes.container.name":"worker","io.kubernetes.pod.name":"train-0",
        "io.kubernetes.pod.namespace":"vision","io.kubernetes.pod.uid":"not the one in the path""#;
    for root in ["/run", "/var/lib"] {
        let userdata = format!("{root}/containers/storage/overlay-containers/ID1/userdata/config.json");
        check(&userdata, crio, "crio-ID1.scope", Runtime::Crio);
    }
}

#[test]
fn nerdctl_and_dockershim_containers_are_named() {
    let fake = FakeHost::in_order();
    let bundle = format!("/run/containerd/io.containerd.runtime.v2.task/default/{}/config.json", IDS[0]);
    fake.write(&bundle, r#"{"annotations":{"nerdctl/name":"train"}}"#);
    assert_eq!(container(&fake, "0::/system.slice/nerdctl-ID1.scope").name.as_deref(), Some("train"));
    let labels = r#"{"Name":"/k8s_worker_train-0_vision_x_0","Config":{"Labels":{"io.kubernetes.container.name":"worker",
        "io.kubernetes.pod.name":"train-0","io.kubernetes.pod.namespace":"vision"}}}"#;
    fake.write(&format!("/var/lib/docker/containers/{}/config.v2.json", IDS[1]), labels);
    let found = container(&fake, "2:cpu:/kubepods/podUID/ID2");
    let pod = found.pod.expect("a pod");
    assert_eq!((found.name.as_deref(), pod.name.as_deref()), (Some("worker"), Some("train-0")));
}

#[test]
fn bare_oci_container_is_found_by_runtime_state() {
    let fake = FakeHost::in_order();
    fake.write("/proc/7/cgroup", "0::/train\n");
    let pid = HostPid::new(7).expect("a PID");
    assert_eq!(of(&fake.host(), pid), None);
    fake.write("/run/crun/train/status", "{}");
    assert_eq!(of(&fake.host(), pid).map(|c| (c.id, c.runtime)), Some(("train".to_string(), Runtime::Crun)));
    fake.write("/run/runc/train/state.json", "{}");
    assert_eq!(of(&fake.host(), pid).map(|c| c.runtime), Some(Runtime::Runc));
}

#[test]
fn nested_container_reports_innermost_and_outermost() {
    let fake = FakeHost::in_order();
    fake.write(&format!("/var/lib/docker/containers/{}/config.v2.json", IDS[0]), r#"{"Name":"/kind-worker"}"#);
    // A user inside may write files of that name for the inner one here; they are not read.
    fake.write(&format!("/var/lib/docker/containers/{}/config.v2.json", IDS[1]), r#"{"Name":"/not this one"}"#);
    let found = container(&fake, "0::/docker/ID1/kubelet/kubepods/burstable/podUID/ID2");
    assert_eq!((found.id.as_str(), found.name.as_deref()), (IDS[1], None));
    assert_eq!(found.pod.as_ref().and_then(|pod| pod.uid.as_deref()), Some(UID));
    let outer = found.outermost();
    assert_eq!((outer.runtime, outer.name.as_deref()), (Runtime::Docker, Some("kind-worker")));
}

#[test]
fn unusable_config_files_yield_no_name() {
    let fake = FakeHost::in_order();
    let at = format!("/var/lib/docker/containers/{}/config.v2.json", IDS[0]);
    let name = |fake: &FakeHost| container(fake, "0::/docker/ID1").name;
    for text in ["", "[]", "{\"Name\":7}", "{\"Name\":\"/\"}", "{\"Name\":", &"[".repeat(1 << 20)] {
        fake.write(&at, text);
        assert_eq!(name(&fake), None);
    }
    fake.write(&at, &format!("{{\"Name\":\"/train\",\"x\":\"{}\"}}", "y".repeat(5 << 20)));
    assert_eq!(name(&fake), None);
    fake.remove(&at);
    let status = std::process::Command::new("mkfifo").arg(fake.host().at(&at)).status().expect("mkfifo");
    assert!(status.success());
    assert_eq!(name(&fake), None, "a pipe without a writer");
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..2048)) {
        let text = String::from_utf8_lossy(&bytes);
        for layer in path::layers(&text) {
            proptest::prop_assert!(path::is_name(&layer.id));
        }
    }

    /// Random combinations of known pieces, to reach every branch.
    #[test]
    fn mixed_known_pieces_do_not_panic(pieces in proptest::collection::vec(0..PIECES.len(), 0..24)) {
        let path: String = pieces.iter().map(|piece| PIECES[*piece]).collect();
        for layer in path::layers(&filled(&format!("0::{path}\n1:cpu:/{path}"))) {
            proptest::prop_assert!(path::is_name(&layer.id), "{path}: {layer:?}");
        }
    }
}

const PIECES: &[&str] = &[
    "/",
    "/",
    "/",
    "docker-",
    "docker",
    ".scope",
    ".slice",
    "cri-containerd-",
    ":cri-containerd:",
    "crio-",
    "libpod-",
    "lxc.payload.",
    "lxc",
    "machine-",
    "systemd-nspawn@",
    ".service",
    "\\x2d",
    "\\x",
    "\\xé",
    "kubepods",
    "-pod",
    "pod",
    "UID",
    "U_I_D",
    "ID1",
    "ID2",
    "runc-",
    "..",
    "user@",
    "1000",
    "é",
    ":",
    " (deleted)",
    "\n0::/",
    "STATIC",
];
