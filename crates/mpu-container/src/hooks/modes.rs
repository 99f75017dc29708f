//! `chmod`: the mode of folders that were made for mounts.

use super::{HookError, Notes};
use crate::beneath::Root;
use std::path::Path;

pub fn parse(text: &str) -> Result<u32, HookError> {
    let digits = text.trim();
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o7777 && !digits.starts_with('+'));
    mode.ok_or(HookError::Argument { what: "the mode", value: text.into(), wanted: "an octal number up to 7777" })
}

/// Sets the mode of what is there. A file system that does not allow it, as a whole `/dev` of the host's, is left as
/// it is.
pub fn set(root: &Root, paths: &[String], mode: u32, notes: Notes) -> Result<(), HookError> {
    if let Some(path) = paths.iter().find(|path| path.trim().is_empty()) {
        return Err(HookError::Argument { what: "the path", value: path.clone(), wanted: "a path" });
    }
    for path in paths {
        let Some(found) = root.find(Path::new(path))? else {
            notes.detail(|| format!("{path} is not there"));
            continue;
        };
        match found.set_mode(mode) {
            Ok(()) => notes.detail(|| format!("{path} has mode {mode:o}")),
            Err(error) if error.is_denied() => notes.detail(|| crate::chain::chain(&error)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
