//! Puts the module's sources into the executable, so that a node needs only its own gcc, make and headers.
//!
//! `MPU_KMOD_DIR` names a directory with the input of kbuild: `Kbuild`, the C files, and the core as `mpu_core.o_shipped`. Without
//! it the executable carries no sources, and reports that when it has to build the module.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-env-changed=MPU_KMOD_DIR");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("kmod_files.rs");
    let files = match env::var_os("MPU_KMOD_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => sources(Path::new(&dir)),
        None => Vec::new(),
    };
    let rows: String = files.iter().map(|path| row(path)).collect();
    fs::write(&out, format!("&[\n{rows}]\n")).unwrap_or_else(|e| panic!("cannot write {}: {e}", out.display()));
}

fn row(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    format!("    ({name:?}, include_bytes!({:?}).as_slice()),\n", path.display().to_string())
}

/// The source files, in order of name. Fails if one of the two required files is missing.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let dir = fs::canonicalize(dir).unwrap_or_else(|e| panic!("MPU_KMOD_DIR={}: {e}", dir.display()));
    println!("cargo::rerun-if-changed={}", dir.display());
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("MPU_KMOD_DIR={}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| is_source(path)).collect();
    files.sort();
    for required in ["Kbuild", "mpu_core.o_shipped"] {
        assert!(files.contains(&dir.join(required)), "MPU_KMOD_DIR={} has no {required}", dir.display());
    }
    for file in &files {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    files
}

// The same rule as `sources::is_source`, which a build script cannot call.
fn is_source(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let generated = name.ends_with(".mod.c") || name.starts_with('.') || name == "mpu_probes.h";
    let kind = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    let by_name = matches!(name.as_str(), "Kbuild" | "Makefile" | "VERSION");
    path.is_file() && !generated && (by_name || matches!(kind, "c" | "h" | "S" | "sh" | "o_shipped"))
}
