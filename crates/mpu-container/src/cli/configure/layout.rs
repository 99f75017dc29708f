//! The library directories of a container's distribution, and the image's CUDA compatibility libraries.
//!
//! Source: libnvidia-container, `src/nvc_container.c` (directories) and `src/cli/compat_mode.c` (which compatibility libraries fit a
//! driver); Debian's multiarch specification; NVIDIA, "CUDA Compatibility".

use crate::beneath::{BeneathError, Handle, MAX_NAMES, Root};
use crate::cli::args::CompatMode;
use rustix::fs::FileType;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The directory of an image's CUDA compatibility libraries, which may be of a newer driver than the host's.
pub const COMPAT: &str = "/usr/local/cuda/compat";

/// Maximum number of compatibility libraries: each needs an open file and a mount. CUDA's package has eight.
const MAX_LIBRARIES: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    pub libraries: PathBuf,
    pub libraries32: PathBuf,
}

impl Layout {
    pub fn of(root: &Root) -> Result<Layout, BeneathError> {
        let exists = |path: &str| Ok::<_, BeneathError>(root.find(Path::new(path))?.is_some());
        if exists("/etc/debian_version")? {
            let (native, compat32) = match std::env::consts::ARCH {
                "aarch64" => ("aarch64-linux-gnu", "arm-linux-gnueabihf"),
                _ => ("x86_64-linux-gnu", "i386-linux-gnu"),
            };
            let folder = |name| Path::new("/usr/lib").join(name);
            return Ok(Layout { libraries: folder(native), libraries32: folder(compat32) });
        }
        // If /usr/lib and /usr/lib64 are the same directory, it has no 32-bit libraries.
        let find = |path| root.find(Path::new(path));
        let is_same = match (find("/usr/lib")?, find("/usr/lib64")?) {
            (Some(one), Some(other)) => same_file(&one, &other),
            (None, _) => true,
            _ => false,
        };
        let second = if !exists("/usr/lib32")? && !is_same { "/usr/lib" } else { "/usr/lib32" };
        Ok(Layout { libraries: "/usr/lib64".into(), libraries32: second.into() })
    }
}

fn same_file(one: &Handle, other: &Handle) -> bool {
    one.identity().ok() == other.identity().ok()
}

/// The image's compatibility libraries that this mode uses with this driver, by name.
///
/// Mode `ldconfig` uses libraries of a later major release than the driver; mode `mount` uses those of any other major release. Minor
/// releases are compatible.
pub fn compat(root: &Root, mode: CompatMode, driver: &str) -> Result<Vec<(OsString, Handle)>, BeneathError> {
    let is_compatible = |library: u32, driver: u32| match mode {
        CompatMode::Ldconfig => library > driver,
        CompatMode::Mount => library != driver,
        CompatMode::Disabled => false,
    };
    let folder = Path::new(COMPAT);
    let is_folder = root.find(folder)?.map(|found| found.kind()).transpose()? == Some(FileType::Directory);
    let Some(driver) = major(driver).filter(|_| is_folder && mode != CompatMode::Disabled) else {
        return Ok(Vec::new());
    };
    let names = root.read_dir(folder, MAX_NAMES)?.into_iter().filter(|entry| entry.is_file).map(|entry| entry.name);
    let matching = names.filter(|name| release(name).is_some_and(|library| is_compatible(library, driver)));
    let matching: Vec<OsString> = matching.take(MAX_LIBRARIES + 1).collect();
    if matching.len() > MAX_LIBRARIES {
        return Err(BeneathError::TooMany { path: folder.into(), most: MAX_LIBRARIES, what: "libraries" });
    }
    matching.into_iter().map(|name| Ok((name.clone(), root.resolve(&folder.join(&name))?))).collect()
}

/// The major release in a library's name: 550 of `libcuda.so.550.54.15`.
fn release(name: &OsStr) -> Option<u32> {
    let (stem, version) = name.to_str()?.split_once(".so.")?;
    let is_version = version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    (stem.starts_with("lib") && is_version).then(|| major(version))?
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn root(files: &[&str]) -> (tempfile::TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let root = Root::open(folder.path()).unwrap();
        (folder, root)
    }

    fn folders(files: &[&str]) -> (String, String) {
        let layout = Layout::of(&root(files).1).unwrap();
        (layout.libraries.display().to_string(), layout.libraries32.display().to_string())
    }

    #[test]
    fn distribution_decides_folders() {
        let (debian, _) = folders(&["etc/debian_version", "usr/lib64/x"]);
        assert_eq!(debian, format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        assert_eq!(folders(&["usr/lib64/x", "usr/lib/x"]), ("/usr/lib64".into(), "/usr/lib".into()));
        assert_eq!(folders(&["usr/lib64/x", "usr/lib/x", "usr/lib32/x"]).1, "/usr/lib32");
        assert_eq!(folders(&[]), ("/usr/lib64".into(), "/usr/lib32".into()));
        let (folder, root) = root(&["usr/lib/x"]);
        symlink("lib", folder.path().join("usr/lib64")).unwrap();
        assert_eq!(Layout::of(&root).unwrap().libraries32, Path::new("/usr/lib32"));
    }

    #[test]
    fn compat_libraries_are_chosen_by_release() {
        let old = "usr/local/cuda-12/compat/libcuda.so.470.1";
        let same = "usr/local/cuda-12/compat/libcuda.so.550.54.15";
        let new = "usr/local/cuda-12/compat/libnvidia-ptxjitcompiler.so.580.1.2";
        let odd = "usr/local/cuda-12/compat/libcuda.so.590.1\n2026 all is well";
        let (folder, root) = root(&[old, same, new, odd, "usr/local/cuda-12/compat/README"]);
        symlink("cuda-12", folder.path().join("usr/local/cuda")).unwrap();
        symlink("libcuda.so.470.1", folder.path().join("usr/local/cuda-12/compat/libcuda.so.1")).unwrap();
        let names = |mode| {
            let chosen = compat(&root, mode, "550.163.01").unwrap().into_iter();
            chosen.map(|(name, _)| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(names(CompatMode::Ldconfig), ["libnvidia-ptxjitcompiler.so.580.1.2"]);
        assert_eq!(names(CompatMode::Mount), ["libcuda.so.470.1", "libnvidia-ptxjitcompiler.so.580.1.2"]);
        assert!(names(CompatMode::Disabled).is_empty());
        assert!(compat(&self::root(&["usr/local/cuda/compat"]).1, CompatMode::Mount, "550.1").unwrap().is_empty());
    }

    /// Each library would need an open file and a mount, which are not charged to the container's cgroup.
    #[test]
    fn image_with_thousands_of_libraries_is_refused() {
        let names: Vec<String> = (0..100).map(|number| format!("usr/local/cuda/compat/lib{number}.so.999.1")).collect();
        let files: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(compat(&root(&files[..64]).1, CompatMode::Mount, "550.1").unwrap().len(), 64);
        let error = compat(&root(&files).1, CompatMode::Mount, "550.1").unwrap_err().to_string();
        assert!(error.contains("/usr/local/cuda/compat in the container has more than 64 libraries"), "{error}");
    }

    #[test]
    fn compat_link_out_of_image_is_ignored() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("libcuda.so.999.1"), "").unwrap();
        let (folder, root) = root(&["usr/local/cuda/x"]);
        symlink(outside.path(), folder.path().join("usr/local/cuda/compat")).unwrap();
        assert!(compat(&root, CompatMode::Mount, "550.1").unwrap().is_empty());
    }
}
