//! Podman's files. Podman merges them key by key.
//!
//! Source: `containers.conf(5)`, `[engine.runtimes]`.

use super::request::{FormatError, Runtime, RuntimeRequest, Settings};
use super::tables::{edit, find, remove_if_equal, set, string_at, table};
use toml_edit::{Array, DocumentMut};

pub(super) const ENGINE: [&str; 1] = ["engine"];
pub(super) const RUNTIMES: [&str; 2] = ["engine", "runtimes"];

pub(super) fn settings(text: &str) -> Result<Settings, FormatError> {
    let root: DocumentMut = text.parse()?;
    let named = find(&root, &RUNTIMES).into_iter().flat_map(|runtimes| runtimes.iter());
    let runtimes = named.map(|(name, paths)| {
        let program = paths.as_array().and_then(|paths| paths.get(0)?.as_str()).map(str::to_string);
        (name.to_string(), Runtime { program, ..Runtime::default() })
    });
    Ok(Settings {
        section: false,
        default: string_at(&root, &ENGINE, "runtime"),
        runtimes: runtimes.collect(),
        cdi: None,
    })
}

pub(super) fn add_runtime(text: &str, request: &RuntimeRequest) -> Result<String, FormatError> {
    edit(text, |root| {
        let runtimes = table(root, &RUNTIMES)?;
        set(runtimes, &request.name, Array::from_iter([request.path.as_str()]));
        match request.default {
            Some(true) => set(table(root, &ENGINE)?, "runtime", request.name.as_str()),
            Some(false) => remove_if_equal(root, &ENGINE, "runtime", &request.name),
            None => {}
        }
        Ok(())
    })
}
