//! The program `leave`: makes our wrapper no engine's default runtime any more. The package's script runs it before the wrapper is removed:
//! an engine with a missing default runtime starts no container.
//!
//! Only a default runtime whose program is this executable is ours.

use super::files::{Files, Pending};
use super::force::Force;
use super::plan::undefaulting;
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
    after_help = "Standard output has the engines whose files were changed, a word each.

Example: sudo mpu-container leave    before the program is removed: packages run it"
)]
struct Args {}

fn main(arguments: Vec<OsString>) -> ExitCode {
    if let Err(error) = Args::try_parse_from(arguments) {
        return program::print_clap_error(&error);
    }
    let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/bin/mpu-container"));
    let mut failed = false;
    for engine in Engine::value_variants() {
        let mut files = Files::of(*engine);
        files.merges =
            *engine == Engine::Containerd && source::containerd_release(Path::new("/"), None) >= Some((2, 1));
        match leave(&files, |program| is_ours(program, &this)) {
            Ok(None) => {}
            Ok(Some((name, before, now))) => {
                eprint_line(format!(
                    "{}: its default runtime was ours; now {}",
                    engine.kebab_name(),
                    now.describe(&name)
                ));
                if let Some(counts) = now.counts(*engine, &before) {
                    eprint_line(counts);
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
pub(super) fn leave(
    files: &Files,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Option<(String, Force, Force)>, EngineError> {
    let ours = || -> Result<Option<(String, Force)>, EngineError> {
        let force = Force::of(files, &files.layers(&Pending::new())?)?;
        let name = force.default.as_ref().map(|(name, _)| name.clone());
        // Podman may name the program itself.
        let name = name.filter(|name| is_ours(force.program(name).unwrap_or(name)));
        Ok(name.map(|name| (name, force)))
    };
    if ours()?.is_none() {
        return Ok(None);
    }
    // Not before: a lock makes the folder of an engine that is not there. Another program may have changed the files meanwhile.
    let _lock = Lock::of(&files.top)?;
    let Some((name, force)) = ours()? else { return Ok(None) };
    let now = undefaulting(files, &name)?.carry_out(files, &[&name])?;
    Ok(Some((name, force, now)))
}

/// Whether a runtime's program is this executable, also through links. A name without a folder is looked up as an engine does.
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
