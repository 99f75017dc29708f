//! `mpu status`: what is loaded, since when, and what it did.

use super::{DriverView, NotifyView, ProofView, StateView};
use crate::error::Error;
use crate::report::{Lines, Report, Style};
use mpu_engine::module::proof::{self, Ask};
use mpu_engine::module::record::Record;
use mpu_engine::module::state::{self, Phase};
use mpu_engine::Engine;
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::host::Host;
use mpu_host::time;
use mpu_notify::{client, hold};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is so.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Status {
    /// Whether an engine is up.
    pub up: bool,
    /// Which; of two, the one that translates, and the module before the other.
    pub engine: Option<Engine>,
    /// What the loaded module says.
    pub module_state: Option<StateView>,
    /// Whether the module was seen to translate; null while no redirect stands, and of a module before format 2.
    pub proof: Option<ProofView>,
    /// Whether function tracing is on, by which the module's redirects work.
    pub function_tracing: bool,
    /// What the notify engine's supervisor says.
    pub notify_state: Option<NotifyView>,
    /// Seconds since 1970 at which `mpu up` loaded it, or the supervisor began.
    pub since: Option<u64>,
    /// The driver.
    pub driver: Option<DriverView>,
    /// Rules of the policy that the engine has.
    pub policy: Vec<String>,
    /// Answers translated, by control.
    pub translated: BTreeMap<String, u64>,
    /// Calls not translated in the usual way, by reason.
    pub passed: Vec<Passed>,
}

/// One reason and how often it applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Passed {
    /// Its name.
    pub reason: String,
    /// How often.
    pub count: u64,
    /// What happened and what the caller got.
    pub explanation: Option<&'static str>,
}

/// How long the driver may take for the question whether the module translates.
const ASK_PATIENCE: Duration = Duration::from_secs(20);

/// Looks. A module whose redirects stand and that has not translated yet is asked to: that is the only thing that this
/// does, once for each time that the redirects are placed, as the module is `armed` afterwards.
pub fn status(host: &Host, ask: Ask) -> Result<Status, Error> {
    let (module, proof) = match state::read(host)? {
        None => (None, None),
        Some(state) => {
            let (state, proof) = proof::prove(host, state, ask, ASK_PATIENCE)?;
            (Some(state), proof)
        }
    };
    let supervisor = client::state(host)?;
    let only_supervisor_works = supervisor.as_ref().is_some_and(|supervisor| supervisor.state == "armed")
        && !module.as_ref().is_some_and(|module| module.phase.is_placed() || module.phase == Phase::Waiting);
    let engine = match (&module, &supervisor) {
        (Some(_), _) if !only_supervisor_works => Some(Engine::Module),
        (None, None) => None,
        _ => Some(Engine::Notify),
    };
    let mut status = Status {
        up: engine.is_some(),
        engine,
        since: None,
        module_state: module.as_ref().map(|state| StateView::of(host, state)),
        proof: proof.as_ref().map(ProofView::from),
        function_tracing: !host.ftrace_disabled(),
        notify_state: supervisor
            .as_ref()
            .map(NotifyView::from)
            .or_else(|| hold::lives(host).then(NotifyView::restarting)),
        driver: Driver::loaded(host).as_ref().map(DriverView::from),
        policy: Vec::new(),
        translated: BTreeMap::new(),
        passed: Vec::new(),
    };
    match (engine, supervisor) {
        (Some(Engine::Module), _) => {
            let counters = state::read_counters(host)?.unwrap_or_default();
            status.since = Record::read(host).map(|record| record.since);
            // A module without the file is an older one, which has no policy.
            status.policy = state::read_policy(host).ok().flatten().unwrap_or_default();
            status.translated = counters.translated.into_iter().collect();
            status.passed = counters.passed.into_iter().map(Passed::from).collect();
        }
        (Some(Engine::Notify), Some(supervisor)) => {
            status.since = Some(supervisor.since);
            status.policy = supervisor.policy;
            status.translated = supervisor.translated;
            status.passed = supervisor.passed.into_iter().map(Passed::from).collect();
        }
        _ => {}
    }
    Ok(status)
}

impl From<(String, u64)> for Passed {
    fn from((reason, count): (String, u64)) -> Passed {
        let explanation = state::explain_reason(&reason);
        Passed { reason, count, explanation }
    }
}

impl Report for Status {
    const COMMAND: &'static str = "status";

    fn exit(&self) -> Exit {
        let module = self.module_state.as_ref().map(|state| state.state.as_str());
        let supervisor = self.notify_state.as_ref().map(|state| state.state.as_str());
        match (self.engine, module, supervisor) {
            (Some(Engine::Module), Some("refused" | "stuck"), _) => Exit::Failed,
            (Some(Engine::Module), Some("armed" | "placed"), _) if !self.function_tracing => Exit::Failed,
            (Some(Engine::Module), ..) if self.proof.as_ref().is_some_and(|proof| proof.is_fault) => Exit::Failed,
            (Some(Engine::Module), Some("retired"), _) => Exit::NotReady,
            (Some(Engine::Module), Some("waiting"), _) if self.driver.is_some() => Exit::Failed,
            (Some(Engine::Module), ..) => Exit::Ok,
            // It accepts no new container.
            (Some(Engine::Notify), _, Some("retired")) => Exit::NotReady,
            (Some(Engine::Notify), ..) => Exit::Ok,
            (None, ..) => Exit::NotReady,
        }
    }

    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        let driver = self.driver.as_ref().map_or("none is loaded".to_string(), DriverView::line);
        if let (None, Some(supervisor)) = (self.engine, &self.notify_state) {
            lines.put("state", supervisor.line(style));
            lines.put("driver", driver);
            return lines.text;
        }
        if self.engine.is_none() {
            lines.plain(format!("{}: start it with `mpu up`", style.warn("MPU is not up")));
            lines.put("driver", driver);
            return lines.text;
        }
        match (self.engine, &self.module_state, &self.notify_state) {
            (Some(Engine::Module), Some(state), supervisor) => {
                let lost = state.state == "waiting" && self.driver.is_some();
                let why = "a driver is loaded, but the module does not find its functions";
                lines.put("state", if lost { format!("{}: {why}", style.bad("waiting")) } else { state.line(style) });
                if let Some(proof) = self.proof.as_ref().filter(|_| state.state == "placed") {
                    lines.put("proof", proof.line(style));
                }
                if state.is_placed() && !self.function_tracing {
                    let off = style.bad("function tracing is off (kernel.ftrace_enabled = 0)");
                    lines.put("", format!("{off}: the redirects do nothing until `sysctl kernel.ftrace_enabled=1`"));
                }
                lines.put("engine", format!("module, MPU {}", state.version));
                lines.put(
                    "since",
                    self.since.map_or("unknown: it was not `mpu up` that loaded it".to_string(), since_line),
                );
                lines.put("driver", driver);
                lines
                    .put("redirects", if state.hooks.is_empty() { "none".to_string() } else { state.hooks.join(", ") });
                if let Some(line) = state.argument_line(style) {
                    lines.put("argument", line);
                }
                if let Some(supervisor) = supervisor {
                    lines.put("notify", format!("up, too: {}", supervisor.line(style)));
                }
            }
            (_, module, Some(state)) => {
                lines.put("state", state.line(style));
                lines.put("engine", format!("notify, MPU {}, process {}", state.version, state.pid));
                lines.put("since", self.since.map_or("unknown".to_string(), since_line));
                lines.put("driver", driver);
                if let Some(module) = module {
                    lines.put("module", format!("up, too: {}", module.line(style)));
                }
                let how = if state.lookup == "kernel" { "by the kernel" } else { "in /proc" };
                lines.put("lookup", format!("numbers are looked up {how}"));
                lines.put("passed on", format!("{} calls without PIDs", state.passed_on));
                state.cost_lines(&mut lines, style);
            }
            _ => {}
        }
        if !self.policy.is_empty() {
            lines.put("policy", format!("{} rules; `mpu config show` has them", self.policy.len()));
        }
        let inside = match self.engine {
            Some(Engine::Module) => self.module_state.as_ref().map(|state| state.inside),
            _ => self.notify_state.as_ref().map(|state| state.inside),
        };
        lines.put("inside", format!("{} callers now", inside.unwrap_or_default()));
        if let Some(state) = self.module_state.as_ref().filter(|_| self.engine == Some(Engine::Module)) {
            for holder in &state.holders {
                lines.put("", &holder.words);
            }
            if state.orphans > 0 {
                let died = style.warn(&format!("{} callers died inside the driver", state.orphans));
                lines.put(
                    "orphans",
                    format!("{died} (a crash of the driver: `dmesg`); they hold nothing and do no harm"),
                );
            }
        }
        self.counters(&mut lines, style);
        lines.text
    }
}

impl Status {
    fn counters(&self, lines: &mut Lines, style: Style) {
        let used: Vec<_> = self.translated.iter().filter(|(_, count)| **count > 0).collect();
        if used.is_empty() {
            lines.put("translated", "nothing yet");
        }
        for (i, (control, count)) in used.iter().enumerate() {
            lines.put(if i == 0 { "translated" } else { "" }, format!("{count:>10}  {control}"));
        }
        let passed: Vec<&Passed> = self.passed.iter().filter(|passed| passed.count > 0).collect();
        if passed.is_empty() {
            lines.put("passed", "nothing");
        }
        for (i, row) in passed.iter().enumerate() {
            let name = if i == 0 { "passed" } else { "" };
            let why = row.explanation.unwrap_or("a reason that this mpu does not know");
            lines.put(name, format!("{:>10}  {}: {why}", row.count, style.warn(&row.reason)));
        }
    }
}

fn since_line(since: u64) -> String {
    let ago = time::now().saturating_sub(since);
    let ago = match ago {
        0..=119 => format!("{ago} s"),
        120..=7199 => format!("{} min", ago / 60),
        7200..=172_799 => format!("{} h", ago / 3600),
        _ => format!("{} days", ago / 86400),
    };
    format!("{} ({ago} ago)", time::in_words(since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_engine::module::proof::fake::{cannot, misses, translates};
    use mpu_engine::module::state::ARMED;
    use mpu_host::host::fake::FakeHost;
    use mpu_notify::fake::{self, FakeSupervisor};

    fn armed() -> FakeHost {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", ARMED);
        let reason = mpu_core::Reason::ALL[0].name();
        let counters = format!(
            "translated.GPU_GET_PIDS=12\ntranslated.GPU_GET_PID_INFO=0\npassed.{reason}=3\npassed.no_memory=0\n"
        );
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
    fn json_has_every_row_zero_or_not() {
        let status = status(&armed().host(), cannot).expect("a status");
        let value: serde_json::Value = serde_json::from_str(&crate::report::json(&status)).expect("JSON");
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
    fn of_two_engines_the_one_that_translates_is_told_of() {
        let fake = armed();
        let supervisor = FakeSupervisor::on(&fake, fake::state(&["a", "b"]));
        let both = status(&fake.host(), cannot).expect("a status");
        assert_eq!((both.engine, both.translated["GPU_GET_PIDS"]), (Some(Engine::Module), 12));
        assert!(both.text(Style::Plain).contains("notify       up, too: armed"), "{}", both.text(Style::Plain));
        fake.remove("/sys/module/mpu");
        let one = status(&fake.host(), cannot).expect("a status");
        assert_eq!((one.engine, one.exit(), one.translated["GPU_GET_PIDS"]), (Some(Engine::Notify), Exit::Ok, 7));
        let text = one.text(Style::Plain);
        let said = [
            "armed: ",
            "2 now, by 2 listeners",
            "1234 calls without PIDs",
            "7  GPU_GET_PIDS",
            "2026-11-20",
            "1.500 s  a",
        ];
        for part in said {
            assert!(text.contains(part), "{part}: {text}");
        }
        supervisor.state.lock().expect("ours").state = "retired".to_string();
        let retired = status(&fake.host(), cannot).expect("a status");
        assert_eq!((retired.up, retired.exit()), (true, Exit::NotReady));
    }

    #[test]
    fn who_costs_most_is_first_and_who_was_held_back_is_named() {
        let fake = FakeHost::in_order();
        let names: Vec<String> = (0..20).map(|at| format!("container-{at:02}")).collect();
        let mut state = fake::state(&names.iter().map(String::as_str).collect::<Vec<_>>());
        state.costs.iter_mut().zip(1..).for_each(|(of, at)| of.cpu_microseconds = at * 1_000_000);
        state.costs[19].held_back_microseconds = 2_500_000;
        let _supervisor = FakeSupervisor::on(&fake, state);
        let text = status(&fake.host(), cannot).expect("a status").text(Style::Plain);
        let held = "20.000 s  container-19: held back for 2.500 s, as it may have 100 % of a processor\n";
        assert!(text.contains(held), "{text}");
        let (most, next) = (text.find("container-19"), text.find("container-18: "));
        assert!(most < text.find("container-18") && next.is_none(), "{text}");
        assert!(text.contains("and 12 containers with less") && !text.contains("container-11"), "{text}");
    }

    #[test]
    fn the_json_is_documented() {
        let fake = armed();
        let _supervisor = FakeSupervisor::on(&fake, fake::state(&["a"]));
        // Nothing says all of this at once.
        let all = state::HELD.replace("state=armed", "state=placed\nrefused=os_is_init_ns:16");
        fake.write("/sys/module/mpu/parameters/state", &all);
        let mut status = status(&fake.host(), cannot).expect("a status");
        let refused = super::super::Refusal { symbol: "os_is_init_ns".to_string(), errno: 16 };
        status.module_state.as_mut().expect("loaded").refused = Some(refused);
        crate::report::documented::check("`mpu status --json`", &crate::report::json(&status));
    }

    /// `armed()` with a module of format 2 that says this.
    fn says(text: &str) -> FakeHost {
        let fake = armed();
        fake.write("/sys/module/mpu/parameters/state", text);
        fake
    }

    #[test]
    fn a_module_that_only_stands_is_asked_to_translate_and_armed_when_it_did() {
        let proven = status(&says(state::PLACED).host(), translates).expect("a status");
        assert_eq!((proven.exit(), proven.module_state.as_ref().map(|s| s.state.as_str())), (Exit::Ok, Some("armed")));
        let unasked = status(&says(state::PLACED).host(), cannot).expect("a status");
        let text = unasked.text(Style::Plain);
        assert!(unasked.exit() == Exit::Ok && text.contains("placed: the redirects stand"), "{text}");
        assert!(text.contains("no translation was seen yet") && text.contains("there is no GPU"), "{text}");
        let missed = status(&says(state::PLACED).host(), misses).expect("a status");
        assert_eq!(
            (missed.exit(), missed.proof.as_ref().map(|proof| proof.result)),
            (Exit::Failed, Some("not_entered"))
        );
        assert!(missed.text(Style::Plain).contains("the driver's entry is another function"));
    }

    #[test]
    fn who_is_inside_whom_to_believe_and_who_died_there_is_shown() {
        let fake = says(state::HELD);
        fake.write("/proc/4242/comm", "python3\n");
        let text = status(&fake.host(), cannot).expect("a status").text(Style::Plain);
        for part in
            ["claimed: MPU must believe the caller's memory", "process 4242 (python3)", "for 12.3 s", "1 callers died"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let calm = status(&says(state::PLACED).host(), cannot).expect("a status").text(Style::Plain);
        assert!(calm.contains("the driver's own copy") && !calm.contains("orphans"), "{calm}");
    }

    #[test]
    fn stuck_retired_and_function_tracing_that_is_off_are_not_fine() {
        let of = |text: &str| status(&says(text).host(), cannot).expect("a status");
        let stuck = of("version=0.1.0\nabi=2\nstate=stuck\n");
        assert!(stuck.exit() == Exit::Failed && stuck.text(Style::Plain).contains("only a reboot helps"));
        assert_eq!(of("version=0.1.0\nabi=2\nstate=retired\n").exit(), Exit::NotReady);
        let refused = of("version=0.1.0\nabi=2\nstate=refused\nrefused=kernel.ftrace_enabled:16\n").text(Style::Plain);
        assert!(
            refused.contains("function tracing is switched off") && !refused.contains("driver's kernel"),
            "{refused}"
        );
        let fake = armed();
        fake.write("/proc/sys/kernel/ftrace_enabled", "0\n");
        let off = status(&fake.host(), cannot).expect("a status");
        assert_eq!((off.exit(), off.function_tracing), (Exit::Failed, false));
        assert!(off.text(Style::Plain).contains("kernel.ftrace_enabled = 0"));
    }

    #[test]
    fn not_up_is_its_own_exit_code() {
        let fake = FakeHost::in_order();
        let status = status(&fake.host(), cannot).expect("a status");
        assert_eq!((status.up, status.exit()), (false, Exit::NotReady));
        assert!(status.text(Style::Plain).starts_with("MPU is not up"));
    }

    #[test]
    fn a_refused_module_is_a_failure() {
        let fake = armed();
        fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=refused\nrefused=os_is_init_ns:16\n");
        let status = status(&fake.host(), cannot).expect("a status");
        assert_eq!(status.exit(), Exit::Failed);
        assert!(status.text(Style::Plain).contains("os_is_init_ns"));
    }

    #[test]
    fn waiting_is_fine_without_a_driver_only() {
        let fake = armed();
        fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n");
        let lost = status(&fake.host(), cannot).expect("a status");
        assert_eq!(lost.exit(), Exit::Failed);
        assert!(lost.text(Style::Plain).contains("does not find its functions"));
        fake.remove("/sys/module/nvidia");
        assert_eq!(status(&fake.host(), cannot).expect("a status").exit(), Exit::Ok);
    }
}
