//! Reads the effective configuration from the engine itself.
//!
//! Source: `containerd config dump`; `crio status config`, and `crio-status config` before CRI-O 1.31.

use super::effective::EffectiveConfig;
use super::files::{Files, Layer, MAX_FILE_SIZE};
use super::{Engine, EngineError, malformed};
use crate::kebab_name::KebabName;
use mpu_os::child;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit for an engine to print its configuration.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });

pub fn read_from_engine(engine: Engine, root: &Path, program: Option<&Path>) -> Result<EffectiveConfig, EngineError> {
    let program_or = |name: &str| program.map_or_else(|| name.into(), |program| program.display().to_string());
    let commands: &[(String, &[&str])] = match engine {
        Engine::Containerd => &[(program_or("containerd"), &["config", "dump"])],
        Engine::Crio => &[(program_or("crio"), &["status", "config"]), ("crio-status".into(), &["config"])],
        Engine::Docker | Engine::Podman => {
            return Err(EngineError::Usage(format!(
                "{} has no command that prints its configuration",
                engine.kebab_name()
            )));
        }
    };
    let mut first_error = None;
    for (program, arguments) in commands {
        match capture_stdout(root, program, arguments)
            .and_then(|text| read(engine, text).map_err(|error| error.to_string()))
        {
            Ok(effective) => return Ok(effective),
            Err(reason) => {
                let command = format!("{program} {}", arguments.join(" "));
                first_error.get_or_insert(EngineError::Command { command, reason });
            }
        }
    }
    Err(first_error.unwrap_or_else(|| EngineError::Usage("there is no such command".into())))
}

pub fn containerd_release(root: &Path, program: Option<&Path>) -> Option<(u32, u32)> {
    let program = program.map_or_else(|| "containerd".into(), |program| program.display().to_string());
    // The output is "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3".
    let text = capture_stdout(root, &program, &["--version"]).ok()?;
    let mut numbers = text.split_whitespace().nth(2)?.trim_start_matches('v').split('.');
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

fn read(engine: Engine, text: String) -> Result<EffectiveConfig, EngineError> {
    let path = PathBuf::from("what the engine printed");
    let version = match engine {
        Engine::Containerd => super::containerd::version(&text, 1, 2).map_err(malformed(&path))?,
        _ => 0,
    };
    EffectiveConfig::of(&Files::of(engine), &[Layer { path: path.clone(), text, version }])
}

fn capture_stdout(root: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = match root.as_os_str().is_empty() || root == Path::new("/") {
        true => Command::new(program),
        false => {
            let mut command = Command::new("chroot");
            command.arg(root).arg(program);
            command
        }
    };
    command.args(arguments).stdin(Stdio::null());
    let output = child::run(&mut command, TIMEOUT, MAX_FILE_SIZE).map_err(|error| error.to_string())?;
    let text = |bytes| String::from_utf8(bytes).map_err(|error| error.to_string());
    match output.status {
        None => {
            Err(format!("it has not ended in {} seconds, or prints more than {MAX_FILE_SIZE} bytes", TIMEOUT.as_secs()))
        }
        Some(status) if status.success() => text(output.stdout),
        Some(status) => {
            Err(format!("{status} {}", text(output.stderr).unwrap_or_default().lines().next().unwrap_or_default()))
        }
    }
}
