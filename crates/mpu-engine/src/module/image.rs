//! An image of modules that were built elsewhere, for many kernels: laid out as kernel-module-management (KMM) and Kubernetes' image
//! volumes want it, `/opt/lib/modules/<release>/mpu.ko` with depmod's files beside it.
//!
//! Owns the image: an OCI image layout (image-spec 1.1) in one tar file, with one layer that is not compressed. The same modules give
//! the same bytes on every machine with the same depmod. What a folder of modules is, is `elsewhere`'s.

use super::build::NEXT;
use super::elf;
use super::headers::check_release;
use super::sources::{self, SourceError};
use crate::signing::is_signed;
use clap::ValueHint;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use serde_json::{json, Value};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the image that has `lib/modules`: KMM's default (`modprobe.dirName`).
pub const PREFIX: &str = "opt";

/// What KMM runs in the image, to copy modules out of it.
const PROGRAMS: [&str; 3] = ["cp", "mkdir", "sh"];

/// Options of `mpu module-image`.
#[derive(Debug, Clone, clap::Args)]
pub struct ImageOptions {
    /// The folder that `mpu build` wrote to: <RELEASE>/mpu.ko for each kernel
    #[arg(long, value_name = "DIR", default_value = "modules", value_hint = ValueHint::DirPath)]
    pub modules: PathBuf,

    /// The image, as a tar file of an OCI image layout
    #[arg(long, value_name = "FILE.tar", value_hint = ValueHint::FilePath)]
    pub out: PathBuf,

    /// Also put this statically linked busybox in, for KMM: it runs sh, mkdir and cp in the image
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub busybox: Option<PathBuf>,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it, and the fields are what they name
pub enum ImageError {
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} has no module: no <release>/mpu.ko", path.display())]
    NoModules { path: PathBuf },
    #[error(transparent)]
    Module(#[from] SourceError),
    #[error("{} is of MPU {found}, and this is mpu {}", path.display(), env!("CARGO_PKG_VERSION"))]
    OtherVersion { path: PathBuf, found: String },
    #[error("{} is not there, and {} is", twin.display(), path.display())]
    NoTwin { path: PathBuf, twin: PathBuf },
    #[error("the modules are for two processors: {one} and {other}")]
    TwoArchs { one: String, other: String },
    #[error("{} {why}", path.display())]
    Busybox { path: PathBuf, why: String },
    #[error("there is no depmod on this machine")]
    NoDepmod,
    #[error("depmod failed for {release}: {line}")]
    Depmod { release: String, line: String },
    #[error("{} is there already", path.display())]
    Exists { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Out { path: PathBuf, source: io::Error },
}

impl Explain for ImageError {
    fn code(&self) -> &'static str {
        match self {
            ImageError::Unreadable { .. } => "modules_unreadable",
            ImageError::NoModules { .. } => "no_modules",
            ImageError::Module(error) => error.code(),
            ImageError::OtherVersion { .. } => "module_of_another_version",
            ImageError::NoTwin { .. } => "no_next_module",
            ImageError::TwoArchs { .. } => "two_processors",
            ImageError::Busybox { .. } => "busybox_unusable",
            ImageError::NoDepmod => "no_depmod",
            ImageError::Depmod { .. } => "depmod_failed",
            ImageError::Exists { .. } => "output_exists",
            ImageError::Out { .. } => "output_unwritable",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            ImageError::NoDepmod | ImageError::NoModules { .. } => Exit::NotReady,
            _ => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            ImageError::Unreadable { .. } => "name a folder or file that exists and that you may read".to_string(),
            ImageError::NoModules { .. } => {
                "mpu build --for RELEASE --headers DIR --out modules   # makes one".to_string()
            }
            ImageError::Module(_) | ImageError::OtherVersion { .. } | ImageError::NoTwin { .. } => {
                "remove that folder and build the module again: mpu build --for RELEASE --headers DIR".to_string()
            }
            ImageError::TwoArchs { .. } => "make one image for each: keep their modules in two folders".to_string(),
            ImageError::Busybox { .. } => {
                "name a statically linked busybox for the modules' processor (Debian: the package busybox-static)"
                    .to_string()
            }
            ImageError::NoDepmod => "install kmod".to_string(),
            ImageError::Depmod { .. } => "build that module again, or reinstall kmod".to_string(),
            ImageError::Exists { path } => format!("name another file with --out, or remove {}", path.display()),
            ImageError::Out { .. } => "name a file with --out that you may write".to_string(),
        }
    }
}

/// A kernel's module in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// The kernel's release.
    pub release: String,
    /// Whether the module carries a signature.
    pub signed: bool,
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// The digest of the image's manifest.
    pub digest: String,
    /// The processor, as images name it.
    pub arch: &'static str,
    /// Its modules, by release.
    pub modules: Vec<Packed>,
    /// Whether it has what KMM runs.
    pub kmm: bool,
}

/// Makes it. What fails leaves no file.
///
/// # Errors
/// Names the module, the tool or the file that is in the way.
pub fn make(host: &Host, options: &ImageOptions) -> Result<Image, ImageError> {
    if fs::symlink_metadata(&options.out).is_ok() {
        return Err(ImageError::Exists { path: options.out.clone() });
    }
    let found = collect(&options.modules)?;
    let Some(first) = found.first() else { return Err(ImageError::NoModules { path: options.modules.clone() }) };
    if let Some(other) = found.iter().find(|other| other.arch != first.arch) {
        let in_words = |one: &Found| format!("{} ({})", one.release, one.arch);
        return Err(ImageError::TwoArchs { one: in_words(first), other: in_words(other) });
    }
    let arch = if first.arch == "x86_64" { "amd64" } else { "arm64" };
    let mut entries = Vec::new();
    if let Some(path) = &options.busybox {
        entries.push(Entry::File("bin/busybox".to_string(), 0o755, busybox(path, first.arch)?));
        entries.extend(PROGRAMS.map(|name| Entry::Link(format!("bin/{name}"), "busybox")));
    }
    let stage = tempfile::tempdir().map_err(|source| ImageError::Out { path: std::env::temp_dir(), source })?;
    for one in &found {
        entries.extend(files_of(host, stage.path(), one)?);
    }
    let layer = layer(entries).map_err(|source| ImageError::Out { path: options.out.clone(), source })?;
    let (bytes, digest) =
        layout(arch, &layer).map_err(|source| ImageError::Out { path: options.out.clone(), source })?;
    write(&options.out, &bytes).map_err(|source| ImageError::Out { path: options.out.clone(), source })?;
    let modules = found.into_iter().map(|one| Packed { release: one.release, signed: one.signed }).collect();
    Ok(Image { path: options.out.clone(), digest, arch, modules, kmm: options.busybox.is_some() })
}

struct Found {
    release: String,
    arch: &'static str,
    signed: bool,
    /// The module and its twin, by the names that they have in the image.
    files: [(&'static str, Vec<u8>); 2],
}

/// The modules of a folder, by release. What is no kernel's folder is left alone.
fn collect(folder: &Path) -> Result<Vec<Found>, ImageError> {
    let unreadable = |source| ImageError::Unreadable { path: folder.to_path_buf(), source };
    let mut releases = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        let is_kernels = |name: &&str| check_release(name).is_ok() && folder.join(name).join("mpu.ko").exists();
        releases.extend(name.to_str().filter(is_kernels).map(str::to_string));
    }
    releases.sort();
    releases.into_iter().map(|release| one(folder, release)).collect()
}

fn one(folder: &Path, release: String) -> Result<Found, ImageError> {
    let module = folder.join(&release).join("mpu.ko");
    let twin = module.with_file_name(NEXT);
    if !twin.exists() {
        return Err(ImageError::NoTwin { path: module, twin });
    }
    let read = |path: &Path| {
        let plain = fs::metadata(path).and_then(|facts| match facts.is_file() {
            true => fs::read(path),
            false => Err(io::Error::other("it is not a plain file")),
        });
        plain.map_err(|source| ImageError::Unreadable { path: path.to_path_buf(), source })
    };
    let files = [("mpu.ko", read(&module)?), (NEXT, read(&twin)?)];
    let arch = elf::header(&files[0].1).and_then(|header| header.arch());
    let arch = arch.ok_or_else(|| SourceError::NotOurModule { path: module.clone() })?;
    for (path, name) in [(&module, "mpu"), (&twin, "mpu_next")] {
        sources::inspect(path, name, &release, arch)?;
        if !sources::is_this_version(path) {
            let found = sources::version(path).unwrap_or_else(|| "no version".to_string());
            return Err(ImageError::OtherVersion { path: path.clone(), found });
        }
    }
    let signed = is_signed(&module) && is_signed(&twin);
    Ok(Found { release, arch, signed, files })
}

/// The bytes of a busybox that runs in an image with nothing else.
fn busybox(path: &Path, arch: &str) -> Result<Vec<u8>, ImageError> {
    let unfit = |why: &str| ImageError::Busybox { path: path.to_path_buf(), why: why.to_string() };
    if !path.is_file() {
        return Err(unfit("is not a plain file"));
    }
    let bytes = fs::read(path).map_err(|source| ImageError::Unreadable { path: path.to_path_buf(), source })?;
    let header = elf::header(&bytes).ok_or_else(|| unfit("is not a program"))?;
    match header.arch() == Some(arch) {
        false => Err(unfit(&format!("is not for {arch}"))),
        true if elf::wants_loader(&bytes) => Err(unfit("is not statically linked")),
        true => Ok(bytes),
    }
}

/// A module's files, and what depmod makes of them.
fn files_of(host: &Host, stage: &Path, one: &Found) -> Result<Vec<Entry>, ImageError> {
    let depmod = host.tool("depmod").ok_or(ImageError::NoDepmod)?;
    let place = format!("{PREFIX}/lib/modules/{}", one.release);
    let folder = stage.join(&place);
    let at = |source| ImageError::Out { path: folder.clone(), source };
    fs::create_dir_all(&folder).map_err(at)?;
    for (name, bytes) in &one.files {
        fs::write(folder.join(name), bytes).map_err(at)?;
    }
    let mut command = Command::new(depmod);
    command.arg("-b").arg(stage.join(PREFIX)).arg(&one.release).env_clear().env("LC_ALL", "C").stdin(Stdio::null());
    let done = command.output().map_err(at)?;
    if !done.status.success() || !folder.join("modules.dep").is_file() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let line = said.lines().next_back().unwrap_or("it wrote no modules.dep").to_string();
        return Err(ImageError::Depmod { release: one.release.clone(), line });
    }
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(&folder).map_err(at)? {
        names.push(entry.map_err(at)?.file_name().to_string_lossy().into_owned());
    }
    let file =
        |name: String| Ok(Entry::File(format!("{place}/{name}"), 0o644, fs::read(folder.join(&name)).map_err(at)?));
    names.into_iter().map(file).collect()
}

/// Something in the layer: its path below the root.
enum Entry {
    File(String, u32, Vec<u8>),
    Link(String, &'static str),
}

impl Entry {
    fn path(&self) -> &str {
        match self {
            Entry::File(path, ..) | Entry::Link(path, _) => path,
        }
    }
}

/// A header with nothing of this machine in it: root's, and of no time.
fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn layer(mut entries: Vec<Entry>) -> io::Result<Vec<u8>> {
    entries.sort_by(|a, b| a.path().cmp(b.path()));
    let mut tar = tar::Builder::new(Vec::new());
    let mut made = std::collections::BTreeSet::new();
    for entry in &entries {
        let above: Vec<&Path> =
            Path::new(entry.path()).ancestors().skip(1).filter(|part| *part != Path::new("")).collect();
        for folder in above.into_iter().rev().filter(|folder| made.insert(folder.to_path_buf())) {
            let mut head = header(tar::EntryType::Directory, 0o755, 0);
            tar.append_data(&mut head, format!("{}/", folder.display()), io::empty())?;
        }
        match entry {
            Entry::File(path, mode, bytes) => {
                let mut head = header(tar::EntryType::Regular, *mode, bytes.len() as u64);
                tar.append_data(&mut head, path, bytes.as_slice())?;
            }
            Entry::Link(path, to) => tar.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), path, to)?,
        }
    }
    tar.into_inner()
}

/// The whole layout as a tar file, and the manifest's digest.
fn layout(arch: &str, layer: &[u8]) -> io::Result<(Vec<u8>, String)> {
    let mut blobs: Vec<(String, Vec<u8>)> = Vec::new();
    let mut blob = |kind: &str, bytes: Vec<u8>| -> Value {
        let digest: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let described = json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": format!("sha256:{digest}"), "size": bytes.len(),
        });
        blobs.push((digest, bytes));
        described
    };
    let layer = blob("layer.v1.tar", layer.to_vec());
    let config = json!({
        "architecture": arch, "os": "linux", "config": { "Labels": labels() },
        "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        "history": [{ "created_by": "mpu module-image" }],
    });
    let config = blob("config.v1+json", serde_json::to_vec(&config)?);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer], "annotations": labels(),
    });
    let mut manifest = blob("manifest.v1+json", serde_json::to_vec(&manifest)?);
    let digest = manifest["digest"].as_str().unwrap_or_default().to_string();
    manifest["platform"] = json!({ "architecture": arch, "os": "linux" });
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": env!("CARGO_PKG_VERSION") });
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest],
    });
    blobs.sort();
    let mut files: Vec<(String, Vec<u8>)> =
        blobs.into_iter().map(|(digest, bytes)| (format!("blobs/sha256/{digest}"), bytes)).collect();
    files.push(("index.json".to_string(), serde_json::to_vec(&index)?));
    files.push(("oci-layout".to_string(), serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?));
    let mut tar = tar::Builder::new(Vec::new());
    for (path, bytes) in files {
        tar.append_data(&mut header(tar::EntryType::Regular, 0o644, bytes.len() as u64), path, bytes.as_slice())?;
    }
    Ok((tar.into_inner()?, digest))
}

fn labels() -> Value {
    json!({
        "org.opencontainers.image.title": "mpu-modules",
        "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
        "org.opencontainers.image.licenses": "GPL-2.0-only",
    })
}

/// Whole, or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    use std::os::unix::fs::PermissionsExt;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    // What came there meanwhile stays.
    file.persist_noclobber(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests;
