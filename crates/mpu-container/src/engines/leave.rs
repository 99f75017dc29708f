//! The program `leave`: removes our wrapper as the default runtime of every engine. The package's script runs it before it removes the
//! wrapper: an engine with a missing default runtime starts no container.
//!
//! A default runtime is ours only if its program is this executable.

use super::effective::EffectiveConfig;
use super::files::{Files, Pending};
use super::plan::plan_unset_default;
use super::{Engine, EngineError, source};
use crate::kebab_name::KebabName;
use crate::lock::Lock;
use crate::output::{eprint_line, print};
use crate::program::{self, Program};
use clap::{CommandFactory, Parser, ValueEnum};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub const PROGRAM: Program = Program {
    name: "leave",
    nvidia_names: &[],
    about: "makes our runtime no engine's default one any more",
    run: main,
    command: Some(Args::command),
};

/// Makes our runtime no engine's default one any more. It stays known by its name
#[derive(Debug, Parser)]
#[command(
    name = "mpu-container leave",
    bin_name = "mpu-container leave",
    after_help = "Standard output has the engines whose files were changed, a word each.

Example: sudo mpu-container leave    before the program is removed: packages run it"
)]
struct Args {}

fn main(arguments: Vec<OsString>) -> ExitCode {
    if let Err(error) = Args::try_parse_from(arguments) {
        return program::print_clap_error(&error);
    }
    let this = crate::executable::path().unwrap_or_else(|_| PathBuf::from("/usr/bin/mpu-container"));
    let mut failed = false;
    for engine in Engine::value_variants() {
        let mut files = Files::of(*engine);
        files.merges =
            *engine == Engine::Containerd && source::containerd_release(Path::new("/"), None) >= Some((2, 1));
        match unset_own_default(&files, |program| is_ours(program, &this)) {
            Ok(None) => {}
            Ok(Some((name, before, now))) => {
                eprint_line(format!(
                    "{}: its default runtime was ours; now {}",
                    engine.kebab_name(),
                    now.describe(&name)
                ));
                if let Some(hint) = now.restart_hint(*engine, &before) {
                    eprint_line(hint);
                }
                failed |= print(&format!("{}\n", engine.kebab_name())).is_err();
            }
            Err(error) => {
                eprint_line(format!("mpu-container: leave: {}: {error}", engine.kebab_name()));
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Removes our runtime as an engine's default. Returns its name and the effective configuration before and after; none if it was not the default.
pub(super) fn unset_own_default(
    files: &Files,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Option<(String, EffectiveConfig, EffectiveConfig)>, EngineError> {
    let own_default = || -> Result<Option<(String, EffectiveConfig)>, EngineError> {
        let effective = EffectiveConfig::of(files, &files.layers(&Pending::new())?)?;
        let name = effective.default.as_ref().map(|(name, _)| name.clone());
        // Podman's default may be a program's path instead of a name.
        let name = name.filter(|name| is_ours(effective.program(name).unwrap_or(name)));
        Ok(name.map(|name| (name, effective)))
    };
    if own_default()?.is_none() {
        return Ok(None);
    }
    // Locked only now: a lock creates the engine's directory, which a host without this engine must not get. Another program may have
    // changed the files before the lock.
    let _lock = Lock::of(&files.top)?;
    let Some((name, effective)) = own_default()? else { return Ok(None) };
    let now = plan_unset_default(files, &name)?.apply(files, &[&name])?;
    Ok(Some((name, effective, now)))
}

/// Whether a runtime's program is this executable, also through links. A bare name is looked up in `PATH` and the usual directories.
fn is_ours(program: &str, this: &Path) -> bool {
    let Ok(this) = fs::canonicalize(this) else { return false };
    let is_it = |path: &Path| fs::canonicalize(path).is_ok_and(|real| real == this);
    if program.contains('/') {
        return is_it(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"].map(PathBuf::from);
    let found =
        std::env::split_paths(&path).chain(usual).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.is_some_and(|path| is_it(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_to_this_executable_are_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::write(at("mpu-container"), "ours").expect("written");
        symlink("mpu-container", at("nvidia-container-runtime")).expect("a link");
        fs::write(at("theirs"), "theirs").expect("written");
        let is = |name: &str| is_ours(at(name).to_str().expect("a name"), &at("mpu-container"));
        assert!(is("nvidia-container-runtime") && is("mpu-container"));
        assert!(!is("theirs") && !is("gone") && !is_ours("", &at("mpu-container")) && !is_ours("runc", &at("gone")));
    }
}
