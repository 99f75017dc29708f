//! Reports the plugin's state to systemd, and in `/run/mpu/nri/<pid>.json` to `mpu status` and `mpu doctor`.
//!
//! The plugin locks the file while it lives. A plugin that cannot write the file still serves.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use mpu_core::HostPid;
use mpu_host::host::Host;
use mpu_os::file::{Links, create_private_folder, read_bounded};
use mpu_os::lock::{self, LockError};
use schemars::JsonSchema;
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};

/// On a tmpfs, which a reboot clears.
pub const FOLDER: &str = "/run/mpu/nri";

/// The largest file that is read.
const FILE_LIMIT: u64 = 1 << 16;

/// Retries of a read while the plugin rewrites its file, and the pause between them.
const READ_RETRIES: usize = 200;
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The state of the plugin's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// No connection to an engine.
    Waits,
    /// Registered with an engine that lets no plugin set a seccomp profile.
    Useless,
    /// Registered with an engine that sends no profiles: containers without one are served.
    Partly,
    /// Registered; every container with a GPU is served.
    Serves,
}

/// A living plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plugin {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The container engine's socket.
    pub socket: PathBuf,
    /// The state of its connection.
    pub standing: Standing,
    /// The same in words.
    pub words: String,
}

pub struct Presence {
    plugin: Plugin,
    path: PathBuf,
    file: Option<File>,
}

impl Presence {
    /// Creates the file. A failure is only logged.
    pub fn new(folder: &Path, socket: &Path, log: &dyn Fn(&str)) -> Presence {
        let pid = std::process::id();
        let path = folder.join(format!("{pid}.json"));
        let file = create_locked(folder, &path);
        if let Err(error) = &file {
            log(&format!("`mpu status` cannot see this plugin: {}: {error}", path.display()));
        }
        let version = env!("CARGO_PKG_VERSION").to_string();
        let (standing, words) = (Standing::Waits, String::new());
        // JSON has no path that is not UTF-8.
        let socket = PathBuf::from(&*socket.to_string_lossy());
        Presence { plugin: Plugin { version, pid, socket, standing, words }, path, file: file.ok() }
    }

    /// Publishes the state, also to systemd. The first call reports the plugin as ready, even if no engine runs: units
    /// that start after the plugin must not wait for an engine that starts later.
    pub fn publish(&mut self, standing: Standing, words: &str) {
        (self.plugin.standing, self.plugin.words) = (standing, words.to_string());
        self.write();
        // Notify systemd last: `mpu status` then finds the file.
        let _ = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(words)]);
    }

    fn write(&mut self) {
        let Some(file) = &mut self.file else { return };
        let mut text = serde_json::to_vec(&self.plugin).unwrap_or_default();
        // Pad with spaces instead of truncating: on some file systems a truncated file stays empty for a long time.
        let room = file.metadata().map_or(0, |facts| facts.len() as usize);
        text.resize(text.len().max(room), b' ');
        let written = file.rewind().and_then(|()| file.write_all(&text));
        if written.is_err() {
            self.file = None;
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes and locks the file, and removes files of dead plugins.
fn create_locked(folder: &Path, path: &Path) -> io::Result<File> {
    // A process that locks a dead plugin's file would make the plugin look alive.
    create_private_folder(folder)?;
    files(folder).iter().for_each(|other| lock::remove_unheld(other));
    // Readers hold the lock briefly.
    lock::take(path, RETRY_PAUSE * READ_RETRIES as u32).map_err(|error| match error {
        LockError::Io(error) => error,
        LockError::Held(files) => io::Error::other(files),
    })
}

/// The files of plugins in a folder, dead or alive.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let regular = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    regular.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "json")).collect()
}

/// Reads a living plugin's file, with retries while the plugin writes.
fn read(path: &Path) -> Option<Plugin> {
    for _ in 0..READ_RETRIES {
        let bytes = read_bounded(path, FILE_LIMIT, Links::Refused).ok()?;
        if let Ok(plugin) = serde_json::from_slice::<Plugin>(&bytes) {
            return HostPid::new(plugin.pid).map(|_| plugin);
        }
        thread::sleep(RETRY_PAUSE);
    }
    None
}

/// Whether the folder of the plugins is hidden from this user.
pub fn are_hidden(host: &Host) -> bool {
    fs::read_dir(host.at(FOLDER)).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The living plugins on a host, in pods or not. Empty if they are hidden.
pub fn plugins(host: &Host) -> Vec<Plugin> {
    let living = files(&host.at(FOLDER)).into_iter().filter(|path| lock::is_held(path));
    let mut plugins: Vec<Plugin> = living.filter_map(|path| read(&path)).collect();
    plugins.sort_by_key(|plugin| plugin.pid);
    plugins
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;
    use mpu_os::file::is_at;
    use rustix::fs::{FlockOperation, flock};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn plugin_is_visible_while_rewriting_its_file() {
        let fake = FakeHost::in_order();
        let mut presence = Presence::new(&fake.host().at(FOLDER), Path::new("/run/nri.sock"), &|line| panic!("{line}"));
        presence.publish(Standing::Waits, "it waits");
        let over = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    presence.publish(Standing::Serves, "registered, and a longer story than the other one");
                    presence.publish(Standing::Waits, "it waits");
                }
            });
            let seen = (0..500).filter(|_| plugins(&fake.host()).len() == 1).count();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(seen, 500);
        });
    }

    #[test]
    fn only_live_plugins_are_listed() {
        let fake = FakeHost::in_order();
        let folder = fake.host().at(FOLDER);
        fake.write(
            "/run/mpu/nri/7.json",
            "{\"version\":\"0\",\"pid\":7,\"socket\":\"/s\",\"standing\":\"serves\",\"words\":\"\"}",
        );
        fake.write("/run/mpu/nri/folder.json/x", "");
        assert_eq!(plugins(&fake.host()), [], "its file is not locked");
        let mut presence = Presence::new(&folder, Path::new("/run/nri.sock"), &|line| panic!("{line}"));
        assert!(!folder.join("7.json").exists(), "what the dead left is gone");
        assert_eq!(plugins(&fake.host()), [], "no state was published yet");
        presence.publish(Standing::Waits, "a long story of what it waits for");
        presence.publish(Standing::Serves, "registered");
        let found = plugins(&fake.host());
        assert_eq!(
            (found[0].standing, found[0].words.as_str(), found[0].pid),
            (Standing::Serves, "registered", std::process::id())
        );
        drop(presence);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "the folder that is not ours");
    }

    #[test]
    fn rewritten_file_keeps_its_size_in_bytes() {
        let fake = FakeHost::in_order();
        let folder = fake.host().at(FOLDER);
        let socket = Path::new(OsStr::from_bytes(b"/run/caf\xc3\xa9\xff.sock"));
        let mut presence = Presence::new(&folder, socket, &|line| panic!("{line}"));
        let mut publish = |words| {
            presence.publish(Standing::Waits, words);
            fs::metadata(folder.join(format!("{}.json", std::process::id()))).unwrap().len()
        };
        assert_eq!(publish("it waits…"), publish("or so…"));
        assert_eq!(plugins(&fake.host())[0].socket, Path::new("/run/café\u{fffd}.sock"));
    }

    #[test]
    fn concurrent_plugin_start_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("1.json"), folder.path().join("2.json"));
        let ends = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = create_locked(folder.path(), &other);
                    let _ = files(folder.path()).iter().filter(|path| lock::is_held(path)).count();
                }
            });
            let lost = (0..2000)
                .filter(|_| !create_locked(folder.path(), &path).is_ok_and(|file| is_at(&file, &path)))
                .count();
            ends.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(lost, 0, "of 2000 that began");
        });
    }

    #[test]
    fn unwritable_presence_folder_is_logged() {
        let fake = FakeHost::in_order();
        fake.write("/run/mpu/nri", "a file where a folder should be");
        let logged = std::cell::RefCell::new(Vec::new());
        let log = |line: &str| logged.borrow_mut().push(line.to_string());
        let mut presence = Presence::new(&fake.host().at(FOLDER), Path::new("/run/nri.sock"), &log);
        presence.publish(Standing::Serves, "registered");
        assert!(logged.borrow()[0].contains("mpu status") && logged.borrow().len() == 1, "{logged:?}");
        assert_eq!(plugins(&fake.host()), []);
    }

    #[test]
    fn malformed_presence_files_are_ignored() {
        let fake = FakeHost::in_order();
        for (name, text) in
            [("1.json", "[]".to_string()), ("2.json", "{\"pid\":0}".into()), ("3.json", "x".repeat(1 << 20))]
        {
            fake.write(&format!("{FOLDER}/{name}"), &text);
        }
        let files: Vec<File> = ["1", "2", "3"]
            .iter()
            .map(|name| File::open(fake.host().at(format!("{FOLDER}/{name}.json"))).unwrap())
            .inspect(|file| flock(file, FlockOperation::LockExclusive).unwrap())
            .collect();
        assert_eq!((plugins(&fake.host()), files.len()), (Vec::new(), 3));
    }

    #[test]
    fn plugin_presence_file_is_root_only() {
        let fake = FakeHost::in_order();
        let folder = fake.host().at(FOLDER);
        let _presence = Presence::new(&folder, Path::new("/run/nri.sock"), &|line| panic!("{line}"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&files(&folder)[0])), (0o700, 0o600));
    }
}
