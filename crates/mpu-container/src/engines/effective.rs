//! The effective configuration: the runtimes of an engine after it has read all of its files.
//!
//! Source: `mergeConfig` of containerd (before 2.1, the last file with a section of the plugin replaces the whole section of
//! earlier files), and `files`.

use super::files::{Files, Layer};
use super::request::Runtime;
use super::tables::merge_over;
use super::{Engine, EngineError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml_edit::{Item, Table};

#[derive(Debug, Default)]
pub struct EffectiveConfig {
    pub default: Option<(String, PathBuf)>,
    pub runtimes: BTreeMap<String, (Runtime, PathBuf)>,
    pub cdi: Option<bool>,
}

impl EffectiveConfig {
    pub fn of(files: &Files, layers: &[Layer]) -> Result<EffectiveConfig, EngineError> {
        let mut all = EffectiveConfig::default();
        for layer in layers {
            let settings = files.engine.settings(layer)?;
            if settings.section && !files.merges {
                all = EffectiveConfig::default();
            }
            all.cdi = settings.cdi.or(all.cdi);
            if let Some(name) = settings.default.filter(|name| !name.is_empty()) {
                all.default = Some((name, layer.path.clone()));
            }
            for (name, runtime) in settings.runtimes {
                let entry = all.runtimes.entry(name).or_default();
                match files.engine {
                    Engine::Containerd => {
                        merge_over(&runtime.keys, &mut entry.0.keys);
                        entry.0.program = runtime.program.or(entry.0.program.take());
                    }
                    _ => entry.0 = runtime,
                }
                entry.1 = layer.path.clone();
            }
        }
        Ok(all)
    }

    /// A hint with the command that makes a running engine use this configuration instead of `before`; none if no command is needed.
    pub fn restart_hint(&self, engine: Engine, before: &EffectiveConfig) -> Option<&'static str> {
        match engine {
            Engine::Docker if self.applies_on_reload(before) => {
                Some("it counts once Docker has read it, which stops no container: sudo systemctl reload docker")
            }
            Engine::Docker => Some(
                "it counts from Docker's next start, which stops its containers unless it has live-restore: \
                 sudo systemctl restart docker",
            ),
            Engine::Containerd => Some(
                "it counts from containerd's next start, and its containers go on: sudo systemctl restart containerd",
            ),
            Engine::Crio => {
                Some("it counts from CRI-O's next start, and its containers go on: sudo systemctl restart crio")
            }
            Engine::Podman => None,
        }
    }

    /// Whether Docker's reload applies the change. If the file has no runtimes or no default runtime any more, a reload keeps the old
    /// ones. Docker reads the CDI setting at its start only.
    ///
    /// Source: moby's `reloadPlatform`, and `RegisterCDIDriver` in its daemon's start.
    fn applies_on_reload(&self, before: &EffectiveConfig) -> bool {
        let still_named = !self.runtimes.is_empty() || before.runtimes.is_empty();
        let still_default = self.default.is_some() || before.default.is_none();
        still_named && still_default && self.cdi == before.cdi
    }

    pub fn program(&self, name: &str) -> Option<&str> {
        self.runtimes.get(name)?.0.program.as_deref()
    }

    pub fn is_default(&self, name: &str) -> bool {
        self.default.as_ref().is_some_and(|(default, _)| default == name)
    }

    /// Runtimes that ours can call: the default runtime, `runc`, `crun`. NVIDIA's wrapper and ours are excluded under any name: ours
    /// would call itself endlessly.
    fn low_level(&self) -> impl Iterator<Item = &Runtime> {
        let default = self.default.as_ref().map(|(name, _)| name.as_str()).filter(|name| !name.starts_with("nvidia"));
        let named = default.into_iter().chain(["runc", "crun"]).filter_map(|name| Some(&self.runtimes.get(name)?.0));
        named.filter(|runtime| !runtime.program.as_deref().is_some_and(is_wrapper) && is_runc_like(runtime))
    }

    /// The keys that a new entry of our runtime copies from the runtime that it calls.
    pub fn template_keys(&self) -> Table {
        self.low_level().next().map(|runtime| runtime.keys.clone()).unwrap_or_default()
    }

    pub fn low_level_programs(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for program in
            self.low_level().filter_map(|runtime| runtime.program.clone()).filter(|program| !program.is_empty())
        {
            if !all.contains(&program) {
                all.push(program);
            }
        }
        all
    }

    pub fn describe(&self, name: &str) -> String {
        let runtime = match self.runtimes.get(name) {
            Some((runtime, path)) => {
                let program = runtime.program.as_deref().unwrap_or("without a program");
                format!("runtime {name} is {program} ({})", path.display())
            }
            None => format!("there is no runtime {name}"),
        };
        match &self.default {
            Some((default, path)) => format!("{runtime}; the default runtime is {default} ({})", path.display()),
            None => format!("{runtime}; the default runtime is the engine's own"),
        }
    }
}

/// Whether a runtime has runc's command line. A shim of another kind (Kata, gVisor) has its own options and calls no wrapper:
/// containers would silently start without a GPU.
fn is_runc_like(runtime: &Runtime) -> bool {
    let kind = runtime.keys.get("runtime_type").and_then(Item::as_str).unwrap_or_default();
    matches!(kind, "" | "oci")
        || kind.starts_with("io.containerd.runc.")
        || kind.starts_with("io.containerd.runtime.v1.")
}

/// Whether a program has a name of the wrapper, NVIDIA's or ours.
fn is_wrapper(program: &str) -> bool {
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with("nvidia-container-runtime"))
}
