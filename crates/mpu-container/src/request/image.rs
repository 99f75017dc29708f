//! An image's declared driver capabilities and requirements.

use super::container::Container;
use super::error::RequestError;
use crate::capability::{Capabilities, Capability};
use crate::config::{Config, edit};
use crate::kebab_name::KebabName;

/// Whether the image is older than `NVIDIA_REQUIRE_CUDA`: it has a CUDA version and no CUDA requirement.
pub fn is_legacy(container: &Container<'_>) -> bool {
    let given = |name| container.variable(name).is_some_and(|value| !value.is_empty());
    given("CUDA_VERSION") && !given("NVIDIA_REQUIRE_CUDA")
}

pub fn capabilities(container: &Container<'_>, config: &Config) -> Result<Capabilities, RequestError> {
    let supported = config.supported_driver_capabilities;
    let requested = match container.variable("NVIDIA_DRIVER_CAPABILITIES") {
        None if is_legacy(container) => return Ok(supported),
        None | Some("") => return Ok(supported.and(Capabilities::DEFAULT)),
        Some(requested) => requested,
    };
    let mut words: Vec<&str> = requested.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    if words.contains(&"all") {
        return Ok(supported);
    }
    words.sort_unstable();
    words.dedup();
    let known = words.iter().filter_map(|word| Capability::from_kebab_name(word));
    let allowed = known.fold(Capabilities::NONE, Capabilities::with).and(supported);
    if allowed.iter().count() != words.len() {
        return Err(RequestError::Capabilities { requested: words.join(","), allowed: allowed.to_string() });
    }
    Ok(allowed)
}

/// All capabilities that the administrator supports. 32-bit libraries only on request.
pub fn supported_capabilities(requested: Capabilities, config: &Config) -> Capabilities {
    let is_supported = |one: &Capability| *one != Capability::Compat32 || requested.has(*one);
    config.supported_driver_capabilities.iter().filter(is_supported).fold(Capabilities::NONE, Capabilities::with)
}

pub fn requirements(container: &Container<'_>, config: &Config) -> Result<Vec<String>, RequestError> {
    let off = container.variable("NVIDIA_DISABLE_REQUIRE").and_then(edit::parse_bool).unwrap_or(false);
    if config.disable_require || off {
        return Ok(Vec::new());
    }
    let is_requirement =
        |name: &str| name.starts_with("NVIDIA_REQUIRE_") && !name.starts_with("NVIDIA_REQUIRE_JETPACK");
    let given =
        container.variables().iter().filter(|(name, _)| is_requirement(name)).map(|(_, value)| value.to_string());
    let mut requirements: Vec<String> = given.collect();
    if is_legacy(container) {
        let version = container.variable("CUDA_VERSION").unwrap_or_default();
        let release = release(version).ok_or_else(|| RequestError::CudaVersion(version.to_string()))?;
        requirements.push(format!("cuda>={release}"));
    }
    Ok(requirements)
}

/// `MAJOR.MINOR` of a version of any length: `8.0.61`, `v11`, `12.9.1.010`, `10.2-1`.
fn release(version: &str) -> Option<String> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split('.');
    let digits = |part: &str| {
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        (part[..end].parse::<u32>().ok(), end == part.len())
    };
    let (major, whole) = digits(numbers.next()?);
    let minor = if whole { numbers.next().and_then(|part| digits(part).0) } else { None };
    Some(format!("{}.{}", major?, minor.unwrap_or(0)))
}
