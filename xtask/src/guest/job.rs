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
    /// How the module redirects, where it is not left to it: its parameter `redirect`.
    pub redirect: Option<String>,
}

impl Job {
    /// Fetches what the guest is made of, so that later steps need no network.
    pub fn fetch(&self) -> Result<()> {
        let arch = kernels::ready(&self.kernel)?.arch;
        self.rows.iter().try_for_each(|row| nvidia::ready(&row.client, arch).map(drop))
    }

    /// Whether a real driver is played, which wants memory that the guest's kernel leaves alone.
    pub fn is_real(&self) -> bool {
        self.rows.iter().any(|row| real::release(&row.era).is_some())
    }

    /// The kernel and the eras, and with one era the first client.
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
