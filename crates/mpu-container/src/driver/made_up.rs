//! A host with a driver, made up in a folder: its `/proc`, `/sys` and `/dev` as text files, for the tests of this crate.
//!
//! The nodes are plain files: who needs real ones must be root and belongs into `tests/`.

pub(crate) use super::made_up_library::library;
use super::DriverRoot;
use std::fs;
use std::path::Path;

pub(crate) struct Host(tempfile::TempDir);

impl Host {
    pub(crate) fn empty() -> Host {
        Host(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn with_driver(version: &str) -> Host {
        let host = Host::empty();
        let banner = format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n");
        host.write("proc/driver/nvidia/version", &banner);
        host.write(
            "proc/devices",
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n234 nvidia-caps\n\
             510 nvidia-uvm\n\nBlock devices:\n  8 sd\n234 nvidia-caps-imex-channels\n",
        );
        host
    }

    pub(crate) fn gpu(&self, address: &str, minor: u32, uuid: &str) {
        let text = format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n\
             Device Minor: \t {minor}\nGPU Excluded:\t No\n"
        );
        self.write(&format!("proc/driver/nvidia/gpus/{address}/information"), &text);
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn root(&self) -> DriverRoot {
        let path = self.path().to_path_buf();
        DriverRoot { files: path.clone(), devices: path.clone(), facts: path }
    }
}
