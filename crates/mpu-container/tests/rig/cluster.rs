//! Two nodes with containerd, whose pods are made as by a kubelet: by CRI (`cri.rs`), with devices of a device plugin, or by a RuntimeClass.
//! On one node the notify engine listens.
//!
//! There is no kubelet, scheduler or API server: the test puts pods on nodes, and they share the node's network. Debian's
//! containerd (2.1 in sid) lets no NRI plugin set a seccomp profile, so the wrapper is its default runtime; `crates/mpu/tests/nri` has NRI.

use crate::cri::{Engine as Cri, Pod};
use crate::host::{Driver, Host, R550};
use crate::listener::{Engine, build_caller};
use crate::notify::{CALLER, CALLS, SOCKET, answered, unanswered};
use crate::wrapper::configure;

const IMAGE: &str = "localhost/rig:1";

/// Starts the node's containerd, and waits until it answers.
const CONTAINERD: &str = "containerd > /tmp/containerd.log 2>&1 & echo $! > /tmp/containerd.pid; \
    for i in $(seq 300); do ctr version > /dev/null 2>&1 && exit; sleep 0.1; done; cat /tmp/containerd.log >&2; exit 1";

/// A node whose containerd is configured as by an administrator of a GPU node.
fn node() -> Option<(Host, Cri)> {
    let host = Host::start(Driver::Newest(R550, 1))?;
    host.ok("nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml");
    configure(&host, "auto", "/usr/bin/rig-runc");
    build_caller(&host.path(CALLER));
    // In a container, this machine may not lower oom_score_adj below its own. No network can be made: pods share the node's, and its names.
    for name in ["hosts", "resolv.conf", "hostname"] {
        host.write(&format!("/etc/{name}"), "");
    }
    host.write(
        "/etc/containerd/config.toml",
        &format!(
            "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n\
             [plugins.'io.containerd.cri.v1.runtime']\nrestrict_oom_score_adj = true\n\
             [plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = '{IMAGE}'\n"
        ),
    );
    host.ok("nvidia-ctk runtime configure --runtime=containerd --set-as-default");
    host.ok(CONTAINERD);
    host.ok(include_str!("oci-image.sh"));
    let cri = Cri::at(host.path("/run/containerd/containerd.sock"), format!("/rig-{}-cri", host.init()));
    Some((host, cri))
}

/// Output of a pod's program, from a log in CRI's format (each line begins with a time, a stream and a tag).
fn output((host, cri): &(Host, Cri), pod: &Pod<'_>) -> String {
    let command: Vec<&str> = std::iter::once(CALLER).chain(CALLS.split(' ')).collect();
    let pod = Pod { command: &command, mounts: &[CALLER], ..pod.clone() };
    match cri.run(IMAGE, &pod) {
        Ok((_, log)) => {
            let log = std::fs::read_to_string(host.path(&log)).unwrap_or_default();
            log.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned() + "\n").collect()
        }
        Err(error) => {
            let log = host.sh("tail -n 30 /tmp/containerd.log").stdout;
            panic!("{}: {error}\n{}", pod.name, String::from_utf8_lossy(&log))
        }
    }
}

#[test]
fn pod_calls_reach_engine_of_node() {
    let (Some(first), Some(second)) = (node(), node()) else { return };
    let engine = Engine::at(&first.0.path(SOCKET));
    let by_device = Pod { cdi: &["nvidia.com/gpu=all"], ..Pod::default() };
    let by_class = Pod { runtime_class: "nvidia", env: &[("NVIDIA_VISIBLE_DEVICES", "all")], ..Pod::default() };
    let mut calls = 0;
    for (pod, is_intercepted) in [
        (Pod { name: "device", ..by_device.clone() }, true),
        (Pod { name: "device-confined", confined: true, ..by_device.clone() }, true),
        (Pod { name: "class", ..by_class.clone() }, true),
        (Pod { name: "class-confined", confined: true, ..by_class.clone() }, true),
        // Its PID namespace is its sandbox's, by the path of a process there. (hostPID is the machine's namespace, which a node of this rig is
        // not in: this test cannot check it.)
        (Pod { name: "shared", shares_pids: true, ..by_device.clone() }, true),
        (Pod { name: "off", env: &[("MPU_NOTIFY", "off")], ..by_device.clone() }, false),
        (Pod { name: "no-gpu", confined: true, ..Pod::default() }, false),
    ] {
        assert_eq!(output(&first, &pod), if is_intercepted { answered() } else { unanswered() }, "{}", pod.name);
        calls += usize::from(is_intercepted);
        assert_eq!(engine.calls().len(), calls, "{}", pod.name);
    }
    // Pods of the other node, which has no engine, start as without MPU.
    for pod in [Pod { name: "device", ..by_device }, Pod { name: "class", confined: true, ..by_class }] {
        assert_eq!(output(&second, &pod), unanswered(), "{} on the second node", pod.name);
    }
    assert_eq!(engine.calls().len(), calls);
    let engine = (engine, Engine::at(&second.0.path(SOCKET)));
    let pod = Pod { name: "again", cdi: &["nvidia.com/gpu=all"], confined: true, ..Pod::default() };
    assert_eq!(output(&second, &pod), answered());
    assert_eq!((engine.0.calls().len(), engine.1.calls().len()), (calls, 1));
}

/// The state in the plugin's file for `mpu status`.
fn plugin_state(host: &Host) -> String {
    host.ok("jq --raw-output .standing /run/mpu/nri/*.json 2> /dev/null || echo none").trim().to_owned()
}

/// Waits until the plugin has this state.
fn wait_for_plugin_state(host: &Host, wanted: &str) {
    let began = std::time::Instant::now();
    while plugin_state(host) != wanted {
        let log = host.ok("cat /tmp/nri.log");
        assert!(
            began.elapsed() < std::time::Duration::from_secs(30),
            "it is {} and not {wanted}: {log}",
            plugin_state(host)
        );
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn plugin_reconnects_to_restarted_engine() {
    let Some(program) = std::env::var_os("MPU_PROGRAM") else {
        return println!("skipped: no MPU_PROGRAM; `./x containers` makes it");
    };
    let Some(node) = node() else { return };
    let host = &node.0;
    std::fs::copy(program, host.path("/usr/bin/mpu")).expect("a copy");
    host.ok("mpu nri > /tmp/nri.log 2>&1 &");
    // This containerd lets no plugin set a profile: the plugin reports that, and pods start unchanged.
    wait_for_plugin_state(host, "useless");
    let log = host.ok("cat /tmp/nri.log");
    assert!(
        log.contains("registered with containerd 2.") && log.contains("lets no plugin set a seccomp profile"),
        "{log}"
    );
    let pod = |name| Pod { name, cdi: &["nvidia.com/gpu=all"], confined: true, ..Pod::default() };
    assert_eq!(output(&node, &pod("with-plugin")), unanswered());
    host.ok("kill $(cat /tmp/containerd.pid)");
    wait_for_plugin_state(host, "waits");
    host.ok(CONTAINERD);
    wait_for_plugin_state(host, "useless");
    assert_eq!(output(&node, &pod("after-restart")), unanswered());
    // A killed plugin leaves its file; the next plugin removes it.
    host.ok(
        "dead=$(echo /run/mpu/nri/*.json); kill -9 $(basename $dead .json); sleep 0.2; mpu nri > /tmp/nri.log 2>&1 &
         for i in $(seq 300); do [ -e $dead ] || exit 0; sleep 0.1; done; exit 1",
    );
    wait_for_plugin_state(host, "useless");
}
