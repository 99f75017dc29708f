//! Checks of MPU itself: up, of this version, started at boot, with the configured policy.

use super::check::{CheckResult, CheckRow, Level};
use super::engine_in_use::planned_choice;
use super::kernel;
use crate::agent::note::Note;
use crate::install::journal::{self, JournalState};
use crate::install::{self, Package, Record};
use crate::metrics::page::is_missed;
use crate::probe;
use mpu_engine::module::build::STORE;
use mpu_engine::module::foreign;
use mpu_engine::module::load_error;
use mpu_engine::module::proof;
use mpu_engine::module::state::{self, Argument, Instance, Phase, Refusal};
use mpu_engine::observe;
use mpu_host::config::{Config, Redirect, rules};
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use mpu_notify::client;
use mpu_os::child;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long `systemctl` may take.
const SYSTEMCTL_TIMEOUT: Duration = Duration::from_secs(10);

const SYSTEMCTL_OUTPUT_LIMIT: u64 = 1 << 16;

pub const CHECKS: &[CheckRow] = &[
    ("engine_choice", "which engine `mpu up` would take, and why", choice),
    ("engine", "whether an engine is up and works", up),
    (
        "redirect",
        "by which of the kernel's two ways the module redirects, and what the kernel's headers held when it was built",
        redirect,
    ),
    (
        "argument",
        "whether MPU reads a call's argument from the driver's copy, or only from the caller's memory, which the caller can change",
        argument,
    ),
    ("orphans", "whether callers died inside the driver: each is a crash of the driver", orphans),
    ("engine_version", "whether the engine that is up is this mpu's version", version),
    ("swap", "whether a replacement of the engine was interrupted", swap),
    ("untranslated", "calls that were passed on untranslated, by reason", untranslated),
    ("dkms", "whether DKMS built the module for the running kernel, if it should", kernel::dkms),
    ("service", "whether the unit that starts MPU at boot is enabled, and has not failed", service),
    ("installation", "whether an installation was interrupted, or there are two", installation),
    ("configuration", "whether /etc/mpu/config.toml is valid", configuration),
    (
        "policy",
        "whether the engine has the file's rules and budget, and the host has the cgroups that rules need",
        policy,
    ),
];

fn choice(host: &Host) -> CheckResult {
    let Some(choice) = planned_choice(host) else {
        return CheckResult::skipped("the state of the loaded module is not known");
    };
    let because = format!("{}: {}", choice.engine.name(), choice.why);
    // Either engine works, so a better choice is only a hint.
    match choice.better {
        Some(fix) => CheckResult::ok(format!("{because}; for the module: {fix}")),
        None => CheckResult::ok(because),
    }
}

/// The module's state, none if it is not loaded. Only root can read it.
fn read_state(host: &Host) -> Result<Option<state::State>, CheckResult> {
    state::read(host).map_err(|error| match &error {
        state::StateError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            CheckResult::skipped("only root can read the engine's state")
        }
        _ => CheckResult::from_error(Level::Broken, &error),
    })
}

/// The module's state, or a skipped check if it is not loaded or not readable.
fn module_state(host: &Host) -> Result<state::State, CheckResult> {
    match read_state(host) {
        Ok(state) => state.ok_or_else(|| CheckResult::skipped("the module is not loaded")),
        Err(_) => Err(CheckResult::skipped("the module's state is not known")),
    }
}

fn up(host: &Host) -> CheckResult {
    let state = match read_state(host) {
        Ok(Some(state)) => state,
        Ok(None) => return supervisor(host),
        Err(result) => return result,
    };
    match &state.phase {
        Phase::Armed | Phase::Placed => proven(host, state),
        Phase::Stuck => CheckResult::broken(
            "stuck: the kernel did not remove a redirect of the module; answers to containers may be right or wrong, and the \
                module cannot be unloaded",
            "# reboot this host; until then `dmesg` says what happened to the kernel's function tracing",
        ),
        Phase::Waiting if Driver::loaded(host).is_none() => CheckResult::ok("waiting for a driver"),
        Phase::Waiting => CheckResult::broken(
            "a driver is loaded, but the module does not find its functions",
            "sudo mpu up   # reloads it; update MPU if the driver is newer",
        ),
        Phase::Refused => {
            let Refusal { symbol, errno } = state.refused.unwrap_or_default();
            let fix = match symbol.as_str() {
                load_error::TRACING => "sudo sysctl kernel.ftrace_enabled=1 && sudo mpu up",
                _ => {
                    "ls /sys/kernel/livepatch; sudo grep nvidia /sys/kernel/tracing/enabled_functions; lsmod   \
                     # unload what holds a function, then sudo mpu up"
                }
            };
            CheckResult::broken(
                format!("refused: {}; nothing is redirected", load_error::not_placed(&symbol, errno)),
                fix,
            )
        }
        Phase::Retired => CheckResult::broken(
            "retired: its redirects are removed, and nothing is translated",
            "sudo mpu up --replace",
        ),
        word => CheckResult::attention(format!("it says {word}, which this mpu does not know"), "# update mpu"),
    }
}

/// How long the driver may take for the translation test.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);

/// Requires that a module with placed redirects translates. If it has not translated yet, tests a translation.
fn proven(host: &Host, state: state::State) -> CheckResult {
    let redirects = state.hooks.len();
    match proof::prove(host, state, probe::call_driver, PROBE_TIMEOUT) {
        Err(error) => CheckResult::from_error(Level::Broken, &error),
        Ok((state, None)) => CheckResult::ok(format!("{}, {redirects} redirects", state.phase.word())),
        Ok((state, Some(proof))) if !proof.is_fault() => {
            CheckResult::ok(format!("{}, {redirects} redirects: {}", state.phase.word(), proof.in_words()))
        }
        Ok((_, Some(proof))) => CheckResult::broken(
            format!("placed: {}", proof.in_words()),
            "sudo mpu status   # has the counters; report it",
        ),
    }
}

/// The prefix of the build log's line about the kernel's headers (kmod/mpu_probes.sh).
const HEADERS: &str = "mpu: this kernel's headers: ";

fn redirect(host: &Host) -> CheckResult {
    let Ok(Some(state)) = read_state(host) else {
        // If the module did not load, the findings of the last build help.
        let log = host.release().ok().and_then(|release| host.text(Path::new(STORE).join(release).join("build.log")));
        let found = log.as_ref().and_then(|log| log.lines().find_map(|line| line.trim().strip_prefix(HEADERS)));
        return match found {
            Some(found) => CheckResult::skipped(format!("the module is not loaded; its last build found: {found}")),
            None => CheckResult::skipped("the module is not loaded"),
        };
    };
    let wanted = Config::of(host).unwrap_or_default().redirect;
    if state.redirect.as_deref().is_some_and(|way| wanted != Redirect::Auto && way != wanted.word()) {
        return CheckResult::attention(
            format!("{}, though the configuration wants {}", state.redirect.unwrap_or_default(), wanted.word()),
            "sudo mpu status   # the next load counts: in a quiet moment, sudo mpu down && sudo mpu up",
        );
    }
    let built = state.probes.map_or_else(String::new, |probes| format!("; built with {probes}"));
    match state.redirect.as_deref() {
        None => CheckResult::skipped(format!("no redirect is placed, or the module does not say{built}")),
        Some("direct") => CheckResult::ok(format!("direct calls{built}")),
        Some("ipmodify") => CheckResult::ok(format!("ipmodify, which costs more than direct calls{built}")),
        Some(other) => CheckResult::ok(format!("{other}{built}")),
    }
}

fn argument(host: &Host) -> CheckResult {
    let state = match module_state(host) {
        Ok(state) => state,
        Err(result) => return result,
    };
    match state.argument {
        None => CheckResult::skipped("no redirect is placed, or the module does not say"),
        Some(Argument { errno: None, .. }) => CheckResult::ok("the driver's own"),
        Some(Argument { errno: Some(errno), .. }) => {
            let why = std::io::Error::from_raw_os_error(errno);
            CheckResult::attention(
                format!(
                    "claimed: the probe in the driver could not be placed ({why}), so the module uses \
                    the caller's memory; a hostile \
                         container that changes it at the right moment sees what the driver shows by itself"
                ),
                "sudo cat /sys/kernel/debug/kprobes/enabled   # 0: an administrator switched kprobes off; else report it \
                    with the driver's version",
            )
        }
    }
}

fn orphans(host: &Host) -> CheckResult {
    match module_state(host) {
        Ok(state) if state.orphans == 0 => CheckResult::ok("none"),
        Ok(state) => CheckResult::attention(
            format!(
                "{} callers died inside the driver, which crashed; only a reboot frees what they held there",
                state.orphans
            ),
            "sudo dmesg | grep -A 30 -e Oops -e BUG:   # shows the crash; reboot when the GPU's users can be interrupted",
        ),
        Err(result) => result,
    }
}

/// Checks the supervisor, if the notify engine is the one in use.
fn supervisor(host: &Host) -> CheckResult {
    match client::state(host) {
        Ok(Some(state)) if state.state == Phase::Armed => {
            CheckResult::ok(format!("notify, armed: {} containers have its listener", state.containers.len()))
        }
        Ok(Some(state)) => CheckResult::broken(
            format!("the notify engine is {}: it accepts no new container", state.state),
            "sudo mpu up   # it then accepts containers again",
        ),
        Ok(None) if !foreign::loaded(host).is_none() => {
            let foreign = foreign::find(host);
            CheckResult::broken(format!("no engine is up: {}", foreign.in_words()), foreign.fix())
        }
        Ok(None) => {
            CheckResult::broken("no engine is up: containers see what the driver shows them by itself", "sudo mpu up")
        }
        Err(error) if error.exit() == Exit::Refused => CheckResult::skipped("only root can read the engine's state"),
        Err(error) => CheckResult::from_error(Level::Broken, &error),
    }
}

fn version(host: &Host) -> CheckResult {
    let this = env!("CARGO_PKG_VERSION");
    if let Ok(Some(state)) = client::state(host)
        && state.version != this
    {
        let what = format!("the notify engine is MPU {}, and this is mpu {this}", state.version);
        return CheckResult::attention(what, "sudo mpu up --replace");
    }
    match read_state(host) {
        Ok(Some(state)) if state.version == this => CheckResult::ok(this),
        Ok(Some(state)) => CheckResult::attention(
            format!("the engine is MPU {}, and this is mpu {this}", state.version),
            "sudo mpu up --replace",
        ),
        Ok(None) if matches!(client::state(host), Ok(Some(_))) => CheckResult::ok(this),
        Ok(None) => CheckResult::skipped("no engine is up"),
        Err(_) => CheckResult::skipped("the engine's state is not known"),
    }
}

fn swap(host: &Host) -> CheckResult {
    match Instance::MpuNext.is_loaded(host) {
        false => CheckResult::ok("no"),
        true => CheckResult::attention("mpu_next is loaded: a replacement was interrupted", "sudo mpu up --replace"),
    }
}

fn untranslated(host: &Host) -> CheckResult {
    let Ok(engines) = observe::all(host) else {
        return CheckResult::skipped("only root can read the engine's counters");
    };
    if engines.is_empty() {
        return CheckResult::skipped("no engine is up, or not root");
    }
    let found: Vec<String> = engines
        .iter()
        .flat_map(|engine| &engine.passed)
        .filter(|(reason, count)| *count > 0 && is_missed(reason))
        .map(|(reason, count)| format!("{count} × {reason}"))
        .collect();
    match found.is_empty() {
        true => CheckResult::ok("none"),
        false => CheckResult::attention(
            found.join(", "),
            "sudo mpu status   # explains each reason; a newer MPU may know the size",
        ),
    }
}

fn service(host: &Host) -> CheckResult {
    if host.tool("systemctl").is_none() && !host.at("/run/systemd/system").is_dir() {
        return CheckResult::skipped("this host has no systemd");
    }
    let units = ["/usr/lib/systemd/system/mpu.service", "/etc/systemd/system/mpu.service"];
    if !units.iter().any(|unit| host.at(unit).is_file()) {
        if Note::of_manager(host).is_some() {
            return CheckResult::skipped("an agent manages MPU on this node, also after the next boot");
        }
        return CheckResult::attention(
            "there is no systemd unit: the next boot starts without MPU",
            "sudo mpu install",
        );
    }
    let enabled = host.at("/etc/systemd/system/multi-user.target.wants/mpu.service");
    if std::fs::symlink_metadata(enabled).is_err() {
        return CheckResult::attention("mpu.service is installed and not enabled", "sudo systemctl enable mpu.service");
    }
    let failed = host.tool("systemctl").and_then(|systemctl| {
        let mut command = Command::new(systemctl);
        command.args(["is-failed", "--quiet", "mpu.service"]).stdin(Stdio::null());
        Some(child::run(&mut command, SYSTEMCTL_TIMEOUT, SYSTEMCTL_OUTPUT_LIMIT).ok()?.status?.success())
    });
    match failed {
        Some(true) => CheckResult::broken(
            "mpu.service has failed",
            "sudo journalctl -u mpu -n 20   # says why; then sudo systemctl start mpu",
        ),
        Some(false) => CheckResult::ok("enabled"),
        None => CheckResult::ok("enabled; there is no systemctl to ask whether it has failed"),
    }
}

fn installation(host: &Host) -> CheckResult {
    match journal::read_state(host) {
        JournalState::Idle => {}
        JournalState::Running => return CheckResult::skipped("an installation, an upgrade or a removal is going on"),
        JournalState::Interrupted => {
            return CheckResult::broken("an installation was interrupted", "sudo mpu install   # undoes it first");
        }
    }
    match (install::package(host), Record::read(host)) {
        (Some(Package { manager, remove, .. }), Some(_)) => CheckResult::attention(
            format!("MPU is installed twice: as a package ({manager}) and by `mpu install`"),
            format!("sudo /usr/local/bin/mpu uninstall   # it asks you to remove the package first: {remove}"),
        ),
        (Some(Package { manager, .. }), None) => CheckResult::ok(format!("as a package ({manager})")),
        (None, Some(record)) => CheckResult::ok(format!("by hand, {}", record.version)),
        (None, None) => CheckResult::ok("not installed; this mpu runs from its present place"),
    }
}

fn configuration(host: &Host) -> CheckResult {
    match Config::of(host) {
        Ok(config) => match config.warnings(host).first() {
            None => CheckResult::ok(format!("{} rules", config.rules.len())),
            Some(warning) => CheckResult::attention(warning, "mpu config check   # has every such rule"),
        },
        Err(error) => CheckResult::from_error(Level::Broken, &error),
    }
}

fn policy(host: &Host) -> CheckResult {
    let Ok(config) = Config::of(host) else { return CheckResult::skipped("the configuration is not valid") };
    let wanted: Vec<String> = rules::of_host(host, &config).lines().map(str::to_string).collect();
    let unified = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.procs"];
    if !wanted.is_empty() && !unified.iter().any(|path| host.at(path).exists()) {
        return CheckResult::attention(
            "rules need cgroup v2, which this host does not mount: no rule matches",
            "# boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    let supervisor = client::state(host).ok().flatten();
    let budget = supervisor.as_ref().and_then(|state| state.cpu_percent);
    if let Some(other) = budget.filter(|percent| *percent != config.notify_cpu_percent) {
        return CheckResult::attention(
            format!("the engine has notify_cpu_percent = {other}, which differs from the file"),
            "sudo mpu config apply",
        );
    }
    let of_supervisor = supervisor.map(|state| state.policy);
    match state::read_policy(host).map(|of_module| of_module.or(of_supervisor)) {
        Ok(Some(running)) if running == wanted => {
            CheckResult::ok(format!("{} rules, and the engine has them", wanted.len()))
        }
        Ok(Some(_)) => CheckResult::attention("the engine's rules differ from the file", "sudo mpu config apply"),
        Ok(None) => CheckResult::skipped("no engine is up"),
        Err(_) => CheckResult::skipped("only root can read the engine's policy"),
    }
}
