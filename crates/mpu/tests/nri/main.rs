//! Runs the executable `mpu nri` with a fake container engine (`engine`). Tests which containers get the listener, what
//! happens to their profiles, and engines that restart, hang, refuse or send malformed messages.

mod engine;
mod plugin;
mod wire;

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use engine::{Connection, Engine};
use plugin::{Plugin, TestDir};
use wire::{Fields, bytes, message, number};

/// An engine that supports everything.
const NEW: (&str, &str) = ("containerd", "v2.3.1");
/// An engine that sends whether a container has a profile, but not its rules.
const V22: (&str, &str) = ("containerd", "v2.2.7");
const CRIO: (&str, &str) = ("cri-o", "1.34.4");

/// A container for `CreateContainer`: the fields that the tests vary.
#[derive(Clone, Default)]
struct TestContainer {
    env: Vec<&'static str>,
    mounts: Vec<&'static str>,
    nodes: Vec<(&'static str, u64)>,
    cdi: Vec<&'static str>,
    host_pids: bool,
    rules: Vec<Vec<u8>>,
    kind: Option<u64>,
    policy: Option<Vec<u8>>,
}

impl TestContainer {
    fn with_gpu() -> TestContainer {
        TestContainer { nodes: vec![("/dev/nvidiactl", 195)], ..TestContainer::default() }
    }

    fn with_policy(policy: Vec<u8>) -> TestContainer {
        TestContainer { policy: Some(policy), ..TestContainer::with_gpu() }
    }

    fn with_kind(kind: u64) -> TestContainer {
        TestContainer { kind: Some(kind), ..TestContainer::with_gpu() }
    }

    fn with_cdi(cdi: &[&'static str]) -> TestContainer {
        TestContainer { cdi: cdi.to_vec(), ..TestContainer::default() }
    }

    fn message(&self) -> Vec<u8> {
        let node = |(path, major): &(&str, u64)| {
            bytes(2, message(&[bytes(1, path), bytes(2, "c"), number(3, *major), number(4, 255)]))
        };
        let mut linux = vec![bytes(1, bytes(1, "mount"))];
        if !self.host_pids {
            linux.push(bytes(1, bytes(1, "pid")));
        }
        linux.extend(self.nodes.iter().map(node));
        linux.push(bytes(3, self.rules.iter().map(|rule| bytes(7, rule)).collect::<Vec<_>>().concat()));
        linux.extend(self.kind.map(|kind| bytes(7, number(1, kind))));
        linux.extend(self.policy.as_ref().map(|policy| bytes(8, policy)));
        let mut all = vec![bytes(1, "0123456789abcdef"), bytes(2, "sandbox"), bytes(3, "worker")];
        all.extend(self.env.iter().map(|entry| bytes(8, entry)));
        all.extend(
            self.mounts.iter().map(|source| bytes(9, message(&[bytes(1, "/in"), bytes(2, "bind"), bytes(3, source)]))),
        );
        all.push(bytes(11, linux.concat()));
        all.extend(self.cdi.iter().map(|name| bytes(20, bytes(1, name))));
        message(&all)
    }
}

fn rule(names: &[&str], action: &str, more: &[Vec<u8>]) -> Vec<u8> {
    let names: Vec<u8> = names.iter().flat_map(|name| bytes(1, name)).collect();
    bytes(7, message(&[names, bytes(2, action), more.concat()]))
}

/// A profile like the engines' default: an allow-list.
fn usual() -> Vec<u8> {
    message(&[
        bytes(1, "SCMP_ACT_ERRNO"),
        bytes(2, number(1, 38)),
        bytes(3, "SCMP_ARCH_X86_64"),
        bytes(4, "SECCOMP_FILTER_FLAG_LOG"),
        rule(&["ioctl", "read"], "SCMP_ACT_ALLOW", &[]),
        rule(
            &["clone"],
            "SCMP_ACT_ALLOW",
            &[bytes(4, message(&[number(2, 0x7e02_0000), bytes(4, "SCMP_CMP_MASKED_EQ")]))],
        ),
        rule(&["clone3"], "SCMP_ACT_ERRNO", &[bytes(3, number(1, 38))]),
    ])
}

/// The profile in an answer.
fn profile(answer: &Fields) -> Option<Fields> {
    let linux = answer.inner(1).inner(6);
    (!linux.is_empty()).then(|| linux.inner(6))
}

#[test]
fn listener_keeps_container_profile() {
    let dir = TestDir::new();
    let engine = Engine::at(&dir.socket());
    let plugin = Plugin::start(&dir, &[]);
    let mut connection = engine.serve(NEW.0, NEW.1);
    let answer = connection.create(&TestContainer::with_policy(usual()).message());
    assert!(answer.all(2).is_empty() && answer.all(3).is_empty(), "no other container is touched");
    let after = profile(&answer).expect("a profile");
    assert_eq!(after.text(1), "SCMP_ACT_ERRNO");
    assert_eq!(after.inner(2).number(1), 38);
    assert_eq!(after.texts(3), ["SCMP_ARCH_X86_64"]);
    assert_eq!(after.texts(4), ["SECCOMP_FILTER_FLAG_LOG"]);
    assert_eq!((after.text(5), after.text(6)), (dir.listener().display().to_string(), "mpu".into()));
    let rules: Vec<Fields> = after.all(7).iter().map(|rule| Fields::of(rule)).collect();
    let of = |name: &str| rules.iter().filter(|rule| rule.texts(1).contains(&name.to_owned())).collect::<Vec<_>>();
    // `ioctl` is allowed by its argument now, but for the three that the engine gets.
    let ioctl = of("ioctl");
    assert!(ioctl.iter().all(|rule| rule.all(4).len() == 1), "one condition for each rule");
    let notified: Vec<_> =
        ioctl.iter().filter(|rule| rule.text(2) == "SCMP_ACT_NOTIFY").map(|rule| rule.inner(4)).collect();
    let notified: Vec<_> = notified.iter().map(|it| (it.number(1), it.number(2), it.number(3), it.text(4))).collect();
    let masked = |request| (1, 0x3fff_00ff, request, "SCMP_CMP_MASKED_EQ".to_owned());
    assert_eq!(notified, [masked(0x0020_002a), masked(0x0010_0052), masked(0x0010_00d3)]);
    assert_eq!(ioctl.iter().filter(|rule| rule.text(2) == "SCMP_ACT_ALLOW").count(), 23);
    // Everything else as it was.
    let [read] = of("read")[..] else { panic!("one rule for read") };
    assert_eq!((read.text(2), read.all(4).len(), read.texts(1)), ("SCMP_ACT_ALLOW".into(), 0, vec!["read".to_owned()]));
    let [clone] = of("clone")[..] else { panic!("one rule for clone") };
    assert_eq!((clone.inner(4).number(2), clone.inner(4).text(4)), (0x7e02_0000, "SCMP_CMP_MASKED_EQ".into()));
    let [clone3] = of("clone3")[..] else { panic!("one rule for clone3") };
    assert_eq!((clone3.text(2), clone3.inner(3).number(1)), ("SCMP_ACT_ERRNO".into(), 38));
    plugin.wait_for_log("container worker of pod default/train (0123456789ab): the notify engine gets its calls", 1);
    assert!(plugin.log().lines().all(|line| line.contains("Z mpu: ")), "each line has its time: {}", plugin.log());
}

#[test]
fn only_eligible_containers_get_listener() {
    let gpu = TestContainer::with_gpu;
    let any = |access: &str| message(&[number(1, 1), bytes(5, access)]);
    let fuse =
        message(&[number(1, 1), bytes(2, "c"), bytes(3, number(1, 10)), bytes(4, number(1, 229)), bytes(5, "rw")]);
    let by_argument = |name: &str| {
        let argument = message(&[number(1, 1), number(2, 0x5412), bytes(4, "SCMP_CMP_NE")]);
        message(&[bytes(1, "SCMP_ACT_ERRNO"), rule(&[name], "SCMP_ACT_ALLOW", &[bytes(4, argument)])])
    };
    let dir = TestDir::new();
    let listener = dir.listener().display().to_string();
    let armed = message(&[
        bytes(1, "SCMP_ACT_ALLOW"),
        bytes(5, &listener),
        bytes(6, "mpu"),
        rule(&["ioctl"], "SCMP_ACT_NOTIFY", &[]),
    ]);
    let allowing = |more: &[Vec<u8>]| message(&[bytes(1, "SCMP_ACT_ALLOW"), more.concat()]);
    let (node, mount) = (("/dev/null", 1), "/usr/bin/nvidia-smi");
    let unknown = "its seccomp profile has fields that this mpu does not know";
    let cases: Vec<((&str, &str), TestContainer, &str)> = vec![
        // Nodes and names, from hooks or the engine.
        (NEW, gpu(), "listens"),
        (NEW, TestContainer { nodes: vec![("/dev/gpu", 195)], ..TestContainer::default() }, "listens"),
        (NEW, TestContainer { mounts: vec!["/dev/nvidia0"], ..TestContainer::default() }, "listens"),
        (NEW, TestContainer::with_cdi(&["nvidia.com/gpu=0"]), "listens"),
        (NEW, TestContainer::with_cdi(&["management.nvidia.com/gpu=all"]), "listens"),
        (NEW, TestContainer::with_cdi(&["notnvidia.com/gpu=0", "vendor.com/nvidia.com=0", ""]), ""),
        (NEW, TestContainer { nodes: vec![node], mounts: vec![mount], ..TestContainer::default() }, ""),
        (NEW, TestContainer::default(), ""),
        // What the container says, and what it is.
        (NEW, TestContainer { env: vec!["MPU_NOTIFY=off"], ..gpu() }, ""),
        (NEW, TestContainer { host_pids: true, ..gpu() }, ""),
        (NEW, TestContainer { rules: vec![fuse.clone()], ..gpu() }, "it is given /dev/fuse"),
        (NEW, TestContainer { rules: vec![fuse, any("rwm")], ..gpu() }, "listens"),
        // Its profile.
        (NEW, TestContainer::with_policy(allowing(&[])), "listens"),
        (NEW, TestContainer::with_policy(by_argument("ioctl")), "its seccomp profile decides about ioctl by argument"),
        (NEW, TestContainer::with_policy(by_argument("read")), "its seccomp profile answers ioctl with SCMP_ACT_ERRNO"),
        (
            NEW,
            TestContainer::with_policy(allowing(&[bytes(5, "/run/theirs.sock")])),
            "its seccomp profile has a listener of its own",
        ),
        // Another plugin of ours was asked before: one is replaced by the next.
        (NEW, TestContainer::with_policy(armed.clone()), ""),
        (NEW, TestContainer::with_policy(Vec::new()), "linux.seccomp.defaultAction of its config.json is not a text"),
        (NEW, TestContainer::with_policy(allowing(&[bytes(99, "later")])), unknown),
        (NEW, TestContainer::with_policy(allowing(&[rule(&["read"], "SCMP_ACT_LOG", &[number(9, 1)])])), unknown),
        (NEW, TestContainer::with_policy(vec![0xff; 9]), unknown),
        // Engines that do not say what a container's profile is: it must not be loosened.
        (V22, TestContainer::with_kind(0), "containerd v2.2.7 does not say which rules its seccomp profile has"),
        (V22, TestContainer::with_kind(2), "does not say which rules"),
        (NEW, TestContainer::with_kind(0), "does not say which rules"),
        (NEW, TestContainer::with_kind(2), "does not say which rules"),
        (NEW, TestContainer::with_kind(1), "listens"),
        (V22, gpu(), "does not say which rules"),
        (V22, TestContainer::with_kind(1), "listens"),
        (V22, TestContainer::default(), ""),
        (CRIO, gpu(), "cri-o 1.34.4 does not say which rules"),
        (CRIO, TestContainer::with_policy(usual()), "listens"),
        (("another", "7"), gpu(), "does not say which rules"),
        // And one that would not do it.
        (
            ("containerd", "2.1.9+ds1"),
            TestContainer::with_kind(1),
            "containerd 2.1.9+ds1 does not let a plugin set a seccomp profile",
        ),
    ];
    let engine = Engine::at(&dir.socket());
    let plugin = Plugin::start(&dir, &[]);
    let mut connected: Option<((&str, &str), Connection)> = None;
    for ((name, version), container, expected) in cases {
        let connection = match &mut connected {
            Some((to, connection)) if *to == (name, version) => connection,
            other => {
                *other = None;
                &mut other.insert(((name, version), engine.serve(name, version))).1
            }
        };
        let before = plugin.log().len();
        let answer = connection.create(&container.message());
        let what = format!("{name} {version} {expected:?}");
        assert_eq!(profile(&answer).is_some(), expected == "listens", "{what}: {}", plugin.log());
        assert!(expected == "listens" || answer.is_empty(), "{what}");
        let output = plugin.log().split_off(before);
        match expected {
            "" => assert_eq!(output, "", "{what}"),
            "listens" => assert!(output.contains("gets its calls"), "{what}: {output}"),
            reason => {
                assert!(
                    output.contains("starts without the notify engine: ") && output.contains(reason),
                    "{what}: {output}"
                )
            }
        }
    }
    let log = plugin.log();
    assert!(
        log.contains("containerd 2.1.9+ds1 lets no plugin set a seccomp profile")
            && log.contains("fix: containerd 2.3")
    );
    assert!(
        log.contains("cri-o 1.34.4 does not say which rules a container's seccomp profile has, so only containers")
    );
}

#[test]
fn policy_option_decides_listener() {
    for (policy, unasked, on, off) in
        [("on", true, true, false), ("opt-in", false, true, false), ("always", true, true, true)]
    {
        let dir = TestDir::new();
        let engine = Engine::at(&dir.socket());
        let _plugin = Plugin::start(&dir, &["--policy", policy]);
        let mut connection = engine.serve(NEW.0, NEW.1);
        for (env, listens) in [(vec![], unasked), (vec!["MPU_NOTIFY=on"], on), (vec!["MPU_NOTIFY=off"], off)] {
            let answer = connection.create(&TestContainer { env: env.clone(), ..TestContainer::with_gpu() }.message());
            assert_eq!(profile(&answer).is_some(), listens, "{policy} {env:?}");
        }
    }
}

#[test]
fn missing_notify_engine_adds_no_listener() {
    let mut dir = TestDir::new();
    let engine = Engine::at(&dir.socket());
    let plugin = Plugin::start(&dir, &[]);
    let mut connection = engine.serve(NEW.0, NEW.1);
    dir.end_notify();
    assert!(connection.create(&TestContainer::with_gpu().message()).is_empty());
    plugin.wait_for_log("starts without the notify engine: no engine listens at ", 1);
    std::fs::write(dir.path().join("retired"), "").expect("written");
    assert!(connection.create(&TestContainer::with_gpu().message()).is_empty());
    plugin.wait_for_log("takes no new container", 1);
}

#[test]
fn plugin_reconnects_to_late_or_restarted_engine() {
    let dir = TestDir::new();
    let mut plugin = Plugin::start(&dir, &[]);
    plugin.wait_for_log("waiting for a container engine at ", 1);
    // A waiting plugin logs that once.
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(plugin.log().lines().count(), 1, "{}", plugin.log());
    for _ in 0..3 {
        let engine = Engine::at(&dir.socket());
        let began = Instant::now();
        let mut connection = engine.serve(NEW.0, NEW.1);
        assert!(began.elapsed() < Duration::from_secs(10), "soon: what is made meanwhile starts without MPU");
        assert!(profile(&connection.create(&TestContainer::with_gpu().message())).is_some());
        drop((connection, engine));
        std::fs::remove_file(dir.socket()).expect("removed");
    }
    plugin.wait_for_log("registered with containerd v2.3.1 as 90-mpu", 3);
    plugin.wait_for_log("the container engine closed the connection; trying again", 3);
    // Told to end while it waits, and, above all, while it is idle in a connection.
    assert_eq!(plugin.terminate(), Some(0));
    let engine = Engine::at(&dir.socket());
    let mut plugin = Plugin::start(&dir, &[]);
    let _connection = engine.serve(NEW.0, NEW.1);
    assert_eq!(plugin.terminate(), Some(0));
}

/// A hung engine accepts no connection. Once its queue is full, a blocking connect would prevent the plugin from
/// ending.
#[test]
fn plugin_with_hung_engine_ends_on_request() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
    let dir = TestDir::new();
    let socket =
        || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(dir.socket()).expect("a path");
    let hung = socket().expect("a socket");
    bind(&hung, &address).and_then(|()| listen(&hung, 0)).expect("bound");
    let filled: Vec<_> = std::iter::repeat_with(|| socket().expect("a socket"))
        .take_while(|client| connect(client, &address) != Err(rustix::io::Errno::AGAIN))
        .collect();
    assert!(!filled.is_empty());
    let mut plugin = Plugin::start(&dir, &[]);
    plugin.wait_for_log("waiting for a container engine at ", 1);
    assert_eq!(plugin.terminate(), Some(0));
}

/// Each of these ends the connection with a reason, and the next connection works.
#[test]
fn plugin_reconnects_after_malformed_engine_messages() {
    type Bad = (&'static str, fn(&mut Connection), &'static str);
    let bad: [Bad; 8] = [
        ("a frame of 4 GiB", |it| it.raw(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]), "announced 4294967295 bytes"),
        ("a frame of no stream, too long", |it| it.raw(&[0, 0, 0, 9, 0, 0x40, 0, 0x0b]), "announced 4194315 bytes"),
        (
            "a message of 4 GiB",
            |it| it.frame(1, &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1, 0]),
            "announced 4294967295 bytes",
        ),
        ("half a frame", |it| it.raw(&[0, 0, 0, 1, 0, 0, 1, 0, 7]), "a part of a message and then nothing"),
        (
            "half a message",
            |it| it.frame(1, &Connection::packed(3, 1, &[0; 64])[..30]),
            "a part of a message and then nothing",
        ),
        ("a request that is none", |it| it.send(1, 3, 1, &[0xff; 40]), "not an NRI message"),
        ("another's answer to the registration", |it| it.send(2, 1, 2, &[0x0a, 0x7f]), "not an NRI message"),
        ("text", |it| it.raw(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"), "announced 791752241 bytes"),
    ];
    let dir = TestDir::new();
    let engine = Engine::at(&dir.socket());
    let plugin = Plugin::start(&dir, &[]);
    for (what, send, expected_line) in bad {
        let mut connection = engine.serve(NEW.0, NEW.1);
        send(&mut connection);
        assert!(connection.is_closed_by_plugin(), "{what}: {}", plugin.log());
        plugin.wait_for_log(expected_line, 1);
    }
    // Unusual but valid: unknown streams and kinds, empty frames, frames of one byte, unknown calls.
    let mut connection = engine.serve(NEW.0, NEW.1);
    connection.frame(0, b"reserved");
    connection.frame(77, &[0; 4096]);
    connection.frame(1, &[]);
    connection.send(1, 3, 3, b"data");
    connection.send(2, 9, 2, b"an answer to nothing");
    for byte in Connection::packed(5, 3, b"slowly") {
        connection.frame(1, &[byte]);
    }
    assert_eq!(connection.call("Nothing", &[]).err(), Some(12));
    assert_eq!(connection.call("Configure", &[0xff]).err(), Some(3));
    assert!(connection.call("StateChange", &[0xff]).is_ok_and(|answer| answer.is_empty()));
    // A container never fails for us, whatever its description is.
    for payload in [&[0xff; 20][..], &[], &bytes(2, bytes(3, [0xff, 0xfe])), &bytes(2, bytes(11, [0x07]))] {
        assert!(connection.call("CreateContainer", payload).is_ok_and(|answer| answer.is_empty()), "{payload:?}");
    }
    assert!(profile(&connection.create(&TestContainer::with_gpu().message())).is_some());
    assert!(connection.call("Shutdown", &[]).is_ok());
    assert!(plugin.peak() < 64 << 10, "{} KiB", plugin.peak());
}

#[test]
fn plugin_retries_refusing_or_silent_engine() {
    let dir = TestDir::new();
    let engine = Engine::at(&dir.socket());
    let mut plugin = Plugin::start(&dir, &[]);
    let began = Instant::now();
    engine.accept().refuse("no plugin\n\u{1b}[2J today");
    plugin.wait_for_log(r"refused the plugin: no plugin\n\u{1b}[2J today", 1);
    // It registers, and the engine does not configure it; another does not even take the registration.
    let mut silent = engine.accept();
    assert!(began.elapsed() >= Duration::from_millis(900), "not at once");
    silent.registration();
    plugin.wait_for_log("the container engine did not answer in 10 seconds", 1);
    let _mute = engine.accept();
    plugin.wait_for_log("the container engine did not answer in 10 seconds", 2);
    let mut connection = engine.serve(NEW.0, NEW.1);
    assert!(profile(&connection.create(&TestContainer::with_gpu().message())).is_some());
    assert_eq!(plugin.terminate(), Some(0));
}

/// The answer is longer than containerd's read buffer.
#[test]
fn long_profile_round_trips() {
    let dir = TestDir::new();
    let engine = Engine::at(&dir.socket());
    let _plugin = Plugin::start(&dir, &[]);
    let mut connection = engine.serve(NEW.0, NEW.1);
    for count in [100, 170, 180, 2000, 40_000] {
        let rules: Vec<u8> = (0..count).flat_map(|at| rule(&[&format!("call_{at}")], "SCMP_ACT_ERRNO", &[])).collect();
        let policy = message(&[bytes(1, "SCMP_ACT_ALLOW"), rules]);
        let answer = connection.create(&TestContainer::with_policy(policy).message());
        let after = profile(&answer).expect("a profile");
        assert_eq!(after.all(7).len(), count + 3);
    }
}

#[test]
fn invalid_options_and_socket_have_exit_codes() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let mpu = || std::process::Command::new(env!("CARGO_BIN_EXE_mpu"));
    for line in [&["--index", "9"][..], &["--index", "x1"], &["--policy", "off"], &["--policy", "maybe"], &["more"]] {
        let done = mpu().arg("nri").args(line).output().expect("it runs");
        assert_eq!(done.status.code(), Some(2), "{line:?}");
    }
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can become another user");
    }
    let dir = TestDir::new();
    let _engine = Engine::at(&dir.socket());
    // The build folder may be readable for root only.
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("set");
    // Another process copies it: a child of another test would inherit our descriptor, and execution would fail with ETXTBSY.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_mpu")).arg(dir.path().join("mpu")).status();
    assert!(copied.expect("cp").success());
    std::fs::set_permissions(dir.socket(), PermissionsExt::from_mode(0o600)).expect("set");
    let mut command = std::process::Command::new(dir.path().join("mpu"));
    let done = command.arg("nri").arg("--socket").arg(dir.socket()).uid(65_534).gid(65_534).output().expect("it runs");
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(4), "{output}");
    assert!(output.contains("cannot connect to") && output.contains("fix: run it as root"), "{output}");
}

/// Receives this number of messages that the plugin sent to systemd.
fn read_notifications(systemd: &UnixDatagram, number: usize) -> Vec<String> {
    let message = || {
        let mut buffer = [0; 4096];
        let length = systemd.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    (0..number).map(|_| message()).collect()
}

/// The plugins in `mpu status`, for a host below this folder.
fn status(dir: &TestDir) -> Vec<serde_json::Value> {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mpu"));
    let output = command.arg("--json").arg("--host-root").arg(dir.path()).arg("status").output().expect("it runs");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    status["nri"].as_array().expect("a list").clone()
}

#[test]
fn plugin_reports_state_to_systemd_and_status() {
    let dir = TestDir::new();
    let systemd = UnixDatagram::bind(dir.systemd()).expect("a socket");
    systemd.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    assert_eq!(status(&dir), [] as [serde_json::Value; 0]);
    let mut plugin = Plugin::start(&dir, &[]);
    // Ready without an engine: one that is started after the plugin must not wait for it.
    let words = read_notifications(&systemd, 1);
    assert!(words[0].starts_with("READY=1") && words[0].contains("STATUS=waiting for a container engine"), "{words:?}");
    let found = status(&dir);
    assert_eq!((found.len(), &found[0]["standing"]), (1, &"waits".into()), "{found:?}");
    for (version, standing) in [("v2.3.1", "serves"), ("v2.2.0", "partly"), ("2.1.9+ds1", "useless")] {
        let engine = Engine::at(&dir.socket());
        let connection = engine.serve("containerd", version);
        let words = read_notifications(&systemd, 1);
        assert!(words[0].contains(&format!("STATUS=registered with containerd {version} as 90-mpu")), "{words:?}");
        assert_eq!(status(&dir)[0]["standing"], standing);
        drop((connection, engine));
        let _ = std::fs::remove_file(dir.socket());
        let words = read_notifications(&systemd, 2);
        assert!(words[0].contains("closed the connection") && words[1].contains("waiting"), "{words:?}");
        assert_eq!(status(&dir)[0]["standing"], "waits");
    }
    // `presence` tests that a killed plugin does not count as alive.
    assert_eq!(plugin.terminate(), Some(0));
    assert_eq!(status(&dir), [] as [serde_json::Value; 0]);
}
