//! CRI-O's files.
//!
//! CRI-O reads `crio.conf` and then every file of `crio.conf.d` by name. A later key wins, and a later entry of a runtime replaces the
//! earlier one completely. So our entry has all keys. It copies those of the default runtime (`allowed_annotations`,
//! `monitor_path`, `monitor_cgroup`, …), which it replaces.
//!
//! Source: `crio.conf(5)`, `crio.conf.d(5)`; CRI-O 1.34, `pkg/config`.

use super::request::{Malformed, Runtime, RuntimeRequest, Settings};
use super::tables::{bare, complete, edit, forget, set, table, text, within};
use toml_edit::{DocumentMut, Table};

pub(super) const RUNTIME: [&str; 2] = ["crio", "runtime"];
pub(super) const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];

/// Keys that select a runtime's program. They are not copied.
const ITS_OWN: [&str; 5] =
    ["runtime_path", "runtime_type", "platform_runtime_paths", "inherit_default_runtime", "runtime_config_path"];

pub(super) fn settings(of: &str) -> Result<Settings, Malformed> {
    let root: DocumentMut = of.parse()?;
    let runtimes = within(&root, &RUNTIMES).map(|(name, keys)| {
        let keys = bare(keys);
        (name.to_string(), Runtime { program: text(&keys, &[], "runtime_path"), keys })
    });
    Ok(Settings {
        section: false,
        default: text(&root, &RUNTIME, "default_runtime"),
        runtimes: runtimes.collect(),
        cdi: None,
    })
}

pub(super) fn with(of: &str, request: &RuntimeRequest, pattern: &Table) -> Result<String, Malformed> {
    edit(of, |root| {
        let runtime = table(root, &[&RUNTIMES[..], &[&request.name]].concat())?;
        set(runtime, "runtime_path", request.path.as_str());
        set(runtime, "runtime_type", "oci");
        let mut pattern = pattern.clone();
        for key in ITS_OWN {
            pattern.remove(key);
        }
        complete(runtime, &pattern);
        match request.default {
            Some(true) => set(table(root, &RUNTIME)?, "default_runtime", request.name.as_str()),
            Some(false) => forget(root, &RUNTIME, "default_runtime", &request.name),
            None => {}
        }
        Ok(())
    })
}
