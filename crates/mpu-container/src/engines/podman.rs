//! Podman's files: merged key by key.
//!
//! Source: `containers.conf(5)`, `[engine.runtimes]`.

use super::request::{Malformed, Runtime, RuntimeRequest, Settings};
use super::tables::{edit, find, forget, set, table, text};
use toml_edit::{Array, DocumentMut};

pub(super) const ENGINE: [&str; 1] = ["engine"];
pub(super) const RUNTIMES: [&str; 2] = ["engine", "runtimes"];

pub(super) fn settings(of: &str) -> Result<Settings, Malformed> {
    let root: DocumentMut = of.parse()?;
    let named = find(&root, &RUNTIMES).into_iter().flat_map(|runtimes| runtimes.iter());
    let runtimes = named.map(|(name, paths)| {
        let first = paths.as_array().and_then(|paths| paths.get(0)?.as_str()).map(str::to_string);
        (name.to_string(), Runtime { program: first, ..Runtime::default() })
    });
    Ok(Settings { section: false, default: text(&root, &ENGINE, "runtime"), runtimes: runtimes.collect(), cdi: None })
}

pub(super) fn with(of: &str, request: &RuntimeRequest) -> Result<String, Malformed> {
    edit(of, |root| {
        let runtimes = table(root, &RUNTIMES)?;
        set(runtimes, &request.name, Array::from_iter([request.path.as_str()]));
        match request.default {
            Some(true) => set(table(root, &ENGINE)?, "runtime", request.name.as_str()),
            Some(false) => forget(root, &ENGINE, "runtime", &request.name),
            None => {}
        }
        Ok(())
    })
}
