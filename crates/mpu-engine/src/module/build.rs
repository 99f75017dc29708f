//! Builds the module for one kernel and stores it below `/var/lib/mpu/<release>`: `mpu.ko`, `mpu_next.ko` (the same under its other
//! name), the key of its inputs, and the log of the last build. A result is renamed into place; a lock excludes other builders.

use super::checks::Toolchain;
use super::error::{BuildError, ModuleError};
use super::sources::Sources;
use crate::signing::Signer;
use mpu_host::host::Host;
use mpu_host::progress::Progress;
use mpu_os::lock::{self, LockError};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub const STORE: &str = "/var/lib/mpu";

/// The same module under its other name, beside `mpu.ko`.
pub const NEXT: &str = "mpu_next.ko";

const MODULE: &str = "mpu.ko";
const KEY: &str = "mpu.key";

/// How long to wait for another builder: longer than a build takes, shorter than systemd waits for mpu.service.
const LOCK_TIMEOUT: Duration = Duration::from_secs(300);

/// Locks a folder of the store.
pub(super) fn lock_folder(folder: &Path, timeout: Duration) -> Result<File, ModuleError> {
    let path = folder.join("lock");
    let mut progress = None;
    let locked = lock::open(&path).map_err(LockError::Io).and_then(|file| {
        let on_wait = |by: &str| progress = Some(Progress::of(format!("waiting for {by} to finish")));
        lock::hold(&file, &path, timeout, on_wait).map(|()| file)
    });
    locked.map_err(|error| match error {
        LockError::Io(source) => BuildError::Store { path, source }.into(),
        LockError::Held(held) => held.into(),
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredModule {
    pub path: PathBuf,
    /// The build's duration; none if the module was stored.
    pub took: Option<Duration>,
}

/// The stored modules of one kernel. Locked while this value lives.
pub struct Store {
    dir: PathBuf,
    signer: Option<Signer>,
    _lock: File,
}

impl Store {
    /// Opens the store of one kernel, and waits for another process that uses it.
    pub fn open(host: &Host, release: &str) -> Result<Store, ModuleError> {
        let dir = host.at(STORE).join(release);
        fs::create_dir_all(&dir).map_err(|source| BuildError::Store { path: dir.clone(), source })?;
        let lock = lock_folder(&dir, LOCK_TIMEOUT)?;
        Ok(Store { dir, signer: Signer::find(host, release), _lock: lock })
    }

    /// The stored module for a kernel, if it was made from these sources. For a host whose headers or compiler are gone.
    pub fn stored(host: &Host, release: &str, sources: &Sources) -> Option<StoredModule> {
        let dir = host.at(STORE).join(release);
        let key = fs::read_to_string(dir.join(KEY)).ok()?;
        let path = dir.join(MODULE);
        (key.starts_with(&sources_line(sources)) && path.is_file()).then_some(StoredModule { path, took: None })
    }

    /// The module: stored, if it was built from the same inputs, or else built now.
    pub fn module(&self, sources: &Sources, tools: &Toolchain) -> Result<StoredModule, ModuleError> {
        let key = sources_line(sources) + &kernel_line(tools) + &signer_line(self.signer.as_ref());
        let (module, key_file) = (self.dir.join(MODULE), self.dir.join(KEY));
        if module.is_file() && fs::read_to_string(&key_file).is_ok_and(|stored| stored == key) {
            return Ok(StoredModule { path: module, took: None });
        }
        let began = Instant::now();
        self.build(sources, tools, &module, &key_file)?;
        fs::write(&key_file, key).map_err(|source| BuildError::Store { path: key_file, source })?;
        Ok(StoredModule { path: module, took: Some(began.elapsed()) })
    }

    /// Removes the key of the stored module, so that the module is built again.
    pub fn invalidate(&self) {
        let _ = fs::remove_file(self.dir.join(KEY));
    }

    fn build(&self, sources: &Sources, tools: &Toolchain, module: &Path, key_file: &Path) -> Result<(), ModuleError> {
        let store = |path: &Path| {
            let path = path.to_path_buf();
            move |source| BuildError::Store { path, source }
        };
        // The lock is held, so an old folder belongs to a killed builder.
        let work = self.dir.join("build");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir(&work).map_err(store(&work))?;
        let _cleanup = Cleanup(&work);
        for (name, bytes) in &sources.files {
            fs::write(work.join(name), bytes).map_err(store(&work.join(name)))?;
        }
        let built = compile(tools, &work, &self.dir.join("build.log"))?;
        let built_next = work.join(NEXT);
        // Older sources do not build the module under its other name.
        for module in [&built, &built_next].into_iter().filter(|module| module.is_file()) {
            if let Some(signer) = &self.signer {
                signer.sign(module)?;
            }
            File::open(module).and_then(|file| file.sync_all()).map_err(store(module))?;
        }
        // The key is removed before the module and written after it: a module without its key is never used.
        let _ = fs::remove_file(key_file);
        let next = self.dir.join(NEXT);
        match fs::rename(&built_next, &next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(fs::remove_file(&next)),
            moved => moved.map_err(store(&next))?,
        }
        Ok(fs::rename(&built, module).map_err(store(module))?)
    }
}

/// Runs the kernel's makefiles on the sources in a folder, with the output in the log.
pub(super) fn compile(tools: &Toolchain, work: &Path, log: &Path) -> Result<PathBuf, ModuleError> {
    let at_log = |source| BuildError::Store { path: log.to_path_buf(), source };
    let output = File::create(log).map_err(at_log)?;
    let errors = output.try_clone().map_err(at_log)?;
    let progress = Progress::of(format!("building the module for kernel {}", tools.release));
    let ended = Command::new(&tools.make)
        .arg("-C")
        .arg(&tools.headers)
        .arg(format!("M={}", work.display()))
        .arg(&tools.compiler)
        .args(&tools.more)
        .arg(format!("-j{}", jobs(std::thread::available_parallelism().map_or(1, usize::from))))
        .arg("modules")
        // The caller's environment may set variables of kbuild (ARCH, CROSS_COMPILE, KCFLAGS …) for other reasons.
        .env_clear()
        .env("PATH", tool_path())
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .map_err(|source| BuildError::Make { make: tools.make.clone(), source })?;
    drop(progress);
    let built = work.join("mpu.ko");
    match ended.success() && built.is_file() {
        true => Ok(built),
        false => {
            let line = error_line(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()));
            Err(BuildError::Failed { release: tools.release.clone(), line, log: log.to_path_buf() }.into())
        }
    }
}

/// Parallel compilers. The module has few files, and a node with hundreds of processors may limit the agent to 1 GiB: a compiler
/// takes up to 97 MiB (gcc 12 with debug information, headers of Debian's 6.12).
fn jobs(processors: usize) -> usize {
    processors.min(4)
}

/// PATH for the tools of the kernel's makefiles (ld, objcopy, awk …): our own.
fn tool_path() -> std::ffi::OsString {
    Host::this().search_path()
}

/// The part of the key that identifies the sources.
fn sources_line(sources: &Sources) -> String {
    format!("sources {}\n", sources.key(&[]))
}

/// The part of the key that identifies kernel and tools. A distribution can replace headers of the same release; their symbol
/// versions and configuration differ then.
fn kernel_line(tools: &Toolchain) -> String {
    let of_headers = |name: &str| fs::read(tools.headers.join(name)).unwrap_or_default();
    let (symvers, config) = (of_headers("Module.symvers"), of_headers(".config"));
    let parts = [tools.release.as_bytes(), tools.compiler.as_bytes(), &symvers, &config];
    format!("kernel {}\n", Sources { files: Vec::new() }.key(&parts))
}

/// The part of the key that identifies the signer: another key needs another module.
fn signer_line(signer: Option<&Signer>) -> String {
    signer.map_or_else(String::new, |s| format!("signer {}\n", Sources { files: Vec::new() }.key(&[s.identity()])))
}

/// Removes the working directory at the end of the build.
struct Cleanup<'a>(&'a Path);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0);
    }
}

/// The prefix of the module's own errors in a build log. They follow the compiler's messages.
const OWN_ERROR_PREFIX: &str = "mpu_probes.sh: error:";

/// The most useful line of a build's log: the build's own error, or the first that is not make's summary, or the last line.
fn error_line(log: &str) -> String {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    let own_error = lines().find(|line| line.starts_with(OWN_ERROR_PREFIX));
    let error = own_error.or_else(|| first_error(lines()));
    error.or_else(|| lines().next_back()).unwrap_or("make printed nothing").to_string()
}

fn first_error<'a>(mut lines: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    lines.find(|line| {
        let word = line.to_ascii_lowercase();
        !line.starts_with("make") && (word.contains("error:") || word.contains("error ") || word.contains("not found"))
    })
}

#[cfg(test)]
mod tests;
