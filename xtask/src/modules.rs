//! Builds an out-of-tree module for a guest kernel, in a copy of its sources, cached by their contents. Collects every complaint of
//! compiler, modpost and objtool.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::kernels::{Build, Kernel};
use crate::run::{last_lines, print_progress, run, run_to_log};
use crate::{files, paths, run};

pub struct Built {
    pub files: Vec<PathBuf>,
    /// Warnings and errors of the tools, or the end of the log if the build failed.
    pub complaints: Vec<String>,
}

impl Built {
    pub fn is_clean(&self) -> bool {
        !self.files.is_empty() && self.complaints.is_empty()
    }

    /// The modules, if the build had no complaints.
    pub fn checked(self, what: &str) -> Result<Vec<PathBuf>> {
        ensure!(self.is_clean(), "{what} does not build cleanly:\n{}", self.complaints.join("\n"));
        Ok(self.files)
    }
}

/// kbuild's messages about this setup, not about the module: no kernel image with the headers (BTF is optional), and a compiler of the same
/// major version from another package.
const ABOUT_THE_RIG: [&str; 6] = [
    "Skipping BTF generation",
    "pahole version differs",
    "The kernel was built with:",
    "You are using:",
    "the compiler differs from the one used to build the kernel",
    "The kernel was built by:",
];

/// Builds `source` for `kernel` and puts the modules into `out`.
pub fn build(kernel: &Kernel, source: &Path, out: &Path, make_args: &[String]) -> Result<Built> {
    let sources = sources(source)?;
    let key = key(kernel, &sources, make_args);
    let kept = paths::cache(&format!("modules/{}", kernel.name))?.join(&key[..24]);
    let kept = files::get_or_make(kept, Path::is_dir, |partial| {
        print_progress(format!(
            "building {} for {} {}",
            source.file_name().unwrap_or_default().to_string_lossy(),
            kernel.release,
            make_args.join(" ")
        ));
        make(kernel, source, &sources, partial, make_args)
    })?;
    std::fs::create_dir_all(out)?;
    let mut files = Vec::new();
    for module in with_extension(&kept, "ko")? {
        let to = out.join(module.file_name().unwrap_or_default());
        fs_err::copy(&module, &to)?;
        files.push(to);
    }
    let log = std::fs::read_to_string(kept.join("log")).context("the cached build has no log")?;
    Ok(Built { complaints: complaints(&log, !files.is_empty()), files })
}

/// The files that kbuild reads, by path below the source folder, without its products.
fn sources(dir: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for path in files::below(dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_product =
            [".ko", ".o", ".mod", ".mod.c", ".cmd", ".symvers", ".order"].iter().any(|end| name.ends_with(end));
        if !is_product && !name.starts_with('.') && name != "mpu_probes.h" {
            found.insert(path.strip_prefix(dir)?.to_owned(), fs_err::read(&path)?);
        }
    }
    if found.is_empty() {
        bail!("{} holds no module sources", dir.display());
    }
    Ok(found)
}

fn key(kernel: &Kernel, sources: &BTreeMap<PathBuf, Vec<u8>>, make_args: &[String]) -> String {
    let mut parts = vec![kernel.stamp.as_bytes().to_vec()];
    parts.extend(make_args.iter().map(|arg| arg.as_bytes().to_vec()));
    for (path, text) in sources {
        parts.extend([path.to_string_lossy().as_bytes().to_vec(), text.clone()]);
    }
    files::digest(parts)
}

/// One build. A failed build is cached, too: its log is the result, and another try would not change it.
fn make(
    kernel: &Kernel,
    source: &Path,
    sources: &BTreeMap<PathBuf, Vec<u8>>,
    folder: &Path,
    make_args: &[String],
) -> Result<()> {
    let label = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let below = format!("build/{label}-{}", std::process::id());
    let work = match kernel.build {
        Build::Here => paths::cache("modules")?.join(&below),
        Build::Chroot => kernel.root().join(&below),
    };
    let _ = std::fs::remove_dir_all(&work);
    for (path, text) in sources {
        files::write(&work.join(path), text, 0o644)?;
    }
    let mut command = match kernel.build {
        Build::Here => {
            let mut command = run::command("make", ["-C"]);
            command.arg(kernel.dir.join("build")).arg(format!("M={}", work.display()));
            command.arg(format!("CC={}", kernel.compiler)).args(kernel.arch.facts().kbuild);
            command
        }
        Build::Chroot => {
            let mut command = enter(kernel)?;
            command.args([
                "/usr/bin/make",
                "-C",
                &format!("/usr/src/linux-headers-{}", kernel.release),
                &format!("M=/{below}"),
            ]);
            command
        }
    };
    // kbuild reads these from the environment. A compiler wrapper of this machine must not be used.
    command.args(make_args).arg("modules").env_remove("MAKEFLAGS").env_remove("CC").env("LC_ALL", "C");
    let succeeded = run_to_log(&mut command, &folder.join("log"))?;
    if succeeded {
        for module in with_extension(&work, "ko")? {
            std::fs::copy(&module, folder.join(module.file_name().unwrap_or_default()))?;
        }
    }
    Ok(std::fs::remove_dir_all(&work)?)
}

/// A command that runs its arguments in a chroot of the kernel's folder. A compiler needs /dev/null there. Root makes the node; another user
/// gets a user namespace with the machine's node mounted.
fn enter(kernel: &Kernel) -> Result<Command> {
    let root = kernel.root();
    let null = root.join("dev/null");
    if run::is_root() {
        use std::os::unix::fs::FileTypeExt;
        if !std::fs::metadata(&null).is_ok_and(|meta| meta.file_type().is_char_device()) {
            let _ = std::fs::remove_file(&null);
            run(run::command("mknod", ["-m", "666"]).arg(&null).args(["c", "1", "3"]))
                .context("cannot make /dev/null for the compiler")?;
        }
        let mut command = Command::new("chroot");
        command.arg(&root);
        return Ok(command);
    }
    if !null.exists() {
        std::fs::write(&null, "")?;
    }
    let script = "mount --bind /dev/null \"$0/dev/null\" && exec chroot \"$0\" \"$@\"";
    let mut command = run::command("unshare", ["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    command.arg(&root);
    Ok(command)
}

fn complaints(log: &str, built: bool) -> Vec<String> {
    if !built {
        return vec![format!("the build failed:\n{}", last_lines(log, 40))];
    }
    let about_rig = |line: &str| ABOUT_THE_RIG.iter().any(|known| line.contains(known));
    let is_complaint = |line: &str| {
        let low = line.to_lowercase();
        low.contains("warning") || low.contains("objtool:") || low.contains("error:")
    };
    log.lines().filter(|line| is_complaint(line) && !about_rig(line)).map(str::to_owned).collect()
}

fn with_extension(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = files::entries(dir)?;
    found.retain(|path| path.extension().is_some_and(|e| e == extension));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::complaints;

    #[test]
    fn only_tool_remarks_are_complaints() {
        let log = "  CC [M]  a.o\nSkipping BTF generation for a.ko due to unavailability of vmlinux\nwarning: pahole version differs from the one\n";
        assert!(complaints(log, true).is_empty());
        assert_eq!(complaints("a.o: warning: objtool: f()+0x1: naked return\n", true).len(), 1);
        assert_eq!(complaints("WARNING: modpost: missing MODULE_DESCRIPTION() in a.o\n", true).len(), 1);
        assert_eq!(complaints("", false).len(), 1, "no module is a complaint even when the log is silent");
    }
}
