//! Modules that were built elsewhere and brought to this node: `<folder>/<kernel release>/mpu.ko`, perhaps packed, with
//! `mpu_next.ko` beside it (docs/prebuilt.md).
//!
//! Owns the folders, whom a file there is believed from, and why one is passed over. Whoever can change such a file, or put another in
//! its place, is as good as root: so only root may.

use super::build::NEXT;
use super::packed::{self, PACKINGS};
use super::sources::{self, Built, SourceError};
use mpu_host::explain::causes;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where they lie: the host's own folder first, then where images of modules have them.
pub const FOLDERS: [&str; 2] = ["/usr/lib/mpu/modules", "/opt/lib/modules"];

/// A file that is there and is not used.
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

/// What was found for a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Found {
    /// The first that can be used.
    pub taken: Option<Built>,
    /// Those before it that cannot.
    pub passed_over: Vec<PassedOver>,
}

/// Looks for one. What `wants` says against a module passes it over, too.
pub fn find(host: &Host, release: &str, wants: impl Fn(&Built) -> Result<(), String>) -> Found {
    let mut found = Found::default();
    // A release is one name: it leads to no other folder.
    if release.contains('/') || release.starts_with('.') {
        return found;
    }
    for folder in FOLDERS {
        for (ending, tool) in PACKINGS {
            let path = host.at(folder).join(release).join(format!("mpu.ko{ending}"));
            if fs::symlink_metadata(&path).is_err() {
                continue;
            }
            let looked = usable(host, &host.at(folder), &path, release, tool);
            match looked.and_then(|built| wants(&built).map(|()| built)) {
                Ok(built) => return Found { taken: Some(built), ..found },
                Err(why) => found.passed_over.push(PassedOver { path, why }),
            }
        }
    }
    found
}

fn usable(host: &Host, folder: &Path, path: &Path, release: &str, tool: Option<&str>) -> Result<Built, String> {
    trusted(host, folder, path)?;
    let ending = path.file_name().unwrap_or_default().to_string_lossy().replacen("mpu.ko", "", 1);
    let twin = path.with_file_name(format!("{NEXT}{ending}"));
    if fs::symlink_metadata(&twin).is_ok() {
        trusted(host, folder, &twin).map_err(|why| format!("has a {} beside it that {why}", name_of(&twin)))?;
    }
    let plain = packed::plain(host, release, path.to_path_buf(), tool, "prebuilt")?;
    let built = sources::inspect(&plain, release).map_err(|error| about(&error))?;
    let twin = plain.with_file_name(NEXT);
    for file in [Some(&plain), Some(&twin).filter(|twin| twin.is_file())].into_iter().flatten() {
        if !sources::is_this_version(file) {
            let version = sources::version(file).unwrap_or_else(|| "none".to_string());
            return Err(format!("is of MPU {version}, and this is mpu {}", env!("CARGO_PKG_VERSION")));
        }
    }
    if twin.is_file() {
        let looked = sources::inspect_for(&twin, "mpu_next", release, std::env::consts::ARCH);
        looked.map_err(|error| format!("has a {NEXT} beside it that {}", about(&error)))?;
    }
    Ok(built)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Sees that a file is a plain one, that no link leads out of the folder to it, and that root alone can change it or any folder that it
/// is in.
fn trusted(host: &Host, folder: &Path, path: &Path) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("cannot be looked at: {error}");
    let real = fs::canonicalize(path).map_err(cannot)?;
    let folder = fs::canonicalize(folder).map_err(cannot)?;
    if !real.starts_with(&folder) {
        return Err(format!("is a link that leads out of the folder, to {}", real.display()));
    }
    if !fs::metadata(&real).map_err(cannot)?.is_file() {
        return Err("is not a plain file".to_string());
    }
    let root = fs::canonicalize(host.at("/")).map_err(cannot)?;
    // Another root belongs to whoever it belongs to.
    let owner = if host.is_this() { 0 } else { fs::metadata(&root).map_err(cannot)?.uid() };
    for part in real.ancestors().take_while(|part| part.starts_with(&root)) {
        let facts = fs::metadata(part).map_err(cannot)?;
        let what = if part == real { "it".to_string() } else { part.display().to_string() };
        if facts.uid() != owner {
            return Err(format!("is not root's alone: {what} belongs to user {}", facts.uid()));
        }
        if facts.mode() & 0o022 != 0 {
            return Err(format!("is not root's alone: others can write to {what} (mode {:o})", facts.mode() & 0o7777));
        }
    }
    Ok(())
}

/// What is wrong with a module, as half a sentence about its file.
fn about(error: &SourceError) -> String {
    match error {
        SourceError::OtherKernel { found, .. } => format!("was built for kernel {found}"),
        SourceError::OtherProcessor { arch, .. } => format!("was built for another processor than {arch}"),
        SourceError::NotOurModule { .. } => "is no kernel module named mpu".to_string(),
        SourceError::CutShort { .. } => "is cut short".to_string(),
        other => format!("cannot be read: {}", causes(other).last().map_or(other.to_string(), ToString::to_string)),
    }
}

/// What makes one that this kernel takes: the command, for where the kernel's headers are.
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
    //! Made-up prebuilt modules for tests.

    use super::super::sources::fake::module_named;
    use mpu_host::host::fake::FakeHost;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A module of a version for a kernel, and its twin, as root would put them there.
    pub fn put(fake: &FakeHost, folder: &str, of_kernel: &str, for_kernel: &str, version: &str) {
        for name in ["mpu", "mpu_next"] {
            let path = format!("{folder}/{of_kernel}/{name}.ko");
            let mut bytes = module_named(name, for_kernel);
            bytes.extend_from_slice(format!("version={version}\0").as_bytes());
            fake.write(&path, "");
            fs::write(fake.host().at(&path), bytes).expect("a module");
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
