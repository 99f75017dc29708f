//! The policy: which view of PIDs a caller has, by its cgroup.

use mpu_core::policy::{BadRule, Sees, Table};

/// Rules of the policy: their text, looked at once for all calls.
pub(crate) struct Rules {
    text: Box<str>,
    table: Table,
}

impl Rules {
    pub(crate) fn none() -> Rules {
        Rules { text: "".into(), table: Table::EMPTY }
    }

    pub(crate) fn read(text: &str) -> Result<Rules, BadRule> {
        let mut table = Table::EMPTY;
        table.read(text.as_bytes())?;
        Ok(Rules { text: text.into(), table })
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What a caller with this cgroup sees. Most hosts have no rule; then the cgroup is not read.
    pub(crate) fn of(&self, cgroup: impl FnOnce() -> Option<Vec<u8>>) -> Option<(Sees, Vec<u8>)> {
        let cgroup = if self.text.is_empty() { None } else { cgroup() }?;
        Some((self.table.of(self.text.as_bytes(), &cgroup), cgroup))
    }
}
