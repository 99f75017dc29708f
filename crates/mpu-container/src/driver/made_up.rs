//! A host with a driver, made up in a folder: its `/proc`, `/sys` and `/dev` as text files, for the tests of this crate.
//!
//! The nodes are plain files: who needs real ones must be root and belongs into `tests/`.

use super::DriverRoot;
use std::fs;
use std::path::Path;

/// A folder that looks like a host.
pub(crate) struct Host(tempfile::TempDir);

impl Host {
    /// An empty one.
    pub(crate) fn empty() -> Host {
        Host(tempfile::tempdir().expect("a folder"))
    }

    /// One with the driver loaded and no GPU.
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

    /// Adds a GPU.
    pub(crate) fn gpu(&self, address: &str, minor: u32, uuid: &str) {
        let text = format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n\
             Device Minor: \t {minor}\nGPU Excluded:\t No\n"
        );
        self.write(&format!("proc/driver/nvidia/gpus/{address}/information"), &text);
    }

    /// Writes a file, and the folders on the way to it.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// As a driver's root: files, nodes and facts.
    pub(crate) fn root(&self) -> DriverRoot {
        let path = self.path().to_path_buf();
        DriverRoot { files: path.clone(), devices: path.clone(), facts: path }
    }
}

/// A shared library that holds nothing but its name: header, one loaded segment, one dynamic segment.
pub(crate) fn library(soname: &str, wide: bool) -> Vec<u8> {
    let (header, segment, word) = if wide { (64usize, 56usize, 8usize) } else { (52, 32, 4) };
    let dynamic = header + 2 * segment;
    let strings = dynamic + 3 * 2 * word;
    let end = strings + 1 + soname.len() + 1;
    let mut file = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1];
    file.resize(16, 0);
    let put = |file: &mut Vec<u8>, value: usize, size: usize| file.extend_from_slice(&value.to_le_bytes()[..size]);
    let machine = match (wide, cfg!(target_arch = "aarch64")) {
        (true, false) => 62,
        (false, false) => 3,
        (true, true) => 183,
        (false, true) => 40,
    };
    for (value, size) in [(3, 2), (machine, 2), (1, 4), (0, word), (header, word), (0, word), (0, 4), (header, 2)] {
        put(&mut file, value, size);
    }
    for value in [segment, 2, 0, 0, 0] {
        put(&mut file, value, 2);
    }
    for (kind, start, length) in [(1usize, 0usize, end), (2, dynamic, 3 * 2 * word)] {
        put(&mut file, kind, 4);
        if wide {
            put(&mut file, 4, 4);
        }
        for value in [start, start, start, length, length] {
            put(&mut file, value, word);
        }
        if !wide {
            put(&mut file, 4, 4);
        }
        put(&mut file, 1, word);
    }
    for (tag, value) in [(5, strings), (14, 1), (0, 0)] {
        put(&mut file, tag, word);
        put(&mut file, value, word);
    }
    file.push(0);
    file.extend_from_slice(soname.as_bytes());
    file.push(0);
    assert_eq!(file.len(), end);
    file
}
