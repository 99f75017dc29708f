//! Makes a release for each kind of machine: the executable with the module's sources, the sources alone, Debian and RPM packages, an SBOM
//! of each, checksums, and provenance. The same sources give the same bytes, wherever and whenever they are built.

pub mod check;
mod deb;
mod provenance;
mod rpm;
mod sbom;
#[cfg(test)]
mod scripts;
mod tree;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::files::{self, write};
use crate::outcome::Outcome;
use crate::programs::{Build, Profile};
use crate::run::{output, print_progress, run};
use crate::{chart, foreign, paths, setup};
use provenance::{ReleaseFacts, Sources};
use tree::Package;

/// The oldest C library that a released executable runs with: that of Debian 12 is 2.36, of Ubuntu 22.04 2.35, of RHEL 9 2.34.
const NEWEST_GLIBC: (u32, u32) = (2, 34);

#[derive(clap::Args)]
pub struct Args {
    /// Build everything a second time, elsewhere and at another time, and compare
    #[arg(long)]
    twice: bool,
    /// Build quickly, without optimising, for a look
    #[arg(long)]
    quick: bool,
    /// For these machines alone: amd64, arm64
    #[arg(long, value_name = "MACHINE")]
    arch: Vec<Arch>,
    /// Sign checksums and provenance with this private key (PEM, EC or RSA)
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Build nothing: check the files of this folder by its checksums, provenance and signature
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["twice", "quick", "arch", "sign_key"])]
    verify: Option<PathBuf>,
    /// The public key (PEM) that the signature must be by
    #[arg(long, value_name = "FILE", requires = "verify")]
    key: Option<PathBuf>,
}

pub fn dist(args: &Args) -> Result<Outcome> {
    if let Some(folder) = &args.verify {
        return verify(folder, args.key.as_deref());
    }
    let key = args.sign_key.as_deref().map(provenance::check_readable).transpose()?;
    ensure!(
        key.is_none() || Sources::now()?.are_committed(),
        "nothing is signed that no commit has: `git status` names files that were changed or that git does not know"
    );
    let arches = if args.arch.is_empty() { vec![Arch::Amd64, Arch::Arm64] } else { args.arch.clone() };
    setup::require(setup::OBJECTS)?;
    setup::require(setup::PACKAGES)?;
    let version = env!("CARGO_PKG_VERSION");
    let out = paths::target("dist")?.join(format!("mpu-{version}"));
    let profile = if args.quick { Profile::Quick } else { Profile::Release };
    let release = Release { build: Build { profile, ..Build::RELEASE }, arches, key };
    release.make(&out)?;
    println!("{}", out.display());
    let checks = check::all(&out, &newer()?, version, &release.arches);
    let failed: Vec<_> = checks.iter().filter(|(_, faults)| !faults.is_empty()).collect();
    failed.iter().for_each(|(name, faults)| println!("{name}: {}", faults.join("; ")));
    if !failed.is_empty() || !args.twice {
        return Ok(Outcome::of(failed.is_empty()));
    }
    print_progress("once more, in another folder");
    let again = paths::target("dist")?.join("again");
    Release { build: Build { folder: "cargo-again", ..release.build }, ..release }.make(&again)?;
    let (first, second) = (std::fs::read(out.join(provenance::SUMS))?, std::fs::read(again.join(provenance::SUMS))?);
    if first == second {
        println!("built twice, the same bytes");
    } else {
        println!("the second build differs:\n{}", String::from_utf8_lossy(&second));
    }
    Ok(Outcome::of(first == second))
}

/// For tests of upgrades: the folder of RPMs with the next release number and the same programs.
pub fn newer() -> Result<PathBuf> {
    paths::target("dist/newer")
}

fn verify(folder: &Path, key: Option<&Path>) -> Result<Outcome> {
    let key = key.map(provenance::check_readable).transpose()?;
    let (faults, output_text) = provenance::verify(folder, key.as_deref())?;
    faults.iter().for_each(|fault| println!("{fault}"));
    if !faults.is_empty() {
        return Ok(Outcome::Failed);
    }
    println!("every file is as the checksums and the provenance say; {output_text}");
    Ok(Outcome::Passed)
}

#[derive(Clone)]
pub struct Release {
    pub build: Build,
    pub arches: Vec<Arch>,
    pub key: Option<PathBuf>,
}

impl Release {
    pub fn make(&self, out: &Path) -> Result<()> {
        let sources = Sources::now()?;
        // Fail before minutes of building.
        chart::tools().context("no tools that render the chart")?;
        files::recreate(out)?;
        for &arch in &self.arches {
            self.make_for(arch, out).with_context(|| format!("nothing for {arch}"))?;
        }
        for text in ["LICENSE", "LICENSES/MIT.txt", "LICENSES/GPL-2.0-only.txt", "README.md"] {
            let from = paths::repo().join(text);
            fs_err::copy(&from, out.join(from.file_name().unwrap_or_default()))?;
        }
        std::fs::create_dir_all(out.join("kubernetes"))?;
        chart::render(&out.join("kubernetes"))?;
        let version = self.build.version();
        let is_quick = self.build.profile == Profile::Quick;
        ensure!(is_quick || Sources::now()? == sources, "the sources were changed while they were built: build again");
        let facts = ReleaseFacts { version, is_quick, arches: &self.arches, sources: &sources };
        provenance::seal(out, &facts, self.key.as_deref())
    }

    /// Makes the programs and packages of one architecture. The folder has Debian's name of it, which image builders use, too.
    fn make_for(&self, arch: Arch, out: &Path) -> Result<()> {
        foreign::require(arch)?;
        print_progress(format!("building the module's object for {arch}, checked"));
        let sources = self.build.sources(arch)?;
        let folder = out.join(arch.facts().debian);
        for file in files::entries(&sources)? {
            files::copy(&file, &folder.join("kmod").join(file.file_name().unwrap_or_default()))?;
        }
        let (version, epoch) = (self.build.version(), epoch()?);
        let mpu = self.build.program(arch, "mpu")?;
        check_glibc(&mpu)?;
        // Tests of upgrades only need mpu's Debian package.
        let is_another = self.build.another_version.is_some();
        let container = (!is_another).then(|| self.build.program(arch, "mpu-container")).transpose()?;
        let output_text = output(foreign::command(arch, &mpu)?.arg("--version"))?;
        ensure!(output_text.trim() == format!("mpu {version}"), "mpu for {arch} says {output_text}, not {version}");
        let schemas = |folder: &Path| -> Result<()> {
            for name in output(foreign::command(arch, &mpu)?.arg("schema"))?.lines() {
                let text = output(foreign::command(arch, &mpu)?.args(["schema", name]))?;
                write(&folder.join(format!("{name}.json")), text, 0o644)?;
            }
            Ok(())
        };
        schemas(&out.join("schema"))?;
        let stage_mpu = |program: &Path, tree: &Path| {
            run(foreign::command(arch, program)?.arg("stage").arg(tree))?;
            schemas(&tree.join("usr/share/doc/mpu/schema"))
        };
        let stage_container = |program: &Path, tree: &Path| stage_container(arch, program, tree);
        print_progress(format!("packing for {arch}"));
        type Stage<'a> = &'a dyn Fn(&Path, &Path) -> Result<()>;
        let programs =
            [("mpu", Some(&mpu), &stage_mpu as Stage), ("mpu-container", container.as_ref(), &stage_container)];
        for (name, program, stage) in programs {
            let Some(program) = program else { continue };
            let stage = &|tree: &Path| stage(program, tree);
            foreign::check_machine(arch, program)?;
            std::fs::copy(program, folder.join(name))?;
            let bom = sbom::cyclonedx(name, arch.facts().target)?;
            std::fs::write(folder.join(format!("{name}.cdx.json")), &bom)?;
            let package = Package { name, arch, version, epoch: &epoch, bom: &bom, stage };
            deb::pack(&package, out)?;
            if is_another {
                continue;
            }
            for variant in rpm::VARIANTS.into_iter().filter(|variant| variant.program == name) {
                rpm::pack(&package, variant, 1, out)?;
                if arch == Arch::Amd64 {
                    rpm::pack(&package, variant, 2, &newer()?)?;
                }
            }
        }
        Ok(())
    }
}

/// Installs mpu-container into a package's tree.
fn stage_container(arch: Arch, program: &Path, tree: &Path) -> Result<()> {
    let (programs, share) = (tree.join("usr/bin"), tree.join("usr/share"));
    let installed = programs.join("mpu-container");
    files::copy(program, &installed)?;
    run(foreign::command(arch, &installed)?.arg("links").arg(&programs))?;
    run(foreign::command(arch, &installed)?.args(["man", "--all"]).arg(share.join("man/man1")))?;
    for name in ["nvidia-ctk", "nvidia-container-cli"] {
        let script = output(foreign::command(arch, &installed)?.args(["completions", "bash", name]))?;
        write(&share.join("bash-completion/completions").join(name), script, 0o644)?;
    }
    let unit = "mpu-cdi-refresh.service";
    files::copy(&paths::repo().join("packaging/systemd").join(unit), &tree.join("usr/lib/systemd/system").join(unit))
}

/// The timestamp of all files in a package: the time of the newest commit.
fn epoch() -> Result<String> {
    let mut git = crate::run::command("git", ["log", "-1", "--format=%ct"]);
    Ok(output(git.current_dir(paths::repo()))?.trim().to_owned())
}

/// An executable that needs a newer C library does not run on every documented distribution.
fn check_glibc(executable: &Path) -> Result<()> {
    // readelf reads programs of any architecture, objdump only of its own.
    let versions = output(std::process::Command::new("readelf").args(["--version-info", "--wide"]).arg(executable))?;
    let newest = newest_glibc(&versions).with_context(|| format!("{} needs no C library", executable.display()))?;
    ensure!(
        newest <= NEWEST_GLIBC,
        "{} needs glibc {}.{}; releases promise {}.{}",
        executable.display(),
        newest.0,
        newest.1,
        NEWEST_GLIBC.0,
        NEWEST_GLIBC.1
    );
    Ok(())
}

fn newest_glibc(readelf: &str) -> Option<(u32, u32)> {
    let versions = readelf.split_whitespace().filter_map(|word| {
        let version = word.trim_start_matches('(').trim_end_matches(')').strip_prefix("GLIBC_")?;
        let mut numbers = version.split('.').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next().flatten().unwrap_or(0)))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::newest_glibc;

    #[test]
    fn newest_wanted_c_library_is_found() {
        let text = "0x10: Name: GLIBC_2.2.5 Flags: none\n0x20: Name: GLIBC_2.34 Version: 4\n0x30: Name: GLIBC_2.9 x\n";
        assert_eq!(newest_glibc(text), Some((2, 34)));
        assert_eq!(newest_glibc("nothing"), None);
    }
}
