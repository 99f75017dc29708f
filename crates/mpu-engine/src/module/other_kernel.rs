//! Builds the module for another kernel, as `<out>/<release>/mpu.ko`, which `prebuilt` finds on its nodes. Needs no root.

use super::build::{NEXT, compile};
use super::elf::Elf;
use super::error::{ModuleError, OtherKernelError};
use super::headers::{self, Headers};
use super::sources::{self, SourceError, Sources};
use crate::signing::{Key, Signer, is_signed};
use clap::ValueHint;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options of `mpu build`.
#[derive(Debug, Clone, clap::Args)]
pub struct BuildOptions {
    /// The release of the kernel to build for: what `uname -r` prints on the node
    #[arg(long = "for", value_name = "RELEASE")]
    pub release: String,

    /// Where that kernel's headers are: a header tree, or a folder into which header packages were unpacked
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub headers: PathBuf,

    /// The processor that the headers must be for; by default the one that they are for
    #[arg(long, value_name = "ARCH", value_parser = ["x86_64", "arm64"])]
    pub arch: Option<String>,

    /// Where to put <RELEASE>/mpu.ko
    #[arg(long, value_name = "DIR", default_value = "modules", value_hint = ValueHint::DirPath)]
    pub out: PathBuf,

    /// Build from the sources in this directory instead of those that mpu carries
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub source: Option<PathBuf>,

    /// Sign the module with this private key: a file, or a pkcs11: address
    #[arg(long, value_name = "KEY", requires = "sign_cert", value_hint = ValueHint::FilePath)]
    pub sign_key: Option<String>,

    /// The certificate of that key
    #[arg(long, value_name = "CERT", requires = "sign_key", value_hint = ValueHint::FilePath)]
    pub sign_cert: Option<String>,
}

/// What was built.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Built")]
pub struct OtherKernelModule {
    /// The kernel's release.
    pub kernel: String,
    /// The processor: `x86_64` or `aarch64`.
    pub arch: &'static str,
    /// The `vermagic` of the module.
    pub vermagic: String,
    /// The module's file.
    pub module: PathBuf,
    /// The same module under its other name, for a change of versions without a gap.
    pub next_module: PathBuf,
    /// The log of the build.
    pub log: PathBuf,
    /// Whether the module carries a signature.
    pub signed: bool,
    /// Seconds that all of it took.
    pub seconds: f64,
}

/// Builds it. A failure leaves no module, but the log of a started build.
pub fn build(host: &Host, options: &BuildOptions) -> Result<OtherKernelModule, ModuleError> {
    let began = Instant::now();
    let release = &options.release;
    let Headers { arch, tools } = headers::find(host, &options.headers, release, options.arch.as_deref())?;
    let sources = options.source.as_deref().map_or_else(Sources::embedded, Sources::in_directory)?;
    let core = sources.files.iter().find(|(name, _)| name == "mpu_core.o_shipped");
    match core.and_then(|(_, bytes)| Elf::parse(bytes)?.arch()) {
        Some(found) if found != arch => return Err(OtherKernelError::Core { found, wanted: arch }.into()),
        _ => {}
    }
    let key = options.sign_key.clone().zip(options.sign_cert.clone());
    let key = key.map(|(private, certificate)| Key { private, certificate });
    let signer = key.map(|key| Signer::with_key(host, &tools.headers, release, key)).transpose()?;
    let dir = options.out.join(release);
    let (module, next, log) = (dir.join("mpu.ko"), dir.join(NEXT), dir.join("build.log"));
    if let Some(path) = [&module, &next].into_iter().find(|path| fs::symlink_metadata(path).is_ok()) {
        return Err(OtherKernelError::Exists { path: path.clone() }.into());
    }
    let at = |path: &Path| {
        let path = path.to_path_buf();
        move |source| OtherKernelError::Out { path, source }
    };
    fs::create_dir_all(&dir).map_err(at(&dir))?;
    // Beside the result, for a rename within one file system. The name is random and the folder this user's alone.
    let work = tempfile::Builder::new().prefix(".building-").tempdir_in(&dir).map_err(at(&dir))?;
    let inside = fs::canonicalize(work.path()).map_err(at(work.path()))?;
    headers::check_path_for_make(&inside)?;
    for (name, bytes) in &sources.files {
        fs::write(inside.join(name), bytes).map_err(at(&inside.join(name)))?;
    }
    let built = compile(&tools, &inside, &log)?;
    let built_next = inside.join(NEXT);
    for (path, name) in [(&built, "mpu"), (&built_next, "mpu_next")] {
        let wrong_module = |error| OtherKernelError::Wrong { error, log: log.clone() };
        let unreadable = |source| SourceError::Module { path: path.clone(), source };
        let bytes = fs::read(path).map_err(|error| wrong_module(unreadable(error)))?;
        sources::check_module(&bytes, path, name, release, arch).map_err(wrong_module)?;
        if let Some(signer) = &signer {
            signer.sign(path)?;
        }
        File::open(path).and_then(|file| file.sync_all()).map_err(at(path))?;
    }
    let vermagic = fs::read(&built).ok().and_then(|bytes| sources::modinfo(&bytes, "vermagic"));
    let vermagic = vermagic.unwrap_or_default().trim().to_string();
    // The twin first: a module without it counts as incomplete.
    move_to_new_name(&built_next, &next)?;
    move_to_new_name(&built, &module).inspect_err(|_| drop(fs::remove_file(&next)))?;
    let signed = is_signed(&module);
    let (kernel, seconds) = (release.clone(), began.elapsed().as_secs_f64());
    Ok(OtherKernelModule { kernel, arch, vermagic, module, next_module: next, log, signed, seconds })
}

/// Moves a file to an unused name. A file that came there during the build stays.
fn move_to_new_name(from: &Path, to: &Path) -> Result<(), OtherKernelError> {
    let path = to.to_path_buf();
    let from = tempfile::TempPath::try_from_path(from);
    let moved = from.and_then(|from| from.persist_noclobber(to).map_err(|failed| failed.error));
    moved.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => OtherKernelError::Exists { path },
        _ => OtherKernelError::Out { path, source },
    })
}

#[cfg(test)]
mod tests;
