//! Engines that read CDI files themselves: Docker, podman and containerd give a container the driver's nodes and request
//! nothing of the wrapper. As the engine's runtime, the wrapper adds MPU's listener to such a container, and leaves all others unchanged.

use crate::container::Container;
use crate::engines::{docker_down, docker_up, image};
use crate::host::{Driver, Host, R550};
use crate::listener::{Engine, build_caller};
use crate::notify::{CALLER, CALLS, SOCKET, answered, unanswered};
use crate::wrapper::{WRAPPER, configure};

/// How an engine names every GPU of the host.
const ALL: &str = "--device nvidia.com/gpu=all";

/// Hosts of this Debian release, and of the next one.
const STABLE: Driver = Driver::Release(R550, 1);
const NEWEST: Driver = Driver::Newest(R550, 1);

/// A host whose CDI files describe its GPU, with the calling program.
fn described(driver: Driver, low: &str) -> Option<Host> {
    let host = Host::start(driver)?;
    host.ok("nvidia-ctk cdi generate --output /etc/cdi/nvidia.yaml");
    configure(&host, "auto", low);
    build_caller(&host.path(CALLER));
    Some(host)
}

#[test]
fn docker_cdi_container_reaches_engine() {
    let Some(host) = described(STABLE, "/usr/bin/rig-runc") else { return };
    docker_up(&host, "--set-as-default");
    let engine = Engine::at(&host.path(SOCKET));
    let run = |more: &str| {
        let options = format!("--rm --network none --volume {CALLER}:{CALLER} {more}");
        // A container that ends at once can end before its output is copied.
        let done = host.sh(&format!("docker run {options} glibc sh -c '{CALLER} {CALLS}; sleep 0.3'"));
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    };
    for (more, is_intercepted) in [
        (ALL, true),
        (&format!("{ALL} --user 1000 --security-opt no-new-privileges"), true),
        (&format!("{ALL} --security-opt seccomp=unconfined"), true),
        // Nodes that an administrator gives by hand, one under another name.
        ("--device /dev/nvidia0 --device /dev/nvidiactl:/dev/control", true),
        // A privileged container gets every node of the host.
        ("--privileged", true),
        (&format!("{ALL} --env MPU_NOTIFY=off"), false),
        (&format!("{ALL} --pid host"), false),
        (&format!("{ALL} --runtime rig"), false),
        ("", false),
        ("--env NVIDIA_VISIBLE_DEVICES=void", false),
    ] {
        assert_eq!(run(more), if is_intercepted { answered() } else { unanswered() }, "{more}");
    }
    assert_eq!(engine.calls().len(), 5);
    docker_down(&host);
}

#[test]
fn podman_cdi_container_reaches_engine() {
    for low in ["/usr/bin/rig-runc", "/usr/bin/rig-crun"] {
        let Some(host) = described(STABLE, low) else { return };
        image(&host);
        host.ok("podman import --quiet /tmp/image.tar glibc");
        let engine = Engine::at(&host.path(SOCKET));
        for (more, is_intercepted) in [(ALL, true), (&format!("{ALL} --pid host"), false), ("", false)] {
            let own = format!("--network=none --cgroup-parent=/rig-{}-podman --volume {CALLER}:{CALLER}", host.init());
            let options = format!("--rm {own} --runtime /usr/bin/{WRAPPER} {more}");
            let output = host.ok(&format!("podman run {options} glibc {CALLER} {CALLS}"));
            assert_eq!(output, if is_intercepted { answered() } else { unanswered() }, "{low} {more}");
        }
        assert_eq!(engine.calls().len(), 1, "{low}");
    }
}

#[test]
fn containerd_cdi_container_reaches_engine() {
    let Some(host) = described(NEWEST, "/usr/bin/rig-runc") else { return };
    host.write("/etc/containerd/config.toml", "version = 3\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n");
    host.ok("containerd > /tmp/containerd.log 2>&1 & for i in $(seq 200); do ctr version > /dev/null 2>&1 && exit; sleep 0.1; done; \
             cat /tmp/containerd.log >&2; exit 1");
    let engine = Engine::at(&host.path(SOCKET));
    for (number, (more, is_intercepted)) in
        [(ALL.to_owned(), true), (format!("{ALL} --seccomp"), true), ("--seccomp".to_owned(), false)].iter().enumerate()
    {
        let container = Container::new(&host, "glibc", &[]);
        let rootfs = format!("{}/rootfs", container.folder());
        build_caller(&host.path(&format!("{rootfs}{CALLER}")));
        let cgroup = format!("/rig-{}-ctr-{number}", host.init());
        let output = host.ok(&format!(
            "ctr run --rm --runc-binary /usr/bin/{WRAPPER} --cgroup {cgroup} {more} --rootfs {rootfs} rig-{number} {CALLER} {CALLS}"
        ));
        assert_eq!(output, if *is_intercepted { answered() } else { unanswered() }, "{more}");
    }
    assert_eq!(engine.calls().len(), 2);
}

/// Without a node of the driver, the configuration stays the same byte for byte, although an engine listens.
#[test]
fn config_without_nodes_is_unchanged() {
    let Some(host) = described(STABLE, "/usr/bin/runc") else { return };
    let container = Container::new(&host, "glibc", &["/bin/true"]);
    let bundle = container.folder();
    // Unlike this program's own output: spaces, escapes, a number with a superfluous zero.
    let text = container.config.to_string().replacen('{', "{ \"x\": 1.500, \"\\u0079\": \"\\u00e9\",  ", 1);
    host.write(&format!("{bundle}/config.json"), &text);
    let engine = Engine::at(&host.path(SOCKET));
    let name = format!("rig-{}-bytes", host.init());
    host.ok(&format!("{WRAPPER} create --bundle {bundle} {name} > /dev/null && {WRAPPER} delete --force {name}"));
    let after = std::fs::read_to_string(host.path(&format!("{bundle}/config.json"))).expect("config.json");
    assert_eq!(after, text);
    assert_eq!(engine.containers().len(), 0);
}
