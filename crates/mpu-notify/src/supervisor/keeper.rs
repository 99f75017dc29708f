//! `mpu notify hold`: the file descriptor store for hosts without systemd.
//!
//! Owns copies of the supervisor's descriptors, and that there is a supervisor: one that dies is started again with all that was
//! kept, also when a program in a container keeps a thread of the dead one in the kernel. Speaks the side of sd_notify(3) and
//! sd_listen_fds(3) that systemd has elsewhere. Knows nothing of what the descriptors are for.

use crate::CONTROL_SOCKET;
use crate::caller::proc_folder::of_process;
use crate::error::NotifyError;
use crate::log::say;
use crate::supervisor::daemon::{AGAIN, raise_limits};
use mpu_core::HostPid;
use mpu_host::host::Host;
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
/// A supervisor that dies at once is not started again at once.
const PAUSE: Duration = Duration::from_millis(200);
/// Its owner holds this file locked for as long as it lives: there is one keeper.
const LOCK: &str = "/run/mpu/notify/keeper.lock";
/// A process that only looks whether there is a keeper has the lock so long at most.
const LOOK: Duration = Duration::from_millis(500);
/// So often is looked whether a supervisor has died of which a thread is left.
const STUCK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Between two attempts when the kernel starts none; each has a line in the log.
const LONG_PAUSE: Duration = Duration::from_secs(2);

/// A descriptor that is kept.
struct Kept {
    name: String,
    fd: OwnedFd,
    /// Whether it is let go once it has hung up.
    polled: bool,
}

/// Keeps a supervisor alive until it ends by itself.
pub fn hold(program: &Path, arguments: &[&str]) -> Result<(), NotifyError> {
    let failed = |source| NotifyError::Start { what: "the keeper".to_string(), source };
    // The process that started this one goes away, with its terminal.
    let _ = rustix::process::setsid();
    let (wake, woken) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    signal_hook::low_level::pipe::register(SIGCHLD, wake).map_err(failed)?;
    // A keeper that goes takes the containers' calls with it: it goes when the supervisor says so.
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        signal_hook::flag::register(signal, ignored).map_err(failed)?;
    }
    let _ = std::fs::create_dir_all(Path::new(CONTROL_SOCKET).parent().unwrap_or(Path::new("/")));
    let Some(_lock) = take_lock(Path::new(LOCK)).map_err(failed)? else {
        say!("another keeper lives; this one goes");
        return Ok(());
    };
    let _ = std::fs::remove_file(SOCKET);
    let socket = UnixDatagram::bind(SOCKET).map_err(failed)?;
    std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    raise_limits();
    let (mut kept, mut stuck) = (Vec::new(), Vec::new());
    loop {
        let began = Instant::now();
        let mut child = match start(program, arguments, &kept) {
            Ok(child) => child,
            Err(source) if kept.is_empty() => return Err(failed(source)),
            // Callers go on waiting: all that is kept would go with this process.
            Err(error) => {
                say!("the supervisor cannot be started again now: {error}");
                std::thread::sleep(LONG_PAUSE);
                continue;
            }
        };
        let mut was_dead = false;
        let status = loop {
            let mut polled = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&woken, PollFlags::IN)];
            let looks = poll(&mut polled, Some(&STUCK)) == Ok(0);
            let (said, died) = (!polled[0].revents().is_empty(), !polled[1].revents().is_empty());
            if said {
                listen(&socket, &mut kept);
            }
            if died {
                let _ = rustix::io::read(&woken, &mut [0u8; 64]);
            }
            stuck.retain_mut(|dead: &mut Child| matches!(dead.try_wait(), Ok(None)));
            if let Some(status) = child.try_wait().map_err(failed)? {
                break Some(status);
            }
            // It could be about to end; a second later it is not.
            let is_dead = looks && has_died(&child);
            if is_dead && was_dead {
                break None;
            }
            was_dead = is_dead;
        };
        // What it said last is still in the socket.
        let _ = socket.set_nonblocking(true);
        while listen(&socket, &mut kept) {}
        let _ = socket.set_nonblocking(false);
        kept.retain(Kept::is_of_use);
        match status {
            Some(status) if status.success() => {
                let _ = std::fs::remove_file(SOCKET);
                return Ok(());
            }
            Some(status) if status.code() == Some(AGAIN.into()) => {}
            Some(status) => {
                say!("the supervisor ended ({status}); it is started again with {} descriptors", kept.len());
                if began.elapsed() < PAUSE {
                    std::thread::sleep(PAUSE);
                }
            }
            None => {
                say!(
                    "the supervisor died, and the kernel keeps one of its threads at a container's memory; another is started with {} descriptors",
                    kept.len()
                );
                stuck.push(child);
            }
        }
    }
}

/// Whether the supervisor's first thread has ended: none of the others runs any more, but one may be in a system call that no signal ends.
/// Only when that one is over, too, is there a status.
fn has_died(child: &Child) -> bool {
    let stat = HostPid::new(child.id()).and_then(|pid| of_process(pid).ok()?.read("stat").ok());
    // The state follows the command's name, which may hold anything.
    stat.is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('Z')))
}

/// Becomes the one keeper; none if another lives. What it starts does not have the descriptor, so the lock ends with it.
fn take_lock(path: &Path) -> io::Result<Option<File>> {
    match lock::take(path, LOOK) {
        Ok(file) => Ok(Some(file)),
        Err(LockError::Held(_)) => Ok(None),
        Err(LockError::Io(error)) => Err(error),
    }
}

/// Whether a keeper lives: it starts a supervisor again that has died.
pub fn lives(host: &Host) -> bool {
    lock::is_held(&host.at(LOCK))
}

/// Starts the supervisor with everything that is kept, from descriptor 3 on.
fn start(program: &Path, arguments: &[&str], kept: &[Kept]) -> io::Result<Child> {
    use command_fds::{CommandFdExt, FdMapping};
    let names: Vec<&str> = kept.iter().map(|held| held.name.as_str()).collect();
    let mappings = (3..).zip(kept).map(|(child_fd, held)| Ok(FdMapping { parent_fd: held.fd.try_clone()?, child_fd }));
    let mappings = mappings.collect::<io::Result<Vec<_>>>()?;
    // `LISTEN_PID` is the child's own number, which only the child knows: a shell puts it in and becomes the supervisor.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "LISTEN_PID=$$ exec \"$@\"", "sh"]).arg(program).args(arguments);
    command
        .env("NOTIFY_SOCKET", SOCKET)
        .env("LISTEN_FDS", kept.len().to_string())
        .env("LISTEN_FDNAMES", names.join(":"));
    command.fd_mappings(mappings).map_err(io::Error::other)?;
    command.spawn()
}

/// Takes one message of the supervisor; false if there was none.
fn listen(socket: &UnixDatagram, kept: &mut Vec<Kept>) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = [0; 4096];
    let Ok(received) = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    else {
        return false;
    };
    let text = String::from_utf8_lossy(&text[..received.bytes]).into_owned();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        say!("no descriptor is left for: {}", text.replace('\n', " "));
    }
    let says = |line: &str| text.lines().any(|found| found == line);
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or("stored").to_string();
    if says("FDSTOREREMOVE=1") {
        kept.retain(|held| held.name != name);
    }
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            let polled = !says("FDPOLL=0");
            kept.extend(fds.map(|fd| Kept { name: name.clone(), fd, polled }).filter(|_| says("FDSTORE=1")));
        }
    }
    true
}

impl Kept {
    /// Whether anything can still come of it: as with systemd, one that has hung up is let go, unless its giver said otherwise.
    fn is_of_use(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::empty())];
        let _ = poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
        !self.polled || !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }
}

/// This program, by a path that is still right after it was replaced.
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
        assert!(!lives(&fake.host()) && !path.exists(), "looking makes nothing");
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let look = lock::take(&path, Duration::ZERO).expect("no process has it");
        let later = std::thread::spawn({
            let path = path.clone();
            move || take_lock(&path)
        });
        std::thread::sleep(LOOK / 5);
        drop(look);
        let keeper = later.join().expect("no panic").expect("a file");
        assert!(keeper.is_some() && lives(&fake.host()), "it waits for one who looks");
        assert!(take_lock(&path).expect("a file").is_none(), "there is one");
        drop(keeper);
        // A process that another test starts at this moment has the lock until it runs its own program.
        let began = Instant::now();
        while lives(&fake.host()) {
            assert!(began.elapsed().as_secs() < 60, "a keeper that is gone lives on");
            std::thread::sleep(LOOK / 50);
        }
    }

    /// What a thread in an uninterruptible wait leaves of its process, a thread leaves that lives on when the first one has ended.
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
            std::thread::sleep(LOOK / 50);
        }
        assert!(child.try_wait().expect("ours").is_none(), "another thread lives");
        drop(child.stdin.take());
        child.wait().expect("all threads have ended");
        assert!(!has_died(&child), "nothing is left");
    }

    #[test]
    fn unpolled_descriptor_is_kept_after_hangup() {
        let (ours, theirs) = UnixDatagram::pair().expect("a pair of sockets");
        let mut kept = Vec::new();
        for words in ["FDSTORE=1\nFDNAME=polled", "FDSTORE=1\nFDNAME=unread\nFDPOLL=0"] {
            let (read, mut written) = UnixStream::pair().expect("a pair of sockets");
            written.write_all(b"a listener").expect("a word in a socket");
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let fds = [read.as_fd()];
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            sendmsg(&theirs, &[IoSlice::new(words.as_bytes())], &mut ancillary, SendFlags::empty()).expect("sent");
            drop(written);
            assert!(listen(&ours, &mut kept));
        }
        kept.retain(Kept::is_of_use);
        let [held] = &kept[..] else { panic!("{} are kept", kept.len()) };
        assert_eq!(held.name, "unread");
        let mut text = String::new();
        UnixStream::from(held.fd.try_clone().expect("a copy")).read_to_string(&mut text).expect("what was sent");
        assert_eq!(text, "a listener");

        theirs.send(b"FDSTOREREMOVE=1\nFDNAME=unread").expect("sent");
        assert!(listen(&ours, &mut kept) && kept.is_empty());
    }
}
