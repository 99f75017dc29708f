//! `apply-cuda-memory-limits`: limits a container's GPU memory, if its environment requests that.
//!
//! It runs at `createRuntime`, on the host, when the container's process is in its cgroup and has not started its program.

use super::outcome::{HookError, Notes};
use super::state;
use crate::chain::chain;
use crate::config::{self, Config};
use crate::driver::DriverRoot;
use crate::limits;
use crate::request;
use crate::spec::{Spec, SpecError};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Whose memory is limited.
#[derive(Debug, clap::Args)]
pub struct MemoryArgs {
    /// Where the driver lies, when that is not the host's root
    #[arg(long, value_name = "FOLDER", default_value = "", hide_default_value = true)]
    driver_root: OsString,
    /// A GPU's UUID
    #[arg(long = "gpu-id", value_name = "UUID", value_delimiter = ',')]
    gpus: Vec<String>,
}

/// Applies the limits that a container requests; `spec` is the file with its state. Without a request, the driver need not be loaded.
pub fn apply(spec: &Path, args: &MemoryArgs, notes: Notes) -> Result<(), HookError> {
    let (bundle, process) = state::process(spec)?;
    let spec = match Spec::load(&bundle) {
        Err(SpecError::Read(path, source)) if source.kind() == io::ErrorKind::NotFound => {
            // Tools that call hooks without being an OCI runtime write no such file.
            notes.warn(format!("no limit of GPU memory is looked for: there is no {}", path.display()));
            return Ok(());
        }
        other => other?,
    };
    let Some(limits) = request::memory_limits(spec.tree())? else { return Ok(()) };
    let wrong = |value: &str| HookError::Argument { what: "--gpu-id", value: value.into(), expected: "a GPU's UUID" };
    if args.gpus.is_empty() {
        return Err(wrong(""));
    }
    if let Some(blank) = args.gpus.iter().find(|gpu| gpu.trim().is_empty()) {
        return Err(wrong(blank));
    }
    let root = match args.driver_root.is_empty() {
        true => DriverRoot::host(),
        false => DriverRoot::at(&PathBuf::from(&args.driver_root), None),
    };
    let process = process.ok_or(state::StateError::Missing { what: "the container's state".into(), field: "pid" })?;
    // A container that asks for nothing does not depend on this file. The environment, which can be the image's, does not name it.
    let config = Config::at_or_default(&config::path(|_| None).0).map(|loaded| loaded.config).unwrap_or_else(|error| {
        notes.warn(format!("config.toml is passed over: {}", chain(&error)));
        Config::default()
    });
    limits::apply(limits, process, &root, &args.gpus, &config)?;
    notes.detail(|| format!("limited the memory of {} to {limits:?}", args.gpus.join(", ")));
    Ok(())
}
