//! Measures whether a container on this host gets right answers: a child in its own PID namespace becomes a client of
//! the driver and looks itself up, as a container's `nvidia-smi` would.
//!
//! [`child`] runs in the child, [`verdict`] interprets the answers. Neither uses the driver's version or MPU's reported
//! state.

mod call_driver;
pub mod child;
pub mod compare;
mod nodes;
pub mod verdict;

pub use call_driver::call_driver;

use child::ChildObservation;
use mpu_engine::module::state::StateError;
use mpu_host::driver::{Driver, NEWEST_KNOWN, Release};
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts, chain};
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use mpu_host::progress::Progress;
use mpu_host::sys::unshare_pid_namespace_of_children;
use mpu_notify::supervised_child;
use mpu_rm::{Client, RmError};
use nodes::DeviceNodes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// Why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("no NVIDIA driver is loaded")]
    NoDriver,
    #[error("this needs root: making a PID namespace takes the capability CAP_SYS_ADMIN, which this process lacks")]
    NotRoot,
    #[error("cannot make a PID namespace")]
    Namespace { source: io::Error },
    #[error("cannot start the probe's child")]
    Spawn { source: io::Error },
    #[error("the notify engine does not accept the probe's child")]
    Unsupervised { source: io::Error },
    #[error("the probe's child ended without an answer")]
    Silent { source: io::Error },
    #[error("the probe's child failed: {message}")]
    Child { message: String },
    #[error("cannot become a client of the driver")]
    Driver { source: RmError },
    #[error(transparent)]
    State(#[from] StateError),
}

impl Explain for ProbeError {
    fn facts(&self) -> Facts {
        use ProbeError as E;
        const SMI: &str = "check whether nvidia-smi works on this host; `dmesg | tail` shows the driver's messages";
        const CHILD: &str = "mount /proc, and check that mpu itself can be executed";
        let (code, exit, fix) = match self {
            E::State(error) => return error.facts(),
            E::NoDriver => ("no_driver", Exit::NotReady, "load it (`modprobe nvidia`), then probe again"),
            E::NotRoot => ("not_root", Exit::Refused, "run it as root: sudo mpu probe"),
            E::Namespace { source } => (
                "no_namespace",
                if source.raw_os_error() == Some(libc::EPERM) { Exit::Refused } else { Exit::Failed },
                "run it on the host rather than in a container, and check that user.max_pid_namespaces is not 0",
            ),
            E::Spawn { .. } => ("no_child", Exit::Failed, CHILD),
            E::Silent { .. } => ("child_failed", Exit::Failed, CHILD),
            E::Unsupervised { .. } => {
                ("not_supervised", Exit::Failed, "`mpu status` and `mpu doctor` say what the notify engine does")
            }
            E::Child { .. } => ("child_failed", Exit::Failed, SMI),
            E::Driver { source: RmError::Open { source, .. } } => (
                "no_device",
                if source.kind() == io::ErrorKind::PermissionDenied { Exit::Refused } else { Exit::NotReady },
                "check whether nvidia-smi works on this host: a GPU must be there",
            ),
            E::Driver { .. } => ("driver_refuses", Exit::Failed, SMI),
        };
        (code, exit, fix.to_string())
    }
}

/// The engine that serves the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEngine {
    /// The notify engine, if it is up: the child gets a listener as a container's first process does.
    Notify,
    /// The module: the child calls the driver directly.
    Module,
}

/// The measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// What the child saw.
    pub child: ChildObservation,
    /// The processes that a caller in our own namespace saw at the same time.
    pub host_list: Option<Vec<u32>>,
    /// Whether our own namespace is the initial one, so that its numbers are the host's.
    pub in_init_namespace: bool,
}

/// The child's result, as one line of JSON.
#[derive(Serialize, Deserialize)]
enum ChildMessage {
    Observed(ChildObservation),
    Failed(String),
}

/// Measures. `program` runs [`run_child`] with `arguments`; usually it is this executable.
pub fn measure(
    host: &Host,
    driver: Option<&Driver>,
    program: &Path,
    arguments: &[&str],
    under: ChildEngine,
) -> Result<Evidence, ProbeError> {
    if !host.has_capability(CAP_SYS_ADMIN) {
        return Err(ProbeError::NotRoot);
    }
    let driver = driver.ok_or(ProbeError::NoDriver)?;
    let _progress = Progress::of("asking the driver (the first client of a GPU waits for it to start)");
    // Become a client here first: a missing GPU or permission then has its own error, and the GPU stays started.
    let nodes = DeviceNodes::of(host);
    let ours =
        Client::of_first_gpu(&nodes, layout_release(driver.release)).map_err(|source| ProbeError::Driver { source })?;
    let supervised = under == ChildEngine::Notify && supervised_child::is_available(host);
    let mut child = spawn_in_new_namespace(host, program, arguments, &driver.version, supervised)?;
    let message = exchange_with_child(&mut child, || ours.pids().ok());
    let _ = child.wait();
    let (message, host_list) = message?;
    match message {
        ChildMessage::Observed(child) => {
            Ok(Evidence { child, host_list, in_init_namespace: host.in_init_pid_namespace() })
        }
        ChildMessage::Failed(message) => Err(ProbeError::Child { message }),
    }
}

/// Starts the child as the first process of a new PID namespace, under the notify engine if requested. A separate
/// thread does it, because the namespace also applies to all later children of the thread.
fn spawn_in_new_namespace(
    host: &Host,
    program: &Path,
    arguments: &[&str],
    version: &str,
    supervised: bool,
) -> Result<Child, ProbeError> {
    let failed = |source| ProbeError::Spawn { source };
    let mut command = Command::new(program);
    command.args(arguments).args(supervised.then_some("--supervised")).arg(version);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let conversation = supervised.then(|| supervised_child::prepare(&mut command)).transpose().map_err(failed)?;
    let spawn = move || {
        unshare_pid_namespace_of_children().map_err(|source| ProbeError::Namespace { source })?;
        command.spawn().map_err(|source| ProbeError::Spawn { source })
    };
    let died = |_| ProbeError::Spawn { source: io::Error::other("the thread that starts it died") };
    let mut child = thread::spawn(spawn).join().map_err(died)??;
    if let Some(conversation) = conversation {
        supervised_child::hand_over_listener(host, conversation).map_err(|source| {
            let _ = child.kill();
            let _ = child.wait();
            ProbeError::Unsupervised { source }
        })?;
    }
    Ok(child)
}

/// Sends the child its outer PID, reads its result, calls `list_from_here` while the child is still a client, and ends
/// the child.
fn exchange_with_child<T>(
    child: &mut Child,
    list_from_here: impl FnOnce() -> T,
) -> Result<(ChildMessage, T), ProbeError> {
    let no_answer = |source| ProbeError::Silent { source };
    let pipe = || no_answer(io::ErrorKind::BrokenPipe.into());
    let mut to = child.stdin.take().ok_or_else(pipe)?;
    let from = child.stdout.take().ok_or_else(pipe)?;
    writeln!(to, "{}", child.id()).map_err(no_answer)?;
    let mut line = String::new();
    BufReader::new(from).read_line(&mut line).map_err(no_answer)?;
    let host_list = list_from_here();
    drop(to); // The child ends at the end of its input.
    let message = serde_json::from_str(&line).map_err(|e| no_answer(e.into()))?;
    Ok((message, host_list))
}

/// The release whose parameter layouts are used: the newest known one if the driver's is unknown.
fn layout_release(release: Option<Release>) -> Release {
    release.unwrap_or(NEWEST_KNOWN)
}

/// The child: reads its outer PID, measures, writes the result, and stays a client until its input ends.
pub fn run_child(host: &Host, version: &str) -> io::Result<()> {
    let mut outer = String::new();
    let mut input = BufReader::new(io::stdin());
    input.read_line(&mut outer)?;
    let outer = outer.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    let nodes = DeviceNodes::of(host);
    let measured = child::measure(&nodes, layout_release(version.parse().ok()), outer);
    let (message, clients) = match measured {
        Ok((observation, clients)) => (ChildMessage::Observed(observation), Some(clients)),
        Err(error) => (ChildMessage::Failed(chain(&error)), None),
    };
    let line = serde_json::to_string(&message)?;
    writeln!(io::stdout(), "{line}")?;
    input.read_to_end(&mut Vec::new())?;
    drop(clients);
    Ok(())
}

/// This executable, also after its file was replaced.
pub fn this_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    fn code(result: Result<Evidence, ProbeError>) -> (&'static str, Exit) {
        let error = result.expect_err("nothing to measure here");
        (error.code(), error.exit())
    }

    #[test]
    fn probe_names_missing_prerequisites_first() {
        let fake = FakeHost::in_order();
        let driver = Driver::loaded(&fake.host());
        let measure = |driver: Option<&Driver>| {
            code(measure(&fake.host(), driver, Path::new("/nonexistent"), &[], ChildEngine::Notify))
        };
        assert_eq!(measure(None), ("no_driver", Exit::NotReady));
        fake.write("/proc/self/status", "CapEff:\t0000000000010000\n");
        assert_eq!(measure(driver.as_ref()), ("not_root", Exit::Refused));
        assert_eq!(measure(None), ("not_root", Exit::Refused), "before anything else");
    }

    #[test]
    fn plain_file_as_device_node_refuses_probe() {
        let fake = FakeHost::in_order();
        fake.write("/dev/nvidiactl", "a file");
        let driver = Driver::loaded(&fake.host());
        let result = measure(&fake.host(), driver.as_ref(), Path::new("/nonexistent"), &[], ChildEngine::Notify);
        assert_eq!(code(result), ("driver_refuses", Exit::Failed));
    }

    #[test]
    fn silent_probe_child_fails() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "read number"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let error = exchange_with_child(&mut child, || ()).map(|_| ()).expect_err("silent");
        assert_eq!(error.code(), "child_failed");
        child.wait().expect("ended");
    }

    #[test]
    fn child_gets_number_and_sends_result() {
        let script = r#"read n; echo '{"Failed":"I am '$n'"}'; read rest"#;
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let (message, seen) = exchange_with_child(&mut child, || 7).expect("a word");
        let ChildMessage::Failed(message) = message else { panic!("not the failure") };
        assert_eq!((message, seen), (format!("I am {}", child.id()), 7));
        assert!(child.wait().expect("ended").code().is_some());
    }
}
