//! Reads the effective configuration from the engine itself.
//!
//! Source: `containerd config dump`; `crio status config`, and `crio-status config` before CRI-O 1.31.

use super::files::{Files, LIMIT, Layer};
use super::force::Force;
use super::{Engine, EngineError, malformed};
use crate::kebab_name::KebabName;
use mpu_os::child;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long an engine may take to print its configuration.
const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });

pub fn ask(engine: Engine, root: &Path, program: Option<&Path>) -> Result<Force, EngineError> {
    let named = |name: &str| program.map_or_else(|| name.into(), |program| program.display().to_string());
    let commands: &[(String, &[&str])] = match engine {
        Engine::Containerd => &[(named("containerd"), &["config", "dump"])],
        Engine::Crio => &[(named("crio"), &["status", "config"]), ("crio-status".into(), &["config"])],
        Engine::Docker | Engine::Podman => {
            return Err(EngineError::Usage(format!(
                "{} has no command that prints its configuration",
                engine.kebab_name()
            )));
        }
    };
    let mut failed = None;
    for (program, words) in commands {
        match printed(root, program, words).and_then(|text| read(engine, text).map_err(|error| error.to_string())) {
            Ok(force) => return Ok(force),
            Err(reason) => {
                let command = format!("{program} {}", words.join(" "));
                failed.get_or_insert(EngineError::Command { command, reason });
            }
        }
    }
    Err(failed.unwrap_or_else(|| EngineError::Usage("there is no such command".into())))
}

pub fn containerd_release(root: &Path, program: Option<&Path>) -> Option<(u32, u32)> {
    let program = program.map_or_else(|| "containerd".into(), |program| program.display().to_string());
    // "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3"
    let text = printed(root, &program, &["--version"]).ok()?;
    let mut numbers = text.split_whitespace().nth(2)?.trim_start_matches('v').split('.');
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

fn read(engine: Engine, text: String) -> Result<Force, EngineError> {
    let path = PathBuf::from("what the engine printed");
    let version = match engine {
        Engine::Containerd => super::containerd::version(&text, 1, 2).map_err(malformed(&path))?,
        _ => 0,
    };
    Force::of(&Files::of(engine), &[Layer { path: path.clone(), text, version }])
}

fn printed(root: &Path, program: &str, words: &[&str]) -> Result<String, String> {
    let mut command = match root.as_os_str().is_empty() || root == Path::new("/") {
        true => Command::new(program),
        false => {
            let mut command = Command::new("chroot");
            command.arg(root).arg(program);
            command
        }
    };
    command.args(words).stdin(Stdio::null());
    let output = child::run(&mut command, LONGEST, LIMIT).map_err(|error| error.to_string())?;
    let text = |bytes| String::from_utf8(bytes).map_err(|error| error.to_string());
    match output.status {
        None => Err(format!("it has not ended in {} seconds, or prints more than {LIMIT} bytes", LONGEST.as_secs())),
        Some(status) if status.success() => text(output.stdout),
        Some(status) => {
            Err(format!("{status} {}", text(output.stderr).unwrap_or_default().lines().next().unwrap_or_default()))
        }
    }
}
