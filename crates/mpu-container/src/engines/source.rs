//! What an engine itself says that it has read: the options of its runtimes, in whichever file they are.
//!
//! Owns the commands that print it. Outside truth: `containerd config dump`; `crio status config`, and `crio-status config`
//! before CRI-O 1.31.

use super::files::{Files, Layer};
use super::force::Force;
use super::{Engine, EngineError};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Asks the engine. `program` is another than the one on `PATH`; both are looked for below `root`.
pub fn ask(engine: Engine, root: &Path, program: Option<&Path>) -> Result<Force, EngineError> {
    let named = |name: &str| program.map_or_else(|| name.into(), |program| program.display().to_string());
    let commands: &[(String, &[&str])] = match engine {
        Engine::Containerd => &[(named("containerd"), &["config", "dump"])],
        Engine::Crio => &[(named("crio"), &["status", "config"]), ("crio-status".into(), &["config"])],
        Engine::Docker | Engine::Podman => {
            return Err(EngineError::Asked(format!("{} has no command that prints its configuration", engine.word())))
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
    Err(failed.unwrap_or_else(|| EngineError::Asked("there is no such command".into())))
}

/// containerd's release; none if it does not say.
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
    let malformed = |reason| EngineError::Malformed { path: path.clone(), reason };
    let version = match engine {
        Engine::Containerd => super::containerd::version(&text, 1, 2).map_err(malformed)?,
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
    let done = command.args(words).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !done.status.success() {
        let told = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{} {}", done.status, told.lines().next().unwrap_or_default()));
    }
    String::from_utf8(done.stdout).map_err(|error| error.to_string())
}
