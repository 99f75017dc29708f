//! The container's process, as an open directory of procfs, and entry into its mount namespace. After the process has ended, reads
//! through that directory fail, even if its PID is reused.
//!
//! Source: proc(5), setns(2); `PROC_USER_INIT_INO` in Linux, `include/linux/proc_ns.h`.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

#[derive(Debug)]
pub struct Process {
    directory: OwnedFd,
}

impl Process {
    pub fn of(pid: Option<Pid>) -> std::io::Result<Process> {
        let path = match pid {
            Some(pid) => format!("/proc/{}", pid.as_raw_nonzero()),
            None => "/proc/self".into(),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Process { directory: rustix::fs::openat(CWD, path, flags, Mode::empty())? })
    }

    pub fn read(&self, file: &str) -> std::io::Result<String> {
        let mut text = String::new();
        self.open(file)?.read_to_string(&mut text)?;
        Ok(text)
    }

    pub fn mount_namespace(&self) -> std::io::Result<Namespace> {
        self.open("ns/mnt").map(Namespace)
    }

    fn open(&self, file: &str) -> std::io::Result<File> {
        let fd = rustix::fs::openat(&self.directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(fd))
    }
}

#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Moves this process into the namespace; its root and working directory become the namespace's. The process must
    /// have one thread.
    pub fn enter(&self) -> std::io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Mount))?)
    }
}

/// Whether this process is in a user namespace other than the host's. There, device cgroups cannot be changed and
/// kernel modules cannot be loaded.
pub fn in_user_namespace() -> bool {
    const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFD;
    // A kernel without user namespaces has no such file.
    std::fs::metadata("/proc/self/ns/user").is_ok_and(|metadata| metadata.ino() != INITIAL_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn ended_process_is_error() {
        let mut child = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
        let process = Process::of(Pid::from_raw(child.id() as i32)).unwrap();
        assert!(process.read("cgroup").unwrap().contains(':'));
        assert!(process.mount_namespace().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.read("cgroup").is_err());
        assert!(process.mount_namespace().is_err());
        assert!(Process::of(Pid::from_raw(i32::MAX)).is_err());
    }
}
