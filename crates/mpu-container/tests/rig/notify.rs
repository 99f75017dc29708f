//! The notify engine's listener with real container engines, under their own profiles.
//!
//! The notify engine is in this test (`listener.rs`), at a socket of the host. `caller.c` is the calling program.

use crate::container::Container;
use crate::engines::{docker_down, docker_up, image};
use crate::host::{Driver, Host, R550};
use crate::listener::{ENGINE_ERRNO, Engine, build_caller};
use crate::wrapper::{MODES, WRAPPER, configure};

/// The engine's socket by default.
pub const SOCKET: &str = "/run/mpu/notify/listener.sock";
/// The calling program's path on the host and in containers.
pub const CALLER: &str = "/tmp/caller";
/// An RM control, and the request for a terminal's size.
pub const CALLS: &str = "call c020462a 5413";

/// The program's output if an engine answers.
pub fn answered() -> String {
    format!("c020462a {ENGINE_ERRNO}\n5413 {}\n", libc::EBADF)
}

/// The same without an engine.
pub fn unanswered() -> String {
    format!("c020462a {0}\n5413 {0}\n", libc::EBADF)
}

#[test]
fn engine_receives_calls_in_every_mode() {
    let Some(host) = Host::start(Driver::Release(R550, 1)) else { return };
    for (mode, low) in MODES.iter().flat_map(|mode| ["runc", "crun"].map(|low| (*mode, low))) {
        configure(&host, mode, low);
        let words: Vec<&str> = std::iter::once(CALLER).chain(CALLS.split(' ')).collect();
        let container = Container::new(&host, "glibc", &words).env(&["NVIDIA_VISIBLE_DEVICES=0"]);
        build_caller(&host.path(&format!("{}/rootfs{CALLER}", container.folder())));
        let result = container.run(WRAPPER);
        assert!(result.ok && result.out == unanswered(), "{mode} {low}: {}{}", result.out, result.err);
        let engine = Engine::at(&host.path(SOCKET));
        let result = container.run(WRAPPER);
        assert!(result.ok && result.out == answered(), "{mode} {low}: {}{}", result.out, result.err);
        assert_eq!((engine.calls().len(), engine.probes()), (1, 1), "{mode} {low}");
    }
}

#[test]
fn docker_profile_gets_listener() {
    let Some(host) = Host::start(Driver::Release(R550, 1)) else { return };
    docker_up(&host, "");
    build_caller(&host.path(CALLER));
    let engine = Engine::at(&host.path(SOCKET));
    let run = |more: &str| {
        let options = format!("--rm --network none --runtime nvidia --volume {CALLER}:{CALLER} {more}");
        // A container that ends at once can end before its output is copied.
        host.output(&format!("docker run {options} glibc sh -c '{CALLER} {CALLS}; sleep 0.3'"))
    };
    for mode in ["jit-cdi", "legacy"] {
        configure(&host, mode, "/usr/bin/rig-runc");
        for (more, is_intercepted) in [
            ("--env NVIDIA_VISIBLE_DEVICES=0", true),
            ("--env NVIDIA_VISIBLE_DEVICES=0 --user 1000 --security-opt no-new-privileges", true),
            ("--env NVIDIA_VISIBLE_DEVICES=0 --security-opt seccomp=unconfined", true),
            ("--env NVIDIA_VISIBLE_DEVICES=0 --privileged", true),
            ("--env NVIDIA_VISIBLE_DEVICES=0 --env MPU_NOTIFY=off", false),
            ("--env NVIDIA_VISIBLE_DEVICES=0 --pid host", false),
            ("", false),
        ] {
            assert_eq!(run(more), if is_intercepted { answered() } else { unanswered() }, "{mode} {more}");
        }
    }
    let calls_before = engine.calls().len();
    let name = format!("rig-{}-notify", host.init());
    let options = format!(
        "--name {name} --network none --runtime nvidia --volume {CALLER}:{CALLER} --env NVIDIA_VISIBLE_DEVICES=0"
    );
    host.ok(&format!("docker run --detach {options} glibc {CALLER} hold"));
    assert_eq!(host.ok(&format!("docker exec {name} {CALLER} {CALLS}; sleep 0.3")), answered());
    assert_eq!(engine.calls().len(), calls_before + 1);
    let states = engine.containers();
    let [.., first, executed] = states.as_slice() else { panic!("{states:?}") };
    assert_eq!(first["state"]["id"], executed["state"]["id"]);
    // A restart decides anew.
    drop(engine);
    host.ok(&format!("docker restart --time 0 {name}"));
    assert_eq!(host.ok(&format!("docker exec {name} {CALLER} {CALLS}; sleep 0.3")), unanswered());
    host.ok(&format!("docker rm --force {name}"));
    docker_down(&host);
}

#[test]
fn podman_profile_gets_listener() {
    let Some(host) = Host::start(Driver::Release(R550, 1)) else { return };
    image(&host);
    host.ok("podman import --quiet /tmp/image.tar glibc");
    build_caller(&host.path(CALLER));
    let engine = Engine::at(&host.path(SOCKET));
    for low in ["/usr/bin/rig-runc", "/usr/bin/rig-crun"] {
        configure(&host, "jit-cdi", low);
        let options = |more: &str| {
            let own = format!("--network=none --cgroup-parent=/rig-{}-podman --volume {CALLER}:{CALLER}", host.init());
            format!("{own} --runtime /usr/bin/{WRAPPER} --env NVIDIA_VISIBLE_DEVICES=0 {more} glibc {CALLER}")
        };
        for (more, expected) in [
            ("", answered()),
            ("--security-opt no-new-privileges", answered()),
            ("--privileged", answered()),
            ("--env MPU_NOTIFY=off", unanswered()),
            ("--pid host", unanswered()),
        ] {
            let output = host.ok(&format!("podman run --rm {} {CALLS}", options(more)));
            assert_eq!(output, expected, "{low} {more}");
        }
        // A container that starts some time after its creation: until then, crun's connection has no message.
        let name = host.ok(&format!("podman create {} hold", options("--security-opt no-new-privileges")));
        let name = name.trim();
        let before = engine.containers().len();
        host.ok(&format!("podman init {name}; sleep 1; podman start {name}"));
        assert_eq!(host.ok(&format!("podman exec {name} {CALLER} {CALLS}")), answered(), "{low}");
        assert_eq!(engine.containers().len(), before + 2, "{low}");
        host.ok(&format!("podman rm --force --time 0 {name}"));
    }
}
