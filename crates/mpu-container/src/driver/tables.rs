//! Tables of a driver's files, and the capabilities that bring them.
//!
//! Source: NVIDIA's driver README, "Installed components", 390 to 580; for what belongs to which capability,
//! NVIDIA's container CLI, whose `list` prints it. Where a library is used by another capability's libraries, too, it
//! comes with both (the compiler with graphics, the allocator with GBM).

use crate::capability::Capability::{self, Compute, Display, Graphics, Ngx, Utility, Video};

/// A shared library, by its file's name before `.so`.
pub struct LibraryRow {
    /// As in `libcuda`.
    pub stem: &'static str,
    pub with: &'static [Capability],
    pub suffix: Suffix,
    pub about: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suffix {
    /// The driver's release, so that libraries of other drivers on the disk are not used.
    Release,
    /// A number of its own, less than 100, or the driver's release.
    Own,
}

const fn row(stem: &'static str, with: &'static [Capability], about: &'static str) -> LibraryRow {
    LibraryRow { stem, with, suffix: Suffix::Release, about }
}

const fn own(stem: &'static str, with: &'static [Capability], about: &'static str) -> LibraryRow {
    LibraryRow { stem, with, suffix: Suffix::Own, about }
}

/// The shared libraries. A library that ends in the driver's release and is not in the table comes with all
/// capabilities only: a newer driver's.
pub const LIBRARIES: &[LibraryRow] = &[
    row("libnvidia-ml", &[Utility], "management (NVML)"),
    row("libnvidia-cfg", &[Utility], "configuration"),
    row("libnvidia-nscq", &[Utility], "NVSwitch queries"),
    row("libnvidia-sandboxutils", &[Utility], "what a sandbox needs of the driver"),
    row("libcuda", &[Compute], "CUDA"),
    row("libcudadebugger", &[Compute], "CUDA's debugger"),
    row("libnvidia-opencl", &[Compute], "OpenCL"),
    row("libnvidia-gpucomp", &[Compute, Graphics], "shader compiler"),
    row("libnvidia-ptxjitcompiler", &[Compute], "PTX compiler, for CUDA"),
    row("libnvidia-fatbinaryloader", &[Compute], "fat binaries, for CUDA, older drivers"),
    row("libnvidia-allocator", &[Compute, Display, Graphics], "memory for other libraries; GBM's back end"),
    row("libnvidia-compiler", &[Compute], "OpenCL's compiler, older drivers"),
    row("libnvidia-pkcs11", &[Compute], "encryption, for confidential computing"),
    row("libnvidia-pkcs11-openssl3", &[Compute], "the same with OpenSSL 3"),
    own("libnvidia-nvvm", &[Compute], "NVVM compiler (470: a number of its own)"),
    own("libnvidia-nvvm70", &[Compute], "NVVM compiler, an older interface"),
    row("libnvidia-tileiras", &[Compute], "Tile IR compiler"),
    row("libvdpau_nvidia", &[Video], "VDPAU"),
    row("libnvidia-encode", &[Video], "video encoder"),
    row("libnvidia-opticalflow", &[Video], "optical flow"),
    row("libnvcuvid", &[Video], "video decoder"),
    row("libnvidia-eglcore", &[Graphics], "EGL's core"),
    row("libnvidia-glcore", &[Graphics], "OpenGL's core"),
    row("libnvidia-tls", &[Graphics], "thread-local storage, for OpenGL"),
    row("libnvidia-glsi", &[Graphics], "OpenGL's system interface"),
    row("libnvidia-fbc", &[Graphics], "framebuffer capture"),
    row("libnvidia-ifr", &[Graphics], "render-target capture, older drivers"),
    row("libnvidia-rtcore", &[Graphics], "ray tracing"),
    row("libnvoptix", &[Graphics], "OptiX"),
    row("libGLX_nvidia", &[Graphics], "GLX"),
    row("libEGL_nvidia", &[Graphics], "EGL"),
    row("libGLESv2_nvidia", &[Graphics], "OpenGL ES 2"),
    row("libGLESv1_CM_nvidia", &[Graphics], "OpenGL ES 1"),
    row("libnvidia-glvkspirv", &[Graphics], "SPIR-V, for Vulkan"),
    row("libnvidia-cbl", &[Graphics], "ray tracing, for Vulkan, older drivers"),
    row("libnvidia-vulkan-producer", &[Display, Graphics], "Vulkan on Wayland"),
    own("libnvidia-egl-gbm", &[Display, Graphics], "EGL on GBM"),
    own("libnvidia-egl-wayland", &[Display, Graphics], "EGL on Wayland"),
    own("libnvidia-egl-wayland2", &[Display, Graphics], "the same, of newer drivers"),
    own("libnvidia-egl-xcb", &[Display, Graphics], "EGL on XCB"),
    own("libnvidia-egl-xlib", &[Display, Graphics], "EGL on Xlib"),
    row("libnvidia-ngx", &[Ngx], "NGX (DLSS)"),
    own("libnvidia-api", &[Graphics, Ngx], "NVAPI"),
];

/// A file that is looked for in several folders.
pub struct FileRow {
    /// Its path below one of the folders. `VERSION` stands for the driver's release.
    pub name: &'static str,
    pub with: &'static [Capability],
    pub about: &'static str,
}

const fn file(name: &'static str, with: &'static [Capability], about: &'static str) -> FileRow {
    FileRow { name, with, about }
}

/// The programs, in one of [`PROGRAM_FOLDERS`].
pub const PROGRAMS: &[FileRow] = &[
    file("nvidia-smi", &[Utility], "management"),
    file("nvidia-debugdump", &[Utility], "core dumps of a GPU"),
    file("nvidia-persistenced", &[Utility], "keeps GPUs started"),
    file("nv-fabricmanager", &[Utility], "NVSwitch's manager"),
    file("nvidia-imex", &[Utility], "memory across nodes"),
    file("nvidia-imex-ctl", &[Utility], "asks the same"),
    file("nvidia-cuda-mps-control", &[Compute], "multi-process service, its console"),
    file("nvidia-cuda-mps-server", &[Compute], "multi-process service"),
    file("nvidia-xconfig", &[Display, Graphics], "writes X's configuration"),
];

pub const SOCKETS: &[FileRow] = &[
    file("run/nvidia-persistenced/socket", &[Utility], "nvidia-persistenced's"),
    file("run/nvidia-fabricmanager/socket", &[Utility], "nv-fabricmanager's"),
    file("tmp/nvidia-mps", &[Compute], "the multi-process service's pipes"),
];

/// Descriptions and data, below one of [`DATA_FOLDERS`]; in a container, below `/usr/share`, where its programs look.
pub const DATA: &[FileRow] = &[
    file("glvnd/egl_vendor.d/10_nvidia.json", &[Display, Graphics], "where EGL finds the driver"),
    file("egl/egl_external_platform.d/15_nvidia_gbm.json", &[Display, Graphics], "where EGL finds GBM"),
    file("egl/egl_external_platform.d/10_nvidia_wayland.json", &[Display, Graphics], "where EGL finds Wayland"),
    file("egl/egl_external_platform.d/09_nvidia_wayland2.json", &[Display, Graphics], "the same, of newer drivers"),
    file("egl/egl_external_platform.d/20_nvidia_xcb.json", &[Display, Graphics], "where EGL finds XCB"),
    file("egl/egl_external_platform.d/20_nvidia_xlib.json", &[Display, Graphics], "where EGL finds Xlib"),
    file("nvidia/nvoptix.bin", &[Display, Graphics], "OptiX's data"),
    file("X11/xorg.conf.d/10-nvidia.conf", &[Display, Graphics], "X's configuration"),
    file("X11/xorg.conf.d/nvidia-drm-outputclass.conf", &[Display, Graphics], "X's configuration"),
];

/// OpenCL's description, below one of [`DATA_FOLDERS`]; in a container, below `/etc`.
pub const OPENCL: &[FileRow] = &[file("OpenCL/vendors/nvidia.icd", &[Compute], "where OpenCL finds the driver")];

/// Vulkan's descriptions, below one of [`DATA_FOLDERS`] or the driver's root itself; in a container, below `/etc`.
pub const VULKAN: &[FileRow] = &[
    file("vulkan/icd.d/nvidia_icd.json", &[Display, Graphics], "where Vulkan finds the driver"),
    file("vulkan/icd.d/nvidia_icd.x86_64.json", &[Display, Graphics], "the same, in RPM packages"),
    file("vulkan/icd.d/nvidia_icd.aarch64.json", &[Display, Graphics], "the same, in RPM packages"),
    file("vulkan/icd.d/nvidia_layers.json", &[Display, Graphics], "Vulkan's layers"),
    file("vulkan/implicit_layer.d/nvidia_layers.json", &[Display, Graphics], "Vulkan's layers"),
];

/// X's modules, in one of [`XORG_FOLDERS`].
pub const XORG: &[FileRow] = &[
    file("nvidia_drv.so", &[Display, Graphics], "X's driver"),
    file("libglxserver_nvidia.so.VERSION", &[Display, Graphics], "X's GLX"),
];

pub struct LinkRow {
    /// The library whose folder it belongs to, by its stem.
    pub library: &'static str,
    pub with: &'static [Capability],
    /// The link, below that folder.
    pub link: &'static str,
    /// What it points to. `VERSION` stands for the driver's release.
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

/// Where Debian keeps programs that its alternatives link to. One that no link leads to belongs into `usr/bin`.
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

/// Folders beside a library's where others of the driver may be.
pub const LIBRARY_SUBFOLDERS: &[&str] = &["vdpau"];

/// Where X's modules are, below a library's folder, `usr/lib` or `usr/lib64`.
pub const XORG_FOLDERS: &[&str] = &[
    "nvidia/xorg",
    "nvidia/current",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
];

/// Where the kernel looks for firmware; `KERNEL` stands for the running kernel's release.
pub const FIRMWARE_FOLDERS: &[&str] =
    &["lib/firmware/updates/KERNEL", "lib/firmware/updates", "lib/firmware/KERNEL", "lib/firmware"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Words;

    /// The tables of `docs/container/driver-files.md`, as they must stand there.
    fn page() -> String {
        let words = |with: &[Capability]| with.iter().map(|one| one.word()).collect::<Vec<_>>().join(", ");
        let mut page = String::from("| library | with | what it is |\n|---|---|---|\n");
        for row in LIBRARIES {
            let end = if row.suffix == Suffix::Own { "*" } else { "VERSION" };
            page += &format!("| `{}.so.{end}` | {} | {} |\n", row.stem, words(row.with), row.about);
        }
        page += "\n| file | with | what it is | looked for below |\n|---|---|---|---|\n";
        let files = [
            (PROGRAMS, PROGRAM_FOLDERS),
            (SOCKETS, &[]),
            (DATA, DATA_FOLDERS),
            (OPENCL, DATA_FOLDERS),
            (VULKAN, DATA_FOLDERS),
        ];
        for (rows, folders) in files.into_iter().chain([(XORG, XORG_FOLDERS)]) {
            let folders: Vec<String> = folders.iter().map(|folder| format!("`{folder}`")).collect();
            for row in rows {
                let with = words(row.with);
                page += &format!("| `{}` | {with} | {} | {} |\n", row.name, row.about, folders.join(" "));
            }
        }
        page += "\n| link | to | with | beside |\n|---|---|---|---|\n";
        for row in LINKS {
            page += &format!("| `{}` | `{}` | {} | `{}` |\n", row.link, row.target, words(row.with), row.library);
        }
        page
    }

    #[test]
    fn page_has_these_tables() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/container/driver-files.md");
        let text = std::fs::read_to_string(path).expect("the page");
        let (before, rest) = text.split_once("<!-- tables -->\n").expect("a beginning");
        let (tables, after) = rest.split_once("<!-- end -->\n").expect("an end");
        if std::env::var_os("MPU_WRITE_DOCS").is_some() {
            let text = format!("{before}<!-- tables -->\n{}<!-- end -->\n{after}", page());
            return std::fs::write(path, text).expect("the page");
        }
        assert!(
            tables == page(),
            "docs/container/driver-files.md is old; MPU_WRITE_DOCS=1 with this test writes it anew"
        );
    }

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
