//! The command line of `nvidia-ctk runtime configure`.
//!
//! Outside truth for the flags: `nvidia-ctk runtime configure --help` of NVIDIA Container Toolkit 1.18. Those for what we
//! do not do (a drop-in file for containerd, hooks) are not taken, so that nobody believes them to have worked.

use super::{adding, make, removing, Change, Engine, EngineError, Wish};
use clap::Args;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What `runtime configure` takes.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nvidia-ctk runtime configure --runtime=docker --dry-run     show what daemon.json would be
  nvidia-ctk runtime configure --runtime=containerd --set-as-default --cdi.enabled
  nvidia-ctk runtime configure --runtime=docker --remove      take it out again")]
pub struct Configure {
    /// The engine
    #[arg(long, value_enum, default_value = "docker")]
    runtime: Engine,
    /// Its configuration, when that is not where the engine's packages keep it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What users call the runtime
    #[arg(long, visible_alias = "runtime-name", value_name = "NAME", default_value = "nvidia")]
    nvidia_runtime_name: String,
    /// The runtime wrapper
    #[arg(long, visible_alias = "runtime-path", value_name = "PROGRAM", default_value = "nvidia-container-runtime")]
    nvidia_runtime_path: String,
    /// Containers that name no runtime get this one
    #[arg(long, visible_alias = "nvidia-set-as-default")]
    set_as_default: bool,
    /// The engine reads CDI files
    #[arg(long = "cdi.enabled", visible_alias = "enable-cdi", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", default_value_t = false, action = clap::ArgAction::Set)]
    cdi: bool,
    /// Take the runtime out again (CDI stays enabled)
    #[arg(long, conflicts_with_all = ["set_as_default", "cdi"])]
    remove: bool,
    /// Print what the file would hold, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Configure {
    /// Does it. What there is to say goes to standard error; standard output has the file of a dry run alone.
    pub fn run(&self) -> Result<(), EngineError> {
        let path = self.config.clone().unwrap_or_else(|| self.runtime.file().to_path_buf());
        let change = match self.remove {
            true => removing(self.runtime, &path, &self.nvidia_runtime_name)?,
            false => adding(self.runtime, &path, &self.wish())?,
        };
        let file = path.display();
        match (&change, self.dry_run) {
            (Change::None, _) => eprintln!("{file} is as it should be: nothing was changed"),
            (Change::Write(text), true) => print!("{text}"),
            (Change::Delete, true) => eprintln!("{file} would be removed: nothing else is in it"),
            (Change::Write(_) | Change::Delete, false) => {
                make(&change, &path)?;
                eprintln!("{file} was {}", if change == Change::Delete { "removed" } else { "written" });
                if let Some(restart) = self.runtime.restart() {
                    eprintln!("it counts from the engine's next start: sudo {restart}");
                }
            }
        }
        Ok(())
    }

    fn wish(&self) -> Wish {
        Wish {
            name: self.nvidia_runtime_name.clone(),
            path: self.program(),
            default: self.set_as_default,
            cdi: self.cdi,
            containerd_version: containerd_version(self.runtime),
        }
    }

    /// Podman and CRI-O want a whole path; Docker and containerd look in their own `PATH`, which need not be ours.
    fn program(&self) -> String {
        let named = &self.nvidia_runtime_path;
        if named.contains('/') {
            return named.clone();
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|dir| dir.join(named)).find(|program| program.is_file());
        found.and_then(|program| program.to_str().map(str::to_string)).unwrap_or_else(|| format!("/usr/bin/{named}"))
    }
}

/// What a containerd that has no configuration yet wants: version 3 from 2.0 on.
fn containerd_version(engine: Engine) -> i64 {
    if engine != Engine::Containerd {
        return 2;
    }
    let told = Command::new("containerd").arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = told.map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
    // "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3"
    let version = text.split_whitespace().nth(2).unwrap_or_default().trim_start_matches('v');
    match version.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
        Some(major) if major >= 2 => 3,
        _ => 2,
    }
}
