//! The record of `mpu up` about the loaded module, for `mpu status`.

use super::plan::Origin;
use super::sources::PassedOver;
use mpu_host::host::Host;
use mpu_host::time;
use mpu_os::file::{Mode, replace_file_atomically};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A reboot clears it.
const RECORD: &str = "/run/mpu/up.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Seconds since 1970 at which the module was loaded.
    pub since: u64,
    pub module: PathBuf,
    /// Its origin; none if an earlier mpu loaded it.
    #[serde(default)]
    pub origin: Option<Origin>,
    #[serde(default)]
    pub passed_over: Vec<PassedOver>,
    /// The module's version; none if an earlier mpu loaded it.
    #[serde(default)]
    pub version: Option<String>,
    /// Whether an agent in a pod loaded it.
    #[serde(default)]
    pub by_agent: bool,
}

impl Record {
    pub fn now(module: &Path, origin: Option<Origin>, version: &str) -> Record {
        Record {
            since: time::now(),
            module: module.to_path_buf(),
            origin,
            passed_over: Vec::new(),
            version: Some(version.to_string()),
            by_agent: false,
        }
    }

    /// Best effort: without it `mpu status` cannot report the time of loading.
    pub fn write(&self, host: &Host) {
        let path = host.at(RECORD);
        let _ = path.parent().map(std::fs::create_dir_all);
        if let Ok(text) = serde_json::to_string(self) {
            let _ = replace_file_atomically(&path, text.as_bytes(), Mode::Of(0o644));
        }
    }

    /// The record of the loaded module, if `mpu up` loaded it.
    pub fn read(host: &Host) -> Option<Record> {
        host.text(RECORD).and_then(|text| serde_json::from_str(&text).ok())
    }

    pub fn remove(host: &Host) {
        let _ = std::fs::remove_file(host.at(RECORD));
    }
}
