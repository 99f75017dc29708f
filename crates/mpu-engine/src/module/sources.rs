//! The module's sources, in this executable or in a directory, and checks of modules that are already built.

use super::elf::Elf;
use crate::signing;
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The sources in this executable; empty if it was built without.
const EMBEDDED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/kmod_files.rs"));

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("this mpu was built without the kernel module's sources")]
    NotEmbedded,
    #[error("cannot read the module's sources in {}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("{} holds no module sources: no {missing}", path.display())]
    Incomplete { path: PathBuf, missing: &'static str },
    #[error("cannot read the module {}", path.display())]
    Module { path: PathBuf, source: io::Error },
    #[error("{} is no kernel module of MPU", path.display())]
    NotOurModule { path: PathBuf },
    #[error("{} was built for kernel {found}, but {running} is running", path.display())]
    OtherKernel { path: PathBuf, found: String, running: String },
    #[error("{} was built for another processor than {arch}", path.display())]
    OtherProcessor { path: PathBuf, arch: &'static str },
    #[error("{} is cut short", path.display())]
    CutShort { path: PathBuf },
}

impl Explain for SourceError {
    fn facts(&self) -> Facts {
        const NAME_SOURCES: &str = "name the directory that holds Kbuild and mpu_core.o_shipped";
        const LET_BUILD: &str = "run it without --module, so that a module is built for this kernel";
        let (code, fix) = match self {
            SourceError::NotEmbedded => (
                "no_sources",
                "use a released mpu, or name sources with --source DIR; `mpu up` also has --module FILE.ko",
            ),
            SourceError::Directory { .. } => ("sources_unreadable", NAME_SOURCES),
            SourceError::Incomplete { .. } => ("sources_incomplete", NAME_SOURCES),
            SourceError::Module { .. } => ("module_unreadable", "name a file that exists and that you may read"),
            SourceError::NotOurModule { .. } => (
                "not_our_module",
                "name the mpu.ko that `mpu up --build-only` builds; one that is packed ends in .xz, .zst or .gz",
            ),
            SourceError::OtherKernel { .. } => ("other_kernel", LET_BUILD),
            SourceError::OtherProcessor { .. } => ("other_processor", LET_BUILD),
            SourceError::CutShort { .. } => ("module_cut_short", "copy the file again"),
        };
        (code, Exit::NotReady, fix.to_string())
    }
}

/// A set of source files, in order of name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    pub files: Vec<(String, Vec<u8>)>,
}

const REQUIRED: [&str; 2] = ["Kbuild", "mpu_core.o_shipped"];

impl Sources {
    pub fn embedded() -> Result<Sources, SourceError> {
        if EMBEDDED.is_empty() {
            return Err(SourceError::NotEmbedded);
        }
        Ok(Sources { files: EMBEDDED.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect() })
    }

    /// The sources in a directory: all regular files, without results of an earlier build.
    pub fn in_directory(path: &Path) -> Result<Sources, SourceError> {
        let unreadable = |source| SourceError::Directory { path: path.to_path_buf(), source };
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_source(&name) && entry.path().is_file() {
                files.push((name, fs::read(entry.path()).map_err(unreadable)?));
            }
        }
        files.sort();
        match REQUIRED.iter().find(|required| !files.iter().any(|(name, _)| name == *required)) {
            Some(missing) => Err(SourceError::Incomplete { path: path.to_path_buf(), missing }),
            None => Ok(Sources { files }),
        }
    }

    /// A fingerprint of these sources and the other inputs of a build.
    pub fn key(&self, with: &[&[u8]]) -> String {
        let mut hash = Sha256::new();
        let parts = self.files.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes.as_slice()]);
        for part in parts.chain(with.iter().copied()) {
            // With the length, so that no two lists of parts collide.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn is_source(name: &str) -> bool {
    let generated = name.ends_with(".mod.c") || name.starts_with('.') || name == "mpu_probes.h";
    let kind = Path::new(name).extension().and_then(|e| e.to_str()).unwrap_or("");
    let by_kind = matches!(kind, "c" | "h" | "S" | "sh" | "o_shipped");
    !generated && (matches!(name, "Kbuild" | "Makefile" | "VERSION") || by_kind)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// Its path. The file may be packed.
    pub path: PathBuf,
    pub signed: bool,
}

/// A module file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PassedOver {
    /// The file.
    pub path: PathBuf,
    /// Why, as half a sentence about the file.
    pub why: String,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path.display(), self.why)
    }
}

/// The list as half a sentence; empty if there is none.
pub fn in_words(passed_over: &[PassedOver]) -> String {
    passed_over.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Checks a module's bytes before loading, because the kernel answers EINVAL to most mistakes. `arch` is the processor by Rust's name,
/// `path` is for messages.
pub fn check_module(
    bytes: &[u8],
    path: &Path,
    name: &str,
    release: &str,
    arch: &'static str,
) -> Result<Built, SourceError> {
    let path = path.to_path_buf();
    let Some(elf) = Elf::parse(bytes) else { return Err(SourceError::NotOurModule { path }) };
    let is_ours = elf.info("name").as_deref() == Some(name) && !is_foreign(bytes);
    match elf.info("vermagic").filter(|_| is_ours) {
        _ if !elf.whole => Err(SourceError::CutShort { path }),
        None => Err(SourceError::NotOurModule { path }),
        _ if elf.arch() != Some(arch) => Err(SourceError::OtherProcessor { path, arch }),
        Some(vermagic) => match vermagic.split_whitespace().next().unwrap_or_default() {
            found if found == release => Ok(Built { path, signed: signing::has_signature(bytes) }),
            found => Err(SourceError::OtherKernel { path, found: found.to_string(), running: release.to_string() }),
        },
    }
}

/// Whether a module is another project's. All our releases name their author (kmod/mpu_main.c).
pub fn is_foreign(bytes: &[u8]) -> bool {
    modinfo(bytes, "author").as_deref() != Some("The MPU authors")
}

/// The value of a key in a module's `.modinfo`.
pub fn modinfo(bytes: &[u8], key: &str) -> Option<String> {
    Elf::parse(bytes)?.info(key)
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    /// The bytes of a fake module for a kernel.
    pub fn module(release: &str) -> Vec<u8> {
        module_of("mpu", release, "0.0.1")
    }

    /// The same with name and version.
    pub fn module_of(name: &str, release: &str, version: &str) -> Vec<u8> {
        let vermagic = format!("{release} SMP preempt mod_unload modversions ");
        let author = "The MPU authors";
        let modinfo = format!("version={version}\0license=GPL\0author={author}\0name={name}\0vermagic={vermagic}\0");
        super::super::elf::fake::object(std::env::consts::ARCH, &modinfo)
    }

    /// A directory with a minimal set of sources.
    pub fn directory() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in [
            ("Kbuild", "obj-m := mpu.o\n"),
            ("mpu_main.c", "int x;\n"),
            ("mpu_probes.sh", "exit 0\n"),
            ("mpu_core.o_shipped", "object"),
            ("VERSION", "0.1.0\n"),
        ] {
            std::fs::write(dir.path().join(name), text).expect("a file");
        }
        dir
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_directory_excludes_build_products() {
        let dir = fake::directory();
        for name in ["mpu.ko", "mpu.mod.c", ".mpu.o.cmd", "mpu_probes.h", "notes.txt"] {
            fs::write(dir.path().join(name), "x").expect("a file");
        }
        let sources = Sources::in_directory(dir.path()).expect("sources");
        let names: Vec<&str> = sources.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Kbuild", "VERSION", "mpu_core.o_shipped", "mpu_main.c", "mpu_probes.sh"]);
    }

    #[test]
    fn directory_without_object_is_incomplete() {
        let dir = fake::directory();
        fs::remove_file(dir.path().join("mpu_core.o_shipped")).expect("removed");
        let error = Sources::in_directory(dir.path()).expect_err("incomplete");
        assert!(error.to_string().ends_with("no mpu_core.o_shipped"), "{error}");
        let error = Sources::in_directory(Path::new("/nonexistent")).expect_err("nothing there");
        assert_eq!((error.code(), error.exit()), ("sources_unreadable", Exit::NotReady));
    }

    #[test]
    fn every_difference_changes_key() {
        let sources = Sources::in_directory(fake::directory().path()).expect("sources");
        let key = sources.key(&[b"6.1.0", b"CC=gcc"]);
        assert_eq!(key.len(), 64);
        assert_eq!(sources.key(&[b"6.1.0", b"CC=gcc"]), key);
        assert_ne!(sources.key(&[b"6.1.0C", b"C=gcc"]), key, "the same bytes, divided otherwise");
        let mut other = sources.clone();
        other.files[0].1.push(b'\n');
        assert_ne!(other.key(&[b"6.1.0", b"CC=gcc"]), key);
    }

    #[test]
    fn wrong_modules_are_rejected_before_loading() {
        use super::super::elf::fake::object;
        let check = |bytes: &[u8], expect: Result<bool, &str>| {
            let found = check_module(bytes, Path::new("mpu.ko"), "mpu", "6.1.0", std::env::consts::ARCH);
            assert_eq!(found.map(|built| built.signed).map_err(|error| error.code()), expect);
        };
        let module = fake::module("6.1.0");
        check(&module, Ok(false));
        check(&[&module, b"sig~Module signature appended~\n".as_slice()].concat(), Ok(true));
        check(&fake::module("6.1.1"), Err("other_kernel"));
        check(&object("riscv64", "name=other\0vermagic=6.1.0 SMP\0"), Err("not_our_module"));
        let other = object("riscv64", "author=The MPU authors\0name=mpu\0vermagic=6.1.0 SMP\0");
        check(&other, Err("other_processor"));
        check(&module[..module.len() - 1], Err("module_cut_short"));
        check(b"\xfd7zXZ", Err("not_our_module"));
    }
}
