//! The effective configuration: the runtimes that an engine knows after reading all of its files.
//!
//! Source: `mergeConfig` of containerd (before 2.1 a plugin's whole section counts, and is the last file's that
//! has one), and `files`.

use super::files::{Files, Layer};
use super::request::Runtime;
use super::tables::lay;
use super::{Engine, EngineError};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use toml_edit::{Item, Table};

#[derive(Debug, Default)]
pub struct Force {
    pub default: Option<(String, PathBuf)>,
    pub runtimes: BTreeMap<String, (Runtime, PathBuf)>,
    pub cdi: Option<bool>,
}

impl Force {
    pub fn of(files: &Files, layers: &[Layer]) -> Result<Force, EngineError> {
        let mut all = Force::default();
        for layer in layers {
            let settings = files.engine.settings(layer)?;
            if settings.section && !files.merges {
                all = Force::default();
            }
            all.cdi = settings.cdi.or(all.cdi);
            if let Some(name) = settings.default.filter(|name| !name.is_empty()) {
                all.default = Some((name, layer.path.clone()));
            }
            for (name, runtime) in settings.runtimes {
                let entry = all.runtimes.entry(name).or_default();
                match files.engine {
                    Engine::Containerd => {
                        lay(&runtime.keys, &mut entry.0.keys);
                        entry.0.program = runtime.program.or(entry.0.program.take());
                    }
                    _ => entry.0 = runtime,
                }
                entry.1 = layer.path.clone();
            }
        }
        Ok(all)
    }

    /// The command that makes a running engine use it instead of `before`; none if no command is needed.
    pub fn counts(&self, engine: Engine, before: &Force) -> Option<&'static str> {
        match engine {
            Engine::Docker if self.is_taken_by_a_reload(before) => {
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

    /// Whether Docker's reload applies the change. A reload keeps runtimes and default if the file has none any more. CDI is read
    /// at start only.
    ///
    /// Source: moby's `reloadPlatform`, and `RegisterCDIDriver` in its daemon's start.
    fn is_taken_by_a_reload(&self, before: &Force) -> bool {
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

    /// Runtimes that ours can call: the default one, `runc`, `crun`. Not NVIDIA's and not ours under any name: it would call itself for
    /// ever.
    fn low(&self) -> impl Iterator<Item = &Runtime> {
        let default = self.default.as_ref().map(|(name, _)| name.as_str()).filter(|name| !name.starts_with("nvidia"));
        let named = default.into_iter().chain(["runc", "crun"]).filter_map(|name| Some(&self.runtimes.get(name)?.0));
        named.filter(|runtime| !runtime.program.as_deref().is_some_and(is_wrapper) && is_plain(runtime))
    }

    /// The keys that ours gets by default.
    pub fn pattern(&self) -> Table {
        self.low().next().map(|runtime| runtime.keys.clone()).unwrap_or_default()
    }

    pub fn low_programs(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for program in self.low().filter_map(|runtime| runtime.program.clone()).filter(|program| !program.is_empty()) {
            if !all.contains(&program) {
                all.push(program);
            }
        }
        all
    }

    pub fn describe<'a>(&'a self, name: &'a str) -> impl fmt::Display + 'a {
        Told { force: self, name }
    }
}

/// Whether a runtime is called like runc. A shim of another kind (Kata, gVisor) has its own options and calls no wrapper: containers
/// would silently start without a GPU.
fn is_plain(runtime: &Runtime) -> bool {
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

struct Told<'a> {
    force: &'a Force,
    name: &'a str,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.force.runtimes.get(self.name) {
            Some((runtime, path)) => {
                let program = runtime.program.as_deref().unwrap_or("without a program");
                write!(to, "runtime {} is {program} ({}); ", self.name, path.display())?;
            }
            None => write!(to, "there is no runtime {}; ", self.name)?,
        }
        match &self.force.default {
            Some((default, path)) => write!(to, "the default runtime is {default} ({})", path.display()),
            None => write!(to, "the default runtime is the engine's own"),
        }
    }
}
