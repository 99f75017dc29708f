//! The program `links`: NVIDIA's names as links to this executable.

use crate::output;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{} is there and is not a link to this program: remove it, or the package that it belongs to, first", .0.display())]
    Taken(PathBuf),
    #[error("cannot change {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

const USAGE: &str = "Makes NVIDIA's names for this executable's programs, as links in a folder.

Usage: mpu-container links FOLDER [--remove]

Example: sudo mpu-container links /usr/local/bin
";

pub fn main(arguments: Vec<OsString>, names: &[&str]) -> ExitCode {
    let words: Vec<&OsString> = arguments.iter().skip(1).collect();
    let remove = words.iter().any(|word| *word == "--remove");
    let folders: Vec<&&OsString> = words.iter().filter(|word| **word != "--remove").collect();
    let [folder] = folders[..] else {
        output::eprint_line(USAGE.trim_end());
        return ExitCode::from(2);
    };
    if *folder == "--help" || *folder == "-h" {
        return output::print_page("mpu-container", USAGE);
    }
    let done = crate::executable::path()
        .map_err(|source| LinkError::Io { path: PathBuf::from("/proc/self/exe"), source })
        .and_then(|this| links(names, Path::new(folder), &this, remove));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::eprint_line(format!("mpu-container: {error}"));
            ExitCode::FAILURE
        }
    }
}

pub fn links(names: &[&str], folder: &Path, executable: &Path, remove: bool) -> Result<(), LinkError> {
    // A link beside the executable is relative, so that both can move together.
    let beside = fs::canonicalize(folder).is_ok_and(|folder| executable.parent() == Some(&folder));
    let target = match executable.file_name() {
        Some(name) if beside => PathBuf::from(name),
        _ => executable.to_path_buf(),
    };
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    let is_own = |path: &Path| fs::read_link(path).is_ok_and(|found| found == target);
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    if remove {
        return paths.iter().filter(|path| is_own(path)).try_for_each(|path| io_at(path, fs::remove_file(path)));
    }
    if let Some(taken) = paths.iter().find(|path| exists(path) && !is_own(path)) {
        return Err(LinkError::Taken(taken.clone()));
    }
    let missing = paths.iter().filter(|path| !exists(path));
    missing.into_iter().try_for_each(|path| io_at(path, std::os::unix::fs::symlink(&target, path)))
}

fn io_at(path: &Path, done: io::Result<()>) -> Result<(), LinkError> {
    done.map_err(|source| LinkError::Io { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["nvidia-ctk", "nvidia-cdi-hook"];

    #[test]
    fn foreign_file_survives_making_and_removing_links() {
        let dir = tempfile::tempdir().expect("a directory");
        let executable = dir.path().canonicalize().expect("there").join("mpu-container");
        fs::write(&executable, "").expect("written");
        for _ in 0..2 {
            links(&NAMES, dir.path(), &executable, false).expect("made");
        }
        let link = dir.path().join("nvidia-ctk");
        assert_eq!(fs::read_link(&link).expect("a link"), Path::new("mpu-container"));
        fs::remove_file(&link).expect("removed");
        fs::write(&link, "another's").expect("written");
        assert!(matches!(links(&NAMES, dir.path(), &executable, false), Err(LinkError::Taken(path)) if path == link));
        links(&NAMES, dir.path(), &executable, true).expect("removed");
        let left = fs::read_dir(dir.path()).expect("read").count();
        assert_eq!(left, 2, "the executable, and what is another's");
    }
}
