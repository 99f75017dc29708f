//! Processes that end in every way, and reused PIDs: rows are right or absent, never wrong.

use std::process::Stdio;

use crate::stories::common::*;
use crate::stories::requests::samples;

pub const STORIES: &[Story] = &[
    story!(scene dead_process_leaves_no_ghost, [1, 7];
        "A process has ended and its client lives on in a child: it has no row and no memory."),
    story!(scene reused_pid_inherits_no_row, [1, 3];
        "The PID of an ended process goes to another process, which inherits nothing."),
    story!(scene zombie_is_listed_by_its_own_number, [1];
        "A zombie whose client lives on keeps its row and memory."),
    story!(scene adopted_process_keeps_its_row, [1];
        "A process that the container's process 1 adopted keeps its row."),
    story!(scene dead_threads_client_counts_for_its_process, [1, 2];
        "A client made by a thread that has since ended, with the engine up, counts for its process.")
    .only(
        |stage| !stage.host_sees_threads(),
        "these drivers keep the thread alone, and the module alone is there when it is taken down",
    ),
    story!(scene colliding_host_and_inner_pid_keep_rows, [1, 2];
        "A process has a host PID that is another process's PID inside: drivers from 535.113 lose its row."),
    story!(scene reused_host_pid_inherits_no_row, [3];
        "A process ended, and its child keeps its client. Its host PID goes to a process of another container that \
        never had the driver: that container sees no row, no session and no memory of it.")
    .notify(NUMBERS_OF_THE_HOST)
    .real(Real::Engines),
    story!(scene ended_process_sample_is_not_followed, [1, 3, 7];
        "Drivers from 570 refer to a record of the kernel's that is gone: the kernel does not crash, and the process \
        is not shown.")
    .real(Real::Knob)
    .eras(&[3, 4], "these drivers' samples name no record of the kernel's"),
];

fn dead_process_leaves_no_ghost(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let dead = scene.a.hold_by_script("exec gpu-hold --leave --mem 30")?;
    gone(scene, dead.view_pid)?;
    listed(scene, None)?;
    check_memory(&scene.a, dead.view_pid, 0)
}

fn reused_pid_inherits_no_row(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let dead = scene.a.hold_by_script("exec gpu-hold --leave --mem 30")?;
    gone(scene, dead.view_pid)?;
    scene.a.set_next_pid(dead.view_pid)?;
    let mut heir = command(&behind(&scene.a.enter_command(), &["cat"]));
    let mut heir = heir.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("no cat")?;
    let reused = wait_for(|| processes::host_pid(scene.a.init_host_pid(), dead.view_pid).is_some());
    let verdict = (|| {
        reused.with_context(|| format!("no process got the number {}", dead.view_pid))?;
        listed(scene, None)?;
        check_memory(&scene.a, dead.view_pid, 0)
    })();
    drop(heir.stdin.take());
    wait_for_end(&mut heir)?;
    verdict
}

fn zombie_is_listed_by_its_own_number(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    // cat takes the shell's place and never waits for the shell's child.
    let zombie = scene.a.hold_by_script("exec 3<&0; gpu-hold --leave --mem 30 <&3 & exec cat >/dev/null")?;
    let outside = || processes::host_pid(scene.a.init_host_pid(), zombie.view_pid);
    wait_for(|| outside().and_then(processes::state) == Some('Z')).context("it is no zombie")?;
    listed(scene, Some(zombie.view_pid))?;
    check_memory(&scene.a, zombie.view_pid, 30)
}

fn adopted_process_keeps_its_row(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let orphan = scene.a.hold_by_script("exec 3<&0; gpu-hold --mem 30 <&3 &")?;
    let adopted = || processes::parent(orphan.host_pid) == Some(scene.a.init_host_pid());
    wait_for(adopted).context("process 1 did not adopt it")?;
    listed(scene, Some(orphan.view_pid))
}

fn dead_threads_client_counts_for_its_process(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let holder = scene.a.hold_by_script("exec gpu-hold --dead-thread --mem 30")?;
    listed(scene, Some(holder.view_pid))?;
    check_memory(&scene.a, holder.view_pid, 30)
}

fn colliding_host_and_inner_pid_keep_rows(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    for number in [26_000, 27_000, 28_000, 29_000, 30_000] {
        scene.a.set_next_pid(number)?;
        let namesake = scene.a.hold_by_script("exec gpu-hold --mem 21")?;
        let lost = scene.a.hold_with_host_pid(namesake.view_pid, "exec gpu-hold --mem 22")?;
        if lost.host_pid != namesake.view_pid {
            continue;
        }
        let own = sorted(scene.own().into_iter().chain([namesake.view_pid, lost.view_pid]));
        return check_list(&scene.a, "the list", &own);
    }
    Err(anyhow::anyhow!("no number could be given twice").into())
}

const NUMBERS_OF_THE_HOST: &str = "it knows clients by the host's numbers";

fn reused_host_pid_inherits_no_row(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let before = host(&["pids"])?;
    let dead = scene.a.hold_by_script("exec gpu-hold --leave --mem 30 --fbc")?;
    gone(scene, dead.view_pid)?;
    let remaining: Vec<u32> = host(&["pids"])?.into_iter().filter(|pid| !before.contains(pid)).collect();
    let [remaining] = remaining[..] else { return Err(anyhow::anyhow!("the dead process left {remaining:?}").into()) };
    let heir =
        with_host_pid([remaining; 5], |pid| scene.b.hold_with_host_pid(pid, "echo ready $$; exec cat >/dev/null"))?;
    check_list(&scene.b, "beside the heir, the list", &[scene.other.view_pid])?;
    check_pids("beside the heir, fbc", &scene.b.query(&["fbc"])?.pids(), &[scene.other.view_pid])?;
    check_memory(&scene.b, heir.view_pid, 0)
}

fn ended_process_sample_is_not_followed(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    stage.set_driver("ghosts", "1")?;
    // 1: contents that freed memory can have. 2: really freed memory, which the bare driver would follow.
    let kinds = if stage.has_module() { &["1", "2"][..] } else { &["1"] };
    kinds.iter().try_for_each(|kind| {
        stage.set_driver("stale", kind)?;
        drop(scene.a.hold_by_script("exec gpu-hold --util 50")?);
        ["55888", "50704"].iter().try_for_each(|size| samples(scene, &["--size", size, "gpumon"]))
    })
}

fn host(question: &[&str]) -> Result<Vec<u32>> {
    Ok(nvctl::query(&[], "nvctl", question)?.distinct_pids())
}

/// Checks that the list has the scene's processes and `also`.
fn listed(scene: &Scene, also: Option<u32>) -> Result<(), Fault> {
    check_list(&scene.a, "the list", &sorted(scene.own().into_iter().chain(also)))
}

fn gone(scene: &Scene, inside: u32) -> Result<()> {
    wait_for(|| processes::host_pid(scene.a.init_host_pid(), inside).is_none()).context("it has not ended")
}

fn wait_for(holds: impl Fn() -> bool) -> Result<()> {
    wait_until("it does not come to pass", || Ok(holds()))
}
