//! Makes a Debian package from staged files, with dpkg-deb.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::tree::{Package, date, directories_to_0755, gzip};
use crate::arch::Arch;
use crate::files::{self, below, write};
use crate::paths;
use crate::run::{is_installed, output, print_progress, run};

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// A template of a package. Files that both packages share are in packaging/debian.
fn template(package: &str, file: &str) -> Result<String> {
    let folder = if package == "mpu" { "debian" } else { "debian-container" };
    let packaging = paths::repo().join("packaging");
    let own = packaging.join(folder).join(file);
    let path = if own.exists() { own } else { packaging.join("debian").join(file) };
    files::read(&path)
}

pub fn file_name(name: &str, version: &str, arch: Arch) -> String {
    format!("{name}_{version}_{}.deb", arch.facts().debian)
}

pub fn pack(package: &Package, out: &Path) -> Result<PathBuf> {
    let name = package.name;
    let tree = paths::target("dist")?.join(format!("deb-{name}"));
    package.stage_files(&tree)?;
    let date = date(package.epoch, "+%a, %d %b %Y %H:%M:%S %z")?;
    let mit = std::fs::read_to_string(paths::repo().join("LICENSES/MIT.txt"))?;
    let fill = |file: &str, size: &str| {
        let text = package.fill(&template(name, file)?);
        Ok::<_, anyhow::Error>(text.replace("@DATE@", &date).replace("@SIZE@", size).replace("@MIT@", mit.trim_end()))
    };
    let doc = tree.join("usr/share/doc").join(name);
    write(&doc.join("copyright"), fill("copyright", "")?.as_bytes(), 0o644)?;
    write(&doc.join("changelog"), fill("changelog", "")?.as_bytes(), 0o644)?;
    gzip(&doc.join("changelog"))?;
    let overrides = template(name, "lintian-overrides")?;
    write(&tree.join("usr/share/lintian/overrides").join(name), overrides.as_bytes(), 0o644)?;
    // In KiB, as Debian policy 5.6.20 requires.
    let all = below(&tree)?;
    let size: u64 =
        all.iter().filter_map(|path| Some(std::fs::symlink_metadata(path).ok()?.len().div_ceil(1024))).sum();
    write(&tree.join("DEBIAN/control"), fill("control", &size.to_string())?.as_bytes(), 0o644)?;
    for script in SCRIPTS {
        let text = package.script("debian", &template(name, script)?)?;
        write(&tree.join("DEBIAN").join(script), text.as_bytes(), 0o755)?;
    }
    let (configuration, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        all.iter().filter(|path| !path.is_symlink()).partition(|path| path.starts_with(tree.join("etc")));
    let name_of = |path: &&PathBuf| path.strip_prefix(&tree).map(|name| name.display().to_string());
    if !configuration.is_empty() {
        let names = configuration.iter().map(|path| Ok(format!("/{}\n", name_of(path)?)));
        write(&tree.join("DEBIAN/conffiles"), names.collect::<Result<String>>()?, 0o644)?;
    }
    // For dpkg --verify. MD5 finds accidents, not attackers.
    let names = others.iter().map(name_of).collect::<Result<Vec<_>, _>>()?;
    let sums = output(Command::new("md5sum").args(names).current_dir(&tree))?;
    write(&tree.join("DEBIAN/md5sums"), sums, 0o644)?;
    directories_to_0755(&tree)?;
    let file = out.join(file_name(name, package.version, package.arch));
    let mut dpkg = Command::new("dpkg-deb");
    // One thread: with several, xz cuts the data into blocks by their number.
    dpkg.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).arg(&tree).arg(&file);
    run(dpkg.env("SOURCE_DATE_EPOCH", package.epoch).stdout(Stdio::null())).context("dpkg-deb cannot pack")?;
    lintian(&file)?;
    Ok(file)
}

fn lintian(package: &Path) -> Result<()> {
    if !is_installed("lintian") {
        print_progress("no lintian here: the package is not checked by it");
        return Ok(());
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "none", "--display-level", ">=warning", "--no-tag-display-limit"]);
    let output_text = output(lintian.arg(package))?;
    output_text.lines().for_each(print_progress);
    let errors: Vec<&str> = output_text.lines().filter(|line| line.starts_with("E: ")).collect();
    ensure!(errors.is_empty(), "lintian finds errors:\n{}", errors.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &'static str) -> Package<'static> {
        Package { name, arch: Arch::Arm64, version: "1.2.3", epoch: "0", bom: "", stage: &|_| Ok(()) }
    }

    #[test]
    fn templates_have_no_unfilled_placeholders() {
        for folder in ["packaging/debian", "packaging/debian-container", "packaging/scripts"] {
            for entry in std::fs::read_dir(crate::paths::repo().join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let mut text = package("mpu").fill(&std::fs::read_to_string(&path).unwrap());
                // "$@" is the shell's.
                for name in ["@SCRIPTS@", "@SIZE@", "@MIT@", "@DATE@", "mpu@users", "\"$@\""] {
                    text = text.replace(name, "");
                }
                assert!(!text.contains('@'), "{}", path.display());
            }
        }
    }

    #[test]
    fn deb_scripts_pass_shell_checks() {
        for name in ["mpu", "mpu-container"] {
            for script in SCRIPTS {
                let text = package(name).script("debian", &template(name, script).unwrap()).unwrap();
                super::super::scripts::check(&text, &format!("{name}'s {script}"));
            }
        }
    }
}
