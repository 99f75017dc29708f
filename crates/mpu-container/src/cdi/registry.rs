//! Reads a host's CDI files and resolves device names to edits.
//!
//! If files in two directories describe a device, the later directory takes precedence. Two files of one directory are a conflict. An
//! invalid file affects its own devices only; the error for an unknown device names it.
//!
//! Source: CDI specification 1.1.0, "Locating and Using CDI Specifications": `.json` and `.yaml` files directly in
//! `/etc/cdi` and `/var/run/cdi`; the later directory takes precedence.

use super::file;
use super::name::{Kind, QualifiedName};
use super::validate;
use crate::edits::{ContainerEdits, Spec};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Default directories of CDI files: the administrator's, then the generated ones.
pub const DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

#[derive(Debug, Default)]
pub struct Registry {
    specs: Vec<(PathBuf, Spec)>,
    devices: BTreeMap<QualifiedName, Location>,
    failures: Vec<Failure>,
    directories: Vec<PathBuf>,
}

/// A file or directory that could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct Failure {
    pub path: PathBuf,
    why: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("unresolvable CDI device {name}: no file in {} describes it{}", .directories.join(" or "), unread_files(.broken))]
    Unknown {
        name: QualifiedName,
        directories: Vec<String>,
        /// Files that could not be used, with reasons. One of them may describe the device.
        broken: Vec<String>,
    },
    #[error("unresolvable CDI device {name}: {} and {} both describe it; remove one", .files[0].display(), .files[1].display())]
    Conflict { name: QualifiedName, files: [PathBuf; 2] },
}

#[derive(Debug)]
enum Location {
    Spec { directory: usize, spec: usize, device: usize },
    Conflict { directory: usize, files: [PathBuf; 2] },
}

impl Registry {
    pub fn read(directories: &[PathBuf]) -> Registry {
        let mut registry = Registry { directories: directories.to_vec(), ..Registry::default() };
        for (location, directory) in directories.iter().enumerate() {
            match files(directory) {
                Ok(files) => files.into_iter().for_each(|path| registry.add(location, path)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => registry.fail(directory, format!("cannot read it: {error}")),
            }
        }
        registry
    }

    pub fn devices(&self) -> impl Iterator<Item = &QualifiedName> {
        self.devices.iter().filter(|(_, location)| matches!(location, Location::Spec { .. })).map(|(name, _)| name)
    }

    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    pub fn conflicts(&self) -> impl Iterator<Item = ResolveError> + '_ {
        self.devices.iter().filter_map(|(name, location)| match location {
            Location::Conflict { files, .. } => {
                Some(ResolveError::Conflict { name: name.clone(), files: files.clone() })
            }
            Location::Spec { .. } => None,
        })
    }

    /// The edits of these devices. The common edits of a file come once, before those of its first device.
    pub fn edits(&self, names: &[QualifiedName]) -> Result<ContainerEdits, ResolveError> {
        let mut used = BTreeSet::new();
        let mut all = ContainerEdits::default();
        for name in names {
            let (at, device) = self.find(name)?;
            let spec = &self.specs[at].1;
            if used.insert((at, None)) {
                append(&mut all, &spec.container_edits);
            }
            if used.insert((at, Some(device))) {
                append(&mut all, &spec.devices[device].container_edits);
            }
        }
        Ok(all)
    }

    fn find(&self, name: &QualifiedName) -> Result<(usize, usize), ResolveError> {
        match self.devices.get(name) {
            Some(Location::Spec { spec, device, .. }) => Ok((*spec, *device)),
            Some(Location::Conflict { files, .. }) => {
                Err(ResolveError::Conflict { name: name.clone(), files: files.clone() })
            }
            None => Err(ResolveError::Unknown {
                name: name.clone(),
                directories: self.directories.iter().map(|path| path.display().to_string()).collect(),
                broken: self.failures.iter().map(ToString::to_string).collect(),
            }),
        }
    }

    fn add(&mut self, directory: usize, path: PathBuf) {
        match load(&path) {
            Ok((kind, spec)) => self.add_devices(directory, path, kind, spec),
            Err(why) => self.fail(&path, why),
        }
    }

    fn add_devices(&mut self, directory: usize, path: PathBuf, kind: Kind, spec: Spec) {
        let at = self.specs.len();
        for (device, described) in spec.devices.iter().enumerate() {
            // `validate` has refused files with invalid names.
            let Ok(name) = QualifiedName::new(kind.clone(), &described.name) else { continue };
            let location = match self.devices.get(&name) {
                Some(Location::Spec { directory: same, spec, .. }) if *same == directory => {
                    Location::Conflict { directory, files: [self.specs[*spec].0.clone(), path.clone()] }
                }
                Some(Location::Conflict { directory: same, .. }) if *same == directory => continue,
                _ => Location::Spec { directory, spec: at, device },
            };
            self.devices.insert(name, location);
        }
        self.specs.push((path, spec));
    }

    fn fail(&mut self, path: &Path, why: String) {
        self.failures.push(Failure { path: path.into(), why });
    }
}

pub fn append(to: &mut ContainerEdits, from: &ContainerEdits) {
    let from = from.clone();
    to.env.extend(from.env);
    to.device_nodes.extend(from.device_nodes);
    to.net_devices.extend(from.net_devices);
    to.hooks.extend(from.hooks);
    to.mounts.extend(from.mounts);
    to.intel_rdt = from.intel_rdt.or(to.intel_rdt.take());
    to.additional_gids.extend(from.additional_gids);
}

fn load(path: &Path) -> Result<(Kind, Spec), String> {
    let spec = file::read(path).map_err(|error| error.to_string())?;
    let kind = validate::check(&spec).map_err(|error| format!("invalid CDI spec: {error}"))?;
    Ok((kind, spec))
}

/// CDI files of a directory, sorted. Temporary files have other extensions.
fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if matches!(path.extension().and_then(|end| end.to_str()), Some("json" | "yaml")) && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn unread_files(broken: &[String]) -> String {
    match broken.is_empty() {
        true => String::new(),
        false => format!(" (not read: {})", broken.join("; ")),
    }
}
