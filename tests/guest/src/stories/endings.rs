//! Processes that end in all the ways processes do, and numbers that come again: rows are right or absent, never wrong.

use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};

use crate::holder::Holder;
use crate::nvctl;
use crate::processes;
use crate::right;
use crate::scene::{sorted, Scene};
use crate::stage::Stage;
use crate::stories::common::{exactly, once};
use crate::story::{Engines, Fault, Story, Without};
use crate::wait::until;

/// A process that has ended is not listed, though a child keeps its driver client alive.
pub const DEAD: Story = Story {
    name: "dead_process_leaves_no_ghost",
    engines: Engines::Every,
    without: shows,
    run: |stage| {
        let scene = stage.scene()?;
        let dead = scene.a.hold_by("exec gpu-hold --leave --mem 30")?;
        gone(&scene, dead.inside)?;
        listed(&scene, None)?;
        let told = scene.a.ask(&["pidinfo", &dead.inside.to_string()])?.one("mem")?;
        right!(told == 0, "the dead process {} shows {told} bytes", dead.inside);
        Ok(())
    },
};

/// A number that was a GPU process's and is another process's now inherits no row and no memory.
pub const REUSED: Story = Story {
    name: "reused_pid_inherits_no_row",
    engines: Engines::Every,
    without: shows,
    run: |stage| {
        let scene = stage.scene()?;
        let dead = scene.a.hold_by("exec gpu-hold --leave --mem 30")?;
        gone(&scene, dead.inside)?;
        scene.a.next_pid(dead.inside)?;
        let entered = scene.a.entered();
        let mut heir = Command::new(&entered[0]);
        let mut heir = heir
            .args(&entered[1..])
            .arg("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("no cat")?;
        let taken = wait_for(|| processes::outside(scene.a.pid_outside(), dead.inside).is_some());
        let verdict = (|| {
            taken.with_context(|| format!("nobody got the number {}", dead.inside))?;
            listed(&scene, None)?;
            let told = scene.a.ask(&["pidinfo", &dead.inside.to_string()])?.one("mem")?;
            right!(told == 0, "process {} is no GPU process and shows {told} bytes", dead.inside);
            Ok(())
        })();
        drop(heir.stdin.take());
        heir.wait()?;
        verdict
    },
};

/// A process that ended and was not yet waited for is a process still: listed by its number, with its memory.
pub const ZOMBIE: Story = Story {
    name: "zombie_is_listed_by_its_own_number",
    engines: Engines::Every,
    without: shows,
    run: |stage| {
        let scene = stage.scene()?;
        // cat takes the shell's place and never waits for the shell's child.
        let zombie = scene.a.hold_by("exec 3<&0; gpu-hold --leave --mem 30 <&3 & exec cat >/dev/null")?;
        let outside = || processes::outside(scene.a.pid_outside(), zombie.inside);
        wait_for(|| outside().and_then(processes::state) == Some('Z')).context("it is no zombie")?;
        listed(&scene, Some(zombie.inside))?;
        let told = scene.a.ask(&["pidinfo", &zombie.inside.to_string()])?.one("mem")? >> 20;
        right!(told == 30, "the zombie {} holds 30 MiB and shows {told}", zombie.inside);
        Ok(())
    },
};

/// A process whose parent ended, adopted by the container's process 1.
pub const ORPHAN: Story = Story {
    name: "adopted_process_keeps_its_row",
    engines: Engines::Every,
    without: shows,
    run: |stage| {
        let scene = stage.scene()?;
        let orphan = scene.a.hold_by("exec 3<&0; gpu-hold --mem 30 <&3 &")?;
        let adopted = || processes::parent(orphan.outside) == Some(scene.a.pid_outside());
        wait_for(adopted).context("process 1 did not adopt it")?;
        listed(&scene, Some(orphan.inside))
    },
};

/// A process whose client was made by a thread that has ended since.
pub const DEAD_THREAD: Story = Story {
    name: "client_of_a_dead_thread_counts_for_its_process",
    engines: Engines::Every,
    without: |stage| match stage.host_sees_threads() {
        true => {
            Without::Moot("these drivers keep the thread alone, and the module alone is there when it is taken down")
        }
        false => shows(stage),
    },
    run: |stage| {
        let scene = stage.scene()?;
        let holder = scene.a.hold_by("exec gpu-hold --dead-thread --mem 30")?;
        listed(&scene, Some(holder.inside))?;
        let told = scene.a.ask(&["pidinfo", &holder.inside.to_string()])?.one("mem")? >> 20;
        right!(told == 30, "process {} holds 30 MiB and shows {told}", holder.inside);
        Ok(())
    },
};

/// A process whose number outside is the number inside of one that is listed before it: drivers from 535.113 lose it.
pub const COLLISION: Story = Story {
    name: "process_numbered_outside_like_another_inside_is_not_lost",
    engines: Engines::Every,
    without: shows,
    run: |stage| {
        let scene = stage.scene()?;
        for number in [26_000, 27_000, 28_000, 29_000, 30_000] {
            scene.a.next_pid(number)?;
            let namesake = scene.a.hold_by("exec gpu-hold --mem 21")?;
            let lost = scene.a.hold_numbered(namesake.inside, "exec gpu-hold --mem 22")?;
            if lost.outside != namesake.inside {
                continue;
            }
            let own = sorted(scene.own().into_iter().chain([namesake.inside, lost.inside]));
            return exactly("the list", &scene.a.ask(&["pids"])?.pids(), &own);
        }
        Err(anyhow::anyhow!("no number could be given twice").into())
    },
};

const NUMBERS_OF_THE_HOST: Engines = Engines::Notify("it knows clients by the host's numbers");

/// The host's number of a process that ended while a child keeps its client is another container's process's now: that one has no row,
/// no memory and no session of it, not having the driver.
pub const HEIR: Story = Story {
    name: "reused_host_pid_inherits_no_row",
    engines: NUMBERS_OF_THE_HOST,
    without: shows,
    run: |stage| {
        let scene = stage.scene()?;
        let before = host(&["pids"])?;
        let dead = scene.a.hold_by("exec gpu-hold --leave --mem 30 --fbc")?;
        gone(&scene, dead.inside)?;
        let left: Vec<u32> = host(&["pids"])?.into_iter().filter(|pid| !before.contains(pid)).collect();
        let [left] = left[..] else { return Err(anyhow::anyhow!("the dead process left {left:?}").into()) };
        let heir = inherit(&scene, left, "echo ready $$; exec cat >/dev/null")?;
        exactly("beside the heir, the list", &scene.b.ask(&["pids"])?.pids(), &[scene.other.inside])?;
        exactly("beside the heir, fbc", &scene.b.ask(&["fbc"])?.pids(), &[scene.other.inside])?;
        let told = scene.b.ask(&["pidinfo", &heir.inside.to_string()])?.one("mem")?;
        right!(told == 0, "the heir {} never had the driver and shows {told} bytes", heir.inside);
        Ok(())
    },
};

/// Drivers from 570 keep the kernel's record of a process in their samples without a hold on it: once it is gone, nobody follows it.
pub const STALE: Story = Story {
    name: "a_sample_of_an_ended_process_is_not_followed",
    engines: Engines::Every,
    without: |stage| match stage.era {
        3 | 4 => shows(stage),
        _ => Without::Moot("these drivers' samples name no record of the kernel's"),
    },
    run: |stage| {
        let scene = stage.scene()?;
        stage.set_driver("ghosts", "1")?;
        // As memory can look once it is gone; and really gone, which the bare driver would follow.
        let kinds = if stage.has_module() { &["1", "2"][..] } else { &["1"] };
        let verdict = kinds.iter().try_for_each(|kind| {
            stage.set_driver("stale", kind)?;
            drop(scene.a.hold_by("exec gpu-hold --util 50")?);
            only_the_living(&scene)
        });
        stage.set_driver("stale", "0")?;
        stage.set_driver("ghosts", "0")?;
        verdict
    },
};

fn only_the_living(scene: &Scene) -> Result<(), Fault> {
    for size in ["55888", "50704"] {
        let answer = scene.a.ask(&["--size", size, "gpumon"])?;
        exactly("the samples", &answer.distinct_pids(), &scene.own())?;
        let address = answer.rows.iter().filter_map(|row| row.get("ptr")).find(|address| *address != "0");
        right!(address.is_none(), "a sample shows the kernel address {address:?}");
    }
    Ok(())
}

fn host(question: &[&str]) -> Result<Vec<u32>> {
    Ok(nvctl::ask(&[], "nvctl", question)?.distinct_pids())
}

/// A process of the other container with this number of the host's.
fn inherit(scene: &Scene, outside: u32, script: &str) -> Result<Holder> {
    for _ in 0..5 {
        let heir = scene.b.hold_numbered(outside, script)?;
        if heir.outside == outside {
            return Ok(heir);
        }
    }
    bail!("nobody gets the number {outside}")
}

fn shows(stage: &Stage) -> Without {
    once(stage, Without::Wrong("shows"))
}

/// The list is the scene's, and one more.
fn listed(scene: &Scene, also: Option<u32>) -> Result<(), Fault> {
    exactly("the list", &scene.a.ask(&["pids"])?.pids(), &sorted(scene.own().into_iter().chain(also)))
}

fn gone(scene: &Scene, inside: u32) -> Result<()> {
    wait_for(|| processes::outside(scene.a.pid_outside(), inside).is_none()).context("it has not ended")
}

fn wait_for(holds: impl Fn() -> bool) -> Result<()> {
    until("it does not come to pass", || Ok(holds()))
}
