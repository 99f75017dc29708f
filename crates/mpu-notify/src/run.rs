//! `mpu run`: one command under a listener in a new PID namespace, with a small init as its PID 1.
//!
//! The host's supervisor answers the calls if it runs, else this process does while the command runs.

use super::error::NotifyError;
use super::{LISTENER_SOCKET, RETIRED};
use crate::caller::pid_lookup::Lookup;
use crate::filter;
use crate::listener::message;
use crate::setting::Setting;
use crate::supervisor::registry::Registry;
use command_fds::{CommandFdExt, FdMapping};
use mpu_host::config::{Config, rules};
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use mpu_host::progress::print_line;
use mpu_os::socket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{
    Pid, Resource, Signal, WaitOptions, getrlimit, kill_process, set_parent_process_death_signal, wait,
};
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
use std::time::{Duration, Instant};

/// Descriptor of the child's end of the socket pair. High, because the user may pass low ones to the command.
pub(crate) const SOCKET: i32 = 250;
/// The parent sends this once a supervisor has been sent the listener, or one of its own answers it.
pub(crate) const SUPERVISED: u8 = b'a';
/// Limit of supervisors that are sent one listener.
const MAX_HAND_OVERS: u32 = 16;
/// Pause after a supervisor that did not take it. One without room refuses at once.
const HAND_OVER_PAUSE: Duration = Duration::from_millis(50);
/// How long threads of this process's own listener may be missing: the user may have no room for them for a moment.
const THREAD_TIMEOUT: Duration = Duration::from_secs(2);
/// How long supervisors may take to receive a listener. A restart after a crash takes up to two seconds.
const RECEIPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time of one supervisor to receive it, at least.
const MIN_RECEIPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Exit codes of `env`, `chroot` and `docker run`: own failure, command not executable, command not found.
pub const OWN_FAILURE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Signals that this process and its init forward to the command.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Runs a command. Returns its exit code, or 128 plus the signal that ended it. `program` with `arguments` and the command calls [`init`].
pub fn run(host: &Host, program: &Path, arguments: &[&str], command: &[OsString]) -> Result<u8, NotifyError> {
    let failed = |source| NotifyError::Start { what: "the command".to_string(), source };
    // First, because facts of the host cannot be read without a free descriptor, either.
    if getrlimit(Resource::Nofile).current.is_some_and(|limit| limit <= u64::from(SOCKET.unsigned_abs())) {
        return Err(failed(io::Error::from_raw_os_error(libc::EMFILE)));
    }
    if !host.has_capability(CAP_SYS_ADMIN) {
        return Err(NotifyError::NotRoot);
    }
    if !host.in_init_pid_namespace() {
        return Err(NotifyError::NotOnHost);
    }
    // Before the child starts, so that no signal is lost.
    let mut signals = SignalsInfo::<WithOrigin>::new(FORWARDED).map_err(failed)?;
    let mut init = Command::new(program);
    init.args(arguments).args(command);
    let own_end = prepare(&mut init).map_err(failed)?;
    let (pid_sender, pid_receiver) = std::sync::mpsc::channel();
    // A thread of its own, because all its later children are in the new namespace. It waits, because its end would signal the child
    // (PR_SET_PDEATHSIG).
    let waiter = std::thread::spawn(move || {
        let child = mpu_host::sys::unshare_pid_namespace_of_children().and_then(|()| init.spawn());
        // Closes our copy of the child's end of the socket.
        drop(init);
        let mut child = child.map_err(|source| NotifyError::Namespace { source })?;
        let _ = pid_sender.send(Pid::from_child(&child));
        child.wait().map_err(|source| NotifyError::Start { what: "the command".to_string(), source })
    });
    let wait = || waiter.join().unwrap_or_else(|_| Err(failed(io::Error::other("the thread that waits failed"))));
    let Ok(pid) = pid_receiver.recv() else {
        return Ok(exit_code(wait()?));
    };
    let registry = match supervise(host, &own_end) {
        Ok(registry) => registry,
        Err(error) => {
            let _ = kill_process(pid, Signal::KILL);
            wait()?;
            return Err(error);
        }
    };
    std::thread::spawn(move || forward(&mut signals, pid));
    let status = wait()?;
    drop(registry);
    Ok(exit_code(status))
}

/// Gives a command that will install the filter its end of a socket pair; returns the parent's end.
pub fn prepare(command: &mut Command) -> io::Result<UnixStream> {
    let (own_end, child_end) = UnixStream::pair()?;
    let mappings = vec![FdMapping { parent_fd: child_end.into(), child_fd: SOCKET }];
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    Ok(own_end)
}

/// Receives the child's listener. Without a supervisor, this process answers it.
fn supervise(host: &Host, child: &UnixStream) -> Result<Option<Arc<Registry>>, NotifyError> {
    let failed = |source| NotifyError::Start { what: "the command".to_string(), source };
    let Some(new) = message::receive(child.as_fd()).map_err(failed)? else {
        return Err(failed(io::Error::other("it ended before its listener was installed")));
    };
    let registry = match hand_over(host, new.listener.as_fd()) {
        Ok(true) => None,
        Ok(false) | Err(_) => {
            // The init has started already, with the limits of the user.
            crate::supervisor::daemon::raise_limits();
            let config = Config::of(host)?;
            let (rules, budget) = (rules::of_host(host, &config), config.notify_cpu_percent);
            let setting = Setting::new(Lookup::of_this_kernel(), &rules, budget).map_err(failed)?;
            let registry = Registry::of_this_process(Arc::new(setting)).map_err(failed)?;
            registry.add(new.listener, &new.container).map_err(failed)?;
            let deadline = Instant::now() + THREAD_TIMEOUT;
            while registry.retry_pending() {
                if Instant::now() > deadline {
                    return Err(failed(io::Error::from_raw_os_error(libc::EAGAIN)));
                }
                std::thread::sleep(HAND_OVER_PAUSE);
            }
            Some(registry)
        }
    };
    (&*child).write_all(&[SUPERVISED]).map_err(failed)?;
    Ok(registry)
}

/// Sends a listener to the host's supervisor, as an OCI runtime does; false if none takes listeners.
///
/// # Errors
/// If the socket does not accept the listener, or supervisors died or had no room [`MAX_HAND_OVERS`] times.
pub fn hand_over(host: &Host, listener: BorrowedFd<'_>) -> io::Result<bool> {
    let deadline = Instant::now() + RECEIPT_TIMEOUT;
    let mut last_error = io::Error::from(io::ErrorKind::ConnectionReset);
    for _ in 0..MAX_HAND_OVERS {
        if host.at(RETIRED).exists() {
            return Ok(false);
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        let sent = socket::connect(&host.at(LISTENER_SOCKET), remaining).and_then(|stream| {
            send(&stream, listener)?;
            wait_until_received(&stream, deadline)
        });
        match sent.as_ref().map_err(io::Error::kind) {
            Ok(()) => return Ok(true),
            Err(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => return Ok(false),
            Err(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {}
            Err(_) => return sent.map(|()| true),
        }
        last_error = sent.err().unwrap_or(last_error);
        std::thread::sleep(HAND_OVER_PAUSE.min(deadline.saturating_duration_since(Instant::now())));
    }
    Err(last_error)
}

/// Waits until the supervisor has read the message, or `deadline`. It reads the message once the listener is stored.
///
/// # Errors
/// `ECONNRESET` if it died with the message unread and the connection not stored (`unix_release_sock` of net/unix/af_unix.c).
fn wait_until_received(stream: &UnixStream, deadline: Instant) -> io::Result<()> {
    // The next supervisor gets a connection without a message, and must not wait for one.
    stream.shutdown(std::net::Shutdown::Write)?;
    // The connect may have taken all of the time.
    let deadline = deadline.max(Instant::now() + MIN_RECEIPT_TIMEOUT);
    loop {
        // The kernel has no timeout of zero.
        let remaining = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(remaining))?;
        match { stream }.read(&mut [0]) {
            // With a timeout the kernel does not restart it after a signal (signal(7)).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // A slow supervisor has the message, and the calls wait for it.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return Ok(()),
            received => return received.map(drop),
        }
    }
}

/// Sends a listener as an OCI runtime does.
pub(crate) fn send(stream: &UnixStream, listener: BorrowedFd<'_>) -> io::Result<()> {
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

/// Executes the command under the host's supervisor, in this process's namespaces. Returns only an error.
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

/// Installs the filter on this process and its future children, and sends the listener through `stream`. Returns once a supervisor has it.
pub fn install_filter(stream: &mut UnixStream) -> io::Result<()> {
    let listener = filter::listen()?;
    send(stream, listener.as_fd())?;
    drop(listener);
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    if byte != [SUPERVISED] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(())
}

/// The namespace's PID 1: mounts `/proc`, installs the filter, runs the command and reaps orphans. Returns the command's exit code.
pub fn init(command: &[OsString]) -> u8 {
    match run_filtered(command) {
        Ok(code) => code,
        Err(error) => {
            print_line(format_args!("mpu: cannot start the command: {error}"));
            OWN_FAILURE
        }
    }
}

fn run_filtered(command: &[OsString]) -> io::Result<u8> {
    let mut stream = UnixStream::from(super::sys::inherited(SOCKET)?);
    mount_proc()?;
    let mut signals = SignalsInfo::<WithOrigin>::new(FORWARDED)?;
    install_filter(&mut stream)?;
    // The signal comes when the thread that started this process ends (PR_SET_PDEATHSIG(2const)). If it ended before this, no signal
    // comes, but the socket has hung up.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if has_hung_up(&stream) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    drop(stream);
    let Some((name, arguments)) = command.split_first() else { return Ok(OWN_FAILURE) };
    let child = match Command::new(name).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            print_line(format_args!("mpu: {}: {error}", name.to_string_lossy()));
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

/// Mounts the namespace's `/proc` in a new mount namespace.
fn mount_proc() -> io::Result<()> {
    super::sys::unshare_mounts()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", "/proc", "proc", flags, None)?)
}

/// Reaps all children, as PID 1 must, until the command ends.
fn reap(command: Pid) -> io::Result<u8> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                return Ok(exit_code(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Forwards signals from processes. Signals from a terminal reach the command directly: it is in the same process group.
fn forward(signals: &mut SignalsInfo<WithOrigin>, to: Pid) {
    for origin in signals.forever().filter(|origin| origin.process.is_some()) {
        if let Some(signal) = Signal::from_named_raw(origin.signal) {
            let _ = kill_process(to, signal);
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(OWN_FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;
    use std::os::unix::net::UnixListener;

    #[test]
    fn listener_is_sent_again_after_supervisor_died_unread() {
        let fake = FakeHost::in_order();
        let path = fake.host().at(LISTENER_SOCKET);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let listening = UnixListener::bind(&path).expect("a socket");
        let supervisor = std::thread::spawn(move || {
            // As if it had been killed between accept and the file descriptor store. A closed socket with an unread message resets.
            let (lost, _) = listening.accept().expect("a runtime");
            let mut polled = [PollFd::new(&lost, PollFlags::IN)];
            assert_eq!(poll(&mut polled, None), Ok(1), "the message");
            drop(lost);
            let (mut received, _) = listening.accept().expect("the runtime again");
            let mut message = String::new();
            received.read_to_string(&mut message).expect("the message, and its end");
            message
        });
        let listener = std::fs::File::open("/dev/null").expect("any descriptor");
        assert!(hand_over(&fake.host(), listener.as_fd()).expect("received"));
        // Ends the wait for another hand-over, if there was none.
        drop(UnixStream::connect(&path));
        assert!(supervisor.join().expect("two connections").contains("seccompFd"));
    }

    #[test]
    fn unread_listener_is_an_error() {
        let fake = FakeHost::in_order();
        let path = fake.host().at(LISTENER_SOCKET);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let listening = UnixListener::bind(&path).expect("a socket");
        let end = listening.try_clone().expect("a copy");
        let supervisors = std::thread::spawn(move || listening.incoming().map_while(Result::ok).count());
        let listener = std::fs::File::open("/dev/null").expect("any descriptor");
        let began = Instant::now();
        let error = hand_over(&fake.host(), listener.as_fd()).expect_err("none has it");
        assert!(began.elapsed() >= HAND_OVER_PAUSE * (MAX_HAND_OVERS - 1), "{:?}", began.elapsed());
        assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
        rustix::net::shutdown(&end, rustix::net::Shutdown::Read).expect("no further connection");
        assert_eq!(supervisors.join().expect("no panic"), MAX_HAND_OVERS as usize);
    }
}
