//! Checks whether this host can run the module engine, before anything is changed. Facts that nobody can change are checked before
//! missing packages.

use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use mpu_host::host::{CAP_SYS_ADMIN, CAP_SYS_MODULE, Host, Lockdown};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("this needs root: changing an engine takes the capability CAP_SYS_MODULE, which this process lacks")]
    NotRoot,
    #[error("the kernel's release cannot be read")]
    NoRelease { source: std::io::Error },
    #[error("the kernel is locked down ({mode}), as under Secure Boot, and accepts signed modules only")]
    LockedDown { mode: &'static str, advice: String },
    #[error("the kernel accepts signed modules only (sig_enforce)")]
    SignaturesEnforced { advice: String },
    #[error("module loading is disabled until the next boot (kernel.modules_disabled = 1)")]
    ModulesDisabled,
    #[error("{found}; `mpu` never unloads another project's module")]
    ForeignModule { found: String, fix: String },
    #[error("function tracing is switched off (kernel.ftrace_enabled = 0), and the module's redirects need it")]
    FtraceDisabled,
    #[error("kernel {release} was built without {option}, which the module needs (says {})", config.display())]
    MissingOption { release: String, option: &'static str, config: PathBuf },
    #[error("the headers of kernel {release} are not installed (no {})", build.display())]
    NoHeaders { release: String, build: PathBuf, hint: String },
    #[error("the headers in {} are those of kernel {found}, but {running} is running", build.display())]
    OtherHeaders { build: PathBuf, found: String, running: String, hint: String },
    #[error("there is no module for kernel {release} that was built elsewhere, and the configuration accepts no other")]
    NoPrebuilt { release: String, hint: String },
    #[error("there is no make on this host")]
    NoMake { hint: String },
    #[error("there is no {compiler} on this host, and the kernel was compiled with {text}")]
    NoCompiler { compiler: String, text: String, hint: String },
    #[error(
        "there is no pahole on this host, and with the headers of kernel {release} each module build needs it for type information"
    )]
    NoPahole { release: String, hint: String },
}

/// Kernel options that the module needs: at least one of each row, and the first is named if none is set. The module itself chooses
/// between the two ways to redirect.
const OPTIONS: [&[&str]; 3] = [
    &["CONFIG_MODULES"],
    &["CONFIG_KPROBES"],
    &["CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS", "CONFIG_DYNAMIC_FTRACE_WITH_REGS", "CONFIG_DYNAMIC_FTRACE_WITH_ARGS"],
];

impl Explain for Unfit {
    fn facts(&self) -> Facts {
        use Exit::{NotReady, Refused};
        let (code, exit, fix) = match self {
            Unfit::NotRoot => ("not_root", Refused, "run it as root: sudo mpu …"),
            Unfit::NoRelease { .. } => ("no_release", NotReady, "mount /proc"),
            Unfit::LockedDown { advice, .. } => ("locked_down", Refused, advice.as_str()),
            Unfit::SignaturesEnforced { advice } => ("signatures_enforced", Refused, advice.as_str()),
            Unfit::ModulesDisabled => {
                ("modules_disabled", Refused, "reboot, and run `mpu up` before the setting applies")
            }
            Unfit::ForeignModule { fix, .. } => ("foreign_module", Refused, fix.as_str()),
            Unfit::FtraceDisabled => ("ftrace_disabled", Refused, "sysctl kernel.ftrace_enabled=1"),
            Unfit::MissingOption { option, .. } => {
                let fix = format!("boot a kernel with {option}=y; every distribution's standard kernel has it");
                return ("missing_kernel_option", NotReady, fix);
            }
            Unfit::NoHeaders { hint, .. } => ("no_headers", NotReady, hint.as_str()),
            Unfit::OtherHeaders { hint, .. } => ("other_headers", NotReady, hint.as_str()),
            Unfit::NoPrebuilt { hint, .. } => {
                let fix = format!("{hint}; or remove `modules = \"prebuilt\"` from /etc/mpu/config.toml");
                return ("no_prebuilt", NotReady, fix);
            }
            Unfit::NoMake { hint } => ("no_make", NotReady, hint.as_str()),
            Unfit::NoCompiler { hint, .. } => ("no_compiler", NotReady, hint.as_str()),
            Unfit::NoPahole { hint, .. } => ("no_pahole", NotReady, hint.as_str()),
        };
        (code, exit, fix.to_string())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    pub release: String,
    pub headers: PathBuf,
    pub make: PathBuf,
    /// The compiler for the kernel's makefiles: `CC=…` or `LLVM=1`.
    pub compiler: String,
    /// Other arguments for make: another makefile, another processor.
    pub more: Vec<String>,
}

/// The running kernel's release, if its configuration has what the module needs. The build checks the headers
/// (kmod/mpu_probes.sh): a kernel's version number is no proof.
pub fn kernel(host: &Host) -> Result<String, Unfit> {
    let release = host.release().map_err(|source| Unfit::NoRelease { source })?;
    if let Some((config, text)) = host.kernel_config(&release) {
        let has = |option: &&str| text.lines().any(|line| line.strip_prefix(*option) == Some("=y"));
        if let Some([option, ..]) = OPTIONS.iter().find(|row| !row.iter().any(has)) {
            return Err(Unfit::MissingOption { release, option, config });
        }
    }
    Ok(release)
}

/// Whether this process has the capability for the module or the one for the notify engine. Commands check further rights
/// themselves.
pub fn root(host: &Host) -> Result<(), Unfit> {
    match [CAP_SYS_MODULE, CAP_SYS_ADMIN].iter().any(|capability| host.has_capability(*capability)) {
        true => Ok(()),
        false => Err(Unfit::NotRoot),
    }
}

/// Whether this process may load a module into this kernel. `signed`: the module has, or will have, a signature, which only the
/// kernel can judge; `advice` says how to sign it.
pub fn permission(host: &Host, signed: bool, advice: impl FnOnce() -> String) -> Result<(), Unfit> {
    if !host.has_capability(CAP_SYS_MODULE) {
        return Err(Unfit::NotRoot);
    }
    if host.modules_disabled() {
        return Err(Unfit::ModulesDisabled);
    }
    if !signed {
        match host.lockdown() {
            Lockdown::Integrity => return Err(Unfit::LockedDown { mode: "integrity", advice: advice() }),
            Lockdown::Confidentiality => return Err(Unfit::LockedDown { mode: "confidentiality", advice: advice() }),
            Lockdown::None => {}
        }
        if host.enforces_signatures() {
            return Err(Unfit::SignaturesEnforced { advice: advice() });
        }
    }
    if host.ftrace_disabled() {
        return Err(Unfit::FtraceDisabled);
    }
    Ok(())
}

/// The headers, `make` and the compiler for a kernel.
pub fn toolchain(host: &Host, release: &str) -> Result<Toolchain, Unfit> {
    let build = PathBuf::from(format!("/lib/modules/{release}/build"));
    let hint = host.headers_hint(release);
    if !host.at(&build).join("Makefile").is_file() {
        return Err(Unfit::NoHeaders { release: release.to_string(), build, hint });
    }
    // Of the two files with a release, this one ends up in modules; Debian's headers differ in the other.
    let header = host.text(build.join("include/generated/utsrelease.h")).unwrap_or_default();
    let found = header.split('"').nth(1).map(str::to_string);
    if let Some(found) = found.filter(|found| found != release) {
        return Err(Unfit::OtherHeaders { build, found, running: release.to_string(), hint });
    }
    let config = host
        .text(build.join(".config"))
        .or_else(|| host.text(build.join("include/config/auto.conf")))
        .unwrap_or_default();
    tools(host, release, &config, host.at(&build), None, Vec::new())
}

/// make, the compiler and pahole for headers with this configuration; for another processor, the cross compiler.
pub(super) fn tools(
    host: &Host,
    release: &str,
    config: &str,
    headers: PathBuf,
    other: Option<&str>,
    more: Vec<String>,
) -> Result<Toolchain, Unfit> {
    let prefix = other.map_or(String::new(), |arch| format!("{arch}-linux-gnu-"));
    let (compiler, named, text) = compiler(host, config, &prefix);
    // As Debian and Fedora name it.
    let package = other.map_or(named.clone(), |arch| format!("gcc-{}-linux-gnu", arch.replace('_', "-")));
    let hint = host.compiler_hint(&package);
    let Some(compiler) = compiler else { return Err(Unfit::NoCompiler { compiler: named, text, hint }) };
    let make = host.tool("make").ok_or(Unfit::NoMake { hint })?;
    pahole(host, release, config, &headers)?;
    Ok(Toolchain { release: release.to_string(), headers, make, compiler, more })
}

/// pahole, if the build of these headers runs it: scripts/Makefile.modfinal runs it if both it and vmlinux are there, and deletes
/// the module if that fails; without vmlinux it skips the step. Debian's headers have a vmlinux from 6.12 on.
fn pahole(host: &Host, release: &str, config: &str, headers: &Path) -> Result<(), Unfit> {
    let makes_btf = config.lines().any(|line| line == "CONFIG_DEBUG_INFO_BTF_MODULES=y");
    match makes_btf && headers.join("vmlinux").is_file() && host.tool("pahole").is_none() {
        true => Err(Unfit::NoPahole { release: release.to_string(), hint: host.pahole_hint().to_string() }),
        false => Ok(()),
    }
}

/// The compiler as an argument of make, its package, and its description in the kernel's configuration. The configuration's own
/// compiler is best; any gcc will do for a module, but a kernel made by clang needs clang.
fn compiler(host: &Host, config: &str, prefix: &str) -> (Option<String>, String, String) {
    let value = |key: &str| config.lines().find_map(|l| l.strip_prefix(key)).map(|v| v.trim_matches('"').to_string());
    let text = value("CONFIG_CC_VERSION_TEXT=").unwrap_or_else(|| "gcc".to_string());
    if value("CONFIG_CC_IS_CLANG=").is_some() {
        let found = host.tool("clang").is_some() && host.tool("ld.lld").is_some();
        return (found.then(|| "LLVM=1".to_string()), "clang lld".to_string(), text);
    }
    let own = text.split_whitespace().next().and_then(|path| path.rsplit('/').next()).unwrap_or("gcc").to_string();
    // `x86_64-linux-gnu-gcc-13` is the same compiler as `gcc-13`, and its package has the short name.
    let short = own.find("gcc").map_or("gcc", |at| &own[at..]).to_string();
    let names = match prefix {
        "" => vec![own, short.clone(), "gcc".to_string(), "cc".to_string()],
        // A cross compiler has the processor in its name.
        _ => [short.as_str(), "gcc"].map(|name| format!("{prefix}{name}")).to_vec(),
    };
    let found = names.into_iter().find(|name| host.tool(name).is_some());
    let named = if prefix.is_empty() { short } else { format!("{prefix}gcc") };
    (found.map(|name| format!("CC={name}")), named, text)
}

#[cfg(test)]
mod tests;
