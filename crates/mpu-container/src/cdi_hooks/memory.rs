//! `apply-cuda-memory-limits`: limits a container's GPU memory, if its environment requests that.
//!
//! Runs at `createRuntime`, on the host: the container's process is in its cgroup and has not started its program.

use super::outcome::{HookError, Log};
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

/// Applies the limits that a container requests. `spec` is the file with its state. Without a request, does not need the driver.
pub fn apply(spec: &Path, args: &MemoryArgs, log: Log) -> Result<(), HookError> {
    let (bundle, process) = state::bundle_and_process(spec)?;
    let spec = match Spec::load(&bundle) {
        Err(SpecError::Read(path, source)) if source.kind() == io::ErrorKind::NotFound => {
            // Tools that are not OCI runtimes may call hooks without this file.
            log.warn(format!("no limit of GPU memory is looked for: there is no {}", path.display()));
            return Ok(());
        }
        other => other?,
    };
    let Some(limits) = request::memory_limits(spec.tree())? else { return Ok(()) };
    let invalid_gpu =
        |value: &str| HookError::Argument { what: "--gpu-id", value: value.into(), expected: "a GPU's UUID" };
    if args.gpus.is_empty() {
        return Err(invalid_gpu(""));
    }
    if let Some(blank) = args.gpus.iter().find(|gpu| gpu.trim().is_empty()) {
        return Err(invalid_gpu(blank));
    }
    let root = match args.driver_root.is_empty() {
        true => DriverRoot::host(),
        false => DriverRoot::at(&PathBuf::from(&args.driver_root), None),
    };
    let process = process.ok_or(state::StateError::Missing { what: "the container's state".into(), field: "pid" })?;
    // Read only now, so that other containers do not depend on this file. The environment can be the image's, so it cannot select the file.
    let config = Config::at_or_default(&config::path(|_| None).0).map(|loaded| loaded.config).unwrap_or_else(|error| {
        log.warn(format!("config.toml is passed over: {}", chain(&error)));
        Config::default()
    });
    limits::apply(limits, process, &root, &args.gpus, &config)?;
    log.debug(|| format!("limited the memory of {} to {limits:?}", args.gpus.join(", ")));
    Ok(())
}
