//! Who gets a listener and who does not, each refusal by its reason; and profiles held to what they said before.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const SOCKET: &str = "/run/x.sock";

/// What a profile does with a call: every action that a rule for it names, else the default; runtimes skip rules that name
/// the default. More than one would be libseccomp's to choose from.
fn actions(profile: &Value, name: &str, request: u32) -> BTreeSet<String> {
    let holds = |condition: &Value| {
        let number = |key: &str| condition[key].as_u64().expect("a number");
        assert_eq!((number("index"), condition["op"].as_str()), (1, Some("SCMP_CMP_MASKED_EQ")));
        u64::from(request) & number("value") == number("valueTwo")
    };
    let rules = profile["syscalls"].as_array().map(Vec::as_slice).unwrap_or_default();
    let counts = rules.iter().filter(|rule| rule["action"] != profile["defaultAction"]);
    let of_it = counts.filter(|rule| rule["names"].as_array().expect("names").contains(&json!(name)));
    let matching = of_it.filter(|rule| rule["args"].as_array().is_none_or(|all| all.iter().all(holds)));
    let found: BTreeSet<String> = matching.map(|rule| rule["action"].as_str().expect("one").to_owned()).collect();
    match found.is_empty() {
        true => [profile["defaultAction"].as_str().expect("one").to_owned()].into(),
        false => found,
    }
}

fn is_told(request: u32) -> bool {
    [0x0020_002a, 0x0010_00d3].contains(&(request & 0x3fff_00ff))
}

fn check_unchanged_except_notified(before: &Value, after: &Value, request: u32) {
    for name in ["ioctl", "read", "ptrace", "openat"] {
        let expected = match name == "ioctl" && is_told(request) {
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
    let usual = json!({"names": ["ioctl", "read"], "action": "SCMP_ACT_ALLOW", "args": []});
    for (default, rules) in [
        ("SCMP_ACT_ERRNO", json!([usual, {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "args": null}])),
        (
            "SCMP_ACT_KILL",
            json!([{"names": ["ioctl"], "action": "SCMP_ACT_LOG"}, {"names": ["read"], "action": "SCMP_ACT_ALLOW"}]),
        ),
        ("SCMP_ACT_LOG", json!([usual])),
        ("SCMP_ACT_ALLOW", json!([usual])),
        ("SCMP_ACT_ALLOW", json!([{"names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}])),
        ("SCMP_ACT_ALLOW", Value::Null),
        ("SCMP_ACT_ERRNO", json!([usual, usual, {"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"}])),
    ] {
        let mut before =
            json!({"x-first": 1.50, "defaultAction": default, "syscalls": rules, "flags": ["SECCOMP_FILTER_FLAG_LOG"]});
        before["architectures"] = json!(["SCMP_ARCH_X86_64"]);
        let after = profile::edited(&before, SOCKET).expect("a usual one");
        for request in REQUESTS {
            check_unchanged_except_notified(&before, &after, request);
        }
        let rules = after["syscalls"].as_array().unwrap();
        assert!(rules.iter().all(|rule| !rule["names"].as_array().unwrap().is_empty()), "{after}");
        for kept in ["x-first", "defaultAction", "flags", "architectures"] {
            assert_eq!(after[kept], before[kept]);
        }
        assert_eq!((&after["listenerPath"], &after["listenerMetadata"]), (&json!(SOCKET), &json!("mpu")));
        // Once is enough; and the same words with another engine's socket are another engine's.
        assert!(matches!(profile::edited(&after, SOCKET), Err(Without::Already)));
        assert!(matches!(profile::edited(&after, "/run/y.sock"), Err(Without::Listener)));
    }
}

#[test]
fn minimal_profile_allows_other_calls() {
    for (architecture, known) in [("x86_64", "SCMP_ARCH_X86"), ("aarch64", "SCMP_ARCH_ARM")] {
        let made = profile::minimal(architecture, SOCKET).unwrap();
        assert!(made["architectures"].as_array().unwrap().contains(&json!(known)));
        for request in REQUESTS {
            check_unchanged_except_notified(&json!({"defaultAction": "SCMP_ACT_ALLOW"}), &made, request);
        }
    }
    assert!(matches!(profile::minimal("pdp11", SOCKET), Err(Without::Architecture(_))));
}

#[test]
fn unsplittable_profile_is_refused_with_reason() {
    let rule = |rule: Value| json!({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [rule]});
    let ioctl = |more: (&str, Value)| {
        let mut base = json!({"names": ["ioctl"], "action": "SCMP_ACT_ALLOW"});
        base[more.0] = more.1;
        rule(base)
    };
    for (profile, says) in [
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
        let said = profile::edited(&profile, SOCKET).expect_err("refused").to_string();
        assert!(said.contains(says), "{said}: {profile}");
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

    /// The outcome in words; a container that gets no listener is not changed.
    fn says(&self) -> String {
        let mut tree = self.spec.clone();
        match listen(&mut tree, &self.config) {
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
fn policy_decides_and_container_where_it_may() {
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
            assert_eq!(case.says() == "listens", listening.contains(&policy), "{env:?} {policy:?}: {}", case.says());
        }
    }
    case.config.policy = Off;
    assert!(case.says().contains("mpu.notify of config.toml is off"));
}

#[test]
fn only_containers_with_device_and_pids_of_their_own_listen() {
    let mut case = Case::new();
    let theirs = case.dir.path().join("pidns");
    for (namespaces, says) in [
        (json!([{"type": "pid", "path": ""}]), "listens"),
        (json!([{"type": "pid", "path": "/proc/self/exe"}]), "listens"),
        (json!([{"type": "pid", "path": theirs}]), "cannot look at its PID namespace"),
        (json!([{"type": "pid", "path": 7}]), "linux.namespaces.path of its config.json is not a text"),
        (json!([{"type": "mount"}]), "no PID namespace of its own"),
        (json!(null), "no PID namespace of its own"),
    ] {
        case.spec["linux"]["namespaces"] = namespaces;
        assert!(case.says().contains(says), "{says}: {}", case.says());
    }
    // Where this test is in the init namespace itself, as on any host outside a container, that one is refused by path.
    let own = std::fs::metadata("/proc/self/ns/pid").unwrap().ino() == INIT_PID_NAMESPACE;
    case.spec["linux"]["namespaces"] = json!([{"type": "pid", "path": "/proc/self/ns/pid"}]);
    assert_eq!(case.says(), if own { "it has no PID namespace of its own" } else { "listens" });
}

/// Whether hooks or the administrator put them there, and whatever else is called nvidia.
#[test]
fn drivers_nodes_are_known_in_specification() {
    let node = |path: &str, major: i64| json!({"devices": [{"path": path, "type": "c", "major": major, "minor": 1}]});
    let mount = |source: &str| json!({"mounts": [{"destination": "/x", "type": "bind", "source": source}]});
    for (holds, gets) in [
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
        case.spec["linux"]["devices"] = holds["devices"].clone();
        case.spec["mounts"] = holds["mounts"].clone();
        assert_eq!(case.says(), if gets { "listens" } else { "it gets no device of the driver" }, "{holds}");
    }
}

#[test]
fn container_with_fuse_could_hold_up_engine() {
    let node = json!({"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229});
    let rule = |access: &str| json!({"allow": true, "type": "c", "major": 10, "minor": 229, "access": access});
    let make_any = json!({"allow": true, "type": "c", "major": -1, "minor": -1, "access": "m"});
    let all = json!({"allow": true, "access": "rwm"});
    for (devices, rules, says) in [
        (json!([]), json!([make_any]), "listens"),
        (json!([node]), json!([rule("rwm")]), "it is given /dev/fuse"),
        (json!([node]), json!(null), "it is given /dev/fuse"),
        (json!([]), json!([make_any, rule("rw")]), "it is given /dev/fuse"),
        (json!([]), json!([rule("m")]), "listens"),
        (json!([]), json!([{"allow": false, "access": "rwm"}]), "listens"),
        // By numbers that stand for more than this one.
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
        assert!(case.says().contains(says), "{says}: {shown}");
    }
}

#[test]
fn missing_engine_leaves_container_unchanged() {
    let mut case = Case::new();
    std::fs::write(case.dir.path().join("retired"), "").unwrap();
    assert!(case.says().ends_with("takes no new container"), "{}", case.says());
    std::fs::remove_file(case.dir.path().join("retired")).unwrap();
    assert_eq!(case.says(), "listens");
    // A queue that no process empties: the call comes back soon and the container starts.
    rustix::net::listen(case.listener.as_ref().unwrap(), 0).unwrap();
    let began = std::time::Instant::now();
    assert!(case.says().starts_with("no engine listens at /"), "{}", case.says());
    assert!(began.elapsed() < Duration::from_secs(10));
    case.listener = None;
    assert!(case.says().starts_with("no engine listens at /"), "the socket's file is there, no process behind it");
    std::fs::remove_file(&case.config.socket).unwrap();
    assert!(case.says().starts_with("no engine listens at /"));
    std::fs::write(&case.config.socket, "").unwrap();
    assert!(case.says().starts_with("no engine listens at /"));
}

#[test]
fn malformed_specifications_are_left_alone() {
    let mut case = Case::new();
    for seccomp in [json!(7), json!({}), json!({"defaultAction": null})] {
        case.spec["linux"]["seccomp"] = seccomp;
        assert!(case.says().contains("of its config.json is not"), "{}", case.says());
    }
    case.spec["linux"]["seccomp"] = Value::Null;
    assert_eq!(case.says(), "listens");
    case.config.policy = NotifyPolicy::Always;
    let mount = json!([{"source": "/dev/nvidia0"}]);
    for mut spec in [json!({}), json!({"linux": [], "process": 1}), json!({"linux": {"namespaces": {"type": "pid"}}})] {
        case.spec = spec.clone();
        assert_eq!(case.says(), "it gets no device of the driver");
        spec["mounts"] = mount.clone();
        case.spec = spec;
        assert_eq!(case.says(), "it has no PID namespace of its own");
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
    fn whatever_profile_it_is_split_soundly_or_left(profile in any_profile(), request: u32, told: bool) {
        let request = if told { request & !0x3fff_00ff | 0x0020_002a } else { request };
        if let Ok(after) = profile::edited(&profile, SOCKET) {
            check_unchanged_except_notified(&profile, &after, request);
        }
    }
}
