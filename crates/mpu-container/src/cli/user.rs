//! `--user`: opens the GPUs' nodes as another user, so that this user's rights count and not root's. NVIDIA's program runs the
//! driver's libraries as that user.
//!
//! Source: libnvidia-container, `nvidia-container-cli --help`; passwd(5), group(5).

use rustix::process::{Gid, Uid};
use std::fs;
use thiserror::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    uid: Uid,
    gid: Gid,
}

#[derive(Debug, Error)]
pub enum UserError {
    #[error("--user={word}: there is no {what} '{}' on this host", name.escape_debug())]
    Unknown {
        word: String,
        /// `user` or `group`.
        what: &'static str,
        name: String,
    },
    #[error("--user: cannot become user {} and group {}", .0.uid.as_raw(), .0.gid.as_raw())]
    Become(User, #[source] std::io::Error),
}

pub fn named(word: &str) -> Result<Option<User>, UserError> {
    match word {
        "" => Ok(None),
        _ => of(word, &text("/etc/passwd"), &text("/etc/group")).map(Some),
    }
}

fn text(path: &str) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn of(word: &str, passwd: &str, group: &str) -> Result<User, UserError> {
    let unknown =
        |what, name: &str| UserError::Unknown { word: word.escape_debug().to_string(), what, name: name.into() };
    let (user, wanted) = word.split_once(':').map_or((word, None), |(user, group)| (user, Some(group)));
    // The kernel's number for no user, -1, is none.
    let number = |text: &str| text.parse().ok().filter(|number| *number != u32::MAX);
    let line = |table: &str, name: &str| -> Option<Vec<String>> {
        let mut lines = table.lines().map(|line| line.split(':').map(String::from).collect::<Vec<_>>());
        lines.find(|fields| fields.len() > 2 && (fields[0] == name || number(name).is_some() && fields[2] == name))
    };
    let entry = line(passwd, user);
    let field = |at: usize| entry.as_ref().and_then(|fields| number(fields.get(at)?));
    let uid = field(2).or_else(|| number(user)).ok_or_else(|| unknown("user", user))?;
    let gid = match wanted {
        Some(name) => line(group, name).and_then(|fields| number(&fields[2])).or_else(|| number(name)),
        // A number without an entry is its own group, as with NVIDIA's.
        None => field(3).or(Some(uid)),
    };
    let gid = gid.ok_or_else(|| unknown("group", wanted.unwrap_or_default()))?;
    Ok(User { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) })
}

/// Calls `act` as that user. Only for a process with one thread.
pub fn as_if<T>(user: Option<User>, act: impl FnOnce() -> T) -> Result<T, UserError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let Some(wanted) = user.filter(|user| *user != User { uid, gid }) else { return Ok(act()) };
    let failed = |error: rustix::io::Errno| UserError::Become(wanted, error.into());
    let groups = rustix::process::getgroups().map_err(failed)?;
    // Root's other groups must not add rights.
    set_groups(&[]).map_err(failed)?;
    // The saved user stays, so that the change can be reversed.
    rustix::thread::set_thread_res_gid(gid, wanted.gid, gid).map_err(failed)?;
    let changed = rustix::thread::set_thread_res_uid(uid, wanted.uid, uid).map_err(failed);
    let done = changed.as_ref().ok().map(|()| act());
    let back = rustix::thread::set_thread_res_uid(uid, uid, uid)
        .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_groups(&groups))
        .map_err(failed);
    changed.and(back).map(|()| done.expect("it was done"))
}

/// In a user namespace of an ordinary user groups cannot be changed, and are harmless.
fn set_groups(groups: &[Gid]) -> rustix::io::Result<()> {
    match rustix::thread::set_thread_groups(groups) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_user_has_no_supplementary_groups() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: only root can become another user");
        }
        let groups = [Gid::from_raw(7), Gid::from_raw(44)];
        // This thread's alone.
        rustix::thread::set_thread_groups(&groups).unwrap();
        let user = User { uid: Uid::from_raw(65534), gid: Gid::from_raw(65534) };
        let acted = as_if(Some(user), || (rustix::process::getgroups().unwrap(), rustix::process::getegid())).unwrap();
        assert_eq!(acted, (Vec::new(), user.gid));
        assert_eq!(rustix::process::getgroups().unwrap(), groups);
        assert!(rustix::process::geteuid().is_root());
    }

    #[test]
    fn user_option_accepts_names_and_ids() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nuser:x:1000:100::/:/bin/sh\nbad\n7:x:70:71::/:\n";
        let group = "root:x:0:\nvideo:x:44:\n";
        let check = |word: &str, uid, gid| {
            let user = User { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) };
            assert_eq!(of(word, passwd, group).unwrap(), user, "{word}");
        };
        check("root:video", 0, 44);
        check("user", 1000, 100);
        check("1000", 1000, 100);
        check("0:44", 0, 44);
        check("65534", 65534, 65534);
        check("7", 70, 71);
        for wrong in
            ["nobody-here", "root:nobody", "root:", ":44", "-1", "4294967295", "1000:4294967295", "bad", "a\u{1b}[0m"]
        {
            let error = of(wrong, passwd, group).unwrap_err().to_string();
            assert!(error.starts_with("--user=") && !error.contains('\u{1b}'), "{error}");
        }
        assert_eq!(named("").unwrap(), None);
    }
}
