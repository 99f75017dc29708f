//! What else can be at work on the driver's functions: a tracer on them, and a driver that leaves them out.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use crate::command::must;
use crate::right;
use crate::stories::common::{exactly, once};
use crate::story::{Engines, Fault, Story, Without};

const TRACING: &str = "/sys/kernel/tracing";

/// The kernel's own tracers may watch the redirected functions: lists stay right, and nothing runs in circles.
pub const TRACED: Story = Story {
    name: "a_traced_driver_is_translated_as_well",
    engines: Engines::Module("what is traced are the module's redirects"),
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        can_trace()?;
        // An oops before this story has switched it off (oops_enter(), kernel/panic.c).
        set("tracing_on", "1")?;
        let offered = fs::read_to_string(format!("{TRACING}/available_tracers"))?;
        // The kernel that watches itself has the first alone.
        for tracer in ["function", "function_graph"]
            .into_iter()
            .filter(|&one| offered.split_whitespace().any(|other| other == one))
        {
            set("set_ftrace_filter", ":mod:nvidia")?;
            set("current_tracer", tracer)?;
            let answer = scene.a.ask(&["pids"]);
            let trace = fs::read_to_string(format!("{TRACING}/trace")).context("no trace")?;
            set("current_tracer", "nop")?;
            set("set_ftrace_filter", "")?;
            // The graph tracer of 5.10 leaves out functions that are redirected.
            let seen = tracer == "function_graph" || trace.contains("os_memcpy_to_user");
            right!(seen, "{tracer} saw nothing of the driver");
            exactly(&format!("under {tracer}, the list"), &answer?.pids(), &scene.own())?;
        }
        right!(offered.contains("function"), "this kernel traces no functions: {offered}");
        Ok(())
    },
};

/// Somebody traces the driver and stops, over and over, while the module comes and goes: it is placed each time.
pub const TRACED_BY_TURNS: Story = Story {
    name: "a_tracer_that_comes_and_goes_keeps_no_module_away",
    engines: Engines::Module("what is traced are the module's redirects"),
    without: |stage| match stage.era {
        0 | 3 => once(stage, Without::Right("there is no module to keep away")),
        _ => Without::Moot("redirects are placed alike in every era: played in 0, and in 3, which has every one"),
    },
    run: |stage| {
        let scene = stage.scene()?;
        can_trace()?;
        set("set_ftrace_filter", ":mod:nvidia")?;
        let stop = AtomicBool::new(false);
        let turns = || {
            let mut turns = 0;
            while !stop.load(Ordering::Relaxed) {
                set("current_tracer", "function")?;
                set("current_tracer", "nop")?;
                turns += 1;
            }
            Ok::<u32, Fault>(turns)
        };
        let (reloaded, turns) = std::thread::scope(|scope| {
            let tracer = scope.spawn(turns);
            let reloaded = (0..2 * stage.reloads).try_for_each(|number| {
                stage.unload_engine()?;
                stage.load_engine()?;
                let said = ["state", "refused"].map(|key| stage.engine_state(key).unwrap_or_default());
                right!(said[0] == "placed" || said[0] == "armed", "loaded {number} times, the module is {said:?}");
                exactly("the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())
            });
            stop.store(true, Ordering::Relaxed);
            (reloaded, tracer.join())
        });
        set("set_ftrace_filter", "")?;
        if reloaded.is_err() {
            stage.unload_engine()?;
            stage.load_engine()?;
        }
        reloaded?;
        let Ok(turns) = turns else { return Err(anyhow::anyhow!("the tracing thread died").into()) };
        right!(turns? > 2, "nobody traced meanwhile");
        exactly("the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())
    },
};

/// Where the kernel is told of probes (Documentation/trace/kprobetrace.rst), and one on a redirected function's first instruction.
const PROBES: &str = "/sys/kernel/tracing/kprobe_events";
const PROBE: &str = "p:mpu_story/to_user nvidia:os_memcpy_to_user";
const ENABLED: &str = "events/mpu_story/to_user/enable";

/// Somebody's probe stands where a redirected function begins: the module is placed, taken out and placed again beside it.
pub const PROBED: Story = Story {
    name: "a_probe_where_a_redirect_is_keeps_no_module_away",
    engines: Engines::Module("the probe is where the module's redirects are"),
    without: |stage| match stage.era {
        _ if !std::path::Path::new(PROBES).exists() => Without::Moot("this kernel takes no probes from its root"),
        0 => once(stage, Without::Right("there is no module to keep away")),
        _ => Without::Moot("redirects are placed alike in every era: played in 0"),
    },
    run: |stage| {
        let scene = stage.scene()?;
        can_trace()?;
        set("kprobe_events", PROBE)?;
        let answers = (|| {
            set(ENABLED, "1")?;
            stage.unload_engine()?;
            stage.load_engine()?;
            let answer = scene.a.ask(&["pids"])?;
            let hits = fs::read_to_string(format!("{TRACING}/kprobe_profile")).context("no probe was hit")?;
            Ok::<_, Fault>((stage.engine_state("state"), answer.pids(), hits))
        })();
        set(ENABLED, "0")?;
        fs::write(PROBES, "-:mpu_story/to_user").context("the probe stays")?;
        let (state, beside, hits) = answers?;
        right!(["placed", "armed"].map(Some).contains(&state.as_deref()), "beside a probe the module is {state:?}");
        exactly("beside a probe, the list", &beside, &scene.own())?;
        let hit = hits.lines().find_map(|line| line.trim().strip_prefix("to_user")?.split_whitespace().next());
        right!(hit.is_some_and(|count| count != "0"), "the probe was not hit: {hits}");
        // What goes on behind the probe goes on there without it, too.
        exactly("once the probe is gone, the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())
    },
};

/// An answer that reaches the caller past the driver's copy functions is put right afterwards, and counted.
pub const PAST_THE_COPIES: Story = Story {
    name: "answer_past_the_drivers_copies_is_translated_late",
    engines: Engines::Module("only the module looks at the driver's copies"),
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        let before = stage.counter("passed.copy_not_seen");
        bypass(true)?;
        let answer = scene.a.ask(&["pids"]);
        let own = scene.first.inside.to_string();
        let memory = scene.a.ask(&["pidinfo", &own]);
        bypass(false)?;
        exactly("the list", &answer?.pids(), &scene.own())?;
        let memory = memory?.one("mem")? >> 20;
        right!(memory == 80, "process {own} holds 80 MiB, it is told of {memory}");
        let counted = stage.counter("passed.copy_not_seen").zip(before).map(|(after, before)| after - before);
        right!(counted == Some(2), "two late answers were counted as {counted:?}");
        Ok(())
    },
};

fn bypass(on: bool) -> Result<(), Fault> {
    Ok(fs::write("/sys/module/nvidia/parameters/bypass", if on { "1" } else { "0" }).context("no bypass")?)
}

/// Mounts what the tracers are told by, unless it is there.
fn can_trace() -> Result<(), Fault> {
    if !fs::exists(format!("{TRACING}/current_tracer"))? {
        must(&["mount", "-t", "tracefs", "tracefs", TRACING])?;
    }
    Ok(())
}

fn set(file: &str, text: &str) -> Result<(), Fault> {
    Ok(fs::write(format!("{TRACING}/{file}"), text).with_context(|| format!("cannot write {text:?} to {file}"))?)
}
