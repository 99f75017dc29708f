//! MPU itself: up, of this version, started at boot, with the policy that the file says.

use super::{kernel, Group, Level, Row, Seen};
use crate::config::{rules, Config};
use crate::driver::Driver;
use crate::engine::module::state::{self, Instance, Phase};
use crate::engine::notify::client;
use crate::engine::{self, module::raise, observe};
use crate::exit::Exit;
use crate::explain::Explain;
use crate::host::Host;
use crate::install::{self, journal, Record};
use std::process::{Command, Stdio};

pub const CHECKS: &[Row] = &[
    ("engine_choice", Group::Engine, "which engine `mpu up` would take, and why", choice),
    ("engine", Group::Engine, "whether an engine is up, and does what it should", up),
    ("engine_version", Group::Engine, "whether the engine that is up is this mpu's version", version),
    ("swap", Group::Engine, "whether a replacement of the engine was broken off half-way", swap),
    ("untranslated", Group::Engine, "calls that were passed on untranslated, by reason", untranslated),
    ("dkms", Group::Engine, "whether DKMS has built the module for the running kernel, if it is to", kernel::dkms),
    ("service", Group::Engine, "whether the unit that starts MPU at boot is enabled, and has not failed", service),
    ("installation", Group::Engine, "whether an installation was broken off, or there are two", installation),
    ("configuration", Group::Engine, "whether /etc/mpu/config.toml is sound", configuration),
    (
        "policy",
        Group::Engine,
        "whether the engine has the file's rules, and the host the cgroups that rules need",
        policy,
    ),
];

fn choice(host: &Host) -> Seen {
    let asked = Config::of(host).map_or(engine::Asked::Auto, |config| config.engine);
    let driver = Driver::loaded(host);
    let choice = match engine::choose(host, asked, &raise::Options::default(), driver.as_ref()) {
        Ok(choice) => choice,
        Err(_) => return Seen::skipped("the state of the module that is up is not known"),
    };
    let because = format!("{}: {}", choice.engine.name(), choice.why);
    match choice.better {
        Some(fix) => Seen::attention(because, fix),
        None => Seen::fine(because),
    }
}

/// The state of the engine that is up. Root's to read: whoever is not root cannot know.
fn state_of(host: &Host) -> Result<Option<state::State>, Seen> {
    state::read(host).map_err(|error| match &error {
        state::StateError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Seen::skipped("the engine's state is root's to read")
        }
        state::StateError::Unreadable { .. } | state::StateError::Malformed { .. } => Seen::broken(
            format!("a module named mpu is loaded that does not answer as ours: another project's ({error})"),
            "rmmod mpu && mpu up",
        ),
        _ => Seen::of(Level::Broken, &error),
    })
}

fn up(host: &Host) -> Seen {
    let state = match state_of(host) {
        Ok(Some(state)) => state,
        Ok(None) => return supervisor(host),
        Err(seen) => return seen,
    };
    match &state.phase {
        Phase::Armed => Seen::fine(format!("armed, {} redirects", state.hooks.len())),
        Phase::Waiting if Driver::loaded(host).is_none() => Seen::fine("waiting for a driver"),
        Phase::Waiting => Seen::broken(
            "a driver is loaded, but the module does not find its functions",
            "mpu down && mpu up   # or update MPU, if the driver is newer than it",
        ),
        Phase::Refused { symbol, errno } => {
            let why = std::io::Error::from_raw_os_error(*errno);
            Seen::broken(
                format!("the driver's {symbol} could not be redirected ({why}), so nothing is"),
                "ls /sys/kernel/livepatch; lsmod   # unload who holds it, then mpu down && mpu up",
            )
        }
        Phase::Retired => Seen::broken("another instance took over and is gone", "sudo mpu up --replace"),
        Phase::Other(word) => Seen::attention(format!("it says {word}, which this mpu does not know"), "update mpu"),
    }
}

/// Of the two engines, this is the one that may be up.
fn supervisor(host: &Host) -> Seen {
    match client::state(host) {
        Ok(Some(state)) if state.state == "armed" => Seen::fine(format!(
            "notify, armed: {} containers that were started through the wrapper",
            state.containers.len()
        )),
        Ok(Some(state)) => Seen::broken(
            format!("the notify engine is {}: it takes no new container", state.state),
            "sudo mpu up   # it takes containers again",
        ),
        Ok(None) => Seen::broken("no engine is up: containers see what the driver shows them by itself", "sudo mpu up"),
        Err(error) if error.exit() == Exit::Refused => Seen::skipped("the engine's state is root's to read"),
        Err(error) => Seen::of(Level::Broken, &error),
    }
}

fn version(host: &Host) -> Seen {
    let this = env!("CARGO_PKG_VERSION");
    if let Ok(Some(state)) = client::state(host) {
        if state.version != this {
            let what = format!("the notify engine is MPU {}, and this is mpu {this}", state.version);
            return Seen::attention(what, "sudo mpu up --replace");
        }
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
        true => Seen::attention("mpu_next is loaded: a replacement was broken off", "sudo mpu up --replace"),
    }
}

/// Reasons that leave a container with the driver's own answer, or are worth a look for another reason.
const TELLING: [&str; 5] = ["unknown_size", "no_memory", "malformed", "copy_not_seen", "out_of_reach"];

fn untranslated(host: &Host) -> Seen {
    let Ok(engines) = observe::all(host) else { return Seen::skipped("the engine's counters are root's to read") };
    if engines.is_empty() {
        return Seen::skipped("no engine is up, or not root");
    }
    let found: Vec<String> = engines
        .iter()
        .flat_map(|engine| &engine.passed)
        .filter(|(reason, count)| *count > 0 && TELLING.contains(&reason.as_str()))
        .map(|(reason, count)| format!("{count} × {reason}"))
        .collect();
    match found.is_empty() {
        true => Seen::fine("none"),
        false => {
            Seen::attention(found.join(", "), "mpu status   # explains each reason; a newer MPU may know the size")
        }
    }
}

fn service(host: &Host) -> Seen {
    let units = ["/usr/lib/systemd/system/mpu.service", "/etc/systemd/system/mpu.service"];
    if !units.iter().any(|unit| host.at(unit).is_file()) {
        return Seen::attention("there is no unit: the next boot starts without MPU", "sudo mpu install");
    }
    let enabled = host.at("/etc/systemd/system/multi-user.target.wants/mpu.service");
    if std::fs::symlink_metadata(enabled).is_err() {
        return Seen::attention("mpu.service is installed and not enabled", "systemctl enable mpu.service");
    }
    let failed = host.tool("systemctl").and_then(|systemctl| {
        let mut command = Command::new(systemctl);
        command.args(["is-failed", "--quiet", "mpu.service"]).stdout(Stdio::null()).stderr(Stdio::null());
        Some(command.status().ok()?.success())
    });
    match failed {
        Some(true) => Seen::broken("mpu.service has failed", "journalctl -u mpu -n 20; systemctl restart mpu"),
        Some(false) => Seen::fine("enabled"),
        None => Seen::fine("enabled; there is no systemctl to ask whether it has failed"),
    }
}

fn installation(host: &Host) -> Seen {
    if journal::is_broken_off(host) {
        return Seen::broken("an installation was killed half-way", "sudo mpu install   # undoes it first");
    }
    match (install::package(host), Record::read(host)) {
        (Some((manager, ..)), Some(_)) => Seen::attention(
            format!("MPU is installed twice: as a package ({manager}) and by `mpu install`"),
            "sudo /usr/local/bin/mpu uninstall   # asks for the package to be removed first: apt-get remove mpu",
        ),
        (Some((manager, ..)), None) => Seen::fine(format!("as a package ({manager})")),
        (None, Some(record)) => Seen::fine(format!("by hand, {}", record.version)),
        (None, None) => Seen::fine("not installed; this mpu runs from where it is"),
    }
}

fn configuration(host: &Host) -> Seen {
    match Config::of(host) {
        Ok(config) => Seen::fine(format!("{} rules", config.rules.len())),
        Err(error) => Seen { level: Level::Broken, what: error.to_string(), fix: Some(error.fix()) },
    }
}

fn policy(host: &Host) -> Seen {
    let Ok(config) = Config::of(host) else { return Seen::skipped("the configuration is not sound") };
    let wanted: Vec<String> = rules::compile(&config).lines().map(str::to_string).collect();
    let unified = ["/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.procs"];
    if !wanted.is_empty() && !unified.iter().any(|path| host.at(path).exists()) {
        return Seen::attention(
            "rules are by cgroup v2, which this host does not mount: none of them fits anybody",
            "boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    let of_supervisor = client::state(host).ok().flatten().map(|state| state.policy);
    match state::read_policy(host).map(|of_module| of_module.or(of_supervisor)) {
        Ok(Some(running)) if running == wanted => {
            Seen::fine(format!("{} rules, and the engine has them", wanted.len()))
        }
        Ok(Some(_)) => Seen::attention("the engine has other rules than the file", "sudo mpu config apply"),
        Ok(None) => Seen::skipped("no engine is up"),
        Err(_) => Seen::skipped("the engine's policy is root's to read"),
    }
}
