//! Makes a guest's root: one archive that the kernel unpacks, with this machine's tools, the simulated drivers, the module, NVIDIA's user
//! space and mpu-guest as process 1.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::job::{DEMO, Job};
use super::real;
use crate::apt::is_unreachable;
use crate::arch::Arch;
use crate::cpio::Archive;
use crate::programs::Build;
use crate::run::{output, print_progress, run};
use crate::sysroot::{add, program};
use crate::{chart, kernels, kmod, modules, nvidia, paths, python};

/// Programs of this machine that guests use: real container runtimes.
const PROGRAMS: [&str; 2] = ["crun", "runc"];

/// Programs that use the simulated driver; some also as a 32-bit process.
const SIM_PROGRAMS: [&str; 9] =
    ["gpu-hold", "nvctl", "nvattack", "nvtaint", "nvroot", "nvkeep", "gpu-hold32", "nvctl32", "nvroot32"];

/// Writes the archive for a job and returns its path.
pub fn build(job: &Job) -> Result<PathBuf> {
    let mut archive = Archive::default();
    let arch = kernels::arch_of(&job.kernel)?;
    base(&mut archive, arch)?;
    if job.rows.iter().any(|row| row.stories != [DEMO]) {
        for_stories(&mut archive, arch)?;
    }
    drivers(&mut archive, job)?;
    let versions: BTreeSet<&str> = job.rows.iter().map(|row| row.client.as_str()).collect();
    versions.into_iter().try_for_each(|version| client(&mut archive, arch, version))?;
    manifests(&mut archive, job)?;
    archive.text("plan", 0o644, &serde_json::to_vec(&job.rows)?);
    let path = paths::target("guest")?.join(format!("{}-{}.cpio", job.name(), std::process::id()));
    fs_err::write(&path, archive.finish())?;
    Ok(path)
}

/// The story that starts `mpu agent` as the chart's manifests do.
const AGENT: &str = "agent_container_keeps_the_engine_up";

/// Adds the manifests if that story runs. Without the chart's tools it is skipped.
fn manifests(archive: &mut Archive, job: &Job) -> Result<()> {
    if !job.rows.iter().any(|row| row.stories.is_empty() || row.stories.iter().any(|story| story == AGENT)) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    if let Err(error) = chart::render(folder.path()) {
        if !is_unreachable(&error) {
            return Err(error);
        }
        print_progress(format!("no manifests in the guest: {error:#}"));
        return Ok(());
    }
    for name in ["manifest.yaml", "manifest-runtime-class.yaml"] {
        archive.file(&format!("kubernetes/{name}"), 0o644, &folder.path().join(name))?;
    }
    Ok(())
}

fn base(archive: &mut Archive, arch: Arch) -> Result<()> {
    for folder in ["proc", "sys", "dev", "tmp", "run", "root", "new", "usr/sbin", "sbin", "lib64"] {
        archive.folder(folder);
    }
    add(archive, arch, "init", &Build::TESTS.program(arch, "mpu-guest")?)?;
    add(archive, arch, "bin/mpu", &Build::TESTS.program(arch, "mpu")?)?;
    add(archive, arch, "bin/busybox", &program(arch, "busybox")?)?;
    for name in PROGRAMS {
        add(archive, arch, &format!("usr/bin/{name}"), &program(arch, name)?)?;
    }
    archive.text("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n");
    archive.text("etc/group", 0o644, b"root:x:0:\n");
    Ok(())
}

/// Adds what stories need beyond the demonstration.
fn for_stories(archive: &mut Archive, arch: Arch) -> Result<()> {
    archive.file("usr/bin/mpu-container", 0o755, &Build::TESTS.program(arch, "mpu-container")?)?;
    // It writes the caches of containers' roots. Debian's is static.
    archive.file("sbin/ldconfig", 0o755, &program(arch, "ldconfig")?)?;
    match arch {
        Arch::Amd64 => python::add(archive),
        // Only a running Python lists its files, and this machine has one for itself only: stories of pynvml are skipped.
        Arch::Arm64 => Ok(()),
    }
}

/// The simulated driver of each era in the plan, its programs, and the module.
fn drivers(archive: &mut Archive, job: &Job) -> Result<()> {
    let kernel = kernels::ready(&job.kernel)?;
    let eras: BTreeSet<&str> = job.rows.iter().map(|row| row.era.as_str()).collect();
    // Each of these builds is loaded by one story, in era 4.
    let decoys: &[&str] = if eras.iter().any(|era| ["4", "4n"].contains(era)) { &["4d", "1f"] } else { &[] };
    let (real, simulated): (BTreeSet<&str>, BTreeSet<&str>) =
        eras.into_iter().chain(decoys.iter().copied()).partition(|era| real::release(era).is_some());
    for release in real.into_iter().filter_map(real::release) {
        real_modules(archive, &kernel, release)?;
    }
    // Guests with a real driver load rival.ko and stale.ko, too, which are built with the simulated driver.
    let simulated = if simulated.is_empty() { BTreeSet::from(["4"]) } else { simulated };
    for era in simulated {
        let driver = sim_module(&kernel, era)?;
        archive.file(&format!("sim/era{era}/nvidia.ko"), 0o644, &driver)?;
        // The same for all eras.
        let others = ["rival.ko", "nvidia-peermem.ko"].into_iter();
        for module in others.chain((kernel.arch == Arch::Amd64).then_some("stale.ko")) {
            archive.file(&format!("sim/{module}"), 0o644, &driver.with_file_name(module))?;
        }
    }
    let programs = sim_programs(kernel.arch)?;
    for program in SIM_PROGRAMS {
        archive.file(&format!("bin/{program}"), 0o755, &programs.join(program))?;
    }
    archive.file("bin/taint.allowed", 0o644, &paths::repo().join("tests/gpu/taint.allowed"))?;
    // It loads a client's NVML, so it is not static.
    add(archive, kernel.arch, "bin/nvmlcall", &programs.join("nvmlcall"))?;
    if job.rows.iter().any(|row| row.engines.iter().any(|engine| engine != "none")) {
        for module in mpu_modules(&kernel, job.redirect.as_deref())? {
            let name = module.file_name().unwrap_or_default().to_string_lossy().into_owned();
            archive.file(&format!("mpu/{name}"), 0o644, &module)?;
        }
    }
    Ok(())
}

/// Adds NVIDIA's own driver, which `x real-driver` made, with the modules that it needs.
fn real_modules(archive: &mut Archive, kernel: &kernels::Kernel, release: &str) -> Result<()> {
    let folder = real::modules(&kernel.name, release);
    let overrides = (!release.ends_with(real::CLOSED)).then_some("made_up_overrides.ko");
    for module in ["nvidia.ko", "made_up_gpu.ko", "made_up_drm.ko"].into_iter().chain(overrides) {
        archive.file(&format!("real/{release}/{module}"), 0o644, &folder.join(module))?;
    }
    // An open driver reads its firmware at start, before it turns out that nothing needs it.
    if overrides.is_none() {
        return Ok(());
    }
    // The firmware's name in 515, and from 535 on.
    for name in ["gsp.bin", "gsp_tu10x.bin"] {
        archive.text(&format!("lib/firmware/nvidia/{release}/{name}"), 0o644, b"none\n");
    }
    Ok(())
}

/// The simulated driver of one era for a kernel.
pub fn sim_module(kernel: &kernels::Kernel, era: &str) -> Result<PathBuf> {
    let mut make_args = vec![format!("ERA={}", era.trim_end_matches(['f', 'd', 'n']))];
    let kinds = [('f', "FRONTEND=1"), ('d', "DECOY=1"), ('n', "NEWEST=1")];
    make_args.extend(kinds.iter().filter(|(end, _)| era.ends_with(*end)).map(|(_, kind)| (*kind).to_owned()));
    let out = paths::target(&format!("guest/modules/{}/era{era}", kernel.name))?;
    let modules =
        modules::build(kernel, &paths::repo().join("sim"), &out, &make_args)?.checked("the simulated driver")?;
    modules.into_iter().find(|module| module.ends_with("nvidia.ko")).context("the simulated driver has no module")
}

/// mpu.ko for a kernel, with the current Rust object.
pub fn mpu_module(kernel: &kernels::Kernel, redirect: Option<&str>) -> Result<PathBuf> {
    let modules = mpu_modules(kernel, redirect)?;
    modules.into_iter().find(|module| module.ends_with("mpu.ko")).context("kmod/ builds no mpu.ko")
}

/// The undefined symbols of the module, built as for a kernel without return thunks: such a kernel rejects unknown symbols.
pub fn symbols_without_return_thunks(kernel: &kernels::Kernel) -> Result<Vec<String>> {
    let out = paths::target(&format!("guest/modules/{}/mpu-no-thunks", kernel.name))?;
    // objtool reports complaints, because this kernel has return thunks.
    let without = ["KCFLAGS=-mfunction-return=keep", "AFLAGS_MODULE=-DMPU_OWN_RETURN_THUNK"].map(str::to_owned);
    let built = modules::build(kernel, &kmod::sources(kernel.arch)?, &out, &without)?;
    let module = built.files.iter().find(|file| file.ends_with("mpu.ko"));
    let module = module.with_context(|| format!("no mpu.ko: {}", built.complaints.join("\n")))?;
    let symbols = output(Command::new("nm").arg("-u").arg(module))?;
    Ok(symbols.lines().filter_map(|line| line.trim().strip_prefix("U ")).map(str::to_owned).collect())
}

/// The module under both its names: see kmod/mpu_peer.h. A method of redirection is set at build time: not every command that loads the
/// module takes parameters.
fn mpu_modules(kernel: &kernels::Kernel, redirect: Option<&str>) -> Result<Vec<PathBuf>> {
    let name = redirect.map_or_else(|| "mpu".to_owned(), |way| format!("mpu-{way}"));
    let out = paths::target(&format!("guest/modules/{}/{name}", kernel.name))?;
    let make_args: Vec<String> = redirect.iter().map(|way| format!("MPU_REDIRECT={way}")).collect();
    modules::build(kernel, &kmod::sources(kernel.arch)?, &out, &make_args)?.checked("the module")
}

pub fn sim_programs(arch: Arch) -> Result<PathBuf> {
    let out = paths::target(&format!("guest/{}", arch.named("sim")))?;
    let mut make = Command::new("make");
    make.args(["--silent", "-C"]).arg(paths::repo().join("sim")).arg(format!("OUT={}", out.display()));
    make.arg(format!("CC={}", arch.facts().cc)).arg(format!("CC32={}", arch.facts().cc32));
    run(&mut make).context("cannot build the simulated driver's programs")?;
    Ok(out)
}

/// The nvidia-smi and NVML of a release.
pub fn client(archive: &mut Archive, arch: Arch, version: &str) -> Result<()> {
    let dir = nvidia::ready(version, arch)?;
    nvidia::PROGRAMS
        .iter()
        .try_for_each(|name| add(archive, arch, &format!("nvidia/{version}/{name}"), &dir.join(name)))
}
