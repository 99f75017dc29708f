//! A container's request for GPUs and other devices, and whether it is permitted.
//!
//! The specification comes from the engine, but its environment comes from image and user: nothing in it is used as a path of the
//! host, and any content leads to a request, to none, or to an error with its place.
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
use crate::cdi::name::QualifiedName;
use crate::config::{Config, Mode};
use crate::driver::MemoryLimits;
use container::Container;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The words that name devices, each once: `all`; `none` for a driver without devices; or indices, UUIDs, PCI
    /// addresses, qualified CDI names. Never empty, and no word of it is.
    pub devices: Vec<String>,
    pub capabilities: Capabilities,
    /// Conditions (`require`), all of which must hold; in the order of the environment.
    pub requirements: Vec<String>,
    /// GPUs whose MIG division it may change, as it named them; only for a privileged container.
    pub mig_config: Option<String>,
    /// GPUs whose MIG devices it may monitor, likewise.
    pub mig_monitor: Option<String>,
    /// IMEX channels, by number; [`ALL_CHANNELS`] only where a mount named it.
    pub imex: Vec<String>,
    /// Other sets of devices, in the order of [`Extra::ALL`].
    pub extras: Vec<Extra>,
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

/// Its word is a generator's mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Extra {
    Gds,
    Mofed,
    Gdrcopy,
    Nvswitch,
}

impl Extra {
    /// Each, with the variable that asks for it by the value `enabled`.
    pub const ALL: [(&'static str, Extra); 4] = [
        ("NVIDIA_GDS", Extra::Gds),
        ("NVIDIA_MOFED", Extra::Mofed),
        ("NVIDIA_GDRCOPY", Extra::Gdrcopy),
        ("NVIDIA_NVSWITCH", Extra::Nvswitch),
    ];
}

/// Mounts of `/dev/null` on a name below this directory ask for the device of that name.
pub const MOUNTS: &str = "/var/run/nvidia-container-devices";

/// Limit of notes: an image can have a hundred thousand mistakes in its environment.
const MOST_NOTES: usize = 10;

/// The word for every IMEX channel of the host.
pub const ALL_CHANNELS: &str = "all";

/// Whether an image's declarations can refuse it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terms {
    /// It gets the parts of the driver that it names. An unknown word or a missing right refuses it.
    Strict,
    /// It gets the whole driver and is always started, as with NVIDIA's toolkit in the CDI modes: images that name too little work there.
    Loose,
}

impl Terms {
    /// Passes an error on if terms are strict. If they are loose, it becomes a note.
    fn hold<T>(self, requested: Result<T, RequestError>, notes: &mut Vec<String>) -> Result<Option<T>, RequestError> {
        match (requested, self) {
            (Err(error), Terms::Loose) => {
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
pub struct Answer {
    /// The request; none if the container is none of ours.
    pub request: Option<Request>,
    /// Ignored or unreadable parts of the request, with reasons, for the log.
    pub notes: Vec<String>,
}

impl Request {
    /// Whether all devices have qualified CDI names: then `auto` means mode `cdi`.
    pub fn only_cdi_names(&self) -> bool {
        self.devices.iter().all(|device| QualifiedName::is(device))
    }
}

/// Reads a container's request for a mode of the runtime. Annotations count in mode `cdi`, and in `auto` if they have only CDI names.
pub fn in_mode(spec: &Value, config: &Config, mode: Mode) -> Result<Answer, RequestError> {
    let terms = if mode == Mode::Legacy || config.strict_requests { Terms::Strict } else { Terms::Loose };
    match mode {
        Mode::Cdi => of(spec, config, Annotations::Read, terms),
        Mode::Legacy | Mode::Csv | Mode::JitCdi => of(spec, config, Annotations::Skip, terms),
        Mode::Auto => match of(spec, config, Annotations::Read, terms)? {
            Answer { request: Some(request), .. } if !request.only_cdi_names() => {
                of(spec, config, Annotations::Skip, terms)
            }
            answer => Ok(answer),
        },
    }
}

pub fn of(spec: &Value, config: &Config, annotations: Annotations, terms: Terms) -> Result<Answer, RequestError> {
    let mut answer = answer(spec, config, annotations, terms)?;
    if let Some(more) = answer.notes.len().checked_sub(MOST_NOTES).filter(|more| *more > 0) {
        answer.notes.truncate(MOST_NOTES);
        answer.notes.push(format!("{more} more are left out"));
    }
    Ok(answer)
}

fn answer(spec: &Value, config: &Config, annotations: Annotations, terms: Terms) -> Result<Answer, RequestError> {
    let (container, mut notes) = Container::read(spec)?;
    let requested = devices::requested_devices(&container, config, annotations, &mut notes);
    let Some((devices, source)) = requested else { return Ok(Answer { request: None, notes }) };
    let mig =
        [("NVIDIA_MIG_CONFIG_DEVICES", "MIG_CONFIG_DEVICES"), ("NVIDIA_MIG_MONITOR_DEVICES", "MIG_MONITOR_DEVICES")];
    let [mig_config, mig_monitor] =
        mig.map(|(name, what)| match container.variable(name).filter(|value| !value.is_empty()) {
            Some(_) if !container.privileged => terms.hold(Err(RequestError::Unprivileged { what }), &mut notes),
            value => Ok(value.map(str::to_string)),
        });
    let requested = terms.hold(image::capabilities(&container, config), &mut notes)?;
    let capabilities = match (requested, terms) {
        (Some(requested), Terms::Strict) => requested,
        (requested, _) => image::whole_driver(requested.unwrap_or(Capabilities::NONE), config),
    };
    let requirements = terms.hold(image::requirements(&container, config), &mut notes)?.unwrap_or_default();
    let request = Request {
        devices,
        source,
        mig_config: mig_config?,
        mig_monitor: mig_monitor?,
        capabilities,
        requirements,
        imex: devices::imex(&container, config, &mut notes)?,
        extras: Extra::ALL
            .into_iter()
            .filter(|(name, _)| container.variable(name) == Some("enabled"))
            .map(|(_, extra)| extra)
            .collect(),
        memory: memory::of(&container)?,
        privileged: container.privileged,
    };
    Ok(Answer { request: Some(request), notes })
}

#[cfg(test)]
mod tests;
