//! Unpacks compressed modules. A module is inspected in memory, without privileges and without a written file. To be loaded, it is
//! unpacked below `/var/lib/mpu/<release>`.

use super::build::{NEXT, STORE, lock_folder};
use super::error::{BuildError, ModuleError};
use mpu_host::host::Host;
use mpu_os::child;
use mpu_os::file::{Mode, read_all, replace_file_atomically};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The suffixes of module files, and the tool for each.
pub const COMPRESSIONS: [(&str, Option<&str>); 4] =
    [("", None), (".xz", Some("xz")), (".zst", Some("zstd")), (".gz", Some("gzip"))];

/// The size limit: a small file must not unpack to all of a host's memory.
const MAX_SIZE: u64 = 64 << 20;

/// How long to wait for another unpacker, and for the tool.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The prefix of an unpacker's temporary files (`mpu_os::file` names them `.mpu.ko.…`).
const TEMPORARY_PREFIX: &str = ".mpu";

/// The compression of a file by its name: the suffix, and the tool.
pub fn compression_of(path: &Path) -> (&'static str, Option<&'static str>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let packed = COMPRESSIONS.into_iter().find(|(ending, tool)| tool.is_some() && name.ends_with(ending));
    packed.unwrap_or(COMPRESSIONS[0])
}

/// The contents of a module's file, unpacked if necessary. The error is half a sentence about the file.
pub fn read_module(host: &Host, file: File, tool: Option<&str>) -> Result<Vec<u8>, String> {
    let too_large = || format!("is larger than {} MiB, as no module is", MAX_SIZE >> 20);
    let Some(tool) = tool else {
        return read_all(file, MAX_SIZE).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => too_large(),
            _ => describe_read_error(&error),
        });
    };
    let program = host.tool(tool).ok_or_else(|| format!("cannot be unpacked: there is no {tool} on this host"))?;
    let mut command = Command::new(program);
    command.args(["-d", "-c"]).stdin(file);
    let ended = child::run(&mut command, TIMEOUT, MAX_SIZE + 1);
    let ended = ended.map_err(|error| format!("cannot be unpacked: {error}"))?;
    match ended.stdout.len() as u64 > MAX_SIZE {
        true => Err(too_large().replace("is larger", "unpacks to more")),
        false if ended.is_success() => Ok(ended.stdout),
        false if ended.status.is_none() => {
            Err(format!("cannot be unpacked: {tool} has not ended in {} s", TIMEOUT.as_secs()))
        }
        false => Err(format!("is damaged: {tool} cannot unpack it")),
    }
}

/// Why a file cannot be read, as half a sentence about it.
pub fn describe_read_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "can be read by root only".to_string(),
        _ => format!("cannot be read: {error}"),
    }
}

/// A module's file that the kernel accepts, with its twin beside it: the file itself, or its unpacked copy in this folder of the store.
pub fn uncompressed_path(host: &Host, release: &str, path: &Path, folder: &str) -> Result<PathBuf, ModuleError> {
    let (ending, Some(tool)) = compression_of(path) else { return Ok(path.to_path_buf()) };
    let unpacked = |path: &Path| {
        let bytes = File::open(path)
            .map_err(|error| describe_read_error(&error))
            .and_then(|f| read_module(host, f, Some(tool)));
        bytes.map_err(|why| BuildError::Unpack { path: path.to_path_buf(), why })
    };
    let twin = path.with_file_name(format!("{NEXT}{ending}"));
    let next = twin.is_file().then(|| unpacked(&twin)).transpose()?;
    let module = unpacked(path)?;

    let to = host.at(STORE).join(release).join(folder);
    let at = |source| BuildError::Store { path: to.clone(), source };
    fs::create_dir_all(&to).map_err(at)?;
    let _lock = lock_folder(&to, TIMEOUT)?;
    // The lock is held, so the process that wrote these files was killed.
    for entry in fs::read_dir(&to).map_err(at)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY_PREFIX) {
            let _ = fs::remove_file(entry.path());
        }
    }
    let write = |name: &str, bytes: &[u8]| -> io::Result<PathBuf> {
        replace_file_atomically(&to.join(name), bytes, Mode::Of(0o644)).map(|_| to.join(name))
    };
    // The twin first: a module without it counts as incomplete.
    next.as_ref().map(|bytes| write(NEXT, bytes)).transpose().map_err(at)?;
    let plain = write("mpu.ko", &module).map_err(at)?;
    if next.is_none() {
        // The twin of an earlier module.
        let _ = fs::remove_file(to.join(NEXT));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests;
