//! Events that programs subscribe to and fetch.

use std::time::{Duration, Instant};

use anyhow::anyhow;

use crate::command::run;
use crate::engine::Engine;
use crate::nvctl;
use crate::right;
use crate::scene::{sorted, Scene};
use crate::stage::Stage;
use crate::stories::common::{exactly, once};
use crate::stories::hostile::ASKED_FOR_THE_CALLER;
use crate::stories::policy::in_pod;
use crate::story::{Engines, Fault, Story, Without};

/// Of the simulated driver, as of 615.
fn where_they_are(stage: &Stage, without: Without) -> Without {
    match stage.is_newest() {
        true => once(stage, without),
        false => Without::Moot("drivers have these events from 615 on"),
    }
}

/// Which client is over its memory limit is told by the caller's numbers, and of nobody else's. Other events stay as they are.
pub const MEMORY_LIMIT: Story = Story {
    name: "an_event_of_the_memory_limit_names_own_processes_only",
    engines: Engines::Every,
    without: |stage| where_they_are(stage, Without::Wrong("events name")),
    run: |stage| {
        let scene = stage.scene()?;
        by_own_numbers(&scene)?;
        on_the_host(stage, &scene.foreign.outside.to_string())?;
        by_policy(stage, &scene)
    },
};

/// A container's events name its own processes by their numbers there, and nobody else.
pub fn by_own_numbers(scene: &Scene) -> Result<(), Fault> {
    let word = scene.foreign.outside;
    for how in ["nvctl", "nvctl --xfer", "nvctl32"] {
        let answer = nvctl::read(&scene.a.script(&format!("{how} limits {word}"))?)?;
        let own = sorted(scene.own().into_iter().chain([0]));
        let (named, words) = (answer.distinct_pids(), answer.numbers("word"));
        right!(named == own, "events name {named:?}, the container's own are {:?}: {}", scene.own(), answer.text);
        right!(words == [word], "the word of another event is {words:?}, not {word}");
    }
    Ok(())
}

/// A caller on the host is told the driver's own.
fn on_the_host(stage: &Stage, word: &str) -> Result<(), Fault> {
    let everybody = stage.scene()?.everybody();
    let done = run(&["nvctl", "limits", word])?;
    let named = nvctl::read(&done.out)?.distinct_pids();
    right!(named == everybody, "on the host events name {named:?}, not {everybody:?}");
    Ok(())
}

/// So is one to whom the policy shows the host's view.
fn by_policy(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    stage.set_policy("host /pod")?;
    let told = in_pod(scene, &["limits", "7"]);
    stage.set_policy("")?;
    let named = told?.distinct_pids();
    right!(named == scene.everybody(), "with the host's view events name {named:?}, not {:?}", scene.everybody());
    by_own_numbers(scene)
}

/// Memory that cannot be read or written: the driver's own return and status, and as many events are left as without an engine.
pub const PROTECTED: Story = Story {
    name: "memory_that_refuses_an_event_gets_the_drivers_own_answer",
    engines: Engines::Every,
    without: |stage| where_they_are(stage, Without::Right("these are the driver's own answers")),
    run: |stage| {
        let scene = stage.scene()?;
        let ask = || scene.a.script("nvevents memory; nvevents --xfer memory");
        let with = ask()?;
        let without = stage.aside(ask)??;
        right!(with.lines().count() == 2 * 12, "only so much was asked: {with}");
        let poll = || scene.a.script("nvevents poll 300");
        println!(
            "guest: where no event is, a fetch takes {}; beside the engine {}",
            poll()?.trim(),
            stage.aside(poll)??.trim()
        );
        for (with, without) in with.lines().zip(without.lines()) {
            right!(with == without, "with the engine: {with}; without: {without}");
        }
        by_own_numbers(&scene)
    },
};

/// Calls by each means of racing, for each reload that a row has.
const SWAPPED_CALLS: u32 = 125;
/// Of one program: emulated, a call takes milliseconds, and no program may take minutes.
const SWAPPED_AT_ONCE: u32 = 1000;
/// How often what the page says can be seen is tried.
const RESIDUAL_TRIES: u32 = 20;

/// A thread puts another descriptor, none, another address or another request in the place of the one that an event is fetched with, while it is
/// fetched: what comes is of the container, or the call fails. What docs/notify.md says the exchange of a request can show has to be seen.
pub const SWAPPED: Story = Story {
    name: "an_event_swapped_in_flight_names_nobody_else",
    engines: Engines::Every,
    without: |stage| where_they_are(stage, Without::Wrong("events name")),
    run: |stage| {
        let scene = stage.scene()?;
        let own = scene.own();
        let each = SWAPPED_CALLS * stage.reloads.max(1);
        let calls = each.min(SWAPPED_AT_ONCE);
        let notify = stage.engine == Engine::Notify;
        let modes: &[&str] = if notify { &["dup2", "close", "where"] } else { &["dup2", "close", "where", "request"] };
        for mode in modes.iter().cycle().take(modes.len() * each.div_ceil(SWAPPED_AT_ONCE) as usize) {
            let foreign = named_while_swapping(&scene, mode, calls, &own)?;
            right!(foreign.is_empty(), "swapping by {mode}, events name {foreign:?}");
        }
        // docs/notify.md: a wrapper of something else is passed on, and read again by the kernel.
        if notify {
            let is_seen = || named_while_swapping(&scene, "request", calls, &own).map(|foreign| !foreign.is_empty());
            right!(
                any_of(RESIDUAL_TRIES, is_seen)?,
                "no exchanged wrapper showed an event, which the page says it can"
            );
        }
        by_own_numbers(&scene)
    },
};

/// Whether one of so many tries comes true.
fn any_of(tries: u32, mut attempt: impl FnMut() -> Result<bool, Fault>) -> Result<bool, Fault> {
    for _ in 0..tries {
        if attempt()? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whom events named that are not the container's own, while a thread exchanged a part of the call.
fn named_while_swapping(scene: &Scene, mode: &str, calls: u32, own: &[u32]) -> Result<Vec<u32>, Fault> {
    let text = scene.a.script(&format!("nvevents swap {mode} {calls}"))?;
    let first = text.lines().next().unwrap_or_default();
    let told: Vec<u32> = first.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[made, accepted] = told.as_slice() else { return Err(anyhow!("nvevents says {text}").into()) };
    right!(made >= calls && accepted > 0, "swapping by {mode}, {accepted} of {made} calls were accepted");
    let saw = text.lines().filter_map(|line| line.strip_prefix("saw ")?.parse::<u32>().ok());
    Ok(saw.filter(|pid| *pid != 0 && !own.contains(pid)).collect())
}

/// Memory that the kernel lets nobody but its owner read: the call is refused, and counted.
pub const SECRET: Story = Story {
    name: "an_event_asked_for_in_secret_is_refused",
    engines: ASKED_FOR_THE_CALLER,
    without: |stage| match run(&["nvevents", "secret"]) {
        Ok(done) if done.status == 0 => where_they_are(stage, Without::Wrong("it comes to")),
        _ => Without::Moot(
            "this kernel has no memfd_secret or was not told to have it, or the driver has no such events",
        ),
    },
    run: |stage| {
        let scene = stage.scene()?;
        let before = stage.counter("passed.unreadable");
        let text = scene.a.script("nvevents secret")?;
        right!(text.starts_with("ret=-14 "), "it comes to {}", text.trim());
        let after = stage.counter("passed.unreadable");
        right!(after == before.map(|before| before + 1), "it was counted from {before:?} to {after:?}");
        Ok(())
    },
};

/// The driver hangs while it is asked for an event, out of reach of any signal: others and the container itself are answered, and once it is over
/// all is as before.
pub const HANGS: Story = Story {
    name: "a_driver_that_hangs_over_an_event_stops_nobody_else",
    engines: Engines::Every,
    without: |stage| where_they_are(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        for (key, value) in [("hang_killable", "N"), ("hang_ms", "8000"), ("hang", "0x52")] {
            stage.set_driver(key, value)?;
        }
        scene.a.script("nvctl limits 7 >/tmp/hung 2>&1 & echo $! >/tmp/held; usleep 1500000")?;
        let began = Instant::now();
        let beside = beside_a_fetch_that_hangs(&scene);
        scene.a.script("kill -9 $(cat /tmp/held); rm /tmp/held /tmp/hung")?;
        std::thread::sleep(Duration::from_secs(9).saturating_sub(began.elapsed()));
        beside?;
        by_own_numbers(&scene)
    },
};

fn beside_a_fetch_that_hangs(scene: &Scene) -> Result<(), Fault> {
    let began = Instant::now();
    exactly("beside a fetch that hangs, the list", &scene.b.ask(&["pids"])?.pids(), &[scene.other.inside])?;
    exactly("beside a fetch that hangs, its own list", &scene.a.ask(&["pids"])?.pids(), &scene.own())?;
    let took = began.elapsed();
    right!(took < Duration::from_secs(6), "beside a fetch that hangs two answers took {took:?}");
    right!(scene.a.script("cat /tmp/hung")?.is_empty(), "nothing hangs");
    Ok(())
}
