//! A Python with pynvml for guests: the machine's own interpreter, exactly the files it opens to import pynvml, and the pinned package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cpio::Archive;
use crate::libraries::libraries;
use crate::paths;
use crate::run::{output, say};

/// The distribution's, whatever else is in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// Lists what an import of these opened: sources, extension modules, and the folders Python derives its prefix from.
const LIST: &str =
    "import sys, pynvml, ctypes, json, os, re, encodings.utf_8, encodings.ascii, encodings.latin_1, threading\n\
for m in list(sys.modules.values()):\n    f = getattr(m, '__file__', None)\n    if f: print(f)\n\
import pathlib; print(pathlib.Path(os.__file__).resolve())";

/// Adds interpreter and package to a guest: `python3 -c 'import pynvml'` works there.
pub fn add(archive: &mut Archive) -> Result<()> {
    let package = ready()?;
    let real = std::fs::canonicalize(PYTHON).context("no python3")?;
    archive.file("usr/bin/python3", 0o755, &real)?;
    libraries(archive, &real)?;
    let mut list = Command::new(PYTHON);
    list.args(["-B", "-S", "-c", LIST]).env("PYTHONPATH", &package).env_remove("PYTHONHOME").current_dir("/");
    for file in output(&mut list).context("this machine's python3 cannot import pynvml")?.lines() {
        let path = Path::new(file);
        if path == package.join("pynvml.py") {
            archive.file("usr/lib/pynvml/pynvml.py", 0o644, path)?;
            continue;
        }
        archive.file(file.trim_start_matches('/'), 0o755, path)?;
        if file.ends_with(".so") {
            libraries(archive, path)?;
        }
    }
    Ok(())
}

/// The folder that holds pynvml.py.
fn ready() -> Result<PathBuf> {
    let pin = include_str!("../pynvml.txt");
    let version = pin.split(['=', ' ']).nth(2).context("pynvml.txt pins no version")?;
    let dir = paths::cache("pynvml")?.join(version);
    if dir.join("pynvml.py").is_file() {
        return Ok(dir);
    }
    say(format!("fetching pynvml {version}"));
    let partial = dir.with_extension(format!("partial-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    std::fs::create_dir_all(&partial)?;
    let list = partial.join("pin.txt");
    std::fs::write(&list, pin)?;
    let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r"];
    output(Command::new(PYTHON).args(pip).arg(&list).arg("-d").arg(&partial)).context("cannot download pynvml")?;
    let wheel = std::fs::read_dir(&partial)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.context("pip downloaded no wheel")?;
    output(Command::new(PYTHON).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&partial))?;
    std::fs::remove_file(&wheel)?;
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::rename(&partial, &dir)?;
    Ok(dir)
}
