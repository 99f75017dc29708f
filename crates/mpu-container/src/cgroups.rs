//! Finds a process's cgroup.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The process has no usable cgroup.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoCgroup(&'static str);

/// The directory of the cgroup that controls a process's devices.
#[derive(Debug, PartialEq, Eq)]
pub enum DevicesCgroup {
    /// Version 1's `devices` controller.
    V1(PathBuf),
    /// Version 2, with BPF programs instead of the controller.
    V2(PathBuf),
}

/// Finds the cgroup by a process's `cgroup` file and our own `mountinfo`. Version 1's controller takes precedence if it is in
/// use.
pub fn devices_cgroup(cgroups: &str, mounts: &str) -> Result<DevicesCgroup, NoCgroup> {
    let lines = || cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let v1 = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "devices"));
    let v2 = lines().find(|(controllers, _)| controllers.is_empty());
    let mounts: Vec<Mount> = mounts.lines().filter_map(mount).collect();
    let at = |is_match: fn(&Mount) -> bool, path: &str| {
        mounts.iter().filter(|mount| is_match(mount)).find_map(|mount| mount.cgroup_path(Path::new(path)))
    };
    match (v1, v2) {
        (Some((_, path)), _) => at(|mount| mount.kind == "cgroup" && mount.devices, path).map(DevicesCgroup::V1),
        (None, Some((_, path))) => at(|mount| mount.kind == "cgroup2", path).map(DevicesCgroup::V2),
        (None, None) => return Err(NoCgroup("the container's process is in no cgroup of devices")),
    }
    .ok_or(NoCgroup("the cgroup file system that holds the container's process is not mounted here"))
}

/// A process's directory in version 2, even if version 1 is also in use.
pub fn unified_cgroup(cgroups: &str, mounts: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let unified = mounts.lines().filter_map(mount).filter(|mount| mount.kind == "cgroup2");
    unified.into_iter().find_map(|mount| mount.cgroup_path(Path::new(path)))
}

pub fn has_unified(mounts: &str) -> bool {
    mounts.lines().filter_map(mount).any(|mount| mount.kind == "cgroup2")
}

struct Mount<'a> {
    kind: &'a str,
    devices: bool,
    root: PathBuf,
    point: PathBuf,
}

impl Mount<'_> {
    /// The path of a cgroup in this mount. A mount can show only a part of the hierarchy.
    fn cgroup_path(&self, cgroup: &Path) -> Option<PathBuf> {
        let below = cgroup.strip_prefix(&self.root).ok()?;
        let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        inside.then(|| self.point.join(below))
    }
}

fn mount(line: &str) -> Option<Mount<'_>> {
    let (fields, rest) = line.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(3);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let mut rest = rest.split(' ');
    let kind = rest.next()?;
    let devices = rest.nth(1)?.split(',').any(|option| option == "devices");
    Some(Mount { kind, devices, root, point })
}

/// Decodes spaces, tabs, line ends and backslashes: a backslash and three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'\\').then(|| after.get(..3)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = &after[if code.is_some() { 3 } else { 0 }..];
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "30 1 0:20 / /proc rw - proc proc rw
25 24 0:22 / /sys/fs/cgroup/devices rw,nosuid shared:9 - cgroup cgroup rw,devices
26 24 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
bad line";

    fn find(cgroups: &str, mounts: &str) -> Option<DevicesCgroup> {
        devices_cgroup(cgroups, mounts).ok()
    }

    #[test]
    fn devices_controller_takes_precedence() {
        let both = "5:devices:/ct/1\n2:cpu,cpuacct:/x\n0::/un\n";
        assert_eq!(find(both, HYBRID), Some(DevicesCgroup::V1("/sys/fs/cgroup/devices/ct/1".into())));
        assert_eq!(find("0::/un\n", HYBRID), Some(DevicesCgroup::V2("/sys/fs/cgroup/unified/un".into())));
        assert_eq!(find("2:cpu:/x\n", HYBRID), None);
        assert_eq!(find("", HYBRID), None);
    }

    #[test]
    fn mount_can_show_part_only() {
        let part = r"25 24 0:22 /docker/ab /mnt/a\040b rw - cgroup2 none rw";
        assert_eq!(find("0::/docker/ab/c:d\n", part), Some(DevicesCgroup::V2("/mnt/a b/c:d".into())));
        assert_eq!(find("0::/docker/ab\n", part), Some(DevicesCgroup::V2("/mnt/a b".into())));
        assert_eq!(find("0::/docker/other\n", part), None);
        assert_eq!(find("0::/../up\n", "1 1 0:1 / /m rw - cgroup2 none rw"), None);
    }

    #[test]
    fn missing_cgroup_hierarchy_is_reported() {
        let error = devices_cgroup("0::/x\n", "1 1 0:1 / / rw - ext4 none rw").unwrap_err();
        assert!(error.to_string().contains("is not mounted here"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_place_below_mount_or_error(cgroups in "([0-9]:[a-z,]{0,9}:[/.a-z]{0,12}\n){0,3}", mounts in ".{0,40}( - )?.{0,40}") {
            let mounts = format!("{HYBRID}\n{mounts}");
            if let Ok(DevicesCgroup::V1(path) | DevicesCgroup::V2(path)) = devices_cgroup(&cgroups, &mounts) {
                proptest::prop_assert!(!path.components().any(|part| part == std::path::Component::ParentDir));
            }
        }
    }
}
