//! Makes an engine read its files again, by systemd or by SIGHUP to the process at the engine's socket.
//!
//! At SIGHUP, Docker reads `daemon.json` again. containerd exits, and its service manager (systemd, k3s) restarts it; this module waits
//! for the restart.
//!
//! Source: NVIDIA Container Toolkit 1.20, `cmd/nvidia-ctk-installer/container`; `unix(7)`, `SCM_CREDENTIALS`.

use super::note::note;
use super::sys;
use crate::engines::Engine;
use crate::kebab_name::KebabName;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Number of attempts to reach an engine, which may still be starting.
const ATTEMPTS: u32 = 6;
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Time limit for an answer of the engine.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for containerd's restart.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of checks whether a wait is over.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The way to make an engine read its files again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    None,
    Signal,
    /// `systemctl restart`.
    Systemd,
}

impl Mode {
    /// The mode of this value of `--restart-mode`; the engine's default mode for an empty one. None if it does not work with the engine.
    pub fn of(value: &str, engine: Engine) -> Option<Mode> {
        match (value, engine) {
            ("none", _) => Some(Mode::None),
            ("systemd", _) | ("", Engine::Crio) => Some(Mode::Systemd),
            (_, Engine::Crio) => None,
            _ => Some(Mode::Signal),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    #[error("cannot find the engine's process at {}: {source}; name its socket with --socket, or use --restart-mode=systemd", socket.display())]
    NoProcess { socket: PathBuf, source: io::Error },
    #[error("process {} cannot be signalled", pid.as_raw_nonzero())]
    Signal { pid: Pid, source: io::Error },
    #[error("the engine ended after the signal, and no service manager has started it again: {} is silent", .0.display())]
    NotRestarted(PathBuf),
    #[error("cannot run {command}")]
    Start { command: String, source: io::Error },
    #[error("{command} failed ({status})")]
    Systemctl { command: String, status: ExitStatus },
}

/// Restarts or reloads the engine. `root` is the host's root. Stops waiting once `should_stop` returns true.
pub fn restart(
    engine: Engine,
    mode: Mode,
    socket: &Path,
    root: &Path,
    should_stop: &dyn Fn() -> bool,
) -> Result<(), RestartError> {
    match mode {
        Mode::None => {
            note(format!("{} is not restarted: it reads its files at its next start", engine.kebab_name()));
            Ok(())
        }
        Mode::Signal => signal(engine, socket, should_stop),
        Mode::Systemd => systemctl(engine, root, should_stop),
    }
}

fn systemctl(engine: Engine, root: &Path, should_stop: &dyn Fn() -> bool) -> Result<(), RestartError> {
    let mut command_line = vec!["systemctl".to_string(), "restart".into(), engine.kebab_name()];
    if root != Path::new("/") {
        command_line.splice(0..0, ["chroot".to_string(), root.display().to_string()]);
    }
    let command = command_line.join(" ");
    note(command.clone());
    let start = |source| RestartError::Start { command: command.clone(), source };
    let mut child = Command::new(&command_line[0]).args(&command_line[1..]).spawn().map_err(start)?;
    // systemd completes the restart, or gives up by its own limits, even if we stop waiting.
    while !should_stop() {
        match child.try_wait().map_err(start)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(RestartError::Systemctl { command, status }),
            None => sleep(POLL_INTERVAL),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    Ok(())
}

fn signal(engine: Engine, socket: &Path, should_stop: &dyn Fn() -> bool) -> Result<(), RestartError> {
    let mut attempt = 1;
    let (pid, pidfd) = loop {
        match pidfd_of_engine(engine, socket) {
            Ok(found) => break found,
            Err(source) if attempt == ATTEMPTS => {
                return Err(RestartError::NoProcess { socket: socket.into(), source });
            }
            Err(error) => {
                note(format!("{} does not answer yet ({attempt} of {ATTEMPTS}): {error}", engine.kebab_name()))
            }
        }
        attempt += 1;
        let deadline = Instant::now() + RETRY_DELAY;
        while Instant::now() < deadline {
            if should_stop() {
                return Ok(());
            }
            sleep(POLL_INTERVAL);
        }
    };
    pidfd_send_signal(&pidfd, Signal::HUP).map_err(|error| RestartError::Signal { pid, source: error.into() })?;
    note(format!("SIGHUP to {}, process {}", engine.kebab_name(), pid.as_raw_nonzero()));
    if engine == Engine::Docker {
        return Ok(());
    }
    let deadline = Instant::now() + RESTART_TIMEOUT;
    while Instant::now() < deadline && !should_stop() {
        match pid_of_engine(engine, socket) {
            Ok(now) if now != pid => {
                note(format!("{} is back, process {}", engine.kebab_name(), now.as_raw_nonzero()));
                return Ok(());
            }
            _ => sleep(POLL_INTERVAL),
        }
    }
    if should_stop() {
        return Ok(());
    }
    Err(RestartError::NotRestarted(socket.into()))
}

/// The PID and a pidfd of the process that answers at a socket. With the pidfd, a signal cannot reach a process with a reused PID.
fn pidfd_of_engine(engine: Engine, socket: &Path) -> io::Result<(Pid, OwnedFd)> {
    let pid = pid_of_engine(engine, socket)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    match pid_of_engine(engine, socket)? == pid {
        true => Ok((pid, pidfd)),
        false => Err(io::Error::other("it is just being started again")),
    }
}

/// The PID of the process that answers at a socket. `SO_PEERCRED` would return systemd's if systemd created the socket.
fn pid_of_engine(engine: Engine, socket: &Path) -> io::Result<Pid> {
    // Non-blocking: the standard library's connect would block while the engine's queue is full.
    let socket_fd =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // Before connect: otherwise the engine's first bytes would carry no credentials.
    set_socket_passcred(&socket_fd, true)?;
    connect(&socket_fd, &SocketAddrUnix::new(socket)?)?;
    let mut stream = UnixStream::from(socket_fd);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    if engine == Engine::Docker {
        stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
    }
    // containerd's gRPC server sends first, so no request is needed.
    match sys::sender(stream.as_fd())? {
        Some(pid) if pid == Pid::INIT || pid == getpid() => Err(io::Error::other("process 1 or we ourselves answer")),
        Some(pid) => Ok(pid),
        None => Err(io::Error::other("who answers is not in our PID namespace: this needs hostPID")),
    }
}
