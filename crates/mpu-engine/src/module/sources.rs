//! What the module is made from: sources carried in this executable, a directory of them, or a module that somebody
//! built already.
//!
//! Owns the list of files and its fingerprint. Compiles nothing and loads nothing.

use super::elf;
use crate::signing;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The sources that this executable carries; empty when it was built without any.
const CARRIED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/kmod_files.rs"));

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("this mpu was built without the kernel module's sources")]
    NotCarried,
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
    fn code(&self) -> &'static str {
        match self {
            SourceError::NotCarried => "no_sources",
            SourceError::Directory { .. } => "sources_unreadable",
            SourceError::Incomplete { .. } => "sources_incomplete",
            SourceError::Module { .. } => "module_unreadable",
            SourceError::NotOurModule { .. } => "not_our_module",
            SourceError::OtherKernel { .. } => "other_kernel",
            SourceError::OtherProcessor { .. } => "other_processor",
            SourceError::CutShort { .. } => "module_cut_short",
        }
    }

    fn exit(&self) -> Exit {
        Exit::NotReady
    }

    fn fix(&self) -> String {
        match self {
            SourceError::NotCarried => {
                "use a released mpu, or name sources with --source DIR or a built module with --module FILE.ko"
            }
            SourceError::Directory { .. } | SourceError::Incomplete { .. } => {
                "name the directory that holds Kbuild and mpu_core.o_shipped"
            }
            SourceError::Module { .. } => "name a file that exists and that you may read",
            SourceError::NotOurModule { .. } => {
                "name the mpu.ko that `mpu up --build-only` builds; one that is packed ends in .xz, .zst or .gz"
            }
            SourceError::OtherKernel { .. } | SourceError::OtherProcessor { .. } => {
                "run it without --module, so that a module is built for this kernel"
            }
            SourceError::CutShort { .. } => "copy the file again",
        }
        .to_string()
    }
}

/// A set of source files, in order of name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    pub files: Vec<(String, Vec<u8>)>,
}

const MUST: [&str; 2] = ["Kbuild", "mpu_core.o_shipped"];

impl Sources {
    pub fn carried() -> Result<Sources, SourceError> {
        if CARRIED.is_empty() {
            return Err(SourceError::NotCarried);
        }
        Ok(Sources { files: CARRIED.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect() })
    }

    /// Those in a directory: every plain file but the results of an earlier build.
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
        match MUST.iter().find(|must| !files.iter().any(|(name, _)| name == *must)) {
            Some(missing) => Err(SourceError::Incomplete { path: path.to_path_buf(), missing }),
            None => Ok(Sources { files }),
        }
    }

    /// A fingerprint of these sources together with what else decides the result of a build.
    pub fn key(&self, with: &[&[u8]]) -> String {
        let mut hash = Sha256::new();
        let parts = self.files.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes.as_slice()]);
        for part in parts.chain(with.iter().copied()) {
            // The length first, so that no two lists of parts look alike.
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
    /// Where it is. It may be packed.
    pub path: PathBuf,
    pub signed: bool,
}

/// Looks into a module of that name before the kernel does, whose only word for most mistakes is EINVAL. `arch` is the processor, by
/// Rust's name.
pub fn inspect(path: &Path, name: &str, release: &str, arch: &'static str) -> Result<Built, SourceError> {
    let bytes = fs::read(path).map_err(|source| SourceError::Module { path: path.to_path_buf(), source })?;
    look(&bytes, path, name, release, arch)
}

/// The same for bytes that were read already; the path is what they are called.
pub fn look(bytes: &[u8], path: &Path, name: &str, release: &str, arch: &'static str) -> Result<Built, SourceError> {
    let path = || path.to_path_buf();
    let Some(header) = elf::header(bytes) else { return Err(SourceError::NotOurModule { path: path() }) };
    let is_ours = modinfo(bytes, "name").as_deref() == Some(name) && !is_foreign(bytes);
    let vermagic = modinfo(bytes, "vermagic").filter(|_| is_ours);
    match vermagic {
        _ if !header.whole => Err(SourceError::CutShort { path: path() }),
        None => Err(SourceError::NotOurModule { path: path() }),
        _ if header.arch() != Some(arch) => Err(SourceError::OtherProcessor { path: path(), arch }),
        Some(vermagic) => {
            let found = vermagic.split_whitespace().next().unwrap_or("").to_string();
            if found != release {
                return Err(SourceError::OtherKernel { path: path(), found, running: release.to_string() });
            }
            Ok(Built { path: path(), signed: signing::carries_signature(bytes) })
        }
    }
}

/// Whether a module's bytes are another project's. Every release of ours names its author (kmod/mpu_main.c).
pub fn is_foreign(bytes: &[u8]) -> bool {
    modinfo(bytes, "author").as_deref() != Some("The MPU authors")
}

pub fn is_this_version(path: &Path) -> bool {
    fs::read(path).is_ok_and(|bytes| is_of_this_version(&bytes))
}

pub fn is_of_this_version(bytes: &[u8]) -> bool {
    // Other strings of the module begin so, too; only its own information is followed by nothing else.
    let wanted = concat!("version=", env!("CARGO_PKG_VERSION")).as_bytes();
    bytes.split(|byte| *byte == 0).any(|text| text == wanted)
}

pub fn version(path: &Path) -> Option<String> {
    version_in(&fs::read(path).ok()?)
}

pub fn version_in(bytes: &[u8]) -> Option<String> {
    modinfo(bytes, "version")
}

/// What a module says of the kernel that it was built for.
pub fn vermagic(path: &Path) -> Option<String> {
    modinfo(&fs::read(path).ok()?, "vermagic").map(|text| text.trim().to_string())
}

/// A value of the module's information section: `key=value`, with a zero byte on either side.
fn modinfo(bytes: &[u8], key: &str) -> Option<String> {
    let wanted = format!("{key}=");
    bytes
        .split(|byte| *byte == 0)
        .find_map(|text| text.strip_prefix(wanted.as_bytes()))
        .map(|value| String::from_utf8_lossy(value).into_owned())
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! Made-up sources and modules for the tests of this crate.

    /// The bytes of a module that looks like ours for a kernel.
    pub fn module(release: &str) -> Vec<u8> {
        module_named("mpu", release)
    }

    pub fn module_named(name: &str, release: &str) -> Vec<u8> {
        let mut bytes = super::elf::fake::header(std::env::consts::ARCH);
        bytes.extend_from_slice(format!("\0license=GPL\0author=The MPU authors\0name={name}\0vermagic=").as_bytes());
        bytes.extend_from_slice(release.as_bytes());
        bytes.extend_from_slice(b" SMP preempt mod_unload modversions \0");
        bytes
    }

    /// A directory with the least that is a set of sources.
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
    fn a_directory_gives_its_sources_and_nothing_built() {
        let dir = fake::directory();
        for name in ["mpu.ko", "mpu.mod.c", ".mpu.o.cmd", "mpu_probes.h", "notes.txt"] {
            fs::write(dir.path().join(name), "x").expect("a file");
        }
        let sources = Sources::in_directory(dir.path()).expect("sources");
        let names: Vec<&str> = sources.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["Kbuild", "VERSION", "mpu_core.o_shipped", "mpu_main.c", "mpu_probes.sh"]);
    }

    #[test]
    fn a_directory_without_the_object_says_so() {
        let dir = fake::directory();
        fs::remove_file(dir.path().join("mpu_core.o_shipped")).expect("removed");
        let error = Sources::in_directory(dir.path()).expect_err("incomplete");
        assert!(error.to_string().ends_with("no mpu_core.o_shipped"), "{error}");
        let error = Sources::in_directory(Path::new("/nonexistent")).expect_err("nothing there");
        assert_eq!((error.code(), error.exit()), ("sources_unreadable", Exit::NotReady));
    }

    #[test]
    fn every_difference_changes_the_key() {
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
    fn modules_are_told_apart_before_the_kernel_sees_them() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("mpu.ko");
        let check_at = |path: &Path| {
            inspect(path, "mpu", "6.1.0", std::env::consts::ARCH).map(|built| built.signed).map_err(|e| e.code())
        };
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("a file");
            check_at(&path)
        };
        assert_eq!(check(&fake::module("6.1.0")), Ok(false));
        let signed = [fake::module("6.1.0").as_slice(), b"sig~Module signature appended~\n"].concat();
        assert_eq!(check(&signed), Ok(true));
        assert_eq!(check(&fake::module("6.1.1")), Err("other_kernel"));
        let other = super::elf::fake::header("riscv64");
        let named = |header: Vec<u8>, rest: &[u8]| [header.as_slice(), rest].concat();
        assert_eq!(check(&named(other.clone(), b"\0name=other\0vermagic=6.1.0 SMP\0")), Err("not_our_module"));
        assert_eq!(
            check(&named(other, b"\0author=The MPU authors\0name=mpu\0vermagic=6.1.0 SMP\0")),
            Err("other_processor")
        );
        let mut cut = fake::module("6.1.0");
        cut[41] = 255;
        assert_eq!(check(&cut), Err("module_cut_short"));
        assert_eq!(check(b"\xfd7zXZ"), Err("not_our_module"));
        fs::remove_file(&path).expect("removed");
        assert_eq!(check_at(&path), Err("module_unreadable"));
    }
}
