//! Version 1: the `devices` controller's files.
//!
//! Source: Linux, `Documentation/admin-guide/cgroup-v1/devices.rst`.

use super::CgroupError;
use super::program::DeviceNumber;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Opened {
    cgroup: PathBuf,
    added: Vec<DeviceNumber>,
}

pub fn open(cgroup: &Path, devices: &[DeviceNumber]) -> Result<Opened, CgroupError> {
    let list = cgroup.join("devices.list");
    let rules = fs::read_to_string(&list).map_err(|source| CgroupError::File { path: list, source })?;
    let mut opened = Opened { cgroup: cgroup.into(), added: Vec::new() };
    for device in devices.iter().filter(|device| !allowed(&rules, device)) {
        if let Err(error) = write(cgroup, "devices.allow", device) {
            // The first error is reported.
            let _ = opened.undo();
            return Err(error);
        }
        opened.added.push(*device);
    }
    Ok(opened)
}

impl Opened {
    pub fn undo(self) -> Result<(), CgroupError> {
        self.added.iter().try_for_each(|device| write(&self.cgroup, "devices.deny", device))
    }
}

fn write(cgroup: &Path, file: &str, device: &DeviceNumber) -> Result<(), CgroupError> {
    let path = cgroup.join(file);
    // The kernel accepts one rule per write.
    let file = fs::OpenOptions::new().write(true).open(&path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, rule(device).as_bytes()))
        .map_err(|source| CgroupError::File { path, source })
}

fn rule(device: &DeviceNumber) -> String {
    format!("c {}:{} rw", device.major, device.minor)
}

fn allowed(list: &str, device: &DeviceNumber) -> bool {
    let matches = |pattern: &str, number: u32| pattern == "*" || pattern.parse() == Ok(number);
    list.lines().any(|line| {
        let mut words = line.split([' ', ':']);
        let (kind, major, minor, access) = (words.next(), words.next(), words.next(), words.next());
        let (Some(kind @ ("a" | "c")), Some(major), Some(minor), Some(access)) = (kind, major, minor, access) else {
            return false;
        };
        let all = kind == "a";
        (all || matches(major, device.major) && matches(minor, device.minor))
            && access.contains('r')
            && access.contains('w')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_devices_are_recognized() {
        let gpu = DeviceNumber { major: 195, minor: 0 };
        assert!(allowed("a *:* rwm\n", &gpu));
        assert!(allowed("c 1:3 rwm\nc 195:* rw\n", &gpu));
        for list in ["c 195:1 rwm\n", "c 195:0 r\n", "b 195:0 rwm\n", "c 1950:0 rwm\n", "", "c 195\n"] {
            assert!(!allowed(list, &gpu), "{list}");
        }
    }

    #[test]
    fn real_cgroup_is_opened_and_closed_again() {
        let root = Path::new("/sys/fs/cgroup/devices");
        let cgroup = root.join(format!("mpu-v1-{}", std::process::id()));
        if fs::create_dir(&cgroup).is_err() {
            return eprintln!("skipped: no devices cgroup of version 1 that can be written");
        }
        let _guard = RemoveOnDrop(cgroup.clone());
        fs::write(cgroup.join("devices.deny"), "a").unwrap();
        let list = || fs::read_to_string(cgroup.join("devices.list")).unwrap();
        fs::write(cgroup.join("devices.allow"), "c 1:3 rwm").unwrap();
        let before = list();
        let devices = [(195, 0), (195, 255), (1, 3)].map(|(major, minor)| DeviceNumber { major, minor });
        let opened = open(&cgroup, &devices).unwrap();
        assert!(list().contains("c 195:255 rw\n"), "{}", list());
        assert!(open(&cgroup, &devices).unwrap().added.is_empty(), "a second time adds nothing");
        opened.undo().unwrap();
        assert_eq!(list(), before);
    }

    struct RemoveOnDrop(PathBuf);

    impl Drop for RemoveOnDrop {
        fn drop(&mut self) {
            fs::remove_dir(&self.0).unwrap();
        }
    }
}
