//! The supervisor process: takes over from the previous supervisor, accepts new listeners and answers root's requests.

use crate::caller::pid_lookup::Lookup;
use crate::client::{Reply, State};
use crate::counters::{COUNTERS, Counters};
use crate::error::NotifyError;
use crate::listener::message;
use crate::lock;
use crate::log::log;
use crate::setting::Setting;
use crate::supervisor::fd_store;
use crate::supervisor::registry::{JOURNAL, Registry};
use crate::{CONTROL_SOCKET, FOLDER, LISTENER_SOCKET, RETIRED};
use mpu_host::config::{Config, rules};
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use mpu_host::phase::Phase;
use mpu_host::time::now;
use mpu_os::file::create_private_folder;
use mpu_os::socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Limit of a whole request, and of its whole answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The listener socket's name in the file descriptor store.
const SOCKET: &str = "socket";
/// Prefix of connections' names in the file descriptor store.
const CONNECTION: &str = "connection-";
/// How long a retired supervisor without containers waits for runtimes that are just starting one.
const LINGER: Duration = Duration::from_secs(1);
/// Pause after a failed accept, for example without free descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause between attempts to start threads that could not be started.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Size limit of a request: a command and a policy.
const MAX_REQUEST: u64 = 8 << 10;
/// The exit code that requests a restart with all stored descriptors (EX_TEMPFAIL of sysexits.h).
pub const AGAIN: u8 = 75;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was retired and its last listener has ended.
    Over,
    /// It received the request `again`.
    Again,
}

impl End {
    /// The exit code for the keeper.
    pub fn code(self) -> u8 {
        match self {
            End::Over => 0,
            End::Again => AGAIN,
        }
    }
}

/// Path of the listener socket during the last check before the end: no runtime connects to it there.
const ENDING_SOCKET: &str = "/run/mpu/notify/listener.ending";

struct Daemon {
    registry: Arc<Registry>,
    control: UnixListener,
    listener: UnixListener,
    /// Number of connections accepted by this supervisor.
    accepted: AtomicU64,
    /// Number of connections that may still bring a listener.
    open_connections: Arc<AtomicU64>,
    /// Connections whose thread could not be started.
    pending: Mutex<Vec<(String, Arc<UnixStream>)>>,
}

/// Runs the supervisor until it is retired or replaced.
///
/// # Errors
/// If this host cannot run a supervisor. No container, caller or client causes an error.
pub fn serve(host: &Host) -> Result<End, NotifyError> {
    if !host.has_capability(CAP_SYS_ADMIN) {
        return Err(NotifyError::NotRoot);
    }
    if !host.in_init_pid_namespace() {
        return Err(NotifyError::NotOnHost);
    }
    let config = Config::of(host)?;
    let setting = Setting::new(Lookup::of_this_kernel(), &rules::of_host(host, &config), config.notify_cpu_percent)
        .map_err(|source| NotifyError::NoListeners { source })?;
    raise_limits();
    Daemon::start(setting)?.run()
}

/// Limit of descriptors, as `mpu-notify.service` has it. The kernel's own hard limit of 4,096 has room for 512 cached processes of a
/// container, and a driver lists 950.
const MAX_FILES: u64 = 524_288;

/// Raises the limit of descriptors. A listener needs two, its threads open some for each call, and each cached process has one.
pub(crate) fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raise = |limit| setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit });
    if raise(maximum.map(|files| files.max(MAX_FILES))).is_err() {
        let _ = raise(maximum);
    }
}

fn file_error(path: &str) -> impl FnOnce(io::Error) -> NotifyError + '_ {
    move |source| NotifyError::File { path: path.into(), source }
}

impl Daemon {
    fn start(mut setting: Setting) -> Result<Daemon, NotifyError> {
        create_private_folder(Path::new(FOLDER)).map_err(file_error(FOLDER))?;
        let inherited = fd_store::inherited();
        if inherited.is_empty() {
            // Left by a supervisor that has ended with all its listeners.
            let _ = fs::remove_file(RETIRED);
        }
        setting.retired.store(Path::new(RETIRED).exists(), Relaxed);

        let (mut journal, mut socket, mut counters, mut listeners, mut connections) =
            (None, None, None, Vec::new(), Vec::new());
        for (name, fd) in inherited {
            match name.as_str() {
                JOURNAL => journal = Some(fd),
                COUNTERS => counters = Some(fd),
                // Without its path no runtime could connect.
                SOCKET if Path::new(LISTENER_SOCKET).exists() => socket = Some(UnixListener::from(fd)),
                SOCKET => fd_store::forget(SOCKET),
                _ if name.starts_with(CONNECTION) => connections.push((name, UnixStream::from(fd))),
                _ if message::is_listener(fd.as_fd()) => listeners.push((name, fd)),
                _ => log!("closing an inherited descriptor with the unknown name {name}"),
            }
        }
        setting.counters = open_counters(counters).map_err(file_error("the counters"))?;
        let registry = Registry::new(Arc::new(setting), journal).map_err(file_error("the journal"))?;
        // Before any listener is taken: calls fail or wait if the supervisor that took theirs ends.
        let control = bind(CONTROL_SOCKET)?;
        let listener = match socket {
            Some(socket) => socket,
            None => {
                let socket = bind(LISTENER_SOCKET).inspect_err(|_| drop(fs::remove_file(CONTROL_SOCKET)))?;
                fd_store::keep(SOCKET, socket.as_fd());
                socket
            }
        };
        for (name, fd) in listeners {
            if let Err(error) = registry.resume(fd, &name) {
                log!("the listener {name} cannot be resumed: {error}");
            }
        }
        let daemon = Daemon {
            registry,
            control,
            listener,
            accepted: AtomicU64::new(0),
            open_connections: Arc::default(),
            pending: Mutex::default(),
        };
        for (name, stream) in connections {
            daemon.receive(name, Arc::new(stream));
        }
        Ok(daemon)
    }

    fn run(self) -> Result<End, NotifyError> {
        fd_store::ready();
        let mut idle = None;
        loop {
            idle = self.is_idle().then(|| idle.unwrap_or_else(Instant::now));
            let remaining = idle.map(|since: Instant| LINGER.saturating_sub(since.elapsed()));
            let remaining = if self.retry_pending() { Some(RETRY_PAUSE) } else { remaining };
            if remaining == Some(Duration::ZERO) {
                // A runtime may have connected since the last check. If its listener is lost, all calls of its container fail (ENOSYS).
                let _ = fs::rename(LISTENER_SOCKET, ENDING_SOCKET);
                let mut last = [readable(self.listener.as_fd())];
                if poll(&mut last, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
                    let _ = fs::rename(ENDING_SOCKET, LISTENER_SOCKET);
                    self.accept();
                    continue;
                }
                for path in [ENDING_SOCKET, CONTROL_SOCKET, RETIRED] {
                    let _ = fs::remove_file(path);
                }
                // The next supervisor must not inherit these.
                [SOCKET, JOURNAL, COUNTERS].into_iter().for_each(fd_store::forget);
                return Ok(End::Over);
            }
            let timeout = remaining.map(|remaining| Timespec {
                tv_sec: remaining.as_secs() as i64,
                tv_nsec: remaining.subsec_nanos().into(),
            });
            let mut polled =
                [&self.control.as_fd(), &self.registry.changed.as_fd(), &self.listener.as_fd()].map(|fd| readable(*fd));
            match poll(&mut polled, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(|error| NotifyError::NoListeners { source: error.into() })?,
            };
            let [control_ready, changed, listener_ready] = polled.map(|fd| !fd.revents().is_empty());
            if changed {
                let _ = rustix::io::read(&self.registry.changed, &mut [0u8; 8]);
            }
            if listener_ready {
                self.accept();
            }
            if control_ready
                && let Some(end) = self.control.accept().ok().and_then(|(stream, _)| self.answer_request(&stream))
            {
                return Ok(end);
            }
        }
    }

    /// Whether no container needs the supervisor any more.
    fn is_idle(&self) -> bool {
        let retired = self.registry.setting.retired.load(Relaxed);
        retired && self.open_connections.load(SeqCst) == 0 && self.registry.len() == 0
    }

    /// Accepts a connection of a runtime.
    fn accept(&self) {
        let Ok((stream, _)) = self.listener.accept() else {
            std::thread::sleep(PAUSE);
            return;
        };
        let name = format!("{CONNECTION}{}-{}", std::process::id(), self.accepted.fetch_add(1, Relaxed));
        // crun connects when a container is created and sends when it is started, which may be much later; runc sends and hangs up at once.
        // A SIGKILL between accept and this line loses the container's listener: only this process has the connection.
        fd_store::keep_unread(&name, stream.as_fd());
        self.receive(name, Arc::new(stream));
    }

    /// Tries again to start threads that could not be started. Returns whether some still wait.
    fn retry_pending(&self) -> bool {
        let connections = std::mem::take(&mut *lock(&self.pending));
        for (name, stream) in connections {
            self.open_connections.fetch_sub(1, SeqCst);
            self.receive(name, stream);
        }
        self.registry.retry_pending() || !lock(&self.pending).is_empty()
    }

    fn receive(&self, name: String, stream: Arc<UnixStream>) {
        let (registry, open_connections) = (self.registry.clone(), self.open_connections.clone());
        let retry = (name.clone(), stream.clone());
        open_connections.fetch_add(1, SeqCst);
        let receive = move || {
            message::add_received_listener(stream.as_fd(), |new| {
                let added = registry.add(new.listener, &new.container);
                added.inspect_err(|error| log!("the listener of container {} is not answered: {error}", new.container))
            });
            fd_store::forget(&name);
            open_connections.fetch_sub(1, SeqCst);
            registry.signal_change();
        };
        if let Err(error) = std::thread::Builder::new().stack_size(256 << 10).spawn(receive) {
            log!("cannot start a thread for a new container, trying again: {error}");
            lock(&self.pending).push(retry);
        }
    }

    /// Answers one request of root.
    fn answer_request(&self, stream: &UnixStream) -> Option<End> {
        let request = String::from_utf8(socket::read_to_end(stream, MAX_REQUEST, TIMEOUT).ok()?).ok()?;
        let (command, rest) = request.split_once('\n').unwrap_or((&request, ""));
        let mut end = None;
        let reply = match command.trim() {
            "state" => {
                let _ = send(stream, &self.state());
                return None;
            }
            "retire" => self.set_retired(true),
            "resume" => self.set_retired(false),
            "policy" => self.set_policy(rest),
            "budget" => self.set_budget(rest),
            "again" => {
                self.registry.setting.counters.mark_planned_end();
                end = Some(End::Again);
                Ok(())
            }
            _ => Err("no such request".to_string()),
        };
        let reply = Reply { ok: reply.is_ok(), error: reply.err() };
        let _ = send(stream, &reply);
        end
    }

    fn state(&self) -> State {
        let setting = &self.registry.setting;
        let (restarts, restarts_last_hour) = setting.counters.restarts(now());
        State {
            version: env!("CARGO_PKG_VERSION").to_string(),
            state: if setting.retired.load(Relaxed) { Phase::Retired } else { Phase::Armed },
            pid: setting.pid,
            since: setting.counters.since(),
            restarts,
            restarts_last_hour,
            listeners: self.registry.len(),
            containers: self.registry.containers(),
            costs: self.registry.costs(),
            cpu_percent: Some(setting.budget.load(Relaxed)),
            inside: setting.counters.inside.load(Relaxed),
            lookup: setting.lookup().name().to_string(),
            passed_on: setting.counters.passed_on(),
            translated: setting.counters.translated(),
            passed: setting.counters.passed(),
            policy: setting.rules().text().lines().map(str::to_string).collect(),
        }
    }

    /// The listener socket stays open while there are containers: an `exec` into one needs it.
    fn set_retired(&self, retired: bool) -> Result<(), String> {
        let marked = if retired { fs::write(RETIRED, "") } else { fs::remove_file(RETIRED) };
        marked
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error.to_string()) })?;
        self.registry.setting.retired.store(retired, Relaxed);
        Ok(())
    }

    fn set_policy(&self, text: &str) -> Result<(), String> {
        self.registry.setting.set_rules(text).map_err(|bad| format!("line {} is no rule", bad.line))
    }

    fn set_budget(&self, text: &str) -> Result<(), String> {
        let percent = text.trim().parse().map_err(|_| "a budget is a number of percent".to_string())?;
        self.registry.setting.budget.store(percent, Relaxed);
        Ok(())
    }
}

/// The previous supervisor's counters, or new ones.
fn open_counters(fd: Option<OwnedFd>) -> io::Result<Counters> {
    let file = match fd {
        Some(fd) => fd,
        None => {
            let fd = memfd_create("mpu-counters", MemfdFlags::CLOEXEC)?;
            fd_store::keep(COUNTERS, fd.as_fd());
            fd
        }
    };
    Counters::map_file(&fs::File::from(file), now())
}

/// Sends an answer to a client. No new container is accepted meanwhile, so a slow client gets a part of it only.
fn send(stream: &UnixStream, answer: &impl Serialize) -> io::Result<()> {
    socket::write_all(stream, &serde_json::to_vec(answer)?, TIMEOUT)
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Creates a socket for root only. Replaces the socket of an earlier supervisor.
fn bind(path: &str) -> Result<UnixListener, NotifyError> {
    let _ = fs::remove_file(path);
    // Only root can enter the folder, so no other user connects before the mode is set.
    let socket = UnixListener::bind(path).map_err(file_error(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(file_error(path))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn slow_client_ends_answer_at_timeout() {
        let (supervisor, mut client) = UnixStream::pair().expect("a connection");
        // Each read makes room for a further part of the answer.
        std::thread::spawn(move || {
            while client.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let error = send(&supervisor, &vec![0; 1 << 20]).expect_err("an answer of 2 MiB takes ten seconds");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
