//! The module's reported state: armed exactly while it translates, and readable at any time.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(scene redirects_are_not_switched_off_unseen, [5, 7];
        "The kernel refuses `kernel.ftrace_enabled=0` while the module is armed; where it does not (before 5.5), \
        `mpu status` says so, lists are right once it is 1, and the module can go while it is 0. A module that is \
        loaded while it is 0 names it.")
    .module("redirects by ftrace")
    .kernel_story()
    .right("there is nothing to switch off"),
    story!(unused_entry_symbol_is_not_reported_armed, [2, 5, 7];
        "A driver has both entry symbols, and nothing calls the older one: calls are translated, or `mpu status` \
        reports an error and does not say armed.")
    .module("the choice of an entry symbol")
    .real(Real::Knob)
    .eras(&[4], "a driver with both symbols is built for one era")
    .right("there is no engine to say anything"),
    story!(counters_are_readable_during_reload, [7];
        "Three readers never pause while the module is unloaded and loaded: nothing crashes, and no counter shows \
        anything that was never counted.")
    .module("loading and unloading")
    .real(Real::WithoutGpu)
    .kernel_story()
    .right("there is nothing to read"),
    story!(scene ending_caller_is_no_orphan, [7];
        "Callers end right after their calls while another process reads who is inside: every answer is right, and no \
        caller counts as dead.")
    .module("its state")
    .kernel_story()
    .right("there is nothing to read"),
    story!(scene driver_probe_becomes_a_jump, [6];
        "Where the kernel can turn a probe into a jump, it does so with the one in the driver's function, which \
        begins with ENDBR64 as NVIDIA's does.")
    .module("its probe")
    .only(|_| std::path::Path::new(OPTIMIZES).exists(), "this kernel makes no jumps of probes")
    .right("there is no probe"),
];

fn redirects_are_not_switched_off_unseen(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let keeps = !stage.engine_state("probes").is_some_and(|probes| probes.contains("permanent=no"));
    let refused = set_ftrace(false).is_err();
    let meanwhile = scene.a.query(&["pids"]);
    let status = run(&["mpu", "status"]);
    set_ftrace(true)?;
    check!(refused || !keeps, "ftrace was switched off under an armed module, which then shows {meanwhile:?}");
    if refused {
        check_pids("the list", &meanwhile?.pids(), &scene.own())?;
    } else {
        let status = status?;
        let reports_it = status.status != 0 && status.out.contains("function tracing is off");
        check!(reports_it, "ftrace was switched off, and mpu status finds nothing wrong: {}", status.out);
        check_own_list(scene, "with ftrace on again, the list")?;
        // A module that ftrace no longer calls must unload, too.
        set_ftrace(false)?;
    }
    let gone = stage.unload_engine();
    set_ftrace(false)?;
    if gone.is_err() {
        set_ftrace(true)?;
    }
    gone?;
    let loaded = stage.load_engine();
    let reported = ["state", "refused"].map(|key| stage.state_value(key));
    set_ftrace(true)?;
    if loaded.is_ok() {
        stage.unload_engine()?;
    }
    stage.load_engine()?;
    let [state, names] = reported;
    check!(state == "refused" && names.contains("kernel.ftrace_enabled"), "without ftrace it is {state} by {names}");
    check_own_list(scene, "the list")
}

fn unused_entry_symbol_is_not_reported_armed(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    stage.unload_all()?;
    stage.load_driver_of("4d", &[])?;
    stage.load_engine()?;
    let container = stage.container("entry")?;
    let holder = container.hold_by_script("exec gpu-hold --mem 40 --clients 2")?;
    let _foreign = Holder::on_host(&["--mem", "300"])?;
    if container.query(&["pids"])?.pids() == [holder.view_pid] && container.query(&["fbc"])?.pids().is_empty() {
        let translated = stage.state_value("translated");
        check!(
            !["", "0"].contains(&translated.as_str()),
            "the container is right and {translated:?} calls were translated"
        );
        return Ok(());
    }
    let [state, entered] = ["state", "entered"].map(|key| stage.state_value(key));
    check!(state != "armed", "nothing passes the module, and it says that it is armed");
    check!(entered == "0", "nothing passes the module, and it says that {entered:?} calls entered");
    let status = run(&["mpu", "status"])?;
    check!(status.status != 0, "nothing passes the module, and mpu status finds nothing wrong: {}", status.out);
    Ok(())
}

fn counters_are_readable_during_reload(stage: &Stage) -> Result<(), Fault> {
    let stop = AtomicBool::new(false);
    let read = |file: &str| {
        let (mut reads, mut absurd) = (0u64, None);
        while !stop.load(Ordering::Relaxed) {
            let Ok(text) = std::fs::read_to_string(format!("/sys/module/mpu/parameters/{file}")) else { continue };
            reads += 1;
            absurd = absurd.or_else(|| text.lines().find(|line| is_absurd(line)).map(str::to_owned));
        }
        (reads, absurd)
    };
    let (cycled, seen) = std::thread::scope(|scope| {
        let readers = ["counters", "counters", "state"].map(|file| scope.spawn(move || read(file)));
        let cycled = (0..stage.reloads).try_for_each(|_| {
            // A process that reads a parameter holds the module meanwhile.
            unload_unused(c"mpu")?;
            stage.load_engine()
        });
        stop.store(true, Ordering::Relaxed);
        (cycled, readers.map(|reader| reader.join().unwrap_or((0, Some("a reader died".to_owned())))))
    });
    cycled?;
    for (reads, absurd) in seen {
        check!(absurd.is_none(), "while the module came and went, a reader got {absurd:?}");
        check!(reads > 20, "a reader found something {reads} times only");
    }
    Ok(())
}

fn ending_caller_is_no_orphan(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let orphans = || stage.engine_state("orphans").context("the state has no orphans");
    let own = pid_words(&scene.own());
    let before = orphans()?;
    let callers = Callers::start(&scene.a, 6, &format!("nvctl --brief spin 4 {own}"))?;
    let began = Instant::now();
    let mut looks = 0;
    while looks < LOOKS || began.elapsed() < Duration::from_secs(3) {
        orphans()?;
        looks += 1;
    }
    let text = callers.stop()?;
    check_answers("from ending callers", &text, 0)?;
    let after = orphans()?;
    check!(after == before, "no caller died inside, and {after} callers count as orphans, {before} before");
    check_no_caller_inside(stage)?;
    stage.reload_engine()?;
    check_own_list(scene, "the list")
}

/// Minimum number of reads of the state while callers come and go.
const LOOKS: u32 = 200;

fn driver_probe_becomes_a_jump(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_own_list(scene, "the list")?;
    mount_debugfs(PROBES)?;
    let mut listed = String::new();
    // The kernel replaces a probe by a jump some time after it is armed.
    let jump = wait_until("no probe becomes a jump", || {
        listed = std::fs::read_to_string(PROBES)?;
        Ok(listed.lines().any(|line| line.contains("rm_ioctl") && line.contains("[OPTIMIZED]")))
    });
    check!(jump.is_ok(), "the kernel's probes are {listed:?}");
    Ok(())
}

/// Exists if the kernel can replace probes by jumps (CONFIG_OPTPROBES).
const OPTIMIZES: &str = "/proc/sys/debug/kprobes-optimization";
/// The kernel's list of probes (Documentation/trace/kprobes.rst).
const PROBES: &str = "/sys/kernel/debug/kprobes/list";

/// No counter gets that far in a story.
fn is_absurd(line: &str) -> bool {
    line.split_once('=').and_then(|(_, value)| value.parse::<u64>().ok()).is_some_and(|value| value > 1 << 40)
}
