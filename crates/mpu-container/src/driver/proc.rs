//! Reads `/proc/driver/nvidia`: the release, the GPUs, the MIG instances.
//!
//! Source: NVIDIA's open kernel modules, `nv-procfs.c` (`version`, `gpus/*/information`) and `nv-caps.c`
//! (`capabilities`).

use super::error::DriverError;
use super::types::{DriverRoot, Gpu, Mig};
use rustix::fs::Access;
use rustix::io::Errno;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(super) fn version(root: &DriverRoot) -> Result<String, DriverError> {
    let path = root.kernel_files.join("proc/driver/nvidia/version");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(DriverError::NotLoaded { path }),
        Err(source) => return Err(DriverError::Read { path, source }),
    };
    release_in(&text).map(str::to_owned).ok_or(DriverError::Unreadable { path, missing: "a release" })
}

/// The first word of the banner's `NVRM version:` line that is two or three numbers with dots. The words before it differ
/// between the open and the closed module.
fn release_in(banner: &str) -> Option<&str> {
    let line = banner.lines().find(|line| line.starts_with("NVRM version:"))?;
    line.split_whitespace().find(|word| {
        let parts: Vec<&str> = word.split('.').collect();
        (2..=3).contains(&parts.len())
            && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

pub(super) fn gpus(root: &DriverRoot) -> Result<Vec<Gpu>, DriverError> {
    let folder = root.kernel_files.join("proc/driver/nvidia/gpus");
    let mut found = Vec::new();
    for (name, path) in children(&folder)? {
        let Some(address) = PciAddress::parse(&name) else { continue };
        let file = path.join("information");
        let read = || fs::read_to_string(&file).map_err(|source| DriverError::Read { path: file.clone(), source });
        let mut information = read()?;
        if field(&information, "GPU Excluded").is_some_and(|word| word.eq_ignore_ascii_case("yes")) {
            continue;
        }
        let Some(minor) = field(&information, "Device Minor").and_then(|word| word.parse().ok()) else {
            return Err(DriverError::Unreadable { path: file, missing: "a device minor" });
        };
        let node = root.devices.join(format!("dev/nvidia{minor}"));
        // Opening the node initializes the GPU. Only then does the driver know its UUID.
        if field(&information, "GPU UUID").is_none_or(|uuid| uuid.contains('?'))
            && let Ok(_started) = fs::File::options().read(true).write(true).open(&node)
        {
            information = read()?;
        }
        let gpu = Gpu {
            index: 0,
            minor,
            uuid: field(&information, "GPU UUID").unwrap_or_default().to_owned(),
            bus: address.to_nvml_string(),
            model: field(&information, "Model").unwrap_or_default().to_owned(),
            mig_enabled: false,
            mig: Vec::new(),
        };
        found.push((address, availability(&node), gpu));
    }
    // NVML leaves out a GPU if another one is more available.
    let best = found.iter().map(|(_, node, _)| *node).max();
    found.retain(|(_, node, _)| Some(*node) == best);
    found.sort_by_key(|(address, ..)| *address);
    let mut gpus: Vec<Gpu> = found.into_iter().map(|(.., gpu)| gpu).collect();
    for (index, gpu) in gpus.iter_mut().enumerate() {
        gpu.index = index as u32;
        gpu.mig = mig(root, gpu.minor)?;
        gpu.mig_enabled = !gpu.mig.is_empty();
    }
    Ok(gpus)
}

/// Whether this process can use a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Availability {
    NoNode,
    /// The device cgroup of this process forbids the node, such as for a GPU of another Slurm job.
    Forbidden,
    Free,
}

/// Does not open the node, because that would initialize the GPU.
fn availability(node: &Path) -> Availability {
    match rustix::fs::access(node, Access::READ_OK | Access::WRITE_OK) {
        // EACCES, by mode or owner, does not matter: a process may get the node's group later.
        Err(Errno::PERM) => Availability::Forbidden,
        _ if node.exists() => Availability::Free,
        _ => Availability::NoNode,
    }
}

/// The compute instances for which the driver has capabilities, sorted.
fn mig(root: &DriverRoot, minor: u32) -> Result<Vec<Mig>, DriverError> {
    let folder = root.kernel_files.join(format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"));
    let mut found = Vec::new();
    for (gpu_instance, path) in numbered(&folder, "gi")? {
        for (compute_instance, _) in numbered(&path, "ci")? {
            found.push((gpu_instance, compute_instance));
        }
    }
    found.sort_unstable();
    let with_index = found.into_iter().enumerate();
    Ok(with_index
        .map(|(index, (gpu_instance, compute_instance))| Mig {
            index: index as u32,
            uuid: String::new(),
            gpu_instance,
            compute_instance,
        })
        .collect())
}

pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':')).map(str::trim)
}

fn children(folder: &Path) -> Result<Vec<(String, PathBuf)>, DriverError> {
    let failed = |source| DriverError::Read { path: folder.to_path_buf(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        found.extend(entry.file_name().to_str().map(|name| (name.to_owned(), entry.path())));
    }
    Ok(found)
}

fn numbered(folder: &Path, word: &str) -> Result<Vec<(u32, PathBuf)>, DriverError> {
    let number = |(name, path): (String, PathBuf)| Some((name.strip_prefix(word)?.parse().ok()?, path));
    Ok(children(folder)?.into_iter().filter_map(number).collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl PciAddress {
    /// Reads `domain:bus:device.function` in hexadecimal, with or without leading zeros, in either case.
    pub(super) fn parse(text: &str) -> Option<PciAddress> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let small = |digits: &str| u8::from_str_radix(hexadecimal(digits)?, 16).ok();
        let domain = u32::from_str_radix(hexadecimal(domain)?, 16).ok()?;
        Some(PciAddress { domain, bus: small(bus)?, device: small(device)?, function: small(function)? })
    }

    /// As in `00000000:1B:00.0`.
    fn to_nvml_string(self) -> String {
        format!("{:08X}:{:02X}:{:02X}.{:X}", self.domain, self.bus, self.device, self.function)
    }

    /// As the kernel names it below `/sys` and `/proc`: `0000:1b:00.0`.
    pub(super) fn to_sysfs_string(self) -> String {
        format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Returns the text if it has digits only. `from_str_radix` would accept a sign.
fn hexadecimal(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_found_in_both_banners() {
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 12.2.0\n";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12 09:19:07 UTC 2022\n";
        assert_eq!(release_in(open), Some("580.159.04"));
        assert_eq!(release_in(closed), Some("390.157"));
        assert_eq!(release_in("GCC version: 12.2.0\n"), None);
        assert_eq!(release_in("NVRM version: x86_64 535. .1 1..2 1.2.3.4"), None);
    }

    proptest::proptest! {
        #[test]
        fn malformed_text_never_panics(text: String, name in "[A-Z]?[a-z:]{0,3}") {
            let _ = release_in(&text);
            let _ = release_in(&format!("NVRM version: {text}"));
            let _ = field(&text, &name);
            if let Some(address) = PciAddress::parse(&text) {
                assert_eq!(PciAddress::parse(&address.to_nvml_string()), Some(address));
            }
        }
    }

    #[test]
    fn every_spelling_of_address_is_parsed() {
        let same = ["0000:1b:00.0", "00000000:1B:00.0", "0:1b:0.0"].map(PciAddress::parse);
        assert_eq!(same[0].map(PciAddress::to_nvml_string).as_deref(), Some("00000000:1B:00.0"));
        assert_eq!(same[0].map(PciAddress::to_sysfs_string).as_deref(), Some("0000:1b:00.0"));
        assert!(same.iter().all(|address| *address == same[0]));
        for wrong in ["", "1b:00.0", "0000:1b:00", "+0:1b:00.0", "0000:1bb:00.0", "0000:1b:00.", "x:1b:00.0"] {
            assert_eq!(PciAddress::parse(wrong), None, "{wrong}");
        }
    }
}
