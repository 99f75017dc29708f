//! `mpu ps`: a table of every GPU process.

use crate::error::Error;
use crate::listing::{listed, ListOptions, Listed};
use crate::processes;
use mpu_host::host::Host;
use mpu_host::progress::Progress;

/// Looks once. `width` is the terminal's; without one nothing is cut.
pub fn ps(host: &Host, options: &ListOptions, width: Option<usize>) -> Result<Listed, Error> {
    let _progress = Progress::of("asking the driver");
    let seen = processes::snapshot(host, processes::Depth::Everything)?;
    options.filter.check(&seen.gpus)?;
    Ok(listed(host, seen, options, width))
}
