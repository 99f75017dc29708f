//! A whole Debian in a guest: systemd, dpkg and DKMS on a real kernel, for what happens to a node when MPU comes and goes.
//!
//! Owns the image: a Debian 12 made once by debootstrap and kept in the cache as the kernel's first root file system, so that no disk,
//! no driver for one and no loop mount is needed; and a second archive with what a run brings. The stories are tests/node's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::cpio::Archive;
use crate::dist::{Profile, Release};
use crate::guest::verdict::{Report, Tally};
use crate::guest::{image, qemu, Job};
use crate::run::{output, run, say};
use crate::{apt, guest, kernels, nvidia, paths, setup, Outcome};

/// Raised when the image is made otherwise, so that older caches are made anew.
const RECIPE: &str = "1";
const KERNEL: &str = "6.1";
const SUITE: &str = "bookworm";
const CLIENT: &str = "550.163.01";
const ERA: &str = "1";
/// The version that the upgrade stories go to.
const NEXT: &str = "0.9.9";

/// Beyond what debootstrap's smallest variant has.
const PACKAGES: &str = "systemd,systemd-sysv,udev,kmod,dkms,gcc,libc6-dev,make,libelf1,procps,psmisc,patch";

#[derive(clap::Args)]
pub struct Args {
    /// Open a shell in the guest instead, with everything at hand below /node
    #[arg(long)]
    shell: bool,
}

/// The verb.
pub fn node(args: &Args) -> Result<Outcome> {
    guest::prepare()?;
    let made = build(args.shell)?;
    if args.shell {
        qemu::shell_of(command(&made)?)?;
        return Ok(Outcome::Passed);
    }
    let mut tally = Tally::default();
    tally.add(&boot(&made, true)?);
    tally.print();
    Ok(tally.outcome())
}

/// Makes the image: the Debian, and what this run brings.
pub fn build(shell: bool) -> Result<PathBuf> {
    setup::require(setup::NODE)?;
    setup::require(setup::PACKAGES)?;
    let debian = debian()?;
    let out = paths::target("node")?;
    let now = Release { profile: Profile::Quick, build: "quick", version: None };
    let next = Release { version: Some(NEXT), ..now };
    now.make(&out.join("now"))?;
    next.make(&out.join("next"))?;
    let kernel = kernels::ready(KERNEL)?;
    let mut archive = Archive::default();
    for (name, from) in [
        ("node/mpu.deb", out.join("now").join(format!("mpu_{}_amd64.deb", env!("CARGO_PKG_VERSION")))),
        ("node/mpu-next.deb", out.join("next").join(format!("mpu_{NEXT}_amd64.deb"))),
        ("node/mpu", out.join("now/mpu")),
        ("node/mpu-next", out.join("next/mpu")),
        ("node/nvidia.ko", image::sim_module(&kernel, ERA)?),
        ("usr/bin/gpu-hold", image::sim_programs()?.join("gpu-hold")),
        ("usr/bin/nvctl", image::sim_programs()?.join("nvctl")),
        ("node/stories.sh", paths::repo().join("tests/node/stories.sh")),
        ("node/order.sh", paths::repo().join("tests/node/order.sh")),
    ] {
        archive.file(name, 0o755, &from)?;
    }
    let client = nvidia::ready(CLIENT)?;
    for file in ["nvidia-smi", "libnvidia-ml.so.1"] {
        archive.file(&format!("node/nvidia/{file}"), 0o755, &client.join(file))?;
    }
    if !shell {
        let unit = paths::repo().join("tests/node/node-stories.service");
        archive.file("etc/systemd/system/node-stories.service", 0o644, &unit)?;
        let wants = "[Unit]\nWants=node-stories.service\n";
        archive.text("etc/systemd/system/multi-user.target.d/stories.conf", 0o644, wants.as_bytes());
    }
    let made = out.join("image");
    let mut bytes = std::fs::read(&debian)?;
    bytes.extend(archive.finish());
    std::fs::write(&made, bytes)?;
    Ok(made)
}

/// Boots it, and returns what it reported.
pub fn boot(made: &Path, loud: bool) -> Result<Report> {
    let job = Job { kernel: KERNEL.to_owned(), rows: Vec::new(), cpus: 2, limit: Duration::from_secs(25 * 60) };
    let log = paths::target("guest/log")?.join("node.log");
    let console = qemu::watch_of(command(made)?, made, job.limit, &log, loud)?;
    Ok(Report::read(&job, &console, log))
}

fn command(made: &Path) -> Result<Command> {
    let kernel = kernels::ready(KERNEL)?;
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-accel", "tcg,thread=multi", "-m", "4096", "-cpu", "max", "-smp", "2"]);
    command.args(["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot"]);
    command.arg("-kernel").arg(kernel.vmlinux()).arg("-initrd").arg(made);
    let words = "console=ttyS0 panic=-1 oops=panic rdinit=/sbin/init quiet loglevel=4 systemd.show_status=no";
    command.args(["-append", words]);
    Ok(command)
}

/// The Debian as an archive, made once.
fn debian() -> Result<PathBuf> {
    let kernel = kernels::ready(KERNEL)?;
    let kept = paths::cache("node")?.join(format!("{SUITE}-{}-{RECIPE}.cpio", kernel.release));
    if kept.is_file() {
        return Ok(kept);
    }
    say(format!("making a Debian of {SUITE} for the node's guest"));
    let root = paths::cache("node")?.join(format!("root-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    let mut tried = Vec::new();
    for base in apt::addresses(SUITE)? {
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), SUITE]).arg(&root).arg(&base);
        match output(&mut debootstrap) {
            Ok(_) => break,
            Err(error) => tried.push(format!("{base}: {error:#}")),
        }
        let _ = std::fs::remove_dir_all(&root);
    }
    ensure!(
        root.join("usr/bin/dkms").exists() || root.join("usr/sbin/dkms").exists(),
        "no Debian: {}",
        tried.join("\n")
    );
    furnish(&root, &kernel)?;
    let partial = kept.with_extension("partial");
    let mut find = Command::new("find").arg(".").current_dir(&root).stdout(Stdio::piped()).spawn()?;
    let names = find.stdout.take().context("find has no output")?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--quiet", "-o", "-H", "newc", "-O"]).arg(&partial).stdin(names).current_dir(&root);
    run(&mut cpio)?;
    ensure!(find.wait()?.success(), "find failed");
    std::fs::remove_dir_all(&root)?;
    std::fs::rename(&partial, &kept)?;
    Ok(kept)
}

/// Puts the kernel's headers in, as their packages would, and takes out what a guest has no use for.
fn furnish(root: &Path, kernel: &kernels::Kernel) -> Result<()> {
    let of_kernel = kernel.root();
    for folder in ["usr/src", "usr/lib"] {
        let mut copy = Command::new("cp");
        run(copy.args(["-a", "--no-target-directory"]).arg(of_kernel.join(folder)).arg(root.join(folder)))?;
    }
    // The rig made the headers name their common part by its place in the cache.
    let makefile = root.join(format!("usr/src/linux-headers-{}/Makefile", kernel.release));
    let text = std::fs::read_to_string(&makefile)?.replace(&of_kernel.display().to_string(), "");
    std::fs::write(&makefile, text)?;
    let modules = root.join("lib/modules").join(&kernel.release);
    std::fs::create_dir_all(&modules)?;
    for name in ["modules.builtin", "modules.order", "modules.builtin.modinfo"] {
        std::fs::copy(of_kernel.join("lib/modules").join(&kernel.release).join(name), modules.join(name))?;
    }
    std::os::unix::fs::symlink(format!("/usr/src/linux-headers-{}", kernel.release), modules.join("build"))?;
    let config = format!("boot/config-{}", kernel.release);
    std::fs::create_dir_all(root.join("boot"))?;
    let headers_config = root.join(format!("usr/src/linux-headers-{}/.config", kernel.release));
    std::fs::copy(headers_config, root.join(&config)).context("the headers have no configuration")?;
    for gone in [
        "var/cache/apt/archives",
        "var/lib/apt/lists",
        "usr/share/doc",
        "usr/share/locale",
        "usr/share/man",
        "usr/share/info",
    ] {
        let _ = std::fs::remove_dir_all(root.join(gone));
        std::fs::create_dir_all(root.join(gone))?;
    }
    for gone in ["cc1plus", "lto1", "lto-wrapper", "g++-mapper-server"] {
        let _ = std::fs::remove_file(root.join("usr/lib/gcc/x86_64-linux-gnu/12").join(gone));
    }
    // No login on the console that the verdicts go to; a shell only when it was asked for.
    std::fs::write(root.join("etc/hostname"), "node\n")?;
    std::fs::write(root.join("etc/fstab"), "")?;
    run(Command::new("chroot").arg(root).args(["passwd", "-d", "root"]).stdout(Stdio::null()))?;
    Ok(())
}
