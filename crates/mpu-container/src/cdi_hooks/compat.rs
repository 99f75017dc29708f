//! `enable-cuda-compat`: uses an image's CUDA forward compatibility libraries if they are newer than the host's driver.
//!
//! Writes a drop-in file that puts their folder first in the loader's configuration; `update-ldcache` applies it. The libraries are
//! parsed, never loaded.
//!
//! Source: CUDA Compatibility, "Forward Compatibility"; the ELF note `.note.cuda.fwd_compatibility` of newer libraries. It is a JSON
//! object with the CUDA version and the compatible driver branches.

use super::outcome::{HookError, Log};
use crate::beneath::{BeneathError, MAX_NAMES, Root};
use clap::Args;
use object::Endianness;
use object::elf::{FileHeader64, SHT_NOTE};
use object::read::elf::{FileHeader, SectionHeader};
use object::read::{ReadCache, ReadRef};
use serde_json::{Map, Value};
use std::path::Path;

/// The drop-in file. Its name sorts before those of other drop-in files.
const FILE: &str = "/etc/ld.so.conf.d/00-compat-mpu.conf";

/// Limit of the note's size. NVIDIA's has some hundred bytes.
const MAX_NOTE_BYTES: u64 = 64 << 10;

/// Limit of sections. Libraries have some forty, and the reader caches each name.
const MAX_SECTIONS: u16 = 1000;

/// The host's versions, and the folder of the image's libraries.
#[derive(Debug, Args)]
pub struct CompatArgs {
    /// The version of the host's driver
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub host_driver_version: String,
    /// The version of CUDA that the host's driver has
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    pub host_cuda_version: String,
    /// The folder of the image with the compatibility libraries
    #[arg(long, value_name = "FOLDER", default_value = "/usr/local/cuda/compat")]
    pub cuda_compat_container_root: String,
}

impl CompatArgs {
    pub fn is_empty(&self) -> bool {
        self.host_driver_version.is_empty() && self.host_cuda_version.is_empty()
    }
}

type Version = Vec<u32>;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Note {
    cuda: String,
    branches: Vec<u32>,
}

/// Libraries have the keys `"CUDA version"` and `"driver"`. Upper and lower case are not specified, so they are ignored.
impl TryFrom<Map<String, Value>> for Note {
    type Error = serde_json::Error;

    fn try_from(mut fields: Map<String, Value>) -> Result<Note, serde_json::Error> {
        let mut take = |key: &str| {
            let found = fields.keys().find(|name| name.eq_ignore_ascii_case(key)).cloned();
            found.and_then(|name| fields.remove(&name))
        };
        let (cuda, branches) = (take("CUDA version"), take("driver"));
        Ok(Note {
            cuda: cuda.map(serde_json::from_value).transpose()?.unwrap_or_default(),
            branches: branches.map(serde_json::from_value).transpose()?.unwrap_or_default(),
        })
    }
}

/// Writes the drop-in file if the image's libraries are preferred. Otherwise removes an earlier one.
pub(super) fn enable(root: &Root, args: &CompatArgs, log: Log) -> Result<(), HookError> {
    let folder = &args.cuda_compat_container_root;
    let path = Path::new(FILE);
    let newest = newest_libcuda(root, Path::new(folder))?;
    let used = match &newest {
        Some((version, note)) => is_preferred(version, note.as_ref(), args),
        None => false,
    };
    log.debug(|| format!("libraries in {folder}: {newest:?}; used: {used}"));
    if !used {
        root.remove_file(path)?;
        return Ok(());
    }
    if !folder.starts_with('/') || folder.contains(['\n', '#']) {
        let value = folder.clone();
        return Err(HookError::Argument { what: "the folder", value, expected: "an absolute path on one line" });
    }
    let text = format!("{folder}\n");
    if root.read_file(path, MAX_NOTE_BYTES).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    root.create_dir_all(Path::new("/etc/ld.so.conf.d"), 0o755)?;
    Ok(root.create_file(path, text.as_bytes(), 0o644)?)
}

/// The newest `libcuda.so.VERSION` in a folder of the image, and its note.
fn newest_libcuda(root: &Root, folder: &Path) -> Result<Option<(Version, Option<Note>)>, BeneathError> {
    let entries = match root.read_dir(folder, MAX_NAMES) {
        Err(error) if error.is_missing() => return Ok(None),
        // The path is a file or a link loop: treat it as missing.
        Err(BeneathError::Path { .. }) => return Ok(None),
        entries => entries?,
    };
    let versions = entries.into_iter().filter(|entry| entry.is_file).filter_map(|entry| {
        let version = version(entry.name.to_str()?.strip_prefix("libcuda.so.")?)?;
        (version.len() > 1).then_some((version, entry.name))
    });
    let Some((version, name)) = versions.max() else { return Ok(None) };
    let file = root.open_file(&folder.join(name))?;
    Ok(Some((version, note(&ReadCache::new(file)))))
}

/// Whether to use the image's libraries instead of the host's. A library's note lists the compatible driver branches. Without a note,
/// a newer branch than the host's is enough.
fn is_preferred(image: &Version, note: Option<&Note>, args: &CompatArgs) -> bool {
    let driver = version(&args.host_driver_version);
    let cuda = version(&args.host_cuda_version);
    match (note, driver, cuda) {
        (Some(note), Some(driver), _) => note.branches.contains(&driver[0]) && *image > driver,
        (Some(note), None, Some(cuda)) => version(&note.cuda).is_some_and(|image| image > cuda),
        // The host's CUDA version has no counterpart without a note.
        (None, _, _) if !args.host_cuda_version.is_empty() => false,
        (None, Some(driver), _) => image[0] > driver[0],
        (_, None, None) => false,
        (None, None, Some(_)) => false,
    }
}

fn version(text: &str) -> Option<Version> {
    text.split('.').map(|part| part.parse().ok().filter(|_| !part.starts_with('+'))).collect()
}

pub fn note<'a, R: ReadRef<'a>>(file: R) -> Option<Note> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    // 0 means that the number does not fit the header: refuse a table of any size.
    if !(1..=MAX_SECTIONS).contains(&header.e_shnum(endian)) {
        return None;
    }
    let sections = header.sections(endian, file).ok()?;
    let (_, section) = sections.section_by_name(endian, b".note.cuda.fwd_compatibility")?;
    if section.sh_type(endian) != SHT_NOTE || section.sh_size(endian) > MAX_NOTE_BYTES {
        return None;
    }
    let mut notes = section.notes(endian, file).ok()??;
    let note = notes.next().ok()??;
    if note.name() != b"NVIDIA Corporation" {
        return None;
    }
    let text = note.desc().split(|byte| *byte == 0).next().unwrap_or_default();
    serde_json::from_slice::<Map<String, Value>>(text).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests;
