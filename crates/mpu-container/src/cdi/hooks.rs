//! The hooks that our specs name.
//!
//! Source: NVIDIA Container Toolkit 1.20, `internal/discover/hooks.go`, and `nvidia-cdi-hook --help`.

use crate::edits::Hook;
use crate::kebab_name::KebabName;
use std::path::{Path, PathBuf};

/// A hook of `nvidia-cdi-hook`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum HookName {
    /// Makes links: `target::link` each.
    CreateSymlinks,
    /// Uses the image's libcuda if it is newer than the driver's.
    EnableCudaCompat,
    /// Adds folders to the container's `ld.so.cache`.
    UpdateLdcache,
    /// Keeps nvidia-smi and NVML from making device nodes.
    DisableDeviceNodeModification,
    /// Hides other GPUs in the container's procfs. NVIDIA has no such hook, and its program ignores this one.
    HideOtherGpus,
    /// Restricts EGL to the container's GPUs.
    UpdateApplicationProfile,
    /// Limits the memory that the container may use of GPUs.
    ApplyCudaMemoryLimits,
    /// Opens folders to all users: old releases of crun created them closed.
    Chmod,
}

impl HookName {
    /// OCI's name of the point at which the hook runs: in the container's mounts for files, on the host for its cgroup.
    pub fn point(self) -> &'static str {
        match self {
            HookName::ApplyCudaMemoryLimits => "createRuntime",
            _ => "createContainer",
        }
    }
}

/// The flag before each GPU whose memory is limited.
const GPU_ID: &str = "--gpu-id";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hooks {
    pub program: PathBuf,
    /// The host's `ldconfig` for `update-ldcache`. None means the hook's default.
    pub ldconfig: Option<PathBuf>,
    pub disabled: Vec<HookName>,
}

impl Hooks {
    /// All but `chmod`, which no current engine needs.
    pub fn new(program: PathBuf) -> Hooks {
        Hooks { program, ldconfig: None, disabled: vec![HookName::Chmod] }
    }

    pub fn has(&self, hook: HookName) -> bool {
        !self.disabled.contains(&hook)
    }

    /// A hook with its own arguments. None if it is disabled.
    pub fn hook(&self, name: HookName, arguments: impl IntoIterator<Item = String>) -> Option<Hook> {
        self.has(name).then(|| {
            let mut args = program_arguments(&self.program);
            args.push(name.kebab_name());
            args.extend(arguments);
            Hook {
                hook_name: name.point().into(),
                path: self.program.display().to_string(),
                args,
                // NVIDIA's program reads its log level from the environment, which must not be the engine's.
                env: vec!["NVIDIA_CTK_DEBUG=false".into()],
                timeout: None,
            }
        })
    }

    /// A hook for links, given as path and target. None if there are none.
    pub fn links<'a>(&self, links: impl IntoIterator<Item = (&'a Path, &'a Path)>) -> Option<Hook> {
        let links = links.into_iter().map(|(path, target)| format!("{}::{}", target.display(), path.display()));
        self.repeated_flag_hook(HookName::CreateSymlinks, "--link", Vec::new(), links)
    }

    /// A hook for folders of libraries. None if there are none.
    pub fn ldcache(&self, folders: impl IntoIterator<Item = String>) -> Option<Hook> {
        self.repeated_flag_hook(HookName::UpdateLdcache, "--folder", self.ldconfig(), folders)
    }

    /// Writes the loader's cache again, with the folders of the earlier run.
    pub fn refresh_ldcache(&self) -> Option<Hook> {
        self.hook(HookName::UpdateLdcache, self.ldconfig())
    }

    /// The image's CUDA compatibility libraries, if they are newer than this release of the driver.
    pub fn cuda_compat(&self, version: &str) -> Option<Hook> {
        self.hook(HookName::EnableCudaCompat, [format!("--host-driver-version={version}")])
    }

    /// A hook for memory limits on these GPUs, by UUID. None if there are none.
    pub fn memory_limits(&self, root: &Path, gpus: impl IntoIterator<Item = String>) -> Option<Hook> {
        let root = vec!["--driver-root".into(), root.display().to_string()];
        self.repeated_flag_hook(HookName::ApplyCudaMemoryLimits, GPU_ID, root, gpus)
    }

    /// Merges hooks of memory limits into one, because each is a process.
    pub fn merge_memory_limits(hooks: &mut Vec<Hook>) {
        let word = HookName::ApplyCudaMemoryLimits.kebab_name();
        let limits = |hook: &Hook| hook.args.contains(&word);
        let Some(first) = hooks.iter().position(limits) else { return };
        let others: Vec<Hook> = hooks.extract_if(first + 1.., |hook| limits(hook)).collect();
        for hook in others {
            let gpus = hook.args.windows(2).filter(|pair| pair[0] == GPU_ID);
            hooks[first].args.extend(gpus.flatten().cloned());
        }
    }

    fn ldconfig(&self) -> Vec<String> {
        self.ldconfig.iter().flat_map(|path| ["--ldconfig-path".into(), path.display().to_string()]).collect()
    }

    /// A hook for folders to open. None if there are none.
    pub fn chmod(&self, folders: impl IntoIterator<Item = String>) -> Option<Hook> {
        self.repeated_flag_hook(HookName::Chmod, "--path", vec!["--mode".into(), "755".into()], folders)
    }

    fn repeated_flag_hook(
        &self,
        hook: HookName,
        flag: &str,
        mut arguments: Vec<String>,
        values: impl IntoIterator<Item = String>,
    ) -> Option<Hook> {
        let before = arguments.len();
        for value in values {
            arguments.extend([flag.into(), value]);
        }
        if arguments.len() == before {
            return None;
        }
        self.hook(hook, arguments)
    }
}

/// The first arguments of a hook. They name the program, because our executable can have another name than NVIDIA's.
fn program_arguments(program: &Path) -> Vec<String> {
    match program.file_name().and_then(|name| name.to_str()) {
        Some("nvidia-ctk") => vec!["nvidia-ctk".into(), "hook".into()],
        _ => vec!["nvidia-cdi-hook".into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_without_folders_needs_no_hook() {
        assert_eq!(Hooks::new("/usr/bin/mpu-container".into()).ldcache([]), None);
    }
}
