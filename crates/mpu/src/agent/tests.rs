//! Agents on fake hosts, with the real code that starts and stops the engine.

use super::*;
use crate::cluster::fake::FakeCluster;
use crate::probe::ProbeError;
use mpu_engine::module::load::fake::FakeKernel;
use mpu_engine::module::raise::fake::{BUILDS_BOTH, Setup};
use mpu_engine::module::state;
use mpu_host::host::fake::FakeHost;
use mpu_notify::fake::FakeSupervisor;
use std::cell::{Cell, RefCell};

/// The measured value, the number of measurements, and the log.
struct Fixture {
    setup: Setup,
    right: Cell<Option<bool>>,
    measured: Cell<usize>,
    log: RefCell<Vec<String>>,
    cluster: FakeCluster,
}

impl Fixture {
    fn new() -> Fixture {
        let setup = Setup::new();
        setup.fake.write("/proc/uptime", "1000.0 1.0\n");
        let (measured, log, cluster) = Default::default();
        Fixture { setup, right: Cell::new(Some(true)), measured, log, cluster }
    }

    fn fake(&self) -> &FakeHost {
        &self.setup.fake
    }

    fn advance_clock(&self, seconds: u64) {
        let now = uptime(&self.fake().host()) + seconds;
        self.fake().write("/proc/uptime", &format!("{now}.5 1.0\n"));
    }

    fn options(&self, id: &str) -> AgentOptions {
        let source = Some(self.setup.sources.path().to_path_buf());
        let id = id.to_string();
        AgentOptions {
            id,
            engine: EngineSetting::Auto,
            cluster: None,
            node: None,
            interval: 5,
            measure_every: 60,
            keep: false,
            module: None,
            source,
            any_driver: false,
            stopped: Arc::default(),
        }
    }

    fn note(&self, id: &str) -> Note {
        Note::read(&self.fake().host(), id).expect("readable").expect("a note")
    }

    fn up(&self) -> bool {
        state::is_loaded(&self.fake().host())
    }

    /// Runs `body` with an agent for each name.
    fn run(&self, ids: &[&str], body: impl FnOnce(&FakeKernel<'_>, Vec<Agent<'_>>)) {
        let (host, kernel) = (self.fake().host(), self.setup.kernel());
        let measure = |_: &Host| {
            self.measured.set(self.measured.get() + 1);
            match self.right.get() {
                Some(right) => Ok((right, format!("right: {right}"))),
                None => Err(Box::new(ProbeError::NotRoot) as Box<dyn Explain>),
            }
        };
        let log = |line: &str| self.log.borrow_mut().push(line.to_string());
        let cluster = Some(&self.cluster as &dyn Cluster);
        let agent =
            |id: &&str| Agent::new(&host, &kernel, &measure, &log, cluster, self.options(id)).expect("an agent");
        body(&kernel, ids.iter().map(agent).collect());
    }

    /// Replaces the pods of [`RULE`].
    fn set_pod(&self, uid: &str) {
        let key = ("monitoring".to_string(), "app=dcgm".to_string());
        self.cluster.pods.borrow_mut().insert(key, vec![uid.to_string()]);
    }

    fn logged(&self, word: &str) -> usize {
        self.log.borrow().iter().filter(|line| line.contains(word)).count()
    }
}

#[test]
fn agent_waits_for_driver_and_cleans_up() {
    let fixture = Fixture::new();
    fixture.fake().remove("/sys/module/nvidia");
    fixture.run(&["a"], |_, mut agents| {
        let mut agent = agents.remove(0);
        for _ in 0..13 {
            agent.round().expect("a round");
            fixture.advance_clock(5);
        }
        assert_eq!(
            (fixture.note("a").doing, fixture.up(), fixture.measured.get()),
            (Activity::WaitsForDriver, false, 0)
        );
        assert_eq!(fixture.logged("waiting for the NVIDIA driver"), 2, "at once, and after a minute");
        fixture.fake().write("/sys/module/nvidia/version", "550.163.01\n");
        agent.round().expect("a round");
        let note = fixture.note("a");
        assert_eq!((note.doing, fixture.up(), note.seen.map(|seen| seen.right)), (Activity::Watches, true, Some(true)));
        assert_eq!(agent.leave().expect("left"), FinalState::Down);
        assert!(!fixture.up() && Note::read(&fixture.fake().host(), "a").expect("readable").is_none());
    });
}

#[test]
fn agents_without_driver_read_label_and_take_turns() {
    let fixture = Fixture::new();
    fixture.fake().remove("/sys/module/nvidia");
    fixture.cluster.labels.borrow_mut().insert(label::ENGINE_LABEL.into(), "modul".into());
    fixture.run(&["a", "b"], |_, mut agents| {
        for agent in &mut agents {
            agent.round().expect("a round");
        }
        assert_eq!((fixture.note("a").doing, fixture.note("b").doing), (Activity::StandsBy, Activity::WaitsForDriver));
        assert_eq!((fixture.measured.get(), fixture.cluster.reasons()), (0, vec!["MpuEngineLabelInvalid"]));
    });
}

#[test]
fn lost_engine_is_raised_and_measured_again() {
    let fixture = Fixture::new();
    fixture.run(&["a"], |kernel, mut agents| {
        let agent = &mut agents[0];
        agent.round().expect("a round");
        fixture.fake().remove("/sys/module/mpu");
        fixture.advance_clock(5);
        agent.round().expect("a round");
        assert_eq!((fixture.up(), kernel.calls.get().0, fixture.measured.get()), (true, 2, 2));
    });
}

#[test]
fn replaced_driver_is_measured_again() {
    let fixture = Fixture::new();
    fixture.run(&["a"], |_, mut agents| {
        let agent = &mut agents[0];
        agent.round().expect("a round");
        fixture.fake().remove("/sys/module/nvidia");
        agent.round().expect("a round");
        assert_eq!((fixture.note("a").doing, fixture.note("a").seen), (Activity::WaitsForDriver, None));
        fixture.fake().write("/sys/module/nvidia/version", "580.159.04\n");
        agent.round().expect("a round");
        assert_eq!(fixture.measured.get(), 2);
        assert!(fixture.note("a").words.contains("driver 580.159.04"));
    });
}

#[test]
fn failed_measurement_is_repeated_sooner() {
    let fixture = Fixture::new();
    fixture.run(&["a"], |_, mut agents| {
        let agent = &mut agents[0];
        let mut round_after = |seconds| {
            fixture.advance_clock(seconds);
            agent.round().expect("a round");
            fixture.measured.get()
        };
        assert_eq!((round_after(0), round_after(30), round_after(29), round_after(1)), (1, 1, 1, 2));
        fixture.right.set(Some(false));
        assert_eq!((round_after(60), round_after(9)), (3, 3));
        fixture.right.set(None);
        assert_eq!(round_after(1), 4);
        let seen = fixture.note("a").seen.expect("measured");
        assert!(!seen.right && seen.because.contains("CAP_SYS_ADMIN") && seen.because.contains("fix:"), "{seen:?}");
    });
}

#[test]
fn note_is_written_before_measurement() {
    let fixture = Fixture::new();
    let supervisor = FakeSupervisor::on(fixture.fake(), mpu_notify::fake::state(&[]));
    let (host, kernel) = (fixture.fake().host(), fixture.setup.kernel());
    let measure = |host: &Host| Ok((Note::read(host, "a").is_ok_and(|note| note.is_some()), "looked".to_string()));
    let mut agent = Agent::new(&host, &kernel, &measure, &|_| (), None, fixture.options("a")).expect("an agent");
    agent.round().expect("a round");
    let note = fixture.note("a");
    assert_eq!((note.doing, note.seen.map(|seen| seen.right)), (Activity::LeavesToNode, Some(true)));
    drop(supervisor);
}

#[test]
fn failed_raise_is_logged_and_backs_off() {
    let fixture = Fixture::new();
    fixture.fake().remove("/usr/bin/make");
    fixture.run(&["a"], |kernel, mut agents| {
        let agent = &mut agents[0];
        for _ in 0..60 {
            agent.round().expect("a round");
            assert_eq!(fixture.note("a").doing, Activity::Failed);
            fixture.advance_clock(1);
        }
        assert_eq!(fixture.logged("no make on this host"), 1, "{:?}", fixture.log.borrow());
        assert!(fixture.logged("fix:") == 1 && agent.failures == 4, "after 0, 5, 15 and 35 s");
        assert_eq!((fixture.measured.get(), kernel.calls.get()), (0, (0, 0)));
        fixture.fake().tool("make", BUILDS_BOTH);
        fixture.advance_clock(300);
        agent.round().expect("a round");
        assert_eq!((fixture.note("a").doing, agent.failures), (Activity::Watches, 0));
    });
}

#[test]
fn held_gate_is_reported_and_tried_again() {
    let fixture = Fixture::new();
    fixture.run(&["old", "new"], |_, mut agents| {
        agents[0].round().expect("a round");
        assert_eq!(fixture.note("old").doing, Activity::StandsBy);
        let gate = fixture.fake().host().at(election::AGENTS_DIR).join("gate");
        let held = mpu_os::lock::take(&gate, Duration::from_secs(60)).expect("taken");
        for (agent, name) in agents.iter_mut().zip(["old", "new"]) {
            agent.registration.gate_timeout = Duration::ZERO;
            agent.round().expect("a round");
            let note = fixture.note(name);
            assert!(note.doing == Activity::Failed && note.words.contains("gate is held by"), "{note:?}");
        }
        assert_eq!(fixture.cluster.reasons(), ["MpuEngineFailed"], "the standby agent writes no Event");
        let new = &mut agents[1];
        new.registration.gate_timeout = Duration::from_secs(600);
        new.options.stopped.store(true, Relaxed);
        fixture.advance_clock(61);
        new.round().expect("a round that ends at once");
        assert_eq!(fixture.cluster.reasons().len(), 1, "an agent that ends reports no gate");
        new.options.stopped.store(false, Relaxed);
        drop(held);
        new.registration.gate_timeout = Duration::from_secs(60);
        new.round().expect("a round");
        assert_eq!(fixture.note("new").doing, Activity::Watches);
    });
}

#[test]
fn failure_is_reported_again_after_standby() {
    let fixture = Fixture::new();
    fixture.fake().remove("/usr/bin/make");
    fixture.run(&["old"], |kernel, mut agents| {
        let agent = &mut agents[0];
        for _ in 0..3 {
            agent.round().expect("a round");
            fixture.advance_clock(20);
        }
        agent.round().expect("a round");
        let failed = fixture.note("old").words;
        assert!(failed.contains("no make on this host"), "{failed}");
        let host = kernel.host.host();
        let new = Registration::register(&host, "new", Arc::default()).expect("a place");
        agent.round().expect("a round");
        assert_eq!(fixture.note("old").doing, Activity::StandsBy);
        assert_eq!(new.leave(|| ()).expect("left"), LeaveResult::To("old".to_string()));
        fixture.cluster.take_events();
        fixture.advance_clock(1);
        agent.round().expect("a round");
        let note = fixture.note("old");
        assert_eq!((note.doing, note.words), (Activity::Failed, failed.clone()));
        fixture.advance_clock(61);
        agent.round().expect("a round");
        assert!(fixture.cluster.take_events().iter().all(|(_, words)| *words == failed));
    });
}

#[test]
fn another_version_is_replaced_without_gap() {
    let fixture = Fixture::new();
    fixture.fake().tool("make", BUILDS_BOTH);
    fixture.fake().write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
    fixture.run(&["new"], |kernel, mut agents| {
        agents[0].round().expect("a round");
        let loaded = state::read(&fixture.fake().host()).expect("readable").expect("up");
        assert_eq!(
            (loaded.version.as_str(), kernel.calls.get()),
            (env!("CARGO_PKG_VERSION"), (2, 2)),
            "{:?}",
            fixture.log.borrow()
        );
        assert_eq!(fixture.logged("in the place of version 0.0.9"), 1);
    });
}

const NEWER: &str = "version=99.0.0\nabi=2\nstate=armed\n";

#[test]
fn newer_module_from_node_is_left_alone() {
    // Nothing is known of it, as of one that kernel-module-management loads; or the node's own `mpu up` did.
    for record in ["", "{\"since\":1,\"module\":\"/m\",\"version\":\"99.0.0\"}"] {
        let fixture = Fixture::new();
        fixture.fake().write("/run/mpu/up.json", record);
        fixture.fake().write("/sys/module/mpu/parameters/state", NEWER);
        fixture.run(&["old"], |kernel, mut agents| {
            let mut agent = agents.remove(0);
            agent.round().expect("a round");
            let note = fixture.note("old");
            assert_eq!((note.doing, kernel.calls.get()), (Activity::LeavesToNode, (0, 0)), "{}", note.words);
            assert!(note.words.contains("MPU 99.0.0") && note.seen.is_some(), "it is measured all the same: {note:?}");
            agent.leave().expect("left");
            assert!(fixture.up() && kernel.calls.get() == (0, 0), "and it stays when the agent goes");
        });
    }
}

#[test]
fn newer_module_from_agent_is_replaced_after_rollback() {
    let fixture = Fixture::new();
    fixture.fake().tool("make", BUILDS_BOTH);
    fixture
        .fake()
        .write("/run/mpu/up.json", "{\"since\":1,\"module\":\"/m\",\"version\":\"99.0.0\",\"by_agent\":true}");
    fixture.fake().write("/sys/module/mpu/parameters/state", NEWER);
    fixture.run(&["old"], |_, mut agents| {
        agents[0].round().expect("a round");
        let loaded = state::read(&fixture.fake().host()).expect("readable").expect("up");
        assert_eq!(loaded.version, env!("CARGO_PKG_VERSION"), "{:?}", fixture.log.borrow());
    });
}

#[test]
fn rolling_upgrade_hands_engine_to_new_agent() {
    let fixture = Fixture::new();
    fixture.run(&["old", "new"], |kernel, mut agents| {
        let (mut new, mut old) = (agents.remove(1), agents.remove(0));
        new.round().expect("a round");
        old.round().expect("a round");
        assert_eq!((fixture.note("old").doing, fixture.note("new").doing), (Activity::StandsBy, Activity::Watches));
        assert!(fixture.note("old").seen.is_some(), "who stands by knows whether containers are seen right");
        assert_eq!(old.leave().expect("left"), FinalState::ManagedBy("new".to_string()));
        assert_eq!((fixture.up(), kernel.calls.get()), (true, (1, 0)));
        assert_eq!(new.leave().expect("left"), FinalState::Down);
        assert!(!fixture.up());
    });
}

#[test]
fn rollback_returns_engine_to_old_agent() {
    let fixture = Fixture::new();
    fixture.run(&["old", "new"], |_, mut agents| {
        let (mut new, mut old) = (agents.remove(1), agents.remove(0));
        new.round().expect("a round");
        assert_eq!(new.leave().expect("left"), FinalState::ManagedBy("old".to_string()));
        assert!(fixture.up());
        fixture.fake().remove("/sys/module/mpu");
        old.round().expect("a round");
        assert!(fixture.up() && fixture.note("old").doing == Activity::Watches);
    });
}

#[test]
fn killed_agent_leaves_engine_to_next() {
    let fixture = Fixture::new();
    fixture.run(&["a"], |kernel, mut agents| {
        agents[0].round().expect("a round");
        drop(agents); // no leave: its lock goes as the kernel lets it go
        let again = || {
            let host = kernel.host.host();
            let agent = Agent::new(&host, kernel, &|_| Ok((true, String::new())), &|_| (), None, fixture.options("a"));
            agent.map(|mut agent| agent.round().expect("a round")).map_err(|error| error.to_string())
        };
        // A program that another test starts at this moment has the lock, too, until it is executed.
        let mut came = again();
        for _ in 0..1000 {
            if came.is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            came = again();
        }
        assert_eq!((came, kernel.calls.get()), (Ok(()), (1, 0)), "what is up stays up, untouched");
    });
}

#[test]
fn changed_rules_reach_running_engine() {
    let fixture = Fixture::new();
    fixture.run(&["a"], |kernel, mut agents| {
        agents[0].round().expect("a round");
        fixture.fake().write("/etc/mpu/config.toml", "[[rule]]\nsees = \"host\"\ncgroup = \"/monitor\"\n");
        agents[0].round().expect("a round");
        let rules = state::read_policy(&fixture.fake().host()).expect("readable").expect("up");
        assert!(rules.iter().any(|rule| rule.contains("/monitor")), "{rules:?}");
        assert_eq!((kernel.calls.get(), fixture.logged("new rules"), fixture.measured.get()), ((1, 0), 1, 2));
    });
}

const UIDS: [&str; 2] = ["6b0f8a52-6f0b-4d0e-a9b3-2f1f3a0e7c11", "7b0f8a52-6f0b-4d0e-a9b3-2f1f3a0e7c11"];
const RULE: &str = "[[rule]]\nsees = \"host\"\nnamespace = \"monitoring\"\nlabel = \"app=dcgm\"\n";

#[test]
fn restarted_pod_with_label_is_exempt_again() {
    let fixture = Fixture::new();
    fixture.fake().write("/etc/mpu/config.toml", RULE);
    let exempt = |uid: &str| {
        let rules = state::read_policy(&fixture.fake().host()).expect("readable").expect("up");
        rules.iter().any(|rule| rule.contains(&format!("pod{uid}")))
    };
    fixture.run(&["a"], |_, mut agents| {
        let mut agent = agents.remove(0);
        agent.round().expect("a round");
        assert!(fixture.up() && !exempt("") && fixture.logged("pods is forbidden in monitoring") == 1);
        assert_eq!(fixture.logged("match no pod"), 1, "{:?}", fixture.log);
        fixture.set_pod(UIDS[0]);
        fixture.advance_clock(31);
        agent.round().expect("a round");
        assert!(exempt(UIDS[0]) && fixture.logged("match no pod") == 1, "{:?}", fixture.log);
        assert_eq!(fixture.note("a").words.matches("match no pod").count(), 0);
        // The pod is replaced while the API server is away.
        fixture.set_pod(UIDS[1]);
        fixture.cluster.is_down.set(true);
        fixture.advance_clock(reporter::POD_INTERVAL);
        agent.round().expect("a round");
        assert!(exempt(UIDS[0]) && !exempt(UIDS[1]));
        fixture.cluster.is_down.set(false);
        fixture.advance_clock(31);
        agent.round().expect("a round");
        assert!(exempt(UIDS[1]) && !exempt(UIDS[0]));
        assert_eq!(agent.leave().expect("left"), FinalState::Down);
        assert!(Pods::are_missing(&fixture.fake().host()));
    });
}

#[test]
fn forbidden_namespace_does_not_block_other_pods() {
    let fixture = Fixture::new();
    fixture.fake().write("/etc/mpu/config.toml", &(RULE.to_string() + &RULE.replace("monitoring", "secret")));
    let host = fixture.fake().host();
    let is_found = |uid: &str| Pods::of(&host).is_some_and(|pods| pods.get("monitoring", "app=dcgm").eq([uid]));
    fixture.set_pod(UIDS[0]);
    let mut earlier = Pods::default();
    earlier.set("secret", "app=dcgm", vec![UIDS[1].to_string()]);
    std::fs::create_dir_all(host.at("/run/mpu")).expect("a folder");
    earlier.write(&host).expect("written");
    fixture.run(&["a"], |_, mut agents| {
        agents[0].round().expect("a round");
        assert!(is_found(UIDS[0]) && fixture.logged("pods is forbidden in secret") == 1, "{:?}", fixture.log);
        let earlier = Pods::of(&host).expect("found");
        assert!(earlier.get("secret", "app=dcgm").eq([UIDS[1]]), "an earlier agent's pods stay");
        fixture.set_pod(UIDS[1]);
        fixture.advance_clock(reporter::POD_INTERVAL);
        agents[0].round().expect("a round");
        assert!(is_found(UIDS[1]) && fixture.logged("pods is forbidden in secret") == 1, "{:?}", fixture.log);
    });
}

#[test]
fn label_reaches_nodes_notify_engine() {
    let fixture = Fixture::new();
    let supervisor = FakeSupervisor::on(fixture.fake(), mpu_notify::fake::state(&[]));
    fixture.set_pod(UIDS[0]);
    fixture.run(&["a"], |_, mut agents| {
        agents[0].round().expect("a round");
        assert!(supervisor.commands.lock().expect("ours").is_empty(), "without such a rule it is left alone");
        fixture.fake().write("/etc/mpu/config.toml", RULE);
        agents[0].round().expect("a round");
        let commands = supervisor.commands.lock().expect("ours").clone();
        assert!(commands[0].starts_with("policy\nhost /kubepods/pod6b0f8a52"), "{commands:?}");
    });
}

#[test]
fn agent_with_keep_leaves_engine_up() {
    let fixture = Fixture::new();
    fixture.run(&["a"], |_, mut agents| {
        let mut agent = agents.remove(0);
        agent.options.keep = true;
        let mut rounds = 0;
        let parting = agent.run(&mut |pause| {
            rounds += 1;
            assert_eq!(pause, Duration::from_secs(5));
            rounds == 2
        });
        assert_eq!((parting.expect("left"), fixture.up(), rounds), (FinalState::Kept, true, 2));
    });
}

#[test]
fn agent_refuses_notify_engine() {
    let fixture = Fixture::new();
    fixture.fake().write("/etc/mpu/config.toml", "engine = \"notify\"\n");
    fixture.run(&["a"], |kernel, mut agents| {
        agents[0].round().expect("a round");
        assert_eq!((fixture.note("a").doing, kernel.calls.get()), (Activity::Failed, (0, 0)));
        assert_eq!(fixture.logged("a supervisor in a pod would end with the pod"), 1);
        assert_eq!(fixture.logged("fix: install MPU's package on the node"), 1);
    });
}

#[test]
fn agent_leaves_nodes_notify_engine_alone() {
    let fixture = Fixture::new();
    let supervisor = FakeSupervisor::on(fixture.fake(), mpu_notify::fake::state(&[]));
    fixture.run(&["a"], |kernel, mut agents| {
        agents[0].round().expect("a round");
        assert_eq!(
            (fixture.note("a").doing, kernel.calls.get(), fixture.up()),
            (Activity::LeavesToNode, (0, 0), false)
        );
        assert!(fixture.note("a").seen.is_some(), "it is measured all the same");
        // Its node's operator wants the module.
        agents[0].options.engine = EngineSetting::Module;
        agents[0].round().expect("a round");
        assert_eq!((fixture.note("a").doing, fixture.up()), (Activity::Watches, true));
        // And a module that is up is not left for an engine beside it.
        agents[0].options.engine = EngineSetting::Auto;
        agents[0].round().expect("a round");
        assert_eq!((fixture.note("a").doing, fixture.up()), (Activity::Watches, true));
    });
    drop(supervisor);
}

#[test]
fn retired_notify_engine_does_not_block_module() {
    let fixture = Fixture::new();
    let _retired = FakeSupervisor::on(
        fixture.fake(),
        mpu_notify::client::State { state: mpu_host::phase::Phase::Retired, ..mpu_notify::fake::state(&["old"]) },
    );
    fixture.run(&["a"], |_, mut agents| {
        agents[0].round().expect("a round");
        assert_eq!((fixture.note("a").doing, fixture.up()), (Activity::Watches, true));
    });
}

#[test]
fn node_label_overrides_chart_engine() {
    let fixture = Fixture::new();
    fixture.run(&["a"], |kernel, mut agents| {
        let (mut agent, cluster) = (agents.remove(0), &fixture.cluster);
        let label = |word: &str| cluster.labels.borrow_mut().insert(label::ENGINE_LABEL.to_string(), word.to_string());
        label("notify");
        agent.round().expect("a round");
        assert_eq!(
            (fixture.note("a").doing, kernel.calls.get()),
            (Activity::Failed, (0, 0)),
            "no module, and no engine here"
        );
        assert!(fixture.note("a").words.contains("and it is not up"), "{}", fixture.note("a").words);
        label("mdule");
        fixture.advance_clock(61);
        agent.round().expect("a round");
        assert_eq!(
            (fixture.note("a").doing, fixture.up()),
            (Activity::Watches, true),
            "the chart's engine, auto, holds"
        );
        assert_eq!(cluster.reasons(), ["MpuEngineFailed", "MpuServed", "MpuEngineLabelInvalid"]);
    });
}

#[test]
fn only_managing_agent_reports_cluster_events() {
    let fixture = Fixture::new();
    fixture.fake().remove("/usr/bin/make");
    fixture.run(&["old", "new"], |_, mut agents| {
        let cluster = &fixture.cluster;
        for number in [1, 0] {
            agents[number].round().expect("a round");
        }
        let events = cluster.take_events();
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(events[0].0 == "MpuEngineFailed" && events[0].1.contains("no make on this host"), "{events:?}");
        fixture.fake().tool("make", BUILDS_BOTH);
        fixture.right.set(Some(false));
        fixture.advance_clock(300);
        agents[1].round().expect("a round");
        assert_eq!(cluster.take_events(), [("MpuNotRight", "right: false".to_string())]);
        fixture.right.set(Some(true));
        fixture.advance_clock(300);
        agents[1].round().expect("a round");
        assert_eq!(cluster.take_events(), [("MpuServed", "right: true".to_string())]);
    });
}
