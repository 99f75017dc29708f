//! `mpu notify hold`: the file descriptor store for hosts without systemd.
//!
//! Restarts a dead supervisor with all stored descriptors, even if a program in a container keeps one of its threads in the
//! kernel. Implements systemd's side of sd_notify(3) and sd_listen_fds(3).

use crate::FOLDER;
use crate::caller::proc_folder::of_process;
use crate::error::NotifyError;
use crate::log::log;
use crate::supervisor::daemon::{AGAIN, raise_limits};
use mpu_core::HostPid;
use mpu_host::host::Host;
use mpu_os::file::create_private_folder;
use mpu_os::lock::{self, LockError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The socket's file, beside the supervisor's own.
const SOCKET: &str = "/run/mpu/notify/keeper.sock";
/// Pause before the restart of a supervisor that died at once.
const PAUSE: Duration = Duration::from_millis(200);
/// The keeper holds this lock, so there is only one.
const LOCK: &str = "/run/mpu/notify/keeper.lock";
/// A process that only tests for a keeper holds the lock for less than this.
const PROBE_TIME: Duration = Duration::from_millis(500);
/// Interval of checks for a dead supervisor with a thread left in the kernel.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Pause after a failed start; each failure is a line in the log.
const LONG_PAUSE: Duration = Duration::from_secs(2);

struct StoredFd {
    name: String,
    fd: OwnedFd,
    /// Whether it is removed once its other side hangs up.
    polled: bool,
}

/// Runs and restarts a supervisor until it ends by itself, or fails before any was ready. Returns its exit code.
pub fn hold(program: &Path, arguments: &[&str]) -> Result<u8, NotifyError> {
    let failed = |source| NotifyError::Start { what: "the keeper".to_string(), source };
    // Survives the end of the parent's terminal session.
    let _ = rustix::process::setsid();
    let (signal_sender, child_signal) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    signal_hook::low_level::pipe::register(SIGCHLD, signal_sender).map_err(failed)?;
    // Ignores these signals: without its keeper's descriptors, containers' calls would fail.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).map_err(failed)?;
    }
    // Its sockets have their modes only after they are bound: no other user may come this far.
    create_private_folder(Path::new(FOLDER)).map_err(|source| NotifyError::File { path: FOLDER.into(), source })?;
    let Some(_lock) = take_lock(Path::new(LOCK)).map_err(failed)? else {
        log!("another keeper runs already, so this one ends");
        return Ok(0);
    };
    let _ = std::fs::remove_file(SOCKET);
    let socket = UnixDatagram::bind(SOCKET).map_err(failed)?;
    std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    raise_limits();
    let (mut stored, mut is_ready, mut stuck_children) = (Vec::new(), false, Vec::new());
    loop {
        let began = Instant::now();
        let mut child = match start(program, arguments, &stored) {
            Ok(child) => child,
            Err(source) if stored.is_empty() => return Err(failed(source)),
            // Does not give up: the stored descriptors would be lost.
            Err(error) => {
                log!("cannot restart the supervisor, trying again: {error}");
                std::thread::sleep(LONG_PAUSE);
                continue;
            }
        };
        let mut was_dead = false;
        let status = loop {
            let mut polled = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&child_signal, PollFlags::IN)];
            let timed_out = poll(&mut polled, Some(&CHECK_INTERVAL)) == Ok(0);
            let (has_message, child_ended) = (!polled[0].revents().is_empty(), !polled[1].revents().is_empty());
            if has_message {
                receive_message(&socket, &mut stored, &mut is_ready);
            }
            if child_ended {
                let _ = rustix::io::read(&child_signal, &mut [0u8; 64]);
            }
            stuck_children.retain_mut(|dead: &mut Child| matches!(dead.try_wait(), Ok(None)));
            if let Some(status) = child.try_wait().map_err(failed)? {
                break Some(status);
            }
            // It may just be ending, so it counts as dead only if the next check agrees.
            let is_dead = timed_out && has_died(&child);
            if is_dead && was_dead {
                break None;
            }
            was_dead = is_dead;
        };
        // Its last messages may still be in the socket.
        let _ = socket.set_nonblocking(true);
        while receive_message(&socket, &mut stored, &mut is_ready) {}
        let _ = socket.set_nonblocking(false);
        stored.retain(StoredFd::is_usable);
        match status {
            Some(status) if status.success() => {
                let _ = std::fs::remove_file(SOCKET);
                return Ok(0);
            }
            Some(status) if status.code() == Some(AGAIN.into()) => {}
            // It has printed the cause, no container needs it yet, and the next one would fail in the same way.
            Some(status) if !is_ready && status.code().is_some() => {
                let _ = std::fs::remove_file(SOCKET);
                return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
            }
            Some(status) => {
                log!("the supervisor ended ({status}); restarting it with {} descriptors", stored.len());
                if began.elapsed() < PAUSE {
                    std::thread::sleep(PAUSE);
                }
            }
            None => {
                log!(
                    "the supervisor died, but one of its threads is blocked at a container's memory; starting another with {} descriptors",
                    stored.len()
                );
                stuck_children.push(child);
            }
        }
    }
}

/// Whether the supervisor's first thread has ended. Another thread may still be in a system call that no signal ends; until then wait(2)
/// returns no status.
fn has_died(child: &Child) -> bool {
    let stat = HostPid::new(child.id()).and_then(|pid| of_process(pid).ok()?.read("stat").ok());
    // The state follows the command's name, which may hold anything.
    stat.is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z')))
}

/// Becomes the one keeper; none if another runs. Children do not inherit the descriptor, so the lock ends with this process.
fn take_lock(path: &Path) -> io::Result<Option<File>> {
    match lock::take(path, PROBE_TIME) {
        Ok(file) => Ok(Some(file)),
        Err(LockError::Held(_)) => Ok(None),
        Err(LockError::Io(error)) => Err(error),
    }
}

/// Whether a keeper runs, which restarts a dead supervisor.
pub fn is_alive(host: &Host) -> bool {
    lock::is_held(&host.at(LOCK))
}

/// Starts the supervisor with the stored descriptors, from number 3 on.
fn start(program: &Path, arguments: &[&str], stored: &[StoredFd]) -> io::Result<Child> {
    use command_fds::{CommandFdExt, FdMapping};
    let names: Vec<&str> = stored.iter().map(|entry| entry.name.as_str()).collect();
    let mappings =
        (3..).zip(stored).map(|(child_fd, entry)| Ok(FdMapping { parent_fd: entry.fd.try_clone()?, child_fd }));
    let mappings = mappings.collect::<io::Result<Vec<_>>>()?;
    // `LISTEN_PID` is the child's own PID: a shell sets it and then executes the supervisor.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).arg(program).args(arguments);
    command
        .env("NOTIFY_SOCKET", SOCKET)
        .env("LISTEN_FDS", stored.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"));
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    command.spawn()
}

/// Receives one message of the supervisor; false if there was none. `is_ready` becomes true once it reports that it answers callers.
fn receive_message(socket: &UnixDatagram, stored: &mut Vec<StoredFd>, is_ready: &mut bool) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 4096];
    let Ok(received) = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    else {
        return false;
    };
    let text = String::from_utf8_lossy(&text[..received.bytes]).into_owned();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        log!("cannot store a descriptor, none is free: {}", text.replace('\n', " "));
    }
    let has_line = |line: &str| text.lines().any(|found| found == line);
    *is_ready |= has_line("READY=1");
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_string();
    if has_line("FDSTOREREMOVE=1") {
        stored.retain(|entry| entry.name != name);
    }
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            let polled = !has_line("FDPOLL=0");
            stored.extend(fds.map(|fd| StoredFd { name: name.clone(), fd, polled }).filter(|_| has_line("FDSTORE=1")));
        }
    }
    true
}

impl StoredFd {
    /// Whether to keep it: as with systemd, a descriptor whose other side hung up is removed, unless `FDPOLL=0` was given.
    fn is_usable(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::empty())];
        let _ = poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
        !self.polled || !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// The path of this program, also after its file was replaced.
pub fn this_program() -> io::Result<PathBuf> {
    let found = std::env::current_exe()?;
    let text = found.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or(found.clone(), PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::{IoSlice, Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn keeper_is_unique_despite_brief_lock_probe() {
        let fake = mpu_host::host::fake::FakeHost::in_order();
        let path = fake.host().at(LOCK);
        assert!(!is_alive(&fake.host()) && !path.exists(), "looking makes nothing");
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let probe = lock::take(&path, Duration::ZERO).expect("no process has it");
        let later = std::thread::spawn({
            let path = path.clone();
            move || take_lock(&path)
        });
        std::thread::sleep(PROBE_TIME / 5);
        drop(probe);
        let keeper = later.join().expect("no panic").expect("a file");
        assert!(keeper.is_some() && is_alive(&fake.host()), "it waits for one who looks");
        assert!(take_lock(&path).expect("a file").is_none(), "there is one");
        drop(keeper);
        // A child that another test forks at this moment has the lock until its exec.
        let began = Instant::now();
        while is_alive(&fake.host()) {
            assert!(began.elapsed().as_secs() < 60, "a keeper that is gone lives on");
            std::thread::sleep(PROBE_TIME / 50);
        }
    }

    /// A second thread that outlives the first stands for a thread in an uninterruptible wait.
    #[test]
    fn process_with_dead_leader_has_died() {
        let program = "import ctypes, sys, threading\n\
            threading.Thread(target=sys.stdin.read).start()\n\
            print('up', flush=True)\n\
            ctypes.CDLL(None).syscall(60 if ctypes.sizeof(ctypes.c_long) == 8 and __import__('os').uname().machine == 'x86_64' else 93, 0)\n";
        let mut python = Command::new("python3");
        python.args(["-c", program]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let Ok(mut child) = python.spawn() else { return println!("skipped: no python3") };
        let mut up = [0; 3];
        child.stdout.take().expect("piped").read_exact(&mut up).expect("it is up");
        let began = Instant::now();
        while !has_died(&child) {
            assert!(began.elapsed().as_secs() < 60, "its first thread lives");
            std::thread::sleep(PROBE_TIME / 50);
        }
        assert!(child.try_wait().expect("ours").is_none(), "another thread lives");
        drop(child.stdin.take());
        child.wait().expect("all threads have ended");
        assert!(!has_died(&child), "nothing is left");
    }

    #[test]
    fn unpolled_descriptor_is_kept_after_hangup() {
        let (keeper, supervisor) = UnixDatagram::pair().expect("a pair of sockets");
        let mut stored = Vec::new();
        for message in ["FDSTORE=1\nFDNAME=polled", "FDSTORE=1\nFDNAME=unread\nFDPOLL=0"] {
            let (read, mut writer) = UnixStream::pair().expect("a pair of sockets");
            writer.write_all(b"a listener").expect("a word in a socket");
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let fds = [read.as_fd()];
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            sendmsg(&supervisor, &[IoSlice::new(message.as_bytes())], &mut ancillary, SendFlags::empty())
                .expect("sent");
            drop(writer);
            assert!(receive_message(&keeper, &mut stored, &mut false));
        }
        // A child that another test forks at this moment has the other side until its exec.
        let began = Instant::now();
        while stored.iter().all(StoredFd::is_usable) {
            assert!(began.elapsed().as_secs() < 60, "the one that hung up is usable");
            std::thread::sleep(PROBE_TIME / 50);
        }
        stored.retain(StoredFd::is_usable);
        let [entry] = &stored[..] else { panic!("{} are kept", stored.len()) };
        assert_eq!(entry.name, "unread");
        let mut text = String::new();
        UnixStream::from(entry.fd.try_clone().expect("a copy")).read_to_string(&mut text).expect("what was sent");
        assert_eq!(text, "a listener");

        supervisor.send(b"FDSTOREREMOVE=1\nFDNAME=unread").expect("sent");
        assert!(receive_message(&keeper, &mut stored, &mut false) && stored.is_empty());
    }
}
