//! What the notify engine needs around it: a kernel, containers that get its filter, somebody who keeps it.

use super::seen::{CheckRow, Group, Level, Seen};
use super::taken::{not_used, uses_notify};
use crate::nri::presence::{self, Standing};
use crate::wiring::{self, Wiring};
use mpu_engine::Engine;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use mpu_notify::client::{self, State};
use mpu_notify::hold;
use mpu_notify::raise::{is_stale, systemd_has_unit, unfit, LOG, UNIT};
use mpu_notify::MOST_COUNTED;
use std::fs;
use std::path::Path;

pub const CHECKS: &[CheckRow] = &[
    ("notify_kernel", Group::Engine, "whether the kernel has what the notify engine needs, where that is used", kernel),
    ("notify_socket", Group::Engine, "whether the notify engine's sockets are answered", socket),
    (
        "notify_wrapper",
        Group::Engine,
        "whether container engines start containers so that they get the notify engine's listener",
        wrapper,
    ),
    ("notify_keeper", Group::Engine, "whether systemd manages the notify engine, where systemd runs", keeper),
    (
        "notify_restarts",
        Group::Engine,
        "whether the notify engine's supervisor died more than 3 times in the last hour",
        restarts,
    ),
    (
        "notify_rootless",
        Group::Engine,
        "rootless container engines, whose containers the notify engine cannot serve",
        rootless,
    ),
    (
        "notify_unserved",
        Group::Engine,
        "whether the notify engine answers for every container that uses a GPU now",
        super::unserved::unserved,
    ),
];

const WRAPPER: &str = "nvidia-container-runtime";
const OURS: &str = "mpu-container";

fn state(host: &Host) -> Option<State> {
    client::state(host).ok().flatten()
}

fn kernel(host: &Host) -> Seen {
    match unfit(host) {
        None => Seen::fine("the kernel has all of it"),
        Some(error) if uses_notify(host) => Seen::of(Level::Broken, &error),
        Some(_) => not_used(),
    }
}

fn socket(host: &Host) -> Seen {
    if is_stale(host) {
        return Seen::broken(
            "the notify engine's socket exists and nobody answers: in containers with its filter the driver returns errors, and nothing can be \
             executed in them",
            "sudo mpu up --engine notify   # then restart those containers",
        );
    }
    match client::state(host) {
        Ok(None) => Seen::fine("there is none"),
        Ok(Some(state)) => {
            let served =
                format!("{}: {} containers, {} listeners", state.state, state.containers.len(), state.listeners);
            Seen::fine(served)
        }
        Err(error) if error.exit() == Exit::Refused => Seen::skipped("only root can reach the notify engine's sockets"),
        Err(error) => Seen::of(Level::Broken, &error),
    }
}

fn wrapper(host: &Host) -> Seen {
    if presence::are_hidden(host) {
        return Seen::skipped("only root can see whether a plugin brings the listener");
    }
    if let Some(plugin) = presence::plugins(host).iter().find(|plugin| plugin.standing == Standing::Serves) {
        return Seen::fine(format!("`mpu nri` does it: {}", plugin.words));
    }
    let is_ours = |path: &Path| {
        let target = fs::canonicalize(path).unwrap_or(path.to_path_buf());
        target.file_name().is_some_and(|name| name == OURS)
    };
    let configure = match wiring::look(host, Engine::Notify) {
        Wiring::Missing { fix, .. } => fix,
        _ => "sudo nvidia-ctk runtime configure --runtime=docker   # or containerd, crio, podman".to_string(),
    };
    match host.tool(WRAPPER) {
        None => Seen::attention(
            format!("there is no {WRAPPER}: without `mpu nri`, no container gets the notify engine's listener"),
            wiring::to_install(host, "then docs/container/README.md; `mpu run -- COMMAND` does not need it"),
        ),
        Some(path) if !is_ours(&path) => Seen::attention(
            format!(
                "{WRAPPER} is another project's and does not know the notify engine: no container gets its listener"
            ),
            wiring::to_install(host, "replaces it"),
        ),
        Some(_) => match wiring::names_wrapper(host) {
            Some(file) => Seen::fine(format!("{} names it", file.display())),
            None => Seen::attention(
                "no engine names the wrapper: without `mpu nri`, no container gets the listener",
                configure,
            ),
        },
    }
}

fn keeper(host: &Host) -> Seen {
    if state(host).is_none() {
        return Seen::skipped("the notify engine is not up");
    }
    if !host.at("/run/systemd/system").is_dir() {
        return Seen::fine("this host has no systemd; `mpu notify hold` keeps the engine");
    }
    if fs::symlink_metadata(host.at("/run/mpu/notify/keeper.sock")).is_err() {
        return Seen::fine(UNIT);
    }
    let fix = match systemd_has_unit(host) {
        true => "sudo mpu status   # when it counts no container: sudo mpu down && sudo mpu up",
        false => "sudo mpu install   # installs the unit; then, when no container needs it, mpu down && mpu up",
    };
    Seen::attention(
        "a process that was started by hand keeps the notify engine, not systemd; it may end with its session",
        fix,
    )
}

/// So many in an hour may be an operator's own kills.
const FEW_RESTARTS: u64 = 3;

fn restarts(host: &Host) -> Seen {
    let state = match client::state(host) {
        Ok(Some(state)) => state,
        Ok(None) => return Seen::skipped("the notify engine is not up"),
        Err(_) => return Seen::skipped("only root can read the notify engine's state, or it is not known"),
    };
    let (all, recent) = (state.restarts, state.restarts_last_hour);
    if recent <= FEW_RESTARTS {
        return Seen::fine(format!("{all} since the engine began, {recent} in the last hour"));
    }
    // More are not told apart.
    let at_least = if recent >= MOST_COUNTED { " or more" } else { "" };
    let fix = match hold::lives(host) {
        true => format!("sudo tail -n 50 {LOG}   # says how each ended, with its last messages; report it"),
        false => format!("sudo journalctl -u {UNIT} -n 50   # says how each ended, with its last messages; report it"),
    };
    Seen::attention(
        format!(
            "the notify engine's supervisor died {recent}{at_least} times in the last hour ({all} since the engine began), and was \
             started again; containers' calls waited meanwhile, and none was lost"
        ),
        fix,
    )
}

fn rootless(host: &Host) -> Seen {
    let users = fs::read_dir(host.at("/run/user")).into_iter().flatten().flatten();
    let has = |folder: &Path| ["docker.sock", "podman/podman.sock"].iter().any(|name| folder.join(name).exists());
    let mut users: Vec<String> = users
        .filter(|user| has(&user.path()))
        .map(|user| user.file_name().to_string_lossy().into_owned())
        .filter(|user| user != "0")
        .collect();
    users.sort();
    match users.as_slice() {
        [] => Seen::fine("none"),
        users => Seen::attention(
            format!(
                "rootless container engines (of uid {}): their containers see what the driver shows by itself",
                users.join(", ")
            ),
            "# start them as root: sudo docker run …, or podman as root, or `sudo mpu run -- COMMAND`; the module serves \
                them too, where it can be loaded",
        ),
    }
}
