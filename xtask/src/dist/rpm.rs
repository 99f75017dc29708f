//! Makes RPM packages with the same files and scripts as Debian's, with rpmbuild. Nothing is compiled or stripped here. `MACROS` overrides
//! the defaults of Debian's rpmbuild, and those that depend on its machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tree::{Package, date, directories_to_0755, empty_folders};
use crate::arch::Arch;
use crate::files::{below, write};
use crate::paths;
use crate::run::output;

/// An RPM package, and the program whose files it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    pub name: &'static str,
    /// The Debian package with the same files.
    pub program: &'static str,
    /// Whether it has the module's sources for DKMS.
    pub with_dkms: bool,
}

pub const VARIANTS: [Variant; 3] = [
    Variant { name: "mpu", program: "mpu", with_dkms: true },
    Variant { name: "mpu-nodkms", program: "mpu", with_dkms: false },
    Variant { name: "mpu-container", program: "mpu-container", with_dkms: false },
];

/// Macros for reproducible packages whose files rpmbuild does not change.
const MACROS: &[(&str, &str)] = &[
    ("_build_id_links", "none"),
    ("debug_package", "%{nil}"),
    // The default strips programs and compresses manual pages with tools for this machine's architecture.
    ("__os_install_post", "%{nil}"),
    ("_buildhost", "reproducible"),
    ("use_source_date_epoch_as_buildtime", "1"),
    ("clamp_mtime_to_source_date_epoch", "1"),
    ("source_date_epoch_from_changelog", "0"),
    // SHA-256; Debian's rpm would take MD5.
    ("_binary_filedigest_algorithm", "8"),
    // One thread, and a packer that RHEL 8 and SLES 15 unpack.
    ("_binary_payload", "w6.xzdio"),
    ("_build_name_fmt", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"),
    // "sha256" of Debian's default would need newer readers than RHEL 8.
    ("_changelog_trimage", "0"),
];

/// Folders that no package of a distribution owns for sure. Our package owns them, too, so that a removal deletes them.
const OWNED: &[&str] = &["bash-completion", "fish", "zsh", "selinux"];

/// NVIDIA's packages that mpu-container replaces: those in `Conflicts` of Debian's control file.
fn replaced_packages() -> Result<Vec<String>> {
    let control = paths::repo().join("packaging/debian-container/control");
    let text = fs_err::read_to_string(&control)?;
    let line = text.lines().find_map(|line| line.strip_prefix("Conflicts: ")).context("no Conflicts there")?;
    Ok(line.split(", ").map(str::to_owned).collect())
}

pub fn file_name(name: &str, version: &str, release: u32, arch: Arch) -> String {
    format!("{name}-{version}-{release}.{}.rpm", arch.facts().machine_name)
}

/// Packs one variant into `out`. `release` counts packages of one version.
pub fn pack(package: &Package, variant: Variant, release: u32, out: &Path) -> Result<PathBuf> {
    let work = paths::target("dist")?.join(format!("rpm-{}", variant.name));
    let tree = work.join("tree");
    package.stage_files(&tree)?;
    adapt_to_rpm(package, variant, &tree)?;
    directories_to_0755(&tree)?;
    let list = work.join("list");
    write(&list, file_list(&tree)?.as_bytes(), 0o644)?;
    let spec = work.join("spec");
    write(&spec, spec_text(package, variant, release, &tree, &list)?.as_bytes(), 0o644)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet", "--target", &format!("{}-linux", package.arch.facts().machine_name)]);
    build.arg("--define").arg(format!("_topdir {}", work.display()));
    build.arg("--define").arg(format!("_rpmdir {}", out.display()));
    for (name, value) in MACROS {
        build.arg("--define").arg(format!("{name} {value}"));
    }
    // Without the user's own macros.
    build.env("HOME", &work).env("SOURCE_DATE_EPOCH", package.epoch).arg(&spec);
    output(&mut build).context("rpmbuild cannot pack")?;
    let file = out.join(file_name(variant.name, package.version, release, package.arch));
    ensure!(file.is_file(), "rpmbuild has written no {}", file.display());
    lint(&file)?;
    Ok(file)
}

/// Moves and adds the files that differ from the Debian package.
fn adapt_to_rpm(package: &Package, variant: Variant, tree: &Path) -> Result<()> {
    let zsh = tree.join("usr/share/zsh");
    if zsh.join("vendor-completions").is_dir() {
        std::fs::rename(zsh.join("vendor-completions"), zsh.join("site-functions"))?;
    }
    if !variant.with_dkms {
        let _ = std::fs::remove_dir_all(tree.join("usr/src"));
    }
    let licences = tree.join("usr/share/licenses").join(package.name);
    for text in ["LICENSE", "LICENSES/MIT.txt", "LICENSES/GPL-2.0-only.txt"] {
        let from = paths::repo().join(text);
        write(&licences.join(from.file_name().unwrap_or_default()), &std::fs::read(&from)?, 0o644)?;
    }
    let unit = if package.name == "mpu" { "mpu.service" } else { "mpu-cdi-refresh.service" };
    let preset = tree.join(format!("usr/lib/systemd/system-preset/71-{}.preset", package.name));
    write(&preset, format!("enable {unit}\n").as_bytes(), 0o644)
}

/// The package's %files list.
fn file_list(tree: &Path) -> Result<String> {
    let mut lines = "%defattr(-,root,root)\n".to_owned();
    let mut folders = std::collections::BTreeSet::new();
    for path in below(tree)? {
        let name = path.strip_prefix(tree)?;
        folders.extend(name.ancestors().skip(1).filter(|folder| is_owned(folder)).map(Path::to_owned));
        let mark = match name.to_str().context("a name that is no text")? {
            name if name.starts_with("etc/") => "%config(noreplace) ",
            name if name.starts_with("usr/share/licenses/") => "%license ",
            name if name.starts_with("usr/share/doc/") || name.starts_with("usr/share/man/") => "%doc ",
            _ => "",
        };
        lines += &format!("{mark}/{}\n", name.display());
    }
    // Empty folders, too: the package's removal leaves a folder that has files by then.
    for folder in empty_folders(tree)? {
        folders.extend(folder.strip_prefix(tree)?.ancestors().filter(|folder| is_owned(folder)).map(Path::to_owned));
    }
    folders.iter().for_each(|folder| lines += &format!("%dir /{}\n", folder.display()));
    Ok(lines)
}

/// Whether the package's removal deletes a folder.
fn is_owned(folder: &Path) -> bool {
    let is_own = |name: &str| name == "mpu" || name.starts_with("mpu-") || OWNED.contains(&name);
    folder.components().any(|part| part.as_os_str().to_str().is_some_and(is_own))
}

fn spec_text(package: &Package, variant: Variant, release: u32, tree: &Path, list: &Path) -> Result<String> {
    let template = paths::repo().join("packaging/rpm").join(format!("{}.spec", package.name));
    let text = fs_err::read_to_string(&template)?;
    let mut replaces = String::new();
    for name in replaced_packages()?.iter().filter(|_| text.contains("@REPLACES@")) {
        replaces += &format!("Provides:       {name}\nConflicts:      {name}\n");
    }
    let text = text
        .replace("@NAME@", variant.name)
        .replace("@RELEASE@", &release.to_string())
        .replace("@TREE@", &tree.display().to_string())
        .replace("@LIST@", &list.display().to_string())
        .replace("@DATE@", &date(package.epoch, "+%a %b %d %Y")?)
        .replace("@REPLACES@\n", &replaces);
    package.script("rpm", &text)
}

/// Red Hat's checks. packaging/rpm/rpmlint.toml lists the allowed findings, each with its reason.
fn lint(package: &Path) -> Result<()> {
    let rules = paths::repo().join("packaging/rpm/rpmlint.toml");
    let done = Command::new("rpmlint").arg("-c").arg(rules).arg(package).output().context("cannot start rpmlint")?;
    let output_text = String::from_utf8_lossy(&done.stdout).into_owned();
    ensure!(done.status.success() && output_text.contains(" 0 errors, 0 warnings"), "rpmlint finds:\n{output_text}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scripts in a spec file, each with its heading.
    fn scripts(text: &str) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        let mut inside = false;
        for line in text.lines() {
            if let Some(word) = line.strip_prefix('%').filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            {
                inside = word.contains("-p /bin/sh");
                found.extend(inside.then(|| (word.to_owned(), String::new())));
            } else if inside {
                let (_, script) = found.last_mut().expect("a heading");
                *script += &format!("{line}\n");
            }
        }
        found
    }

    #[test]
    fn rpm_scripts_pass_shell_checks() {
        for variant in VARIANTS {
            let package = Package {
                name: variant.program,
                arch: Arch::Arm64,
                version: "1.2.3",
                epoch: "0",
                bom: "",
                stage: &|_| Ok(()),
            };
            let text = spec_text(&package, variant, 1, Path::new("/tree"), Path::new("/list")).unwrap();
            let scripts = scripts(&text);
            assert_eq!(scripts.len(), if variant.program == "mpu" { 5 } else { 4 });
            for (name, script) in scripts {
                super::super::scripts::check(&script, &format!("{}'s {name}", variant.name));
                // rpm would expand it as a macro.
                assert!(!script.contains('%'), "{name}");
            }
            assert!(text.contains(&format!("Name:           {}\n", variant.name)) && !text.contains("@REPLACES@"));
        }
    }

    #[test]
    fn empty_folder_is_packed_too() {
        let tree = tempfile::tempdir().unwrap();
        write(&tree.path().join("usr/bin/mpu"), b"", 0o755).unwrap();
        std::fs::create_dir_all(tree.path().join("usr/lib/mpu/modules")).unwrap();
        let list = file_list(tree.path()).unwrap();
        assert!(list.contains("%dir /usr/lib/mpu/modules\n") && list.contains("%dir /usr/lib/mpu\n"), "{list}");
        assert!(!list.contains("%dir /usr/lib\n"), "{list}");
    }

    #[test]
    fn package_removal_removes_own_folders_only() {
        for (folder, owned) in [
            ("usr/src/mpu-0.1.0", true),
            ("etc/mpu", true),
            ("usr/share/selinux/packages", true),
            ("usr/share/man/man1", false),
            ("usr/lib/systemd/system", false),
            ("usr/bin", false),
        ] {
            assert_eq!(is_owned(Path::new(folder)), owned, "{folder}");
        }
    }
}
