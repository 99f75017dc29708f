//! The listeners of this host and their slots in the journal. Copies of listeners and journal are in the file descriptor store before
//! they are used.

use crate::budget::Account;
use crate::caller::process_cache::ProcessCache;
use crate::client::Cost;
use crate::id::short_id;
use crate::listener::workers::{Listener, THREADS, start_thread};
use crate::lock;
use crate::log::log;
use crate::setting::Setting;
use crate::supervisor::fd_store;
use crate::sys::{Journal, JournalEntry};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Limit of listeners: each container, and each `exec` into one, has one. Their names must fit into one environment variable of the next
/// supervisor, which the kernel limits to 128 KiB (`MAX_ARG_STRLEN` of execve(2)).
const MAX_LISTENERS: usize = 2048;
/// Limit of one container's listeners.
const MAX_OF_CONTAINER: usize = 128;
/// The journal's name in the file descriptor store.
pub(crate) const JOURNAL: &str = "journal";
/// Prefix of listeners' names in the file descriptor store; the index and the container's short id follow.
const PREFIX: &str = "l";

pub(crate) struct Registry {
    pub(crate) setting: Arc<Setting>,
    journal: Arc<Journal>,
    listeners: Mutex<BTreeMap<usize, Arc<Listener>>>,
    /// Threads that could not be started: their listeners and numbers.
    pending: Mutex<Vec<(Arc<Listener>, usize)>>,
    /// An eventfd, readable after a listener has ended.
    pub(crate) changed: OwnedFd,
    /// Whether copies are in the file descriptor store.
    is_stored: bool,
}

impl Registry {
    /// With the previous supervisor's journal, or a new one.
    pub(crate) fn new(setting: Arc<Setting>, journal: Option<OwnedFd>) -> io::Result<Arc<Registry>> {
        Registry::make(setting, journal, true)
    }

    /// A registry that stores nothing and ends with this process.
    pub(crate) fn of_this_process(setting: Arc<Setting>) -> io::Result<Arc<Registry>> {
        Registry::make(setting, None, false)
    }

    fn make(setting: Arc<Setting>, journal: Option<OwnedFd>, is_stored: bool) -> io::Result<Arc<Registry>> {
        let slots = MAX_LISTENERS * THREADS;
        let file = match journal {
            Some(journal) => File::from(journal),
            None => {
                let file = memfd_create("mpu-journal", MemfdFlags::CLOEXEC)?;
                if is_stored {
                    fd_store::keep(JOURNAL, file.as_fd());
                }
                File::from(file)
            }
        };
        // A later version's journal may be longer.
        let len = (slots * size_of::<JournalEntry>()) as u64;
        if file.metadata()?.len() < len {
            ftruncate(&file, len)?;
        }
        Ok(Arc::new(Registry {
            setting,
            journal: Journal::map(&file, slots)?,
            listeners: Mutex::default(),
            pending: Mutex::default(),
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stored,
        }))
    }

    /// Adds a new container's listener.
    ///
    /// # Errors
    /// If there are too many. Then the listener is closed, and the container's calls fail with `ENOSYS`.
    pub(crate) fn add(self: &Arc<Registry>, fd: OwnedFd, container: &str) -> io::Result<()> {
        let name = short_id(container);
        let mut listeners = lock(&self.listeners);
        let siblings = listeners.values().filter(|listener| listener.name == name).count();
        let index = (0..MAX_LISTENERS).find(|index| siblings < MAX_OF_CONTAINER && !listeners.contains_key(index));
        let index = index.ok_or(io::ErrorKind::StorageFull)?;
        // A listener that could not be resumed may have left its notifications here.
        for slot in (0..THREADS).filter_map(|thread| self.journal.slot(index * THREADS + thread)) {
            { slot }.clear();
        }
        if self.is_stored {
            fd_store::keep(&stored_name(index, &name), fd.as_fd());
        }
        self.start(&mut listeners, fd, index, name);
        Ok(())
    }

    /// Adds a listener of the previous supervisor, by its name in the file descriptor store.
    pub(crate) fn resume(self: &Arc<Registry>, fd: OwnedFd, name: &str) -> io::Result<()> {
        let (index, container) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).unwrap_or_default();
        let index = index.parse().ok().filter(|index| *index < MAX_LISTENERS).ok_or(io::ErrorKind::InvalidData)?;
        let mut listeners = lock(&self.listeners);
        if listeners.contains_key(&index) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.start(&mut listeners, fd, index, container.to_string());
        Ok(())
    }

    fn start(
        self: &Arc<Registry>,
        listeners: &mut BTreeMap<usize, Arc<Listener>>,
        fd: OwnedFd,
        index: usize,
        name: String,
    ) {
        let siblings = listeners.values().find(|other| other.name == name);
        let siblings = siblings.map(|other| (other.account.clone(), other.cache.clone()));
        let siblings =
            siblings.unwrap_or_else(|| (Arc::default(), Arc::new(ProcessCache::sharing(&self.setting.processes))));
        let listener = Arc::new(Listener::new(fd, index, name, siblings));
        listeners.insert(index, listener.clone());
        for thread in 0..THREADS {
            if let Err(error) = self.start_thread(&listener, thread) {
                // If closed, every call in the container would fail. Another container may use up all PIDs for a moment.
                let name = stored_name(index, &listener.name);
                log!("cannot start a thread of the listener {name}, trying again: {error}");
                lock(&self.pending).push((listener.clone(), thread));
            }
        }
    }

    fn start_thread(self: &Arc<Registry>, listener: &Arc<Listener>, thread: usize) -> io::Result<()> {
        let registry = self.clone();
        let on_end = move |listener: &Listener| {
            let mut listeners = lock(&registry.listeners);
            listeners.remove(&listener.index);
            if registry.is_stored {
                // With the lock: the next listener may get the same name.
                fd_store::forget(&stored_name(listener.index, &listener.name));
            }
            drop(listeners);
            registry.signal_change();
        };
        start_thread(listener, &self.setting, &self.journal, thread, on_end)
    }

    /// Tries again to start missing threads. Returns whether some are still missing.
    pub(crate) fn retry_pending(self: &Arc<Registry>) -> bool {
        let mut pending = lock(&self.pending);
        // First threads go first: if a listener has none, all its callers wait.
        pending.sort_by_key(|(_, thread)| *thread);
        pending.retain(|(listener, thread)| self.start_thread(listener, *thread).is_err());
        !pending.is_empty()
    }

    /// Wakes the supervisor's main thread.
    pub(crate) fn signal_change(&self) {
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.listeners).len()
    }

    /// Processor time spent on each container.
    pub(crate) fn costs(&self) -> Vec<Cost> {
        let accounts: BTreeMap<String, Arc<Account>> =
            lock(&self.listeners).values().map(|listener| (listener.name.clone(), listener.account.clone())).collect();
        let micros = |time: Duration| time.as_micros() as u64;
        accounts
            .into_iter()
            .map(|(container, account)| Cost {
                container,
                cpu_microseconds: micros(account.spent()),
                held_back_microseconds: micros(account.paused()),
            })
            .collect()
    }

    pub(crate) fn containers(&self) -> Vec<String> {
        let mut names: Vec<String> = lock(&self.listeners).values().map(|listener| listener.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

fn stored_name(index: usize, container: &str) -> String {
    format!("{PREFIX}{index}-{container}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::pid_lookup::Lookup;
    use std::time::Instant;

    /// The kernel's limit for one string of an environment.
    const MAX_ARG_STRLEN: usize = 131_072;

    #[test]
    fn stored_names_fit_in_one_variable() {
        let longest = short_id(&"a".repeat(300));
        let names: usize = (0..MAX_LISTENERS).map(|index| stored_name(index, &longest).len() + 1).sum();
        // The same number of connections may still wait for their message.
        assert!(2 * names < MAX_ARG_STRLEN, "{names}");
    }

    #[test]
    fn missing_second_thread_is_started_later() {
        let Ok(setting) = Setting::new(Lookup::of_this_kernel(), "", 0) else {
            return println!("skipped: only root can answer for others");
        };
        let registry = Registry::of_this_process(Arc::new(setting)).expect("a registry");
        let taken = registry.journal.slot(1).expect("the second thread's slot");
        // Each thread ends at its first call, because this is no listener.
        registry.add(File::open("/dev/null").expect("any descriptor").into(), "one").expect("room");
        assert!(registry.retry_pending(), "the second thread has no slot");
        drop(taken);
        assert!(!registry.retry_pending());
        let began = Instant::now();
        while registry.len() > 0 {
            assert!(began.elapsed().as_secs() < 60, "a thread is missing");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn stored_name_has_index_and_id() {
        let name = stored_name(17, &short_id("my-pod/c\n0"));
        let (index, id) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).expect("two parts");
        assert_eq!((index, id), ("17", short_id("my-pod/c\n0").as_str()));
        assert!(id.starts_with("my-podc0~") && !id.contains(':'), "{id}");
    }
}
