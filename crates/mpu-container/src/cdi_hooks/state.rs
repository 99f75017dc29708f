//! Reads a container's state to find its root, bundle and process.
//!
//! Source: OCI runtime specification, "State" (`bundle`) and "Root" (`root.path`, relative to the bundle). crun's state
//! has the root, and its bundle can be unreadable for the hook.

use crate::text_file;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::process::Pid;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Limit of a state or configuration. Engines' configurations have some hundred kilobytes.
const MAX_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot read {what}")]
    Read { what: String, source: io::Error },
    #[error("{what} is not a container's {wanted}")]
    Parse { what: String, wanted: &'static str, source: serde_json::Error },
    #[error("{what} names no {field}")]
    Missing { what: String, field: &'static str },
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub struct State {
    #[serde(default)]
    bundle: PathBuf,
    #[serde(default)]
    root: PathBuf,
    #[serde(default)]
    pid: i32,
}

#[derive(Debug, Deserialize)]
struct Config {
    root: Option<ConfigRoot>,
}

#[derive(Debug, Deserialize)]
struct ConfigRoot {
    #[serde(default)]
    path: PathBuf,
}

impl State {
    /// Reads a state: the first JSON value of a stream, so that a runtime may leave its end open.
    pub fn read(stream: impl Read) -> Result<State, serde_json::Error> {
        first_value(stream)
    }
}

/// The bundle and the first process of a container, from its state in a file. An empty name or `-` means standard input.
pub fn bundle_and_process(spec: &Path) -> Result<(PathBuf, Option<Pid>), StateError> {
    let (state, name) = read(spec)?;
    match state.bundle.as_os_str().is_empty() {
        true => Err(StateError::Missing { what: name, field: "bundle" }),
        false => Ok((state.bundle, (state.pid > 0).then(|| Pid::from_raw(state.pid)).flatten())),
    }
}

fn read(spec: &Path) -> Result<(State, String), StateError> {
    let name = match spec.as_os_str().to_str() {
        Some("" | "-") => "standard input".to_string(),
        _ => spec.display().to_string(),
    };
    let wrap = |source: serde_json::Error| match source.is_io() {
        true => StateError::Read { what: name.clone(), source: source.into() },
        false => StateError::Parse { what: name.clone(), wanted: "state", source },
    };
    let state = if name == "standard input" {
        State::read(io::stdin().lock().take(MAX_BYTES)).map_err(wrap)?
    } else {
        State::read(open(spec)?).map_err(wrap)?
    };
    Ok((state, name))
}

pub fn container_root(spec: &Path) -> Result<PathBuf, StateError> {
    let (state, name) = read(spec)?;
    if !state.root.as_os_str().is_empty() {
        return Ok(state.bundle.join(state.root));
    }
    if state.bundle.as_os_str().is_empty() {
        return Err(StateError::Missing { what: name, field: "bundle" });
    }
    let config = state.bundle.join("config.json");
    let what = config.display().to_string();
    let opened = match open_regular(&config) {
        Err(StateError::Read { source, .. })
            if source.kind() == io::ErrorKind::PermissionDenied && is_root_of_mounts() =>
        {
            return Ok(PathBuf::from("."));
        }
        opened => opened?,
    };
    let read: Config = first_value(opened).map_err(|source| StateError::Parse {
        what: what.clone(),
        wanted: "configuration",
        source,
    })?;
    match read.root {
        Some(root) if !root.path.as_os_str().is_empty() => Ok(state.bundle.join(root.path)),
        _ => Err(StateError::Missing { what, field: "root.path" }),
    }
}

/// Whether the working directory is the root of a mount, as a container's root is. runc starts hooks in the container's root. If the
/// user namespace's root may not search the bundle's folders (`podman --uidmap`), there is no other way to find it.
fn is_root_of_mounts() -> bool {
    let about = rustix::fs::statx(CWD, ".", AtFlags::empty(), StatxFlags::TYPE);
    about.is_ok_and(|about| about.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn open(path: &Path) -> Result<impl Read, StateError> {
    let file = File::open(path).map_err(|source| StateError::Read { what: path.display().to_string(), source })?;
    Ok(io::BufReader::new(file).take(MAX_BYTES))
}

/// Opens the bundle's `config.json`, which must be a regular file, unlike the state.
fn open_regular(path: &Path) -> Result<impl Read, StateError> {
    let failed = |source| StateError::Read { what: path.display().to_string(), source };
    let file = text_file::open_regular(path).map_err(failed)?;
    Ok(io::BufReader::new(file).take(MAX_BYTES))
}

fn first_value<T: for<'a> Deserialize<'a>>(stream: impl Read) -> Result<T, serde_json::Error> {
    T::deserialize(&mut serde_json::Deserializer::from_reader(stream))
}
