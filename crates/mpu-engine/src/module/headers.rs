//! Finds the headers of another kernel in a folder, as distributions' packages lay them out.

use super::checks::{self, Toolchain};
use super::elf;
use super::error::{HeadersError, ModuleError};
use crate::signing;
use mpu_host::host::Host;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Headers {
    /// The processor, by Rust's name.
    pub arch: &'static str,
    pub tools: Toolchain,
}

/// Where headers may be below a folder, from the folder itself to the root of unpacked packages.
fn places(release: &str) -> [String; 9] {
    [
        String::new(),
        format!("linux-headers-{release}"),
        format!("kernels/{release}"),
        format!("usr/src/linux-headers-{release}"),
        format!("usr/src/kernels/{release}"),
        format!("usr/src/linux-{release}-obj/x86_64/default"),
        format!("usr/src/linux-{release}-obj/aarch64/default"),
        format!("usr/lib/modules/{release}/build"),
        format!("lib/modules/{release}/build"),
    ]
}

/// Checks that a release is one name of the characters that kernels use.
pub fn check_release(release: &str) -> Result<(), HeadersError> {
    let is_sound = release.starts_with(|c: char| c.is_ascii_digit())
        && release.chars().all(|c| c.is_ascii_alphanumeric() || "._-+~".contains(c));
    match is_sound {
        true => Ok(()),
        false => Err(HeadersError::BadRelease { release: release.to_string() }),
    }
}

/// Finds the headers of a kernel in a folder, and the tools on this machine to build with them.
pub fn find(host: &Host, folder: &Path, release: &str, requested: Option<&str>) -> Result<Headers, ModuleError> {
    check_release(release)?;
    let unreadable = |source| HeadersError::Unreadable { path: folder.to_path_buf(), source };
    let folder = fs::canonicalize(folder).map_err(unreadable)?;
    fs::read_dir(&folder).map_err(unreadable)?;
    check_path_for_make(&folder)?;
    let place = places(release)
        .into_iter()
        .map(|place| if place.is_empty() { folder.clone() } else { folder.join(place) })
        .find(|path| path.join("Makefile").is_file());
    let Some(path) = place else { return Err(missing_headers_error(folder, release).into()) };
    let text = |name: &str| fs::read_to_string(path.join(name)).ok();
    let unprepared = |missing| HeadersError::Unprepared { path: path.clone(), missing };
    let utsrelease =
        text("include/generated/utsrelease.h").ok_or_else(|| unprepared("include/generated/utsrelease.h"))?;
    let found = utsrelease.split('"').nth(1).unwrap_or_default().to_string();
    if found != release {
        return Err(HeadersError::OtherRelease { path, found, release: release.to_string() }.into());
    }
    let config = text(".config").or_else(|| text("include/config/auto.conf")).ok_or_else(|| unprepared(".config"))?;
    if config.lines().any(|line| line == "CONFIG_MODVERSIONS=y") && !path.join("Module.symvers").is_file() {
        return Err(unprepared("Module.symvers").into());
    }
    let arch = arch_of(&path, &config, requested)?;
    let mut more = common_part(&path)?;
    let modpost = path.join("scripts/mod/modpost");
    if !path.join("scripts").is_dir() {
        let missing = fs::read_link(path.join("scripts")).unwrap_or_else(|_| "scripts".into());
        return Err(HeadersError::MissingPart { path, missing: missing.display().to_string() }.into());
    }
    if modpost.is_file() && !signing::can_run(&modpost) {
        return Err(HeadersError::Tools { tool: modpost }.into());
    }
    let other = Some(arch).filter(|arch| *arch != std::env::consts::ARCH);
    if other.is_some() {
        more.push(format!("ARCH={}", elf::kernel_arch(arch).unwrap_or(arch)));
        more.push(format!("CROSS_COMPILE={arch}-linux-gnu-"));
    }
    Ok(Headers { arch, tools: checks::tools(host, release, &config, path, other, more)? })
}

/// Rejects characters in a path that make treats as separators.
pub fn check_path_for_make(path: &Path) -> Result<(), HeadersError> {
    match path.to_str().is_some_and(|text| !text.contains(|c: char| c.is_whitespace() || c == ':')) {
        true => Ok(()),
        false => Err(HeadersError::PathUnusable { path: path.to_path_buf() }),
    }
}

/// The error for a folder without the requested headers; names another kernel's if it has them.
fn missing_headers_error(folder: PathBuf, release: &str) -> HeadersError {
    let release = release.to_string();
    for (place, prefix) in
        [("", "linux-headers-"), ("usr/src", "linux-headers-"), ("kernels", ""), ("usr/src/kernels", "")]
    {
        let names = fs::read_dir(folder.join(place)).into_iter().flatten().flatten();
        let mut others: Vec<String> = names
            .filter(|entry| entry.path().join("include/generated/utsrelease.h").is_file())
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix).map(str::to_string))
            .collect();
        others.sort();
        if !others.is_empty() {
            return HeadersError::OtherRelease { path: folder.join(place), found: others.join(", "), release };
        }
    }
    HeadersError::NotHeaders { path: folder, release }
}

fn arch_of(path: &Path, config: &str, requested: Option<&str>) -> Result<&'static str, HeadersError> {
    let has = |option: &str| config.lines().any(|line| line == option);
    let found = match (has("CONFIG_X86_64=y"), has("CONFIG_ARM64=y")) {
        (true, _) => Some("x86_64"),
        (_, true) => Some("aarch64"),
        _ => None,
    };
    let by_rusts_name = |name: &str| if name == "arm64" { "aarch64" } else { name }.to_string();
    match (found, requested) {
        (Some(found), None) => Ok(found),
        (Some(found), Some(requested)) if found == by_rusts_name(requested) => Ok(found),
        _ => Err(HeadersError::OtherArch {
            path: path.to_path_buf(),
            found: found.unwrap_or("another processor").to_string(),
            requested: requested.unwrap_or("x86_64 or arm64").to_string(),
        }),
    }
}

/// Debian's headers are two packages: the Makefile of one includes the other's by its installed path. For unpacked packages, make gets
/// that second Makefile as an argument.
fn common_part(path: &Path) -> Result<Vec<String>, HeadersError> {
    let text = fs::read_to_string(path.join("Makefile")).unwrap_or_default();
    let included = text.lines().find_map(|line| line.strip_prefix("include /")).map(|rest| format!("/{}", rest.trim()));
    let Some(included) = included.filter(|included| included.ends_with("/Makefile")).map(PathBuf::from) else {
        return Ok(Vec::new());
    };
    let name = included.parent().and_then(Path::file_name).unwrap_or_default();
    let beside = path.with_file_name(name).join("Makefile");
    match (beside.is_file(), included.is_file()) {
        (true, _) => Ok(vec!["-f".to_string(), beside.display().to_string()]),
        (false, true) => Ok(Vec::new()),
        (false, false) => {
            let missing = name.to_string_lossy().into_owned();
            Err(HeadersError::MissingPart { path: path.to_path_buf(), missing })
        }
    }
}
