//! Builds the workspace's programs for releases and for tests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::arch::Arch;
use crate::run::{BuildOnce, output, print_progress, run};
use crate::{files, foreign, kmod, lint, paths};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// As released.
    Release,
    /// For tests: quicker to build.
    Quick,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Quick => "quick",
        }
    }
}

#[derive(Clone, Copy)]
pub struct Build {
    pub profile: Profile,
    /// Cargo's target folder, below target/dist.
    pub folder: &'static str,
    /// For tests of upgrades: build a copy of the tree with this version.
    pub another_version: Option<&'static str>,
}

impl Build {
    /// Shared by all tests, so that cargo builds a library once.
    pub const TESTS: Build = Build { profile: Profile::Quick, folder: "quick", another_version: None };
    /// As users get it, for packages and figures.
    pub const RELEASE: Build = Build { profile: Profile::Release, folder: "cargo", another_version: None };

    pub fn version(&self) -> &'static str {
        self.another_version.unwrap_or(env!("CARGO_PKG_VERSION"))
    }

    /// The module's sources that are embedded in mpu.
    pub fn sources(&self, arch: Arch) -> Result<PathBuf> {
        let made = kmod::sources(arch)?;
        if self.another_version.is_none() {
            return Ok(made);
        }
        let sources = self.tree()?.join("kmod");
        std::fs::copy(made.join("mpu_core.o_shipped"), sources.join("mpu_core.o_shipped"))?;
        Ok(sources)
    }

    /// Builds a program once per run, and returns its path.
    pub fn program(&self, arch: Arch, package: &str) -> Result<PathBuf> {
        static PROGRAMS: BuildOnce = BuildOnce::new();
        let place = paths::target("dist/programs")?.join(self.folder).join(self.version());
        let place = place.join(arch.facts().debian).join(package);
        PROGRAMS.get_or_make(&place.display().to_string(), || {
            print_progress(format!("building {package} for {arch}"));
            let built = self.build(arch, package)?;
            // Cargo puts another version's program at the same path. Renaming keeps a running program intact.
            let copy = files::with_suffix(&place, &format!("partial-{}", std::process::id()));
            files::copy(&built, &copy)?;
            fs_err::rename(copy, &place)?;
            Ok(place)
        })
    }

    fn build(&self, arch: Arch, package: &str) -> Result<PathBuf> {
        // mpu-container is static: it runs in any root and loads nothing from it. mpu loads NVML, which a static program cannot.
        let is_static = package == "mpu-container";
        let built = paths::target("dist")?.join(self.folder);
        let (mut cargo, profile) = (lint::cargo(), self.profile.name());
        cargo.args([if is_static { "rustc" } else { "build" }, "--quiet", "--profile", profile]);
        cargo.args(["--target", arch.facts().target, "--target-dir"]).arg(&built).current_dir(self.tree()?);
        for package in self.packages_built_with(package) {
            cargo.args(["--package", package, "--bin", package]);
        }
        if self.another_version.is_none() {
            cargo.arg("--locked");
        }
        // Paths of this machine would make two machines' builds differ. The flags are the same for both trees, or cargo would build every
        // library for each.
        let mut paths = vec![(paths::repo().to_owned(), "."), (tree_copy_path()?, "."), (built.clone(), "build")];
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
        paths.extend(home.map(|home| (home, "cargo")));
        let flags: Vec<String> =
            paths.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect();
        cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
        if !is_static {
            cargo.env("MPU_KMOD_DIR", self.sources(arch)?);
        }
        foreign::configure_cargo(arch, &mut cargo)?;
        if is_static {
            // For the program only: the other programs share its libraries.
            cargo.args(["--", "-Ctarget-feature=+crt-static"]);
        }
        run(&mut cargo).with_context(|| format!("cannot build {package}"))?;
        let program = built.join(arch.facts().target).join(profile).join(package);
        if is_static {
            check_static(&program)?;
        }
        Ok(program)
    }

    /// The packages of one build. Built one by one, each would compile its libraries anew, with other features.
    fn packages_built_with<'a>(&self, package: &'a str) -> Vec<&'a str> {
        match (self.profile, package) {
            (Profile::Quick, "mpu" | "mpu-guest") => vec!["mpu", "mpu-guest"],
            _ => vec![package],
        }
    }

    fn tree(&self) -> Result<PathBuf> {
        static TREES: BuildOnce = BuildOnce::new();
        match self.another_version {
            None => Ok(paths::repo().to_owned()),
            Some(version) => TREES.get_or_make(version, || copy_tree(version)),
        }
    }
}

fn tree_copy_path() -> Result<PathBuf> {
    Ok(paths::target("dist")?.join("tree"))
}

/// A copy of the sources with another version, also of the module's sources.
fn copy_tree(version: &str) -> Result<PathBuf> {
    let this = env!("CARGO_PKG_VERSION");
    let tree = tree_copy_path()?;
    files::remove(&tree)?;
    for name in files::git_files(paths::repo())? {
        files::copy(&paths::repo().join(&name), &tree.join(&name))?;
    }
    let manifest = tree.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest)?;
    let changed = text.replace(&format!("version = \"{this}\""), &format!("version = \"{version}\""));
    ensure!(changed != text, "Cargo.toml does not have version {this}");
    std::fs::write(manifest, changed)?;
    std::fs::write(tree.join("kmod/VERSION"), version)?;
    Ok(tree)
}

/// A dynamic program would load libraries from the root that it runs in.
fn check_static(program: &Path) -> Result<()> {
    let headers = output(std::process::Command::new("readelf").arg("--program-headers").arg(program))?;
    ensure!(!headers.contains("INTERP"), "{} is not static", program.display());
    Ok(())
}
