//! Decides whether only root can change a file. Resolves the path part by part and link by link, from the root down: in a folder that
//! only root can write to, no other user can exchange a checked part.

use mpu_host::host::Host;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// The kernel's limit of links.
const MAX_LINKS: usize = 40;

/// Resolves a path to a regular file below the folder. Only root may be able to change the file, each link to it, and each folder of both.
/// The error is half a sentence about the file.
pub fn resolve(host: &Host, folder: &Path, path: &Path) -> Result<PathBuf, String> {
    let walk = Walk::below(host)?;
    let (folder, real) = (walk.resolve(folder, "")?, walk.resolve(path, "it")?);
    if !real.starts_with(&folder) {
        return Err(outside_error(&real));
    }
    match fs::symlink_metadata(&real).map_err(describe_error)?.is_file() {
        true => Ok(real),
        false => Err("is not a plain file".to_string()),
    }
}

/// Opens a resolved path, without following links and without blocking.
pub fn open(real: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(CWD, real, flags, Mode::empty(), no_links) {
        // Kernels before 5.6, and system call filters of that age, lack the call.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(real, flags, Mode::empty()),
        opened => opened,
    };
    let file = File::from(file?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a plain file")),
    }
}

fn describe_error(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "can be looked at by root only".to_string(),
        _ => format!("cannot be looked at: {error}"),
    }
}

fn outside_error(to: &Path) -> String {
    format!("is a link that leads out of the folder, to {}", to.display())
}

/// The root, and the owner that all parts must have.
struct Walk {
    /// With links resolved.
    root: PathBuf,
    /// As given.
    given_root: PathBuf,
    owner: u32,
}

impl Walk {
    fn below(host: &Host) -> Result<Walk, String> {
        let given_root = host.at("/");
        let root = fs::canonicalize(&given_root).map_err(describe_error)?;
        // Another root may have any owner.
        let owner = if host.is_this() { 0 } else { fs::symlink_metadata(&root).map_err(describe_error)?.uid() };
        Ok(Walk { root, given_root, owner })
    }

    /// Resolves a path. Each part, and each link on the way, must be root's alone. `last` names the last part in messages; if empty, its path
    /// does.
    fn resolve(&self, path: &Path, last: &str) -> Result<PathBuf, String> {
        // The remaining parts, the next one last.
        let mut parts: Vec<OsString> = Vec::new();
        push(&mut parts, self.inside(path)?);
        let mut resolved = self.root.clone();
        let mut links = 0;
        self.check(&resolved, &fs::symlink_metadata(&resolved).map_err(describe_error)?, "")?;
        while let Some(part) = parts.pop() {
            if part == ".." {
                if resolved != self.root {
                    resolved.pop();
                }
                continue;
            }
            let next = resolved.join(part);
            let metadata = fs::symlink_metadata(&next).map_err(describe_error)?;
            self.check(&next, &metadata, if parts.is_empty() { last } else { "" })?;
            if !metadata.is_symlink() {
                resolved = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err("cannot be looked at: there are too many links on the way to it".to_string());
            }
            // Resolve the link's text: for magic links of /proc the kernel follows another target.
            let target = fs::read_link(&next).map_err(describe_error)?;
            if target.is_absolute() {
                resolved = self.root.clone();
                push(&mut parts, self.inside(&target)?);
            } else {
                push(&mut parts, &target);
            }
        }
        Ok(resolved)
    }

    fn inside<'a>(&self, path: &'a Path) -> Result<&'a Path, String> {
        path.strip_prefix(&self.root).or(path.strip_prefix(&self.given_root)).map_err(|_| outside_error(path))
    }

    fn check(&self, path: &Path, metadata: &fs::Metadata, name: &str) -> Result<(), String> {
        let subject = match name {
            "" => path.display().to_string(),
            name => name.to_string(),
        };
        if metadata.uid() != self.owner {
            return Err(format!("is not root's alone: {subject} belongs to user {}", metadata.uid()));
        }
        // A link's own mode has no effect.
        if !metadata.is_symlink() && metadata.mode() & 0o022 != 0 {
            return Err(format!(
                "is not root's alone: others can write to {subject} (mode {:o})",
                metadata.mode() & 0o7777
            ));
        }
        Ok(())
    }
}

/// Puts the parts of a path before the remaining ones.
fn push(parts: &mut Vec<OsString>, path: &Path) {
    let steps = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.extend(steps.rev().map(|part| part.as_os_str().to_os_string()));
}

#[cfg(test)]
mod tests;
