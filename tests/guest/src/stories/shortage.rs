//! Calls with failures of kernel or driver: no memory, failing copies, an answer that counts more than it holds.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::system::finit_module;

use crate::stories::common::*;

const NOTHING_FAILS: &str = "this kernel lets nothing fail on order: the one called debug does";

fn can_fail(_: &Stage) -> bool {
    Path::new(CHANCES).exists()
}

/// Selects which allocation or copy of a task fails, on a kernel with fault injection.
const CHANCES: &str = "/proc/thread-self/fail-nth";

pub const STORIES: &[Story] = &[
    story!(scene failed_allocation_leaves_a_valid_answer, [1, 5, 7];
        "On the debug kernel each allocation and each copy of calls with PIDs fails in turn. The answer is a \
        refusal, the driver's own answer or the complete answer; `no_memory` is counted, and nothing is left behind.")
    .module("the kernel's memory, and the module's reason no_memory")
    .only(can_fail, NOTHING_FAILS),
    story!(scene out_of_memory_hand_over_is_atomic, [7];
        "On the debug kernel another instance is loaded 61 times, and each time another of its allocations fails: it \
        takes over or does not, and no caller is answered wrong.")
    .module("two instances of the module")
    .only(can_fail, NOTHING_FAILS)
    .eras(&[0, 3], "an engine takes over alike in every era: played in 0, and in 3, which has every redirect"),
    story!(scene miscounting_driver_shows_no_foreign_pid, [1, 5];
        "List and memory look-up count one entry more than they hold: no PID comes back that the bare driver would \
        not report; counted as `malformed`.")
    .real(Real::Knob),
];

fn failed_allocation_leaves_a_valid_answer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_own_list(scene, "the list")?;
    set_up_failing_allocations()?;
    let own = scene.first.view_pid.to_string();
    let info = format!("pidinfo {own}");
    let account = format!("acct-info {own}");
    let questions =
        ["pids", "--xfer pids", &info, "gpumon", "gpumon1", "acct-pids", &account, "enc1", "enc2", "fbc", "hwpm"];
    let query = |question: &str| scene.a.query(&question.split(' ').collect::<Vec<_>>());
    let bare =
        stage.with_engine_off(|| questions.iter().map(|question| query(question)).collect::<Result<Vec<_>>>())??;
    let before = stage.counter("passed.no_memory").unwrap_or(0);
    for (question, bare) in questions.into_iter().zip(bare) {
        let whole = query(question)?;
        let failed = each_chance(scene, question)?;
        check!(failed.len() > 3, "{question}: only {} of its allocations and copies failed", failed.len() - 1);
        for answer in failed {
            honest(question, &answer, &[&whole, &bare])?;
        }
    }
    if stage.has_engine() {
        let after = stage.counter("passed.no_memory").unwrap_or(0);
        check!(after > before, "allocations failed, and no_memory was counted {} times", after - before);
    }
    check_own_list(scene, "with memory again, the list")
}

/// By default failslab exempts allocations that may sleep, such as MPU's.
fn set_up_failing_allocations() -> Result<()> {
    mount_debugfs("/sys/kernel/debug/failslab")?;
    fs::write("/sys/kernel/debug/failslab/ignore-gfp-wait", "N").context("this kernel has no failslab")?;
    for what in ["failslab", "fail_usercopy"] {
        fs::write(format!("/sys/kernel/debug/{what}/verbose"), "0")?;
    }
    Ok(())
}

/// The answers while the first allocation or copy fails, then the second, and so on to the first answer without a failure.
fn each_chance(scene: &Scene, question: &str) -> Result<Vec<Answer>, Fault> {
    let once = format!(
        "nvctl --fail-nth $n {question} >/tmp/chance; cat /tmp/chance; grep -q injected=0 /tmp/chance && break"
    );
    let text = scene.a.script(&format!("n=0; while n=$((n+1)); [ $n -lt 200 ]; do {once}; done; rm /tmp/chance"))?;
    check!(text.contains("injected=0"), "{question} still fails at its 200th chance");
    let starts: Vec<usize> = text.match_indices("ret=").map(|(at, _)| at).chain([text.len()]).collect();
    starts.windows(2).map(|ends| Ok(nvctl::read(&text[ends[0]..ends[1]])?)).collect()
}

/// More than a task's allocations and copies: the remainder gives their number.
const NEVER: u64 = 1 << 30;
/// The last allocations of a load are the module's own: the kernel's allocations come before.
const OWN: u64 = 60;

fn out_of_memory_hand_over_is_atomic(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_own_list(scene, "the list")?;
    set_up_failing_allocations()?;
    let own = pid_words(&scene.own());
    let (all, begun) = insert_with("mpu_next", NEVER)?;
    check!(begun, "with memory, the new instance does not take over");
    back_to_mpu()?;
    let callers = Callers::start(&scene.a, 3, &format!("nvctl spin 3 {own}"))?;
    let (mut failed, mut complete, mut unprobed) = (0, 0, 0);
    let tried: Result<(), Fault> = (all.saturating_sub(OWN)..=all).try_for_each(|chance| {
        let (_, begun) = insert_with("mpu_next", chance)?;
        let state = fs::read_to_string("/sys/module/mpu_next/parameters/state").unwrap_or_default();
        check_list(&scene.b, "in a hand-over without memory, the list", &[scene.other.view_pid])?;
        match begun {
            // A caller was inside at the failure: the instance stays loaded, retired, until it is unloaded.
            true if state.contains("state=retired") => {
                failed += 1;
                unload_module("mpu_next")?;
            }
            true => {
                complete += 1;
                unprobed += u32::from(!state.contains("argument=driver"));
                back_to_mpu()?;
            }
            false => failed += 1,
        }
        Ok(())
    });
    let text = callers.stop()?;
    tried?;
    println!(
        "guest: of {} hand-overs without memory {failed} failed, {complete} were whole, {unprobed} without its probe",
        OWN + 1
    );
    check_answers("in hand-overs without memory", &text, 100)?;
    check!(unprobed < complete, "no instance that took over has its probe");
    check!(failed > 5 && complete > 0, "{failed} hand-overs failed for want of memory, and {complete} did not");
    check_own_list(scene, "with memory again, the list")
}

/// Loads a module while this allocation or copy of the loading thread fails. Returns how many were made, and whether the module loaded.
fn insert_with(module: &str, chance: u64) -> Result<(u64, bool)> {
    let file = fs::File::open(format!("/mpu/{module}.ko"))?;
    let chances = fs::OpenOptions::new().read(true).write(true).open(CHANCES)?;
    chances.write_all_at(chance.to_string().as_bytes(), 0).context("nothing fails on order")?;
    let begun = finit_module(&file, c"", 0).is_ok();
    let mut remaining = [0; 16];
    // A pending failure hits this read, or the write below.
    let remaining = match chances.read_at(&mut remaining, 0) {
        Ok(length) => std::str::from_utf8(&remaining[..length])?.trim().parse().context("fail-nth is no number")?,
        Err(_) => 1,
    };
    if chances.write_all_at(b"0", 0).is_err() {
        chances.write_all_at(b"0", 0).context("a chance that was taken is still there")?;
    }
    Ok((chance - remaining, begun))
}

/// Checks that the answer is a refusal, or has only numbers of the answers without a failure, from the engine or the driver alone.
fn honest(question: &str, answer: &Answer, known: &[&Answer]) -> Result<(), Fault> {
    if answer.status != 0 || !answer.text.starts_with("ret=0 ") {
        return Ok(());
    }
    for key in ["pid", "mem"] {
        let known: Vec<u32> = known.iter().flat_map(|known| known.numbers(key)).collect();
        for number in answer.numbers(key) {
            check!(known.contains(&number), "{question}: with a failure it shows {key} {number}, else {known:?}");
        }
    }
    Ok(())
}

fn miscounting_driver_shows_no_foreign_pid(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_own_list(scene, "the list")?;
    let own = scene.first.view_pid.to_string();
    let questions = [&["pids"][..], &["pidinfo", &own]];
    let query = || questions.iter().map(|question| scene.a.query(question)).collect::<Result<Vec<_>>>();
    stage.set_driver("overcounts", "1")?;
    let before = stage.counter("passed.malformed");
    let answers = query();
    let after = stage.counter("passed.malformed");
    let bare = stage.with_engine_off(query);
    stage.set_driver("overcounts", "0")?;
    for ((question, answers), bare) in questions.iter().zip(answers?).zip(bare??) {
        for pid in answers.distinct_pids() {
            let may = pid == 0 || scene.own().contains(&pid) || bare.pids().contains(&pid);
            check!(may, "{question:?} of a driver that miscounts shows {pid}, which is foreign");
        }
    }
    let counted = after.zip(before).map(|(after, before)| after - before);
    check!(counted == Some(2), "two answers counted too much, and malformed rose by {counted:?}");
    check_own_list(scene, "of a driver that counts again, the list")
}
