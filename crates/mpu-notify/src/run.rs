//! `mpu run`: one command in a PID namespace of its own, under a listener.
//!
//! Owns the namespace, the small init that is its PID 1, and who answers: the host's supervisor if there is one, else this
//! process for as long as the command runs. Knows nothing of containers.

use super::error::NotifyError;
use super::{LISTENER_SOCKET, RETIRED};
use crate::caller::numbers::Lookup;
use crate::filter;
use crate::listener::message;
use crate::setting::Setting;
use crate::supervisor::registry::Registry;
use command_fds::{CommandFdExt, FdMapping};
use mpu_host::config::{Config, rules};
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, wait};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use std::ffi::OsString;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

/// The child's end of the conversation. Far from the descriptors that the caller gives to the command.
pub(crate) const SOCKET: i32 = 250;
/// What the parent sends once a supervisor answers the listener.
pub(crate) const ATTENDED: u8 = b'a';
/// Exit codes of `env`, `chroot` and `docker run`: we failed, the command cannot be executed, it is not there.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Signals that reach the command when they are sent to one of us.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The exit code for a failure of our own.
pub const OWN_FAILURE: u8 = FAILED;

/// Runs a command; its exit code, or 128 and the signal that ended it. `program` is the executable whose [`init`] is reached by
/// `arguments` and the command after them.
pub fn run(host: &Host, program: &Path, arguments: &[&str], command: &[OsString]) -> Result<u8, NotifyError> {
    if !host.has_capability(CAP_SYS_ADMIN) {
        return Err(NotifyError::NotRoot);
    }
    if !host.in_init_pid_namespace() {
        return Err(NotifyError::NotOnHost);
    }
    let failed = |source| NotifyError::Start { what: "the command".to_string(), source };
    // Before the child, so that no signal is lost in between.
    let mut signals = SignalsInfo::<WithOrigin>::new(FORWARDED).map_err(failed)?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut init = Command::new(program);
    init.args(arguments).args(command);
    init.fd_mappings(vec![FdMapping { parent_fd: theirs.into(), child_fd: SOCKET }])
        .map_err(|error| failed(io::Error::other(error)))?;
    let (born, birth) = std::sync::mpsc::channel();
    // The thread's children are born in the new namespace, so it is one that has no others; and it stays, because a child gets a signal
    // at the death of the thread that made it.
    let waiting = std::thread::spawn(move || {
        let child = mpu_host::own::unshare_pid_namespace_of_children().and_then(|()| init.spawn());
        // Ours of the socket goes with the command: only the child has it then.
        drop(init);
        let mut child = child.map_err(|source| NotifyError::Namespace { source })?;
        let _ = born.send(Pid::from_child(&child));
        child.wait().map_err(|source| NotifyError::Start { what: "the command".to_string(), source })
    });
    let wait = || waiting.join().unwrap_or_else(|_| Err(failed(io::Error::other("the thread that waits failed"))));
    let Ok(pid) = birth.recv() else {
        return Ok(code_of(wait()?));
    };
    let supervised = match attend(host, &ours) {
        Ok(supervised) => supervised,
        Err(error) => {
            let _ = kill_process(pid, Signal::KILL);
            wait()?;
            return Err(error);
        }
    };
    std::thread::spawn(move || forward(&mut signals, pid));
    let status = wait()?;
    drop(supervised);
    Ok(code_of(status))
}

/// Takes the child's listener and gives it to a supervisor.
fn attend(host: &Host, child: &UnixStream) -> Result<Option<Arc<Registry>>, NotifyError> {
    let failed = |source| NotifyError::Start { what: "the command".to_string(), source };
    let Some(handed) = message::receive(child.as_fd()).map_err(failed)? else {
        return Err(failed(io::Error::other("it ended before it was under a listener")));
    };
    let registry = match hand_over(host, handed.listener.as_fd()) {
        Ok(true) => None,
        Ok(false) | Err(_) => {
            // The command has begun already, with the limits that it was given.
            crate::supervisor::daemon::raise_limits();
            let config = Config::of(host)?;
            let (rules, budget) = (rules::compile(&config), config.notify_cpu_percent);
            let setting = Setting::new(Lookup::of_this_kernel(), &rules, budget).map_err(failed)?;
            let registry = Registry::of_this_process(Arc::new(setting)).map_err(failed)?;
            registry.adopt(handed.listener, &handed.container).map_err(failed)?;
            if registry.attend_late() {
                return Err(failed(io::Error::from_raw_os_error(libc::EAGAIN)));
            }
            Some(registry)
        }
    };
    (&*child).write_all(&[ATTENDED]).map_err(failed)?;
    Ok(registry)
}

/// Gives a listener to the host's supervisor, as an OCI runtime does; false if there is none.
pub fn hand_over(host: &Host, listener: BorrowedFd<'_>) -> io::Result<bool> {
    if host.at(RETIRED).exists() {
        return Ok(false);
    }
    match UnixStream::connect(host.at(LISTENER_SOCKET)) {
        Ok(stream) => send(&stream, listener).map(|()| true),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(false),
        Err(error) => Err(error),
    }
}

fn send(stream: &UnixStream, listener: BorrowedFd<'_>) -> io::Result<()> {
    let id = format!("mpu-run-{}", std::process::id());
    let state =
        json!({ "ociVersion": "1.0.2", "fds": ["seccompFd"], "pid": std::process::id(), "state": { "id": id } });
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [listener];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let text = state.to_string();
    sendmsg(stream, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Comes under the host's supervisor and becomes the command, in the namespaces that this process has or that the command enters.
/// Returns only with what is in the way.
pub fn join(host: &Host, command: &[OsString]) -> NotifyError {
    use std::os::unix::process::CommandExt;
    let failed = |source| NotifyError::Start { what: "the command".to_string(), source };
    let listener = match filter::listen() {
        Ok(listener) => listener,
        Err(source) => return NotifyError::NoListeners { source },
    };
    match hand_over(host, listener.as_fd()) {
        Ok(true) => drop(listener),
        Ok(false) => return NotifyError::NoAnswer { source: io::ErrorKind::NotFound.into() },
        Err(source) => return NotifyError::NoAnswer { source },
    }
    let Some((name, arguments)) = command.split_first() else {
        return failed(io::ErrorKind::InvalidInput.into());
    };
    failed(Command::new(name).args(arguments).exec())
}

/// Puts this process, and what it starts from now on, under a listener that the process at the other end of `stream` sees to.
/// Returns once that one says so.
pub fn come_under(stream: &mut UnixStream) -> io::Result<()> {
    let listener = filter::listen()?;
    send(stream, listener.as_fd())?;
    drop(listener);
    let mut word = [0];
    stream.read_exact(&mut word)?;
    if word != [ATTENDED] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(())
}

/// The namespace's PID 1: `/proc` of its own, the filter, the command, and the orphans that it reaps. Ends with the command's code.
pub fn init(command: &[OsString]) -> u8 {
    match under_filter(command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mpu: cannot start the command: {error}");
            FAILED
        }
    }
}

fn under_filter(command: &[OsString]) -> io::Result<u8> {
    own_proc()?;
    let mut stream = UnixStream::from(super::sys::inherited(SOCKET));
    let mut signals = SignalsInfo::<WithOrigin>::new(FORWARDED)?;
    come_under(&mut stream)?;
    // Not before: the signal comes when the thread that made us ends (PR_SET_PDEATHSIG(2const)), which it has by now.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if has_hung_up(&stream) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    drop(stream);
    let Some((name, arguments)) = command.split_first() else { return Ok(FAILED) };
    let child = match Command::new(name).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("mpu: {}: {error}", name.to_string_lossy());
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    let pid = Pid::from_child(&child);
    std::thread::spawn(move || forward(&mut signals, pid));
    reap(pid)
}

fn has_hung_up(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|_| !polled[0].revents().is_empty())
}

/// Mounts the namespace's own `/proc` where no other namespace sees it.
fn own_proc() -> io::Result<()> {
    super::sys::unshare_mounts()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

/// Waits for everybody, as PID 1 must; returns with the command.
fn reap(command: Pid) -> io::Result<u8> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                return Ok(code_of(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Signals that a process sent. Those of a terminal reach the command by themselves: it is in the same group.
fn forward(signals: &mut SignalsInfo<WithOrigin>, to: Pid) {
    for origin in signals.forever().filter(|origin| origin.process.is_some()) {
        if let Some(signal) = Signal::from_named_raw(origin.signal) {
            let _ = kill_process(to, signal);
        }
    }
}

fn code_of(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}
