//! Tables of a driver's files, and the capabilities that bring them.
//!
//! Source: NVIDIA's driver README, "Installed components", 390 to 580; for capabilities, the output of `list` of NVIDIA's container
//! CLI. A library that libraries of another capability use comes with both: the compiler with graphics, the allocator with
//! GBM.

use crate::capability::Capability::{self, Compute, Display, Graphics, Ngx, Utility, Video};

/// A shared library, by its file's name before `.so`.
pub struct LibraryRow {
    /// `libcuda`.
    pub stem: &'static str,
    pub with: &'static [Capability],
    pub suffix: Suffix,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suffix {
    /// The driver's release. Leaves out libraries of other releases on the disk.
    Release,
    /// The library's own version, less than 100, or the driver's release.
    Own,
}

const fn row(stem: &'static str, with: &'static [Capability]) -> LibraryRow {
    LibraryRow { stem, with, suffix: Suffix::Release }
}

const fn own(stem: &'static str, with: &'static [Capability]) -> LibraryRow {
    LibraryRow { stem, with, suffix: Suffix::Own }
}

/// The shared libraries. A library of the driver's release that is not in the table, such as a newer driver's, comes only with
/// all capabilities.
pub const LIBRARIES: &[LibraryRow] = &[
    row("libnvidia-ml", &[Utility]),
    row("libnvidia-cfg", &[Utility]),
    row("libnvidia-nscq", &[Utility]),
    row("libnvidia-sandboxutils", &[Utility]),
    row("libcuda", &[Compute]),
    row("libcudadebugger", &[Compute]),
    row("libnvidia-opencl", &[Compute]),
    row("libnvidia-gpucomp", &[Compute, Graphics]),
    row("libnvidia-ptxjitcompiler", &[Compute]),
    row("libnvidia-fatbinaryloader", &[Compute]),
    row("libnvidia-allocator", &[Compute, Display, Graphics]),
    row("libnvidia-compiler", &[Compute]),
    row("libnvidia-pkcs11", &[Compute]),
    row("libnvidia-pkcs11-openssl3", &[Compute]),
    own("libnvidia-nvvm", &[Compute]),
    own("libnvidia-nvvm70", &[Compute]),
    row("libnvidia-tileiras", &[Compute]),
    row("libvdpau_nvidia", &[Video]),
    row("libnvidia-encode", &[Video]),
    row("libnvidia-opticalflow", &[Video]),
    row("libnvcuvid", &[Video]),
    row("libnvidia-eglcore", &[Graphics]),
    row("libnvidia-glcore", &[Graphics]),
    row("libnvidia-tls", &[Graphics]),
    row("libnvidia-glsi", &[Graphics]),
    row("libnvidia-fbc", &[Graphics]),
    row("libnvidia-ifr", &[Graphics]),
    row("libnvidia-rtcore", &[Graphics]),
    row("libnvoptix", &[Graphics]),
    row("libGLX_nvidia", &[Graphics]),
    row("libEGL_nvidia", &[Graphics]),
    row("libGLESv2_nvidia", &[Graphics]),
    row("libGLESv1_CM_nvidia", &[Graphics]),
    row("libnvidia-glvkspirv", &[Graphics]),
    row("libnvidia-cbl", &[Graphics]),
    row("libnvidia-vulkan-producer", &[Display, Graphics]),
    own("libnvidia-egl-gbm", &[Display, Graphics]),
    own("libnvidia-egl-wayland", &[Display, Graphics]),
    own("libnvidia-egl-wayland2", &[Display, Graphics]),
    own("libnvidia-egl-xcb", &[Display, Graphics]),
    own("libnvidia-egl-xlib", &[Display, Graphics]),
    row("libnvidia-ngx", &[Ngx]),
    own("libnvidia-api", &[Graphics, Ngx]),
];

/// A file in one of several folders.
pub struct FileRow {
    /// Its path below one of the folders. `VERSION` stands for the driver's release.
    pub name: &'static str,
    pub with: &'static [Capability],
}

const fn file(name: &'static str, with: &'static [Capability]) -> FileRow {
    FileRow { name, with }
}

/// The programs, in one of [`PROGRAM_FOLDERS`].
pub const PROGRAMS: &[FileRow] = &[
    file("nvidia-smi", &[Utility]),
    file("nvidia-debugdump", &[Utility]),
    file("nvidia-persistenced", &[Utility]),
    file("nv-fabricmanager", &[Utility]),
    file("nvidia-imex", &[Utility]),
    file("nvidia-imex-ctl", &[Utility]),
    file("nvidia-cuda-mps-control", &[Compute]),
    file("nvidia-cuda-mps-server", &[Compute]),
    file("nvidia-xconfig", &[Display, Graphics]),
];

pub const SOCKETS: &[FileRow] = &[
    file("run/nvidia-persistenced/socket", &[Utility]),
    file("run/nvidia-fabricmanager/socket", &[Utility]),
    file("tmp/nvidia-mps", &[Compute]),
];

/// Manifests and data, below one of [`DATA_FOLDERS`]; in a container, below `/usr/share`.
pub const DATA: &[FileRow] = &[
    file("glvnd/egl_vendor.d/10_nvidia.json", &[Display, Graphics]),
    file("egl/egl_external_platform.d/15_nvidia_gbm.json", &[Display, Graphics]),
    file("egl/egl_external_platform.d/10_nvidia_wayland.json", &[Display, Graphics]),
    file("egl/egl_external_platform.d/09_nvidia_wayland2.json", &[Display, Graphics]),
    file("egl/egl_external_platform.d/20_nvidia_xcb.json", &[Display, Graphics]),
    file("egl/egl_external_platform.d/20_nvidia_xlib.json", &[Display, Graphics]),
    file("nvidia/nvoptix.bin", &[Display, Graphics]),
    file("X11/xorg.conf.d/10-nvidia.conf", &[Display, Graphics]),
    file("X11/xorg.conf.d/nvidia-drm-outputclass.conf", &[Display, Graphics]),
];

/// OpenCL's ICD file, below one of [`DATA_FOLDERS`]; in a container, below `/etc`.
pub const OPENCL: &[FileRow] = &[file("OpenCL/vendors/nvidia.icd", &[Compute])];

/// Vulkan's manifests, below one of [`DATA_FOLDERS`] or the driver's root itself; in a container, below `/etc`.
pub const VULKAN: &[FileRow] = &[
    file("vulkan/icd.d/nvidia_icd.json", &[Display, Graphics]),
    file("vulkan/icd.d/nvidia_icd.x86_64.json", &[Display, Graphics]),
    file("vulkan/icd.d/nvidia_icd.aarch64.json", &[Display, Graphics]),
    file("vulkan/icd.d/nvidia_layers.json", &[Display, Graphics]),
    file("vulkan/implicit_layer.d/nvidia_layers.json", &[Display, Graphics]),
];

/// X's modules, in one of [`XORG_FOLDERS`].
pub const XORG: &[FileRow] =
    &[file("nvidia_drv.so", &[Display, Graphics]), file("libglxserver_nvidia.so.VERSION", &[Display, Graphics])];

pub struct LinkRow {
    /// The stem of the library in the same folder.
    pub library: &'static str,
    pub with: &'static [Capability],
    /// The link, below that folder.
    pub link: &'static str,
    /// `VERSION` stands for the driver's release.
    pub target: &'static str,
}

const fn link(library: &'static str, with: &'static [Capability], link: &'static str, target: &'static str) -> LinkRow {
    LinkRow { library, with, link, target }
}

pub const LINKS: &[LinkRow] = &[
    link("libcuda", &[Compute], "libcuda.so", "libcuda.so.1"),
    link("libnvidia-opticalflow", &[Video], "libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    link("libGLX_nvidia", &[Graphics], "libGLX_indirect.so.0", "libGLX_nvidia.so.VERSION"),
    link("libnvidia-allocator", &[Display, Graphics], "gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    link(
        "libnvidia-vulkan-producer",
        &[Display, Graphics],
        "libnvidia-vulkan-producer.so",
        "libnvidia-vulkan-producer.so.VERSION",
    ),
    link("libglxserver_nvidia", &[Display, Graphics], "libglxserver_nvidia.so", "libglxserver_nvidia.so.VERSION"),
];

pub const PROGRAM_FOLDERS: &[&str] =
    &["usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin", "usr/local/nvidia/bin"];

/// Debian's folder of programs behind its alternatives. A program without a link gets a path in `usr/bin`.
pub const DEBIANS_PROGRAM_FOLDER: &str = "usr/lib/nvidia/current";

pub const DATA_FOLDERS: &[&str] = &["etc", "usr/local/share", "usr/share"];

/// Folders of libraries if the linker's cache has none, 64-bit ones first.
pub const LIBRARY_FOLDERS: &[&str] = &[
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64/nvidia",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/local/nvidia/lib64",
    "usr/lib",
    "usr/lib/i386-linux-gnu",
    "usr/lib/i386-linux-gnu/nvidia/current",
    "usr/lib32",
    "lib",
    "lib/i386-linux-gnu",
    "usr/local/nvidia/lib",
];

/// Subfolders with further libraries of the driver.
pub const LIBRARY_SUBFOLDERS: &[&str] = &["vdpau"];

/// Folders of X's modules, below a library's folder, `usr/lib` or `usr/lib64`.
pub const XORG_FOLDERS: &[&str] = &[
    "nvidia/xorg",
    "nvidia/current",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
];

/// The kernel's firmware folders. `KERNEL` stands for the running kernel's release.
pub const FIRMWARE_FOLDERS: &[&str] =
    &["lib/firmware/updates/KERNEL", "lib/firmware/updates", "lib/firmware/KERNEL", "lib/firmware"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_table_has_unique_names_and_links() {
        for (at, row) in LIBRARIES.iter().enumerate() {
            assert!(LIBRARIES[..at].iter().all(|other| other.stem != row.stem), "{} stands twice", row.stem);
            assert!(!row.with.is_empty() && !row.stem.contains(".so"), "{}", row.stem);
        }
        for link in LINKS {
            let of_xorg = XORG.iter().any(|row| row.name.starts_with(link.library));
            assert!(of_xorg || LIBRARIES.iter().any(|row| row.stem == link.library), "{}", link.library);
        }
    }
}
