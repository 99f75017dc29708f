//! Where the parts lie that are ours, and how their text is read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::paths;

/// The parts that are ours, in this repository.
pub fn parts() -> PathBuf {
    paths::repo().join("tests/real-driver")
}

pub fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
