//! The job of one guest: a kernel, and the rows to run on it.

use std::time::Duration;

use anyhow::Result;
pub use mpu_plan::Row;

use super::real;
use crate::{kernels, nvidia};

/// The story of `./x demo`.
pub const DEMO: &str = "demo";

#[derive(Clone, Debug)]
pub struct Job {
    pub kernel: String,
    pub rows: Vec<Row>,
    pub cpus: u32,
    pub limit: Duration,
    /// The module's parameter `redirect`, if it is set.
    pub redirect: Option<String>,
}

impl Job {
    /// Downloads everything for the guest, so that later steps need no network.
    pub fn fetch(&self) -> Result<()> {
        let arch = kernels::ready(&self.kernel)?.arch;
        self.rows.iter().try_for_each(|row| nvidia::ready(&row.client, arch).map(drop))
    }

    /// Whether a row has a real driver, which needs memory that the guest's kernel does not use.
    pub fn is_real(&self) -> bool {
        self.rows.iter().any(|row| real::release(&row.era).is_some())
    }

    /// Kernel and eras; with one simulated era also the first client.
    pub fn name(&self) -> String {
        let mut eras: Vec<&str> = self.rows.iter().map(|row| row.era.as_str()).collect();
        eras.dedup();
        let redirect = self.redirect.as_ref().map_or_else(String::new, |way| format!("-{way}"));
        let client = match eras.as_slice() {
            [era] if real::release(era).is_none() => format!("-{}", self.rows[0].client),
            _ => String::new(),
        };
        format!("{}{redirect}-era{}{client}", self.kernel, eras.join("+"))
    }
}
