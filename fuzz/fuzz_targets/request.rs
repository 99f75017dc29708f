//! Any specification, as text or built from any variables, mounts and annotations: nothing panics, an unpermitted request
//! gives nothing, a request's invariants hold, and its conditions can be evaluated.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpu_container::config::Config;
use mpu_container::request::{self, Annotations, Source, Strictness};
use mpu_container::require::{Facts, RequireError, Version, check};
use serde_json::{Map, Value, json};

/// Builds a specification. Bytes 0xff, which no text has, separate variables; the first character can select another kind of entry.
fn build_spec(data: &[u8]) -> Value {
    let (mut env, mut mounts, mut annotations, mut bounding) = (vec![], vec![], Map::new(), vec![]);
    for part in data.split(|byte| *byte == 0xff).map(String::from_utf8_lossy) {
        match (part.chars().next(), part.split_once(['>', ':'])) {
            (Some('~'), Some((source, target))) => mounts.push(json!({"source": &source[1..], "destination": target})),
            (Some('@'), Some((name, value))) => drop(annotations.insert(name[1..].into(), value.into())),
            (Some('+'), _) => bounding.push(part[1..].to_string()),
            _ => env.push(part.into_owned()),
        }
    }
    json!({"process": {"env": env, "capabilities": {"bounding": bounding}}, "mounts": mounts, "annotations": annotations})
}

fuzz_target!(|data: &[u8]| {
    let [how, rest @ ..] = data else { return };
    let spec = if how & 1 == 0 { Some(build_spec(rest)) } else { serde_json::from_slice(rest).ok() };
    let Some(spec) = spec else { return };
    let mut config = Config::default();
    config.devices_as_volume_mounts = how & 2 != 0;
    config.envvar_when_unprivileged = how & 4 == 0;
    config.swarm_resource = if how & 8 != 0 { "A,B".into() } else { String::new() };
    let annotations = if how & 16 != 0 { Annotations::Read } else { Annotations::Skip };
    let strictness = if how & 32 != 0 { Strictness::Strict } else { Strictness::Loose };
    let Ok(parsed) = request::parse(&spec, &config, annotations, strictness) else { return };
    let Some(request) = parsed.request else { return };
    assert!(!request.devices.is_empty() && request.devices.iter().all(|word| !word.trim().is_empty()));
    let environment = request.source == Source::Environment;
    assert!(!environment || config.envvar_when_unprivileged || request.privileged);
    assert!(request.privileged || (request.mig_config.is_none() && request.mig_monitor.is_none()));
    let facts = Facts {
        cuda: Version::parse("12.4"),
        driver: Version::parse("580.159.04"),
        arch: Version::parse("9.0"),
        brand: Some("Tesla".into()),
    };
    for text in &request.requirements {
        if let Err(RequireError::Malformed { column, .. }) = check(text, &facts) {
            assert!((1..=text.chars().count() + 1).contains(&column));
        }
    }
});
