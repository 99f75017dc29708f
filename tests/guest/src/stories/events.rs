//! Events that programs subscribe to and fetch.

use crate::stories::common::*;
use crate::stories::hostile::{SUPERVISOR_ONLY, SWAPPED_AT_ONCE, secret};
use crate::stories::policy::in_pod;

const NEWEST: &str = "drivers have these events from 615 on";

pub const STORIES: &[Story] = &[
    story!(scene memory_limit_event_names_own_processes, [1, 3];
        "Each client exceeds its memory limit, and a container that subscribed fetches the events, plainly, \
        wrapped and by a 32-bit program. It gets own PIDs, 0 for others, and the unchanged word of another kind of \
        event. The host gets everybody's PIDs, and so does a container that the policy exempts.")
    .real(Real::Knob)
    .only(Stage::is_newest, NEWEST)
    .wrong("events name"),
    story!(scene event_into_protected_memory_keeps_drivers_answer, [4, 5];
        "The event or the argument of the call that fetches it lies in memory of each kind: return, status and how \
        many events are left are the driver's own.")
    .only(Stage::is_newest, NEWEST)
    .right("these are the driver's own answers"),
    story!(scene event_swapped_in_flight_names_own_only, [3];
        "While a container fetches events, one of its threads exchanges the descriptor, closes it, or exchanges the \
        event's address: no event names anybody else.")
    .only(Stage::is_newest, NEWEST)
    .wrong("events name"),
    story!(event_in_secret_memory_is_refused, [3];
        "The argument lies in memory of memfd_secret, which the supervisor cannot read: the call fails with EFAULT \
        and is counted.")
    .notify(SUPERVISOR_ONLY)
    .only(
        |stage| stage.is_newest() && run(&["nvctl", "event-secret"]).is_ok_and(|done| done.status == 0),
        "this kernel has no memfd_secret or was not told to have it, or the driver has no such events",
    )
    .wrong("it comes to"),
    story!(scene hung_event_fetch_delays_no_other_caller, [4];
        "The driver hangs while a container fetches an event: other containers, and the container itself, are \
        answered; once it is over the container gets its events.")
    .only(Stage::is_newest, NEWEST),
];

fn memory_limit_event_names_own_processes(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    by_own_numbers(scene)?;
    on_the_host(stage, &scene.foreign.host_pid.to_string())?;
    by_policy(stage, scene)
}

/// A container's events name its own processes by their numbers there, and no other process.
pub fn by_own_numbers(scene: &Scene) -> Result<(), Fault> {
    let word = scene.foreign.host_pid;
    for how in ["nvctl", "nvctl --xfer", "nvctl32"] {
        let answer = nvctl::read(&scene.a.script(&format!("{how} limits {word}"))?)?;
        let own = sorted(scene.own().into_iter().chain([0]));
        let (named, words) = (answer.distinct_pids(), answer.numbers("word"));
        check!(named == own, "events name {named:?}, the container's own are {:?}: {}", scene.own(), answer.text);
        check!(words == [word], "the word of another event is {words:?}, not {word}");
    }
    Ok(())
}

/// A caller on the host gets the driver's own numbers.
fn on_the_host(stage: &Stage, word: &str) -> Result<(), Fault> {
    let host_pids = stage.scene()?.host_pids();
    let done = run(&["nvctl", "limits", word])?;
    let named = nvctl::read(&done.out)?.distinct_pids();
    check!(named == host_pids, "on the host events name {named:?}, not {host_pids:?}");
    Ok(())
}

/// So does a container with the host's view by policy.
fn by_policy(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    stage.set_policy("host /pod")?;
    let answer = in_pod(scene, &["limits", "7"]);
    stage.set_policy("")?;
    let named = answer?.distinct_pids();
    check!(named == scene.host_pids(), "with the host's view events name {named:?}, not {:?}", scene.host_pids());
    by_own_numbers(scene)
}

fn event_into_protected_memory_keeps_drivers_answer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let with = same_with_engine_off(stage, || Ok(scene.a.script("nvctl event-memory; nvctl --xfer event-memory")?))?;
    check!(with.lines().count() == 2 * 12, "only so much was asked: {with}");
    let poll = || scene.a.script("nvctl event-poll 300");
    println!(
        "guest: where no event is, a fetch takes {}; beside the engine {}",
        poll()?.trim(),
        stage.with_engine_off(poll)??.trim()
    );
    by_own_numbers(scene)
}

/// Racing calls in each mode, for each reload of a row.
const SWAPPED_CALLS: u32 = 125;
/// Tries to see the leak that docs/notify.md describes.
const RESIDUAL_TRIES: u32 = 100;

fn event_swapped_in_flight_names_own_only(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let own = scene.own();
    let each = SWAPPED_CALLS * stage.reloads.max(1);
    let calls = each.min(SWAPPED_AT_ONCE);
    let notify = stage.engine == Engine::Notify;
    let modes: &[&str] = if notify { &["dup2", "close", "where"] } else { &["dup2", "close", "where", "request"] };
    for mode in modes.iter().cycle().take(modes.len() * each.div_ceil(SWAPPED_AT_ONCE) as usize) {
        let foreign = named_while_swapping(scene, mode, calls, &own)?;
        check!(foreign.is_empty(), "swapping by {mode}, events name {foreign:?}");
    }
    // docs/notify.md: the engine passes on a wrapper of another request, and the kernel reads it again.
    if notify {
        let is_seen = || named_while_swapping(scene, "request", calls, &own).map(|foreign| !foreign.is_empty());
        let seen = (0..RESIDUAL_TRIES).map(|_| is_seen()).find(|seen| !matches!(seen, Ok(false))).transpose()?;
        check!(seen.is_some(), "no exchanged wrapper showed an event, which the page says it can");
    }
    by_own_numbers(scene)
}

/// The foreign PIDs in events while a thread exchanged a part of the call.
fn named_while_swapping(scene: &Scene, mode: &str, calls: u32, own: &[u32]) -> Result<Vec<u32>, Fault> {
    let text = scene.a.script(&format!("nvctl event-swap {mode} {calls}"))?;
    let (_, saw) = parse_race(&text, calls)?;
    Ok(saw.into_iter().filter(|pid| *pid != 0 && !own.contains(pid)).collect())
}

fn event_in_secret_memory_is_refused(stage: &Stage) -> Result<(), Fault> {
    secret(stage, "nvctl event-secret")
}

fn hung_event_fetch_delays_no_other_caller(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    for (key, value) in [("hang_killable", "N"), ("hang_ms", "100000"), ("hang", "0x52")] {
        stage.set_driver(key, value)?;
    }
    let hung = scene.a.script("nvctl limits 7 >/tmp/hung 2>&1 & echo $!")?;
    wait_until_hung()?;
    let beside = beside_hanging_fetch(scene);
    let hangs = scene.a.script(&format!("cat /tmp/hung; kill -9 {}; rm /tmp/hung", hung.trim()));
    stage.set_driver("hang_ms", "0")?;
    beside?;
    check!(hangs?.is_empty(), "the fetch did not hang until then");
    by_own_numbers(scene)
}

fn beside_hanging_fetch(scene: &Scene) -> Result<(), Fault> {
    check_list(&scene.b, "beside a fetch that hangs, the list", &[scene.other.view_pid])?;
    check_own_list(scene, "beside a fetch that hangs, its own list")
}
