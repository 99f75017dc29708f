//! Errors of the module engine: the sum of its parts' errors, and those that several parts share.

use super::checks::Unfit;
use super::load_error::LoadError;
use super::sources::{self, PassedOver, SourceError};
use super::state::StateError;
use crate::signing::SignError;
use mpu_host::config::UnknownDriver;
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts, chain};
use mpu_os::lock::HeldLock;
use std::io;
use std::path::PathBuf;

/// Why the module is not up, not down, or not configured.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// This host cannot run the engine, or must not.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The configuration forbids the driver's release.
    #[error(transparent)]
    UnknownDriver(#[from] UnknownDriver),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Sign(#[from] SignError),
    #[error(transparent)]
    Held(#[from] HeldLock),
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// A module for another kernel could not be built.
    #[error(transparent)]
    OtherKernel(#[from] OtherKernelError),
    #[error(transparent)]
    State(#[from] StateError),
    /// Any of these, after module files could not be used.
    #[error("{}; passed over: {}", chain(error), sources::in_words(passed_over))]
    After { error: Box<ModuleError>, passed_over: Vec<PassedOver> },
    /// Any of these, while another version was to be replaced.
    #[error("{}; {}", chain(error), running_version_note(now.as_deref()))]
    Replacing { error: Box<ModuleError>, now: Option<String> },
}

fn running_version_note(now: Option<&str>) -> String {
    now.map_or_else(|| "no engine is up now".to_string(), |version| format!("MPU {version} is up"))
}

impl ModuleError {
    pub fn after(self, passed_over: Vec<PassedOver>) -> ModuleError {
        match passed_over.is_empty() {
            true => self,
            false => ModuleError::After { error: Box::new(self), passed_over },
        }
    }

    /// The same error, while another version was to be replaced.
    pub fn replacing(self, now: Option<String>) -> ModuleError {
        ModuleError::Replacing { error: Box::new(self), now }
    }

    pub fn innermost(&self) -> &ModuleError {
        match self {
            ModuleError::After { error, .. } | ModuleError::Replacing { error, .. } => error.innermost(),
            error => error,
        }
    }
}

impl Explain for ModuleError {
    fn facts(&self) -> Facts {
        match self {
            ModuleError::Unfit(e) => e.facts(),
            ModuleError::UnknownDriver(e) => e.facts(),
            ModuleError::Source(e) => e.facts(),
            ModuleError::Build(e) => e.facts(),
            ModuleError::Load(e) => e.facts(),
            ModuleError::Sign(e) => e.facts(),
            ModuleError::Held(e) => e.facts(),
            ModuleError::Headers(e) => e.facts(),
            ModuleError::OtherKernel(e) => e.facts(),
            ModuleError::State(e) => e.facts(),
            ModuleError::After { error, .. } | ModuleError::Replacing { error, .. } => error.facts(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("cannot write to {}", path.display())]
    Store { path: PathBuf, source: io::Error },
    #[error("cannot run {}", make.display())]
    Make { make: PathBuf, source: io::Error },
    #[error("the module cannot be built for kernel {release}: {line}")]
    Failed { release: String, line: String, log: PathBuf },
    #[error("{} {why}", path.display())]
    Unpack { path: PathBuf, why: String },
}

impl Explain for BuildError {
    fn facts(&self) -> Facts {
        use Exit::{Failed, Refused};
        match self {
            BuildError::Store { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                ("store_unwritable", Refused, "run it as root".to_string())
            }
            BuildError::Store { .. } => {
                ("store_unwritable", Failed, "free disk space in /var/lib/mpu, or make it writable".to_string())
            }
            BuildError::Make { .. } => ("make_unusable", Failed, "reinstall make".to_string()),
            BuildError::Failed { log, .. } => {
                let newer = "if the kernel is newer than this mpu, update mpu; if it is too old, boot a newer one";
                ("build_failed", Failed, format!("read {}; {newer}", log.display()))
            }
            BuildError::Unpack { path, .. } => {
                let path = path.display();
                let fix = format!("put {path} there anew, or unpack it there, and install the tool that unpacks it");
                ("module_packed", Failed, fix)
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HeadersError {
    #[error("`{release}` is not the release of a kernel")]
    BadRelease { release: String },
    #[error("cannot read the folder {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} has no kernel headers: no Makefile and no usr/src", path.display())]
    NotHeaders { path: PathBuf, release: String },
    #[error("{} has the headers of kernel {found}, and a module for {release} was requested", path.display())]
    OtherRelease { path: PathBuf, found: String, release: String },
    #[error("the headers in {} are not prepared: no {missing}", path.display())]
    Unprepared { path: PathBuf, missing: &'static str },
    #[error("the headers in {} have a second part that is not there: {missing}", path.display())]
    MissingPart { path: PathBuf, missing: String },
    #[error("the headers in {} are for {found}, and {requested} was requested", path.display())]
    OtherArch { path: PathBuf, found: String, requested: String },
    #[error("the build tools of the headers do not run on this machine ({})", tool.display())]
    Tools { tool: PathBuf },
    #[error("make cannot work with {}: a path with a space or a colon", path.display())]
    PathUnusable { path: PathBuf },
}

impl Explain for HeadersError {
    fn facts(&self) -> Facts {
        use Exit::NotReady;
        let (code, exit, fix) = match self {
            HeadersError::BadRelease { .. } => ("bad_release", Exit::Usage, "name what `uname -r` prints on the node"),
            HeadersError::Unreadable { .. } => {
                ("headers_unreadable", NotReady, "name a folder that exists and that you may read")
            }
            HeadersError::NotHeaders { release, .. } => return ("not_headers", NotReady, unpack_hint(release)),
            HeadersError::OtherRelease { release, .. } => {
                return ("headers_of_another_kernel", NotReady, unpack_hint(release));
            }
            HeadersError::Unprepared { .. } => (
                "headers_unprepared",
                NotReady,
                "use the distribution's header package; in a source tree, run `make modules_prepare` after a full build",
            ),
            HeadersError::MissingPart { missing, .. } => {
                let fix = format!(
                    "unpack the package that has {missing} into the same folder (Debian: linux-headers-…-common and linux-kbuild-…)"
                );
                return ("headers_incomplete", NotReady, fix);
            }
            HeadersError::OtherArch { .. } => {
                ("headers_of_another_processor", NotReady, "name the headers for that processor, or omit --arch")
            }
            HeadersError::Tools { .. } => (
                "headers_tools",
                NotReady,
                "use a machine of the headers' processor; or, of Debian's headers, unpack linux-kbuild for this machine",
            ),
            HeadersError::PathUnusable { .. } => {
                ("path_unusable", NotReady, "use a folder without spaces and colons in its path")
            }
        };
        (code, exit, fix.to_string())
    }
}

fn unpack_hint(release: &str) -> String {
    format!(
        "unpack that kernel's header package into a folder (Debian: `dpkg -x linux-headers-{release}_….deb DIR`; RHEL: \
         kernel-devel-{release}, by rpm2cpio) and name the folder"
    )
}

#[derive(Debug, thiserror::Error)]
pub enum OtherKernelError {
    #[error("{} is there already", path.display())]
    Exists { path: PathBuf },
    #[error("cannot write to {}", path.display())]
    Out { path: PathBuf, source: io::Error },
    #[error("the module's core is for {found}, and the headers are for {wanted}")]
    Core { found: &'static str, wanted: &'static str },
    #[error("the built module is not the requested one: {error}")]
    Wrong { error: SourceError, log: PathBuf },
}

impl Explain for OtherKernelError {
    fn facts(&self) -> Facts {
        match self {
            OtherKernelError::Exists { path } => {
                let folder = path.parent().unwrap_or(path).display();
                ("output_exists", Exit::Failed, format!("name another folder with --out, or remove {folder}"))
            }
            OtherKernelError::Out { .. } => {
                ("output_unwritable", Exit::Failed, "name a folder with --out that you may write to".to_string())
            }
            OtherKernelError::Core { wanted, .. } => {
                ("core_for_another_processor", Exit::NotReady, format!("use the mpu of a release for {wanted}"))
            }
            OtherKernelError::Wrong { log, .. } => {
                let anew = "the headers contradict themselves: get the distribution's package anew";
                ("built_wrong", Exit::Failed, format!("read {}; {anew}", log.display()))
            }
        }
    }
}
