//! Makes the root of the agent's image without a container engine, with the Dockerfile's Debian and packages. In it, the real `mpu` builds the
//! module for every test kernel, from headers at the pod's mounts.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::programs::Build;
use crate::run::{last_lines, output, print_progress, run_to_log};
use crate::{files, kernels, kmod, paths, setup};

const DOCKERFILE: &str = include_str!("../../packaging/kubernetes/Dockerfile");

/// Debian's names of the releases that the Dockerfile may start from.
const SUITES: [(&str, &str); 2] = [("debian:12", "bookworm"), ("debian:13", "trixie")];

/// Arguments: the root, a kernel's unpacked packages, mpu, its sources, a folder for the modules, and a file with the release. Headers in the
/// cache name each other by their paths there, so they are mounted there, too.
const BUILD: &str = r#"set -e
r=$1 k=$2
mount --make-rprivate /
mkdir -p "$r/src" "$r/var/lib/mpu" "$r/lib/modules" "$r/etc/mpu" "$r/run/mpu" "$r$k"
mount -t proc proc "$r/proc"
mount --bind "$6" "$r/proc/sys/kernel/osrelease"
mount -t tmpfs tmpfs "$r/tmp"
touch "$r/usr/bin/mpu"
mount --bind "$3" "$r/usr/bin/mpu"
mount --bind "$4" "$r/src"
mount --bind "$5" "$r/var/lib/mpu"
mount --bind "$k" "$r$k"
mount --bind "$k/lib/modules" "$r/lib/modules"
mount --bind "$k/usr/src" "$r/usr/src"
for d in "$k"/usr/lib/linux-kbuild*; do
  mkdir -p "$r/usr/lib/${d##*/}"
  mount --bind "$d" "$r/usr/lib/${d##*/}"
done
mount -o remount,bind,ro "$r/usr/src"
mount -o remount,bind,ro "$r/lib/modules"
exec env -i PATH=/usr/sbin:/usr/bin chroot "$r" /usr/bin/mpu up --build-only --source /src
"#;

pub fn check() -> Result<Outcome> {
    setup::require(setup::NODE)?;
    let (root, mpu, sources) = (root()?, Build::TESTS.program(Arch::Amd64, "mpu")?, kmod::sources(Arch::Amd64)?);
    let mut result = Outcome::Passed;
    for name in kernels::debian(Arch::Amd64)? {
        let kernel = kernels::ready(&name)?;
        let store = paths::target(&format!("image/{name}"))?;
        let release = store.join("osrelease");
        let _ = std::fs::remove_dir_all(store.join(&kernel.release));
        std::fs::write(&release, &kernel.release)?;
        let mut build = Command::new("unshare");
        build.args(["--mount", "--pid", "--fork", "sh", "-c", BUILD, "sh"]);
        build.arg(&root).arg(kernel.root()).arg(&mpu).arg(&sources).arg(&store).arg(&release);
        let log = store.join("log");
        let built = run_to_log(&mut build, &log)? && store.join(&kernel.release).join("mpu_next.ko").is_file();
        print_progress(format!(
            "in the image, the module for {}: {}",
            kernel.release,
            if built { "built" } else { "NOT BUILT" }
        ));
        if !built {
            println!("{}", last_lines(&std::fs::read_to_string(&log).unwrap_or_default(), 20));
            result = Outcome::Failed;
        }
    }
    Ok(result)
}

/// The image's root file system, made now unless the cache has it.
fn root() -> Result<PathBuf> {
    let (suite, packages) = recipe(DOCKERFILE).context("the Dockerfile is not of the form that can be read here")?;
    let dir = paths::cache("image")?.join(format!("{suite}-{}", packages.replace(' ', "-")));
    files::get_or_make(dir, Path::is_dir, |partial| {
        print_progress(format!("making the image's root: {suite} with {packages}"));
        let mut make = Command::new("debootstrap");
        make.arg("--variant=minbase").arg(format!("--include={}", packages.replace(' ', ",")));
        output(make.arg(suite).arg(partial)).context("cannot make the image's root").map(drop)
    })
}

/// The Debian release and the packages that a Dockerfile names.
fn recipe(text: &str) -> Option<(&'static str, &str)> {
    let from = text.lines().find_map(|line| line.strip_prefix("FROM "))?;
    let suite = SUITES.iter().find(|(image, _)| from.starts_with(image))?.1;
    let install = " && apt-get install -y --no-install-recommends ";
    let packages = text.lines().find_map(|line| line.strip_prefix(install)?.strip_suffix(" \\"))?;
    Some((suite, packages.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_uses_program_of_its_platform() {
        let toolkit = include_str!("../../packaging/kubernetes/Dockerfile.toolkit");
        for (text, program) in [(DOCKERFILE, "mpu"), (toolkit, "mpu-container")] {
            let copy = format!("ARG TARGETARCH\nCOPY --chmod=0755 ${{TARGETARCH}}/{program} /usr/bin/{program}\n");
            assert!(text.contains(&copy), "{program}");
        }
        // What builders call platforms is what Debian calls machines.
        assert_eq!([Arch::Amd64, Arch::Arm64].map(|arch| arch.facts().debian), ["amd64", "arm64"]);
    }

    #[test]
    fn dockerfile_is_read() {
        let (suite, packages) = recipe(DOCKERFILE).expect("a recipe");
        assert_eq!(suite, "trixie");
        // The agent sees the node's /lib/modules and none of its programs. DKMS packs modules by zstd on Ubuntu, by xz on RHEL.
        for package in ["gcc", "make", "pahole", "xz-utils", "zstd"] {
            assert!(packages.split(' ').any(|name| name == package), "{packages}");
        }
        assert_eq!(recipe("FROM alpine:3\n"), None);
    }
}
