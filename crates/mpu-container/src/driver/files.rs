//! The files of a driver, by capability.
//!
//! Owns the vocabulary. A file is named twice: where it is on the host (below the driver's root) and where it belongs in
//! a container.

use std::path::PathBuf;

/// What a set of capabilities brings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Shared libraries, 64-bit ones first.
    pub libraries: Vec<Library>,
    /// Programs: `nvidia-smi` …
    pub programs: Vec<File>,
    /// The GPUs' own software.
    pub firmware: Vec<File>,
    /// Sockets and pipes of the driver's daemons; only those that are there.
    pub sockets: Vec<File>,
    /// Other files: Vulkan's and EGL's descriptions, OptiX's data, X's configuration.
    pub data: Vec<File>,
    /// Links that a container needs besides.
    pub links: Vec<Link>,
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct File {
    /// Where it is on the host, as a path that we can open: the driver's root and what follows, links resolved below
    /// that root.
    pub host: PathBuf,
    /// Where it belongs in a container: the path below the driver's root.
    pub container: PathBuf,
}

/// A shared library.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Library {
    /// The file, as `…/libcuda.so.580.159.04`.
    pub file: File,
    /// Its `DT_SONAME`, as `libcuda.so.1`.
    pub soname: String,
    /// Whether it is for 32-bit programs.
    pub compat32: bool,
}

/// A symbolic link in the container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// Where the link is.
    pub path: PathBuf,
    /// What it points to: a file's name, or an absolute path in the container.
    pub target: PathBuf,
}
