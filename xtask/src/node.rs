//! A whole Debian in a guest, with systemd, dpkg and DKMS on a real kernel: tests MPU's installation, use and removal on a node.
//!
//! debootstrap makes the image once. It is an initramfs, which needs no disk, no disk driver and no loop mount. A second archive has a run's
//! files. The stories are in tests/node; a test compares them with docs/node-stories.md.

mod secure_boot;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::arch::Arch;
use crate::cpio::Archive;
use crate::dist::Release;
use crate::guest::qemu;
use crate::guest::verdict::{Report, Tally};
use crate::guest::{Job, image};
use crate::outcome::Outcome;
use crate::programs::Build;
use crate::run::{BuildOnce, find_program, output, print_progress, run};
use crate::{apt, files, guest, kernels, modules, nvidia, paths, setup};

/// Raised when the image is made differently, so that older caches are made anew.
const RECIPE: &str = "2";
/// The name of a cached archive in its folder.
const ARCHIVE: &str = "archive.cpio";
/// The kernel that the node is updated to.
const NEXT_KERNEL: &str = "6.12";
pub const CLIENT: &str = "550.163.01";
pub const ERA: &str = "1";
/// The version that the upgrade stories go to.
pub const NEXT: &str = "0.9.9";

/// A Debian for guests: debootstrap's smallest variant with more packages.
pub struct Debian {
    pub name: &'static str,
    pub suite: &'static str,
    pub kernel: &'static str,
    pub packages: &'static str,
    /// Packages that apt installs afterwards: debootstrap does not resolve virtual packages.
    pub more: &'static [&'static str],
    pub headers: bool,
}

const BUILDER: Debian = Debian {
    name: "",
    suite: "bookworm",
    kernel: "6.1",
    packages: "systemd,systemd-sysv,udev,kmod,dkms,gcc,libc6-dev,make,libelf1,procps,psmisc,patch,pahole",
    more: &[],
    headers: true,
};

/// With container engines, and without a compiler.
const ENGINES: Debian = Debian {
    name: "-engines",
    packages: "systemd,systemd-sysv,udev,kmod,procps,psmisc,jq",
    more: &["docker.io", "runc", "podman", "crun", "apparmor"],
    headers: false,
    ..BUILDER
};

/// With Slurm, and without a compiler. slurmd needs D-Bus to get a systemd scope for its jobs.
const BATCH: Debian = Debian {
    name: "-slurm",
    packages: "systemd,systemd-sysv,udev,kmod,procps,psmisc,jq,dbus",
    more: &["munge", "slurmctld", "slurmd", "slurm-client"],
    ..ENGINES
};

/// With SELinux, on Debian 13: Debian 12's policy does not cover containers.
const LABELLED: Debian = Debian {
    name: "-selinux",
    suite: "trixie",
    kernel: "6.12",
    more: &["runc", "selinux-policy-default", "policycoreutils", "selinux-utils"],
    ..ENGINES
};

#[derive(clap::Args)]
pub struct Args {
    /// What to play; everything unless named
    #[arg(long, value_enum)]
    play: Vec<Play>,
    /// Open a shell in the guest instead, with everything at hand below /node
    #[arg(long)]
    shell: bool,
}

/// One guest's stories, in the order of a file in tests/node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Play {
    /// The package installed, upgraded and removed
    Package,
    /// Beside another project's modules, by hand, interrupted, and with the notify engine
    Life,
    /// The driver that comes late or again, the boot, a kernel update
    Kernels,
    /// UEFI Secure Boot, and modules that are signed or not
    SecureBoot,
    /// GPU containers under systemd, by the package mpu-container
    Containers,
    /// Docker's and podman's containers, served by the notify engine
    Engines,
    /// Containers under SELinux, served by the notify engine
    Selinux,
    /// Containers in Slurm's jobs, and the jobs' names
    Slurm,
}

impl Play {
    /// Its name on the command line, and of its file in tests/node.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn debian(self) -> &'static Debian {
        match self {
            Play::Engines => &ENGINES,
            Play::Selinux => &LABELLED,
            Play::Slurm => &BATCH,
            _ => &BUILDER,
        }
    }

    fn script(self) -> PathBuf {
        paths::repo().join(format!("tests/node/{}.sh", self.name()))
    }
}

/// The stories in scripts: the first arguments of functions that print a verdict.
fn stories(scripts: &[PathBuf]) -> Result<BTreeSet<String>> {
    let script = scripts.iter().map(|script| files::read(script)).collect::<Result<String>>()?;
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let verdict_functions = ["verdict", "right", "wrong", "same", "check_stays_right", "check", "refused"];
    let named = words.windows(2).filter(|pair| verdict_functions.contains(&pair[0])).map(|pair| pair[1]);
    Ok(named.filter(|word| word.contains('_') && !word.starts_with(['"', '$'])).map(str::to_owned).collect())
}

pub fn node(args: &Args) -> Result<Outcome> {
    guest::prepare(Arch::Amd64)?;
    let plays = if args.play.is_empty() { Play::value_variants().to_vec() } else { args.play.clone() };
    let mut tally = Tally::default();
    for play in plays {
        let made = build(play, args.shell)?;
        if args.shell {
            qemu::run_interactive(command(play, &made, true)?)?;
            return Ok(Outcome::Passed);
        }
        tally.add(&boot(play, &made, true)?);
    }
    tally.print();
    Ok(tally.outcome())
}

/// Downloads and makes everything for a play, so that later steps need no network.
pub fn fetch(play: Play) -> Result<()> {
    setup::require(setup::NODE)?;
    setup::require(setup::PACKAGES)?;
    nvidia::ready(CLIENT, Arch::Amd64)?;
    debian(play.debian())?;
    headers().map(drop)
}

/// Makes the image: the Debian and this run's files.
pub fn build(play: Play, shell: bool) -> Result<PathBuf> {
    setup::require(setup::NODE)?;
    setup::require(setup::PACKAGES)?;
    let debian = debian(play.debian())?;
    let now = package(None)?;
    let out = paths::target("node")?;
    let kernel = kernels::ready(play.debian().kernel)?;
    let driver = image::sim_module(&kernel, ERA)?;
    let mut archive = Archive::default();
    for (name, from) in [
        ("node/mpu.deb", now.join(format!("mpu_{}_amd64.deb", env!("CARGO_PKG_VERSION")))),
        ("node/mpu", now.join("amd64/mpu")),
        ("usr/bin/gpu-hold", image::sim_programs(Arch::Amd64)?.join("gpu-hold")),
        ("usr/bin/nvctl", image::sim_programs(Arch::Amd64)?.join("nvctl")),
        ("node/stories.sh", paths::repo().join("tests/node/stories.sh")),
        ("node/served.sh", paths::repo().join("tests/node/served.sh")),
        ("node/order.sh", play.script()),
    ] {
        archive.file(name, 0o755, &from)?;
    }
    let client = nvidia::ready(CLIENT, Arch::Amd64)?;
    for file in nvidia::PROGRAMS {
        archive.file(&format!("node/nvidia/{file}"), 0o755, &client.join(file))?;
    }
    if !shell {
        let unit = paths::repo().join("tests/node/node-stories.service");
        archive.file("etc/systemd/system/node-stories.service", 0o644, &unit)?;
        let wants = "[Unit]\nWants=node-stories.service\n";
        archive.text("etc/systemd/system/multi-user.target.d/stories.conf", 0o644, wants.as_bytes());
    }
    let mut parts = vec![debian];
    if play != Play::SecureBoot {
        archive.file("node/nvidia.ko", 0o644, &driver)?;
    }
    if [Play::Engines, Play::Selinux, Play::Slurm, Play::Containers].contains(&play) {
        let package = now.join(format!("mpu-container_{}_amd64.deb", env!("CARGO_PKG_VERSION")));
        archive.file("node/mpu-container.deb", 0o644, &package)?;
    }
    let repo = paths::repo();
    if [Play::Package, Play::Life].contains(&play) {
        let next = package(Some(NEXT))?;
        archive.file("node/mpu-next.deb", 0o644, &next.join(format!("mpu_{NEXT}_amd64.deb")))?;
        archive.file("node/mpu-next", 0o755, &next.join("amd64/mpu"))?;
    }
    match play {
        Play::Package | Play::Engines => {}
        Play::Life => {
            let foreign = out.join("foreign");
            modules::build(&kernel, &repo.join("tests/node/foreign"), &foreign, &[])?.checked("the foreign modules")?;
            for name in ["mpu.ko", "mpu_next.ko"] {
                archive.file(&format!("node/foreign/{name}"), 0o644, &foreign.join(name))?;
            }
            archive.file("node/gcc-12", 0o755, &repo.join("tests/node/gcc-12.sh"))?;
        }
        Play::Kernels => {
            archive.text("node/next-kernel", 0o644, kernels::ready(NEXT_KERNEL)?.release.as_bytes());
            parts.push(headers()?);
        }
        Play::SecureBoot => {
            keys(&mut archive, &kernel, &driver, &out)?;
            let owner = secure_boot::Key::of(&out.join("keys"), "owner");
            prebuilt(&mut archive, &kernel, &now, &out.join("prebuilt"), Some(&owner))?;
            prebuilt(&mut archive, &kernel, &now, &out.join("prebuilt-unsigned"), None)?;
        }
        Play::Selinux => {
            archive.file("node/label.sh", 0o755, &repo.join("tests/node/label.sh"))?;
            archive.file("node/mpu.cil", 0o644, &repo.join("packaging/selinux/mpu.cil"))?;
        }
        Play::Slurm => prebuilt(&mut archive, &kernel, &now, &out.join("prebuilt-slurm"), None)?,
        Play::Containers => {
            archive.file("usr/bin/runc", 0o755, &find_program("runc").context("no runc")?)?;
            let seccomp = "usr/lib/x86_64-linux-gnu/libseccomp.so.2";
            archive.file(seccomp, 0o644, &Path::new("/").join(seccomp))?;
        }
    }
    join(&parts, archive, out.join(play.name()))
}

/// Concatenates archives: the kernel unpacks one after another.
pub fn join(parts: &[PathBuf], last: Archive, into: PathBuf) -> Result<PathBuf> {
    let mut file = fs_err::File::create(&into)?;
    for part in parts {
        std::io::copy(&mut File::open(part)?, &mut file)?;
    }
    file.write_all(&last.finish())?;
    Ok(into)
}

/// The packages of this version, for tests that need no guest.
pub fn packages() -> Result<PathBuf> {
    setup::require(setup::PACKAGES)?;
    package(None)
}

/// The folder with the packages of this version, or of another, made once per run.
fn package(version: Option<&'static str>) -> Result<PathBuf> {
    static MADE: BuildOnce = BuildOnce::new();
    MADE.get_or_make(version.unwrap_or_default(), || {
        let out = paths::target("node")?.join(version.unwrap_or("now"));
        let build = Build { another_version: version, ..Build::TESTS };
        Release { build, arches: vec![Arch::Amd64], key: None }.make(&out)?;
        Ok(out)
    })
}

/// Adds the machine owner's key and an unenrolled one, and the driver with and without a signature. Writes the firmware's variables.
fn keys(archive: &mut Archive, kernel: &kernels::Kernel, driver: &Path, out: &Path) -> Result<()> {
    let dir = out.join("keys");
    std::fs::create_dir_all(&dir)?;
    let owner = secure_boot::Key::make(&dir, "owner")?;
    let unenrolled = secure_boot::Key::make(&dir, "unenrolled")?;
    secure_boot::variables(&owner, &variables(out))?;
    for (name, key) in [("owner", &owner), ("unenrolled", &unenrolled)] {
        for file in [key.private(), key.pem(), key.der()] {
            let ending = file.extension().unwrap_or_default().to_string_lossy();
            archive.file(&format!("node/keys/{name}.{ending}"), 0o600, &file)?;
        }
    }
    let signed = dir.join("nvidia.ko");
    owner.sign(kernel, driver, &signed)?;
    archive.file("node/nvidia.ko", 0o644, &signed)?;
    archive.file("node/nvidia-unsigned.ko", 0o644, driver)
}

/// Adds the module, built by `mpu build` on this machine, for a node without a compiler. The archive's folder has the same name.
fn prebuilt(
    archive: &mut Archive,
    kernel: &kernels::Kernel,
    packages: &Path,
    folder: &Path,
    key: Option<&secure_boot::Key>,
) -> Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    let mut build = Command::new(packages.join(Arch::Amd64.facts().debian).join("mpu"));
    build.args(["build", "--for", &kernel.release, "--headers"]).arg(kernel.root()).arg("--out").arg(folder);
    if let Some(key) = key {
        build.arg("--sign-key").arg(key.private()).arg("--sign-cert").arg(key.pem());
    }
    output(&mut build).context("mpu builds no module for the node's kernel")?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    for file in ["mpu.ko", "mpu_next.ko"] {
        archive.file(&format!("node/{name}/{file}"), 0o644, &folder.join(&kernel.release).join(file))?;
    }
    Ok(())
}

fn variables(out: &Path) -> PathBuf {
    out.join("variables.fd")
}

/// The limit of a play. It builds the module several times, which takes minutes each on an emulated processor.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// Boots a play, and returns its report.
pub fn boot(play: Play, made: &Path, loud: bool) -> Result<Report> {
    watch(command(play, made, false)?, play.debian().kernel, &play.name(), &[play.script()], made, loud)
}

/// Runs a machine until its scripts end. A story without a verdict counts as failed.
pub fn watch(
    machine: Command,
    kernel: &str,
    name: &str,
    scripts: &[PathBuf],
    image: &Path,
    loud: bool,
) -> Result<Report> {
    let job = Job { kernel: format!("{kernel} {name}"), rows: Vec::new(), cpus: 2, limit: LIMIT, redirect: None };
    let log = paths::target("guest/log")?.join(format!("node-{name}.log"));
    let console = qemu::watch(machine, image, job.limit, &log, loud)?;
    let mut report = Report::read(&job, &console, log);
    for story in stories(scripts)? {
        if !report.verdicts.iter().any(|verdict| verdict.story == story) {
            report.troubles.push(format!("{story} printed no verdict"));
        }
    }
    Ok(report)
}

fn command(play: Play, made: &Path, shell: bool) -> Result<Command> {
    let kernel = kernels::ready(play.debian().kernel)?;
    // The archive has no SELinux labels: label.sh writes them before init starts.
    let first = match play {
        Play::Selinux => "rdinit=/node/label.sh security=selinux selinux=1",
        _ => "rdinit=/sbin/init",
    };
    if play != Play::SecureBoot {
        return Ok(machine(&kernel, &kernel.vmlinux(), made, first, shell));
    }
    let mut command = machine(&kernel, &kernel.compressed()?, made, first, shell);
    secure_boot::machine(&mut command, &variables(&paths::target("node")?));
    Ok(command)
}

/// The command that runs a Debian in QEMU.
pub fn machine(kernel: &kernels::Kernel, file: &Path, image: &Path, first: &str, shell: bool) -> Command {
    let mut command = qemu::emulator(kernel.arch);
    command.args(["-m", "4096", "-smp", "2"]);
    command.args(["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot"]);
    command.arg("-kernel").arg(file).arg("-initrd").arg(image);
    let clock = qemu::clock_arguments();
    let arguments =
        format!("console=ttyS0 panic=-1 oops=panic {first} quiet loglevel=4 systemd.show_status=no {clock}");
    // A login prompt would be on the same line as a verdict.
    let no_login = if shell { "" } else { " systemd.mask=serial-getty@ttyS0.service" };
    command.args(["-append", &format!("{arguments}{no_login}")]);
    command
}

/// The archive of a Debian, made now unless the cache has it.
pub fn debian(variant: &Debian) -> Result<PathBuf> {
    let kernel = kernels::ready(variant.kernel)?;
    let suite = variant.suite;
    archive_of(&format!("{suite}{}-{}", variant.name, kernel.release), |root| {
        print_progress(format!("making a Debian of {suite}{} for the node's guest", variant.name));
        let mut tried = Vec::new();
        for base in apt::mirrors(suite)? {
            let mut debootstrap = Command::new("debootstrap");
            debootstrap.args(["--variant=minbase", &format!("--include={}", variant.packages), suite]);
            match output(debootstrap.arg(root).arg(&base)) {
                Ok(_) => break,
                Err(error) => tried.push(format!("{base}: {error:#}")),
            }
            files::recreate(root)?;
        }
        let last = variant.packages.rsplit(',').next().unwrap_or_default();
        let installed = root.join(format!("var/lib/dpkg/info/{last}.list"));
        ensure!(installed.exists(), "no Debian with {last}: {}", tried.join("\n"));
        add(root, variant.more)?;
        finish_root(root, &kernel, variant.headers)
    })
}

/// The archive of a folder, made now unless the cache has it.
fn archive_of(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let place = paths::cache("node")?.join(format!("{name}-{RECIPE}"));
    let place = files::get_or_make(place, Path::is_dir, |partial| {
        let root = partial.join("root");
        fs_err::create_dir(&root)?;
        make(&root)?;
        pack(&root, &partial.join(ARCHIVE))?;
        files::remove(&root)
    })?;
    Ok(place.join(ARCHIVE))
}

/// Installs packages in a Debian without starting their services, which would run on this machine.
fn add(root: &Path, packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let policy = root.join("usr/sbin/policy-rc.d");
    files::write(&policy, "#!/bin/sh\nexit 101\n", 0o755)?;
    let apt = |words: &[&str]| {
        let mut chroot = Command::new("chroot");
        chroot.arg(root).args(["apt-get", "--quiet=2", "--yes", "--no-install-recommends"]).args(words);
        output(chroot.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C"))
    };
    apt(&["update"])?;
    apt(&[&["install"], packages].concat())?;
    Ok(std::fs::remove_file(policy)?)
}

/// Packs a folder into an archive.
fn pack(root: &Path, to: &Path) -> Result<()> {
    let mut find = Command::new("find").arg(".").current_dir(root).stdout(Stdio::piped()).spawn()?;
    let names = find.stdout.take().context("find has no output")?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--quiet", "-o", "-H", "newc", "-O"]).arg(to).stdin(names).current_dir(root);
    run(&mut cpio)?;
    ensure!(find.wait()?.success(), "find failed");
    Ok(())
}

/// The headers of [`NEXT_KERNEL`] as an archive, made once.
fn headers() -> Result<PathBuf> {
    let kernel = kernels::ready(NEXT_KERNEL)?;
    archive_of(&format!("headers-{}", kernel.release), |root| put_headers(root, &kernel))
}

/// Copies a kernel's headers into a folder, as their packages would.
fn put_headers(root: &Path, kernel: &kernels::Kernel) -> Result<()> {
    let of_kernel = kernel.root();
    for folder in ["usr/src", "usr/lib"] {
        std::fs::create_dir_all(root.join(folder))?;
        let mut copy = Command::new("cp");
        run(copy.args(["-a", "--no-target-directory"]).arg(of_kernel.join(folder)).arg(root.join(folder)))?;
    }
    // In the cache, the headers' Makefile has the cache's path of their common part.
    let makefile = root.join(format!("usr/src/linux-headers-{}/Makefile", kernel.release));
    let text = std::fs::read_to_string(&makefile)?.replace(&of_kernel.display().to_string(), "");
    Ok(std::fs::write(&makefile, text)?)
}

/// Adds the kernel's files, and deletes what a guest does not need.
fn finish_root(root: &Path, kernel: &kernels::Kernel, headers: bool) -> Result<()> {
    if headers {
        put_headers(root, kernel)?;
    }
    let of_kernel = kernel.root();
    let modules = root.join("lib/modules").join(&kernel.release);
    std::fs::create_dir_all(&modules)?;
    for name in ["modules.builtin", "modules.order", "modules.builtin.modinfo"] {
        std::fs::copy(of_kernel.join("lib/modules").join(&kernel.release).join(name), modules.join(name))?;
    }
    std::os::unix::fs::symlink(format!("/usr/src/linux-headers-{}", kernel.release), modules.join("build"))?;
    std::fs::create_dir_all(root.join("boot"))?;
    let headers_config = of_kernel.join(format!("usr/src/linux-headers-{}/.config", kernel.release));
    let config = root.join(format!("boot/config-{}", kernel.release));
    std::fs::copy(headers_config, config).context("the headers have no configuration")?;
    for folder in [
        "var/cache/apt/archives",
        "var/lib/apt/lists",
        "usr/share/doc",
        "usr/share/locale",
        "usr/share/man",
        "usr/share/info",
    ] {
        files::recreate(&root.join(folder))?;
    }
    for program in ["cc1plus", "lto1", "lto-wrapper", "g++-mapper-server"] {
        let _ = std::fs::remove_file(root.join("usr/lib/gcc/x86_64-linux-gnu/12").join(program));
    }
    std::fs::write(root.join("etc/hostname"), "node\n")?;
    std::fs::write(root.join("etc/fstab"), "")?;
    // For `--shell`.
    run(Command::new("chroot").arg(root).args(["passwd", "-d", "root"]).stdout(Stdio::null()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use std::collections::BTreeSet;

    use mpu_plan::{Ending, ExitLine, Verdict};

    use super::{Play, stories};
    use crate::{cluster, paths};

    #[test]
    fn pages_list_every_story() {
        let of_node = Play::value_variants().iter().map(|play| play.script()).collect::<Vec<_>>();
        for (page, scripts) in [("node-stories.md", of_node), ("cluster-stories.md", cluster::stories().unwrap())] {
            let page = std::fs::read_to_string(paths::repo().join("docs").join(page)).unwrap();
            let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
            let listed: BTreeSet<String> = rows.map(|(story, _)| story.to_owned()).collect();
            assert_eq!(listed, stories(&scripts).unwrap());
        }
    }

    /// tests/node/stories.sh formats its lines itself.
    #[test]
    fn shell_verdicts_have_the_format_of_mpu_plan() {
        let script = std::fs::read_to_string(paths::repo().join("tests/node/stories.sh")).unwrap();
        let echoed = |start: &str| {
            let lines = script.lines().filter_map(|line| line.trim().strip_prefix("echo \"")?.strip_suffix('"'));
            let found: Vec<&str> = lines.filter(|line| line.starts_with(start)).collect();
            assert_eq!(found.len(), 1, "{found:?}");
            found[0].to_owned()
        };
        let line = echoed("STORY ").replace("$story", "one").replace("$result", "fail").replace("$*", "it was so");
        let verdict = Verdict::read(&line).unwrap_or_else(|| panic!("no verdict: {line}"));
        assert_eq!(
            (verdict.story.as_str(), verdict.result, verdict.reason.as_str()),
            ("one", Ending::Fail, "it was so")
        );
        assert_eq!(verdict.engine, "node");
        assert_eq!(ExitLine::read(&echoed("GUEST-RC").replace("$failed", "3")), Some(Ok(ExitLine(3))));
    }
}
