//! What the module says of itself: it is armed when it translates, and only then; and it can be asked at any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::callers::Callers;
use crate::command::{must, run};
use crate::right;
use crate::stories::common::{exactly, once};
use crate::story::{Engines, Story, Without};
use crate::wait::until;

/// Switches the kernel's function tracer off, and with it every redirect.
const FTRACE: &str = "/proc/sys/kernel/ftrace_enabled";

/// Nobody switches the redirects off under an armed module; or, where the kernel lets everybody who may, `mpu status` says so. One that
/// comes when they are switched off says so itself.
pub const FTRACE_OFF: Story = Story {
    name: "redirects_are_not_switched_off_unseen",
    engines: Engines::Module("redirects by ftrace"),
    without: |stage| once(stage, Without::Right("there is nothing to switch off")),
    run: |stage| {
        let scene = stage.scene()?;
        let keeps = !stage.engine_state("probes").is_some_and(|probes| probes.contains("permanent=no"));
        let refused = std::fs::write(FTRACE, "0").is_err();
        let meanwhile = scene.a.ask(&["pids"]);
        let status = run(&["mpu", "status"]);
        std::fs::write(FTRACE, "1")?;
        right!(
            refused || !keeps,
            "ftrace was switched off under an armed module, which then shows {:?}",
            meanwhile?.pids()
        );
        if refused {
            exactly("the list", &meanwhile?.pids(), &scene.own())?;
        } else {
            let status = status?;
            right!(
                status.status != 0 && status.out.contains("function tracing is off"),
                "ftrace was switched off, and mpu status finds nothing wrong: {}",
                status.out
            );
            exactly("with ftrace on again, the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())?;
            // What nothing calls any more goes, too, and leaves nothing behind.
            std::fs::write(FTRACE, "0")?;
        }
        let gone = stage.unload_engine();
        std::fs::write(FTRACE, "0")?;
        if gone.is_err() {
            std::fs::write(FTRACE, "1")?;
        }
        gone?;
        let loaded = stage.load_engine();
        let said = ["state", "refused"].map(|key| stage.engine_state(key).unwrap_or_default());
        std::fs::write(FTRACE, "1")?;
        if loaded.is_ok() {
            stage.unload_engine()?;
        }
        stage.load_engine()?;
        right!(
            said[0] == "refused" && said[1].contains("kernel.ftrace_enabled"),
            "with ftrace switched off the module is {} and names {}",
            said[0],
            said[1]
        );
        exactly("the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())
    },
};

/// A driver with both entry symbols, of which nothing calls the one that is looked for first: armed is not said while nothing passes.
pub const WRONG_ENTRY: Story = Story {
    name: "armed_is_not_said_while_nothing_passes",
    engines: Engines::Module("the choice of an entry symbol"),
    without: |stage| match stage.era {
        4 => once(stage, Without::Right("there is no engine to say anything")),
        _ => Without::Moot("a driver with both symbols is built for one era"),
    },
    run: |stage| {
        stage.clear_scene();
        stage.unload_all()?;
        stage.load_driver_of("4d")?;
        let verdict = (|| {
            stage.load_engine()?;
            let container = stage.container("entry")?;
            let holder = container.hold_by("exec gpu-hold --mem 40 --clients 2")?;
            let _foreign = stage.hold(&["--mem", "300"])?;
            if container.ask(&["pids"])?.pids() == [holder.inside] && container.ask(&["fbc"])?.pids().is_empty() {
                let translated = stage.engine_state("translated").unwrap_or_default();
                right!(
                    !["", "0"].contains(&translated.as_str()),
                    "the container is right and {translated:?} calls were translated"
                );
                return Ok(());
            }
            let [state, entered] = ["state", "entered"].map(|key| stage.engine_state(key).unwrap_or_default());
            right!(state != "armed", "nothing passes the module, and it says that it is armed");
            right!(entered == "0", "nothing passes the module, and it says that {entered:?} calls entered");
            let status = run(&["mpu", "status"])?;
            right!(status.status != 0, "nothing passes the module, and mpu status finds nothing wrong: {}", status.out);
            Ok(())
        })();
        stage.unload_all()?;
        stage.load_driver(&[])?;
        stage.load_engine()?;
        verdict
    },
};

/// Readers never pause while the module comes and goes, and what they read was counted.
pub const COUNTERS: Story = Story {
    name: "state_and_counters_can_be_read_at_any_time",
    engines: Engines::Module("loading and unloading"),
    without: |stage| match stage.era {
        0 => once(stage, Without::Right("there is nothing to read")),
        _ => Without::Moot("the engine comes and goes alike in every era: played in 0"),
    },
    run: |stage| {
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
                unload(stage)?;
                stage.load_engine()
            });
            stop.store(true, Ordering::Relaxed);
            (cycled, readers.map(|reader| reader.join().unwrap_or((0, Some("a reader died".to_owned())))))
        });
        cycled?;
        for (reads, absurd) in seen {
            right!(absurd.is_none(), "while the module came and went, a reader was told {absurd:?}");
            right!(reads > 20, "a reader found something {reads} times only");
        }
        Ok(())
    },
};

/// Callers end right behind their calls while somebody looks all the time at who is inside: none of them is taken for one that died there.
pub const BRIEF_CALLERS: Story = Story {
    name: "a_caller_that_ends_is_not_taken_for_dead",
    engines: Engines::Module("its state"),
    without: |stage| match stage.era {
        0 => once(stage, Without::Right("there is nothing to read")),
        _ => Without::Moot("callers come and go alike in every era: played in 0"),
    },
    run: |stage| {
        let scene = stage.scene()?;
        let orphans = || stage.engine_state("orphans").unwrap_or_default();
        let own = scene.own().iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let before = orphans();
        let callers = Callers::start(&scene.a, 6, &format!("nvctl --brief spin 4 {own}"))?;
        let began = Instant::now();
        let mut looks = 0;
        while looks < LOOKS || began.elapsed() < Duration::from_secs(3) {
            orphans();
            looks += 1;
        }
        let text = callers.stop()?;
        let wrong = text.lines().find(|line| line.starts_with("wrong"));
        right!(wrong.is_none(), "an answer was not {own}: {}", wrong.unwrap_or_default());
        let after = orphans();
        right!(after == before, "nobody died inside, and {after} callers count as orphans, {before} before");
        let inside = stage.engine_state("inside").unwrap_or_default();
        right!(inside == "0", "all callers have ended, and {inside} count as inside");
        stage.unload_engine()?;
        stage.load_engine()?;
        exactly("the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())
    },
};

/// So often at least somebody looks who is inside, while callers come and go.
const LOOKS: u32 = 200;

/// Where the kernel can make a jump of a probe, it does so of the one in the driver: a breakpoint costs each call of a container far more.
pub const JUMP: Story = Story {
    name: "the_probe_in_the_driver_is_a_jump",
    engines: Engines::Module("its probe"),
    without: |stage| match std::path::Path::new(OPTIMIZES).exists() {
        true => once(stage, Without::Right("there is no probe")),
        false => Without::Moot("this kernel makes no jumps of probes"),
    },
    run: |stage| {
        let scene = stage.scene()?;
        exactly("the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())?;
        if !std::path::Path::new(PROBES).exists() {
            must(&["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"])?;
        }
        let mut listed = String::new();
        // The kernel does it some time after a probe is armed.
        let jump = until("no probe becomes a jump", || {
            listed = std::fs::read_to_string(PROBES)?;
            Ok(listed.lines().any(|line| line.contains("rm_ioctl") && line.contains("[OPTIMIZED]")))
        });
        right!(jump.is_ok(), "the kernel's probes are {listed:?}");
        Ok(())
    },
};

/// There where the kernel is built to make jumps of probes (CONFIG_OPTPROBES).
const OPTIMIZES: &str = "/proc/sys/debug/kprobes-optimization";
/// The kernel's list of probes (Documentation/trace/kprobes.rst).
const PROBES: &str = "/sys/kernel/debug/kprobes/list";

/// Nobody has counted that far.
fn is_absurd(line: &str) -> bool {
    line.split_once('=').and_then(|(_, value)| value.parse::<u64>().ok()).is_some_and(|value| value > 1 << 40)
}

/// Whoever reads a parameter holds the module for that long.
fn unload(stage: &crate::stage::Stage) -> Result<()> {
    for _ in 0..200 {
        if run(&["rmmod", "mpu"])?.status == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    stage.unload_engine()
}
