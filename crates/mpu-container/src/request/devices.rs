//! Finds requested devices: first in annotations, then in mounts, then in the environment.
//!
//! Source: NVIDIA Container Toolkit 1.20, `internal/config/image/cuda_image.go`, without three bugs. There, a duplicate name
//! leaves an empty one, a sibling of the mounts' directory counts as inside it, and annotations can have blank names.

use super::container::Container;
use super::{ALL_CHANNELS, Annotations, MOUNTS, RequestError, Source};
use crate::cdi::name::QualifiedName;
use crate::config::Config;
use crate::driver::imex_channel;
use std::path::{Component, Path};

/// Images request devices by this variable.
const DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

pub fn requested_devices(
    container: &Container<'_>,
    config: &Config,
    annotations: Annotations,
    notes: &mut Vec<String>,
) -> Option<(Vec<String>, Source)> {
    let annotated = match annotations {
        Annotations::Read => unique(annotated_devices(container, &config.runtime.cdi_annotation_prefixes)),
        Annotations::Skip => Vec::new(),
    };
    if !annotated.is_empty() {
        notes.extend(ignored_variable_note(container, &annotated));
        return Some((annotated, Source::Annotations));
    }
    if config.devices_as_volume_mounts {
        let mounted = unique(mounted_devices(container, notes));
        if !mounted.is_empty() {
            return Some((mounted, Source::Mounts));
        }
    }
    let preferred: Vec<&str> = config
        .swarm_resource
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && container.variable(name).is_some())
        .collect();
    let names = if preferred.is_empty() { vec![DEVICES] } else { preferred };
    let devices = devices_in_variables(container, &names);
    if_permitted(container, config, &names, devices, notes).map(|devices| (devices, Source::Environment))
}

pub fn imex(container: &Container<'_>, config: &Config, notes: &mut Vec<String>) -> Result<Vec<String>, RequestError> {
    let number = |word: String| match imex_channel(&word) {
        Some(number) => Ok(number.to_string()),
        None if word == ALL_CHANNELS => Ok(word),
        None => Err(RequestError::Imex(word)),
    };
    let numbers = requested_channels(container, config, notes).into_iter().map(number).collect::<Result<_, _>>()?;
    Ok(unique(numbers))
}

fn requested_channels(container: &Container<'_>, config: &Config, notes: &mut Vec<String>) -> Vec<String> {
    if config.features.ignore_imex_channel_requests {
        return Vec::new();
    }
    if config.devices_as_volume_mounts {
        let channels =
            mount_names(container).into_iter().filter_map(|name| name.strip_prefix("imex/").map(str::to_string));
        let channels = unique(channels.collect());
        if !channels.is_empty() {
            return channels;
        }
    }
    const NAME: &str = "NVIDIA_IMEX_CHANNELS";
    // "all" would mean every possible channel, so it requests none. A legacy image without the variable gives "all", too.
    let channels = devices_in_variables(container, &[NAME])
        .filter(|channels| !matches!(channels[0].as_str(), ALL_CHANNELS | "none"));
    if_permitted(container, config, &[NAME], channels, notes).unwrap_or_default()
}

/// Returns the devices if the container may request them by variables.
fn if_permitted(
    container: &Container<'_>,
    config: &Config,
    names: &[&str],
    devices: Option<Vec<String>>,
    notes: &mut Vec<String>,
) -> Option<Vec<String>> {
    let devices = devices?;
    if container.privileged || config.envvar_when_unprivileged {
        return Some(devices);
    }
    notes.push(format!(
        "ignoring devices requested by environment variable(s) in unprivileged container: {} ({} is false)",
        names.join(", "),
        "accept-nvidia-visible-devices-envvar-when-unprivileged"
    ));
    None
}

/// Devices of several variables together. The first `all` or `none` replaces all other devices. `void` or an empty list requests nothing.
/// A legacy CUDA image without these variables requests all devices.
fn devices_in_variables(container: &Container<'_>, names: &[&str]) -> Option<Vec<String>> {
    let values: Vec<&str> = names.iter().filter_map(|name| container.variable(name)).collect();
    if values.is_empty() && super::image::is_legacy(container) {
        return Some(vec!["all".to_string()]);
    }
    let words = values.iter().flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty());
    let words = unique(words.map(str::to_string).collect());
    if words.is_empty() || words.iter().any(|word| word == "void") {
        return None;
    }
    match words.iter().find(|word| *word == "all" || *word == "none") {
        Some(word) => Some(vec![word.clone()]),
        None => Some(words),
    }
}

/// A note if the variable requests a GPU, but annotations take precedence and name none.
fn ignored_variable_note(container: &Container<'_>, annotated: &[String]) -> Option<String> {
    let value = container.variable(DEVICES)?;
    let requests_gpu = devices_in_variables(container, &[DEVICES]).is_some_and(|devices| devices[0] != "none");
    let has_gpu = annotated.iter().any(|name| name.parse().map_or(true, |name: QualifiedName| name.is_nvidia()));
    (requests_gpu && !has_gpu).then(|| {
        format!("{DEVICES}={value} counts for nothing beside annotations, which name no GPU: {}", annotated.join(", "))
    })
}

fn annotated_devices(container: &Container<'_>, prefixes: &[String]) -> Vec<String> {
    // An empty prefix would match every annotation.
    let has_prefix = |name: &str| prefixes.iter().any(|prefix| !prefix.is_empty() && name.starts_with(prefix.as_str()));
    let values = container.annotations.iter().filter(|(name, _)| has_prefix(name)).map(|(_, value)| *value);
    let words = values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty());
    words.map(str::to_string).collect()
}

/// Devices requested by mounts below [`MOUNTS`]: `DEVICE`, `cdi/VENDOR/CLASS/DEVICE` or `cdi/VENDOR/CLASS=DEVICE`.
fn mounted_devices(container: &Container<'_>, notes: &mut Vec<String>) -> Vec<String> {
    let mut devices = Vec::new();
    for name in mount_names(container) {
        let Some(cdi) = name.strip_prefix("cdi/") else {
            if !name.starts_with("imex/") {
                devices.push(name);
            }
            continue;
        };
        let parts: Vec<&str> = cdi.splitn(3, '/').collect();
        match parts[..] {
            _ if QualifiedName::is_valid(cdi) => devices.push(cdi.to_string()),
            [vendor, class, device] => devices.push(format!("{vendor}/{class}={device}")),
            _ => notes.push(format!(
                "ignoring invalid mount request for CDI device {name}: it is not cdi/VENDOR/CLASS/DEVICE"
            )),
        }
    }
    devices
}

/// Names below [`MOUNTS`] on which `/dev/null` is mounted. Skips blank names.
fn mount_names(container: &Container<'_>) -> Vec<String> {
    let null = container.mounts.iter().filter(|(source, _)| normalize(source).as_deref() == Some("/dev/null"));
    let below =
        null.filter_map(|(_, target)| normalize(target)?.strip_prefix(MOUNTS)?.strip_prefix('/').map(str::to_string));
    below.filter(|name| !name.trim().is_empty()).collect()
}

/// Resolves `.`, `..` and double slashes without following links. None if the path is not absolute.
fn normalize(path: &str) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    if !path.starts_with('/') {
        return None;
    }
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => names.push(name.to_str()?),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(format!("/{}", names.join("/")))
}

fn unique(words: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::with_capacity(words.len());
    words.into_iter().filter(|word| seen.insert(word.clone())).collect()
}
