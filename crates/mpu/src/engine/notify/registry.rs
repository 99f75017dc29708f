//! The listeners of this host.
//!
//! Owns which there are, their places in the journal, and that copies of them and of the journal are kept elsewhere before
//! anything relies on them. Knows nothing of sockets.

use super::ask::Setting;
use super::attend::{attend, Listener, THREADS};
use super::keeper;
use super::sys::{Journal, Place};
use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Listeners at one time: each container, and each `exec` into one, is one.
const MOST: usize = 8192;
/// The journal's name with the keeper.
pub(super) const JOURNAL: &str = "journal";
/// What listeners' names with the keeper begin with; the key and the container's id follow.
const PREFIX: &str = "listener-";
/// Of an id, so much is kept: names with a keeper are at most 255 bytes.
const LONGEST_ID: usize = 128;

/// All of them.
pub(super) struct Registry {
    pub(super) setting: Arc<Setting>,
    journal: Arc<Journal>,
    listeners: Mutex<BTreeMap<usize, Arc<Listener>>>,
    /// Raised when a listener has gone.
    pub(super) changed: OwnedFd,
    /// Whether copies are kept elsewhere.
    outlives: bool,
}

impl Registry {
    /// With the journal of the supervisor before us, or a new one.
    pub(super) fn new(setting: Arc<Setting>, journal: Option<OwnedFd>) -> io::Result<Arc<Registry>> {
        Registry::make(setting, journal, true)
    }

    /// That ends with this process, and with it whoever it answers.
    pub(super) fn of_this_process(setting: Arc<Setting>) -> io::Result<Arc<Registry>> {
        Registry::make(setting, None, false)
    }

    fn make(setting: Arc<Setting>, journal: Option<OwnedFd>, outlives: bool) -> io::Result<Arc<Registry>> {
        let places = MOST * THREADS;
        let file = match journal {
            Some(journal) => File::from(journal),
            None => {
                let made = memfd_create("mpu-journal", MemfdFlags::CLOEXEC)?;
                if outlives {
                    keeper::keep(JOURNAL, made.as_fd());
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
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            outlives,
        }))
    }

    /// A new container's listener.
    ///
    /// # Errors
    /// When it cannot be attended: the listener is then closed, and the container's calls fail with `ENOSYS`.
    pub(super) fn adopt(self: &Arc<Registry>, fd: OwnedFd, container: &str) -> io::Result<()> {
        let mut listeners = self.lock();
        let key = (0..MOST).find(|key| !listeners.contains_key(key)).ok_or(io::ErrorKind::StorageFull)?;
        let name = plain(container);
        if self.outlives {
            keeper::keep(&format!("{PREFIX}{key}-{name}"), fd.as_fd());
        }
        self.start(&mut listeners, fd, key, name)
    }

    /// A listener that the supervisor before us left, if that is what the name says.
    pub(super) fn resume(self: &Arc<Registry>, fd: OwnedFd, name: &str) -> io::Result<()> {
        let (key, container) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).unwrap_or_default();
        let key = key.parse().ok().filter(|key| *key < MOST).ok_or(io::ErrorKind::InvalidData)?;
        self.start(&mut self.lock(), fd, key, container.to_string())
    }

    fn start(
        self: &Arc<Registry>,
        listeners: &mut BTreeMap<usize, Arc<Listener>>,
        fd: OwnedFd,
        key: usize,
        name: String,
    ) -> io::Result<()> {
        let listener = Arc::new(Listener::new(fd, key, name));
        let registry = self.clone();
        let gone = move |listener: &Listener| {
            registry.lock().remove(&listener.key);
            if registry.outlives {
                keeper::forget(&format!("{PREFIX}{}-{}", listener.key, listener.name));
            }
            registry.tell();
        };
        listeners.insert(key, listener.clone());
        attend(&listener, &self.setting, &self.journal, gone).inspect_err(|_| drop(listeners.remove(&key)))
    }

    /// Wakes whoever waits for a change.
    pub(super) fn tell(&self) {
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// How many listeners there are.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// The containers, each once.
    pub(super) fn containers(&self) -> Vec<String> {
        let mut names: Vec<String> = self.lock().values().map(|listener| listener.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Arc<Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An id in characters that a keeper's names may have.
fn plain(container: &str) -> String {
    let ok = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = container.chars().filter(ok).take(LONGEST_ID).collect();
    if name.is_empty() {
        "unknown".to_string()
    } else {
        name
    }
}
