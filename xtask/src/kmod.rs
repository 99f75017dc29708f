//! The kernel module's Rust object: built once for every kernel, checked for what must not be in it, and handed to kbuild as a
//! prebuilt file, so that a node needs no Rust.
//!
//! Knows nothing of kernels or of what the object does. Why each flag: docs of kmod/; what was measured: every kernel of
//! kernels.toml links and loads one and the same object.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, Context, Result};

use crate::outcome::Outcome;
use crate::run::{output, run, say};
use crate::{paths, setup};

#[derive(clap::Args)]
pub struct Args {
    /// Copy the checked object to this file
    #[arg(long)]
    out: Option<PathBuf>,
}

const TARGET: &str = "x86_64-unknown-none";

/// What makes rustc's code fit for a kernel. Stable options first; the rest needs RUSTC_BOOTSTRAP or a nightly.
const FLAGS: &[&str] = &[
    "-Crelocation-model=static",
    "-Ccode-model=kernel",
    "-Cno-redzone=y",
    "-Cforce-unwind-tables=n",
    "-Cpanic=abort",
    "-Csymbol-mangling-version=v0",
    "-Zfunction-return=thunk-extern",
    "-Zretpoline-external-thunk=yes",
    "-Zindirect-branch-cs-prefix=yes",
    "-Zcf-protection=branch",
    "-Zdirect-access-external-data=yes",
    "-Zfunction-sections=no",
    // Otherwise memset and friends are called through a global offset table, which a kernel module has not.
    "-Zplt=yes",
];

/// The only symbols that the object may leave to others: our own C side, and what every kernel exports.
const ALLOWED: &[&str] = &["memcpy", "memset", "memmove", "memcmp", "__x86_return_thunk"];
const ALLOWED_PREFIXES: &[&str] = &["mpu_c_", "__x86_indirect_thunk_"];

/// The verb.
pub fn kmod(args: &Args) -> Result<Outcome> {
    setup::require(setup::OBJECTS)?;
    let object = build()?;
    let faults = faults(&object)?;
    for fault in &faults {
        println!("{}: {fault}", object.display());
    }
    if !faults.is_empty() {
        return Ok(Outcome::Failed);
    }
    println!("{}: {} bytes, no fault", object.display(), std::fs::metadata(&object)?.len());
    if let Some(out) = &args.out {
        std::fs::copy(&object, out).with_context(|| format!("cannot write {}", out.display()))?;
    }
    Ok(Outcome::Passed)
}

/// Builds the object. Its checks are `faults`.
pub fn build() -> Result<PathBuf> {
    let rust = Rust::with_core_source()?;
    let object = paths::target("kmod")?.join("mpu_core.o");
    let mut command = Command::new(&rust.cargo);
    command.args([
        "rustc",
        "--quiet",
        "--release",
        "--package",
        "mpu-kmod",
        "--target",
        TARGET,
        "-Zbuild-std=core",
        "--locked",
    ]);
    // Its own folder: these flags must not invalidate what cargo built for this machine, nor wait for its lock.
    command.arg("--target-dir").arg(paths::target("kmod/cargo")?);
    command.args(["--", &format!("--emit=obj={}", object.display())]);
    let flags = [FLAGS, &[rust.no_jump_tables()]].concat().join("\x1f");
    command.env("RUSTC", &rust.rustc).env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", flags);
    command
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(paths::repo());
    run(&mut command).context("cannot build crates/mpu-kmod for the kernel")?;
    Ok(object)
}

/// A compiler that has the source of `core` beside it.
struct Rust {
    cargo: PathBuf,
    rustc: PathBuf,
}

impl Rust {
    fn with_core_source() -> Result<Self> {
        if let Some(found) = Self::found()? {
            return Ok(found);
        }
        // One of these two works: a rustup toolchain can add its sources, Debian packages a compiler with them.
        say("no Rust with the source of `core` here; getting one");
        let added = Command::new("timeout")
            .args(["60", "rustup", "component", "add", "rust-src"])
            .status()
            .is_ok_and(|s| s.success());
        if !added {
            setup::install(&["rustc-web", "cargo-web", "rust-web-src"])
                .context("rustup offers no rust-src, and apt no rustc-web")?;
        }
        Self::found()?.context("still no Rust with the source of `core`: run `rustup component add rust-src`")
    }

    /// How this compiler is told to do without jump tables, which are indirect branches: older ones know another word for it.
    fn no_jump_tables(&self) -> &'static str {
        let stable = "-Cjump-tables=n";
        let known = output(Command::new(&self.rustc).args([stable, "--print", "sysroot"]));
        if known.is_ok() {
            stable
        } else {
            "-Zno-jump-tables"
        }
    }

    fn found() -> Result<Option<Self>> {
        let mut candidates =
            vec![("cargo".to_owned(), "rustc".to_owned()), ("/usr/bin/cargo".into(), "/usr/bin/rustc".into())];
        if let Ok(nightly) = output(Command::new("rustup").args(["which", "--toolchain", "nightly", "rustc"])) {
            let rustc = nightly.trim().to_owned();
            candidates.push((rustc.replace("/rustc", "/cargo"), rustc));
        }
        for (cargo, rustc) in candidates {
            let Ok(sysroot) = output(Command::new(&rustc).args(["--print", "sysroot"]).env_remove("RUSTUP_TOOLCHAIN"))
            else {
                continue;
            };
            let has_core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs").exists();
            let is_new = output(Command::new(&rustc).arg("--version").env_remove("RUSTUP_TOOLCHAIN"))
                .is_ok_and(|v| minor(&v) >= Some(87));
            if has_core && is_new {
                return Ok(Some(Self { cargo: cargo.into(), rustc: rustc.into() }));
            }
        }
        Ok(None)
    }
}

fn minor(version: &str) -> Option<u32> {
    version.split_whitespace().nth(1)?.split('.').nth(1)?.parse().ok()
}

/// Everything in the object that a kernel must not get.
pub fn faults(object: &Path) -> Result<Vec<String>> {
    let symbols = output(Command::new("nm").arg(object))?;
    let code = output(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(object))?;
    let relocations = output(Command::new("objdump").arg("-r").arg(object))?;
    if !symbols.lines().any(|line| line.contains(" T ")) {
        bail!("{} defines no function", object.display());
    }
    Ok([symbol_faults(&symbols), code_faults(&code), relocation_faults(&relocations)].concat())
}

fn symbol_faults(nm: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for line in nm.lines() {
        let mut words = line.split_whitespace().rev();
        let (Some(name), Some(kind)) = (words.next(), words.next()) else { continue };
        let allowed = ALLOWED.contains(&name) || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        if kind == "U" && !allowed {
            faults.push(format!("leaves {name} to others, which no kernel has"));
        }
        // rust_begin_unwind is the handler itself: it exists in every such object; reaching it is what may not happen.
        let panics =
            ["9panicking", "panic_fmt", "panic_bounds_check", "unwrap_failed", "expect_failed", "slice_index_fail"];
        if panics.iter().any(|part| name.contains(part)) {
            faults.push(format!("can panic: {name}"));
        }
    }
    faults
}

fn code_faults(disassembly: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut function = "";
    for line in disassembly.lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|head| head.split_once('<')) {
            function = name.1;
        }
        let Some((_, instruction)) = line.split_once(":\t") else { continue };
        let operation = instruction.trim_start_matches("cs ").trim_start_matches("bnd ").trim_start_matches("notrack ");
        if operation.starts_with("ret") {
            faults.push(format!("{function}: naked return"));
        }
        if (operation.starts_with("call") || operation.starts_with("jmp")) && operation.contains('*') {
            faults.push(format!("{function}: indirect branch: {instruction}"));
        }
        if ["%xmm", "%ymm", "%zmm", "%st", "%mm"].iter().any(|register| instruction.contains(register)) {
            faults.push(format!("{function}: floating point or vector register: {instruction}"));
        }
    }
    faults
}

fn relocation_faults(relocations: &str) -> Vec<String> {
    // What arch/x86/kernel/module.c applies; anything else fails when the module is loaded.
    let known = [
        "R_X86_64_NONE",
        "R_X86_64_64",
        "R_X86_64_32",
        "R_X86_64_32S",
        "R_X86_64_PC32",
        "R_X86_64_PLT32",
        "R_X86_64_PC64",
    ];
    let kinds = relocations
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .filter(|word| word.starts_with("R_X86_64_"));
    let mut unknown: Vec<&str> = kinds.filter(|kind| !known.contains(kind)).collect();
    unknown.sort_unstable();
    unknown.dedup();
    unknown.into_iter().map(|kind| format!("relocation {kind}, which the kernel's loader does not know")).collect()
}

#[cfg(test)]
mod tests {
    use super::{code_faults, relocation_faults, symbol_faults};

    #[test]
    fn a_clean_object_has_no_faults() {
        assert!(symbol_faults("                 U memset\n                 U mpu_c_read\n0000 T mpu_rs_before\n")
            .is_empty());
        assert!(code_faults("0 <f>:\n   6:\tpush   %r14\n  53:\tcs jmp 59 <f+0x59>\n").is_empty());
        assert!(relocation_faults("0000 R_X86_64_PLT32   __x86_return_thunk-0x4\n").is_empty());
    }

    #[test]
    fn what_a_kernel_must_not_get_is_found() {
        assert_eq!(symbol_faults("                 U printf\n").len(), 1);
        assert_eq!(symbol_faults("0000 t _RNvNtCs1_4core9panicking18panic_bounds_check\n").len(), 1);
        assert_eq!(code_faults("0 <f>:\n   6:\tret\n   7:\tcall   *%rax\n   8:\tmovaps %xmm0,(%rsp)\n").len(), 3);
        assert_eq!(relocation_faults("0000 R_X86_64_GOTPCREL   memset-0x4\n").len(), 1);
    }
}
