//! Installs missing packages on Debian 12, Debian 13 and Ubuntu 24.04. The table has each package with the reason.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::apt::{self, lock_apt};
use crate::arch::Arch;
use crate::paths;
use crate::run::{is_installed, is_root, output, print_progress};

/// A package with its reason, and a probe that finds it without dpkg.
pub struct Need {
    /// A path, or the name of a program.
    pub probe: &'static str,
    pub package: &'static str,
    pub reason: &'static str,
}

const fn need(probe: &'static str, package: &'static str, reason: &'static str) -> Need {
    Need { probe, package, reason }
}

/// For fetching kernels and building modules.
pub const KERNELS: &[Need] = &[
    need("/usr/share/keyrings/debian-archive-keyring.gpg", "debian-archive-keyring", "to verify Debian's kernels"),
    need("gcc-12", "gcc-12", "the compiler of the 6.1 and 6.12 kernels"),
    need("make", "make", "kbuild"),
    need("/usr/share/doc/libelf1/copyright|/usr/share/doc/libelf1t64/copyright", "libelf1", "objtool of headers"),
    need("xz", "xz-utils", "to unpack 5.10 and 6.1"),
    need("zstd", "zstd", "to unpack 6.12 and later"),
    need("pahole", "pahole", "type information of modules from 6.12 on"),
];

/// For building a kernel from source: required only for such a kernel.
pub const SOURCES: &[Need] = &[
    need("flex", "flex", "kconfig of the kernel that is built here"),
    need("bison", "bison", "kconfig of the kernel that is built here"),
    need("bc", "bc", "the kernel's time constants"),
    need("/usr/include/gelf.h", "libelf-dev", "its objtool"),
];

pub const HOST: &[Need] = &[
    need("git", "git", "tests of the tree ask it for the list of files"),
    need("zsh", "zsh", "to check its completions"),
    need("fish", "fish", "to check its completions"),
    need("mandoc", "mandoc", "to check the manual pages"),
    need("groff", "groff-base", "to check the manual pages, too: the formatter of Debian's man"),
    need("softhsm2-util", "softhsm2", "a token with a signing key"),
    need("/usr/lib/x86_64-linux-gnu/ossl-modules/pkcs11.so", "pkcs11-provider", "how sign-file reaches a token"),
];

pub const OBJECTS: &[Need] = &[need("objdump", "binutils", "to look into the kernel object")];

pub const PACKAGES: &[Need] = &[
    need("dpkg-deb", "dpkg", "the Debian package"),
    need("gzip", "gzip", "manual pages in packages"),
    need("lintian", "lintian", "Debian's own checks of a package"),
    need("rpmbuild", "rpm", "the RPM packages"),
    need("cpio", "cpio", "to look into them"),
    need("busybox", "busybox-static", "the shell of a root in which they are installed"),
    need("/usr/lib/python3/dist-packages/rpm/__init__.py", "python3-rpm", "a transaction of several of them"),
    need("rpmlint", "rpmlint", "Red Hat's checks of a package"),
    need("openssl", "openssl", "to sign checksums, and to verify them"),
    need("/usr/lib/python3/dist-packages/pip/__init__.py", "python3-pip", "the tools that render the chart"),
];

/// For starting programs of arm64 machines here.
pub const EMULATED: &[Need] =
    &[need("qemu-aarch64-static|qemu-aarch64", "qemu-user-static", "to start programs for arm64 here")];

/// For the guest that is a whole Debian.
pub const NODE: &[Need] = &[
    need("debootstrap", "debootstrap", "the Debian in the node's guest"),
    need("cpio", "cpio", "its archive"),
    need("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "ovmf", "firmware with Secure Boot"),
    need("virt-fw-vars", "python3-virt-firmware", "to enrol a key in that firmware"),
    need("openssl", "openssl", "that key"),
];

pub const IMAGES: &[Need] = &[need("buildah", "buildah", "container images from our Dockerfiles")];

/// Packages that Debian 12 has only in its backports, or only there new enough.
const BACKPORTED: [&str; 5] =
    ["qemu-system-x86", "qemu-system-arm", "qemu-user-static", "python3-virt-firmware", "pkcs11-provider"];

pub const GUESTS: &[Need] = &[
    need("qemu-system-x86_64", "qemu-system-x86", "guests"),
    need("/usr/share/seabios/bios-256k.bin", "seabios", "guests: firmware"),
    need("/usr/lib/x86_64-linux-gnu/libc.a", "libc6-dev", "programs in guests are linked statically"),
    need("busybox", "busybox-static", "the guest's shell tools"),
    need("crun", "crun", "containers in guests"),
    need("runc", "runc", "containers in guests"),
    need("python3", "python3", "pynvml in guests"),
    need("/usr/lib/python3/dist-packages/pip/__init__.py", "python3-pip", "to fetch pynvml"),
    need("gcc", "gcc", "the simulated driver's test programs"),
    need("/usr/lib/gcc/x86_64-linux-gnu/12/32/libgcc.a", "gcc-12-multilib", "32-bit callers in guests"),
];

/// For arm64 guests, besides [`GUESTS`].
pub const ARM64: &[Need] = &[
    need("qemu-system-aarch64", "qemu-system-arm", "arm64 guests"),
    need("aarch64-linux-gnu-gcc-12", "gcc-12-aarch64-linux-gnu", "the compiler of the arm64 kernel"),
    need("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu", "to link what runs in arm64 guests"),
    need("arm-linux-gnueabihf-gcc", "gcc-arm-linux-gnueabihf", "32-bit callers in arm64 guests"),
    need("/usr/arm-linux-gnueabihf/lib/libc.a", "libc6-dev-armhf-cross", "32-bit callers in arm64 guests"),
    need("/usr/aarch64-linux-gnu/lib/libc.a", "libc6-dev-arm64-cross", "arm64 guests have static programs"),
];

pub const ARM64_OBJECTS: &[Need] =
    &[need("aarch64-linux-gnu-objdump", "binutils-aarch64-linux-gnu", "to look into the arm64 kernel object")];

const ALL: [&[Need]; 10] = [HOST, KERNELS, OBJECTS, GUESTS, ARM64, ARM64_OBJECTS, EMULATED, PACKAGES, NODE, IMAGES];

pub fn all() -> impl Iterator<Item = &'static Need> {
    ALL.into_iter().flatten()
}

pub fn install_all() -> Result<()> {
    ALL.into_iter().try_for_each(require)?;
    print_progress("all packages are here");
    Ok(())
}

/// The missing packages of a list.
pub fn missing<'a>(needs: impl IntoIterator<Item = &'a Need>) -> Vec<&'a Need> {
    needs.into_iter().filter(|need| !is_met(need)).collect()
}

pub fn require(needs: &'static [Need]) -> Result<()> {
    if missing(needs).is_empty() {
        return Ok(());
    }
    // After waiting for the lock, another thread may have installed them.
    let lock = lock_apt()?;
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        print_progress(format!("installing {}: {}", need.package, need.reason));
    }
    update_index();
    let packages: Vec<&str> = missing.iter().map(|need| local_package_name(need.package)).collect();
    install_locked(&packages, &lock)?;
    if let Some(still) = self::missing(needs).first() {
        bail!("{} was installed, but {} is still not here", still.package, still.probe);
    }
    Ok(())
}

/// Installs packages by apt, as root or through sudo.
pub fn install(packages: &[&str]) -> Result<()> {
    install_locked(packages, &lock_apt()?)
}

fn install_locked(packages: &[&str], _lock: &fs_err::File) -> Result<()> {
    if !is_installed("apt-get") {
        bail!(
            "no apt-get here; these packages are needed, under whatever names this distribution has: {}",
            packages.join(" ")
        );
    }
    update_index();
    let (newer, others): (Vec<&str>, Vec<&str>) = packages.iter().partition(|name| BACKPORTED.contains(name));
    apt_install(&others, &[])?;
    // In a separate call: the target release would apply to all packages of the call.
    apt_install(&newer, &if newer.is_empty() { Vec::new() } else { backports()? })
}

/// Rust's standard library for programs of another architecture. rustup fetches it; Debian's compilers come without.
pub fn rust_target(arch: Arch) -> Result<()> {
    let target = arch.facts().target;
    let has = || {
        let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        Ok::<_, anyhow::Error>(Path::new(sysroot.trim()).join("lib/rustlib").join(target).join("lib").is_dir())
    };
    if has()? {
        return Ok(());
    }
    print_progress(format!("adding Rust's {target}: what runs in {arch} guests is built for it"));
    let added = output(Command::new("rustup").args(["target", "add", target]));
    added.with_context(|| format!("no Rust for {target} here: `rustup target add {target}` adds it")).map(drop)
}

fn apt_install(packages: &[&str], options: &[String]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let mut command = apt_get();
    command.args(["-qq", "-y", "--no-install-recommends"]).args(options);
    command.args(["-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0", "install"]).args(packages);
    // The output of debconf and dpkg is shown only on failure.
    output(&mut command).with_context(|| format!("cannot install {}", packages.join(" "))).map(drop)
}

/// Updates apt's lists once: container images have none, and stale lists name deleted files. A failure is ignored, because a missing package
/// is reported later.
fn update_index() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let _ = apt_get().args(["-qq", "-o", "DPkg::Lock::Timeout=600", "update"]).stderr(Stdio::null()).status();
    });
}

/// The suite of [`BACKPORTED`]. Debian 12's own QEMU is too old to start every kernel of the table as an ELF file, and conflicts with newer
/// qemu-utils.
const BACKPORTS: &str = "bookworm-backports";

/// apt's options for Debian 12's backports; none on other systems. If the machine's sources lack the suite, it is added for this call only.
fn backports() -> Result<Vec<String>> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.lines().any(|line| line == "VERSION_CODENAME=bookworm") {
        return Ok(Vec::new());
    }
    let target = ["-t", BACKPORTS].map(str::to_owned);
    let known = output(Command::new("apt-cache").arg("policy")).unwrap_or_default();
    if known.contains(&format!("{BACKPORTS}/main")) {
        return Ok(target.to_vec());
    }
    print_progress("reading the index of Debian's bookworm-backports, for QEMU 10 and the tool for firmware variables");
    let line = apt::source_line(BACKPORTS)?;
    let options = apt::options_with_source(Path::new("/etc/apt/sources.list"), &paths::cache("apt/besides")?, &line)?;
    output(apt_get().args(&options).args(["-qq", "update"])).context("cannot read the index of bookworm-backports")?;
    Ok(options.into_iter().chain(target).collect())
}

/// The package's name on this machine: in Ubuntu 24.04 and Debian 13 the 64-bit time_t transition renamed some libraries.
fn local_package_name(package: &'static str) -> &'static str {
    let offered =
        |name: &str| output(Command::new("apt-cache").args(["show", name])).is_ok_and(|text| !text.trim().is_empty());
    match package {
        "libelf1" if offered("libelf1t64") => "libelf1t64",
        "pahole" if !offered("pahole") => "dwarves",
        other => other,
    }
}

fn is_met(need: &Need) -> bool {
    need.probe
        .split('|')
        .any(|probe| if probe.starts_with('/') { Path::new(probe).exists() } else { is_installed(probe) })
}

fn apt_get() -> Command {
    let mut command = Command::new(if is_root() { "env" } else { "sudo" });
    if !is_root() {
        command.args(["-n", "env"]);
    }
    command.args(["DEBIAN_FRONTEND=noninteractive", "DEBCONF_NOWARNINGS=yes", "apt-get"]);
    command
}
