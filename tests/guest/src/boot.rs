//! Prepares the unpacked root for containers: mounts, device nodes, a root that pivot_root accepts, shell tools.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, mount, mount_bind, mount_move};
use rustix::system::{RebootCommand, reboot};

use crate::command::run_ok;

/// File system, mount point, options.
const MOUNTS: [(&str, &str, &str); 9] = [
    ("proc", "/proc", ""),
    ("sysfs", "/sys", ""),
    ("devtmpfs", "/dev", ""),
    ("devpts", "/dev/pts", "ptmxmode=0666"),
    ("tmpfs", "/dev/shm", ""),
    ("tmpfs", "/run", ""),
    ("tmpfs", "/tmp", ""),
    ("cgroup2", "/sys/fs/cgroup", ""),
    ("tracefs", "/sys/kernel/tracing", ""),
];

const STALE: &str = "/sim/stale.ko";

pub fn set_up_root() -> Result<()> {
    // Container runtimes call pivot_root, which fails on the initramfs. A bind mount moved over the root works.
    mount_bind("/", "/new").context("cannot bind the root")?;
    rustix::process::chdir("/new")?;
    mount_move(".", "/").context("cannot move the root")?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")?;
    for (kind, at, options) in MOUNTS {
        std::fs::create_dir_all(at).with_context(|| format!("cannot make {at}"))?;
        let options = std::ffi::CString::new(options)?;
        mount(kind, at, kind, MountFlags::empty(), Some(options.as_c_str()))
            .with_context(|| format!("cannot mount {kind} at {at}"))?;
    }
    let installed = Command::new("/bin/busybox").args(["--install", "-s", "/bin"]).status().context("no busybox")?;
    anyhow::ensure!(installed.success(), "busybox cannot make its links");
    // Some runtimes need a host name.
    rustix::system::sethostname(b"guest")?;
    // x86-64 kernels patch code with breakpoints. The emulator can run one that is no longer in memory; stale.ko handles that.
    if std::fs::exists(STALE)? {
        run_ok(&["insmod", STALE])?;
    }
    Ok(())
}

/// Whether the kernel command line asks for a shell.
pub fn wants_shell() -> Result<bool> {
    Ok(std::fs::read_to_string("/proc/cmdline")?.split_whitespace().any(|word| word == "mpu.shell"))
}

pub fn shell() -> Result<()> {
    println!(
        "drivers: /sim/era*/nvidia.ko   module: /mpu/mpu.ko   programs: gpu-hold, nvctl, mpu   clients: /nvidia/*   `exit` ends the guest"
    );
    Command::new("/bin/sh").arg0("-sh").args(["-c", "exec setsid cttyhack /bin/sh -l"]).status().context("no shell")?;
    Ok(())
}

pub fn power_off() -> ! {
    // Let the serial line drain before power-off: the last line is the exit line.
    rustix::fs::sync();
    std::thread::sleep(std::time::Duration::from_millis(50));
    let _ = reboot(RebootCommand::PowerOff);
    loop {
        std::thread::park();
    }
}
