//! What else can be at work on the driver's functions: a tracer on them, and a driver that leaves them out.

use std::fs;

use anyhow::Context;

use crate::command::must;
use crate::right;
use crate::stories::scene::{exactly, once};
use crate::story::{Engines, Fault, Story, Without};

const TRACING: &str = "/sys/kernel/tracing";

/// The kernel's own tracers may watch the redirected functions: lists stay right, and nothing runs in circles.
pub const TRACED: Story = Story {
    name: "a_traced_driver_is_translated_as_well",
    engines: Engines::Module("what is traced are the module's redirects"),
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        if !fs::exists(format!("{TRACING}/current_tracer"))? {
            must(&["mount", "-t", "tracefs", "tracefs", TRACING])?;
        }
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

fn set(file: &str, text: &str) -> Result<(), Fault> {
    Ok(fs::write(format!("{TRACING}/{file}"), text).with_context(|| format!("cannot write {text:?} to {file}"))?)
}
