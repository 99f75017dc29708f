//! The driver's accounting records, which it keeps by PID after a process has ended.

use crate::stories::common::*;

/// PIDs for processes that will reuse them. If another fork takes one, the next is tried.
const NUMBERS: [u32; 5] = [31_000, 31_500, 32_000, 32_300, 32_600];

pub const STORIES: &[Story] = &[
    story!(scene reused_pid_inherits_no_accounting_record, [3];
        "A container's process gets the PID of a process that used the GPU outside and ended: accounting tells it \
        nothing of that process, by list and by look-up.")
    .wrong("accounting"),
    story!(scene accounting_lists_a_reused_number_once, [1, 3];
        "A PID that two processes of a container had, one after the other, is in the list once.")
    .wrong("accounting"),
    story!(scene accounting_peak_memory_equals_held_memory, [1, 3];
        "A container's process held 80 MiB, and accounting says so; drivers from 565 measure 0 here.")
    .module("the driver measures it in calls that no supervisor sees")
    .wrong("peak"),
    story!(scene accounting_v2_record_is_own_only, [1, 3];
        "By the second accounting control, which came with 610, a container gets the same records as by the first: \
        its own, under its own PIDs. It gets none of other processes.")
    .only(Stage::has_accounting_v2, "drivers have this control from 610 on")
    .wrong("accounting"),
];

fn reused_pid_inherits_no_accounting_record(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    // A process that does not use the GPU.
    let heir = inherited(scene, foreign_holder, "echo ready $$; exec cat >/dev/null")?;
    listed(scene, &[])?;
    for control in look_ups(stage) {
        let answer = scene.a.query(&[control, &heir.view_pid.to_string()])?;
        check!(
            answer.status != 0,
            "accounting has a dead stranger's record for process {}: {control} {}",
            heir.view_pid,
            answer.text
        );
    }
    drop(heir);
    // A process that uses the GPU: its peak, if any, is its own.
    let heir = inherited(scene, foreign_holder, "exec gpu-hold --mem 21")?;
    listed(scene, &[heir.view_pid])?;
    for control in look_ups(stage) {
        let answer = scene.a.query(&[control, &heir.view_pid.to_string()])?;
        let peak = answer.one("maxfb").unwrap_or(0) >> 20;
        check!(peak != FOREIGN_MIB, "accounting gives process {} a dead stranger's {peak} MiB", heir.view_pid);
    }
    Ok(())
}

fn accounting_lists_a_reused_number_once(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let predecessor = |number| scene.a.hold_with_host_pid(number, "exec gpu-hold --mem 33");
    let heir = inherited(scene, || with_host_pid(NUMBERS, predecessor), "exec gpu-hold --mem 21")?;
    listed(scene, &[heir.view_pid])
}

fn accounting_peak_memory_equals_held_memory(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let holder = scene.a.hold(&["--mem", "40", "--clients", "2"])?;
    let answer = scene.a.query(&["acct-info", &holder.view_pid.to_string()])?;
    let peak = answer.one("maxfb").unwrap_or(0) >> 20;
    check!(peak == 80, "the peak of process {}, which holds 80 MiB, is {peak}: {}", holder.view_pid, answer.text);
    let host = nvctl::query(&[], "nvctl", &["acct-info", &holder.host_pid.to_string()])?.one("maxfb")? >> 20;
    check!(host == 80, "the host gets a peak of {host} MiB");
    Ok(())
}

fn accounting_v2_record_is_own_only(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let record = |answer: &Answer| ["pid", "maxfb", "start"].map(|key| answer.one(key).ok());
    for pid in scene.own() {
        let [first, second] = LOOK_UPS.map(|control| scene.a.query(&[control, &pid.to_string()]));
        let (first, second) = (first?, second?);
        check!(
            second.status == 0 && record(&first) == record(&second) && second.pids() == [pid],
            "accounting's two controls differ for process {pid}: {} {}",
            first.text,
            second.text
        );
    }
    for pid in scene.host_pids() {
        let answer = scene.a.query(&["acct-info2", &pid.to_string()])?;
        check!(answer.status != 0, "accounting has a record of host PID {pid}: {}", answer.text);
    }
    let outside = scene.first.host_pid;
    let host = nvctl::query(&[], "nvctl", &["acct-info2", &outside.to_string()])?;
    check!(host.status == 0 && host.pids() == [outside], "accounting has no record for the host: {}", host.text);
    Ok(())
}

/// nvctl's commands for one process's record, the older control first.
const LOOK_UPS: [&str; 2] = ["acct-info", "acct-info2"];

fn look_ups(stage: &Stage) -> &'static [&'static str] {
    &LOOK_UPS[..if stage.has_accounting_v2() { 2 } else { 1 }]
}

const FOREIGN_MIB: u64 = 70;

/// A process outside that uses the GPU until it is dropped.
fn foreign_holder() -> Result<Holder> {
    with_host_pid(NUMBERS, |number| {
        processes::set_next_host_pid(number)?;
        Holder::on_host(&["--mem", &FOREIGN_MIB.to_string()])
    })
}

/// Starts a process in container `a` with the host PID of a process that has just ended.
fn inherited(scene: &Scene, dying: impl Fn() -> Result<Holder>, script: &str) -> Result<Holder> {
    ensure!(nvctl::query(&[], "nvctl", &["acct-clear"])?.status == 0, "the records cannot be cleared");
    for _ in 0..5 {
        let number = dying()?.host_pid;
        let heir = scene.a.hold_with_host_pid(number, script)?;
        if heir.host_pid == number {
            return Ok(heir);
        }
    }
    Err(anyhow::anyhow!("five processes in a row had their numbers taken")).context("no heir")
}

fn listed(scene: &Scene, also: &[u32]) -> Result<(), Fault> {
    let own = sorted(scene.own().into_iter().chain(also.iter().copied()));
    check_pids("accounting", &scene.a.query(&["acct-pids"])?.pids(), &own)
}
