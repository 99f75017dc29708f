//! `create-symlinks`: links in the container, to libraries that were mounted into it.

use super::{HookError, Notes};
use crate::beneath::Root;
use std::path::PathBuf;

#[derive(Debug, PartialEq, Eq)]
pub struct Links(Vec<(PathBuf, PathBuf)>);

impl Links {
    /// Reads `TARGET::LINK`, all of them before any is made.
    pub fn parse(words: &[String]) -> Result<Links, HookError> {
        let link = |word: &String| match word.split("::").collect::<Vec<_>>()[..] {
            [target, link] if !target.is_empty() && !link.is_empty() => Ok((target.into(), link.into())),
            _ => Err(HookError::Argument { what: "the link", value: word.clone(), wanted: "of the form TARGET::LINK" }),
        };
        Ok(Links(words.iter().map(link).collect::<Result<_, _>>()?))
    }
}

/// Makes the links. A link's place is found below the container's root; its target is text, and is followed by nobody
/// but the container.
pub fn create(root: &Root, links: &Links, notes: Notes) -> Result<(), HookError> {
    for (target, link) in &links.0 {
        let new = root.symlink(target, link)?;
        let did = if new { "made" } else { "found" };
        notes.detail(|| format!("{did} {} -> {}", link.display(), target.display()));
    }
    Ok(())
}
