//! Changes to the node that are all made or all undone, also when the process is killed in between.
//!
//! Owns `/var/lib/mpu/journal`: before each change it has a line there, on the disk, that says how to undo it, with the
//! bytes that were there before. What is found there at the next start is undone first. Knows nothing of what is being
//! installed.

use super::InstallError;
use mpu_host::host::Host;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const DIR: &str = "/var/lib/mpu/journal";

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
        recover(host)?;
        let dir = host.at(DIR);
        let made = missing_parents(&dir);
        let at = |source| InstallError::Journal { path: dir.clone(), source };
        fs::create_dir_all(&dir).map_err(at)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(at)?;
        let log = File::options().create_new(true).append(true).mode(0o600).open(dir.join("log")).map_err(at)?;
        let mut journal = Journal { host, log, undo: Vec::new(), committed: false };
        // The journal's own directory is not among them: it goes in any case.
        for directory in made.into_iter().filter(|made| *made != dir) {
            journal.note(Undo::Directory(directory))?;
        }
        Ok(journal)
    }

    /// Writes a file, by a rename, with its directories.
    pub fn write(&mut self, path: &Path, mode: u32, bytes: &[u8]) -> Result<(), InstallError> {
        let at = self.host.at(path);
        let failed = |source| InstallError::Write { path: at.clone(), source };
        let parent = at.parent().unwrap_or(Path::new("/"));
        for directory in missing_parents(parent) {
            self.note(Undo::Directory(directory.clone()))?;
            fs::create_dir(&directory).map_err(failed)?;
        }
        self.note_before(&at)?;
        let temporary = parent.join(format!(".mpu-{}", std::process::id()));
        let _ = fs::remove_file(&temporary);
        let written = (|| {
            let mut file = File::options().create_new(true).write(true).mode(mode).open(&temporary)?;
            file.write_all(bytes)?;
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            file.sync_all()?;
            fs::rename(&temporary, &at)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(failed)
    }

    /// Makes a folder, with those above it: root's alone to write to, whatever the umask.
    pub fn folder(&mut self, path: &Path) -> Result<(), InstallError> {
        for directory in missing_parents(&self.host.at(path)) {
            self.note(Undo::Directory(directory.clone()))?;
            let made = fs::create_dir(&directory)
                .and_then(|()| fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)));
            made.map_err(|source| InstallError::Write { path: directory, source })?;
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

    /// All is done: from here on nothing is undone.
    pub fn commit(mut self) -> Result<(), InstallError> {
        self.committed = true;
        close(self.host)
    }

    /// Undoes everything, and says what could not be undone.
    pub fn roll_back(mut self) -> Vec<String> {
        self.committed = true;
        let failed = undo_all(self.host, &self.undo);
        let _ = close(self.host);
        failed
    }

    fn note_before(&mut self, at: &Path) -> Result<(), InstallError> {
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
            undo_all(self.host, &self.undo);
            let _ = close(self.host);
        }
    }
}

/// Whether a process was killed in the midst of a change.
pub fn is_broken_off(host: &Host) -> bool {
    host.at(DIR).join("log").exists()
}

/// Undoes what a killed process left.
pub fn recover(host: &Host) -> Result<(), InstallError> {
    let Ok(text) = fs::read_to_string(host.at(DIR).join("log")) else { return Ok(()) };
    // A line that is cut off was not on the disk before its change, which therefore was not made.
    let undo: Vec<Undo> = text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    undo_all(host, &undo);
    close(host)
}

fn close(host: &Host) -> Result<(), InstallError> {
    let dir = host.at(DIR);
    // The log first: without it the rest means nothing.
    let closed = fs::remove_file(dir.join("log")).and_then(|()| fs::remove_dir_all(&dir));
    closed.map_err(|source| InstallError::Journal { path: dir.clone(), source })?;
    // Ours, if nothing else is in it; it is somebody's, if something is.
    let _ = dir.parent().map(fs::remove_dir);
    Ok(())
}

/// Undoes from the last to the first, and goes on past what cannot be undone.
fn undo_all(host: &Host, undo: &[Undo]) -> Vec<String> {
    let mut failed = Vec::new();
    for step in undo.iter().rev() {
        let undone = match step {
            Undo::Directory(path) => match fs::remove_dir(path) {
                // Somebody else put something in, or it was never made.
                Err(e) if matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound) => Ok(()),
                other => other.map_err(|e| format!("{}: {e}", path.display())),
            },
            Undo::Made(path) => match fs::remove_file(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other.map_err(|e| format!("{}: {e}", path.display())),
            },
            Undo::Changed { path, mode, backup } => restore(host, path, *mode, *backup),
            Undo::Ran(command) => run(host, command).map_err(|e| e.to_string()),
        };
        failed.extend(undone.err());
    }
    failed
}

fn restore(host: &Host, path: &Path, mode: u32, backup: usize) -> Result<(), String> {
    let from = host.at(DIR).join(backup.to_string());
    let temporary = path.with_file_name(format!(".mpu-undo-{}", std::process::id()));
    let restored = fs::copy(&from, &temporary)
        .and_then(|_| fs::set_permissions(&temporary, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&temporary, path));
    restored.map_err(|e| format!("{}: {e}", path.display()))
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
