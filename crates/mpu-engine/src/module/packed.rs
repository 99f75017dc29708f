//! Unpacks compressed modules. A module is inspected in memory, without rights and without a trace; for loading it is unpacked below
//! `/var/lib/mpu/<release>`.

use super::build::{NEXT, STORE, hold};
use super::error::{BuildError, ModuleError};
use mpu_host::host::Host;
use mpu_os::child;
use mpu_os::file::{Mode, read_all, replace_file_atomically};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The endings of module files, and the tool for each.
pub const PACKINGS: [(&str, Option<&str>); 4] =
    [("", None), (".xz", Some("xz")), (".zst", Some("zstd")), (".gz", Some("gzip"))];

/// The size limit: a small file must not unpack to all of a host's memory.
const LARGEST: u64 = 64 << 20;

/// How long to wait for another unpacker, and for the tool.
const PATIENCE: Duration = Duration::from_secs(60);

/// The prefix of an unpacker's temporary files.
const AT_WORK: &str = ".mpu";

/// The packing of a file by its name: the ending, and the tool.
pub fn packing(path: &Path) -> (&'static str, Option<&'static str>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let packed = PACKINGS.into_iter().find(|(ending, tool)| tool.is_some() && name.ends_with(ending));
    packed.unwrap_or(PACKINGS[0])
}

/// The contents of a module's file, unpacked if necessary. The error is half a sentence about the file.
pub fn contents(host: &Host, file: File, tool: Option<&str>) -> Result<Vec<u8>, String> {
    let too_large = || format!("is larger than {} MiB, as no module is", LARGEST >> 20);
    let Some(tool) = tool else {
        return read_all(file, LARGEST).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => too_large(),
            _ => cannot_be_read(&error),
        });
    };
    let program = host.tool(tool).ok_or_else(|| format!("cannot be unpacked: there is no {tool} on this host"))?;
    let mut command = Command::new(program);
    command.args(["-d", "-c"]).stdin(file);
    let ended = child::run(&mut command, PATIENCE, LARGEST + 1);
    let ended = ended.map_err(|error| format!("cannot be unpacked: {error}"))?;
    match ended.stdout.len() as u64 > LARGEST {
        true => Err(too_large().replace("is larger", "unpacks to more")),
        false if ended.is_success() => Ok(ended.stdout),
        false if ended.status.is_none() => {
            Err(format!("cannot be unpacked: {tool} has not ended in {} s", PATIENCE.as_secs()))
        }
        false => Err(format!("is damaged: {tool} cannot unpack it")),
    }
}

/// Why a file cannot be read, as half a sentence about it.
pub fn cannot_be_read(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "can be read by root only".to_string(),
        _ => format!("cannot be read: {error}"),
    }
}

/// A module's file that the kernel accepts, with its twin beside it: the file itself, or its unpacked copy in this folder of the store.
pub fn plain(host: &Host, release: &str, path: &Path, folder: &str) -> Result<PathBuf, ModuleError> {
    let (ending, Some(tool)) = packing(path) else { return Ok(path.to_path_buf()) };
    let unpacked = |path: &Path| {
        let bytes =
            File::open(path).map_err(|error| cannot_be_read(&error)).and_then(|f| contents(host, f, Some(tool)));
        bytes.map_err(|why| BuildError::Unpack { path: path.to_path_buf(), why })
    };
    let twin = path.with_file_name(format!("{NEXT}{ending}"));
    let next = twin.is_file().then(|| unpacked(&twin)).transpose()?;
    let module = unpacked(path)?;

    let to = host.at(STORE).join(release).join(folder);
    let at = |source| BuildError::Store { path: to.clone(), source };
    fs::create_dir_all(&to).map_err(at)?;
    let _lock = hold(&to, PATIENCE)?;
    // We have the lock: their owner was killed.
    for entry in fs::read_dir(&to).map_err(at)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(AT_WORK) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let put = |name: &str, bytes: &[u8]| -> io::Result<PathBuf> {
        replace_file_atomically(&to.join(name), bytes, Mode::Of(0o644)).map(|_| to.join(name))
    };
    // The twin first: a module without it counts as incomplete.
    next.as_ref().map(|bytes| put(NEXT, bytes)).transpose().map_err(at)?;
    let plain = put("mpu.ko", &module).map_err(at)?;
    if next.is_none() {
        // The twin of an earlier module.
        let _ = fs::remove_file(to.join(NEXT));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests;
