//! Version 2: device programs.
//!
//! All programs of a cgroup must allow an access, so an additional program cannot allow more. Each existing program is replaced by one
//! that allows our devices and otherwise acts as before. A cgroup without programs forbids nothing and stays unchanged. Its ancestors
//! stay unchanged, too, because other containers share them.
//!
//! Source: Linux, `kernel/bpf/cgroup.c`; crun, which puts a container into the cgroup `container` below its scope and attaches a
//! program to the scope, too.

use super::program::{self, DeviceNumber};
use super::{CgroupError, sys};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Replaced {
    path: PathBuf,
    cgroup: File,
    flags: u32,
    old: OwnedFd,
    new: OwnedFd,
}

#[derive(Debug, Default)]
pub struct Opened {
    pub replaced: Vec<Replaced>,
    /// Programs that a security module hides from us, as SELinux does with systemd's programs. They are skipped, as runc skips them.
    pub hidden: usize,
}

pub fn open(cgroup: &Path, devices: &[DeviceNumber]) -> Result<Opened, CgroupError> {
    let mut opened = Opened::default();
    for cgroup in cgroup_and_scope(cgroup) {
        if let Err(error) = open_one(cgroup, devices, &mut opened) {
            // The first error is reported.
            let _ = opened.undo();
            return Err(error);
        }
    }
    Ok(opened)
}

fn cgroup_and_scope(cgroup: &Path) -> impl Iterator<Item = &Path> {
    let scope = cgroup.parent().filter(|parent| {
        cgroup.file_name().is_some_and(|name| name == "container")
            && parent.extension().is_some_and(|extension| extension == "scope")
    });
    std::iter::once(cgroup).chain(scope)
}

fn open_one(path: &Path, devices: &[DeviceNumber], opened: &mut Opened) -> Result<(), CgroupError> {
    let cgroup = File::open(path).map_err(|source| CgroupError::File { path: path.into(), source })?;
    let failed =
        |action| move |errno: Errno| CgroupError::Program { action, cgroup: path.into(), source: errno.into() };
    let (ids, flags) = sys::attached(cgroup.as_fd()).map_err(failed("look for"))?;
    for id in ids {
        let old = match sys::open_by_id(id) {
            Err(Errno::PERM | Errno::ACCESS) => {
                opened.hidden += 1;
                continue;
            }
            old => old.map_err(failed("open"))?,
        };
        let instructions = sys::instructions(old.as_fd()).map_err(failed("read"))?;
        if instructions.is_empty() {
            return Err(CgroupError::Hidden(path.into()));
        }
        if program::starts_with_rules(&instructions, devices) {
            continue;
        }
        let instructions = program::prepend_rules(&instructions, devices).ok_or(CgroupError::TooMany(devices.len()))?;
        let new = with_locked_memory(|| sys::load(&instructions)).map_err(failed("load"))?;
        sys::replace(cgroup.as_fd(), old.as_fd(), new.as_fd(), flags).map_err(failed("replace"))?;
        let cgroup = cgroup.try_clone().map_err(|source| CgroupError::File { path: path.into(), source })?;
        opened.replaced.push(Replaced { path: path.into(), cgroup, flags, old, new });
    }
    Ok(())
}

impl Opened {
    fn undo(self) -> Result<(), CgroupError> {
        self.replaced.into_iter().rev().try_for_each(Replaced::undo)
    }
}

impl Replaced {
    fn undo(self) -> Result<(), CgroupError> {
        sys::replace(self.cgroup.as_fd(), self.new.as_fd(), self.old.as_fd(), self.flags).map_err(|errno| {
            CgroupError::Program { action: "put back", cgroup: self.path.clone(), source: errno.into() }
        })
    }
}

/// Retries with an unlimited `RLIMIT_MEMLOCK`: kernels before 5.11 count programs as locked memory.
fn with_locked_memory<T>(load: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    let loaded = load();
    if loaded.as_ref().err() != Some(&Errno::PERM) {
        return loaded;
    }
    let before = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    let loaded = load();
    setrlimit(Resource::Memlock, before)?;
    loaded
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::FileTypeExt;
    use std::process::Command;

    #[test]
    fn crun_scope_belongs_to_container() {
        let paths =
            |path| cgroup_and_scope(Path::new(path)).map(|path| path.to_str().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(paths("/c/libpod-1.scope/container"), ["/c/libpod-1.scope/container", "/c/libpod-1.scope"]);
        assert_eq!(paths("/c/pod.slice/container"), ["/c/pod.slice/container"]);
        assert_eq!(paths("/c/docker-1.scope"), ["/c/docker-1.scope"]);
    }

    /// A real cgroup with the device programs of a test.
    struct RestrictedCgroup {
        path: PathBuf,
        handle: File,
    }

    impl RestrictedCgroup {
        fn new(name: &str, programs: &[Vec<u64>], flags: u32) -> Option<RestrictedCgroup> {
            let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().map(Path::new);
            let root = root.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
            let path = root.join(format!("mpu-v2-{name}-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            let cgroup = RestrictedCgroup { handle: File::open(&path).unwrap(), path };
            for program in programs {
                let program = with_locked_memory(|| sys::load(program)).ok()?;
                sys::add(cgroup.handle.as_fd(), program.as_fd(), flags).ok()?;
            }
            Some(cgroup)
        }

        /// Whether a process in the cgroup can open a device.
        fn opens(&self, device: &str) -> bool {
            let script = r#"echo $$ > "$1/cgroup.procs" && exec 3<> "$2""#;
            let path = self.path.to_str().unwrap();
            // This process opens /dev/null for its standard error, outside the cgroup.
            let mut command = Command::new("sh");
            let quiet = command.args(["-c", script, "sh", path, device]).stderr(std::process::Stdio::null());
            quiet.status().unwrap().success()
        }
    }

    impl Drop for RestrictedCgroup {
        fn drop(&mut self) {
            // The last process may still be exiting.
            for _ in 0..100 {
                if fs::remove_dir(&self.path).is_ok() {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            panic!("{} is still there", self.path.display());
        }
    }

    fn numbers(device: &str) -> DeviceNumber {
        use std::os::unix::fs::MetadataExt;
        let about = fs::metadata(device).unwrap();
        assert!(about.file_type().is_char_device());
        DeviceNumber { major: rustix::fs::major(about.rdev()), minor: rustix::fs::minor(about.rdev()) }
    }

    #[test]
    fn device_access_in_real_cgroup_is_reversible() {
        const ALLOW_OVERRIDE: u32 = 1;
        let old = program::constant(0);
        for (programs, flags) in [(1, sys::ALLOW_MULTI), (2, sys::ALLOW_MULTI), (1, 0), (1, ALLOW_OVERRIDE)] {
            let Some(cgroup) = RestrictedCgroup::new("one", &vec![old.clone(); programs], flags) else {
                return eprintln!("skipped: device programs cannot be attached here");
            };
            assert!(!cgroup.opens("/dev/full"), "the old program must refuse first");
            let devices = [numbers("/dev/full")];
            let opened = open(&cgroup.path, &devices).unwrap();
            assert_eq!((opened.replaced.len(), opened.hidden), (programs, 0));
            assert!(cgroup.opens("/dev/full") && !cgroup.opens("/dev/zero"));
            assert!(open(&cgroup.path, &devices).unwrap().replaced.is_empty(), "a second time replaces nothing");
            let more = open(&cgroup.path, &[numbers("/dev/zero")]).unwrap();
            assert!(cgroup.opens("/dev/full") && cgroup.opens("/dev/zero"));
            more.undo().unwrap();
            opened.undo().unwrap();
            assert!(!cgroup.opens("/dev/full") && !cgroup.opens("/dev/zero"));
        }
    }

    #[test]
    fn cgroup_without_program_is_left_alone() {
        let Some(cgroup) = RestrictedCgroup::new("none", &[], 0) else {
            return eprintln!("skipped: no cgroup of version 2 can be made here");
        };
        assert!(open(&cgroup.path, &[numbers("/dev/full")]).unwrap().replaced.is_empty());
        assert!(sys::attached(cgroup.handle.as_fd()).unwrap().0.is_empty());
        assert!(cgroup.opens("/dev/full"));
    }

    #[test]
    fn runtime_device_rules_still_apply() {
        // A program as runtimes write it: it loads the type as a half word and checks rules in sequence. It allows only /dev/zero.
        let zero = numbers("/dev/zero");
        let [load_half, exit] = [0x0000_0000_0000_1269, 0x0000_0000_0000_0095];
        let [load_major, load_minor] = [0x0000_0000_0004_1461, 0x0000_0000_0008_1561];
        let unless =
            |register: u64, number: u32, skip: u64| 0x55 | register << 8 | skip << 16 | u64::from(number) << 32;
        let result = |yes: u64| 0xb7 | yes << 32;
        let rules = [unless(2, 2, 4), unless(4, zero.major, 3), unless(5, zero.minor, 2), result(1), exit];
        let program = [&[load_half, load_major, load_minor], &rules[..], &[result(0), exit]].concat();
        let Some(cgroup) = RestrictedCgroup::new("own", &[program], sys::ALLOW_MULTI) else {
            return eprintln!("skipped: device programs cannot be attached here");
        };
        assert!(cgroup.opens("/dev/zero") && !cgroup.opens("/dev/full"));
        assert_eq!(open(&cgroup.path, &[numbers("/dev/full")]).unwrap().replaced.len(), 1);
        assert!(cgroup.opens("/dev/zero") && cgroup.opens("/dev/full") && !cgroup.opens("/dev/random"));
    }
}
