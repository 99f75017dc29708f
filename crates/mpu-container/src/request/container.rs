//! Reads the parts of an OCI specification that can request devices.
//!
//! A `null` field counts as missing, as in runtimes written in Go.
//!
//! Source: OCI runtime specification 1.3, `config.md` and `config-linux.md`. In its release candidates 1 to 4,
//! `process.capabilities` is a list.

use super::error::RequestError;
use serde_json::{Map, Value};

pub struct Container<'a> {
    /// Environment variables with unique names. The last of a name counts, as in NVIDIA's toolkit and runc.
    variables: Vec<(&'a str, &'a str)>,
    pub mounts: Vec<(&'a str, &'a str)>,
    pub annotations: Vec<(&'a str, &'a str)>,
    /// Whether the bounding set has `CAP_SYS_ADMIN`.
    pub privileged: bool,
}

impl<'a> Container<'a> {
    pub fn read(spec: &'a Value) -> Result<(Container<'a>, Vec<String>), RequestError> {
        let spec = Some(object(spec, "the specification")?);
        let process = field(spec, "process", object)?;
        let mut notes = Vec::new();
        let mut variables: Vec<(&str, &str)> = Vec::new();
        for entry in strings(field(process, "process.env", array)?.unwrap_or(&[]), "process.env")? {
            match entry.split_once('=') {
                Some((name, value)) => variables.push((name, value)),
                None => notes.push(format!("passing over {entry:?} in the environment: it has no '='")),
            }
        }
        let mut mounts = Vec::new();
        for (number, mount) in field(spec, "mounts", array)?.unwrap_or(&[]).iter().enumerate() {
            let mount = Some(object(mount, &format!("mounts[{number}]"))?);
            let path = |name| Ok(field(mount, &format!("mounts[{number}].{name}"), string)?.unwrap_or_default());
            mounts.push((path("source")?, path("destination")?));
        }
        let mut annotations = Vec::new();
        for (name, value) in field(spec, "annotations", object)?.into_iter().flatten() {
            annotations.push((name.as_str(), string(value, &format!("annotations[{name:?}]"))?));
        }
        annotations.sort_unstable();
        let privileged = has_sys_admin(process)?;
        // The last value of a name counts, at the position of the first.
        let mut unique: Vec<(&str, &str)> = Vec::with_capacity(variables.len());
        let mut positions = std::collections::HashMap::with_capacity(variables.len());
        for (name, value) in variables {
            match positions.get(name) {
                Some(&position) => unique[position] = (name, value),
                None => {
                    positions.insert(name, unique.len());
                    unique.push((name, value));
                }
            }
        }
        Ok((Container { variables: unique, mounts, annotations, privileged }, notes))
    }

    pub fn variable(&self, name: &str) -> Option<&'a str> {
        self.variables.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    pub fn variables(&self) -> &[(&'a str, &'a str)] {
        &self.variables
    }
}

/// `process.capabilities` is an object of lists or, in old specifications, one list. crun ignores the case of names.
fn has_sys_admin(process: Option<&Map<String, Value>>) -> Result<bool, RequestError> {
    let bounding = match process.and_then(|process| process.get("capabilities")) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(list)) => list.as_slice(),
        Some(Value::Object(sets)) => field(Some(sets), "process.capabilities.bounding", array)?.unwrap_or(&[]),
        Some(_) => return Err(shape_error("process.capabilities", "an object")),
    };
    Ok(strings(bounding, "process.capabilities.bounding")?
        .iter()
        .any(|name| name.eq_ignore_ascii_case("CAP_SYS_ADMIN")))
}

fn shape_error(place: &str, wanted: &'static str) -> RequestError {
    RequestError::Shape { place: place.to_string(), wanted }
}

/// Returns the field named by the last part of `place`.
fn field<'a, T>(
    of: Option<&'a Map<String, Value>>,
    place: &str,
    as_kind: fn(&'a Value, &str) -> Result<T, RequestError>,
) -> Result<Option<T>, RequestError> {
    let name = place.rsplit('.').next().unwrap_or(place);
    of.and_then(|of| of.get(name)).filter(|value| !value.is_null()).map(|value| as_kind(value, place)).transpose()
}

fn object<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, RequestError> {
    value.as_object().ok_or_else(|| shape_error(place, "an object"))
}

fn array<'a>(value: &'a Value, place: &str) -> Result<&'a [Value], RequestError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| shape_error(place, "a list"))
}

fn string<'a>(value: &'a Value, place: &str) -> Result<&'a str, RequestError> {
    value.as_str().ok_or_else(|| shape_error(place, "a text"))
}

fn strings<'a>(list: &'a [Value], place: &str) -> Result<Vec<&'a str>, RequestError> {
    list.iter().enumerate().map(|(number, value)| string(value, &format!("{place}[{number}]"))).collect()
}
