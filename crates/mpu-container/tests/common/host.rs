//! A fake host in a directory: the driver's procfs files, its libraries, and device nodes if a case needs them.
//!
//! The executable reads the driver's procfs files below the driver's root if they exist there, so no function is mocked.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::fake_library::library;

/// The default release of the driver.
pub const RELEASE: &str = "580.159.04";

/// The library directory, `$L` in cases.
pub fn libraries() -> String {
    format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)
}

/// The driver's libraries with their sonames: at least one for each capability.
const LIBRARIES: &[(&str, &str)] = &[
    ("libnvidia-ml", "libnvidia-ml.so.1"),
    ("libnvidia-cfg", "libnvidia-cfg.so.1"),
    ("libcuda", "libcuda.so.1"),
    ("libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler.so.1"),
    ("libnvidia-opencl", "libnvidia-opencl.so.1"),
    ("libnvidia-encode", "libnvidia-encode.so.1"),
    ("libnvcuvid", "libnvcuvid.so.1"),
    ("libnvidia-opticalflow", "libnvidia-opticalflow.so.1"),
    ("libGLX_nvidia", "libGLX_nvidia.so.0"),
    ("libEGL_nvidia", "libEGL_nvidia.so.0"),
    ("libnvidia-glcore", "libnvidia-glcore.so.580.159.04"),
    ("libnvidia-allocator", "libnvidia-allocator.so.1"),
    ("libnvidia-ngx", "libnvidia-ngx.so.1"),
];

/// Other files of a driver.
const FILES: &[&str] = &[
    "usr/bin/nvidia-smi",
    "usr/bin/nvidia-debugdump",
    "usr/bin/nvidia-persistenced",
    "usr/bin/nvidia-cuda-mps-control",
    "usr/bin/nvidia-cuda-mps-server",
    "lib/firmware/nvidia/580.159.04/gsp_ga10x.bin",
    "run/nvidia-persistenced/socket",
    "usr/share/vulkan/icd.d/nvidia_icd.json",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "usr/share/nvidia/nvoptix.bin",
];

const BUSES: [&str; 4] = ["0000:1b:00.0", "0000:43:00.0", "0000:9b:00.0", "0001:c3:00.0"];

/// A device node below `/dev`: name, major, minor.
type Node = (&'static str, u32, u32);

/// The device nodes of a feature.
const NODES: &[(&str, &[Node])] = &[
    ("gds", &[("nvidia-fs0", 500, 0), ("nvidia-fs1", 500, 1)]),
    ("gdrcopy", &[("gdrdrv", 501, 0)]),
    ("mofed", &[("infiniband/uverbs0", 231, 192), ("infiniband/uverbs1", 231, 193), ("infiniband/rdma_cm", 10, 58)]),
    ("nvswitch", &[("nvidia-nvswitchctl", 502, 255), ("nvidia-nvswitch0", 502, 0)]),
    ("imex", &[("nvidia-caps-imex-channels/channel0", 236, 0), ("nvidia-caps-imex-channels/channel7", 236, 7)]),
    (
        "nodes",
        &[
            ("nvidiactl", 195, 255),
            ("nvidia0", 195, 0),
            ("nvidia1", 195, 1),
            ("nvidia-uvm", 510, 0),
            ("nvidia-uvm-tools", 510, 1),
            ("nvidia-modeset", 195, 254),
        ],
    ),
];

/// Creates a host below `root` with these features: `gpus=N`, `release=X`, `no-driver`, `no-libraries`, `only-cuda`, `lib32`, `lib64` (the
/// library directory of RPM distributions), `drm`, `mig` (GPU 1 has MIG devices), `mig-caps`, `excluded` (GPU 0 is excluded), the features
/// of [`NODES`], and `closed` (mode 0660 for these nodes).
///
/// # Errors
/// The reason why this machine cannot create such a host.
pub fn make(root: &Path, features: &[String]) -> Result<(), String> {
    let has = |word: &str| features.iter().any(|feature| feature == word);
    let value = |key: &str| features.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let release = value("release").unwrap_or(RELEASE);
    let gpus = value("gpus").map_or(2, |count| count.parse().expect("a number"));
    // Always created: the executable then looks for procfs files below this root.
    fs::create_dir_all(root.join("proc/driver/nvidia/gpus")).expect("a folder");
    write(
        root,
        "proc/devices",
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n234 nvidia-caps\n\
        236 nvidia-caps-imex-channels\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n",
    );
    // The executable then also looks for nodes below this root, and not in this machine's /dev.
    write(root, "dev/nvidiactl", "");
    if has("no-driver") {
        return Ok(());
    }
    write(
        root,
        "proc/driver/nvidia/version",
        &format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {release}  Release Build\n"),
    );
    write(root, "proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileMode: 438\n");
    for (minor, bus) in BUSES.iter().take(gpus).enumerate() {
        let excluded = if has("excluded") && minor == 0 { "Yes" } else { "No" };
        let text = format!(
            "Model: \t\t NVIDIA H200\nIRQ:   \t\t 42\nGPU UUID: \t GPU-0000000{minor}-1111-2222-3333-444444444444\nBus Location: \t {bus}\n\
             Device Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
        );
        write(root, &format!("proc/driver/nvidia/gpus/{bus}/information"), &text);
        if has("drm") {
            for (name, number) in
                [(format!("card{}", minor + 1), minor + 1), (format!("renderD{}", 128 + minor), 128 + minor)]
            {
                write(root, &format!("sys/bus/pci/devices/{bus}/drm/{name}/dev"), &format!("226:{number}\n"));
                write(root, &format!("dev/dri/{name}"), "");
                let kind = if name.starts_with("card") { "card" } else { "render" };
                fs::create_dir_all(root.join("dev/dri/by-path")).expect("a folder");
                symlink(format!("../{name}"), root.join(format!("dev/dri/by-path/pci-{bus}-{kind}"))).expect("a link");
            }
        }
    }
    let access = |minor: u32| format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
    let capabilities = "proc/driver/nvidia/capabilities";
    if has("mig") || has("mig-caps") {
        write(root, &format!("{capabilities}/mig/config"), &access(1));
        write(root, &format!("{capabilities}/mig/monitor"), &access(2));
    }
    if has("mig") {
        for (file, minor) in [("gi1/access", 12), ("gi1/ci0/access", 13), ("gi2/access", 21), ("gi2/ci0/access", 22)] {
            write(root, &format!("{capabilities}/gpu1/mig/{file}"), &access(minor));
        }
    }
    files(root, release, &has);
    for (name, major, minor) in NODES.iter().filter(|(word, _)| has(word)).flat_map(|(_, nodes)| *nodes) {
        let mode = if has("closed") { 0o660 } else { 0o666 };
        node(&root.join("dev").join(name), *major, *minor, mode)
            .map_err(|error| format!("cannot make a device node: {error}"))?;
    }
    Ok(())
}

fn files(root: &Path, release: &str, has: &impl Fn(&str) -> bool) {
    if has("no-libraries") {
        return;
    }
    let folder = if has("lib64") { "/usr/lib64".to_owned() } else { libraries() };
    let folder = folder.trim_start_matches('/');
    for (stem, soname) in LIBRARIES.iter().filter(|(stem, _)| !has("only-cuda") || *stem == "libcuda") {
        let path = root.join(folder).join(format!("{stem}.so.{release}"));
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, library(soname, true)).expect("a library");
    }
    if has("lib32") {
        let folder = root.join("usr/lib/i386-linux-gnu");
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(format!("libcuda.so.{release}")), library("libcuda.so.1", false)).expect("a library");
    }
    for file in FILES.iter().filter(|_| !has("only-cuda")) {
        write(root, &file.replace(RELEASE, release), "x");
    }
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn node(path: &Path, major: u32, minor: u32, mode: u32) -> rustix::io::Result<()> {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let _ = fs::remove_file(path);
    mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(mode), makedev(major, minor))?;
    // Whatever the umask.
    rustix::fs::chmod(path, Mode::from_raw_mode(mode))
}
