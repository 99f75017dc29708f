//! What is asked of one guest: a kernel, and the rows that are played on it.

use std::time::Duration;

use anyhow::Result;

use super::real;
use crate::{kernels, nvidia};

/// One line of a guest's plan: a driver and a client, and what to try on them.
#[derive(Clone, Debug)]
pub struct Row {
    /// The simulated driver's era; or, as `1@550.163.01`, the era of a real driver and its release.
    pub era: String,
    /// Which nvidia-smi.
    pub client: String,
    /// Which engines, in order.
    pub engines: Vec<String>,
    /// Which stories; all if empty.
    pub stories: Vec<String>,
    /// How often the module is reloaded under load.
    pub reloads: u32,
}

/// One guest to boot.
#[derive(Clone, Debug)]
pub struct Job {
    /// The kernel's short name.
    pub kernel: String,
    /// What to do in it.
    pub rows: Vec<Row>,
    /// Its processors.
    pub cpus: u32,
    /// How long it may take.
    pub limit: Duration,
}

impl Job {
    /// Fetches what the guest is made of, so that later steps need no network.
    pub fn fetch(&self) -> Result<()> {
        kernels::ready(&self.kernel)?;
        self.rows.iter().try_for_each(|row| nvidia::ready(&row.client).map(drop))
    }

    /// Whether a real driver is played, which wants memory that the guest's kernel leaves alone.
    pub fn is_real(&self) -> bool {
        self.rows.iter().any(|row| real::release(&row.era).is_some())
    }

    /// A name for logs and images.
    pub fn name(&self) -> String {
        let mut eras: Vec<&str> = self.rows.iter().map(|row| row.era.as_str()).collect();
        eras.dedup();
        format!("{}-era{}", self.kernel, eras.join("+"))
    }
}
