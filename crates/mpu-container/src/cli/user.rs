//! `--user`: opens the GPUs' nodes with the rights of another user instead of root's. NVIDIA's program runs the driver's libraries as that
//! user.
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
    #[error("--user={value}: there is no {entry_kind} '{}' on this host", name.escape_debug())]
    Unknown {
        value: String,
        /// `user` or `group`.
        entry_kind: &'static str,
        name: String,
    },
    #[error("--user: cannot become user {} and group {}", .0.uid.as_raw(), .0.gid.as_raw())]
    Become(User, #[source] std::io::Error),
}

pub fn parse_user(value: &str) -> Result<Option<User>, UserError> {
    match value {
        "" => Ok(None),
        _ => look_up(value, &read_text("/etc/passwd"), &read_text("/etc/group")).map(Some),
    }
}

fn read_text(path: &str) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn look_up(value: &str, passwd: &str, group: &str) -> Result<User, UserError> {
    let unknown = |entry_kind, name: &str| UserError::Unknown {
        value: value.escape_debug().to_string(),
        entry_kind,
        name: name.into(),
    };
    let (user, group_name) = value.split_once(':').map_or((value, None), |(user, group)| (user, Some(group)));
    // -1 means "no change" to the kernel, so it is no valid ID.
    let number = |text: &str| text.parse().ok().filter(|number| *number != u32::MAX);
    let line = |table: &str, name: &str| -> Option<Vec<String>> {
        let mut lines = table.lines().map(|line| line.split(':').map(String::from).collect::<Vec<_>>());
        lines.find(|fields| fields.len() > 2 && (fields[0] == name || number(name).is_some() && fields[2] == name))
    };
    let entry = line(passwd, user);
    let field = |at: usize| entry.as_ref().and_then(|fields| number(fields.get(at)?));
    let uid = field(2).or_else(|| number(user)).ok_or_else(|| unknown("user", user))?;
    let gid = match group_name {
        Some(name) => line(group, name).and_then(|fields| number(&fields[2])).or_else(|| number(name)),
        // As with NVIDIA's program, an unknown user ID is also the group ID.
        None => field(3).or(Some(uid)),
    };
    let gid = gid.ok_or_else(|| unknown("group", group_name.unwrap_or_default()))?;
    Ok(User { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) })
}

/// Calls `action` as that user. Only for a process with one thread.
pub fn run_as<T>(user: Option<User>, action: impl FnOnce() -> T) -> Result<T, UserError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let Some(target) = user.filter(|user| *user != User { uid, gid }) else { return Ok(action()) };
    let failed = |error: rustix::io::Errno| UserError::Become(target, error.into());
    let groups = rustix::process::getgroups().map_err(failed)?;
    // Root's supplementary groups must not add rights.
    set_groups(&[]).map_err(failed)?;
    // The saved IDs stay, so that the change can be reversed.
    rustix::thread::set_thread_res_gid(gid, target.gid, gid).map_err(failed)?;
    let changed = rustix::thread::set_thread_res_uid(uid, target.uid, uid).map_err(failed);
    let result = changed.as_ref().ok().map(|()| action());
    let restored = rustix::thread::set_thread_res_uid(uid, uid, uid)
        .and_then(|()| rustix::thread::set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_groups(&groups))
        .map_err(failed);
    changed.and(restored).map(|()| result.expect("it was done"))
}

/// Ignores `EPERM`: in a user namespace of an unprivileged user, groups cannot be changed and add no rights.
fn set_groups(groups: &[Gid]) -> rustix::io::Result<()> {
    match rustix::thread::set_thread_groups(groups) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        result => result,
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
        // Only for this thread.
        rustix::thread::set_thread_groups(&groups).unwrap();
        let user = User { uid: Uid::from_raw(65534), gid: Gid::from_raw(65534) };
        let acted = run_as(Some(user), || (rustix::process::getgroups().unwrap(), rustix::process::getegid())).unwrap();
        assert_eq!(acted, (Vec::new(), user.gid));
        assert_eq!(rustix::process::getgroups().unwrap(), groups);
        assert!(rustix::process::geteuid().is_root());
    }

    #[test]
    fn user_option_accepts_names_and_ids() {
        let passwd = "root:x:0:0:root:/:/bin/sh\nuser:x:1000:100::/:/bin/sh\nbad\n7:x:70:71::/:\n";
        let group = "root:x:0:\nvideo:x:44:\n";
        let check = |value: &str, uid, gid| {
            let user = User { uid: Uid::from_raw(uid), gid: Gid::from_raw(gid) };
            assert_eq!(look_up(value, passwd, group).unwrap(), user, "{value}");
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
            let error = look_up(wrong, passwd, group).unwrap_err().to_string();
            assert!(error.starts_with("--user=") && !error.contains('\u{1b}'), "{error}");
        }
        assert_eq!(parse_user("").unwrap(), None);
    }
}
