//! The parts of an OCI specification that can request devices.
//!
//! Source: OCI runtime specification 1.3, `config.md` and `config-linux.md`; for the old shape of capabilities,
//! its release candidates 1 to 4, whose `process.capabilities` is the list itself. `null` is the same as no field, as for
//! the runtimes, which are written in Go.

use super::error::RequestError;
use serde_json::{Map, Value};

pub struct Container<'a> {
    /// The variables, each once: the last of a name counts, as for NVIDIA's toolkit and runc.
    variables: Vec<(&'a str, &'a str)>,
    pub mounts: Vec<(&'a str, &'a str)>,
    pub annotations: Vec<(&'a str, &'a str)>,
    /// Whether `CAP_SYS_ADMIN` is in the bounding set, of any user.
    pub privileged: bool,
}

impl<'a> Container<'a> {
    pub fn read(spec: &'a Value) -> Result<(Container<'a>, Vec<String>), RequestError> {
        let spec = Some(object(spec, "the specification")?);
        let process = field(spec, "process", object)?;
        let mut notes = Vec::new();
        let mut variables: Vec<(&str, &str)> = Vec::new();
        for entry in texts(field(process, "process.env", array)?.unwrap_or(&[]), "process.env")? {
            match entry.split_once('=') {
                Some((name, value)) => variables.push((name, value)),
                None => notes.push(format!("passing over {entry:?} in the environment: it has no '='")),
            }
        }
        let mut mounts = Vec::new();
        for (number, mount) in field(spec, "mounts", array)?.unwrap_or(&[]).iter().enumerate() {
            let mount = Some(object(mount, &format!("mounts[{number}]"))?);
            let path = |name| Ok(field(mount, &format!("mounts[{number}].{name}"), text)?.unwrap_or_default());
            mounts.push((path("source")?, path("destination")?));
        }
        let mut annotations = Vec::new();
        for (name, value) in field(spec, "annotations", object)?.into_iter().flatten() {
            annotations.push((name.as_str(), text(value, &format!("annotations[{name:?}]"))?));
        }
        annotations.sort_unstable();
        let privileged = privileged(process)?;
        // The last of a name counts; it stands where the first stood.
        let mut once: Vec<(&str, &str)> = Vec::with_capacity(variables.len());
        let mut places = std::collections::HashMap::with_capacity(variables.len());
        for (name, value) in variables {
            match places.get(name) {
                Some(&place) => once[place] = (name, value),
                None => {
                    places.insert(name, once.len());
                    once.push((name, value));
                }
            }
        }
        Ok((Container { variables: once, mounts, annotations, privileged }, notes))
    }

    pub fn variable(&self, name: &str) -> Option<&'a str> {
        self.variables.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
    }

    pub fn variables(&self) -> &[(&'a str, &'a str)] {
        &self.variables
    }
}

/// `process.capabilities` is an object of lists or, in old specifications, the one list. crun takes the names in any case.
fn privileged(process: Option<&Map<String, Value>>) -> Result<bool, RequestError> {
    let bounding = match process.and_then(|process| process.get("capabilities")) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(list)) => list.as_slice(),
        Some(Value::Object(sets)) => field(Some(sets), "process.capabilities.bounding", array)?.unwrap_or(&[]),
        Some(_) => return Err(shape("process.capabilities", "an object")),
    };
    Ok(texts(bounding, "process.capabilities.bounding")?.iter().any(|name| name.eq_ignore_ascii_case("CAP_SYS_ADMIN")))
}

fn shape(place: &str, wanted: &'static str) -> RequestError {
    RequestError::Shape { place: place.to_string(), wanted }
}

/// The field that the last word of a place names.
fn field<'a, T>(
    of: Option<&'a Map<String, Value>>,
    place: &str,
    as_kind: fn(&'a Value, &str) -> Result<T, RequestError>,
) -> Result<Option<T>, RequestError> {
    let name = place.rsplit('.').next().unwrap_or(place);
    of.and_then(|of| of.get(name)).filter(|value| !value.is_null()).map(|value| as_kind(value, place)).transpose()
}

fn object<'a>(value: &'a Value, place: &str) -> Result<&'a Map<String, Value>, RequestError> {
    value.as_object().ok_or_else(|| shape(place, "an object"))
}

fn array<'a>(value: &'a Value, place: &str) -> Result<&'a [Value], RequestError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| shape(place, "a list"))
}

fn text<'a>(value: &'a Value, place: &str) -> Result<&'a str, RequestError> {
    value.as_str().ok_or_else(|| shape(place, "a text"))
}

fn texts<'a>(list: &'a [Value], place: &str) -> Result<Vec<&'a str>, RequestError> {
    list.iter().enumerate().map(|(number, value)| text(value, &format!("{place}[{number}]"))).collect()
}
