//! A kernel in lockdown takes no unsigned module; the engine in user space still works.

use crate::client::pids;
use crate::stories::common::*;

/// The kernel's lockdown file. Lockdown cannot be lifted.
const SWITCH: &str = "/sys/kernel/security/lockdown";

pub const STORIES: &[Story] = &[story!(scene notify_serves_containers_under_lockdown, [1, 7];
        "The kernel is put into lockdown `integrity` and refuses the module. Containers that run, and one that is \
        made then, are answered right, by this supervisor and the next. This is the last story in its guest.")
.notify("under lockdown an unsigned module is not loaded")
.every_client()];

fn notify_serves_containers_under_lockdown(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    // Without an engine the story ends here, before the lockdown.
    check_own_list(scene, "the list")?;
    lock_down()?;
    let refused = run(&["insmod", "/mpu/mpu.ko"])?;
    check!(refused.status != 0, "a kernel in lockdown has taken an unsigned module");
    check_own_list(scene, "locked down, the list")?;
    served(stage)?;
    // The next supervisor starts under lockdown.
    let before = supervisor::pid()?.context("no supervisor")?;
    run_ok(&["kill", "-9", &before.to_string()])?;
    supervisor::wait_until("no process takes the killed supervisor's place", || {
        Ok(supervisor::pid()?.is_some_and(|now| now != before))
    })?;
    check_own_list(scene, "by the next supervisor, the list")?;
    served(stage)
}

fn lock_down() -> Result<(), Fault> {
    run_ok(&["mount", "-t", "securityfs", "securityfs", "/sys/kernel/security"])?;
    std::fs::write(SWITCH, "integrity").context("this kernel cannot be locked down")?;
    let now = std::fs::read_to_string(SWITCH)?;
    check!(now.contains("[integrity]"), "the kernel's lockdown is {now}");
    Ok(())
}

/// Checks a new container, and NVIDIA's own client in it.
fn served(stage: &Stage) -> Result<(), Fault> {
    let container = stage.container("late")?;
    let holder = container.hold(&["--mem", "70", "--clients", "2"])?;
    let other = container.hold(&["--mem", "20"])?;
    let own = sorted([holder.view_pid, other.view_pid]);
    check_list(&container, "in a new container, the list", &own)?;
    let memory = container.query(&["pidinfo", &holder.view_pid.to_string()])?.one("mem")? >> 20;
    check!(memory == 140, "the process holds 140 MiB, its container gets {memory}");
    check_pids("nvidia-smi's query", &pids(&container.client().compute_apps()?), &own)
}
