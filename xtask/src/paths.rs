//! Paths: the repository, the cache outside it, the build folder. Creates those that it returns.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub fn repo() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

/// A folder in the cache, which outlives the working tree: `$MPU_CACHE`, or `~/.cache/mpu`.
pub fn cache(below: &str) -> Result<PathBuf> {
    let base = match std::env::var_os("MPU_CACHE") {
        Some(dir) => PathBuf::from(dir),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("neither MPU_CACHE nor HOME is set")?).join(".cache/mpu")
        }
    };
    folder(base.join(below))
}

pub fn target(below: &str) -> Result<PathBuf> {
    folder(target_dir().join(below))
}

/// Cargo's target directory, as cargo itself would choose it.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => repo().join(dir),
        None => repo().join("target"),
    }
}

fn folder(dir: PathBuf) -> Result<PathBuf> {
    fs_err::create_dir_all(&dir)?;
    Ok(dir)
}
