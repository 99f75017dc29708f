//! The host's own view, which no engine may change by a byte.

use crate::stories::common::*;

pub const STORIES: &[Story] = &[story!(scene host_view_is_unchanged, [4];
        "A host caller, 64-bit and 32-bit, gets the same bytes of every control, and the same listings of \
        nvidia-smi, with the engine loaded and without.")
.every_client()
.right("this is the host's view without an engine")];

fn host_view_is_unchanged(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    // Hand-made samples: the driver's own change with time.
    let slot =
        format!("100,{}/1000,{}/3000,{}/500", scene.foreign.host_pid, scene.first.host_pid, scene.second.host_pid);
    if stage.release().is_some() {
        // The scene sets a real driver's samples.
        return compare(stage, scene);
    }
    with_samples(&[slot], || compare(stage, scene))?
}

fn compare(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let with = same_with_engine_off(stage, || view(stage, scene))?;
    for pid in scene.host_pids() {
        check!(with.contains(&format!("pid {pid}")), "process {pid} is missing in the host's view");
    }
    Ok(())
}

/// Root's view on the host, in its order, without times.
fn view(stage: &Stage, scene: &Scene) -> Result<String, Fault> {
    let raw = [
        "2080018d 3812 00000000c0c30000",
        "00800202 3812 00000000c0c30000",
        "b04 16012 00010000",
        "208001af 16388 00020000",
        "208001a9 16388 00020000",
        "2080016d 12",
        "2080017b 12",
        "2080017c 13316",
        "90cc0103 12",
    ];
    let pids = scene.host_pids().iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    let mut script = String::new();
    for program in ["nvctl", "nvctl32"] {
        for raw in raw {
            script += &format!("{program} raw {raw}\n");
        }
        // Times change from run to run.
        for size in ["47216", "34000", "50704", "55888"] {
            script += &format!("{program} --size {size} gpumon | sed 's/ time [0-9]*//'\n");
        }
        script += &format!("{program} gpumon1 | sed 's/ time [0-9]*//'\n{program} enc1\n");
        if stage.release().is_none() {
            script += &format!("sh -c 'echo pid $$; exec {program} --error rc' | grep pid | sort -u | wc -l\n");
        }
        script += &format!("{program} --size 3816 pids\n{program} --flags 4 pids\n{program} --xfer pids\n");
        for size in ["8008", "9608", "14408"] {
            script += &format!(
                "{program} --size {size} pidinfo {pids} 1 0 4194303\n{program} --old --size {size} pidinfo {pids}\n"
            );
        }
        for pid in scene.host_pids() {
            script += &format!("{program} acct-info {pid}\n");
        }
        script += &format!("{program} acct-info 1\n");
    }
    // A refusal is part of the view, not a failure of the script.
    let mut seen = run_ok(&["sh", "-c", &format!("{script}true")])?;
    for arguments in
        [&["-q", "-d", "PIDS,ACCOUNTING"][..], &["--query-compute-apps=pid,used_memory", "--format=csv"][..]]
    {
        let text = stage.host().smi(arguments)?.out;
        seen.extend(text.lines().filter(|line| !line.starts_with("Timestamp")).map(|line| format!("{line}\n")));
    }
    Ok(seen)
}
