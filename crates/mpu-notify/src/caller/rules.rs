//! The policy's rules: they select a caller's view of PIDs by its cgroup.

use mpu_core::policy::{BadRule, Sees, Table};

/// Parsed rules and their text.
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

    /// The view of a caller with this cgroup. Without rules, as on most hosts, the cgroup is not read.
    pub(crate) fn of(&self, cgroup: impl FnOnce() -> Option<Vec<u8>>) -> Option<(Sees, Vec<u8>)> {
        let cgroup = if self.text.is_empty() { None } else { cgroup() }?;
        Some((self.table.of(self.text.as_bytes(), &cgroup), cgroup))
    }
}
