//! Configures the library folders of a container's loader.

use super::conf::{self, Line};
use super::error::LdconfigError;
use crate::beneath::{BeneathError, Root};
use rustix::fs::FileType;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub const CONF: &str = "/etc/ld.so.conf";
const CONF_FOLDER: &str = "/etc/ld.so.conf.d";
/// Requested folders. Sorted before the distribution's, after those of CUDA's compatibility libraries (`00-compat-…`).
const REQUESTED_CONF: &str = "/etc/ld.so.conf.d/00-nvcr-mpu.conf";
/// The default folders of the container's ldconfig, sorted last. The host's ldconfig may be of another distribution, with other
/// defaults.
const SYSTEM_CONF: &str = "/etc/ld.so.conf.d/zz-nvcr-mpu.conf";

/// Limits of the configuration: bytes; files, patterns or folders.
const MAX_BYTES: u64 = 1 << 20;
const MAX_ENTRIES: usize = 1000;
/// The kernel's limit, `PATH_MAX`.
const MAX_PATH: usize = 4096;

#[cfg(target_arch = "x86_64")]
mod machine {
    pub const DEBIAN: &[&str] = &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib", "/usr/lib"];
    pub const OTHERS: &[&str] = &["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/libx32", "/usr/libx32"];
    pub const MUSL_PATHS: &str = "/etc/ld-musl-x86_64.path";
    pub const MUSL_LOADER: &str = "/lib/ld-musl-x86_64.so.1";
}
#[cfg(target_arch = "aarch64")]
mod machine {
    pub const DEBIAN: &[&str] = &["/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib", "/usr/lib"];
    pub const OTHERS: &[&str] = &["/lib", "/usr/lib", "/lib64", "/usr/lib64"];
    pub const MUSL_PATHS: &str = "/etc/ld-musl-aarch64.path";
    pub const MUSL_LOADER: &str = "/lib/ld-musl-aarch64.so.1";
}
use machine::{DEBIAN, MUSL_LOADER, MUSL_PATHS, OTHERS};

/// musl's default folders (musl, `ldso/dynlink.c`).
const MUSL_DEFAULT: &str = "/lib:/usr/local/lib:/usr/lib";

/// Writes the container's drop-in files. The image's `ld.so.conf` stays unchanged. If it does not include the drop-in files, returns the
/// folders that it misses. An empty list means the folders of an earlier run.
pub fn write_config(root: &Root, folders: &[&str]) -> Result<Vec<String>, LdconfigError> {
    let earlier = if folders.is_empty() { read_folders(root, REQUESTED_CONF)? } else { Vec::new() };
    if earlier.len() > MAX_ENTRIES {
        return Err(LdconfigError::ConfigTooLarge { most: MAX_ENTRIES, what: "folders" });
    }
    let folders: Vec<&str> = folders.iter().copied().chain(earlier.iter().map(String::as_str)).collect();
    for folder in &folders {
        let is_valid =
            folder.starts_with('/') && !folder.contains(['\n', '\r', '\0', '#', '=']) && folder.trim() == *folder;
        if !is_valid {
            return Err(LdconfigError::Folder { folder: folder.to_string() });
        }
    }
    root.create_dir_all(Path::new(CONF_FOLDER), 0o755)?;
    if root.find(Path::new(CONF))?.is_none() {
        root.create_file(Path::new(CONF), format!("include {CONF_FOLDER}/*.conf\n").as_bytes(), 0o644)?;
    }
    let system = match is_file(root, "/etc/debian_version")? {
        true => DEBIAN,
        false => OTHERS,
    };
    let mut configured = configured_folders(root, &[REQUESTED_CONF, SYSTEM_CONF])?;
    configured.extend(system.iter().map(|folder| folder.to_string()));
    let mut accepted: Vec<&str> = Vec::new();
    for folder in folders {
        if !configured.contains(folder) && !accepted.contains(&folder) {
            accepted.push(folder);
        }
    }
    write_folders(root, REQUESTED_CONF, &accepted)?;
    write_folders(root, SYSTEM_CONF, system)?;
    write_musl_path(root, &accepted)?;
    let configured = configured_folders(root, &[])?;
    Ok(accepted.into_iter().filter(|folder| !configured.contains(*folder)).map(str::to_string).collect())
}

/// Writes folders into a file, or removes it if there are none. Does not rewrite an equal file.
fn write_folders(root: &Root, path: &str, folders: &[&str]) -> Result<(), BeneathError> {
    let path = Path::new(path);
    if folders.is_empty() {
        return root.remove_file(path).map(drop);
    }
    let text: String = folders.iter().map(|folder| format!("{folder}\n")).collect();
    match root.read_file(path, MAX_BYTES) {
        Ok(found) if found == text.as_bytes() => Ok(()),
        _ => root.create_file(path, text.as_bytes(), 0o644),
    }
}

/// The folders in a file. None if it does not exist.
fn read_folders(root: &Root, path: &str) -> Result<Vec<String>, BeneathError> {
    let bytes = match root.read_file(Path::new(path), MAX_BYTES) {
        Err(error) if error.is_missing() => return Ok(Vec::new()),
        bytes => bytes?,
    };
    let folder = |line| match line {
        Line::Folder(folder) => Some(folder.to_string()),
        Line::Include(_) => None,
    };
    Ok(conf::lines(&bytes).into_iter().filter_map(folder).collect())
}

/// musl's loader has no cache: it reads a list of folders.
fn write_musl_path(root: &Root, folders: &[&str]) -> Result<(), BeneathError> {
    let path = Path::new(MUSL_PATHS);
    let exists = is_file(root, MUSL_PATHS)?;
    if folders.is_empty() || !(exists || is_file(root, "/etc/alpine-release")? || is_file(root, MUSL_LOADER)?) {
        return Ok(());
    }
    let found = if exists { root.read_file(path, MAX_BYTES)? } else { Vec::new() };
    let mut text = String::from_utf8_lossy(&found).into_owned();
    if text.trim().is_empty() {
        text = MUSL_DEFAULT.replace(':', "\n");
    }
    let listed: BTreeSet<String> = text.split(['\n', ':']).map(str::to_string).collect();
    let missing: Vec<&str> = folders.iter().copied().filter(|folder| !listed.contains(*folder)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let text = format!("{}\n{}\n", text.trim_end(), missing.join("\n"));
    root.create_file(path, text.as_bytes(), 0o644)
}

/// The folders in the container's configuration, without the files in `without`.
fn configured_folders(root: &Root, without: &[&str]) -> Result<BTreeSet<String>, LdconfigError> {
    let mut budget = Budget::default();
    let mut folders = BTreeSet::new();
    // By inode: a file can be included by several names.
    let mut seen = BTreeSet::new();
    for path in without {
        seen.extend(root.find(Path::new(path))?.map(|file| file.identity()).transpose()?);
    }
    let mut files = vec![PathBuf::from(CONF)];
    while let Some(path) = files.pop() {
        let Some(file) = root.find(&path)? else { continue };
        // ldconfig ignores a directory. A FIFO would block it, so reading one is an error here.
        if !seen.insert(file.identity()?) || file.kind()? == FileType::Directory {
            continue;
        }
        budget.files.take(1)?;
        let bytes = match file.read(MAX_BYTES) {
            Err(BeneathError::TooLarge { .. }) => return Err(budget.bytes.exceeded()),
            bytes => bytes?,
        };
        budget.bytes.take(bytes.len())?;
        for line in conf::lines(&bytes) {
            match line {
                Line::Folder(folder) => {
                    folders.insert(folder.to_string());
                }
                Line::Include(pattern) => {
                    let beside = path.parent().unwrap_or(Path::new("/"));
                    files.extend(included_files(root, &beside.join(pattern), &mut budget)?);
                }
            }
        }
    }
    Ok(folders)
}

/// The files that match a pattern. Only its last part can have wildcards. An unreadable folder has none.
fn included_files(root: &Root, pattern: &Path, budget: &mut Budget) -> Result<Vec<PathBuf>, LdconfigError> {
    budget.patterns.take(1)?;
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name()) else { return Ok(Vec::new()) };
    let name = name.as_encoded_bytes();
    if pattern.as_os_str().len() > MAX_PATH {
        return Ok(Vec::new());
    }
    if !name.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[')) {
        return Ok(Vec::from_iter(matches!(root.find(pattern), Ok(Some(_))).then(|| pattern.to_path_buf())));
    }
    let entries = match root.read_dir(folder, budget.names.left) {
        Err(BeneathError::TooMany { .. }) => return Err(budget.names.exceeded()),
        entries => entries.unwrap_or_default(),
    };
    budget.names.take(entries.len())?;
    let matching = entries.into_iter().filter(|entry| conf::matches(name, entry.name.as_encoded_bytes()));
    Ok(matching.map(|entry| folder.join(entry.name)).collect())
}

/// Limits the work for an image's configuration with its includes. A few KiB of patterns can include each file of a folder a hundred
/// thousand times, and the hook of mode `legacy` is not in the container's cgroup. Images have about a dozen files of one line.
struct Budget {
    files: Remaining,
    patterns: Remaining,
    names: Remaining,
    bytes: Remaining,
}

impl Default for Budget {
    fn default() -> Budget {
        let limit = |most, what| Remaining { left: most, most, what };
        Budget {
            files: limit(MAX_ENTRIES, "files"),
            patterns: limit(MAX_ENTRIES, "patterns"),
            names: limit(10 * MAX_ENTRIES, "names in folders"),
            bytes: limit(MAX_BYTES as usize, "bytes"),
        }
    }
}

struct Remaining {
    left: usize,
    most: usize,
    what: &'static str,
}

impl Remaining {
    fn take(&mut self, used: usize) -> Result<(), LdconfigError> {
        self.left = self.left.checked_sub(used).ok_or_else(|| self.exceeded())?;
        Ok(())
    }

    fn exceeded(&self) -> LdconfigError {
        LdconfigError::ConfigTooLarge { most: self.most, what: self.what }
    }
}

fn is_file(root: &Root, path: &str) -> Result<bool, BeneathError> {
    match root.find(Path::new(path))? {
        Some(found) => Ok(found.kind()? == FileType::RegularFile),
        None => Ok(false),
    }
}
