//! Builds the module's Rust object once for all kernels, checks it for forbidden contents, and hands it to kbuild as a prebuilt file, so
//! that a node needs no Rust. The reasons for each flag are in the docs of kmod/; every kernel of kernels.toml loads the same object.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::run::{BuildOnce, output, print_progress, run};
use crate::{files, lint, paths, setup};

#[derive(clap::Args)]
pub struct Args {
    /// Architecture of the kernel that it is for
    #[arg(long, default_value = "amd64")]
    arch: Arch,
}

/// rustc's options for kernel code. Stable options first; the rest needs RUSTC_BOOTSTRAP or a nightly.
const FLAGS: &[&str] = &[
    "-Crelocation-model=static",
    "-Cforce-unwind-tables=n",
    "-Cpanic=abort",
    "-Csymbol-mangling-version=v0",
    "-Zdirect-access-external-data=yes",
    "-Zfunction-sections=no",
    // Otherwise memset and the like are called through a global offset table, which a kernel module does not have.
    "-Zplt=yes",
];

/// An architecture's additional options, and what its kernels accept.
struct Kernels {
    flags: &'static str,
    /// The undefined symbols that the object may have: those of our C files, and those that every kernel exports.
    allowed: &'static [&'static str],
    allowed_prefixes: &'static [&'static str],
    /// The relocations that the kernel's module loader supports, without `R_X86_64_` or `R_AARCH64_`. With any other, loading fails.
    relocations: &'static str,
    code: fn(&str) -> Vec<String>,
}

const AMD64: Kernels = Kernels {
    flags: "-Ccode-model=kernel -Cno-redzone=y -Zfunction-return=thunk-extern -Zretpoline-external-thunk=yes \
            -Zindirect-branch-cs-prefix=yes -Zcf-protection=branch",
    allowed: &["memcpy", "memset", "memmove", "memcmp", "__x86_return_thunk"],
    allowed_prefixes: &["mpu_c_", "__x86_indirect_thunk_"],
    // arch/x86/kernel/module.c
    relocations: "NONE 64 32 32S PC32 PLT32 PC64",
    code: amd64_code_faults,
};

const ARM64: Kernels = Kernels {
    // BTI landing pads and signed return addresses are hints, which older processors ignore. They also work in a kernel built without them.
    // Kernels with a shadow call stack keep its address in x18.
    flags: "-Zbranch-protection=bti,pac-ret -Zfixed-x18=yes",
    allowed: &["memcpy", "memset", "memmove", "memcmp"],
    allowed_prefixes: &["mpu_c_"],
    // arch/arm64/kernel/module.c
    relocations: "NONE ABS64 PREL32 CALL26 JUMP26 ADR_PREL_PG_HI21 ADD_ABS_LO12_NC LDST8_ABS_LO12_NC LDST16_ABS_LO12_NC LDST32_ABS_LO12_NC \
                  LDST64_ABS_LO12_NC",
    code: arm64_code_faults,
};

fn kernels(arch: Arch) -> &'static Kernels {
    match arch {
        Arch::Amd64 => &AMD64,
        Arch::Arm64 => &ARM64,
    }
}

pub fn kmod(args: &Args) -> Result<Outcome> {
    setup::require(setup::OBJECTS)?;
    if args.arch == Arch::Arm64 {
        setup::require(setup::ARM64_OBJECTS)?;
    }
    let object = build(args.arch)?;
    let faults = faults(args.arch, &object)?;
    for fault in &faults {
        println!("{}: {fault}", object.display());
    }
    if !faults.is_empty() {
        return Ok(Outcome::Failed);
    }
    println!("{}: {} bytes, no fault", object.display(), std::fs::metadata(&object)?.len());
    Ok(Outcome::Passed)
}

pub fn build(arch: Arch) -> Result<PathBuf> {
    let rust = Rust::with_core_source()?;
    let object = paths::target("kmod")?.join(arch.named("mpu_core") + ".o");
    let mut command = Command::new(&rust.cargo);
    command.args(["rustc", "--quiet", "--locked", "--release", "--package", "mpu-kmod", "-Zbuild-std=core"]);
    command.args(["--target", arch.facts().kernel_target]);
    // A separate folder: these flags must not invalidate this machine's builds, or wait for their lock.
    command.arg("--target-dir").arg(paths::target("kmod/cargo")?);
    command.args(["--", &format!("--emit=obj={}", object.display())]);
    let own = kernels(arch).flags.split(' ').chain([rust.no_jump_tables()]);
    let flags = FLAGS.iter().copied().chain(own).collect::<Vec<_>>().join("\x1f");
    command.env("RUSTC", &rust.rustc).env("RUSTC_BOOTSTRAP", "1").env("CARGO_ENCODED_RUSTFLAGS", flags);
    for name in ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command.current_dir(paths::repo());
    lint::keep_profiles(&mut command);
    run(&mut command).context("cannot build crates/mpu-kmod for the kernel")?;
    Ok(object)
}

/// A compiler that has the source of `core`.
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
        print_progress("no Rust with the source of `core` here; getting one");
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

    /// The option against jump tables, which are indirect branches. Older compilers have another one.
    fn no_jump_tables(&self) -> &'static str {
        let stable = "-Cjump-tables=n";
        let known = output(Command::new(&self.rustc).args([stable, "--print", "sysroot"]));
        if known.is_ok() { stable } else { "-Zno-jump-tables" }
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
                .is_ok_and(|v| minor(&v) >= Some(88));
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

/// The object's contents that are not allowed in a kernel.
pub fn faults(arch: Arch, object: &Path) -> Result<Vec<String>> {
    let symbols = output(Command::new(arch.tool("nm")).arg(object))?;
    let objdump = arch.tool("objdump");
    let code = output(Command::new(&objdump).args(["-d", "--no-show-raw-insn"]).arg(object))?;
    let relocations = output(Command::new(&objdump).arg("-r").arg(object))?;
    if !symbols.lines().any(|line| line.contains(" T ")) {
        bail!("{} defines no function", object.display());
    }
    let kernels = kernels(arch);
    Ok([symbol_faults(kernels, &symbols), (kernels.code)(&code), relocation_faults(kernels, &relocations)].concat())
}

fn symbol_faults(kernels: &Kernels, nm: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for line in nm.lines() {
        let mut words = line.split_whitespace().rev();
        let (Some(name), Some(kind)) = (words.next(), words.next()) else { continue };
        let allowed =
            kernels.allowed.contains(&name) || kernels.allowed_prefixes.iter().any(|prefix| name.starts_with(prefix));
        if kind == "U" && !allowed {
            faults.push(format!("leaves {name} to others, which no kernel has"));
        }
        // rust_begin_unwind, the panic handler, is in every such object. Only calls of it are forbidden.
        let panics =
            ["9panicking", "panic_fmt", "panic_bounds_check", "unwrap_failed", "expect_failed", "slice_index_fail"];
        if panics.iter().any(|part| name.contains(part)) {
            faults.push(format!("can panic: {name}"));
        }
    }
    faults
}

fn instructions(disassembly: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut function = "";
    disassembly.lines().filter_map(move |line| {
        if let Some(name) = line.strip_suffix(">:").and_then(|head| head.split_once('<')) {
            function = name.1;
        }
        line.split_once(":\t").map(|(_, instruction)| (function, instruction))
    })
}

fn amd64_code_faults(disassembly: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (function, instruction) in instructions(disassembly) {
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

fn arm64_code_faults(disassembly: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (function, instruction) in instructions(disassembly) {
        let operation = instruction.split_whitespace().next().unwrap_or_default();
        // `b.eq` is no indirect branch. `bra…` and `blra…` are, with a signed address.
        if ["br", "blr"].contains(&operation) || operation.starts_with("bra") || operation.starts_with("blra") {
            faults.push(format!("{function}: indirect branch: {instruction}"));
        }
        // A symbol's address precedes its name, and can look like a register: `d70`.
        let code = instruction
            .split_once('<')
            .map_or(instruction, |(code, _)| code.trim_end().trim_end_matches(|c: char| c.is_ascii_hexdigit()));
        let registers = code.split(|c: char| !c.is_ascii_alphanumeric()).skip(1);
        for register in registers {
            let numbered =
                register.get(1..).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()));
            match register.bytes().next() {
                Some(b'q' | b'v' | b'd' | b's' | b'h' | b'z') if numbered => {
                    faults.push(format!("{function}: floating point or vector register: {instruction}"));
                }
                Some(b'x' | b'w') if numbered && &register[1..] == "18" => {
                    faults.push(format!("{function}: the shadow stack's register: {instruction}"));
                }
                _ => {}
            }
        }
    }
    faults
}

fn relocation_faults(kernels: &Kernels, relocations: &str) -> Vec<String> {
    let words = relocations.lines().filter_map(|line| line.split_whitespace().nth(1));
    let kinds = words.filter_map(|word| word.strip_prefix("R_X86_64_").or(word.strip_prefix("R_AARCH64_")));
    let unknown: BTreeSet<&str> =
        kinds.filter(|kind| kernels.relocations.split(' ').all(|known| known != *kind)).collect();
    unknown.into_iter().map(|kind| format!("relocation {kind}, which the kernel's loader does not know")).collect()
}

/// kmod/ with the freshly built object, as in a release. Each state of the sources has a separate folder, so that no other process changes it.
pub fn sources(arch: Arch) -> Result<PathBuf> {
    static ONCE: BuildOnce = BuildOnce::new();
    ONCE.get_or_make(arch.facts().target, || {
        let object = build(arch)?;
        let faults = faults(arch, &object)?;
        ensure!(faults.is_empty(), "the kernel object is unfit:\n{}", faults.join("\n"));
        let kmod = paths::repo().join("kmod");
        let mut sources = vec![("mpu_core.o_shipped".to_owned(), fs_err::read(object)?)];
        for name in source_files(&kmod)? {
            let text = fs_err::read(kmod.join(&name))?;
            sources.push((name, text));
        }
        let state = files::digest(sources.iter().flat_map(|(name, bytes)| [name.as_bytes(), bytes]));
        let copy = paths::target(&format!("kmod/{}", arch.named("mpu")))?.join(&state[..24]).join("mpu");
        files::get_or_make(copy, Path::exists, |partial| {
            sources.iter().try_for_each(|(name, bytes)| files::write(&partial.join(name), bytes, 0o644))
        })
    })
}

/// The source files: git ignores build products. A release records whether files are uncommitted (`Sources` in `dist/provenance.rs`).
fn source_files(folder: &Path) -> Result<Vec<String>> {
    Ok(files::git_files(folder)?.into_iter().filter(|name| !name.contains('/')).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_symbols_code_and_relocations_are_found() {
        assert_eq!(symbol_faults(&AMD64, "                 U printf\n").len(), 1);
        assert_eq!(symbol_faults(&ARM64, "                 U __x86_return_thunk\n").len(), 1);
        assert_eq!(symbol_faults(&AMD64, "0000 t _RNvNtCs1_4core9panicking18panic_bounds_check\n").len(), 1);
        assert_eq!(amd64_code_faults("0 <f>:\n   6:\tret\n   7:\tcall   *%rax\n   8:\tmovaps %xmm0,(%rsp)\n").len(), 3);
        let arm64 = "0 <f>:\n   0:\tbr\tx8\n   4:\tblr\tx9\n   8:\tstp\tq0, x1, [sp, #16]\n   c:\tmov\tx18, x0\n";
        assert_eq!(arm64_code_faults(arm64).len(), 4);
        assert_eq!(relocation_faults(&AMD64, "0000 R_X86_64_GOTPCREL   memset-0x4\n").len(), 1);
        assert_eq!(relocation_faults(&ARM64, "0000 R_AARCH64_ADR_GOT_PAGE  memset\n").len(), 1);
    }

    #[test]
    fn source_files_exclude_ignored_build_products() {
        let folder = tempfile::tempdir().unwrap();
        output(Command::new("git").args(["init", "--quiet"]).current_dir(folder.path())).unwrap();
        for name in [".gitignore", "mpu_main.c", "mpu_main.o", "mpu_new.c"] {
            std::fs::write(folder.path().join(name), "*.o\n").unwrap();
        }
        output(Command::new("git").args(["add", "mpu_main.c"]).current_dir(folder.path())).unwrap();
        assert_eq!(source_files(folder.path()).unwrap(), [".gitignore", "mpu_main.c", "mpu_new.c"]);
    }
}
