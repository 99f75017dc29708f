//! Whether root alone decides what a file is: walks to it part by part and link by link. The walk goes downwards: in a folder that only
//! root can write to, no other user can exchange what was looked at, so the path that comes out leads to the same file.

use mpu_host::host::Host;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// Where a plain file really is, if no link leads out of the folder to it, and root alone can change it, each link to it, and each
/// folder that it or such a link is in; else what is wrong, as half a sentence about the file.
pub fn real(host: &Host, folder: &Path, path: &Path) -> Result<PathBuf, String> {
    let walk = Walk::below(host)?;
    let (folder, real) = (walk.to(folder, "")?, walk.to(path, "it")?);
    if !real.starts_with(&folder) {
        return Err(leads_out(&real));
    }
    match fs::symlink_metadata(&real).map_err(cannot)?.is_file() {
        true => Ok(real),
        false => Err("is not a plain file".to_string()),
    }
}

/// Opens what [`real`] gave. No link is followed on the way, and opening it never blocks.
pub fn open(real: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(CWD, real, flags, Mode::empty(), no_links) {
        // Kernels before 5.6 have no such call, and filters of system calls that are as old forbid it.
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(real, flags, Mode::empty()),
        opened => opened,
    };
    let file = File::from(file?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a plain file")),
    }
}

fn cannot(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "can be looked at by root only".to_string(),
        _ => format!("cannot be looked at: {error}"),
    }
}

fn leads_out(to: &Path) -> String {
    format!("is a link that leads out of the folder, to {}", to.display())
}

/// From which root, and whose everything there must be.
struct Walk {
    /// Without links, and as it was named.
    root: PathBuf,
    named: PathBuf,
    owner: u32,
}

impl Walk {
    fn below(host: &Host) -> Result<Walk, String> {
        let named = host.at("/");
        let root = fs::canonicalize(&named).map_err(cannot)?;
        // Another root may belong to any user.
        let owner = if host.is_this() { 0 } else { fs::symlink_metadata(&root).map_err(cannot)?.uid() };
        Ok(Walk { root, named, owner })
    }

    /// The path without links, each part of which, and each link on the way, is root's alone. `last` is what its last part is called;
    /// by its path if that is empty.
    fn to(&self, path: &Path, last: &str) -> Result<PathBuf, String> {
        // The parts that are still to come, the next one last.
        let mut parts: Vec<OsString> = Vec::new();
        push(&mut parts, self.inside(path)?);
        let mut at = self.root.clone();
        let mut links = 0;
        self.check(&at, &fs::symlink_metadata(&at).map_err(cannot)?, "")?;
        while let Some(part) = parts.pop() {
            if part == ".." {
                if at != self.root {
                    at.pop();
                }
                continue;
            }
            let here = at.join(part);
            let facts = fs::symlink_metadata(&here).map_err(cannot)?;
            self.check(&here, &facts, if parts.is_empty() { last } else { "" })?;
            if !facts.is_symlink() {
                at = here;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err("cannot be looked at: there are too many links on the way to it".to_string());
            }
            // Read, and not followed: what the kernel makes of a link in /proc is another thing than its text.
            let target = fs::read_link(&here).map_err(cannot)?;
            if target.is_absolute() {
                at = self.root.clone();
                push(&mut parts, self.inside(&target)?);
            } else {
                push(&mut parts, &target);
            }
        }
        Ok(at)
    }

    fn inside<'a>(&self, path: &'a Path) -> Result<&'a Path, String> {
        path.strip_prefix(&self.root).or(path.strip_prefix(&self.named)).map_err(|_| leads_out(path))
    }

    fn check(&self, path: &Path, facts: &fs::Metadata, name: &str) -> Result<(), String> {
        let what = match name {
            "" => path.display().to_string(),
            name => name.to_string(),
        };
        if facts.uid() != self.owner {
            return Err(format!("is not root's alone: {what} belongs to user {}", facts.uid()));
        }
        // A link's own mode says nothing.
        if !facts.is_symlink() && facts.mode() & 0o022 != 0 {
            return Err(format!("is not root's alone: others can write to {what} (mode {:o})", facts.mode() & 0o7777));
        }
        Ok(())
    }
}

/// Puts the parts of a path before those that are still to come.
fn push(parts: &mut Vec<OsString>, path: &Path) {
    let wanted = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.extend(wanted.rev().map(|part| part.as_os_str().to_os_string()));
}

#[cfg(test)]
mod tests;
