//! Modules that are packed, as distributions pack them.
//!
//! Owns the endings and their tools, and where the plain copy lies: below `/var/lib/mpu/<release>`.

use super::build::{NEXT, STORE};
use mpu_host::host::Host;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How a module's file ends, and what unpacks it.
pub const PACKINGS: [(&str, Option<&str>); 4] =
    [("", None), (".xz", Some("xz")), (".zst", Some("zstd")), (".gz", Some("gzip"))];

/// The plain form of a module and its twin, in a folder of the store by that name; else why there is none.
pub fn plain(host: &Host, release: &str, path: PathBuf, tool: Option<&str>, folder: &str) -> Result<PathBuf, String> {
    match tool {
        None => Ok(path),
        Some(tool) => unpack(host, release, &path, tool, folder),
    }
}

fn unpack(host: &Host, release: &str, packed: &Path, tool: &str, folder: &str) -> Result<PathBuf, String> {
    let to = host.at(STORE).join(release).join(folder);
    fs::create_dir_all(&to).map_err(|error| format!("cannot be unpacked into {}: {error}", to.display()))?;
    let ending = packed.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let twin = packed.with_file_name(format!("{NEXT}.{ending}"));
    let _ = fs::remove_file(to.join(NEXT));
    if twin.is_file() {
        unpack_one(host, &twin, tool, &to.join(NEXT))?;
    }
    let plain = to.join("mpu.ko");
    unpack_one(host, packed, tool, &plain)?;
    Ok(plain)
}

fn unpack_one(host: &Host, packed: &Path, tool: &str, to: &Path) -> Result<(), String> {
    let program = host.tool(tool).ok_or_else(|| format!("there is no {tool} on this host to unpack it"))?;
    let partial = to.with_extension("partial");
    let cannot = |error: std::io::Error| format!("cannot be unpacked: {error}");
    let ended = Command::new(program)
        .args(["-d", "-c"])
        .stdin(fs::File::open(packed).map_err(cannot)?)
        .stdout(fs::File::create(&partial).map_err(cannot)?)
        .stderr(Stdio::null())
        .status();
    match ended {
        Ok(status) if status.success() => fs::rename(&partial, to).map_err(cannot),
        _ => {
            let _ = fs::remove_file(&partial);
            Err(format!("is damaged: {tool} cannot unpack it"))
        }
    }
}
