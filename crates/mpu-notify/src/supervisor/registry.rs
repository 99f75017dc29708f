//! The listeners of this host.
//!
//! Owns which there are, their places in the journal, and that copies of them and of the journal are kept elsewhere before
//! anything relies on them. Knows nothing of sockets.

use crate::budget::Account;
use crate::caller::process_cache::ProcessCache;
use crate::client::Cost;
use crate::id::kept_id;
use crate::listener::workers::{Listener, THREADS, attend};
use crate::log::say;
use crate::setting::Setting;
use crate::supervisor::fd_store;
use crate::sys::{Journal, Place};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Listeners at one time: each container, and each `exec` into one, is one. Their names must fit into one variable of the next
/// supervisor's environment, of which the kernel takes 128 KiB (`MAX_ARG_STRLEN` of execve(2)).
const MOST: usize = 2048;
/// Of which one container may have so many.
const MOST_OF_ONE: usize = 128;
/// The journal's name with the keeper.
pub(crate) const JOURNAL: &str = "journal";
/// What listeners' names with the keeper begin with; the key and the container's id follow.
const PREFIX: &str = "l";
pub(crate) struct Registry {
    pub(crate) setting: Arc<Setting>,
    journal: Arc<Journal>,
    listeners: Mutex<BTreeMap<usize, Arc<Listener>>>,
    /// Those for which there was no thread when they came, and their callers wait.
    late: Mutex<Vec<Arc<Listener>>>,
    /// Raised when a listener has gone.
    pub(crate) changed: OwnedFd,
    /// Whether copies are kept elsewhere.
    outlives: bool,
}

impl Registry {
    /// With the journal of the supervisor before us, or a new one.
    pub(crate) fn new(setting: Arc<Setting>, journal: Option<OwnedFd>) -> io::Result<Arc<Registry>> {
        Registry::make(setting, journal, true)
    }

    /// That ends with this process, and with it the callers that it answers.
    pub(crate) fn of_this_process(setting: Arc<Setting>) -> io::Result<Arc<Registry>> {
        Registry::make(setting, None, false)
    }

    fn make(setting: Arc<Setting>, journal: Option<OwnedFd>, outlives: bool) -> io::Result<Arc<Registry>> {
        let places = MOST * THREADS;
        let file = match journal {
            Some(journal) => File::from(journal),
            None => {
                let made = memfd_create("mpu-journal", MemfdFlags::CLOEXEC)?;
                if outlives {
                    fd_store::keep(JOURNAL, made.as_fd());
                }
                File::from(made)
            }
        };
        // A longer one is a later version's, which this one uses the beginning of.
        let len = (places * size_of::<Place>()) as u64;
        if file.metadata()?.len() < len {
            ftruncate(&file, len)?;
        }
        Ok(Arc::new(Registry {
            setting,
            journal: Journal::map(&file, places)?,
            listeners: Mutex::default(),
            late: Mutex::default(),
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            outlives,
        }))
    }

    /// A new container's listener.
    ///
    /// # Errors
    /// When there are too many: the listener is then closed, and the container's calls fail with `ENOSYS`.
    pub(crate) fn adopt(self: &Arc<Registry>, fd: OwnedFd, container: &str) -> io::Result<()> {
        let name = kept_id(container);
        let mut listeners = self.lock();
        let of_it = listeners.values().filter(|listener| listener.name == name).count();
        let key = (0..MOST).find(|key| of_it < MOST_OF_ONE && !listeners.contains_key(key));
        let key = key.ok_or(io::ErrorKind::StorageFull)?;
        // What a listener left here that could not be resumed is nothing of this one's.
        for place in (0..THREADS).filter_map(|thread| self.journal.place(key * THREADS + thread)) {
            { place }.clear();
        }
        if self.outlives {
            fd_store::keep(&kept_name(key, &name), fd.as_fd());
        }
        self.start(&mut listeners, fd, key, name);
        Ok(())
    }

    /// A listener that the supervisor before us left, if that is what the name says.
    pub(crate) fn resume(self: &Arc<Registry>, fd: OwnedFd, name: &str) -> io::Result<()> {
        let (key, container) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).unwrap_or_default();
        let key = key.parse().ok().filter(|key| *key < MOST).ok_or(io::ErrorKind::InvalidData)?;
        let mut listeners = self.lock();
        if listeners.contains_key(&key) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.start(&mut listeners, fd, key, container.to_string());
        Ok(())
    }

    fn start(
        self: &Arc<Registry>,
        listeners: &mut BTreeMap<usize, Arc<Listener>>,
        fd: OwnedFd,
        key: usize,
        name: String,
    ) {
        let of_it = listeners.values().find(|other| other.name == name);
        let of_it = of_it.map(|other| (other.account.clone(), other.held.clone()));
        let of_it = of_it.unwrap_or_else(|| (Arc::default(), Arc::new(ProcessCache::among(&self.setting.held))));
        let listener = Arc::new(Listener::new(fd, key, name, of_it));
        listeners.insert(key, listener.clone());
        if let Err(error) = self.attend(&listener) {
            // Given up, it would be closed, and every call in the container would fail: a neighbour may have all numbers of processes for a moment.
            say!("the listener {} waits until it can be attended: {error}", kept_name(key, &listener.name));
            lock(&self.late).push(listener);
        }
    }

    fn attend(self: &Arc<Registry>, listener: &Arc<Listener>) -> io::Result<()> {
        let registry = self.clone();
        let gone = move |listener: &Listener| {
            registry.end(&mut registry.lock(), listener);
            registry.tell();
        };
        attend(listener, &self.setting, &self.journal, gone)
    }

    /// Attends those that could not be attended when they came; whether there are still such.
    pub(crate) fn attend_late(self: &Arc<Registry>) -> bool {
        let mut late = lock(&self.late);
        late.retain(|listener| self.attend(listener).is_err());
        !late.is_empty()
    }

    /// While the others are locked out: the next one may have the same name.
    fn end(&self, listeners: &mut BTreeMap<usize, Arc<Listener>>, listener: &Listener) {
        listeners.remove(&listener.key);
        self.forget(&kept_name(listener.key, &listener.name));
    }

    fn forget(&self, kept: &str) {
        if self.outlives {
            fd_store::forget(kept);
        }
    }

    /// Wakes the thread that waits for a change.
    pub(crate) fn tell(&self) {
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// How many listeners there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// What was spent on each container.
    pub(crate) fn costs(&self) -> Vec<Cost> {
        let accounts: BTreeMap<String, Arc<Account>> =
            self.lock().values().map(|listener| (listener.name.clone(), listener.account.clone())).collect();
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
        let mut names: Vec<String> = self.lock().values().map(|listener| listener.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Listener>>> {
        lock(&self.listeners)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kept_name(key: usize, container: &str) -> String {
    format!("{PREFIX}{key}-{container}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's limit for one string of an environment.
    const MAX_ARG_STRLEN: usize = 131_072;

    #[test]
    fn all_kept_names_fit_in_one_variable() {
        let longest = kept_id(&"a".repeat(300));
        let names: usize = (0..MOST).map(|key| kept_name(key, &longest).len() + 1).sum();
        // As many again may be connections of runtimes that have not spoken yet.
        assert!(2 * names < MAX_ARG_STRLEN, "{names}");
    }

    #[test]
    fn kept_name_holds_listener_key_and_id() {
        let name = kept_name(17, &kept_id("my-pod/c\n0"));
        let (key, id) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).expect("two parts");
        assert_eq!((key, id), ("17", kept_id("my-pod/c\n0").as_str()));
        assert!(id.starts_with("my-podc0~") && !id.contains(':'), "{id}");
    }
}
