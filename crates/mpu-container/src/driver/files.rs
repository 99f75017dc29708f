//! The files of a driver, by capability.

use super::ldcache::{self, Abi};
pub use super::root_dir::File;
use super::root_dir::RootDir;
use super::tables::{self, FileRow, Suffix};
use super::{Driver, DriverError, DriverRoot, elf};
use crate::capability::{Capabilities, Capability};
use mpu_os::file::{self, Links};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    /// Shared libraries, 64-bit ones first.
    pub libraries: Vec<Library>,
    pub programs: Vec<File>,
    pub firmware: Vec<File>,
    /// Existing sockets and pipes of the driver's daemons.
    pub sockets: Vec<File>,
    /// Other files: Vulkan's and EGL's manifests, OptiX's data, X's configuration.
    pub data: Vec<File>,
    pub links: Vec<Link>,
}

impl Files {
    /// Removes files that only desktops need: manifests and data, and their libraries and links.
    #[must_use]
    pub fn without_desktop(mut self) -> Files {
        let is_for_display = |with: &[Capability]| with.contains(&Capability::Display);
        self.data.clear();
        self.libraries.retain(|library| {
            let name = library.file.container.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let row = tables::LIBRARIES.iter().find(|row| stem(name) == Some(row.stem));
            !row.is_some_and(|row| row.suffix == Suffix::Own && is_for_display(row.with))
        });
        self.links.retain(|link| {
            let row = tables::LINKS.iter().find(|row| link.path.ends_with(row.link));
            !row.is_some_and(|row| is_for_display(row.with))
        });
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Library {
    /// `…/libcuda.so.580.159.04`.
    pub file: File,
    /// Its `DT_SONAME`: `libcuda.so.1`.
    pub soname: String,
    pub compat32: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub path: PathBuf,
    /// A file name, or an absolute path in the container.
    pub target: PathBuf,
}

const CACHE: &str = "etc/ld.so.cache";

/// The folders below the driver's root that may have its firmware, in a subfolder for each release. The kernel's order.
pub fn firmware_folders(root: &DriverRoot) -> impl Iterator<Item = PathBuf> {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let own = root.kernel_files.join("sys/module/firmware_class/parameters/path");
    let own = std::fs::read_to_string(own).unwrap_or_default();
    let own = Some(own.trim().trim_start_matches('/').to_owned()).filter(|own| !own.is_empty());
    let usual = tables::FIRMWARE_FOLDERS.iter().map(move |folder| folder.replace("KERNEL", &kernel));
    own.into_iter().chain(usual).map(|folder| Path::new(&folder).join("nvidia"))
}

impl Driver {
    /// The files of these capabilities. Every capability brings firmware; an empty set brings nothing. It is an error if no library of
    /// the driver's release exists.
    pub fn files(&self, capabilities: Capabilities) -> Result<Files, DriverError> {
        self.files_by_cache(capabilities, None)
    }

    /// The same with another linker cache: a path below the driver's root.
    pub fn files_by_cache(&self, capabilities: Capabilities, cache: Option<&Path>) -> Result<Files, DriverError> {
        if capabilities == Capabilities::NONE {
            return Ok(Files::default());
        }
        let failed = |source| DriverError::Read { path: self.root.files.clone(), source };
        let search =
            Search { root_dir: RootDir::open(&self.root.files).map_err(failed)?, version: &self.version, capabilities };
        let folders = search.library_folders(cache.unwrap_or(Path::new(CACHE)));
        let found = search.libraries(&folders);
        if found.is_empty() {
            return Err(DriverError::NoLibraries { root: self.root.files.clone(), version: self.version.clone() });
        }
        let libraries: Vec<Library> = found.into_iter().filter(|library| search.is_selected_library(library)).collect();
        let xorg = search.xorg(&folders);
        let mut files = Files {
            programs: search.programs(),
            firmware: self.firmware(&search),
            sockets: search.sockets(),
            links: search.links(&libraries, &xorg),
            data: search.table_files(tables::DATA, tables::DATA_FOLDERS, "usr/share"),
            libraries,
        };
        files.data.extend(search.table_files(tables::OPENCL, tables::DATA_FOLDERS, "etc"));
        files.data.extend(search.table_files(tables::VULKAN, &[tables::DATA_FOLDERS, &["."]].concat(), "etc"));
        files.data.extend(xorg);
        Ok(files)
    }

    fn firmware(&self, search: &Search<'_>) -> Vec<File> {
        for folder in firmware_folders(&self.root) {
            let folder = folder.join(&self.version);
            let Some((_, names)) = search.root_dir.names(&folder) else { continue };
            let of_gsp = names.iter().filter(|name| name.starts_with("gsp") && name.ends_with(".bin"));
            let found: Vec<File> =
                of_gsp.filter_map(|name| search.root_dir.file_as_named(&folder.join(name))).collect();
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }
}

struct Search<'a> {
    root_dir: RootDir,
    version: &'a str,
    capabilities: Capabilities,
}

impl Search<'_> {
    fn is_selected(&self, with: &[Capability]) -> bool {
        with.iter().any(|one| self.capabilities.has(*one))
    }

    /// Folders with the driver's libraries: those in the linker's cache, or else the usual ones. Each is followed by its
    /// subfolders.
    fn library_folders(&self, cache: &Path) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = Vec::new();
        let add = |folders: &mut Vec<PathBuf>, folder: PathBuf| {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        };
        for path in self.cached_paths(cache) {
            let real = self.root_dir.resolve(&path).filter(|real| is_release(real, self.version));
            if let Some(folder) = real.as_deref().and_then(Path::parent) {
                add(&mut folders, folder.to_path_buf());
            }
        }
        // A cache without the driver's main library is out of date.
        if !folders.iter().any(|folder| self.has_main_library(folder)) {
            let usual = tables::LIBRARY_FOLDERS.iter().filter_map(|folder| self.root_dir.resolve(Path::new(folder)));
            usual.for_each(|folder| add(&mut folders, folder));
        }
        let with_subfolders = |folder: &PathBuf| {
            let subfolders =
                tables::LIBRARY_SUBFOLDERS.iter().filter_map(|name| self.root_dir.resolve(&folder.join(name)));
            std::iter::once(folder.clone()).chain(subfolders).collect::<Vec<_>>()
        };
        folders.iter().flat_map(with_subfolders).collect()
    }

    fn has_main_library(&self, folder: &Path) -> bool {
        let exists = |stem| self.root_dir.resolve(&folder.join(format!("{stem}.so.{}", self.version))).is_some();
        exists("libcuda") || exists("libnvidia-ml")
    }

    /// Paths of the driver's libraries in the linker's cache. A missing or malformed cache has none.
    fn cached_paths(&self, cache: &Path) -> Vec<PathBuf> {
        let Some(path) = self.root_dir.resolve(cache) else { return Vec::new() };
        let path = self.root_dir.host(&path);
        let bytes = file::read_bounded(&path, ldcache::MAX_BYTES, Links::Followed).unwrap_or_default();
        let entries = ldcache::entries(&bytes).unwrap_or_default();
        let mut entries: Vec<_> = entries.into_iter().filter(|entry| entry.abi != Abi::Other).collect();
        entries
            .retain(|entry| stem(entry.name).is_some_and(|stem| tables::LIBRARIES.iter().any(|row| row.stem == stem)));
        // The sort is stable: the linker's order stays within 64-bit and within 32-bit libraries.
        entries.sort_by_key(|entry| is_compat32(entry.abi));
        entries.iter().map(|entry| PathBuf::from(entry.path)).collect()
    }

    /// Every library of the driver in these folders: the first of each name, 64-bit and 32-bit.
    fn libraries(&self, folders: &[PathBuf]) -> Vec<Library> {
        let mut found: Vec<Library> = Vec::new();
        for folder in folders {
            let Some((folder, names)) = self.root_dir.names(folder) else { continue };
            for name in names.iter().filter(|name| self.is_of_driver(name)) {
                let Some(file) = self.root_dir.file(&folder.join(name)) else { continue };
                // Skip a link to a file of another name: that file has its own entry.
                if file.container.file_name().is_none_or(|real| real != name.as_str()) {
                    continue;
                }
                let Some(elf) = elf::read(&file.host) else { continue };
                let compat32 = is_compat32(elf.abi);
                let same = |other: &Library| other.compat32 == compat32 && other.file.container.ends_with(name);
                if elf.abi == Abi::Other || found.iter().any(same) {
                    continue;
                }
                found.push(Library { file, soname: elf.soname.unwrap_or_else(|| name.clone()), compat32 });
            }
        }
        found.sort_by_key(|library| library.compat32);
        found
    }

    fn is_of_driver(&self, name: &str) -> bool {
        let Some((stem, suffix)) = name.split_once(".so.") else { return false };
        // A driver's release has three digits before the first dot since release 100. A library's own version has fewer.
        let own = suffix.split('.').next().is_some_and(|first| first.len() <= 2 && first.parse::<u8>().is_ok());
        suffix == self.version
            || (own && tables::LIBRARIES.iter().any(|row| row.suffix == Suffix::Own && row.stem == stem))
    }

    fn is_selected_library(&self, library: &Library) -> bool {
        if library.compat32 && !self.capabilities.has(Capability::Compat32) {
            return false;
        }
        let name = library.file.container.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match tables::LIBRARIES.iter().find(|row| stem(name) == Some(row.stem)) {
            Some(row) => self.is_selected(row.with),
            None => self.capabilities.and(Capabilities::WHOLE) == Capabilities::WHOLE,
        }
    }

    fn table_files(&self, rows: &[FileRow], folders: &[&str], container: &str) -> Vec<File> {
        let selected_rows = rows.iter().filter(|row| self.is_selected(row.with));
        let find = |row: &FileRow| {
            let name = row.name.replace("VERSION", self.version);
            let mut file =
                folders.iter().find_map(|folder| self.root_dir.file_as_named(&Path::new(folder).join(&name)))?;
            if !container.is_empty() {
                file.container = Path::new("/").join(container).join(&name);
            }
            Some(file)
        };
        selected_rows.filter_map(find).collect()
    }

    fn programs(&self) -> Vec<File> {
        let selected_rows = tables::PROGRAMS.iter().filter(|row| self.is_selected(row.with));
        let find = |row: &FileRow| {
            let usual = tables::PROGRAM_FOLDERS.iter().map(|folder| Path::new(folder).join(row.name));
            let found: Vec<File> = usual.filter_map(|path| self.root_dir.file_as_named(&path)).collect();
            // A wrapper script would start the program by a path that the container lacks.
            let program = found.iter().find(|file| elf::is_elf(&file.host)).or(found.first()).cloned();
            program.or_else(|| {
                let file = self.root_dir.file(&Path::new(tables::DEBIANS_PROGRAM_FOLDER).join(row.name))?;
                Some(File { container: Path::new("/usr/bin").join(row.name), ..file })
            })
        };
        selected_rows.filter_map(find).collect()
    }

    fn sockets(&self) -> Vec<File> {
        let selected_rows = tables::SOCKETS.iter().filter(|row| self.is_selected(row.with));
        selected_rows.filter_map(|row| self.root_dir.file(Path::new(row.name))).collect()
    }

    fn xorg(&self, folders: &[PathBuf]) -> Vec<File> {
        let bases = folders.iter().map(|folder| folder.to_string_lossy().trim_start_matches('/').to_owned());
        let bases = bases.chain(["usr/lib".to_owned(), "usr/lib64".to_owned()]);
        let all: Vec<String> =
            bases.flat_map(|base| tables::XORG_FOLDERS.iter().map(move |folder| format!("{base}/{folder}"))).collect();
        self.table_files(tables::XORG, &all.iter().map(String::as_str).collect::<Vec<_>>(), "")
    }

    fn links(&self, libraries: &[Library], xorg: &[File]) -> Vec<Link> {
        let files = || libraries.iter().map(|library| &library.file).chain(xorg);
        let mut links = Vec::new();
        for row in tables::LINKS.iter().filter(|row| self.is_selected(row.with)) {
            let name = format!("{}.so.{}", row.library, self.version);
            let found = files().filter(|file| file.container.ends_with(&name));
            links.extend(found.filter_map(|file| {
                let target = row.target.replace("VERSION", self.version).into();
                Some(Link { path: file.container.parent()?.join(row.link), target })
            }));
        }
        links
    }
}

/// The name before `.so`.
fn stem(name: &str) -> Option<&str> {
    name.split_once(".so").map(|(stem, _)| stem)
}

fn is_release(path: &Path, version: &str) -> bool {
    path.to_str().is_some_and(|path| path.strip_suffix(version).is_some_and(|rest| rest.ends_with(".so.")))
}

fn is_compat32(abi: Abi) -> bool {
    matches!(abi, Abi::X86 | Abi::Arm)
}

#[cfg(test)]
mod tests;
