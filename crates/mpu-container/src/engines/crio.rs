//! CRI-O's files.
//!
//! CRI-O reads `crio.conf` and then every file of `crio.conf.d` by name. A later key wins, and a later entry of a runtime replaces the
//! earlier one completely. So our entry has all keys. It copies those of the default runtime (`allowed_annotations`,
//! `monitor_path`, `monitor_cgroup`, …), which it replaces.
//!
//! Source: `crio.conf(5)`, `crio.conf.d(5)`; CRI-O 1.34, `pkg/config`.

use super::request::{FormatError, Runtime, RuntimeRequest, Settings};
use super::tables::{edit, fill_missing, remove_if_equal, set, string_at, strip_layout, sub_tables, table};
use toml_edit::{DocumentMut, Table};

pub(super) const RUNTIME: [&str; 2] = ["crio", "runtime"];
pub(super) const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];

/// Keys that select a runtime's program. They are not copied.
const PROGRAM_KEYS: [&str; 5] =
    ["runtime_path", "runtime_type", "platform_runtime_paths", "inherit_default_runtime", "runtime_config_path"];

pub(super) fn settings(text: &str) -> Result<Settings, FormatError> {
    let root: DocumentMut = text.parse()?;
    let runtimes = sub_tables(&root, &RUNTIMES).map(|(name, keys)| {
        let keys = strip_layout(keys);
        (name.to_string(), Runtime { program: string_at(&keys, &[], "runtime_path"), keys })
    });
    Ok(Settings {
        section: false,
        default: string_at(&root, &RUNTIME, "default_runtime"),
        runtimes: runtimes.collect(),
        cdi: None,
    })
}

pub(super) fn add_runtime(text: &str, request: &RuntimeRequest, template: &Table) -> Result<String, FormatError> {
    edit(text, |root| {
        let runtime = table(root, &[&RUNTIMES[..], &[&request.name]].concat())?;
        set(runtime, "runtime_path", request.path.as_str());
        set(runtime, "runtime_type", "oci");
        let mut template = template.clone();
        for key in PROGRAM_KEYS {
            template.remove(key);
        }
        fill_missing(runtime, &template);
        match request.default {
            Some(true) => set(table(root, &RUNTIME)?, "default_runtime", request.name.as_str()),
            Some(false) => remove_if_equal(root, &RUNTIME, "default_runtime", &request.name),
            None => {}
        }
        Ok(())
    })
}
