//! Makes transactional changes to the host: all or none, also after a kill.
//!
//! Before each change, `undo.json` records how to undo it. The folder also has copies of replaced files. After a
//! failure, or at the next start after a kill, the recorded changes are undone. The folder is locked during a change.

use super::error::InstallError;
use mpu_host::host::Host;
use mpu_os::file::{Mode, create_private_folder, is_at, replace_file_atomically};
use mpu_os::lock::{self, LockError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, Permissions};
use std::io;
use std::mem;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, fchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

pub(super) const DIR: &str = "/var/lib/mpu/journal";
const UNDO: &str = "/var/lib/mpu/journal/undo.json";

/// `mpu doctor` holds the lock briefly.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// Retries of a program that a child of another thread still has open for writing.
const BUSY_RETRIES: usize = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// How to undo one change. Undoing twice is harmless.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Undo {
    Absent(PathBuf),
    Folder(PathBuf),
    Link { path: PathBuf, to: PathBuf },
    File { path: PathBuf, mode: u32, backup: PathBuf },
    Run(Vec<String>),
}

impl Undo {
    fn backup(&self) -> Option<&PathBuf> {
        match self {
            Undo::File { backup, .. } => Some(backup),
            _ => None,
        }
    }
}

/// A change in progress. Dropping it without [`Journal::commit`] undoes it.
pub struct Journal<'a> {
    host: &'a Host,
    _lock: File,
    undo: Vec<Undo>,
    is_finished: bool,
}

impl<'a> Journal<'a> {
    /// Undoes the change of a killed process, and begins a new one.
    pub fn begin(host: &'a Host) -> Result<Journal<'a>, InstallError> {
        let lock = lock(host)?;
        let path = host.at(UNDO);
        let undo: Vec<Undo> = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(InstallError::File { path, source }),
            Ok(text) => serde_json::from_slice(&text).map_err(|source| InstallError::UnknownChange { path, source })?,
        };
        let is_new = undo.is_empty();
        let mut journal = Journal { host, _lock: lock, undo, is_finished: false };
        if is_new {
            return Ok(journal);
        }
        match journal.undo_all() {
            (failures, true) => Err(InstallError::NotRestored { path: host.at(DIR), failures }),
            (_, false) => Journal::begin(host),
        }
    }

    /// Replaces a file, or makes a folder if there are no bytes. Makes missing parents.
    pub fn write(&mut self, path: &Path, mode: u32, bytes: Option<&[u8]>) -> Result<(), InstallError> {
        let at = self.host.at(path);
        for folder in missing_parents(&at) {
            self.record_state(folder)?;
            make_folder(folder).map_err(file_error(folder))?;
        }
        self.record_state(&at)?;
        let written = match bytes {
            None => make_folder(&at),
            Some(bytes) => replace_file_atomically(&at, bytes, Mode::Of(mode)).map(drop),
        };
        written.map_err(file_error(&at))
    }

    /// Removes a file, or a folder if it is empty.
    pub fn remove(&mut self, path: &Path) -> Result<(), InstallError> {
        let at = self.host.at(path);
        if fs::symlink_metadata(&at).is_err() {
            return Ok(());
        }
        self.record_state(&at)?;
        remove(&at).map_err(file_error(&at))
    }

    /// Records a command that undoes the next change.
    pub fn record_undo_command(&mut self, undo: &[String]) -> Result<(), InstallError> {
        self.append(Undo::Run(undo.to_vec()))
    }

    /// Commits the change. Steps that cannot be undone run in `last`, before any other change begins.
    pub fn commit(mut self, last: impl FnOnce()) -> Result<(), InstallError> {
        self.discard().map_err(file_error(&self.host.at(UNDO)))?;
        self.is_finished = true;
        last();
        self.close();
        Ok(())
    }

    /// Undoes everything, and returns what could not be undone.
    pub fn roll_back(mut self) -> Vec<String> {
        self.undo_all().0
    }

    /// Simulates a kill.
    #[cfg(test)]
    pub fn simulate_kill(self) {
        flock(&self._lock, FlockOperation::Unlock).expect("unlocked");
        mem::forget(self);
    }

    fn record_state(&mut self, at: &Path) -> Result<(), InstallError> {
        let path = at.to_path_buf();
        let undo = match fs::symlink_metadata(at) {
            Err(_) => Undo::Absent(path),
            Ok(found) if found.is_symlink() => Undo::Link { path, to: fs::read_link(at).map_err(file_error(at))? },
            Ok(found) if found.is_dir() => Undo::Folder(path),
            // A copy of a pipe would wait for a writer.
            Ok(found) if !found.is_file() => {
                return Err(file_error(at)(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")));
            }
            Ok(found) => {
                let backup = self.host.at(DIR).join(self.undo.len().to_string());
                let copied = fs::copy(at, &backup).and_then(|_| {
                    // `restore` takes the owner from the backup. In a user namespace an owner may have no number: then root has it.
                    let _ = chown(&backup, Some(found.uid()), Some(found.gid()));
                    File::open(&backup)?.sync_all()
                });
                copied.map_err(file_error(&backup))?;
                Undo::File { path, mode: found.mode() & 0o7777, backup }
            }
        };
        self.append(undo)
    }

    fn append(&mut self, undo: Undo) -> Result<(), InstallError> {
        let mut all = self.undo.clone();
        all.push(undo);
        self.save(&all).map_err(file_error(&self.host.at(UNDO)))?;
        self.undo = all;
        Ok(())
    }

    fn save(&self, undo: &[Undo]) -> io::Result<()> {
        replace_file_atomically(&self.host.at(UNDO), &serde_json::to_vec(undo)?, Mode::Of(0o600)).map(drop)
    }

    /// Undoes from the last to the first. Returns the failures, and whether a file is among them. Only a file that can still be
    /// restored stays in the journal.
    fn undo_all(&mut self) -> (Vec<String>, bool) {
        let (mut failed, mut kept, mut files_failed) = (Vec::new(), Vec::new(), false);
        let undo = mem::take(&mut self.undo);
        for step in undo.iter().rev() {
            let Err(why) = restore(self.host, step) else { continue };
            failed.push(why);
            let is_file = !matches!(step, Undo::Run(_));
            files_failed |= is_file;
            if is_file && step.backup().is_none_or(|backup| backup.exists()) {
                kept.insert(0, step.clone());
            }
        }
        self.is_finished = true;
        if kept.is_empty() {
            match self.discard() {
                Ok(()) => self.close(),
                Err(error) => {
                    files_failed = true;
                    failed.push(format!("{}: {error}", self.host.at(UNDO).display()));
                }
            }
        } else if self.save(&kept).is_ok() {
            let backups = |steps: &[Undo]| -> Vec<PathBuf> { steps.iter().filter_map(Undo::backup).cloned().collect() };
            let needed = backups(&kept);
            backups(&undo).iter().filter(|file| !needed.contains(file)).for_each(|file| drop(fs::remove_file(file)));
        }
        (failed, files_failed)
    }

    /// Discards the journal: nothing is undone from here on.
    fn discard(&self) -> io::Result<()> {
        match fs::remove_file(self.host.at(UNDO)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(self.host.at(DIR))?.sync_all(),
        }
    }

    fn close(&self) {
        let dir = self.host.at(DIR);
        let _ = fs::remove_dir_all(&dir);
        // The parent stays if it has other files.
        let _ = dir.parent().map(fs::remove_dir);
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.undo_all();
        }
    }
}

/// Locks the folder. Tries again if the previous holder removed it.
fn lock(host: &Host) -> Result<File, InstallError> {
    let dir = host.at(DIR);
    loop {
        let folder = match create_private_folder(&dir).and_then(|()| File::open(&dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(file_error(&dir))?,
        };
        lock::hold(&folder, &dir, LOCK_WAIT, |_| ()).map_err(|error| match error {
            LockError::Held(held) => InstallError::Locked(held),
            LockError::Io(source) => file_error(&dir)(source),
        })?;
        if is_at(&folder, &dir) {
            return Ok(folder);
        }
    }
}

/// The state of the journal on a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalState {
    /// No journal, or not root.
    Idle,
    /// A process changes the host now.
    Running,
    /// A process was killed during a change, or could not undo it.
    Interrupted,
}

/// Reads the state of the journal.
pub fn read_state(host: &Host) -> JournalState {
    let Ok(folder) = File::open(host.at(DIR)) else { return JournalState::Idle };
    match flock(&folder, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => JournalState::Running,
        _ if host.at(UNDO).exists() => JournalState::Interrupted,
        _ => JournalState::Idle,
    }
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> InstallError + '_ {
    move |source| InstallError::File { path: path.to_path_buf(), source }
}

fn restore(host: &Host, step: &Undo) -> Result<(), String> {
    let (path, restored) = match step {
        Undo::Run(command) => return run(host, command).map_err(|error| error.to_string()),
        Undo::Absent(path) => (path, remove(path)),
        Undo::Folder(path) => (path, if path.exists() { Ok(()) } else { make_folder(path) }),
        Undo::Link { path, to } => (path, remove(path).and_then(|()| symlink(to, path))),
        Undo::File { path, backup, .. } if !backup.exists() => {
            return Err(format!("{}: what it was is lost: there is no {}", path.display(), backup.display()));
        }
        Undo::File { path, mode, backup } => {
            let restored = missing_parents(path).iter().try_for_each(|folder| make_folder(folder)).and_then(|()| {
                // Prefer a new file, which gets the SELinux label of its folder. If the disk is full, link the backup
                // instead.
                let owner = fs::metadata(backup)?;
                let replaced = replace_file_atomically(path, &fs::read(backup)?, Mode::Of(*mode));
                // A change of the owner clears setuid bits.
                let owned = replaced.and_then(|file| {
                    fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
                    file.set_permissions(Permissions::from_mode(*mode))
                });
                owned.or_else(|error| {
                    let temporary = path.with_file_name(format!(".mpu-undo-{}", std::process::id()));
                    let linked = fs::set_permissions(backup, Permissions::from_mode(*mode))
                        .and_then(|()| fs::hard_link(backup, &temporary))
                        .and_then(|()| fs::rename(&temporary, path));
                    // rename(2) leaves it if both names are already the same file.
                    let _ = fs::remove_file(&temporary);
                    linked.map_err(|_| error)
                })
            });
            return restored.map_err(|e| format!("{}: {e}; what it was is in {}", path.display(), backup.display()));
        }
    };
    restored.map_err(|e| format!("{}: {e}", path.display()))
}

/// Removes a file, or a folder if it is empty and the kernel permits it.
fn remove(path: &Path) -> io::Result<()> {
    let is_folder = match fs::symlink_metadata(path) {
        // Nothing is there. A read-only file system would refuse the removal all the same.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        found => found?.is_dir(),
    };
    match if is_folder { fs::remove_dir(path) } else { fs::remove_file(path) } {
        Err(error) if is_folder || error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The folders above a path that do not exist, outermost first.
fn missing_parents(path: &Path) -> Vec<&Path> {
    let mut missing: Vec<&Path> = path.ancestors().skip(1).take_while(|folder| !folder.exists()).collect();
    missing.reverse();
    missing
}

/// Makes a folder that only root can write to, independent of the umask.
fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Runs one of the host's tools.
pub fn output(host: &Host, command: &[String]) -> Result<Output, InstallError> {
    let failed = |why: String| InstallError::Failed { command: command.join(" "), why };
    let (name, arguments) = command.split_first().ok_or_else(|| failed("there is no command".to_string()))?;
    let tool = host.tool(name).ok_or_else(|| failed(format!("there is no {name} on this host")))?;
    let mut child = Command::new(tool);
    child.args(arguments).env("PATH", Host::this().search_path()).env("LC_ALL", "C").stdin(Stdio::null());
    let mut output = child.output();
    for _ in 0..BUSY_RETRIES {
        if !output.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ExecutableFileBusy) {
            break;
        }
        thread::sleep(BUSY_PAUSE);
        output = child.output();
    }
    output.map_err(|error| failed(error.to_string()))
}

/// Runs one of the host's tools. If it fails, the error has the last line of its output.
pub fn run(host: &Host, command: &[String]) -> Result<(), InstallError> {
    let output = output(host, command)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&[output.stderr, output.stdout].concat()).into_owned();
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(InstallError::Failed { command: command.join(" "), why: format!("{}: {last}", output.status) })
}
