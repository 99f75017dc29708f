//! What an engine itself says that it has read: the options of its runtimes, in whichever file they are.
//!
//! Source: `containerd config dump`; `crio status config`, and `crio-status config` before CRI-O 1.31.

use super::files::{Files, Layer};
use super::force::Force;
use super::{Engine, EngineError};
use rustix::fs::{memfd_create, MemfdFlags};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long an engine may take to print its configuration.
const LONGEST: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 20 });
/// How soon is seen that it has.
const STEP: Duration = Duration::from_millis(5);

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
    let told = |error: io::Error| error.to_string();
    // Into memory, which holds all that it says while it is waited for; the toolkit's container may have no /tmp.
    let file = || memfd_create("said", MemfdFlags::CLOEXEC).map(File::from).map_err(|error| error.to_string());
    let (mut out, mut err) = (file()?, file()?);
    command.args(words).stdin(Stdio::null());
    command.stdout(out.try_clone().map_err(told)?).stderr(err.try_clone().map_err(told)?);
    let mut child = command.spawn().map_err(told)?;
    let until = Instant::now() + LONGEST;
    let status = loop {
        match child.try_wait().map_err(told)? {
            Some(status) => break status,
            None if Instant::now() < until => sleep(STEP),
            None => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it has not ended in {} seconds", LONGEST.as_secs()));
            }
        }
    };
    let text = |file: &mut File| {
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text).map(|_| text)
    };
    match status.success() {
        true => text(&mut out).map_err(told),
        false => Err(format!("{status} {}", text(&mut err).unwrap_or_default().lines().next().unwrap_or_default())),
    }
}
