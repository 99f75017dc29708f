//! Installing MPU on this host, upgrading and removing it: all of a change, or none of it.
//!
//! Owns what an installation is ([`layout`]), the order of the steps ([`plan`]), and undoing them ([`journal`]). How an
//! engine is raised is the engines' business; what a package's own scripts do, the package manager's.

pub mod journal;
pub mod layout;
pub mod plan;
pub mod work;

use layout::Layout;
use mpu_engine::error::EngineError;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use mpu_os::lock::Held;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::PathBuf;

/// Where an installation says what it consists of.
pub const RECORD: &str = "/var/lib/mpu/install.json";

/// What was installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The version.
    pub version: String,
    /// Where to.
    pub layout: Layout,
    /// Its files, and the checksum of each as it was written.
    pub files: Vec<Installed>,
    /// Directories that were made for them, outermost first.
    pub directories: Vec<PathBuf>,
    /// Whether DKMS builds the module.
    pub dkms: bool,
    /// Whether systemd starts it at boot.
    pub service: bool,
}

/// One file of an installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// Where.
    pub path: PathBuf,
    /// SHA-256 of what was written, in hexadecimal.
    pub sha256: String,
}

impl Record {
    /// The host's, if MPU was installed by hand.
    pub fn read(host: &Host) -> Option<Record> {
        host.text(RECORD).and_then(|text| serde_json::from_str(&text).ok())
    }
}

/// Why nothing was installed, upgraded or removed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it, and the fields are what they name
pub enum InstallError {
    #[error("MPU is installed on this host as a package ({manager})")]
    Packaged { manager: &'static str, command: String },
    #[error("MPU is not installed here by `mpu install`")]
    NotInstalled,
    #[error("MPU {installed} is installed, and this is mpu {this}")]
    Newer { installed: String, this: &'static str },
    #[error("this needs root")]
    NotRoot,
    #[error("{} is not the root of the running host", root.display())]
    OtherRoot { root: PathBuf },
    #[error("cannot read this executable")]
    Executable { source: io::Error },
    #[error("cannot keep a record of the changes in {}", path.display())]
    Journal { path: PathBuf, source: io::Error },
    #[error("another process changes this host's installation now: {} is held by {}", .0.path.display(), .0.by)]
    Running(Held),
    #[error("an installation that was broken off cannot be undone: {}", left.join("; "))]
    NotRestored { path: PathBuf, left: Vec<String>, is_kept: bool },
    #[error("{} has a change that this mpu cannot undo: another version wrote it", path.display())]
    Unknown { path: PathBuf, source: serde_json::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("there is no {name} on this host")]
    NoTool { name: String },
    #[error("cannot run `{command}`")]
    Run { command: String, source: io::Error },
    #[error("`{command}` failed ({status}): {said}")]
    Failed { command: String, status: String, said: String },
    #[error("{step} failed and was undone: {reason}{}", not_undone(left))]
    RolledBack { step: String, reason: String, left: Vec<String>, fix: String },
    #[error(transparent)]
    Engine(EngineError),
}

impl<E> From<E> for InstallError
where
    EngineError: From<E>,
{
    fn from(error: E) -> InstallError {
        InstallError::Engine(error.into())
    }
}

fn not_undone(left: &[String]) -> String {
    if left.is_empty() {
        "; the host is as it was".to_string()
    } else {
        format!("; what could not be undone: {}", left.join("; "))
    }
}

impl Explain for InstallError {
    fn code(&self) -> &'static str {
        match self {
            InstallError::Packaged { .. } => "is_a_package",
            InstallError::NotInstalled => "not_installed",
            InstallError::Newer { .. } => "newer_installed",
            InstallError::NotRoot => "not_root",
            InstallError::OtherRoot { .. } => "other_root",
            InstallError::Executable { .. } => "executable_unreadable",
            InstallError::Journal { .. } => "journal_unwritable",
            InstallError::Running(held) => held.code(),
            InstallError::NotRestored { .. } => "not_restored",
            InstallError::Unknown { .. } => "unknown_change",
            InstallError::Write { .. } => "file_unwritable",
            InstallError::NoTool { .. } => "no_tool",
            InstallError::Run { .. } | InstallError::Failed { .. } => "step_failed",
            InstallError::RolledBack { .. } => "rolled_back",
            InstallError::Engine(error) => error.code(),
        }
    }

    fn exit(&self) -> Exit {
        match self {
            InstallError::NotRoot | InstallError::OtherRoot { .. } | InstallError::Packaged { .. } => Exit::Refused,
            InstallError::NotInstalled => Exit::NotReady,
            InstallError::Engine(error) => error.exit(),
            _ => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            InstallError::Packaged { command, .. } => format!("let the package manager do it: `{command}`"),
            InstallError::NotInstalled => "`sudo mpu install` installs it".to_string(),
            InstallError::Newer { .. } => "run the newer mpu; to go back, run `mpu uninstall` first".to_string(),
            InstallError::NotRoot => "run it with sudo; --dry-run shows what it would do".to_string(),
            InstallError::OtherRoot { .. } => "run it without --host-root, or with --dry-run".to_string(),
            InstallError::Executable { .. } => "start mpu from a file that still exists".to_string(),
            InstallError::Journal { .. } | InstallError::Write { .. } => {
                "free disk space, or make the directory writable; nothing is left half done".to_string()
            }
            InstallError::Running(held) => held.fix(),
            InstallError::NotRestored { path, is_kept: true, .. } => format!(
                "free disk space, make these files writable or move away what is in their place, and try again; {} has their \
                 bytes until then, and to do without them, remove it",
                path.display()
            ),
            InstallError::NotRestored { .. } => {
                "look at these files, and put them back from elsewhere if they are wrong; then try again".to_string()
            }
            InstallError::Unknown { path, .. } => format!(
                "run the version of mpu that was broken off; to do without undoing, remove {}",
                path.parent().unwrap_or(path).display()
            ),
            InstallError::NoTool { name } => format!("install the package that has {name}"),
            InstallError::Run { .. } | InstallError::Failed { .. } => {
                "run the command by hand to see its whole output".to_string()
            }
            InstallError::RolledBack { fix, .. } => fix.clone(),
            InstallError::Engine(error) => error.fix(),
        }
    }
}

/// MPU as a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Who manages it: dpkg or rpm.
    pub manager: &'static str,
    /// The command that upgrades it.
    pub upgrade: String,
    /// The command that removes it.
    pub remove: String,
}

/// The package that MPU is on this host, if it is one.
pub fn package(host: &Host) -> Option<Package> {
    let is_there = |sign: &str| host.text(sign).is_some();
    // rpm's database is not for reading; a licence lies here only if an RPM brought it.
    let (manager, name) = match is_there("/var/lib/dpkg/info/mpu.list") {
        true => ("dpkg", "mpu"),
        false if !is_there("/usr/share/licenses/mpu/LICENSE") => return None,
        false if has_dkms_sources(host) => ("rpm", "mpu"),
        false => ("rpm", "mpu-nodkms"),
    };
    let by_hand = || (format!("{manager} -i FILE"), format!("{manager} --remove {name}"));
    let (upgrade, remove) = host.package_hints(name).unwrap_or_else(by_hand);
    Some(Package { manager, upgrade, remove })
}

fn has_dkms_sources(host: &Host) -> bool {
    let folders = fs::read_dir(host.at("/usr/src")).into_iter().flatten().flatten();
    let ours = |folder: &fs::DirEntry| folder.file_name().to_string_lossy().starts_with("mpu-");
    folders.filter(ours).any(|folder| folder.path().join("dkms.conf").is_file())
}
