//! The record of an installation by `mpu install`.

use mpu_host::host::Host;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The file of the record.
pub const RECORD: &str = "/var/lib/mpu/install.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub version: String,
    pub files: Vec<Installed>,
    /// Folders that were made for them, outermost first.
    pub directories: Vec<PathBuf>,
    /// Whether DKMS builds the module.
    pub dkms: bool,
    /// Whether systemd starts it at boot.
    pub service: bool,
}

/// One file of an installation, and the SHA-256 of what was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    pub path: PathBuf,
    pub sha256: String,
}

impl Record {
    /// The host's record, if `mpu install` was used.
    pub fn read(host: &Host) -> Option<Record> {
        host.text(RECORD).and_then(|text| serde_json::from_str(&text).ok())
    }
}
