//! Python with pynvml for guests: this machine's interpreter, the modules that it loads to import pynvml, and the pinned package.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::arch::Arch;
use crate::chart::{PYTHON, pinned};
use crate::cpio::Archive;
use crate::paths;
use crate::run::output;
use crate::sysroot::libraries;

/// Lists the files of the imported modules, and os.py, from which Python derives its prefix.
const LIST: &str = "import sys, pynvml, ctypes, json, os, re, encodings.utf_8, encodings.ascii, encodings.latin_1, threading\n\
for m in list(sys.modules.values()):\n    f = getattr(m, '__file__', None)\n    if f: print(f)\n\
import pathlib; print(pathlib.Path(os.__file__).resolve())";

/// Compiles its other arguments into the folder of the first, and lists the results. They are never checked against their sources, so that a
/// guest's clock does not matter.
const COMPILE: &str = "import sys, os, importlib.util, py_compile\n\
for f in sys.argv[2:]:\n    c = importlib.util.cache_from_source(f)\n\
    t = os.path.join(sys.argv[1], c.lstrip('/'))\n\
    py_compile.compile(f, cfile=t, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)\n\
    print(c, t)";

/// Adds interpreter and package to a guest: `python3 -c 'import pynvml'` works there.
pub fn add(archive: &mut Archive) -> Result<()> {
    let package = ready()?;
    let real = std::fs::canonicalize(PYTHON).context("no python3")?;
    archive.file("usr/bin/python3", 0o755, &real)?;
    libraries(archive, Arch::Amd64, &real)?;
    let mut list = Command::new(PYTHON);
    list.args(["-B", "-S", "-c", LIST]).env("PYTHONPATH", &package).env_remove("PYTHONHOME").current_dir("/");
    let listed = output(&mut list).context("this machine's python3 cannot import pynvml")?;
    for file in listed.lines() {
        archive.file(&in_guest(file, &package), 0o755, Path::new(file))?;
        if file.ends_with(".so") {
            libraries(archive, Arch::Amd64, Path::new(file))?;
        }
    }
    let sources = listed.lines().filter(|file| file.ends_with(".py")).collect::<BTreeSet<_>>();
    compiled(archive, sources, &package)
}

/// Adds compiled modules: emulated, compiling them would take seconds at each import.
fn compiled(archive: &mut Archive, sources: BTreeSet<&str>, package: &Path) -> Result<()> {
    let out = paths::target("guest/python")?;
    let mut compile = Command::new(PYTHON);
    compile.args(["-B", "-S", "-c", COMPILE]).arg(&out).args(sources).env_remove("PYTHONPYCACHEPREFIX");
    for line in output(&mut compile).context("this machine's python3 cannot compile what it imports")?.lines() {
        let (name, file) = line.split_once(' ').with_context(|| format!("{line} names no two files"))?;
        archive.file(&in_guest(name, package), 0o644, Path::new(file))?;
    }
    Ok(())
}

/// The path of a file in a guest: the interpreter's files as here, the package's below usr/lib/pynvml.
fn in_guest(file: &str, package: &Path) -> String {
    let packaged = Path::new(file).strip_prefix(package).ok();
    packaged
        .map_or_else(|| file.trim_start_matches('/').to_owned(), |name| format!("usr/lib/pynvml/{}", name.display()))
}

fn ready() -> Result<PathBuf> {
    let pin = include_str!("../pynvml.txt");
    let version = pin.split(['=', ' ']).nth(2).context("pynvml.txt pins no version")?;
    pinned(&paths::cache("pynvml")?.join(version), &format!("pynvml {version}"), pin)
}
