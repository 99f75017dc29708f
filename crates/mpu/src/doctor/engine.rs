//! MPU itself: up, of this version, started at boot, with the policy that the file says.

use super::kernel;
use super::seen::{CheckRow, Group, Level, Seen};
use super::taken::planned;
use crate::install::journal::{self, Left};
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
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

pub const CHECKS: &[CheckRow] = &[
    ("engine_choice", Group::Engine, "which engine `mpu up` would take, and why", choice),
    ("engine", Group::Engine, "whether an engine is up and works", up),
    (
        "redirect",
        Group::Engine,
        "by which of the kernel's two ways the module redirects, and what the kernel's headers held when it was built",
        redirect,
    ),
    (
        "argument",
        Group::Engine,
        "whether MPU reads a call's argument from the driver's copy, or only from the caller's memory, which the caller can change",
        argument,
    ),
    ("orphans", Group::Engine, "whether callers died inside the driver: each is a crash of the driver", orphans),
    ("engine_version", Group::Engine, "whether the engine that is up is this mpu's version", version),
    ("swap", Group::Engine, "whether a replacement of the engine was interrupted", swap),
    ("untranslated", Group::Engine, "calls that were passed on untranslated, by reason", untranslated),
    ("dkms", Group::Engine, "whether DKMS built the module for the running kernel, if it should", kernel::dkms),
    ("service", Group::Engine, "whether the unit that starts MPU at boot is enabled, and has not failed", service),
    ("installation", Group::Engine, "whether an installation was interrupted, or there are two", installation),
    ("configuration", Group::Engine, "whether /etc/mpu/config.toml is valid", configuration),
    (
        "policy",
        Group::Engine,
        "whether the engine has the file's rules and budget, and the host has the cgroups that rules need",
        policy,
    ),
];

fn choice(host: &Host) -> Seen {
    let Some(choice) = planned(host) else { return Seen::skipped("the state of the loaded module is not known") };
    let because = format!("{}: {}", choice.engine.name(), choice.why);
    // Either engine is right: that the other would serve more is no trouble.
    match choice.better {
        Some(fix) => Seen::fine(format!("{because}; for the module: {fix}")),
        None => Seen::fine(because),
    }
}

/// The state of the engine that is up. Only root can read it.
fn state_of(host: &Host) -> Result<Option<state::State>, Seen> {
    state::read(host).map_err(|error| match &error {
        state::StateError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Seen::skipped("only root can read the engine's state")
        }
        _ => Seen::of(Level::Broken, &error),
    })
}

/// The state of the module, where it is loaded and may be read.
fn loaded(host: &Host) -> Result<state::State, Seen> {
    match state_of(host) {
        Ok(state) => state.ok_or_else(|| Seen::skipped("the module is not loaded")),
        Err(_) => Err(Seen::skipped("the module's state is not known")),
    }
}

fn up(host: &Host) -> Seen {
    let state = match state_of(host) {
        Ok(Some(state)) => state,
        Ok(None) => return supervisor(host),
        Err(seen) => return seen,
    };
    match &state.phase {
        Phase::Armed | Phase::Placed => proven(host, state),
        Phase::Stuck => Seen::broken(
            "stuck: the kernel did not remove a redirect of the module; answers to containers may be right or wrong, and the \
                module cannot be unloaded",
            "# reboot this host; until then `dmesg` says what happened to the kernel's function tracing",
        ),
        Phase::Waiting if Driver::loaded(host).is_none() => Seen::fine("waiting for a driver"),
        Phase::Waiting => Seen::broken(
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
            Seen::broken(format!("refused: {}; nothing is redirected", load_error::not_placed(&symbol, errno)), fix)
        }
        Phase::Retired => {
            Seen::broken("retired: its redirects are removed, and nothing is translated", "sudo mpu up --replace")
        }
        word => Seen::attention(format!("it says {word}, which this mpu does not know"), "# update mpu"),
    }
}

/// How long the driver may take when it is asked whether the module translates.
const ASK_PATIENCE: Duration = Duration::from_secs(15);

/// A module whose redirects stand; one that has not translated yet is asked to.
fn proven(host: &Host, state: state::State) -> Seen {
    let redirects = state.hooks.len();
    match proof::prove(host, state, probe::ask, ASK_PATIENCE) {
        Err(error) => Seen::of(Level::Broken, &error),
        Ok((state, None)) => Seen::fine(format!("{}, {redirects} redirects", state.phase.word())),
        Ok((state, Some(proof))) if !proof.is_fault() => {
            Seen::fine(format!("{}, {redirects} redirects: {}", state.phase.word(), proof.in_words()))
        }
        Ok((_, Some(proof))) => {
            Seen::broken(format!("placed: {}", proof.in_words()), "sudo mpu status   # has the counters; report it")
        }
    }
}

/// What a build's log calls the headers' answers by (kmod/mpu_probes.sh).
const HEADERS: &str = "mpu: this kernel's headers: ";

fn redirect(host: &Host) -> Seen {
    let Ok(Some(state)) = state_of(host) else {
        // What the last build found is worth knowing where the module did not come up.
        let log = host.release().ok().and_then(|release| host.text(Path::new(STORE).join(release).join("build.log")));
        let found = log.as_ref().and_then(|log| log.lines().find_map(|line| line.trim().strip_prefix(HEADERS)));
        return match found {
            Some(found) => Seen::skipped(format!("the module is not loaded; its last build found: {found}")),
            None => Seen::skipped("the module is not loaded"),
        };
    };
    let wanted = Config::of(host).unwrap_or_default().redirect;
    if state.redirect.as_deref().is_some_and(|way| wanted != Redirect::Auto && way != wanted.word()) {
        return Seen::attention(
            format!("{}, though the configuration wants {}", state.redirect.unwrap_or_default(), wanted.word()),
            "sudo mpu status   # the next load counts: in a quiet moment, sudo mpu down && sudo mpu up",
        );
    }
    let built = state.probes.map_or_else(String::new, |probes| format!("; built with {probes}"));
    match state.redirect.as_deref() {
        None => Seen::skipped(format!("no redirect is placed, or the module does not say{built}")),
        Some("direct") => Seen::fine(format!("direct calls{built}")),
        Some("ipmodify") => Seen::fine(format!("ipmodify, which costs more than direct calls{built}")),
        Some(other) => Seen::fine(format!("{other}{built}")),
    }
}

fn argument(host: &Host) -> Seen {
    let state = match loaded(host) {
        Ok(state) => state,
        Err(seen) => return seen,
    };
    match state.argument {
        None => Seen::skipped("no redirect is placed, or the module does not say"),
        Some(Argument::Driver) => Seen::fine("the driver's own"),
        Some(Argument::Claimed { errno }) => {
            let why = std::io::Error::from_raw_os_error(errno);
            Seen::attention(
                format!(
                    "claimed: the probe in the driver could not be placed ({why}), so the module must believe \
                    the caller's memory; a hostile \
                         container that changes it at the right moment sees what the driver shows by itself"
                ),
                "sudo cat /sys/kernel/debug/kprobes/enabled   # 0: an administrator switched kprobes off; else report it \
                    with the driver's version",
            )
        }
    }
}

fn orphans(host: &Host) -> Seen {
    match loaded(host) {
        Ok(state) if state.orphans == 0 => Seen::fine("none"),
        Ok(state) => Seen::attention(
            format!(
                "{} callers died inside the driver, which crashed; only a reboot frees what they held there",
                state.orphans
            ),
            "sudo dmesg | grep -A 30 -e Oops -e BUG:   # shows the crash; reboot when the GPU's users can be interrupted",
        ),
        Err(seen) => seen,
    }
}

/// Of the two engines, this is the one that may be up.
fn supervisor(host: &Host) -> Seen {
    match client::state(host) {
        Ok(Some(state)) if state.state == Phase::Armed => {
            Seen::fine(format!("notify, armed: {} containers have its listener", state.containers.len()))
        }
        Ok(Some(state)) => Seen::broken(
            format!("the notify engine is {}: it accepts no new container", state.state),
            "sudo mpu up   # it then accepts containers again",
        ),
        Ok(None) if !foreign::loaded(host).is_none() => {
            let foreign = foreign::find(host);
            Seen::broken(format!("no engine is up: {}", foreign.in_words()), foreign.fix())
        }
        Ok(None) => Seen::broken("no engine is up: containers see what the driver shows them by itself", "sudo mpu up"),
        Err(error) if error.exit() == Exit::Refused => Seen::skipped("only root can read the engine's state"),
        Err(error) => Seen::of(Level::Broken, &error),
    }
}

fn version(host: &Host) -> Seen {
    let this = env!("CARGO_PKG_VERSION");
    if let Ok(Some(state)) = client::state(host)
        && state.version != this
    {
        let what = format!("the notify engine is MPU {}, and this is mpu {this}", state.version);
        return Seen::attention(what, "sudo mpu up --replace");
    }
    match state_of(host) {
        Ok(Some(state)) if state.version == this => Seen::fine(this),
        Ok(Some(state)) => Seen::attention(
            format!("the engine is MPU {}, and this is mpu {this}", state.version),
            "sudo mpu up --replace",
        ),
        Ok(None) if matches!(client::state(host), Ok(Some(_))) => Seen::fine(this),
        Ok(None) => Seen::skipped("no engine is up"),
        Err(_) => Seen::skipped("the engine's state is not known"),
    }
}

fn swap(host: &Host) -> Seen {
    match Instance::MpuNext.is_loaded(host) {
        false => Seen::fine("no"),
        true => Seen::attention("mpu_next is loaded: a replacement was interrupted", "sudo mpu up --replace"),
    }
}

fn untranslated(host: &Host) -> Seen {
    let Ok(engines) = observe::all(host) else { return Seen::skipped("only root can read the engine's counters") };
    if engines.is_empty() {
        return Seen::skipped("no engine is up, or not root");
    }
    let found: Vec<String> = engines
        .iter()
        .flat_map(|engine| &engine.passed)
        .filter(|(reason, count)| *count > 0 && is_missed(reason))
        .map(|(reason, count)| format!("{count} × {reason}"))
        .collect();
    match found.is_empty() {
        true => Seen::fine("none"),
        false => {
            Seen::attention(found.join(", "), "sudo mpu status   # explains each reason; a newer MPU may know the size")
        }
    }
}

fn service(host: &Host) -> Seen {
    if host.tool("systemctl").is_none() && !host.at("/run/systemd/system").is_dir() {
        return Seen::skipped("this host has no systemd");
    }
    let units = ["/usr/lib/systemd/system/mpu.service", "/etc/systemd/system/mpu.service"];
    if !units.iter().any(|unit| host.at(unit).is_file()) {
        return Seen::attention("there is no systemd unit: the next boot starts without MPU", "sudo mpu install");
    }
    let enabled = host.at("/etc/systemd/system/multi-user.target.wants/mpu.service");
    if std::fs::symlink_metadata(enabled).is_err() {
        return Seen::attention("mpu.service is installed and not enabled", "sudo systemctl enable mpu.service");
    }
    let failed = host.tool("systemctl").and_then(|systemctl| {
        let mut command = Command::new(systemctl);
        command.args(["is-failed", "--quiet", "mpu.service"]).stdout(Stdio::null()).stderr(Stdio::null());
        Some(command.status().ok()?.success())
    });
    match failed {
        Some(true) => Seen::broken(
            "mpu.service has failed",
            "sudo journalctl -u mpu -n 20   # says why; then sudo systemctl start mpu",
        ),
        Some(false) => Seen::fine("enabled"),
        None => Seen::fine("enabled; there is no systemctl to ask whether it has failed"),
    }
}

fn installation(host: &Host) -> Seen {
    match journal::left(host) {
        Left::Nothing => {}
        Left::Running => return Seen::skipped("an installation, an upgrade or a removal is going on"),
        Left::BrokenOff => {
            return Seen::broken("an installation was interrupted", "sudo mpu install   # undoes it first");
        }
    }
    match (install::package(host), Record::read(host)) {
        (Some(Package { manager, remove, .. }), Some(_)) => Seen::attention(
            format!("MPU is installed twice: as a package ({manager}) and by `mpu install`"),
            format!("sudo /usr/local/bin/mpu uninstall   # it asks you to remove the package first: {remove}"),
        ),
        (Some(Package { manager, .. }), None) => Seen::fine(format!("as a package ({manager})")),
        (None, Some(record)) => Seen::fine(format!("by hand, {}", record.version)),
        (None, None) => Seen::fine("not installed; this mpu runs from its present place"),
    }
}

fn configuration(host: &Host) -> Seen {
    match Config::of(host) {
        Ok(config) => match config.warnings().first() {
            None => Seen::fine(format!("{} rules", config.rules.len())),
            Some(warning) => Seen::attention(warning, "mpu config check   # has every such rule"),
        },
        Err(error) => Seen::of(Level::Broken, &error),
    }
}

fn policy(host: &Host) -> Seen {
    let Ok(config) = Config::of(host) else { return Seen::skipped("the configuration is not valid") };
    let wanted: Vec<String> = rules::compile(&config).lines().map(str::to_string).collect();
    let unified = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.procs"];
    if !wanted.is_empty() && !unified.iter().any(|path| host.at(path).exists()) {
        return Seen::attention(
            "rules need cgroup v2, which this host does not mount: no rule matches",
            "# boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    let supervisor = client::state(host).ok().flatten();
    let budget = supervisor.as_ref().and_then(|state| state.cpu_percent);
    if let Some(other) = budget.filter(|percent| *percent != config.notify_cpu_percent) {
        return Seen::attention(
            format!("the engine has notify_cpu_percent = {other}, which differs from the file"),
            "sudo mpu config apply",
        );
    }
    let of_supervisor = supervisor.map(|state| state.policy);
    match state::read_policy(host).map(|of_module| of_module.or(of_supervisor)) {
        Ok(Some(running)) if running == wanted => {
            Seen::fine(format!("{} rules, and the engine has them", wanted.len()))
        }
        Ok(Some(_)) => Seen::attention("the engine's rules differ from the file", "sudo mpu config apply"),
        Ok(None) => Seen::skipped("no engine is up"),
        Err(_) => Seen::skipped("only root can read the engine's policy"),
    }
}
