//! Files below /proc/driver/nvidia for fake GPUs, and their device nodes.
//!
//! Source: NVIDIA's open kernel modules, `nv-procfs.c`; the layout of a real H200's files.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// The major number of nvidia-uvm; the other nodes have 195.
pub const UVM_MAJOR: u32 = 235;

pub fn uuid(gpu: u32) -> String {
    format!("GPU-6d70752d-7269-6700-0000-00000000000{gpu}")
}

/// Its PCI address as the kernel writes it.
pub fn bus(gpu: u32) -> String {
    format!("0000:{:02x}:00.0", 0x1b + gpu)
}

/// Writes the files of /proc/driver below `work/facts`, and those of /proc/devices to `work/devices`.
pub fn write(work: &Path, release: &str, gpus: u32) -> std::io::Result<()> {
    let nvidia = work.join("facts/nvidia");
    fs::create_dir_all(nvidia.join("gpus"))?;
    let banner = format!(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {release}  Tue Apr  8 12:41:17 UTC 2025\n\
         GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    );
    fs::write(nvidia.join("version"), banner)?;
    fs::write(
        nvidia.join("params"),
        "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\nRegistryDwords: \"\"\n",
    )?;
    fs::write(nvidia.join("registry"), "Binary: \"\"\n")?;
    for gpu in 0..gpus {
        let folder = nvidia.join("gpus").join(bus(gpu));
        fs::create_dir(&folder)?;
        let information = format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t {}\nGPU UUID: \t {}\nVideo BIOS: \t 96.00.bc.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n\
             DMA Mask: \t 0xfffffffffffff\nBus Location: \t {}\nDevice Minor: \t {gpu}\nGPU Firmware: \t {release}\nGPU Excluded:\t No\n",
            90 + gpu,
            uuid(gpu),
            bus(gpu),
        );
        fs::write(folder.join("information"), information)?;
        fs::write(folder.join("registry"), "Binary: \"\"\n")?;
    }
    let devices = fs::read_to_string("/proc/devices")?;
    let majors = format!("195 nvidia\n195 nvidiactl\n{UVM_MAJOR} nvidia-uvm\n");
    fs::write(
        work.join("devices"),
        devices.replacen("Character devices:\n", &format!("Character devices:\n{majors}"), 1),
    )
}

/// The nodes: `name major minor`, one a line.
pub fn nodes(gpus: u32) -> String {
    let mut nodes = format!(
        "nvidiactl 195 255\nnvidia-modeset 195 254\nnvidia-uvm {UVM_MAJOR} 0\nnvidia-uvm-tools {UVM_MAJOR} 1\n"
    );
    for gpu in 0..gpus {
        let _ = writeln!(nodes, "nvidia{gpu} 195 {gpu}");
    }
    nodes
}
