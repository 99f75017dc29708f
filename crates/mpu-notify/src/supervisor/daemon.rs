//! The supervisor as a process: its sockets, and its life.
//!
//! Owns coming up with whatever a supervisor before it left, taking new listeners, and being asked and told things by root.
//! What happens to a notification is `attend`'s.

use crate::caller::numbers::Lookup;
use crate::client::State;
use crate::counters::{COUNTERS, Counters};
use crate::error::NotifyError;
use crate::listener::message;
use crate::log::say;
use crate::setting::Setting;
use crate::supervisor::fd_store;
use crate::supervisor::registry::{JOURNAL, Registry};
use crate::{CONTROL_SOCKET, LISTENER_SOCKET, RETIRED};
use mpu_host::config::{Config, rules};
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use mpu_host::phase::Phase;
use mpu_host::time::now;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the other side of a connection may be silent.
const PATIENCE: Duration = Duration::from_secs(2);
/// The listener socket's name with the keeper.
const SOCKET: &str = "socket";
/// What connections' names with the keeper begin with.
const CONNECTION: &str = "connection-";
/// So long a retired supervisor without a container waits for those of runtimes that knew its socket.
const LINGER: Duration = Duration::from_secs(1);
/// Between two attempts to take a connection when there is no descriptor left for one.
const PAUSE: Duration = Duration::from_millis(50);
/// Between two attempts to begin what there was no thread for.
const LATE: Duration = Duration::from_millis(500);
/// The longest request: a word and a policy.
const LONGEST_REQUEST: u64 = 8 << 10;
/// The exit code that asks the parent to start this program again, with all that was kept (EX_TEMPFAIL of sysexits.h).
pub const AGAIN: u8 = 75;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was retired, and the last listener has gone.
    Over,
    /// It got the command to make room for another.
    Again,
}

impl End {
    /// The exit code that tells the keeper.
    pub fn code(self) -> u8 {
        match self {
            End::Over => 0,
            End::Again => AGAIN,
        }
    }
}

struct Daemon {
    registry: Arc<Registry>,
    listener: UnixListener,
    /// Connections taken since this supervisor began.
    taken: AtomicU64,
    /// Those on which a listener may still come.
    open: Arc<AtomicU64>,
    /// Those of them for which there was no thread.
    late: Mutex<Vec<(String, Arc<UnixStream>)>>,
}

/// What a request comes to, as JSON.
#[derive(Serialize)]
struct Done {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Answers for the callers in containers until it ends.
///
/// # Errors
/// When this host cannot have a supervisor. Nothing that is wrong with a container, a caller or a client is one.
pub fn serve(host: &Host) -> Result<End, NotifyError> {
    if !host.has_capability(CAP_SYS_ADMIN) {
        return Err(NotifyError::NotRoot);
    }
    if !host.in_init_pid_namespace() {
        return Err(NotifyError::NotOnHost);
    }
    let config = Config::of(host)?;
    let setting = Setting::new(Lookup::of_this_kernel(), &rules::compile(&config), config.notify_cpu_percent)
        .map_err(|source| NotifyError::NoListeners { source })?;
    raise_limits();
    Daemon::up(setting)?.run()
}

/// A listener is two descriptors, and each of its threads has some open for a call.
pub(crate) fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum });
}

fn file_error(path: &str) -> impl FnOnce(io::Error) -> NotifyError + '_ {
    move |source| NotifyError::File { path: path.into(), source }
}

impl Daemon {
    fn up(mut setting: Setting) -> Result<Daemon, NotifyError> {
        let folder = Path::new(CONTROL_SOCKET).parent().unwrap_or(Path::new("/"));
        let text = folder.display().to_string();
        fs::create_dir_all(folder).map_err(file_error(&text))?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(file_error(&text))?;
        let inherited = fd_store::inherited();
        if inherited.is_empty() {
            // Of a supervisor that nothing is left of.
            let _ = fs::remove_file(RETIRED);
        }
        setting.retired.store(Path::new(RETIRED).exists(), Relaxed);

        let (mut journal, mut socket, mut counters, mut listeners, mut connections) =
            (None, None, None, Vec::new(), Vec::new());
        for (name, fd) in inherited {
            match name.as_str() {
                JOURNAL => journal = Some(fd),
                COUNTERS => counters = Some(fd),
                // Without its path no runtime finds it.
                SOCKET if Path::new(LISTENER_SOCKET).exists() => socket = Some(UnixListener::from(fd)),
                SOCKET => fd_store::forget(SOCKET),
                _ if name.starts_with(CONNECTION) => connections.push((name, UnixStream::from(fd))),
                _ if message::is_listener(fd.as_fd()) => listeners.push((name, fd)),
                _ => say!("a descriptor with the unknown name {name} was left to us; it is closed"),
            }
        }
        setting.counters = kept_counters(counters).map_err(file_error("the counters"))?;
        let registry = Registry::new(Arc::new(setting), journal).map_err(file_error("the journal"))?;
        for (name, fd) in listeners {
            if let Err(error) = registry.resume(fd, &name) {
                say!("the listener {name} cannot be attended: {error}");
            }
        }
        let listener = match socket {
            Some(socket) => socket,
            None => {
                let made = bind(LISTENER_SOCKET)?;
                fd_store::keep(SOCKET, made.as_fd());
                made
            }
        };
        let daemon =
            Daemon { registry, listener, taken: AtomicU64::new(0), open: Arc::default(), late: Mutex::default() };
        for (name, stream) in connections {
            daemon.receive(name, Arc::new(stream));
        }
        Ok(daemon)
    }

    fn run(self) -> Result<End, NotifyError> {
        let control = bind(CONTROL_SOCKET)?;
        fd_store::ready();
        let mut idle = None;
        loop {
            idle = self.is_idle().then(|| idle.unwrap_or_else(Instant::now));
            let left = idle.map(|since: Instant| LINGER.saturating_sub(since.elapsed()));
            let left = if self.attend_late() { Some(LATE) } else { left };
            if left == Some(Duration::ZERO) {
                for path in [LISTENER_SOCKET, CONTROL_SOCKET, RETIRED] {
                    let _ = fs::remove_file(path);
                }
                // The next supervisor finds nothing of ours.
                [SOCKET, JOURNAL, COUNTERS].into_iter().for_each(fd_store::forget);
                return Ok(End::Over);
            }
            let patience =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            let mut polled =
                [&control.as_fd(), &self.registry.changed.as_fd(), &self.listener.as_fd()].map(|fd| readable(*fd));
            match poll(&mut polled, patience.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(|error| NotifyError::NoListeners { source: error.into() })?,
            };
            let [told, changed, handed] = polled.map(|fd| !fd.revents().is_empty());
            if changed {
                let _ = rustix::io::read(&self.registry.changed, &mut [0u8; 8]);
            }
            if handed {
                self.take();
            }
            if told && let Some(end) = control.accept().ok().and_then(|(stream, _)| self.converse(stream)) {
                return Ok(end);
            }
        }
    }

    /// Whether no container needs the supervisor any more.
    fn is_idle(&self) -> bool {
        let retired = self.registry.setting.retired.load(Relaxed);
        retired && self.open.load(SeqCst) == 0 && self.registry.len() == 0
    }

    /// Takes a connection of a runtime.
    fn take(&self) {
        let Ok((stream, _)) = self.listener.accept() else {
            std::thread::sleep(PAUSE);
            return;
        };
        let name = format!("{CONNECTION}{}-{}", std::process::id(), self.taken.fetch_add(1, Relaxed));
        // crun connects when a container is made and speaks when it is started, which may be any time later; runc hangs up at once. A
        // SIGKILL between these two lines loses the container's listener: only this process has the connection then.
        fd_store::keep_unread(&name, stream.as_fd());
        self.receive(name, Arc::new(stream));
    }

    /// What could not be begun for want of a thread is begun now, or later; whether there is such.
    fn attend_late(&self) -> bool {
        let connections = std::mem::take(&mut *self.late());
        for (name, stream) in connections {
            self.open.fetch_sub(1, SeqCst);
            self.receive(name, stream);
        }
        self.registry.attend_late() || !self.late().is_empty()
    }

    fn late(&self) -> MutexGuard<'_, Vec<(String, Arc<UnixStream>)>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn receive(&self, name: String, stream: Arc<UnixStream>) {
        let (registry, open) = (self.registry.clone(), self.open.clone());
        let again = (name.clone(), stream.clone());
        open.fetch_add(1, SeqCst);
        let receive = move || {
            // The message stays in the connection until the keeper has the listener: the next supervisor finds the one or the other.
            // If both, the listener has threads twice, which does no harm.
            let looked = message::look(stream.as_fd());
            let unread = matches!(looked, Ok(Some(_)));
            match looked.and_then(|seen| if seen.is_none() { message::receive(stream.as_fd()) } else { Ok(seen) }) {
                Ok(None) => {}
                Ok(Some(handed)) => {
                    if let Err(error) = registry.adopt(handed.listener, &handed.container) {
                        say!("the container {} cannot be attended: {error}", handed.container);
                    }
                }
                Err(error) => say!("a runtime could not hand over its listener: {error}"),
            }
            if unread {
                // A runtime that still looks is not told that we hung up without having read.
                let _ = message::receive(stream.as_fd());
            }
            fd_store::forget(&name);
            open.fetch_sub(1, SeqCst);
            registry.tell();
        };
        if let Err(error) = std::thread::Builder::new().stack_size(256 << 10).spawn(receive) {
            say!("a new container waits until there is a thread for it: {error}");
            self.late().push(again);
        }
    }

    /// One request and its answer.
    fn converse(&self, mut stream: UnixStream) -> Option<End> {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let mut request = String::new();
        if (&stream).take(LONGEST_REQUEST).read_to_string(&mut request).is_err() {
            return None;
        }
        let (word, rest) = request.split_once('\n').unwrap_or((&request, ""));
        let mut end = None;
        let done = match word.trim() {
            "state" => {
                let _ = serde_json::to_writer(&stream, &self.state());
                return None;
            }
            "retire" => self.retire(true),
            "resume" => self.retire(false),
            "policy" => self.policy(rest),
            "budget" => self.budget(rest),
            "again" => {
                self.registry.setting.counters.ends_on_purpose();
                end = Some(End::Again);
                Ok(())
            }
            _ => Err("no such request".to_string()),
        };
        let done = Done { ok: done.is_ok(), error: done.err() };
        let _ = serde_json::to_writer(&stream, &done);
        let _ = stream.flush();
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

    /// The socket stays open for as long as there are containers: an `exec` into one needs it.
    fn retire(&self, retired: bool) -> Result<(), String> {
        let marked = if retired { fs::write(RETIRED, "") } else { fs::remove_file(RETIRED) };
        marked
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error.to_string()) })?;
        self.registry.setting.retired.store(retired, Relaxed);
        Ok(())
    }

    fn policy(&self, text: &str) -> Result<(), String> {
        self.registry.setting.set_rules(text).map_err(|bad| format!("line {} is no rule", bad.line))?;
        Ok(())
    }

    fn budget(&self, text: &str) -> Result<(), String> {
        let percent = text.trim().parse().map_err(|_| "a budget is a number of percent".to_string())?;
        self.registry.setting.budget.store(percent, Relaxed);
        Ok(())
    }
}

/// The counters of the supervisor before us, or new ones.
fn kept_counters(left: Option<OwnedFd>) -> io::Result<Counters> {
    let file = match left {
        Some(left) => left,
        None => {
            let made = memfd_create("mpu-counters", MemfdFlags::CLOEXEC)?;
            fd_store::keep(COUNTERS, made.as_fd());
            made
        }
    };
    Counters::kept(&fs::File::from(file), now())
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Makes a socket that root alone can use. The socket of an earlier supervisor, which no process answers, is replaced.
fn bind(path: &str) -> Result<UnixListener, NotifyError> {
    let _ = fs::remove_file(path);
    // The folder is root's alone, so no other user connects before the mode is set.
    let made = UnixListener::bind(path).map_err(file_error(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(file_error(path))?;
    Ok(made)
}
