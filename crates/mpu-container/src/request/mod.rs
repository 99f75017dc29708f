//! Parses a container's request for GPUs and other devices, and checks whether it is permitted.
//!
//! The specification comes from the engine, but its environment comes from the image and the user. No value is used as a path on the
//! host. Any content gives a request, no request, or an error that names the field.
//!
//! Source: NVIDIA Container Toolkit 1.20, `internal/config/image` and `cmd/nvidia-container-runtime-hook`; for
//! users, its documentation, "Specialized Configurations".

mod container;
mod devices;
mod error;
mod image;
mod memory;

pub use error::RequestError;
pub use memory::memory_limits;

use crate::capability::Capabilities;
use crate::cdi::extra;
use crate::cdi::name::QualifiedName;
use crate::config::{Config, Mode};
use crate::driver::MemoryLimits;
use container::Container;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Unique device names: `all`, `none` (the driver without devices), indices, UUIDs, PCI addresses, or qualified CDI
    /// names. The list and its names are never empty.
    pub devices: Vec<String>,
    pub capabilities: Capabilities,
    /// Requirements of the image, in the order of the environment. All must hold.
    pub requirements: Vec<String>,
    /// GPUs whose MIG configuration it may change. Only for a privileged container.
    pub mig_config: Option<String>,
    /// GPUs whose MIG devices it may monitor. Only for a privileged container.
    pub mig_monitor: Option<String>,
    /// IMEX channels by number. [`ALL_CHANNELS`] is possible only by a mount.
    pub imex: Vec<String>,
    /// Other sets of devices.
    pub extras: Vec<extra::Mode>,
    pub memory: Option<MemoryLimits>,
    pub source: Source,
    /// Whether it has `CAP_SYS_ADMIN`.
    pub privileged: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Annotations,
    /// By mounts below [`MOUNTS`].
    Mounts,
    Environment,
}

/// Other sets of devices, and the variables that request them by the value `enabled`.
const EXTRAS: [(&str, extra::Mode); 4] = [
    ("NVIDIA_GDS", extra::Mode::Gds),
    ("NVIDIA_MOFED", extra::Mode::Mofed),
    ("NVIDIA_GDRCOPY", extra::Mode::Gdrcopy),
    ("NVIDIA_NVSWITCH", extra::Mode::Nvswitch),
];

/// A mount of `/dev/null` on a name below this directory requests the device of that name.
pub const MOUNTS: &str = "/var/run/nvidia-container-devices";

/// Limit of notes. An image's environment can have a hundred thousand mistakes.
const MAX_NOTES: usize = 10;

/// Stands for every IMEX channel of the host.
pub const ALL_CHANNELS: &str = "all";

/// Whether a mistake in an image's declarations refuses the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// The container gets the driver capabilities that it names. An unknown capability or a missing permission refuses it.
    Strict,
    /// The container gets the whole driver and is always started, as in the CDI modes of NVIDIA's toolkit: there, images that name too few
    /// capabilities work.
    Loose,
}

impl Strictness {
    /// Returns the error if strict. If loose, turns it into a note.
    fn error_or_note<T>(
        self,
        requested: Result<T, RequestError>,
        notes: &mut Vec<String>,
    ) -> Result<Option<T>, RequestError> {
        match (requested, self) {
            (Err(error), Strictness::Loose) => {
                notes.push(format!("passed over, for mpu.strict-requests is off: {error}"));
                Ok(None)
            }
            (requested, _) => requested.map(Some),
        }
    }
}

/// Whether annotations can request devices: in mode `cdi`, and while `auto` selects a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotations {
    Read,
    Skip,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedRequest {
    /// None if the container requests no device.
    pub request: Option<Request>,
    /// Ignored or unreadable parts of the request, with reasons, for the log.
    pub notes: Vec<String>,
}

impl Request {
    /// Whether all devices have qualified CDI names: then `auto` means mode `cdi`.
    pub fn only_cdi_names(&self) -> bool {
        self.devices.iter().all(|device| QualifiedName::is_valid(device))
    }
}

/// Parses a container's request for a mode of the runtime. Annotations count in mode `cdi`, and in `auto` if they have only CDI names.
pub fn parse_for_mode(spec: &Value, config: &Config, mode: Mode) -> Result<ParsedRequest, RequestError> {
    let strictness =
        if mode == Mode::Legacy || config.strict_requests { Strictness::Strict } else { Strictness::Loose };
    match mode {
        Mode::Cdi => parse(spec, config, Annotations::Read, strictness),
        Mode::Legacy | Mode::Csv | Mode::JitCdi => parse(spec, config, Annotations::Skip, strictness),
        Mode::Auto => match parse(spec, config, Annotations::Read, strictness)? {
            ParsedRequest { request: Some(request), .. } if !request.only_cdi_names() => {
                parse(spec, config, Annotations::Skip, strictness)
            }
            parsed => Ok(parsed),
        },
    }
}

pub fn parse(
    spec: &Value,
    config: &Config,
    annotations: Annotations,
    strictness: Strictness,
) -> Result<ParsedRequest, RequestError> {
    let mut parsed = parse_with_all_notes(spec, config, annotations, strictness)?;
    if let Some(more) = parsed.notes.len().checked_sub(MAX_NOTES).filter(|more| *more > 0) {
        parsed.notes.truncate(MAX_NOTES);
        parsed.notes.push(format!("{more} more are left out"));
    }
    Ok(parsed)
}

fn parse_with_all_notes(
    spec: &Value,
    config: &Config,
    annotations: Annotations,
    strictness: Strictness,
) -> Result<ParsedRequest, RequestError> {
    let (container, mut notes) = Container::read(spec)?;
    let requested = devices::requested_devices(&container, config, annotations, &mut notes);
    let Some((devices, source)) = requested else { return Ok(ParsedRequest { request: None, notes }) };
    let mig =
        [("NVIDIA_MIG_CONFIG_DEVICES", "MIG_CONFIG_DEVICES"), ("NVIDIA_MIG_MONITOR_DEVICES", "MIG_MONITOR_DEVICES")];
    let [mig_config, mig_monitor] =
        mig.map(|(name, what)| match container.variable(name).filter(|value| !value.is_empty()) {
            Some(_) if !container.privileged => {
                strictness.error_or_note(Err(RequestError::Unprivileged { what }), &mut notes)
            }
            value => Ok(value.map(str::to_string)),
        });
    let requested = strictness.error_or_note(image::capabilities(&container, config), &mut notes)?;
    let capabilities = match (requested, strictness) {
        (Some(requested), Strictness::Strict) => requested,
        (requested, _) => image::supported_capabilities(requested.unwrap_or(Capabilities::NONE), config),
    };
    let requirements =
        strictness.error_or_note(image::requirements(&container, config), &mut notes)?.unwrap_or_default();
    let request = Request {
        devices,
        source,
        mig_config: mig_config?,
        mig_monitor: mig_monitor?,
        capabilities,
        requirements,
        imex: devices::imex(&container, config, &mut notes)?,
        extras: EXTRAS
            .into_iter()
            .filter(|(name, _)| container.variable(name) == Some("enabled"))
            .map(|(_, extra)| extra)
            .collect(),
        memory: memory::limits_of(&container)?,
        privileged: container.privileged,
    };
    Ok(ParsedRequest { request: Some(request), notes })
}

#[cfg(test)]
mod tests;
