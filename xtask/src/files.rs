//! Files and folders: text, trees, and folders of the cache that appear only when they are complete.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use crate::run::{command, output, print_progress};

pub fn read(path: &Path) -> Result<String> {
    Ok(fs_err::read_to_string(path)?)
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    fs_err::create_dir_all(path.parent().context("no parent")?)?;
    fs_err::write(path, bytes)?;
    Ok(fs_err::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
}

pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs_err::create_dir_all(to.parent().context("no parent")?)?;
    fs_err::copy(from, to)?;
    Ok(())
}

/// The entries of a folder, sorted by name.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = fs_err::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

/// Everything below a folder, sorted by name. Links are not followed.
pub fn walk(folder: &Path) -> Result<Vec<walkdir::DirEntry>> {
    Ok(WalkDir::new(folder).min_depth(1).sort_by_file_name().into_iter().collect::<walkdir::Result<_>>()?)
}

/// Everything below a folder except folders, sorted by name.
pub fn below(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = walk(folder)?.into_iter().filter(|entry| !entry.file_type().is_dir());
    let mut found: Vec<PathBuf> = files.map(walkdir::DirEntry::into_path).collect();
    found.sort();
    Ok(found)
}

/// The tracked files below a folder, and the untracked ones that git does not ignore.
pub fn git_files(folder: &Path) -> Result<BTreeSet<String>> {
    let mut git = command("git", ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = output(git.current_dir(folder))?;
    let names = names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned);
    // A deleted file is still in git's index.
    Ok(names.filter(|name| folder.join(name).is_file()).collect())
}

/// Removes a folder and its contents, if it exists.
pub fn remove(folder: &Path) -> Result<()> {
    match fs_err::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

pub fn recreate(folder: &Path) -> Result<()> {
    remove(folder)?;
    Ok(fs_err::create_dir_all(folder)?)
}

/// SHA-256 of all parts, each after its length, in hexadecimal digits.
pub fn digest<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.as_ref().len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

/// SHA-256 of some bytes, in hexadecimal digits.
pub fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Appends `.suffix`. `with_extension` would cut off the end of a version, which has dots.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}.{suffix}", path.display()))
}

/// Waits until no other thread or process has the lock of this file, and takes it for as long as the result lives.
pub fn lock(file: &Path, what: &str) -> Result<fs_err::File> {
    fs_err::create_dir_all(file.parent().context("no parent")?)?;
    let lock = fs_err::File::create(file)?;
    if let Err(Errno::WOULDBLOCK) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        print_progress(format!("waiting for another run, or lane of this one: {what}"));
        flock(&lock, FlockOperation::LockExclusive)?;
    }
    // Without locks, as on some network file systems, two runs make the same twice.
    Ok(lock)
}

/// Returns a complete folder. If it is not complete, makes it under another name and moves it into place.
pub fn get_or_make(
    place: PathBuf,
    is_whole: impl Fn(&Path) -> bool,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    if is_whole(&place) {
        return Ok(place);
    }
    let _lock = lock(&with_suffix(&place, "lock"), &format!("it makes {}", place.display()))?;
    if is_whole(&place) {
        return Ok(place);
    }
    // Not one name for all: a program of a killed run can still write to its folder, or have it mounted.
    let partial = with_suffix(&place, &format!("partial-{}", std::process::id()));
    recreate(&partial)?;
    if let Err(error) = make(&partial) {
        let _ = remove(&partial);
        return Err(error);
    }
    remove(&place)?;
    fs_err::rename(&partial, &place)?;
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_folder_is_in_place_only_when_whole() {
        let cache = tempfile::tempdir().unwrap();
        let place = cache.path().join("550.163.01");
        let whole = |place: &Path| place.join("done").exists();
        let make = |fails: bool| {
            get_or_make(place.clone(), whole, |partial| {
                write(&partial.join("done"), "", 0o644)?;
                anyhow::ensure!(!fails, "no network");
                Ok(())
            })
        };
        assert!(make(true).is_err() && !place.exists());
        assert!(make(false).is_ok() && whole(&place));
        assert!(make(true).is_ok(), "it is not made again");
    }

    #[test]
    fn simultaneous_callers_make_folder_once() {
        let cache = tempfile::tempdir().unwrap();
        let place = cache.path().join("6.1");
        let made = std::sync::Mutex::new(0);
        let make = |_: &Path| {
            *made.lock().unwrap() += 1;
            std::thread::sleep(std::time::Duration::from_millis(100));
            Ok(())
        };
        let get = || get_or_make(place.clone(), Path::is_dir, make).unwrap();
        std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(get))));
        assert_eq!(made.into_inner().unwrap(), 1);
    }
}
