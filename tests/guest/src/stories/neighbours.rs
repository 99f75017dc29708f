//! Other users of the driver's functions: tracers and probes. Also a driver that bypasses its copy functions.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stories::common::*;

const TRACING: &str = "/sys/kernel/tracing";

pub const STORIES: &[Story] = &[
    story!(scene traced_driver_is_still_translated, [7];
        "While the kernel's own tracers watch the redirected functions, lists stay right.")
    .module("what is traced are the module's redirects"),
    story!(scene module_reloads_beside_a_restarting_tracer, [7];
        "A tracer starts and stops tracing the driver, over and over, while the module is unloaded and loaded: it is \
        placed each time, and lists are right.")
    .module("what is traced are the module's redirects")
    .kernel_story()
    .right("there is no module to keep away"),
    story!(scene module_reloads_beside_a_kprobe, [7];
        "A user's kprobe stands on the first instruction of a redirected function while the module is taken out \
        and placed again: it is placed, the list is right, the probe is hit, and the list stays right when the probe \
        goes.")
    .module("the probe is where the module's redirects are")
    .only(|_| std::path::Path::new(PROBES).exists(), "this kernel takes no probes from its root")
    .kernel_story()
    .right("there is no module to keep away"),
    story!(scene lookup_probes_avoid_patched_instructions, [7];
        "Each probe by which the module finds a function stands behind the instruction that ftrace patches, and so \
        does its own probe.")
    .module("its probes")
    .only(|_| std::path::Path::new(PROBES).exists(), "this kernel takes no probes from its root")
    .eras(&[0, 4], "functions are looked up alike in every era: played in 0 and 4")
    .right("there is no module that probes"),
    story!(scene answer_past_the_drivers_copies_is_counted, [5];
        "If a driver does not use its copy functions, the caller gets the driver's own answer, and that is counted; \
        a refused call is not.")
    .module("only the module looks at the driver's copies")
    .real(Real::Knob),
];

fn traced_driver_is_still_translated(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    // An oops in an earlier story switches tracing off (oops_enter(), kernel/panic.c).
    set("tracing_on", "1")?;
    let offered = fs::read_to_string(format!("{TRACING}/available_tracers"))?;
    // A kernel with sanitizers has only the first.
    for tracer in
        ["function", "function_graph"].into_iter().filter(|&one| offered.split_whitespace().any(|other| other == one))
    {
        set("set_ftrace_filter", ":mod:nvidia")?;
        set("current_tracer", tracer)?;
        let answer = scene.a.query(&["pids"]);
        let trace = fs::read_to_string(format!("{TRACING}/trace")).context("no trace")?;
        set("current_tracer", "nop")?;
        set("set_ftrace_filter", "")?;
        // The graph tracer of 5.10 omits redirected functions.
        let seen = tracer == "function_graph" || trace.contains("os_memcpy_to_user");
        check!(seen, "{tracer} saw nothing of the driver");
        check_pids(&format!("under {tracer}, the list"), &answer?.pids(), &scene.own())?;
    }
    check!(offered.contains("function"), "this kernel traces no functions: {offered}");
    Ok(())
}

fn module_reloads_beside_a_restarting_tracer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
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
            stage.reload_engine()?;
            let state = ["state", "refused"].map(|key| stage.state_value(key));
            check!(state[0] == "placed" || state[0] == "armed", "loaded {number} times, the module is {state:?}");
            check_own_list(scene, "the list")
        });
        stop.store(true, Ordering::Relaxed);
        (reloaded, tracer.join())
    });
    set("set_ftrace_filter", "")?;
    if reloaded.is_err() {
        stage.reload_engine()?;
    }
    reloaded?;
    let Ok(turns) = turns else { return Err(anyhow::anyhow!("the tracing thread died").into()) };
    check!(turns? > 2, "no process traced meanwhile");
    check_own_list(scene, "the list")
}

/// The file that adds and removes probes (Documentation/trace/kprobetrace.rst).
const PROBES: &str = "/sys/kernel/tracing/kprobe_events";

fn module_reloads_beside_a_kprobe(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let (state, beside, hits) = under_probe("p:mpu_story/probe nvidia:os_memcpy_to_user", || {
        stage.reload_engine()?;
        let answer = scene.a.query(&["pids"])?;
        let hits = fs::read_to_string(format!("{TRACING}/kprobe_profile")).context("no probe was hit")?;
        Ok((stage.engine_state("state"), answer.pids(), hits))
    })?;
    check!(["placed", "armed"].map(Some).contains(&state.as_deref()), "beside a probe the module is {state:?}");
    check_pids("beside a probe, the list", &beside, &scene.own())?;
    let hit = hits.lines().find_map(|line| line.trim().strip_prefix("probe")?.split_whitespace().next());
    check!(hit.is_some_and(|count| count != "0"), "the probe was not hit: {hits}");
    // The redirect continues behind the probe, and must do so without the probe, too.
    check_own_list(scene, "once the probe is gone, the list")
}

fn lookup_probes_avoid_patched_instructions(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    set("trace", "")?;
    // struct kprobe (include/linux/kprobes.h): addr at 40, symbol_name at 48, offset at 56.
    let probe = "p:mpu_story/probe register_kprobe at=+40($arg1):x64 name=+0(+48($arg1)):string offset=+56($arg1):u32";
    let traced = under_probe(probe, || {
        stage.reload_engine()?;
        check_own_list(scene, "the list")?;
        Ok(fs::read_to_string(format!("{TRACING}/trace")).context("no trace")?)
    })?;
    let [mut lookups, mut placed] = [0, 0];
    for line in traced.lines().filter(|line| line.contains("probe: ")) {
        let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key)).unwrap_or_default();
        let offset: u32 = field("offset=").parse().unwrap_or_default();
        if field("name=").starts_with("\"nvidia:") {
            lookups += 1;
            // Behind the call on x86-64, and behind the landing pad and the call on arm64.
            check!(offset >= if cfg!(target_arch = "x86_64") { 5 } else { 12 }, "a probe stands on a call: {line}");
        } else {
            placed += 1;
            let at = u64::from_str_radix(field("at=").trim_start_matches("0x"), 16).unwrap_or_default();
            let function = starts().into_iter().find(|(address, _)| (*address..address + 5).contains(&at));
            check!(at != 0 && function.is_none(), "a probe stands on what ftrace patches in {function:?}: {line}");
        }
    }
    check!(lookups >= 5 && placed == 1, "{lookups} functions were looked up and {placed} probes placed: {traced}");
    Ok(())
}

/// The addresses and names of the driver's traceable functions.
fn starts() -> Vec<(u64, String)> {
    let traceable = fs::read_to_string(format!("{TRACING}/available_filter_functions")).unwrap_or_default();
    let traceable: HashSet<&str> = traceable.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let driver = symbols.lines().filter_map(|line| line.strip_suffix("[nvidia]"));
    driver
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (address, name) = (words.next()?, words.nth(1)?);
            Some((u64::from_str_radix(address, 16).ok()?, name.to_owned())).filter(|_| traceable.contains(name))
        })
        .collect()
}

fn answer_past_the_drivers_copies_is_counted(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let before = stage.counter("passed.copy_not_seen");
    stage.set_driver("bypass", "1")?;
    let answer = scene.a.query(&["pids"]);
    let refused = scene.a.query(&["--size", "3816", "pids"]);
    stage.set_driver("bypass", "0")?;
    check!(answer?.status == 0 && refused?.status != 0, "of two calls the driver refuses the second alone");
    let counted = stage.counter("passed.copy_not_seen").zip(before).map(|(after, before)| after - before);
    check_own_list(scene, "with the copies, the list")?;
    check!(counted == Some(1), "one answer past the copies was counted as {counted:?}");
    Ok(())
}

/// Runs `act` while a probe named `mpu_story/probe` is active.
pub fn under_probe<T>(probe: &str, act: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    const ENABLED: &str = "events/mpu_story/probe/enable";
    set("kprobe_events", probe)?;
    let done = set(ENABLED, "1").and_then(|()| act());
    set(ENABLED, "0")?;
    // Truncating the list removes all probes.
    set("kprobe_events", "")?;
    done
}

pub fn set(file: &str, text: &str) -> Result<(), Fault> {
    Ok(fs::write(format!("{TRACING}/{file}"), text).with_context(|| format!("cannot write {text:?} to {file}"))?)
}
