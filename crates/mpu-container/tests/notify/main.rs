//! Containers with a GPU, made by the wrapper with runc and crun, send the engine's requests to an engine and no others: without a profile,
//! with a profile like those of engines, and with several that exclude an engine.
//!
//! The GPU is a CDI file that gives /dev/null the driver's name. The error of a call shows whether the engine has answered it. The engine is a
//! socket in this test (`listener.rs`). Needs root, runc or crun, busybox and cc; skipped with a note otherwise.

#[path = "../common/bundle.rs"]
mod bundle;
mod host;
#[path = "../common/lifecycle.rs"]
mod lifecycle;
mod listener;
mod profiles;
mod sys;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use bundle::find_in_path;
use host::Host;
use listener::{ENGINE_ERRNO, Engine};
use profiles::{profiles, usual_profile};
use serde_json::{Value, json};

/// An RM control in its usual form, one with another type and direction, the fetch of an event, and the wrapped form.
const REQUESTS: [u64; 4] = [0xc020_462a, 0x0020_ff2a, 0xc010_4652, 0xc010_46d3];

/// Output of `caller call` for these requests: the engine answers its own, all others reach the file.
fn intercepted() -> Vec<String> {
    let of = |request: &u64| if request & 0xff == 0x2a { ENGINE_ERRNO } else { libc::EBADF };
    REQUESTS.iter().map(|request| format!("{request:x} {}", of(request))).collect()
}

fn not_intercepted() -> Vec<String> {
    REQUESTS.iter().map(|request| format!("{request:x} {}", libc::EBADF)).collect()
}

fn call() -> Vec<String> {
    [vec!["call".to_owned()], REQUESTS.iter().map(|request| format!("{request:x}")).collect()].concat()
}

fn as_strs(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

#[test]
fn engine_receives_requests_under_every_profile() {
    Host::each(|host| {
        for (name, profile) in profiles() {
            for no_new_privileges in [true, false] {
                let engine = host.engine();
                let call = call();
                let mut spec = host.spec(&as_strs(&call));
                spec["linux"]["seccomp"] = profile.clone();
                spec["process"]["noNewPrivileges"] = json!(no_new_privileges);
                let result = host.run(&spec, "");
                result.check(&intercepted(), "the notify engine receives the container's calls");
                assert_eq!(engine.calls(), REQUESTS.map(|request| (host.name(), request)), "{} {name}", host.runtime);
                assert_eq!(result.spec["x-unknown"], spec["x-unknown"]);
                let states = engine.containers();
                assert_eq!(states.len(), 1, "{states:?}");
                assert_eq!(states[0]["metadata"], "mpu");
                assert_eq!(states[0]["fds"], json!(["seccompFd"]));
                assert!(engine.probes() == 1, "the wrapper's");
            }
        }
    });
}

#[test]
fn other_ioctls_are_unchanged() {
    Host::each(|host| {
        for (name, profile) in profiles() {
            let engine = host.engine();
            let mut spec = host.spec(&["usual"]);
            spec["linux"]["seccomp"] = profile.clone();
            let with = host.run(&spec, "");
            assert!(
                with.succeeded && with.output.contains("FIONREAD 0 4\nTIOCGWINSZ -1 Inappropriate ioctl"),
                "{name}: {}",
                with.output
            );
            assert_eq!(with.output.contains("keyctl refused"), name != "none", "{}", with.output);
            spec["process"]["env"].as_array_mut().unwrap().push(json!("MPU_NOTIFY=off"));
            assert_eq!(host.run(&spec, "").output, with.output, "{} {name}", host.runtime);
            assert_eq!(engine.calls(), []);
            // All 2²² numbers and sizes through libseccomp's filter: one of them is answered, two continue.
            spec = host.spec(&["sweep"]);
            spec["linux"]["seccomp"] = profile;
            let swept = host.run(&spec, "");
            swept.check(
                &[format!("{}: {}", libc::EBADF, (1 << 22) - 1), format!("{ENGINE_ERRNO}: 1")],
                "receives the container's calls",
            );
            let calls: Vec<u64> = engine.calls().iter().map(|(_, request)| request & 0x3fff_00ff).collect();
            assert_eq!(calls, [0x0010_0052, 0x0010_00d3, 0x0020_002a], "{} {name}", host.runtime);
        }
    });
}

#[test]
fn user_namespace_calls_reach_engine() {
    Host::each(|host| {
        // The container's root is another user on the host, who must reach the root's folder and make folders in it.
        for folder in ["", "bundle"] {
            fs::set_permissions(host.at(folder), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let chown = Command::new("chown").args(["-R", "100000:100000"]).arg(host.at("bundle/rootfs")).status();
        assert!(chown.unwrap().success());
        // No runtime makes nodes in a user namespace: runtimes mount the host's node, which has the same path there.
        let node = host.at("nvidiactl");
        assert!(Command::new("mknod").arg(&node).args(["c", "1", "3"]).status().unwrap().success());
        host.write_cdi_file(json!({"path": node}));
        for (name, profile) in profiles() {
            let engine = host.engine();
            let call = call();
            let mut spec = host.spec(&as_strs(&call));
            spec["linux"]["seccomp"] = profile;
            spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
            let mapping = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
            spec["linux"]["uidMappings"] = mapping.clone();
            spec["linux"]["gidMappings"] = mapping;
            host.run(&spec, "").check(&intercepted(), "receives the container's calls");
            assert_eq!(engine.calls().len(), REQUESTS.len(), "{} {name}", host.runtime);
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_32_bit_program_are_intercepted() {
    Host::each(|host| {
        for (name, profile) in profiles() {
            let engine = host.engine();
            let mut spec = host.spec(&["call32", "c020462a", "5413"]);
            spec["linux"]["seccomp"] = profile;
            let result = host.run(&spec, "");
            if result.output.is_empty() {
                return println!("skipped: this kernel runs no 32-bit programs");
            }
            result.check(
                &[format!("c020462a {ENGINE_ERRNO}"), format!("5413 {}", libc::EBADF)],
                "receives the container's calls",
            );
            assert_eq!(engine.calls(), [(host.name(), 0xc020_462a)], "{} {name}", host.runtime);
        }
    });
}

#[test]
fn excluded_container_starts_with_logged_reason() {
    Host::each(|host| {
        let call = call();
        let plain = |seccomp: Value| {
            let mut spec = host.spec(&as_strs(&call));
            spec["linux"]["seccomp"] = seccomp;
            spec
        };
        let with_env = |variable: &str| {
            let mut spec = plain(Value::Null);
            spec["process"]["env"].as_array_mut().unwrap().push(json!(variable));
            spec
        };
        let mut host_pids = plain(Value::Null);
        host_pids["linux"]["namespaces"].as_array_mut().unwrap().retain(|one| one["type"] != "pid");
        let by_argument = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ERRNO",
            "args": [{"index": 1, "value": 0x5412, "op": "SCMP_CMP_EQ"}]}]});
        for (spec, why) in [
            (with_env("MPU_NOTIFY=off"), "its environment has MPU_NOTIFY=off"),
            (host_pids, "it has no PID namespace of its own"),
            (plain(by_argument), "its seccomp profile decides about ioctl by argument"),
        ] {
            let engine = host.engine();
            let result = host.run(&spec, "");
            result.check(&not_intercepted(), &format!("the container starts without the notify engine: {why}"));
            assert_eq!(result.spec["linux"]["seccomp"], spec["linux"]["seccomp"], "{why}");
            assert!(engine.containers().is_empty() && engine.calls().is_empty());
        }
        // No engine listens: first before one has started, then after it has ended.
        for _ in 0..2 {
            let result = host.run(&plain(usual_profile()), "");
            result.check(
                &not_intercepted(),
                "level=debug msg=\"the container starts without the notify engine: no engine listens at ",
            );
            assert_eq!(result.spec["linux"]["seccomp"], usual_profile());
            drop(host.engine());
        }
        // Another program's listener keeps its own requests.
        let other_engine = Engine::at(&host.at("theirs.sock"));
        let own_engine = host.engine();
        let mut profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": host.at("theirs.sock")});
        profile["syscalls"] = json!([{"names": ["ioctl"], "action": "SCMP_ACT_NOTIFY"}]);
        let result = host.run(&plain(profile), "");
        result.check(&intercepted(), "its seccomp profile has a listener of its own");
        assert_eq!((other_engine.calls().len(), own_engine.calls().len()), (REQUESTS.len(), 0));
    });
}

#[test]
fn notify_policy_is_applied() {
    Host::each(|host| {
        let low = find_in_path(host.runtime).unwrap();
        for (policy, variable, listens) in [
            ("notify = \"off\"", "MPU_NOTIFY=on", false),
            ("notify = \"opt-in\"", "MPU_NOTIFY=", false),
            ("notify = \"opt-in\"", "MPU_NOTIFY=on", true),
            ("notify = \"always\"", "MPU_NOTIFY=off", true),
        ] {
            host.configure(&low, policy);
            let engine = host.engine();
            let mut spec = host.spec(&["call", "c020462a"]);
            spec["process"]["env"].as_array_mut().unwrap().push(json!(variable));
            let result = host.run(&spec, "");
            let error = if listens { ENGINE_ERRNO } else { libc::EBADF };
            result.check(&[format!("c020462a {error}")], "the notify engine");
            assert_eq!(engine.calls().len(), usize::from(listens), "{policy} {variable}");
        }
        host.configure(&low, "notify = \"sometimes\"");
        let result = host.run(&host.spec(&["usual"]), "");
        let message = "config.toml, line 9: mpu.notify: \"sometimes\" is none of on, opt-in, off, always";
        assert!(!result.succeeded && result.output.contains(message), "{}", result.output);
    });
}

/// A program that enters later has its own filter and listener, under the same container's name.
#[test]
fn executed_programs_reach_engine() {
    Host::each(|host| {
        for no_new_privileges in [true, false] {
            let engine = host.engine();
            let mut spec = host.spec(&["hold"]);
            spec["linux"]["seccomp"] = usual_profile();
            spec["process"]["noNewPrivileges"] = json!(no_new_privileges);
            let result = host.run(&spec, "r exec $C caller call c020462a; r exec $C caller call 5413; r kill $C KILL");
            assert!(result.succeeded, "{}", result.output);
            assert!(
                result.output.contains(&format!("c020462a {ENGINE_ERRNO}\n5413 {}\n", libc::EBADF)),
                "{}",
                result.output
            );
            assert_eq!(engine.calls(), [(host.name(), 0xc020_462a)]);
            let states = engine.containers();
            assert_eq!(states.len(), 3, "{states:?}");
            assert!(
                states.iter().all(|state| state["state"]["id"] == host.name() && state["metadata"] == "mpu"),
                "{states:?}"
            );
        }
    });
}

/// An exec into a running container needs the socket (docs/container/notify.md).
#[test]
fn missing_socket_blocks_exec_only() {
    Host::each(|host| {
        let engine = host.engine();
        let gone = format!(
            "rm {:?}; r exec $C caller call 5413 && echo executed; r kill $C KILL",
            host.at("run/listener.sock")
        );
        let result = host.run(&host.spec(&["hold"]), &gone);
        assert!(result.succeeded && !result.output.contains("executed"), "{}", result.output);
        assert!(
            result.output.contains("No such file or directory") || result.output.contains("no such file or directory"),
            "{}",
            result.output
        );
        assert_eq!(engine.containers().len(), 1);
        // A retired engine still takes programs that enter later, but no new container.
        let engine = host.engine();
        let script = "touch ../run/retired; r exec $C caller call c020462a; r kill $C KILL";
        let result = host.run(&host.spec(&["hold"]), script);
        assert!(result.output.contains(&format!("c020462a {ENGINE_ERRNO}")), "{}", result.output);
        assert_eq!(engine.containers().len(), 2);
        host.run(&host.spec(&["call", "c020462a"]), "")
            .check(&[format!("c020462a {}", libc::EBADF)], "takes no new container");
        assert_eq!(engine.containers().len(), 2);
    });
}
