//! Changes to the node that are all made or all undone, also when the process is killed in between.
//!
//! Owns `/var/lib/mpu/journal`: before each change it has a line there, on the disk, that says how to undo it, with the
//! bytes that were there before. What is found there at the next start is undone first. If bytes cannot be put back, they
//! stay there, with the steps that could not be undone and no others. Whoever changes the node has the log locked, so that
//! nobody takes what goes on for what was broken off. Knows nothing of what is being installed.

use super::InstallError;
use mpu_host::host::Host;
use mpu_host::same::is_at;
use mpu_os::file::{replace_file_atomically, Mode};
use mpu_os::lock::{self, LockError};
use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{symlink, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const DIR: &str = "/var/lib/mpu/journal";

/// What a journal is called when it is over: another can begin while its files are removed.
const OVER: &str = "/var/lib/mpu/journal.over";

/// How often a journal is begun anew because another's went meanwhile.
const TRIES: usize = 20;

/// Whoever only looks whether somebody changes the node has the lock so long at most.
const LOOK: Duration = Duration::from_millis(500);

/// How often, and how soon, a program is tried again that somebody still has open for writing.
const BUSY_TRIES: usize = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// How to undo one change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Undo {
    /// A directory was made.
    Directory(PathBuf),
    /// A file was written where none was.
    Made(PathBuf),
    /// A file was written over, or removed: its bytes are in the journal under this number.
    Changed { path: PathBuf, mode: u32, backup: usize },
    /// A link was written over, or removed: where to it led.
    Linked { path: PathBuf, to: PathBuf },
    /// Something was run.
    Ran(Vec<String>),
}

/// A transaction that is under way. Dropped without [`Journal::commit`], everything is undone.
pub struct Journal<'a> {
    host: &'a Host,
    log: File,
    undo: Vec<Undo>,
    committed: bool,
}

impl<'a> Journal<'a> {
    /// Undoes what a killed process left, and begins.
    pub fn begin(host: &'a Host) -> Result<Journal<'a>, InstallError> {
        for _ in 0..TRIES {
            if let Some(journal) = Journal::try_begin(host)? {
                return Ok(journal);
            }
        }
        Err(InstallError::Journal { path: host.at(DIR), source: io::ErrorKind::AlreadyExists.into() })
    }

    /// None if another, who is done by now, came in between.
    fn try_begin(host: &'a Host) -> Result<Option<Journal<'a>>, InstallError> {
        recover(host)?;
        let dir = host.at(DIR);
        let made = missing_parents(&dir);
        let at = |source| InstallError::Journal { path: dir.clone(), source };
        let opened = fs::create_dir_all(&dir)
            .and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)))
            .and_then(|()| File::options().create(true).append(true).mode(0o600).open(dir.join("log")));
        let log = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(at)?,
        };
        hold(host, &log)?;
        if log.metadata().map_err(at)?.len() > 0 || !is_at(&log, &dir.join("log")) {
            return Ok(None);
        }
        let mut journal = Journal { host, log, undo: Vec::new(), committed: false };
        // The journal's own directory is not among them: it goes in any case.
        for directory in made.into_iter().filter(|made| *made != dir) {
            journal.note(Undo::Directory(directory))?;
        }
        Ok(Some(journal))
    }

    /// Writes a file, by a rename, with its directories.
    pub fn write(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> Result<(), InstallError> {
        let at = self.host.at(path);
        let failed = |source| InstallError::Write { path: at.clone(), source };
        let parent = at.parent().unwrap_or(Path::new("/"));
        self.folders(parent)?;
        self.note_before(&at)?;
        replace_file_atomically(&at, bytes, Mode::Of(mode)).map(drop).map_err(failed)
    }

    /// Makes a folder, with those above it: root's alone to write to, whatever the umask.
    pub fn folder(&mut self, path: &Path) -> Result<(), InstallError> {
        self.folders(&self.host.at(path))
    }

    fn folders(&mut self, at: &Path) -> Result<(), InstallError> {
        for directory in missing_parents(at) {
            self.note(Undo::Directory(directory.clone()))?;
            make_folder(&directory).map_err(|source| InstallError::Write { path: directory, source })?;
        }
        Ok(())
    }

    /// Removes a file; one that is not there is removed already.
    pub fn remove(&mut self, path: &Path) -> Result<(), InstallError> {
        let at = self.host.at(path);
        if fs::symlink_metadata(&at).is_err() {
            return Ok(());
        }
        self.note_before(&at)?;
        fs::remove_file(&at).map_err(|source| InstallError::Write { path: at, source })
    }

    /// Runs something, once it is on record how that is undone.
    pub fn run(&mut self, command: &[String], undo: Option<Vec<String>>) -> Result<(), InstallError> {
        if let Some(undo) = undo {
            self.note(Undo::Ran(undo))?;
        }
        run(self.host, command)
    }

    /// Puts on record how to undo what the caller is about to do.
    pub fn will_undo(&mut self, undo: Vec<String>) -> Result<(), InstallError> {
        self.note(Undo::Ran(undo))
    }

    /// All is done: from here on nothing is undone. What cannot be undone is left for `last`: nobody else begins before it ends.
    pub fn commit(mut self, last: impl FnOnce()) -> Result<(), InstallError> {
        let emptied = self.log.set_len(0).and_then(|()| self.log.sync_all());
        emptied.map_err(|source| InstallError::Journal { path: self.host.at(DIR), source })?;
        self.committed = true;
        last();
        close(self.host)
    }

    /// Undoes everything, and says what could not be undone.
    pub fn roll_back(mut self) -> Vec<String> {
        self.committed = true;
        undo_and_close(self.host, &self.undo).failed
    }

    /// As if this process were killed now.
    #[cfg(test)]
    pub fn die(mut self) {
        self.committed = true;
    }

    fn note_before(&mut self, at: &Path) -> Result<(), InstallError> {
        if let Ok(to) = fs::read_link(at) {
            return self.note(Undo::Linked { path: at.to_path_buf(), to });
        }
        let Ok(before) = fs::metadata(at) else { return self.note(Undo::Made(at.to_path_buf())) };
        let backup = self.undo.len();
        let to = self.host.at(DIR).join(backup.to_string());
        let kept = fs::copy(at, &to).and_then(|_| File::open(&to)?.sync_all());
        kept.map_err(|source| InstallError::Journal { path: to, source })?;
        self.note(Undo::Changed { path: at.to_path_buf(), mode: before.mode() & 0o7777, backup })
    }

    fn note(&mut self, undo: Undo) -> Result<(), InstallError> {
        let line = serde_json::to_string(&undo).map_err(io::Error::from);
        let noted = line.and_then(|line| {
            self.log.write_all(format!("{line}\n").as_bytes())?;
            self.log.sync_data()
        });
        noted.map_err(|source| InstallError::Journal { path: self.host.at(DIR), source })?;
        self.undo.push(undo);
        Ok(())
    }
}

impl Drop for Journal<'_> {
    fn drop(&mut self) {
        if !self.committed {
            undo_and_close(self.host, &self.undo);
        }
    }
}

/// What a journal that is there means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// There is none, or only root could see it.
    Nothing,
    /// A process changes the node now.
    Running,
    /// A process was killed in the midst of a change, or could not undo all of it.
    BrokenOff,
}

/// Removes what lies beside journals and is of no use without MPU: built modules.
pub fn clear_beside(host: &Host) {
    let folder = host.at(DIR).parent().map(fs::read_dir);
    for entry in folder.into_iter().flatten().flatten().flatten() {
        let path = entry.path();
        if ![DIR, OVER].iter().any(|ours| host.at(ours) == path) && fs::remove_dir_all(&path).is_err() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether somebody changes the node now, or was killed at it.
pub fn left(host: &Host) -> Left {
    let Ok(log) = File::open(host.at(DIR).join("log")) else { return Left::Nothing };
    match flock(&log, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Left::Running,
        _ => Left::BrokenOff,
    }
}

/// Undoes what a killed process left. One that lives is left alone, and named.
pub fn recover(host: &Host) -> Result<(), InstallError> {
    let path = host.at(DIR).join("log");
    let text = loop {
        let Ok(mut log) = File::open(&path) else { return Ok(()) };
        hold(host, &log)?;
        // Whoever had it may be done by now, and it is another's, or nobody's.
        if is_at(&log, &path) {
            let mut text = String::new();
            let read = log.read_to_string(&mut text);
            read.map_err(|source| InstallError::Journal { path: path.clone(), source })?;
            break (text, log);
        }
    };
    // A line that is cut off was not on the disk before its change, which therefore was not made. A whole one is of a change that may have been.
    let whole = text.0.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    let undo: Result<Vec<Undo>, _> = whole.map(serde_json::from_str).collect();
    let undo = undo.map_err(|source| InstallError::Unknown { path: path.clone(), source })?;
    match undo_and_close(host, &undo) {
        Undone { is_kept: false, is_lost: false, .. } => Ok(()),
        Undone { failed, is_kept, .. } => Err(InstallError::NotRestored { path: host.at(DIR), left: failed, is_kept }),
    }
}

/// Locks the log, or says who has it.
fn hold(host: &Host, log: &File) -> Result<(), InstallError> {
    let path = host.at(DIR).join("log");
    lock::hold(log, &path, LOOK, |_| {}).map_err(|error| match error {
        LockError::Held(held) => InstallError::Running(held),
        LockError::Io(source) => InstallError::Journal { path, source },
    })
}

/// How undoing went.
#[derive(Debug, Default)]
struct Undone {
    /// What could not be undone.
    failed: Vec<String>,
    /// Whether the journal is kept: it has the only copy of bytes that could not be put back.
    is_kept: bool,
    /// Whether bytes are neither in their place nor in the journal.
    is_lost: bool,
}

/// Why a step could not be undone.
enum Failed {
    /// The journal has bytes that could not be put back.
    Kept(String),
    /// They are gone: another try would end as this one did.
    Lost(String),
    /// It was not about bytes.
    Other(String),
}

/// Undoes everything. The caller has the log locked.
fn undo_and_close(host: &Host, undo: &[Undo]) -> Undone {
    let failed = undo_all(host, undo);
    let is_kept = failed.iter().any(|(_, why)| matches!(why, Failed::Kept(_)));
    let is_lost = failed.iter().any(|(_, why)| matches!(why, Failed::Lost(_)));
    // If it cannot be, all is undone once more by the next: that is so much work for nothing, and no harm by itself.
    let _ = match is_kept {
        true => shrink(host, undo, &failed).map_err(drop),
        false => close(host).map_err(drop),
    };
    let words = |(_, why): (usize, Failed)| match why {
        Failed::Kept(why) | Failed::Lost(why) | Failed::Other(why) => why,
    };
    Undone { failed: failed.into_iter().map(words).collect(), is_kept, is_lost }
}

/// Leaves in the journal what could not be undone, and no more: whoever mends that may have changed the rest by then.
fn shrink(host: &Host, undo: &[Undo], failed: &[(usize, Failed)]) -> io::Result<()> {
    let dir = host.at(DIR);
    let new = dir.join("log.new");
    let mut log = File::options().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    // Whoever opens it by its name waits for us, as with the one before.
    flock(&log, FlockOperation::NonBlockingLockExclusive)?;
    let is_left = |at: usize| failed.iter().any(|(step, why)| *step == at && !matches!(why, Failed::Lost(_)));
    let left: Vec<&Undo> = undo.iter().enumerate().filter(|(at, _)| is_left(*at)).map(|(_, step)| step).collect();
    for step in &left {
        log.write_all(format!("{}\n", serde_json::to_string(step)?).as_bytes())?;
    }
    log.sync_all()?;
    fs::rename(&new, dir.join("log"))?;
    File::open(&dir)?.sync_all()?;
    for step in undo.iter().filter(|step| !left.contains(step)) {
        if let Undo::Changed { backup, .. } = step {
            let _ = fs::remove_file(dir.join(backup.to_string()));
        }
    }
    Ok(())
}

/// The caller has the log locked.
fn close(host: &Host) -> Result<(), InstallError> {
    let (dir, over) = (host.at(DIR), host.at(OVER));
    // At once: a log without the bytes beside it could undo nothing.
    let _ = fs::remove_dir_all(&over);
    let closed = fs::rename(&dir, &over).and_then(|()| fs::remove_dir_all(&over));
    closed.map_err(|source| InstallError::Journal { path: dir.clone(), source })?;
    // Ours, if nothing else is in it; it is somebody's, if something is.
    let _ = dir.parent().map(fs::remove_dir);
    Ok(())
}

/// Undoes from the last to the first, and goes on past what cannot be undone: that, by its place.
fn undo_all(host: &Host, undo: &[Undo]) -> Vec<(usize, Failed)> {
    let mut failed = Vec::new();
    for (at, step) in undo.iter().enumerate().rev() {
        let of =
            |path: &Path, undone: io::Result<()>| undone.map_err(|e| Failed::Other(format!("{}: {e}", path.display())));
        let undone = match step {
            Undo::Directory(path) => match fs::remove_dir(path) {
                // Somebody else put something in, or it was never made.
                Err(e) if matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => Ok(()),
                other => of(path, other),
            },
            Undo::Made(path) => match fs::remove_file(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                other => of(path, other),
            },
            Undo::Changed { path, mode, backup } => restore(host, path, *mode, *backup),
            Undo::Linked { path, to } => of(path, link_back(path, |temporary| symlink(to, temporary))),
            Undo::Ran(command) => run(host, command).map_err(|e| Failed::Other(e.to_string())),
        };
        failed.extend(undone.err().map(|why| (at, why)));
    }
    failed
}

fn restore(host: &Host, path: &Path, mode: u32, backup: usize) -> Result<(), Failed> {
    let from = host.at(DIR).join(backup.to_string());
    if fs::symlink_metadata(&from).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Err(Failed::Lost(format!("{}: what it was is lost: there is no {}", path.display(), from.display())));
    }
    let made: Vec<PathBuf> = path.parent().map(missing_parents).unwrap_or_default();
    // A copy gets the label of the folder that it is made in; a link needs no room on a full disk.
    let restored = made.iter().try_for_each(|folder| make_folder(folder)).and_then(|()| {
        copy_back(&from, path, mode).or_else(|error| {
            let linked = fs::set_permissions(&from, fs::Permissions::from_mode(mode))
                .and_then(|()| link_back(path, |temporary| fs::hard_link(&from, temporary)));
            linked.map_err(|_| error)
        })
    });
    restored.map_err(|e| {
        made.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
        Failed::Kept(format!("{}: {e}; what it was is in {}", path.display(), from.display()))
    })
}

/// Puts a link in a file's place.
fn link_back(path: &Path, link: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let temporary = path.with_file_name(format!(".mpu-undo-{}", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let linked = link(&temporary).and_then(|()| fs::rename(&temporary, path));
    // It stays, too, where both are one file already (rename(2)).
    let _ = fs::remove_file(&temporary);
    linked
}

fn copy_back(from: &Path, path: &Path, mode: u32) -> io::Result<()> {
    replace_file_atomically(path, &fs::read(from)?, Mode::Of(mode)).map(drop)
}

/// Makes a folder: root's alone to write to, whatever the umask.
fn make_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
}

/// The directories that have to be made for this one to be there, outermost first.
fn missing_parents(directory: &Path) -> Vec<PathBuf> {
    let mut missing: Vec<PathBuf> =
        directory.ancestors().take_while(|path| !path.exists()).map(Path::to_path_buf).collect();
    missing.reverse();
    missing
}

/// Runs one of the host's tools. What it says is kept for the case that it fails.
pub fn run(host: &Host, command: &[String]) -> Result<(), InstallError> {
    let Some((name, arguments)) = command.split_first() else { return Ok(()) };
    let words = command.join(" ");
    let tool = host.tool(name).ok_or_else(|| InstallError::NoTool { name: name.clone() })?;
    let mut command = Command::new(tool);
    command.args(arguments).env("PATH", Host::this().search_path()).env("LC_ALL", "C").stdin(Stdio::null());
    let mut output = command.output();
    // A program that was put back a moment ago: what another thread starts has our descriptor of it until it is executed.
    for _ in 0..BUSY_TRIES {
        match &output {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                thread::sleep(BUSY_PAUSE);
                output = command.output();
            }
            _ => break,
        }
    }
    let output = output.map_err(|source| InstallError::Run { command: words.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said).lines().rfind(|line| !line.trim().is_empty()).unwrap_or("").to_string();
    Err(InstallError::Failed { command: words, status: output.status.to_string(), said })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_copied_back_are_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, path) = (folder.path().join("0"), folder.path().join("x"));
        fs::write(&from, "before").expect("written");
        copy_back(&from, &path, 0o640).expect("copied");
        assert_eq!(fs::read_to_string(&path).expect("read"), "before");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o777, 0o640);
        let taken = folder.path().join("taken");
        fs::create_dir_all(taken.join("by")).expect("made");
        copy_back(&from, &taken, 0o640).expect_err("a folder is in its place");
        let names: Vec<_> = fs::read_dir(folder.path()).expect("read").flatten().map(|it| it.file_name()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn a_file_is_linked_back_as_often_as_it_is_tried() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, path) = (folder.path().join("0"), folder.path().join("x"));
        fs::write(&from, "before").expect("written");
        fs::write(&path, "changed").expect("written");
        for _ in 0..2 {
            link_back(&path, |temporary| fs::hard_link(&from, temporary)).expect("linked");
            assert_eq!(fs::read_to_string(&path).expect("read"), "before");
            assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 2, "the journal has it still");
        }
    }
}
