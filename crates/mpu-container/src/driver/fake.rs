//! A fake host with a driver, for tests: its `/proc`, `/sys` and `/dev` are text files in a folder.
//!
//! Its nodes are plain files.

use super::DriverRoot;
pub(crate) use super::fake_library::library;
use rustix::fs::{AtFlags, CWD, FileType, chmodat, makedev, mknodat};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// The release of most fake drivers.
pub(crate) const RELEASE: &str = "580.159.04";

/// The library folder of a 64-bit Debian.
pub(crate) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

pub(crate) fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0).expect("a pipe");
}

/// Creates a character device. Needs root.
pub(crate) fn node(path: &Path, mode: u32, major: u32, minor: u32) -> rustix::io::Result<()> {
    mknodat(CWD, path, FileType::CharacterDevice, mode.into(), makedev(major, minor))?;
    chmodat(CWD, path, mode.into(), AtFlags::empty())
}

pub(crate) struct Host(tempfile::TempDir);

impl Host {
    pub(crate) fn empty() -> Host {
        Host(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn with_driver(version: &str) -> Host {
        let host = Host::empty();
        let banner = format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n");
        host.write("proc/driver/nvidia/version", banner);
        host.write(
            "proc/devices",
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n234 nvidia-caps\n\
             510 nvidia-uvm\n\nBlock devices:\n  8 sd\n234 nvidia-caps-imex-channels\n",
        );
        host
    }

    /// With one GPU, and those libraries of the driver.
    pub(crate) fn with_gpu(stems: &[&str]) -> Host {
        let host = Host::with_driver(RELEASE);
        host.gpu("0000:1b:00.0", 0, "GPU-aaaaaaaa-0000-0000-0000-000000000000");
        host.libraries_of_driver(stems);
        host
    }

    pub(crate) fn libraries_of_driver(&self, stems: &[&str]) {
        for stem in stems {
            self.library(&format!("{LIBRARIES}/{stem}.so.{RELEASE}"), &format!("{stem}.so.1"), true);
        }
    }

    pub(crate) fn library(&self, path: &str, soname: &str, wide: bool) {
        self.write(path, library(soname, wide));
    }

    pub(crate) fn link(&self, target: impl AsRef<Path>, path: &str) {
        self.write(path, "");
        fs::remove_file(self.path().join(path)).expect("a file");
        symlink(target, self.path().join(path)).expect("a link");
    }

    pub(crate) fn gpu(&self, address: &str, minor: u32, uuid: &str) {
        let text = format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n\
             Device Minor: \t {minor}\nGPU Excluded:\t No\n"
        );
        self.write(&format!("proc/driver/nvidia/gpus/{address}/information"), text);
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn root(&self) -> DriverRoot {
        let path = self.path().to_path_buf();
        DriverRoot { files: path.clone(), devices: path.clone(), kernel_files: path }
    }
}
