//! Containers that use a GPU and that the notify engine does not answer for. A process that has some filter and no container's id, as
//! under `mpu run`, is not told of: whose filter it is cannot be seen.

use super::seen::Seen;
use crate::listing::columns::harmless;
use mpu_core::HostPid;
use mpu_engine::module::state;
use mpu_host::containers::{self, Container};
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::{Host, INIT_PID_NAMESPACE};
use mpu_notify::client;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;

pub(super) fn unserved(host: &Host) -> Seen {
    if matches!(state::read(host), Ok(Some(state)) if state.phase.is_placed()) {
        return Seen::fine("the module serves every container");
    }
    let engine = match client::state(host) {
        Ok(Some(state)) => state,
        Ok(None) => return Seen::skipped("the notify engine is not up"),
        Err(error) if error.exit() == Exit::Refused => return Seen::skipped("only root can read the engine's state"),
        Err(_) => return Seen::skipped("the engine's state is not known"),
    };
    let mut left_out = BTreeSet::new();
    let mut served = BTreeSet::new();
    for process in processes(host).filter(|process| is_inside_with_gpu(host, *process)) {
        let container = containers::of(host, process);
        let is_named = container.as_ref().map(|container| layers(container).any(|layer| engine.answers_for(&layer.id)));
        let name = container.map_or(format!("process {}", process.get()), |container| shown(&container));
        match is_named {
            Some(true) => served.insert(name),
            None if has_filter(host, process) => false,
            _ => left_out.insert(name),
        };
    }
    if left_out.is_empty() {
        return Seen::fine(format!("{} containers use a GPU, and the engine serves each", served.len()));
    }
    let names: Vec<String> = left_out.into_iter().collect();
    Seen::attention(
        format!("these use a GPU, and the notify engine does not answer for them: {}", names.join(", ")),
        "# restart them through the wrapper (`docker run --runtime=nvidia …`, or as the default runtime) or under `mpu nri`; \
            a filter cannot be added to what runs already",
    )
}

/// Its name, or some digits of its id. Whoever starts a container chooses both.
fn shown(container: &Container) -> String {
    harmless(container.name.as_deref().unwrap_or(container.short_id()))
}

/// It, and the containers around it: a filter is inherited.
fn layers(container: &Container) -> impl Iterator<Item = &Container> {
    std::iter::successors(Some(container), |layer| layer.outer.as_deref())
}

fn processes(host: &Host) -> impl Iterator<Item = HostPid> {
    let entries = fs::read_dir(host.at("/proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?))
}

/// Whether it is in a PID namespace below the host's and has a node of the driver open. Of one that has ended, or may not be looked at, no.
fn is_inside_with_gpu(host: &Host, process: HostPid) -> bool {
    let of_process = |name: &str| host.at(format!("/proc/{}/{name}", process.get()));
    let is_inside =
        fs::read_link(of_process("ns/pid")).is_ok_and(|link| link.as_os_str() != OsStr::new(INIT_PID_NAMESPACE));
    let open = || fs::read_dir(of_process("fd")).into_iter().flatten().flatten();
    is_inside
        && open().any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file.to_string_lossy().starts_with("/dev/nvidia")))
}

/// Whether any system call filter is on it: `Seccomp:` in proc_pid_status(5) is 2 then.
fn has_filter(host: &Host, process: HostPid) -> bool {
    let status = host.text(format!("/proc/{}/status", process.get())).unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() == "2")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::containers::Runtime;

    #[test]
    fn a_containers_name_does_nothing_to_a_terminal() {
        let of = |name: Option<&str>, id: &str| {
            let (id, name) = (id.to_string(), name.map(str::to_string));
            shown(&Container { id, runtime: Runtime::Docker, user: None, name, pod: None, outer: None })
        };
        assert_eq!(of(Some("train\u{1b}[2J\n"), "a"), "train\u{fffd}[2J\u{fffd}");
        assert_eq!(of(None, "box\u{1b}c"), "box\u{fffd}c");
    }
}
