//! Status in every state of both engines, as text and as an exit code.

use super::*;
use mpu_engine::module::foreign;
use mpu_engine::module::proof::fake::{cannot, misses, translates};
use mpu_engine::module::state::ARMED;
use mpu_host::host::fake::FakeHost;
use mpu_notify::fake::{self, FakeSupervisor};

fn armed() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.write("/sys/module/mpu/parameters/state", ARMED);
    let reason = mpu_core::Reason::ALL[0].name();
    let counters =
        format!("translated.GPU_GET_PIDS=12\ntranslated.GPU_GET_PID_INFO=0\npassed.{reason}=3\npassed.no_memory=0\n");
    fake.write("/sys/module/mpu/parameters/counters", &counters);
    fake
}

#[test]
fn counters_are_shown_with_their_meaning() {
    let fake = armed();
    let status = status(&fake.host(), cannot).expect("a status");
    let text = status.text(Style::Plain);
    assert!(text.contains("armed") && text.contains("12  GPU_GET_PIDS") && text.contains("550.163.01"), "{text}");
    assert!(text.contains(mpu_core::Reason::ALL[0].explanation()), "{text}");
    assert!(!text.contains("no_memory"), "what never happened is left out: {text}");
    assert!(text.contains("since        unknown"), "{text}");
    assert_eq!(status.exit(), Exit::Ok);
}

#[test]
fn status_names_foreign_module() {
    let fake = FakeHost::in_order();
    foreign::fake::load(&fake, "mpu");
    let status = status(&fake.host(), cannot).expect("a status");
    let text = status.text(Style::Plain);
    assert!(text.starts_with("an older MPU (matpool, lengrongfu or biubushy) is loaded as mpu"), "{text}");
    assert!(text.contains("sudo rmmod mpu && sudo mpu up") && text.contains("MPU is not up"), "{text}");
    assert_eq!((status.up, status.exit()), (false, Exit::NotReady));
}

#[test]
fn json_has_every_row_zero_or_not() {
    let status = status(&armed().host(), cannot).expect("a status");
    let value: serde_json::Value = serde_json::from_str(&crate::report::json_of("status", &status)).expect("JSON");
    assert_eq!(value["schema"], 1);
    assert_eq!(
        (value["ok"].as_bool(), value["exit"].as_u64(), value["up"].as_bool()),
        (Some(true), Some(0), Some(true))
    );
    assert_eq!(value["translated"]["GPU_GET_PID_INFO"], 0);
    assert_eq!(value["passed"].as_array().map(Vec::len), Some(2));
    assert_eq!(value["driver"]["era"], 1);
}

#[test]
fn status_of_two_engines_shows_translating_one() {
    let fake = armed();
    let supervisor = FakeSupervisor::on(&fake, fake::state(&["a", "b"]));
    let both = status(&fake.host(), cannot).expect("a status");
    assert_eq!((both.engine, both.translated["GPU_GET_PIDS"]), (Some(Engine::Module), 12));
    assert!(both.text(Style::Plain).contains("notify       up, too: armed"), "{}", both.text(Style::Plain));
    fake.remove("/sys/module/mpu");
    let one = status(&fake.host(), cannot).expect("a status");
    assert_eq!((one.engine, one.exit(), one.translated["GPU_GET_PIDS"]), (Some(Engine::Notify), Exit::Ok, 7));
    let text = one.text(Style::Plain);
    let expected =
        ["armed: ", "2 now, by 2 listeners", "1234 calls without PIDs", "7  GPU_GET_PIDS", "2026-11-20", "1.500 s  a"];
    for part in expected {
        assert!(text.contains(part), "{part}: {text}");
    }
    supervisor.state.lock().expect("ours").state = Phase::Retired;
    let retired = status(&fake.host(), cannot).expect("a status");
    assert_eq!((retired.up, retired.exit()), (true, Exit::NotReady));
}

#[test]
fn status_lists_costliest_and_throttled_containers() {
    let fake = FakeHost::in_order();
    let names: Vec<String> = (0..20).map(|at| format!("container-{at:02}")).collect();
    let mut state = fake::state(&names.iter().map(String::as_str).collect::<Vec<_>>());
    state.costs.iter_mut().zip(1..).for_each(|(of, at)| of.cpu_microseconds = at * 1_000_000);
    state.costs[19].held_back_microseconds = 2_500_000;
    let _supervisor = FakeSupervisor::on(&fake, state);
    let text = status(&fake.host(), cannot).expect("a status").text(Style::Plain);
    let throttled = "20.000 s  container-19: held back for 2.500 s, as it may have 100 % of a processor\n";
    assert!(text.contains(throttled), "{text}");
    let (most, next) = (text.find("container-19"), text.find("container-18: "));
    assert!(most < text.find("container-18") && next.is_none(), "{text}");
    assert!(text.contains("and 12 containers with less") && !text.contains("container-11"), "{text}");
}

#[test]
fn json_matches_schema() {
    let fake = armed();
    let _supervisor = FakeSupervisor::on(&fake, fake::state(&["a"]));
    // No real module reports all of this at once.
    let all = state::HELD.replace("state=armed", "state=placed\nrefused=os_is_init_ns:16");
    fake.write("/sys/module/mpu/parameters/state", &all);
    let mut status = status(&fake.host(), cannot).expect("a status");
    let refused = state::Refusal { symbol: "os_is_init_ns".to_string(), errno: 16 };
    status.module_state.as_mut().expect("loaded").refused = Some(refused);
    status.nri.push(plugin(Standing::Serves));
    status.foreign_module = Some(foreign::Foreign {
        loaded: vec!["mpu_next"],
        version: Some("7".to_string()),
        files: vec!["/etc/modules-load.d/mpu.conf".into()],
        dkms: vec!["mpu/7".to_string()],
    });
    crate::report::documented::check(&crate::report::json_of("status", &status));
}

fn plugin(standing: Standing) -> Plugin {
    let (version, words) = ("0.1.0".to_string(), "registered with containerd v2.3.1 as 90-mpu".to_string());
    Plugin { version, pid: 4712, socket: "/var/run/nri/nri.sock".into(), standing, words }
}

#[test]
fn status_has_line_per_plugin() {
    let fake = FakeHost::in_order();
    let _supervisor = FakeSupervisor::on(&fake, fake::state(&["a"]));
    let mut status = status(&fake.host(), cannot).expect("a status");
    assert!(!status.text(Style::Plain).contains("90-mpu"), "none runs");
    for (standing, words) in [
        (Standing::Serves, "90-mpu\n"),
        (Standing::Partly, "serves containers without one"),
        (Standing::Useless, "serves no container"),
    ] {
        status.nri = vec![plugin(standing)];
        let text = status.text(Style::Plain);
        let line = text.lines().find(|line| line.starts_with("nri")).expect("a line");
        assert!(format!("{line}\n").contains(words), "{line}");
        assert_eq!(status.exit(), Exit::Ok, "the engine is up, whatever brings it containers");
    }
}

/// `armed()` with this state of a module of format 2.
fn host_with_state(text: &str) -> FakeHost {
    let fake = armed();
    fake.write("/sys/module/mpu/parameters/state", text);
    fake
}

#[test]
fn status_arms_placed_module_after_translation() {
    let proven = status(&host_with_state(state::PLACED).host(), translates).expect("a status");
    assert_eq!((proven.exit(), proven.module_state.as_ref().map(|s| &s.phase)), (Exit::Ok, Some(&Phase::Armed)));
    let unasked = status(&host_with_state(state::PLACED).host(), cannot).expect("a status");
    let text = unasked.text(Style::Plain);
    assert!(unasked.exit() == Exit::Ok && text.contains("placed: the redirects stand"), "{text}");
    assert!(text.contains("no translation was seen yet") && text.contains("there is no GPU"), "{text}");
    let missed = status(&host_with_state(state::PLACED).host(), misses).expect("a status");
    assert_eq!((missed.exit(), missed.proof.as_ref().map(|proof| proof.result)), (Exit::Failed, Some("not_entered")));
    assert!(missed.text(Style::Plain).contains("the driver's entry is another function"));
}

#[test]
fn status_shows_holders_argument_and_orphans() {
    let fake = host_with_state(state::HELD);
    fake.write("/proc/4242/comm", "python3\n");
    let text = status(&fake.host(), cannot).expect("a status").text(Style::Plain);
    for part in ["claimed: MPU uses the caller's memory", "process 4242 (python3)", "for 12.3 s", "1 callers died"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let calm = status(&host_with_state(state::PLACED).host(), cannot).expect("a status").text(Style::Plain);
    assert!(calm.contains("the driver's own copy") && !calm.contains("orphans"), "{calm}");
}

#[test]
fn state_decides_exit_code() {
    let tracing = "kernel.ftrace_enabled";
    for (state, breakage, exit, expected) in [
        ("stuck", "", Exit::Failed, "only a reboot helps"),
        ("retired", "", Exit::NotReady, "nothing is translated"),
        ("refused\nrefused=os_is_init_ns:16", "", Exit::Failed, "os_is_init_ns"),
        ("refused\nrefused=kernel.ftrace_enabled:16", "", Exit::Failed, "function tracing is switched off"),
        ("armed", tracing, Exit::Failed, "kernel.ftrace_enabled = 0"),
        ("waiting\nhooks=\ninside=0", "", Exit::Failed, "does not find its functions"),
        ("waiting\nhooks=\ninside=0", "nvidia", Exit::Ok, "the NVIDIA driver is not loaded"),
    ] {
        let fake = host_with_state(&format!("version=0.1.0\nabi=2\nstate={state}\n"));
        match breakage {
            "nvidia" => fake.remove("/sys/module/nvidia"),
            "" => {}
            _ => fake.write("/proc/sys/kernel/ftrace_enabled", "0\n"),
        }
        let status = status(&fake.host(), cannot).expect("a status");
        let text = status.text(Style::Plain);
        assert_eq!((status.exit(), status.function_tracing), (exit, breakage != tracing), "{state}");
        assert!(text.contains(expected) && !text.contains("driver's kernel"), "{text}");
    }
    let fake = FakeHost::in_order();
    let text = || {
        let status = status(&fake.host(), cannot).expect("a status");
        assert_eq!((status.up, status.exit()), (false, Exit::NotReady));
        status.text(Style::Plain)
    };
    assert!(text().starts_with("MPU is not up: start it with `mpu up`"));
    let note = r#"{"at":100,"version":"0.1.0","doing":"waits_for_driver","words":"waiting for it","seen":null}"#;
    fake.write("/run/mpu/agents/a.json", note);
    fake.write("/proc/uptime", "105.0 1.0\n");
    assert!(text().starts_with("MPU is not up, and the node's agent manages it: waiting for it"), "{}", text());
}
