//! Adds the runtimes to the engine's files, and removes them again.

use super::error::InstallError;
use super::flags::Options;
use super::note::note;
use super::programs::RUNTIMES;
use super::restart::{self, Mode};
use crate::engines::effective::EffectiveConfig;
use crate::engines::files::{Files, Paths};
use crate::engines::plan::{Plan, plan_add, plan_remove_from_drop_in, plan_restore, plan_unset_default, record_docker};
use crate::engines::{Engine, EngineError, RuntimeRequest, hook_file_text, source};
use crate::lock::Lock;
use crate::text_file;
use clap::ValueEnum;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file with Docker's earlier settings, in the directory of the programs' configuration.
const DOCKER_RECORD: &str = ".config/nvidia-container-runtime/before.json";

pub struct Host {
    files: Files,
    root: PathBuf,
    program: Option<PathBuf>,
    mode: Mode,
    socket: PathBuf,
    /// The hook file of CRI-O with `--config-mode=hook`.
    hook: Option<PathBuf>,
}

impl Host {
    pub fn of(options: &Options) -> Result<Host, InstallError> {
        let engine = Engine::from_str(options.text("runtime"), false).expect("a value of the flag");
        let path_option = |flag: &str| Some(options.text(flag)).filter(|text| !text.is_empty()).map(PathBuf::from);
        let root = match path_option("host-root").filter(|root| root.is_dir()) {
            Some(root) => root,
            // On the host itself, the default directory does not exist.
            None if !options.is_given("host-root") => "/".into(),
            None => {
                let root = options.text("host-root");
                return Err(InstallError::Usage(format!(
                    "--host-root={root} is no directory; on the host itself it is /"
                )));
            }
        };
        let program = path_option("executable-path").filter(|_| engine != Engine::Docker);
        let mut files = Files::of(engine);
        if let Some(top) = path_option("config") {
            files.top = top;
        }
        files.drop_in = match engine {
            Engine::Containerd => {
                Some(path_option("drop-in-config").unwrap_or("/etc/containerd/conf.d/99-nvidia.toml".into()))
            }
            Engine::Crio => {
                Some(path_option("drop-in-config").unwrap_or("/etc/crio/crio.conf.d/99-nvidia.toml".into()))
            }
            Engine::Docker | Engine::Podman => None,
        };
        let folder = |path: &Path| path.parent().map(Path::to_path_buf);
        let local_folder = files.drop_in.as_deref().and_then(folder);
        let host_folder = path_option("drop-in-config-host-path").as_deref().and_then(folder);
        files.paths = Paths {
            root: root.clone(),
            folders: host_folder.or_else(|| local_folder.clone()).zip(local_folder).into_iter().collect(),
        };
        files.merges =
            engine == Engine::Containerd && source::containerd_release(&root, program.as_deref()) >= Some((2, 1));
        let hook = match (options.text("config-mode"), engine) {
            ("hook", Engine::Crio) => Some(Path::new(options.text("hooks-dir")).join(options.text("hook-filename"))),
            _ => None,
        };
        let socket = path_option("socket").unwrap_or_else(|| {
            PathBuf::from(match engine {
                Engine::Docker => "/var/run/docker.sock",
                _ => "/run/containerd/containerd.sock",
            })
        });
        let mode = Mode::of(options.text("restart-mode"), engine).ok_or_else(|| {
            let reason = "CRI-O reads runtimes at its start only; use systemd or none";
            InstallError::Usage(format!("--restart-mode=signal is not possible: {reason}"))
        })?;
        Ok(Host { files, root, program, mode, socket, hook })
    }

    /// The engine's effective configuration from the first readable source.
    pub fn effective_before(&self, options: &Options) -> Result<EffectiveConfig, InstallError> {
        for from in options.list("config-source") {
            let (kind, path) = from.split_once('=').map_or((from.as_str(), None), |(kind, path)| (kind, Some(path)));
            let read = match (kind, path) {
                ("command", _) if self.files.engine == Engine::Docker => continue,
                ("command", _) => source::read_from_engine(self.files.engine, &self.root, self.program.as_deref()),
                ("file", None) => self.read_files(&self.files),
                ("file", Some(path)) => self.read_files(&Files { top: path.into(), ..self.files.clone() }),
                (other, _) => {
                    return Err(InstallError::Usage(format!("--config-source={other} is neither command nor file")));
                }
            };
            match read {
                Ok(effective) => return Ok(effective),
                Err(error) => note(format!("passed over: {error}")),
            }
        }
        Ok(EffectiveConfig::default())
    }

    fn read_files(&self, files: &Files) -> Result<EffectiveConfig, EngineError> {
        EffectiveConfig::of(files, &files.layers(&Default::default())?)
    }

    pub fn set_up(
        &self,
        folder: &Path,
        options: &Options,
        effective_before: &EffectiveConfig,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<(), InstallError> {
        if let Some(path) = &self.hook {
            let text = hook_file_text(&folder.join("nvidia-container-runtime-hook"));
            text_file::save(path, &text).map_err(|source| InstallError::File { path: path.clone(), source })?;
            note(format!("wrote {}; hook files are deprecated", path.display()));
            return Ok(());
        }
        let default = options.is_on("set-as-default");
        let cdi = options.is_on(if options.is_given("enable-cdi-in-runtime") {
            "enable-cdi-in-runtime"
        } else {
            "cdi-enabled"
        });
        let is_containerd_2 = self.files.engine == Engine::Containerd
            && source::containerd_release(&self.root, self.program.as_deref()) >= Some((2, 0));
        let prefixes = options.list("nvidia-container-runtime.modes.cdi.annotation-prefixes");
        let requests = names(options).into_iter().zip(RUNTIMES).map(|(name, program)| {
            let mut request = RuntimeRequest::new(&name, &folder.join(program).display().to_string());
            request.default = match name == default_name(options) {
                true => Some(default),
                false => Some(false),
            };
            request.cdi = cdi;
            request.runtime_type = options.text("runtime-type").into();
            if is_containerd_2 {
                request.containerd_version = 3;
            }
            if !prefixes.is_empty() {
                request.annotations = prefixes.iter().map(|prefix| format!("{prefix}*")).collect();
            }
            request
        });
        let lock = self.lock()?;
        let plan = plan_add(
            &self.files,
            &requests.collect::<Vec<_>>(),
            Some(effective_before).filter(|effective| !effective.runtimes.is_empty()),
        )?;
        if self.files.engine == Engine::Docker {
            self.record_docker_settings(folder, options, cdi)?;
        }
        self.apply(&plan, options)?;
        drop(lock);
        // Also if no file has changed: an earlier installer may have been killed between its changes and the restart.
        Ok(restart::restart(self.files.engine, self.mode, &self.socket, &self.root, should_stop)?)
    }

    /// Records Docker's earlier settings. The record of a killed installer stays while the file still has our runtimes.
    fn record_docker_settings(&self, folder: &Path, options: &Options, cdi: bool) -> Result<(), InstallError> {
        let path = folder.join(DOCKER_RECORD);
        let now = self.read_files(&self.files)?;
        let is_own = |name: &String| now.program(name).is_some_and(|program| Path::new(program).starts_with(folder));
        let names = names(options);
        if path.exists() && names.iter().any(is_own) {
            return Ok(());
        }
        let text = record_docker(&self.files, &names.each_ref().map(String::as_str), cdi)?;
        text_file::save(&path, &text).map_err(|source| InstallError::File { path, source })
    }

    /// Removes the runtimes and restores earlier settings. Only our own entries change: a runtime of the same name in containerd's top
    /// file is the administrator's. CRI-O's runtimes stay and only its default is restored: otherwise pods that name a runtime could
    /// not be started again.
    pub fn clean_up(
        &self,
        folder: &Path,
        options: &Options,
        should_stop: &dyn Fn() -> bool,
    ) -> Result<(), InstallError> {
        if let Some(path) = &self.hook {
            return match fs::remove_file(path) {
                Err(source) if source.kind() == ErrorKind::NotFound => Ok(()),
                Err(source) => Err(InstallError::File { path: path.clone(), source }),
                Ok(()) => {
                    note(format!("removed {}", path.display()));
                    Ok(())
                }
            };
        }
        let names = names(options);
        let names = names.each_ref().map(String::as_str);
        let record = folder.join(DOCKER_RECORD);
        let lock = self.lock()?;
        let plan = match self.files.engine {
            Engine::Crio => plan_unset_default(&self.files, default_name(options))?,
            Engine::Docker => plan_restore(&self.files, &names, &record)?,
            _ => plan_remove_from_drop_in(&self.files, &names)?,
        };
        self.apply(&plan, options)?;
        drop(lock);
        match fs::remove_file(&record) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(InstallError::File { path: record, source });
            }
            _ => {}
        }
        match plan.changes.is_empty() {
            true => Ok(()),
            false => Ok(restart::restart(self.files.engine, self.mode, &self.socket, &self.root, should_stop)?),
        }
    }

    /// Locks out a concurrent `nvidia-ctk runtime configure` of an administrator.
    fn lock(&self) -> Result<Option<Lock>, InstallError> {
        Ok(Lock::of(&self.files.top).map_err(EngineError::from)?)
    }

    fn apply(&self, plan: &Plan, options: &Options) -> Result<(), InstallError> {
        let names = names(options);
        let now = plan.apply(&self.files, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        for (path, new) in &plan.changes {
            let done = if new.is_none() { "removed" } else { "wrote" };
            note(format!("{done} {}", path.display()));
        }
        note(format!("in force: {}", now.describe(&names[0])));
        Ok(())
    }
}

/// The runtime that `--set-as-default` makes the default.
fn default_name(options: &Options) -> &str {
    match options.text("runtime-name") {
        "" => "nvidia",
        name => name,
    }
}

/// Names of the three runtimes, in the order of their programs.
fn names(options: &Options) -> [String; 3] {
    let name = match default_name(options) {
        "nvidia-cdi" | "nvidia-legacy" => "nvidia",
        name => name,
    };
    [name, "nvidia-cdi", "nvidia-legacy"].map(String::from)
}
