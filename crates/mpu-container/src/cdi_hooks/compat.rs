//! `enable-cuda-compat`: uses an image's CUDA forward compatibility libraries if they are newer than the host's driver.
//!
//! Writes one file that puts their folder before all others in the loader's list; `update-ldcache` applies it. The libraries are
//! parsed, never loaded.
//!
//! Source: CUDA Compatibility, "Forward Compatibility"; the note `.note.cuda.fwd_compatibility`, a JSON text that
//! newer libraries carry: the CUDA version, and the driver branches they work with.

use super::outcome::{HookError, Notes};
use crate::beneath::{BeneathError, MAX_NAMES, Root};
use clap::Args;
use object::Endianness;
use object::elf::{FileHeader64, SHT_NOTE};
use object::read::elf::{FileHeader, SectionHeader};
use object::read::{ReadCache, ReadRef};
use serde_json::{Map, Value};
use std::path::Path;

/// The drop-in file. Its name comes before those of all other folders.
const FILE: &str = "/etc/ld.so.conf.d/00-compat-mpu.conf";

/// The longest note that is read. NVIDIA's has some hundred bytes.
const LONGEST: u64 = 64 << 10;

/// The most sections that are looked through for the note. Libraries have some forty, and the name of each is kept.
const SECTIONS: u16 = 1000;

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

/// The numbers of a version; none when it is not one.
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

/// Writes the drop-in file where the image's libraries are to be used, and removes an old one where not.
pub(super) fn enable(root: &Root, args: &CompatArgs, notes: Notes) -> Result<(), HookError> {
    let folder = &args.cuda_compat_container_root;
    let path = Path::new(FILE);
    let newest = newest(root, Path::new(folder))?;
    let used = match &newest {
        Some((version, note)) => is_better(version, note.as_ref(), args),
        None => false,
    };
    notes.detail(|| format!("libraries in {folder}: {newest:?}; used: {used}"));
    if !used {
        root.remove_file(path)?;
        return Ok(());
    }
    if !folder.starts_with('/') || folder.contains(['\n', '#']) {
        let value = folder.clone();
        return Err(HookError::Argument { what: "the folder", value, expected: "an absolute path on one line" });
    }
    let text = format!("{folder}\n");
    if root.read_file(path, LONGEST).is_ok_and(|found| found == text.as_bytes()) {
        return Ok(());
    }
    root.create_dir_all(Path::new("/etc/ld.so.conf.d"), 0o755)?;
    Ok(root.create_file(path, text.as_bytes(), 0o644)?)
}

/// The newest `libcuda.so.VERSION` in a folder of the image, and its note.
fn newest(root: &Root, folder: &Path) -> Result<Option<(Version, Option<Note>)>, BeneathError> {
    let entries = match root.read_dir(folder, MAX_NAMES) {
        Err(error) if error.is_missing() => return Ok(None),
        // A file or a loop in its place is as good as nothing.
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

/// Whether the image's libraries are to be used instead of the host's.
///
/// A library with a note names the branches that it works with; without one, a newer branch than the host's has to do.
fn is_better(image: &Version, note: Option<&Note>, args: &CompatArgs) -> bool {
    let driver = version(&args.host_driver_version);
    let cuda = version(&args.host_cuda_version);
    match (note, driver, cuda) {
        (Some(note), Some(driver), _) => note.branches.contains(&driver[0]) && *image > driver,
        (Some(note), None, Some(cuda)) => version(&note.cuda).is_some_and(|image| image > cuda),
        // The host says its CUDA version, and the library does not: nothing to compare.
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
    // No number here means one that a header cannot hold: a table of any size.
    if !(1..=SECTIONS).contains(&header.e_shnum(endian)) {
        return None;
    }
    let sections = header.sections(endian, file).ok()?;
    let (_, section) = sections.section_by_name(endian, b".note.cuda.fwd_compatibility")?;
    if section.sh_type(endian) != SHT_NOTE || section.sh_size(endian) > LONGEST {
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
