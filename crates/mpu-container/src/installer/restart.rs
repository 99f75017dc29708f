//! Makes an engine read its files again, by systemd or by SIGHUP to the process at the engine's socket.
//!
//! At SIGHUP Docker reads `daemon.json` again. containerd ends, and its service manager (systemd, k3s) starts it again; this waits for
//! that.
//!
//! Source: NVIDIA Container Toolkit 1.20, `cmd/nvidia-ctk-installer/container`; `unix(7)`, `SCM_CREDENTIALS`.

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

/// Attempts to reach an engine, which may be about to start.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_secs(5);
/// How long an engine may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How long one may take to come back.
const BACK: Duration = Duration::from_secs(60);
/// Interval of checks for the end of a wait.
const STEP: Duration = Duration::from_millis(200);

/// The way to make an engine read its files again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    None,
    Signal,
    /// `systemctl restart`.
    Systemd,
}

impl Mode {
    /// The mode that a word names; for none, what suits the engine.
    pub fn of(word: &str, engine: Engine) -> Result<Mode, RestartError> {
        match (word, engine) {
            ("none", _) => Ok(Mode::None),
            ("systemd", _) | ("", Engine::Crio) => Ok(Mode::Systemd),
            ("signal", Engine::Crio) => {
                Err(RestartError::Unknown("signal (CRI-O reads runtimes at its start only)".into()))
            }
            ("signal" | "", _) => Ok(Mode::Signal),
            (other, _) => Err(RestartError::Unknown(other.into())),
        }
    }
}

/// Why an engine does not read its files again.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    #[error("--restart-mode={0} is not supported; use signal, systemd or none")]
    Unknown(String),
    #[error("cannot find the engine's process at {}: {source}; name its socket with --socket, or use --restart-mode=systemd", socket.display())]
    Silent { socket: PathBuf, source: io::Error },
    #[error("process {} cannot be signalled", pid.as_raw_nonzero())]
    Signal { pid: Pid, source: io::Error },
    #[error("the engine ended after the signal, and no service manager has started it again: {} is silent", .0.display())]
    Gone(PathBuf),
    #[error("cannot run {command}")]
    Start { command: String, source: io::Error },
    #[error("{command} failed ({status})")]
    Systemctl { command: String, status: ExitStatus },
}

/// Restarts or reloads the engine. `root` is the host's root. Stops waiting once `ended` returns true.
pub fn restart(
    engine: Engine,
    mode: Mode,
    socket: &Path,
    root: &Path,
    ended: &dyn Fn() -> bool,
    note: &dyn Fn(String),
) -> Result<(), RestartError> {
    match mode {
        Mode::None => {
            note(format!("{} is not restarted: it reads its files at its next start", engine.kebab_name()));
            Ok(())
        }
        Mode::Signal => signal(engine, socket, ended, note),
        Mode::Systemd => systemctl(engine, root, ended, note),
    }
}

fn systemctl(engine: Engine, root: &Path, ended: &dyn Fn() -> bool, note: &dyn Fn(String)) -> Result<(), RestartError> {
    let mut words = vec!["systemctl".to_string(), "restart".into(), engine.kebab_name()];
    if root != Path::new("/") {
        words.splice(0..0, ["chroot".to_string(), root.display().to_string()]);
    }
    let command = words.join(" ");
    note(command.clone());
    let start = |source| RestartError::Start { command: command.clone(), source };
    let mut child = Command::new(&words[0]).args(&words[1..]).spawn().map_err(start)?;
    // systemd does its work, or gives up by its own limits, whether or not we wait.
    while !ended() {
        match child.try_wait().map_err(start)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(RestartError::Systemctl { command, status }),
            None => sleep(STEP),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    Ok(())
}

fn signal(engine: Engine, socket: &Path, ended: &dyn Fn() -> bool, note: &dyn Fn(String)) -> Result<(), RestartError> {
    let mut attempt = 1;
    let (pid, process) = loop {
        match process_at(engine, socket) {
            Ok(process_at) => break process_at,
            Err(source) if attempt == ATTEMPTS => return Err(RestartError::Silent { socket: socket.into(), source }),
            Err(error) => {
                note(format!("{} does not answer yet ({attempt} of {ATTEMPTS}): {error}", engine.kebab_name()))
            }
        }
        attempt += 1;
        let until = Instant::now() + PAUSE;
        while Instant::now() < until {
            if ended() {
                return Ok(());
            }
            sleep(STEP);
        }
    };
    pidfd_send_signal(&process, Signal::HUP).map_err(|error| RestartError::Signal { pid, source: error.into() })?;
    note(format!("SIGHUP to {}, process {}", engine.kebab_name(), pid.as_raw_nonzero()));
    if engine == Engine::Docker {
        return Ok(());
    }
    let until = Instant::now() + BACK;
    while Instant::now() < until && !ended() {
        match pid_at(engine, socket) {
            Ok(now) if now != pid => {
                note(format!("{} is back, process {}", engine.kebab_name(), now.as_raw_nonzero()));
                return Ok(());
            }
            _ => sleep(STEP),
        }
    }
    if ended() {
        return Ok(());
    }
    Err(RestartError::Gone(socket.into()))
}

/// The process that answers at a socket, with a pidfd, so that the signal cannot reach a process with a reused PID.
fn process_at(engine: Engine, socket: &Path) -> io::Result<(Pid, OwnedFd)> {
    let pid = pid_at(engine, socket)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    match pid_at(engine, socket)? == pid {
        true => Ok((pid, process)),
        false => Err(io::Error::other("it is just being started again")),
    }
}

/// The process that answers at a socket. (SO_PEERCRED would name systemd if that has made the socket.)
fn pid_at(engine: Engine, socket: &Path) -> io::Result<Pid> {
    // The standard library would block while the engine's queue is full.
    let socket_fd =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // Before connect: otherwise the engine's first bytes would have no sender.
    set_socket_passcred(&socket_fd, true)?;
    connect(&socket_fd, &SocketAddrUnix::new(socket)?)?;
    let mut stream = UnixStream::from(socket_fd);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.set_read_timeout(Some(ANSWER))?;
    if engine == Engine::Docker {
        stream.write_all(b"GET /_ping HTTP/1.0\r\n\r\n")?;
    }
    // containerd's gRPC speaks first.
    match sys::sender(stream.as_fd())? {
        Some(pid) if pid == Pid::INIT || pid == getpid() => Err(io::Error::other("process 1 or we ourselves answer")),
        Some(pid) => Ok(pid),
        None => Err(io::Error::other("who answers is not in our PID namespace: this needs hostPID")),
    }
}
