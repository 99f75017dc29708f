//! The command line of `nvidia-ctk runtime configure`.
//!
//! Source of the flags: `nvidia-ctk runtime configure --help` of NVIDIA Container Toolkit 1.20.

use super::effective::EffectiveConfig;
use super::files::{Files, Pending};
use super::plan::{Plan, plan_add, plan_remove};
use super::{Engine, EngineError, RuntimeRequest, hook_file_text, source};
use crate::config::edit::parse_bool;
use crate::executable;
use crate::kebab_name::KebabName;
use crate::lock::Lock;
use crate::output::eprint_line;
use crate::text_file;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use std::path::{Path, PathBuf};

/// The runtime wrapper's name.
const RUNTIME: &str = "nvidia-container-runtime";

/// The default of NVIDIA's flag; scripts also pass it.
const ENGINE_DEFAULT: &str = "RUNTIME_SPECIFIC_DEFAULT";

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvidia-ctk runtime configure --runtime=docker --dry-run     show what daemon.json would be
  nvidia-ctk runtime configure --runtime=containerd --set-as-default --cdi.enabled
  nvidia-ctk runtime configure --runtime=containerd --drop-in-config=/etc/containerd/conf.d/99-nvidia.toml
  nvidia-ctk runtime configure --runtime=crio --set-as-default=false    known, and no longer the default
  nvidia-ctk runtime configure --runtime=docker --remove      take it out again

A file that has the runtime already is taken over, whichever tool wrote it. Before a file is written, all files of the
engine are read in its own order: if another one would overrule the change, it is named and nothing is written.")]
pub struct Configure {
    /// The engine
    #[arg(long, value_enum, default_value = "docker")]
    runtime: Engine,
    /// Its configuration, when that is not where the engine's packages keep it
    #[arg(long, value_parser = path_parser(), value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the runtime into this file of containerd or CRI-O instead [default: crio.conf.d/99-nvidia.toml for CRI-O,
    /// none for containerd]
    #[arg(long, value_parser = path_parser(), value_name = "FILE")]
    drop_in_config: Option<PathBuf>,
    /// Where the options of the present default runtime are read from
    #[arg(long, value_enum, default_value = "file")]
    config_source: Source,
    /// The engine's program, which --config-source=command asks [default: from PATH]
    #[arg(long, value_parser = path_parser(), value_name = "PROGRAM")]
    executable_path: Option<PathBuf>,
    /// How containers get GPUs
    #[arg(long, value_enum, default_value = "config-file")]
    config_mode: ConfigMode,
    /// With --config-mode=oci-hook: the hook file [default: standard output]
    #[arg(long, value_parser = path_parser(), value_name = "FILE")]
    oci_hook_path: Option<PathBuf>,
    /// With --config-mode=oci-hook: the hook
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/nvidia-container-runtime-hook")]
    nvidia_runtime_hook_path: PathBuf,
    /// What users call the runtime
    #[arg(long, visible_alias = "runtime-name", value_name = "NAME", default_value = "nvidia")]
    nvidia_runtime_name: String,
    /// The runtime wrapper
    #[arg(long, visible_alias = "runtime-path", value_name = "PROGRAM", default_value = RUNTIME)]
    nvidia_runtime_path: String,
    /// Containers that name no runtime get this one; =false: no longer
    #[arg(long, visible_alias = "nvidia-set-as-default", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = parse_switch)]
    set_as_default: Option<bool>,
    /// The engine reads CDI files
    #[arg(long = "cdi.enabled", visible_aliases = ["cdi.enable", "enable-cdi"], value_name = "BOOL", num_args = 0..=1,
        require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true,
        value_parser = parse_switch, action = ArgAction::Set)]
    cdi: bool,
    /// Take the runtime out again, of every file (CDI stays enabled)
    #[arg(long, conflicts_with_all = ["set_as_default", "cdi"])]
    remove: bool,
    /// Print what the files would hold, and change nothing
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", hide_default_value = true, hide_possible_values = true, value_parser = parse_switch, action = ArgAction::Set)]
    dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    /// The engine's files
    File,
    /// The engine itself: containerd config dump, crio status config
    Command,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ConfigMode {
    /// By a runtime in the engine's files
    // Scripts pass an empty mode for the default one.
    #[value(aliases = ["config", ""])]
    ConfigFile,
    /// By a hook file for all containers (deprecated)
    #[value(alias = "hook")]
    OciHook,
}

/// Parses a path that may be empty: scripts pass an empty one for the default.
pub(crate) fn path_parser() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

pub(crate) fn non_empty(path: &Option<PathBuf>) -> Option<&Path> {
    path.as_deref().filter(|path| !path.as_os_str().is_empty())
}

pub(crate) fn parse_switch(word: &str) -> Result<bool, String> {
    parse_bool(word).ok_or_else(|| "true or false".into())
}

impl Configure {
    /// Runs the command. Notes go to standard error; standard output has only the files of a dry run.
    pub fn run(&self) -> Result<(), EngineError> {
        if self.config_mode == ConfigMode::OciHook {
            return self.write_hook_file();
        }
        let files = self.files()?;
        let name = self.nvidia_runtime_name.as_str();
        if name.is_empty() {
            return Err(EngineError::Usage("--nvidia-runtime-name must not be empty".into()));
        }
        // Locked before the read: otherwise, of two concurrent changes, the second would undo the first.
        let _lock = if self.dry_run { None } else { Lock::of(&files.top)? };
        if self.remove {
            let plan = plan_remove(&files, &[name])?;
            return self.apply(&files, &plan);
        }
        let request = self.request()?;
        let v1 = files.drop_in.is_some() && files.engine == Engine::Containerd && {
            let layers = files.layers(&Pending::new())?;
            layers.first().is_some_and(|top| top.version == 1 && !top.text.trim().is_empty())
        };
        if v1 {
            eprint_line(format!(
                "{} is of version 1, which has no imports: it gets the runtime itself",
                files.top.display()
            ));
        }
        if !files.reads_own() {
            let own = files.own();
            eprint_line(format!("CRI-O reads {} only if its --config-dir is that directory", own.display()));
        }
        let template = self.template()?;
        let missing = (!Path::new(&request.path).is_file()).then(|| request.path.clone());
        let plan = plan_add(&files, &[request], template.as_ref())?;
        if let Some(program) = missing {
            self.report_missing_program(&program, plan.effective.is_default(name) && !plan.changes.is_empty())?;
        }
        self.apply(&files, &plan)
    }

    /// Handles a missing runtime program. An absolute path is accepted: it may be the host's, or be installed later.
    fn report_missing_program(&self, program: &str, default: bool) -> Result<(), EngineError> {
        let named = self.named_program();
        if default && !named.contains('/') {
            return Err(EngineError::Usage(format!(
                "there is no program {named}, neither beside this one nor in PATH, and every container would start by it: \
                 install it, or give its whole path with --nvidia-runtime-path"
            )));
        }
        eprint_line(format!("there is no program {program} here: no container of this runtime starts without it"));
        if !named.contains('/') {
            eprint_line("--nvidia-runtime-path takes another path of it");
        }
        Ok(())
    }

    fn apply(&self, files: &Files, plan: &Plan) -> Result<(), EngineError> {
        let name = self.nvidia_runtime_name.as_str();
        if plan.changes.is_empty() {
            eprint_line(format!(
                "{}'s configuration is as it should be: nothing was changed",
                self.runtime.kebab_name()
            ));
            eprint_line(format!("in force: {}", plan.effective.describe(name)));
            return Ok(());
        }
        let before = EffectiveConfig::of(files, &files.layers(&Pending::new())?)?;
        let now = if self.dry_run { None } else { Some(plan.apply(files, &[name])?) };
        for (path, new) in &plan.changes {
            let file = path.display();
            match (new, self.dry_run) {
                (Some(text), true) => {
                    let title = if plan.changes.len() > 1 { format!("# {file}\n") } else { String::new() };
                    print(&(title + text))?;
                }
                (None, true) => eprint_line(format!("{file} would be removed: nothing else is in it")),
                (None, false) => eprint_line(format!("{file} is removed: nothing else is in it")),
                (Some(_), false) => eprint_line(format!("{file} is written")),
            }
        }
        let Some(now) = now else {
            eprint_line(format!("would be in force: {}", plan.effective.describe(name)));
            return Ok(());
        };
        eprint_line(format!("in force: {}", now.describe(name)));
        if let Some(hint) = now.restart_hint(self.runtime, &before) {
            eprint_line(hint);
        }
        Ok(())
    }

    fn files(&self) -> Result<Files, EngineError> {
        let mut files = Files::of(self.runtime);
        let drop_in =
            non_empty(&self.drop_in_config).filter(|path| *path != Path::new(ENGINE_DEFAULT)).map(Path::to_path_buf);
        if let Some(path) = &drop_in {
            if matches!(self.runtime, Engine::Docker | Engine::Podman) {
                let engine = self.runtime.kebab_name();
                return Err(EngineError::Usage(format!(
                    "--drop-in-config: {engine} has no such file; --config names its file"
                )));
            }
            check_absolute("--drop-in-config", path)?;
        }
        // Absolute: imports are relative to this file, not to our working directory.
        let config = non_empty(&self.config).map(std::path::absolute).transpose();
        let config = config.map_err(|error| EngineError::Usage(format!("--config: {error}")))?;
        match (config, self.runtime) {
            // Podman reads directories of files: the named file is ours.
            (Some(path), Engine::Podman) => {
                let folder = path.parent().filter(|folder| folder.extension().is_some_and(|end| end == "d"));
                files.top = folder.map_or_else(|| path.clone(), |folder| folder.with_file_name("containers.conf"));
                files.drop_in = Some(path);
            }
            (Some(path), _) => files.top = path,
            (None, _) => {}
        }
        if self.runtime != Engine::Podman {
            // As with NVIDIA's program, an empty name means the engine's own file.
            let own = self.drop_in_config.as_ref().is_some_and(|path| path.as_os_str().is_empty());
            files.drop_in = if own && self.runtime == Engine::Crio { Some(files.top.clone()) } else { drop_in };
        }
        files.merges = self.runtime == Engine::Containerd
            && source::containerd_release(Path::new("/"), non_empty(&self.executable_path)) >= Some((2, 1));
        Ok(files)
    }

    fn request(&self) -> Result<RuntimeRequest, EngineError> {
        let mut request = RuntimeRequest::new(&self.nvidia_runtime_name, &self.program()?);
        request.default = self.set_as_default;
        request.cdi = self.cdi;
        if self.cdi && matches!(self.runtime, Engine::Crio | Engine::Podman) {
            eprint_line(format!(
                "--cdi.enabled is passed over: {} reads CDI files in any case",
                self.runtime.kebab_name()
            ));
        }
        if self.runtime == Engine::Containerd
            && source::containerd_release(Path::new("/"), non_empty(&self.executable_path)) >= Some((2, 0))
        {
            request.containerd_version = 3;
        }
        Ok(request)
    }

    fn template(&self) -> Result<Option<EffectiveConfig>, EngineError> {
        let has_command = matches!(self.runtime, Engine::Containerd | Engine::Crio);
        if !has_command && (self.config_source == Source::Command || non_empty(&self.executable_path).is_some()) {
            let engine = self.runtime.kebab_name();
            eprint_line(format!(
                "--config-source=command and --executable-path are passed over: {engine} prints no configuration"
            ));
        }
        match has_command && self.config_source == Source::Command {
            true => source::read_from_engine(self.runtime, Path::new("/"), non_empty(&self.executable_path)).map(Some),
            false => Ok(None),
        }
    }

    fn write_hook_file(&self) -> Result<(), EngineError> {
        check_absolute("--nvidia-runtime-hook-path", &self.nvidia_runtime_hook_path)?;
        eprint_line("--config-mode=oci-hook is deprecated: engines of today give GPUs by CDI");
        let text = hook_file_text(&self.nvidia_runtime_hook_path);
        match non_empty(&self.oci_hook_path).filter(|_| !self.dry_run) {
            None => print(&text)?,
            Some(path) => {
                text_file::save(path, &text)
                    .map_err(|source| EngineError::Write { path: path.to_path_buf(), source })?;
                eprint_line(format!("{} is written", path.display()));
            }
        }
        Ok(())
    }

    /// The program that the caller named. Scripts pass an empty name for the default.
    fn named_program(&self) -> &str {
        match self.nvidia_runtime_path.as_str() {
            "" => RUNTIME,
            named => named,
        }
    }

    /// The absolute path of the runtime program. Podman and CRI-O need one; Docker and containerd search their own `PATH`, which may
    /// differ from ours.
    fn program(&self) -> Result<String, EngineError> {
        let named = self.named_program();
        if named.contains('/') {
            check_absolute("--nvidia-runtime-path", Path::new(named))?;
            return Ok(named.to_string());
        }
        // The program beside this one comes first: sudo's PATH may lack this folder, or may have another toolkit's.
        let beside = executable::path().ok().and_then(|this| this.parent().map(Path::to_path_buf));
        let path = std::env::var_os("PATH").unwrap_or_default();
        // The engine would resolve a relative folder from its own working directory.
        let folders = beside.into_iter().chain(std::env::split_paths(&path)).filter(|folder| folder.is_absolute());
        let found = folders.map(|folder| folder.join(named)).find(|program| program.is_file());
        Ok(found
            .and_then(|program| program.to_str().map(str::to_string))
            .unwrap_or_else(|| format!("/usr/bin/{named}")))
    }
}

fn print(text: &str) -> Result<(), EngineError> {
    crate::output::print(text).map_err(|source| EngineError::Write { path: "standard output".into(), source })
}

fn check_absolute(flag: &str, path: &Path) -> Result<(), EngineError> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(EngineError::Usage(format!("{flag}={} must begin with a slash", path.display()))),
    }
}
