//! The files of an engine's configuration, in the order in which they override each other.
//!
//! The installer runs in a container, but paths within the files are the host's; [`Paths`] maps them.
//!
//! Source: containerd 1.6 to 2.3, `LoadConfig` and `resolveImports` (imports come after the file that names them, in breadth-first
//! order); CRI-O 1.34, `UpdateFromPath`; `containers.conf(5)`.

use super::containerd;
use super::{Engine, EngineError, FormatError, malformed};
use crate::glob;
use crate::text_file;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

/// Maximum size of a configuration file in bytes.
pub(super) const MAX_FILE_SIZE: u64 = 4 << 20;

/// Planned contents of files; `None` for a file to be removed.
pub type Pending = BTreeMap<PathBuf, Option<String>>;

#[derive(Debug, Clone, Default)]
pub struct Paths {
    /// The host's root; `/` if empty.
    pub root: PathBuf,
    /// Directories of the host that are mounted at another path: the host's path, and ours.
    pub folders: Vec<(PathBuf, PathBuf)>,
}

impl Paths {
    fn local(&self, path: &Path) -> PathBuf {
        let moved = self.folders.iter().find_map(|(host, local)| Some(local.join(path.strip_prefix(host).ok()?)));
        let below = || Path::new("/").join(&self.root).join(path.strip_prefix("/").unwrap_or(path));
        moved.unwrap_or_else(below)
    }

    pub fn host(&self, path: &Path) -> PathBuf {
        let moved = self.folders.iter().find_map(|(host, local)| Some(host.join(path.strip_prefix(local).ok()?)));
        let below = || Some(Path::new("/").join(path.strip_prefix(&self.root).ok()?));
        moved.or_else(below).unwrap_or_else(|| path.to_path_buf())
    }
}

#[derive(Debug, Clone)]
pub struct Files {
    pub engine: Engine,
    pub top: PathBuf,
    /// The file that the user selected for the runtime.
    pub drop_in: Option<PathBuf>,
    /// Whether containerd merges sections key by key, as it does from 2.1 on.
    pub merges: bool,
    pub paths: Paths,
}

#[derive(Debug, Clone)]
pub struct Layer {
    pub path: PathBuf,
    pub text: String,
    pub version: i64,
}

impl Files {
    pub fn of(engine: Engine) -> Files {
        Files { engine, top: engine.top().into(), drop_in: None, merges: false, paths: Paths::default() }
    }

    /// The file that gets the runtime if no file has it yet.
    pub fn own(&self) -> PathBuf {
        let beside = |name: &str| self.folder().join(name);
        match (&self.drop_in, self.engine) {
            (Some(path), _) => path.clone(),
            (None, Engine::Docker | Engine::Containerd) => self.top.clone(),
            (None, Engine::Crio) => beside("99-nvidia.toml"),
            (None, Engine::Podman) => beside("99-nvidia.conf"),
        }
    }

    /// The directory that CRI-O or Podman reads: that of the selected file, if its name ends in `.d`.
    fn folder(&self) -> PathBuf {
        let named = self.drop_in.as_deref().and_then(Path::parent).filter(|folder| has_extension(folder, "d"));
        let default_path = Path::new(self.engine.top()).with_extension("conf.d");
        let beside = || self.top.with_file_name(default_path.file_name().unwrap_or_default());
        named.map_or_else(beside, Path::to_path_buf)
    }

    /// Whether the engine reads the file of [`Files::own`] without further configuration.
    pub fn reads_own(&self) -> bool {
        self.engine != Engine::Crio || self.own() == self.top || self.own().parent() == Some(&self.folder())
    }

    /// All existing and planned files. A later file overrides an earlier one.
    pub fn layers(&self, pending: &Pending) -> Result<Vec<Layer>, EngineError> {
        let paths = match self.engine {
            Engine::Docker => vec![self.top.clone()],
            Engine::Containerd => return self.imported(pending),
            Engine::Crio | Engine::Podman => {
                let mut all = Vec::new();
                if self.top == Path::new(Engine::Podman.top()) {
                    all.push(PathBuf::from("/usr/share/containers/containers.conf"));
                }
                all.push(self.top.clone());
                // Podman ignores subdirectories.
                walk(&self.folder(), pending, self.engine == Engine::Crio, &mut all)?;
                let own = self.own();
                if !all.contains(&own) {
                    all.push(own);
                }
                // Podman reads only `*.conf`; CRI-O reads every file.
                all.retain(|path| self.engine == Engine::Crio || *path == self.own() || has_extension(path, "conf"));
                all
            }
        };
        let texts = paths.into_iter().map(|path| Ok((read(&path, pending)?, path)));
        let layers = texts.filter_map(|read: Result<_, EngineError>| match read {
            Ok((text, path)) => Some(Ok(Layer { path, text: text?, version: 0 })),
            Err(error) => Some(Err(error)),
        });
        layers.collect()
    }

    /// The local path of an import, or of its pattern, in the file at `path`.
    pub(super) fn imported_from(&self, path: &Path, import: &str) -> PathBuf {
        match Path::new(import) {
            whole if whole.is_absolute() => self.paths.local(&clean(whole)),
            part => clean(&path.parent().unwrap_or(Path::new("/")).join(part)),
        }
    }

    fn imported(&self, pending: &Pending) -> Result<Vec<Layer>, EngineError> {
        let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
        let mut queue = VecDeque::from([(self.top.clone(), 1)]);
        while let Some((path, inherited)) = queue.pop_front() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let Some(text) = read(&path, pending)? else { continue };
            let version = containerd::version(&text, inherited, inherited).map_err(malformed(&path))?;
            for import in containerd::imports(&text).map_err(malformed(&path))? {
                let files = expand(&self.imported_from(&path, &import), pending)?;
                let files = files.ok_or(FormatError::Pattern(import)).map_err(malformed(&path))?;
                queue.extend(files.into_iter().map(|path| (path, version)));
            }
            all.push(Layer { path, text, version });
        }
        Ok(all)
    }
}

pub fn read(path: &Path, pending: &Pending) -> Result<Option<String>, EngineError> {
    if let Some(planned) = pending.get(path) {
        return Ok(planned.clone());
    }
    match text_file::read(path, MAX_FILE_SIZE) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(EngineError::Read { path: path.to_path_buf(), source }),
    }
}

fn has_extension(path: &Path, with: &str) -> bool {
    path.extension().is_some_and(|end| end == with)
}

/// The existing and planned names in a directory, sorted.
fn names(folder: &Path, pending: &Pending) -> Result<BTreeSet<OsString>, EngineError> {
    let at = |source| EngineError::Read { path: folder.to_path_buf(), source };
    let mut all = BTreeSet::new();
    match fs::read_dir(folder) {
        Ok(entries) => {
            for entry in entries {
                all.insert(entry.map_err(at)?.file_name());
            }
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
        Err(error) => return Err(at(error)),
    }
    let planned = pending.keys().filter(|path| path.parent() == Some(folder)).filter_map(|path| path.file_name());
    all.extend(planned.map(Into::into));
    Ok(all)
}

fn walk(folder: &Path, pending: &Pending, recursive: bool, all: &mut Vec<PathBuf>) -> Result<(), EngineError> {
    for name in names(folder, pending)? {
        let path = folder.join(name);
        match path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            true if recursive => walk(&path, pending, recursive, all)?,
            true => {}
            false => all.push(path),
        }
    }
    Ok(())
}

/// Removes `..` from a path lexically, as containerd does with imports.
fn clean(path: &Path) -> PathBuf {
    let mut names = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if matches!(names.components().next_back(), Some(Component::Normal(_))) => {
                names.pop();
            }
            // The root's parent is the root.
            Component::ParentDir if names.is_absolute() => {}
            other => names.push(other),
        }
    }
    names
}

/// Whether containerd treats an import as a pattern. An import without `*` names one file, which must exist.
pub(super) fn is_pattern(import: &Path) -> bool {
    import.to_string_lossy().contains('*')
}

/// The files that an import matches, sorted; none if containerd refuses the pattern.
fn expand(import: &Path, pending: &Pending) -> Result<Option<Vec<PathBuf>>, EngineError> {
    if !is_pattern(import) {
        return Ok(Some(vec![import.to_path_buf()]));
    }
    let mut found = vec![PathBuf::from("/")];
    for part in import.components() {
        let Component::Normal(part) = part else { continue };
        let part = part.to_string_lossy();
        if !part.contains(['*', '?', '[', '\\']) {
            found.iter_mut().for_each(|path| path.push(&*part));
            continue;
        }
        if glob::matches(&part, "").is_none() {
            return Ok(None);
        }
        let mut matching = Vec::new();
        for path in found {
            let names = names(&path, pending)?.into_iter();
            let fits = |name: &OsString| glob::matches(&part, &name.to_string_lossy()) == Some(true);
            matching.extend(names.filter(fits).map(|name| path.join(name)));
        }
        found = matching;
    }
    Ok(Some(found))
}
