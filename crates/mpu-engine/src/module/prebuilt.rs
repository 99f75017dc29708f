//! Finds modules that are already built: installed by DKMS, or built elsewhere and brought to this node as
//! `<folder>/<kernel release>/mpu.ko` (docs/prebuilt.md). A user who can change such a file can become root, so only root may be able
//! to (`trust`).

use super::build::NEXT;
use super::compression::{self, COMPRESSIONS};
use super::sources::{self, Built, PassedOver, SourceError};
use super::trust;
use mpu_host::explain::causes;
use mpu_host::host::Host;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The folders: the host's own first, then the one of module images.
pub const FOLDERS: [&str; 2] = ["/usr/lib/mpu/modules", "/opt/lib/modules"];

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SearchResult {
    pub usable: Option<Built>,
    pub passed_over: Vec<PassedOver>,
}

/// Folders below `/lib/modules/<release>` where DKMS puts modules: Debian's and Ubuntu's, the common one, SUSE's and Fedora's, and the
/// one for manual installation.
pub(super) const INSTALLED: [&str; 4] = ["updates/dkms", "updates", "extra", "extra/dkms"];

/// Looks for a module that was built elsewhere. `check` may pass a module over.
pub fn find(host: &Host, release: &str, check: impl Fn(&Built) -> Result<(), String>) -> SearchResult {
    // A release is one path component: it must not lead to another folder.
    if release.contains('/') || release.starts_with('.') {
        return SearchResult::default();
    }
    let files = FOLDERS.iter().flat_map(|folder| module_file_names(&host.at(folder).join(release)));
    search(files.filter(|path| fs::symlink_metadata(path).is_ok()), |path| {
        let folder = path.ancestors().nth(2).unwrap_or(path);
        usable(host, folder, path, release).and_then(|built| check(&built).map(|()| built))
    })
}

/// Looks for a module of this version among the kernel's modules, from DKMS or a person.
pub fn find_installed(host: &Host, release: &str) -> SearchResult {
    let folders = INSTALLED.iter().map(|folder| host.at("/lib/modules").join(release).join(folder));
    search(folders.flat_map(|folder| module_file_names(&folder)).filter(|path| path.is_file()), |path| {
        let file = File::open(path).map_err(|error| compression::describe_read_error(&error))?;
        let bytes = compression::read_module(host, file, compression::compression_of(path).1)?;
        let built = sources::check_module(&bytes, path, "mpu", release, std::env::consts::ARCH);
        let built = built.map_err(|error| describe_fault(&error))?;
        check_version(&bytes).map(|()| built)
    })
}

/// The first usable file, and the unusable ones before it.
fn search(files: impl Iterator<Item = PathBuf>, usable: impl Fn(&Path) -> Result<Built, String>) -> SearchResult {
    let mut found = SearchResult::default();
    for path in files {
        match usable(&path) {
            Ok(built) => return SearchResult { usable: Some(built), ..found },
            Err(why) => found.passed_over.push(PassedOver { path, why }),
        }
    }
    found
}

/// The file names of the module in a folder, packed or not.
pub(super) fn module_file_names(folder: &Path) -> [PathBuf; 4] {
    COMPRESSIONS.map(|(ending, _)| folder.join(format!("mpu.ko{ending}")))
}

fn usable(host: &Host, folder: &Path, path: &Path, release: &str) -> Result<Built, String> {
    let real = trust::resolve(host, folder, path)?;
    let (ending, tool) = compression::compression_of(path);
    if compression::compression_of(&real).0 != ending {
        return Err(format!("is a link to a file that ends otherwise, {}", real.display()));
    }
    let read = |path: &Path| {
        let file = trust::open(path).map_err(|error| compression::describe_read_error(&error))?;
        compression::read_module(host, file, tool)
    };
    // Beside the real file, where loading looks for it.
    let twin = real.with_file_name(format!("{NEXT}{ending}"));
    let twin_fault = |why: String| format!("has a {NEXT}{ending} beside it that {why}");
    let twin = match fs::symlink_metadata(&twin) {
        Ok(_) => Some(trust::resolve(host, folder, &twin).and_then(|twin| read(&twin)).map_err(twin_fault)?),
        Err(_) => None,
    };
    let bytes = read(&real)?;
    let check = |bytes: &[u8], name| sources::check_module(bytes, &real, name, release, std::env::consts::ARCH);
    let built = check(&bytes, "mpu").map_err(|error| describe_fault(&error))?;
    for bytes in [Some(&bytes), twin.as_ref()].into_iter().flatten() {
        check_version(bytes)?;
    }
    if let Some(twin) = twin {
        check(&twin, "mpu_next").map_err(|error| twin_fault(describe_fault(&error)))?;
    }
    Ok(built)
}

fn check_version(bytes: &[u8]) -> Result<(), String> {
    let this = env!("CARGO_PKG_VERSION");
    match sources::modinfo(bytes, "version").unwrap_or_else(|| "none".to_string()) {
        version if version == this => Ok(()),
        version => Err(format!("is of MPU {version}, and this is mpu {this}")),
    }
}

/// The fault of a module, as half a sentence about its file.
fn describe_fault(error: &SourceError) -> String {
    match error {
        SourceError::OtherKernel { found, .. } => format!("was built for kernel {found}"),
        SourceError::OtherProcessor { arch, .. } => format!("was built for another processor than {arch}"),
        SourceError::NotOurModule { .. } => "is no kernel module of MPU".to_string(),
        SourceError::CutShort { .. } => "is cut short".to_string(),
        other => format!("cannot be read: {}", causes(other).last().map_or(other.to_string(), ToString::to_string)),
    }
}

/// The command that makes a module for this kernel, on a machine with its headers.
pub fn advice(release: &str, signed: bool) -> String {
    let signing = if signed { " --sign-key KEY --sign-cert CERT" } else { "" };
    format!(
        "mpu build --for {release} --headers DIR{signing} --out modules   # on a machine with that kernel's headers; \
         then copy modules/{release} to {} on this host",
        FOLDERS[0]
    )
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! Fake prebuilt modules.

    use super::super::sources::fake::module_of;
    use mpu_host::host::fake::FakeHost;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Puts a module of a version for a kernel, and its twin, as root would.
    pub fn put(fake: &FakeHost, folder: &str, of_kernel: &str, for_kernel: &str, version: &str) {
        for name in ["mpu", "mpu_next"] {
            let path = format!("{folder}/{of_kernel}/{name}.ko");
            fake.write(&path, "");
            fs::write(fake.host().at(&path), module_of(name, for_kernel, version)).expect("a module");
        }
        let root = fake.host().at("/");
        let file = fake.host().at(format!("{folder}/{of_kernel}/mpu.ko"));
        for part in file.ancestors().skip(1).take_while(|part| *part != root) {
            fs::set_permissions(part, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        for name in ["mpu", "mpu_next"] {
            let file = file.with_file_name(format!("{name}.ko"));
            fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("a mode");
        }
    }
}

#[cfg(test)]
mod tests;
