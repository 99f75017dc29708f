//! Several hooks in one process: `in-turn HOOK … -- HOOK …`.
//!
//! Starting a process takes longer than most hooks. All arguments are checked first. Then the hooks run in order until one fails.

use super::outcome::HookError;
use super::state;
use crate::beneath::Root;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::rc::Rc;

/// The argument before several hooks.
pub const IN_TURN: &str = "in-turn";
/// The argument between two hooks.
pub const SEPARATOR: &str = "--";

/// The arguments of each hook, with the program's name.
pub(super) fn split(arguments: Vec<OsString>) -> Vec<Vec<OsString>> {
    match arguments.as_slice() {
        [name, word, hooks @ ..] if word == IN_TURN => {
            let with_name = |hook: &[OsString]| [std::slice::from_ref(name), hook].concat();
            hooks.split(|word| word == SEPARATOR).map(with_name).collect()
        }
        _ => vec![arguments],
    }
}

/// Container roots by the file of their state. A cache, because standard input can be read only once.
#[derive(Default)]
pub(super) struct RootCache(RefCell<BTreeMap<OsString, Rc<Root>>>);

impl RootCache {
    pub(super) fn of(&self, spec: &OsStr) -> Result<Rc<Root>, HookError> {
        let spec = if spec == "-" { OsStr::new("") } else { spec };
        if let Some(root) = self.0.borrow().get(spec) {
            return Ok(root.clone());
        }
        let path = state::container_root(Path::new(spec))?;
        let root = Rc::new(Root::open(&path)?);
        if root.is_process_root()? {
            return Err(HookError::Host { path });
        }
        self.0.borrow_mut().insert(spec.to_owned(), root.clone());
        Ok(root)
    }
}
