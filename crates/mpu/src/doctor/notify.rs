//! Checks of what the notify engine needs: a kernel, containers with its filter, a running supervisor.

use super::check::{CheckResult, CheckRow, Level};
use super::engine_in_use::{not_used, uses_notify};
use crate::container_engines::{self, GpuSupport};
use crate::listing::columns::printable;
use crate::nri::presence::{self, Plugin, Standing};
use mpu_core::HostPid;
use mpu_engine::Engine;
use mpu_engine::module::state;
use mpu_engine::up::PLUGIN;
use mpu_host::config::Config;
use mpu_host::containers::{self, Container};
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::{Host, INIT_PID_NAMESPACE};
use mpu_notify::LOG;
use mpu_notify::MOST_COUNTED;
use mpu_notify::client;
use mpu_notify::raise::{UNIT, is_stale, unfit};
use mpu_notify::supervisor::keeper;
use mpu_notify::systemd;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

pub const CHECKS: &[CheckRow] = &[
    ("notify_kernel", "whether the kernel has what the notify engine needs, where that is used", kernel),
    ("notify_socket", "whether the notify engine's sockets are answered", socket),
    (
        "notify_wrapper",
        "whether container engines start containers so that they get the notify engine's listener",
        wrapper,
    ),
    ("notify_keeper", "whether systemd manages the notify engine, where systemd runs", keeper),
    ("notify_restarts", "whether the notify engine's supervisor died more than 3 times in the last hour", restarts),
    ("notify_rootless", "rootless container engines, whose containers the notify engine cannot serve", rootless),
    ("notify_unserved", "whether the notify engine answers for every container that uses a GPU now", unserved),
    (
        "notify_nri",
        "whether the container engine's plugin, `mpu nri`, is registered and can serve, where it runs or is asked for",
        nri,
    ),
];

const WRAPPER: &str = "nvidia-container-runtime";
const OURS: &str = "mpu-container";

fn kernel(host: &Host) -> CheckResult {
    match unfit(host) {
        None => CheckResult::ok("the kernel has all of it"),
        Some(error) if uses_notify(host) => CheckResult::from_error(Level::Broken, &error),
        Some(_) => not_used(),
    }
}

fn socket(host: &Host) -> CheckResult {
    if is_stale(host) {
        return CheckResult::broken(
            "the notify engine's socket exists and no process answers: in containers with its filter the driver returns errors, and nothing can be \
             executed in them",
            "sudo mpu up --engine notify   # then restart those containers",
        );
    }
    match client::state(host) {
        Ok(None) => CheckResult::ok("there is none"),
        Ok(Some(state)) => {
            let served =
                format!("{}: {} containers, {} listeners", state.state, state.containers.len(), state.listeners);
            CheckResult::ok(served)
        }
        Err(error) if error.exit() == Exit::Refused => {
            CheckResult::skipped("only root can reach the notify engine's sockets")
        }
        Err(error) => CheckResult::from_error(Level::Broken, &error),
    }
}

fn wrapper(host: &Host) -> CheckResult {
    if presence::are_hidden(host) {
        return CheckResult::skipped("only root can see whether a plugin brings the listener");
    }
    if let Some(plugin) = presence::plugins(host).iter().find(|plugin| plugin.standing == Standing::Serves) {
        return CheckResult::ok(format!("`mpu nri` does it: {}", plugin.words));
    }
    let is_ours = |path: &Path| {
        let target = fs::canonicalize(path).unwrap_or(path.to_path_buf());
        target.file_name().is_some_and(|name| name == OURS)
    };
    let configure = match container_engines::find_gpu_support(host, Engine::Notify) {
        GpuSupport::Missing { fix, .. } => fix,
        _ => "sudo nvidia-ctk runtime configure --runtime=docker   # or containerd, crio, podman".to_string(),
    };
    match host.tool(WRAPPER) {
        None => CheckResult::attention(
            format!("there is no {WRAPPER}: without `mpu nri`, no container gets the notify engine's listener"),
            container_engines::install_hint(
                host,
                "then docs/container/README.md; `mpu run -- COMMAND` does not need it",
            ),
        ),
        Some(path) if !is_ours(&path) => CheckResult::attention(
            format!(
                "{WRAPPER} is another project's and does not know the notify engine: no container gets its listener"
            ),
            container_engines::install_hint(host, "replaces it"),
        ),
        Some(_) => match container_engines::find_wrapper_config(host) {
            Some(file) => CheckResult::ok(format!("{} names it", file.display())),
            None => CheckResult::attention(
                "no engine names the wrapper: without `mpu nri`, no container gets the listener",
                configure,
            ),
        },
    }
}

fn keeper(host: &Host) -> CheckResult {
    if !matches!(client::state(host), Ok(Some(_))) {
        return CheckResult::skipped("the notify engine is not up");
    }
    if !host.at("/run/systemd/system").is_dir() {
        return CheckResult::ok("this host has no systemd; `mpu notify hold` keeps the engine");
    }
    if fs::symlink_metadata(host.at("/run/mpu/notify/keeper.sock")).is_err() {
        return CheckResult::ok(UNIT);
    }
    let fix = match systemd::has_unit(host, UNIT) {
        true => "sudo mpu status   # when it counts no container: sudo mpu down && sudo mpu up",
        false => "sudo mpu install   # installs the unit; then, when no container needs it, mpu down && mpu up",
    };
    CheckResult::attention(
        "a process that was started by hand keeps the notify engine, not systemd; it may end with its session",
        fix,
    )
}

/// An operator may kill the supervisor this often in an hour.
const FEW_RESTARTS: u64 = 3;

fn restarts(host: &Host) -> CheckResult {
    let state = match client::state(host) {
        Ok(Some(state)) => state,
        Ok(None) => return CheckResult::skipped("the notify engine is not up"),
        Err(_) => return CheckResult::skipped("only root can read the notify engine's state, or it is not known"),
    };
    let (all, recent) = (state.restarts, state.restarts_last_hour);
    if recent <= FEW_RESTARTS {
        return CheckResult::ok(format!("{all} since the engine began, {recent} in the last hour"));
    }
    // The supervisor counts no further.
    let at_least = if recent >= MOST_COUNTED { " or more" } else { "" };
    let fix = match keeper::is_alive(host) {
        true => format!("sudo tail -n 50 {LOG}   # says how each ended, with its last messages; report it"),
        false => format!("sudo journalctl -u {UNIT} -n 50   # says how each ended, with its last messages; report it"),
    };
    CheckResult::attention(
        format!(
            "the notify engine's supervisor died {recent}{at_least} times in the last hour ({all} since the engine began), and was \
             started again; containers' calls waited meanwhile, and none was lost"
        ),
        fix,
    )
}

fn rootless(host: &Host) -> CheckResult {
    let has_engine = |user: &String| {
        let folder = host.at("/run/user").join(user);
        ["docker.sock", "podman/podman.sock"].iter().any(|name| folder.join(name).exists())
    };
    let mut users = host.names("/run/user");
    users.retain(|user| user != "0" && has_engine(user));
    match users.as_slice() {
        [] => CheckResult::ok("none"),
        users => CheckResult::attention(
            format!(
                "rootless container engines (of uid {}): their containers see what the driver shows by itself",
                users.join(", ")
            ),
            "# start them as root: sudo docker run …, or podman as root, or `sudo mpu run -- COMMAND`; the module serves \
                them too, where it can be loaded",
        ),
    }
}

/// The fix for containers that the plugin cannot serve.
const BY_WRAPPER: &str =
    "sudo nvidia-ctk runtime configure --runtime=containerd --set-as-default   # or containerd 2.3 or later";

/// Whether all plugins serve. Reports the plugin that serves the fewest containers; without a plugin, whether the
/// configuration asks for one.
fn nri(host: &Host) -> CheckResult {
    if matches!(state::read(host), Ok(Some(state)) if state.phase.is_placed()) {
        return CheckResult::skipped("the module serves every container");
    }
    if presence::are_hidden(host) {
        return CheckResult::skipped("only root can see the plugins");
    }
    let plugins = presence::plugins(host);
    let of = |standing| plugins.iter().find(|plugin: &&Plugin| plugin.standing == standing);
    if let Some(plugin) = of(Standing::Useless) {
        return CheckResult::attention(
            format!("{}, which lets no plugin set a seccomp profile", plugin.words),
            BY_WRAPPER,
        );
    }
    if let Some(plugin) = of(Standing::Waits) {
        return CheckResult::attention(
            plugin.words.clone(),
            "sudo journalctl -u containerd | grep -i nri   # NRI is on by default since containerd 2.0: [plugins.'io.containerd.nri.v1.nri']",
        );
    }
    if let Some(plugin) = of(Standing::Partly) {
        let what =
            format!("{}, which sends no profiles: only containers without a seccomp profile are served", plugin.words);
        return CheckResult::attention(what, BY_WRAPPER);
    }
    if let Some(plugin) = of(Standing::Serves) {
        return CheckResult::ok(&plugin.words);
    }
    match Config::of(host) {
        Ok(config) if config.nri && uses_notify(host) => CheckResult::attention(
            format!(
                "the configuration says nri = true, and no `mpu nri` runs: new containers start without MPU ({PLUGIN})"
            ),
            format!("sudo systemctl enable --now {PLUGIN}"),
        ),
        _ => CheckResult::skipped("no plugin runs here, and none is asked for"),
    }
}

/// Finds containers that use a GPU without the notify engine. A process with a filter but without a container's id, as
/// under `mpu run`, is not listed, because the owner of the filter cannot be determined.
fn unserved(host: &Host) -> CheckResult {
    if matches!(state::read(host), Ok(Some(state)) if state.phase.is_placed()) {
        return CheckResult::ok("the module serves every container");
    }
    let engine = match client::state(host) {
        Ok(Some(state)) => state,
        Ok(None) => return CheckResult::skipped("the notify engine is not up"),
        Err(error) if error.exit() == Exit::Refused => {
            return CheckResult::skipped("only root can read the engine's state");
        }
        Err(_) => return CheckResult::skipped("the engine's state is not known"),
    };
    let mut left_out = BTreeSet::new();
    let mut served = BTreeSet::new();
    for process in processes(host).filter(|process| is_inside_with_gpu(host, *process)) {
        let container = containers::of(host, process);
        let is_served =
            container.as_ref().map(|container| layers(container).any(|layer| engine.answers_for(&layer.id)));
        let name = container.map_or(format!("process {}", process.get()), |container| printable_name(&container));
        match is_served {
            Some(true) => served.insert(name),
            None if has_filter(host, process) => false,
            _ => left_out.insert(name),
        };
    }
    if left_out.is_empty() {
        return CheckResult::ok(format!("{} containers use a GPU, and the engine serves each", served.len()));
    }
    let names: Vec<String> = left_out.into_iter().collect();
    CheckResult::attention(
        format!("these use a GPU, and the notify engine does not answer for them: {}", names.join(", ")),
        "# restart them through the wrapper (`docker run --runtime=nvidia …`, or as the default runtime) or under `mpu nri`; \
            a filter cannot be added to what runs already",
    )
}

/// The container's name or short id, without control characters: a user chooses both.
fn printable_name(container: &Container) -> String {
    printable(container.name.as_deref().unwrap_or(container.short_id()))
}

/// The container and those around it: a filter is inherited.
fn layers(container: &Container) -> impl Iterator<Item = &Container> {
    std::iter::successors(Some(container), |layer| layer.outer.as_deref())
}

fn processes(host: &Host) -> impl Iterator<Item = HostPid> {
    let entries = fs::read_dir(host.at("/proc")).into_iter().flatten().flatten();
    entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?))
}

/// Whether it is in a PID namespace below the host's and has a driver node open. False if it has ended or cannot be read.
fn is_inside_with_gpu(host: &Host, process: HostPid) -> bool {
    let of_process = |name: &str| host.at(format!("/proc/{}/{name}", process.get()));
    let is_inside =
        fs::read_link(of_process("ns/pid")).is_ok_and(|link| link.as_os_str() != OsStr::new(INIT_PID_NAMESPACE));
    let open = || fs::read_dir(of_process("fd")).into_iter().flatten().flatten();
    is_inside
        && open().any(|fd| fs::read_link(fd.path()).is_ok_and(|file| file.to_string_lossy().starts_with("/dev/nvidia")))
}

/// Whether it has a system call filter: `Seccomp:` in proc_pid_status(5) is 2 then.
fn has_filter(host: &Host, process: HostPid) -> bool {
    let status = host.text(format!("/proc/{}/status", process.get())).unwrap_or_default();
    status.lines().filter_map(|line| line.strip_prefix("Seccomp:")).any(|mode| mode.trim() == "2")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nri::presence::{FOLDER, Presence};
    use mpu_host::containers::Runtime;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn plugin_state_decides_finding_level() {
        let fake = FakeHost::in_order();
        let host = fake.host();
        assert_eq!(nri(&host).level, Level::Skipped);
        let mut presence = Presence::new(&host.at(FOLDER), Path::new("/run/nri.sock"), &|line| panic!("{line}"));
        for (standing, level, fix) in [
            (Standing::Waits, Level::Attention, "journalctl"),
            (Standing::Useless, Level::Attention, "configure"),
            (Standing::Partly, Level::Attention, "configure"),
            (Standing::Serves, Level::Ok, ""),
        ] {
            presence.publish(standing, "registered with containerd v1 as 90-mpu");
            let result = nri(&host);
            assert_eq!(result.level, level, "{standing:?}");
            assert!(result.text.contains("90-mpu") && result.fix.unwrap_or_default().contains(fix), "{standing:?}");
        }
        // Beside it, the plugin of another container engine waits.
        presence.publish(Standing::Waits, "waiting");
        let other = host.at(FOLDER).join("1.json");
        std::fs::copy(host.at(FOLDER).join(format!("{}.json", std::process::id())), &other).expect("copied");
        let _lock = mpu_os::lock::take(&other, std::time::Duration::ZERO).expect("a lock");
        for standing in [Standing::Partly, Standing::Serves] {
            presence.publish(standing, "registered");
            let result = nri(&host);
            assert_eq!((result.level, &*result.text), (Level::Attention, "waiting"), "{standing:?}");
        }
        std::fs::remove_file(&other).expect("removed");
        drop(presence);
        fake.write(mpu_host::config::FILE, "engine = \"notify\"\nnri = true\n");
        let result = nri(&host);
        assert_eq!(
            (result.level, result.fix.as_deref()),
            (Level::Attention, Some("sudo systemctl enable --now mpu-nri.service"))
        );
        fake.write(mpu_host::config::FILE, "engine = \"notify\"\n");
        assert_eq!(nri(&host).level, Level::Skipped);
    }

    #[test]
    fn container_name_has_no_control_characters() {
        let of = |name: Option<&str>, id: &str| {
            let (id, name) = (id.to_string(), name.map(str::to_string));
            printable_name(&Container { id, runtime: Runtime::Docker, user: None, name, pod: None, outer: None })
        };
        assert_eq!(of(Some("train\u{1b}[2J\n"), "a"), "train\u{fffd}[2J\u{fffd}");
        assert_eq!(of(None, "box\u{1b}c"), "box\u{fffd}c");
    }
}
