//! Containers with and without a listener, each refusal with its reason. Edited profiles keep the actions of other calls.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SOCKET: &str = "/run/x.sock";

/// A profile's actions for a call: those of the matching rules, else the default. Runtimes skip rules with the default action.
/// If there is more than one, libseccomp chooses.
fn actions(profile: &Value, name: &str, request: u32) -> BTreeSet<String> {
    let condition_holds = |condition: &Value| {
        let number = |key: &str| condition[key].as_u64().expect("a number");
        assert_eq!((number("index"), condition["op"].as_str()), (1, Some("SCMP_CMP_MASKED_EQ")));
        u64::from(request) & number("value") == number("valueTwo")
    };
    let rules = profile["syscalls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let active = rules.iter().filter(|rule| rule["action"] != profile["defaultAction"]);
    let named = active.filter(|rule| rule["names"].as_array().expect("names").contains(&json!(name)));
    let matching = named.filter(|rule| rule["args"].as_array().is_none_or(|all| all.iter().all(condition_holds)));
    let found: BTreeSet<String> = matching.map(|rule| rule["action"].as_str().expect("one").to_owned()).collect();
    match found.is_empty() {
        true => [profile["defaultAction"].as_str().expect("one").to_owned()].into(),
        false => found,
    }
}

fn is_engine_request(request: u32) -> bool {
    [0x0020_002a, 0x0010_00d3].contains(&(request & 0x3fff_00ff))
}

fn check_unchanged_except_notified(before: &Value, after: &Value, request: u32) {
    for name in ["ioctl", "read", "ptrace", "openat"] {
        let expected = match name == "ioctl" && is_engine_request(request) {
            true => ["SCMP_ACT_NOTIFY".to_owned()].into(),
            false => actions(before, name, request),
        };
        assert_eq!(actions(after, name, request), expected, "{name} {request:#x}: {before}");
    }
}

const REQUESTS: [u32; 9] =
    [0xc020_462a, 0x0020_002a, 0xffe0_ff2a | 0x0020_0000, 0xc010_46d3, 0x5413, 0x541b, 0xc020_462b, 0x0010_002a, 0];

#[test]
fn edited_profile_keeps_other_actions() {
    let allow_rule = json!({"names": ["ioctl", "read"], "action": "SCMP_ACT_ALLOW", "args": []});
    for (default, rules) in [
        ("SCMP_ACT_ERRNO", json!([allow_rule, {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "args": null}])),
        (
            "SCMP_ACT_KILL",
            json!([{"names": ["ioctl"], "action": "SCMP_ACT_LOG"}, {"names": ["read"], "action": "SCMP_ACT_ALLOW"}]),
        ),
        ("SCMP_ACT_LOG", json!([allow_rule])),
        ("SCMP_ACT_ALLOW", json!([allow_rule])),
        ("SCMP_ACT_ALLOW", json!([{"names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}])),
        ("SCMP_ACT_ALLOW", Value::Null),
        ("SCMP_ACT_ERRNO", json!([allow_rule, allow_rule, {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"}])),
    ] {
        let mut before =
            json!({"x-first": 1.50, "defaultAction": default, "syscalls": rules, "flags": ["SECCOMP_FILTER_FLAG_LOG"]});
        before["architectures"] = json!(["SCMP_ARCH_X86_64"]);
        let after = profile::with_listener(&before, SOCKET).expect("a usual one");
        for request in REQUESTS {
            check_unchanged_except_notified(&before, &after, request);
        }
        let rules = after["syscalls"].as_array().unwrap();
        assert!(rules.iter().all(|rule| !rule["names"].as_array().unwrap().is_empty()), "{after}");
        for kept in ["x-first", "defaultAction", "flags", "architectures"] {
            assert_eq!(after[kept], before[kept]);
        }
        assert_eq!((&after["listenerPath"], &after["listenerMetadata"]), (&json!(SOCKET), &json!("mpu")));
        // A second edit changes nothing, and another socket belongs to another engine.
        assert!(matches!(profile::with_listener(&after, SOCKET), Err(NoListener::Already)));
        assert!(matches!(profile::with_listener(&after, "/run/y.sock"), Err(NoListener::OtherListener)));
    }
}

#[test]
fn minimal_profile_allows_other_calls() {
    for (architecture, known) in [("x86_64", "SCMP_ARCH_X86"), ("aarch64", "SCMP_ARCH_ARM")] {
        let made = profile::allow_all_with_listener(architecture, SOCKET).unwrap();
        assert!(made["architectures"].as_array().unwrap().contains(&json!(known)));
        for request in REQUESTS {
            check_unchanged_except_notified(&json!({"defaultAction": "SCMP_ACT_ALLOW"}), &made, request);
        }
    }
    assert!(matches!(profile::allow_all_with_listener("pdp11", SOCKET), Err(NoListener::Architecture(_))));
}

#[test]
fn unsplittable_profile_is_refused_with_reason() {
    let rule = |rule: Value| json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule]});
    let ioctl = |more: (&str, Value)| {
        let mut base = json!({"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"});
        base[more.0] = more.1;
        rule(base)
    };
    for (profile, message) in [
        (json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/theirs"}), "a listener of its own"),
        (json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerMetadata": "theirs"}), "a listener of its own"),
        (json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SCMP_X", "SECCOMP_FILTER_FLAG_TSYNC"]}), "FLAG_TSYNC"),
        (rule(json!({"names": ["mount"], "action": "SCMP_ACT_NOTIFY"})), "SCMP_ACT_NOTIFY of its own"),
        (json!({"defaultAction": "SCMP_ACT_NOTIFY"}), "SCMP_ACT_NOTIFY of its own"),
        (ioctl(("args", json!([{"index": 1, "value": 0x5412, "op": "SCMP_CMP_NE"}]))), "ioctl by argument"),
        (ioctl(("action", json!("SCMP_ACT_ERRNO"))), "answers ioctl with SCMP_ACT_ERRNO"),
        (ioctl(("action", json!("SCMP_ACT_KILL_PROCESS"))), "answers ioctl with SCMP_ACT_KILL_PROCESS"),
        (json!({"defaultAction": "SCMP_ACT_ERRNO"}), "answers ioctl with SCMP_ACT_ERRNO"),
        (rule(json!({"names": ["read"], "action": "SCMP_ACT_ALLOW"})), "answers ioctl with SCMP_ACT_ERRNO"),
        (
            json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"}, {"names": ["ioctl"], "action": "SCMP_ACT_LOG"}]}),
            "several rules for ioctl",
        ),
        (json!({}), "linux.seccomp.defaultAction of its config.json is not a text"),
        (json!([]), "linux.seccomp of its config.json is not an object"),
        (
            json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": {}}),
            "linux.seccomp.syscalls of its config.json is not a list",
        ),
        (rule(json!(7)), "linux.seccomp.syscalls of its config.json is not a list of objects"),
        (rule(json!({"names": "ioctl", "action": "SCMP_ACT_ALLOW"})), "linux.seccomp.syscalls.names of its"),
        (rule(json!({"names": ["ioctl"]})), "linux.seccomp.syscalls.action of its"),
        (ioctl(("args", json!(1))), "linux.seccomp.syscalls.args of its"),
    ] {
        let error = profile::with_listener(&profile, SOCKET).expect_err("refused").to_string();
        assert!(error.contains(message), "{error}: {profile}");
    }
}

/// A host's socket, and a container that gets a GPU.
struct Case {
    dir: tempfile::TempDir,
    listener: Option<UnixListener>,
    spec: Value,
    config: Notify,
}

impl Case {
    fn new() -> Case {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("listener.sock");
        Case {
            listener: Some(UnixListener::bind(&socket).unwrap()),
            spec: json!({"process": {"env": ["PATH=/bin"]}, "x": 1.50, "linux": {
                "namespaces": [{"type": "mount"}, {"type": "pid"}], "devices": [{"path": "/dev/nvidiactl", "type": "c"}]}}),
            config: Notify { socket, ..Notify::default() },
            dir,
        }
    }

    /// `listens`, or the error's text. Checks that a container without a listener is unchanged.
    fn outcome(&self) -> String {
        let mut tree = self.spec.clone();
        match add_listener(&mut tree, &self.config) {
            Ok(()) => {
                assert_eq!(tree["linux"]["seccomp"]["listenerPath"], json!(self.config.socket));
                tree["linux"].as_object_mut().unwrap().remove("seccomp");
                let mut before = self.spec.clone();
                before["linux"].as_object_mut().unwrap().remove("seccomp");
                assert_eq!(tree, before, "nothing else");
                "listens".into()
            }
            Err(why) => {
                assert_eq!(tree, self.spec);
                why.to_string()
            }
        }
    }
}

#[test]
fn policy_and_environment_select_listening_containers() {
    use NotifyPolicy::{Always, Off, On, OptIn};
    let mut case = Case::new();
    for (env, listening) in [
        (&["A=1"][..], &[On, Always][..]),
        (&["MPU_NOTIFY=off"], &[Always]),
        (&["MPU_NOTIFY=on"], &[On, OptIn, Always]),
        (&["MPU_NOTIFY=on", "MPU_NOTIFY=off"], &[Always]),
        (&["MPU_NOTIFY=off", "MPU_NOTIFY=on"], &[On, OptIn, Always]),
        (&["MPU_NOTIFY=", "MPU_NOTIFYING=off", "MPU_NOTIFY"], &[On, Always]),
    ] {
        case.spec["process"]["env"] = json!(env);
        for (_, policy) in NotifyPolicy::ALL {
            case.config.policy = policy;
            assert_eq!(
                case.outcome() == "listens",
                listening.contains(&policy),
                "{env:?} {policy:?}: {}",
                case.outcome()
            );
        }
    }
    case.config.policy = Off;
    assert!(case.outcome().contains("mpu.notify of config.toml is off"));
}

#[test]
fn listener_needs_own_pid_namespace() {
    let mut case = Case::new();
    let missing_path = case.dir.path().join("pidns");
    for (namespaces, message) in [
        (json!([{"type": "pid", "path": ""}]), "listens"),
        (json!([{"type": "pid", "path": "/proc/self/exe"}]), "listens"),
        (json!([{"type": "pid", "path": missing_path}]), "cannot look at its PID namespace"),
        (json!([{"type": "pid", "path": 7}]), "linux.namespaces.path of its config.json is not a text"),
        (json!([{"type": "mount"}]), "no PID namespace of its own"),
        (json!(null), "no PID namespace of its own"),
    ] {
        case.spec["linux"]["namespaces"] = namespaces;
        assert!(case.outcome().contains(message), "{message}: {}", case.outcome());
    }
    // Outside a container this test runs in the init namespace, which is refused by path.
    let own = std::fs::metadata("/proc/self/ns/pid").unwrap().ino() == INIT_PID_NAMESPACE;
    case.spec["linux"]["namespaces"] = json!([{"type": "pid", "path": "/proc/self/ns/pid"}]);
    assert_eq!(case.outcome(), if own { "it has no PID namespace of its own" } else { "listens" });
}

#[test]
fn driver_nodes_in_specification_are_recognized() {
    let node = |path: &str, major: i64| json!({"devices": [{"path": path, "type": "c", "major": major, "minor": 1}]});
    let mount = |source: &str| json!({"mounts": [{"destination": "/x", "type": "bind", "source": source}]});
    for (parts, listens) in [
        (node("/dev/nvidia0", 195), true),
        (node("/dev/nvidia-uvm", 511), true),
        (node("/run/driver/dev/nvidia0", 195), true),
        (node("/dev/gpu", 195), true),
        (json!({"devices": [{"path": "/dev/disk", "type": "b", "major": 195, "minor": 1}]}), false),
        (node("/dev/fuse", 10), false),
        (node("/dev/null", -1), false),
        (mount("/dev/nvidiactl"), true),
        (mount("/run/nvidia/driver/dev/nvidia0"), true),
        (mount("/usr/bin/nvidia-smi"), false),
        (mount("/usr/lib/nvidia"), false),
        (mount("/dev"), false),
        (json!({"devices": "/dev/nvidia0", "mounts": [7, {"source": 1}, "/dev/nvidia0"]}), false),
        (json!({"devices": [{"path": ["/dev/nvidia0"]}, null, 195]}), false),
        (json!({}), false),
    ] {
        let mut case = Case::new();
        case.spec["linux"]["devices"] = parts["devices"].clone();
        case.spec["mounts"] = parts["mounts"].clone();
        assert_eq!(case.outcome(), if listens { "listens" } else { "it gets no device of the driver" }, "{parts}");
    }
}

#[test]
fn unprivileged_container_with_fuse_gets_no_listener() {
    let node = json!({"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229});
    let rule = |access: &str| json!({"allow": true, "type": "c", "major": 10, "minor": 229, "access": access});
    let make_any = json!({"allow": true, "type": "c", "major": -1, "minor": -1, "access": "m"});
    let all = json!({"allow": true, "access": "rwm"});
    for (devices, rules, message) in [
        (json!([]), json!([make_any]), "listens"),
        (json!([node]), json!([rule("rwm")]), "it is given /dev/fuse"),
        (json!([node]), json!(null), "it is given /dev/fuse"),
        (json!([]), json!([make_any, rule("rw")]), "it is given /dev/fuse"),
        (json!([]), json!([rule("m")]), "listens"),
        (json!([]), json!([{"allow": false, "access": "rwm"}]), "listens"),
        // A missing number or -1 stands for any.
        (json!([]), json!([{"allow": true, "type": "c", "major": 10, "access": "rwm"}]), "it is given /dev/fuse"),
        (
            json!([]),
            json!([{"allow": true, "type": "c", "major": -1, "minor": 229, "access": "rw"}]),
            "it is given /dev/fuse",
        ),
        (json!([]), json!([{"allow": true, "type": "c", "access": "rwm"}]), "it is given /dev/fuse"),
        (json!([]), json!([{"allow": true, "type": "b", "access": "rwm"}]), "listens"),
        (json!([node]), json!([{"allow": true, "type": "b", "access": "rwm"}]), "it is given /dev/fuse"),
        // Privileged.
        (json!([node]), json!([all]), "listens"),
        (json!([node]), json!([{"allow": true, "type": "a", "major": -1, "minor": -1, "access": "rwm"}]), "listens"),
        (json!([node, {"path": "/dev/pipe", "type": "p"}]), json!(null), "it is given /dev/fuse"),
    ] {
        let mut case = Case::new();
        let gpu = json!({"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255});
        case.spec["linux"]["devices"] = devices.as_array().unwrap().iter().chain([&gpu]).cloned().collect();
        case.spec["linux"]["resources"] = json!({"devices": rules});
        let shown = case.spec.to_string();
        assert!(case.outcome().contains(message), "{message}: {shown}");
    }
}

#[test]
fn missing_engine_leaves_container_unchanged() {
    let mut case = Case::new();
    std::fs::write(case.dir.path().join("retired"), "").unwrap();
    assert!(case.outcome().ends_with("takes no new container"), "{}", case.outcome());
    std::fs::remove_file(case.dir.path().join("retired")).unwrap();
    assert_eq!(case.outcome(), "listens");
    // The connection queue is full: the call returns soon and the container starts.
    rustix::net::listen(case.listener.as_ref().unwrap(), 0).unwrap();
    let began = std::time::Instant::now();
    assert!(case.outcome().starts_with("no engine listens at /"), "{}", case.outcome());
    assert!(began.elapsed() < Duration::from_secs(10));
    case.listener = None;
    assert!(case.outcome().starts_with("no engine listens at /"), "the socket's file is there, no process behind it");
    std::fs::remove_file(&case.config.socket).unwrap();
    assert!(case.outcome().starts_with("no engine listens at /"));
    std::fs::write(&case.config.socket, "").unwrap();
    assert!(case.outcome().starts_with("no engine listens at /"));
}

#[test]
fn malformed_specifications_are_left_alone() {
    let mut case = Case::new();
    for seccomp in [json!(7), json!({}), json!({"defaultAction": null})] {
        case.spec["linux"]["seccomp"] = seccomp;
        assert!(case.outcome().contains("of its config.json is not"), "{}", case.outcome());
    }
    case.spec["linux"]["seccomp"] = Value::Null;
    assert_eq!(case.outcome(), "listens");
    case.config.policy = NotifyPolicy::Always;
    let mount = json!([{"source": "/dev/nvidia0"}]);
    for mut spec in [json!({}), json!({"linux": [], "process": 1}), json!({"linux": {"namespaces": {"type": "pid"}}})] {
        case.spec = spec.clone();
        assert_eq!(case.outcome(), "it gets no device of the driver");
        spec["mounts"] = mount.clone();
        case.spec = spec;
        assert_eq!(case.outcome(), "it has no PID namespace of its own");
    }
}

/// A profile, or something that looks like one.
fn any_profile() -> impl Strategy<Value = Value> {
    let action = prop::sample::select(vec![
        json!("SCMP_ACT_ALLOW"),
        json!("SCMP_ACT_ERRNO"),
        json!("SCMP_ACT_LOG"),
        json!("SCMP_ACT_KILL"),
        json!("SCMP_ACT_NOTIFY"),
        json!(3),
    ]);
    let name = prop::sample::select(vec![json!("ioctl"), json!("read"), json!("ptrace"), json!("openat"), json!(null)]);
    let condition = json!({"index": 1, "value": 0xff, "valueTwo": 0x2a, "op": "SCMP_CMP_MASKED_EQ"});
    let args = prop::sample::select(vec![json!(null), json!([]), json!([condition]), json!("x")]);
    let rule = (prop::collection::vec(name, 0..4), action.clone(), args)
        .prop_map(|(names, action, args)| json!({"names": names, "action": action, "args": args, "comment": "kept"}));
    (action, prop::collection::vec(rule, 0..5))
        .prop_map(|(default, rules)| json!({"defaultAction": default, "syscalls": rules}))
}

proptest! {
    #[test]
    fn arbitrary_profile_is_split_or_unchanged(profile in any_profile(), request: u32, is_control: bool) {
        let request = if is_control { request & !0x3fff_00ff | 0x0020_002a } else { request };
        if let Ok(after) = profile::with_listener(&profile, SOCKET) {
            check_unchanged_except_notified(&profile, &after, request);
        }
    }
}
