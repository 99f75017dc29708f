//! Callers that know the driver's interface and make their own requests: odd ones, forbidden ones, racing ones.

use crate::container::Container;
use crate::engine::Engine;
use crate::nvctl::{self, Answer};
use crate::right;
use crate::scene::{sorted, Scene};
use crate::stage::Stage;
use crate::stories::common::{exactly, once};
use crate::story::{Engines, Fault, Story, Without};

/// A process outside cannot be asked about: no memory, no accounting record; nor can an own one by its number outside.
pub const FOREIGN_PID: Story = Story {
    name: "somebody_elses_pid_is_unanswerable",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("is told of")),
    run: |stage| {
        let scene = stage.scene()?;
        for pid in scene.everybody() {
            let told = scene.a.ask(&["pidinfo", &pid.to_string()])?.one("mem")?;
            right!(told == 0, "the container is told of {told} bytes of process {pid} outside");
        }
        for pid in [scene.foreign.outside, scene.other.outside] {
            let answer = scene.a.ask(&["acct-info", &pid.to_string()])?;
            right!(answer.status != 0, "the container is told of the record of process {pid} outside: {}", answer.text);
        }
        Ok(())
    },
};

/// Its own processes answer, under the numbers asked for, and with their own memory and records.
pub const OWN_PID: Story = Story {
    name: "own_pid_is_answered_with_its_own_figures",
    engines: Engines::Every,
    without: |stage| match stage.era {
        4 => once(stage, Without::Wrong("accounting")),
        _ => once(stage, Without::Wrong("is told of")),
    },
    run: |stage| {
        let scene = stage.scene()?;
        let held = [(scene.first.inside, 80), (scene.second.inside, 43)];
        for (pid, mib) in held {
            let answer = scene.a.ask(&["pidinfo", &pid.to_string()])?;
            let (back, told) = (answer.one("pid")?, answer.one("mem")? >> 20);
            right!(
                back == u64::from(pid) && told == mib,
                "of process {pid} with {mib} MiB the container is told of {told} MiB of {back}"
            );
        }
        exactly("accounting", &scene.a.ask(&["acct-pids"])?.pids(), &scene.own())?;
        for pid in scene.own() {
            let answer = scene.a.ask(&["acct-info", &pid.to_string()])?;
            let back = answer.rows.first().and_then(|row| row.get("pid").cloned()).unwrap_or_default();
            right!(back == pid.to_string(), "accounting of process {pid} comes back as {}", answer.text.trim());
        }
        Ok(())
    },
};

/// The driver looks at a request's number and size alone, and so do its answers come out right however it is wrapped.
pub const EVERY_WAY: Story = Story {
    name: "every_way_to_ask_is_translated",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        let ways =
            ["", "--xfer", "--type 41", "--type 1", "--dir 0", "--dir 1", "--dir 2", "--flags 8", "--flags fffffff8"];
        for way in ways.into_iter().chain(["--xfer --dir 0 --type 7", "--on-thread"]) {
            all_right(&scene, "nvctl", way)?;
        }
        Ok(())
    },
};

/// A thread that is not the main one asks.
pub const ANOTHER_THREAD: Story = Story {
    name: "a_thread_other_than_the_main_one_is_answered_right",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        all_right(&scene, "nvctl", "--on-thread")
    },
};

/// A 32-bit program asks, and another 32-bit program is listed.
pub const THIRTY_TWO_BITS: Story = Story {
    name: "a_32_bit_caller_is_answered_right",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        all_right(&scene, "nvctl32", "")?;
        all_right(&scene, "nvctl32", "--xfer")?;
        // The old control's samples come from the firmware, which a made-up GPU has not.
        if stage.release().is_none() {
            let samples = ask(&scene.a, "nvctl32", &["gpumon1"])?;
            exactly("the samples' buffer", &samples.distinct_pids(), &scene.own())?;
        }
        let old = scene.a.hold_by("exec gpu-hold32 --mem 32")?;
        exactly(
            "the list",
            &scene.a.ask(&["pids"])?.pids(),
            &sorted([scene.first.inside, scene.second.inside, old.inside]),
        )
    },
};

/// Every size of every control, as releases from 390 to 580 ask: own numbers only, no kernel address.
pub const EVERY_LAYOUT: Story = Story {
    name: "every_layout_is_translated",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        let (own, first) = (scene.own(), scene.first.inside);
        for size in ["47216", "34000", "50704", "55888"] {
            samples(&scene, &["--size", size, "gpumon"])?;
        }
        samples(&scene, &["gpumon1"])?;
        // R418's numbers have R418's sizes only.
        exactly("--old pids", &scene.a.ask(&["--old", "pids"])?.pids(), &own)?;
        for look_up in ["--size 8008", "--size 9608", "--size 14408", "--old --size 8008"] {
            let pid = first.to_string();
            let words = look_up.split(' ').chain(["pidinfo", pid.as_str()]).collect::<Vec<_>>();
            let told = scene.a.ask(&words)?.one("mem")? >> 20;
            right!(told == 80, "{look_up} shows {told} MiB of process {first}, it holds 80");
        }
        for sessions in ["enc1", "enc2"] {
            exactly(sessions, &scene.a.ask(&[sessions])?.pids(), &[first, first])?;
        }
        exactly("fbc", &scene.a.ask(&["fbc"])?.pids(), &[first])?;
        exactly("acct-pids", &scene.a.ask(&["acct-pids"])?.pids(), &own)
    },
};

/// The profiler's reservation names the own process that has it, and nobody otherwise.
pub const HWPM: Story = Story {
    name: "profiler_reservation_names_own_process_only",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("the reservation names")),
    run: |stage| {
        let scene = stage.scene()?;
        let named = |container: &Container| container.ask(&["hwpm"])?.one("pid");
        {
            let holder = stage.hold(&["--hwpm"])?;
            let seen = named(&scene.a)?;
            right!(seen == 0, "the reservation names {seen}, it is process {} outside", holder.outside);
        }
        let holder = scene.a.hold(&["--hwpm"])?;
        let seen = named(&scene.a)?;
        right!(seen == u64::from(holder.inside), "the reservation names {seen}, it is process {}", holder.inside);
        let seen = named(&scene.b)?;
        right!(seen == 0, "the reservation names {seen} in another container");
        Ok(())
    },
};

/// The error report names its caller by the caller's number.
pub const RC_REPORT: Story = Story {
    name: "error_report_names_the_caller_by_its_own_number",
    engines: Engines::Every,
    without: |stage| match stage.engine {
        Engine::Notify => Without::Moot("the driver files reports by who asks, so the caller asks: docs/notify.md"),
        _ => once(stage, Without::Wrong("the report names")),
    },
    run: |stage| {
        let text = stage.scene()?.a.script("echo $$; exec nvctl --error rc")?;
        let (own, answer) = text.split_once('\n').unwrap_or((&text, ""));
        let named = nvctl::read(answer)?.one("pid")?;
        right!(own.parse() == Ok(named), "the report names {named}, its caller is {own}");
        Ok(())
    },
};

/// While threads rewrite the argument or read the result, no number of anybody else ever stands in the result.
pub const RACE: Story = Story {
    name: "racing_threads_never_see_a_foreign_pid",
    engines: Engines::Every,
    without: |stage| match (stage.release(), stage.era) {
        (Some(_), 4) => Without::Right("this driver lists nobody else, and a made-up GPU has no sessions"),
        _ => once(stage, Without::Wrong("saw")),
    },
    run: |stage| {
        let scene = stage.scene()?;
        let own = scene.own();
        let modes = if stage.engine == Engine::Notify { &READERS[..] } else { &RACES[..] };
        for (raced, mode) in races(modes) {
            let saw = race(stage, &scene, raced, mode)?;
            let foreign: Vec<u32> = saw.into_iter().filter(|pid| !own.contains(pid)).collect();
            right!(
                foreign.is_empty(),
                "racing {raced} by {mode}, threads saw {foreign:?}, the container's own are {own:?}"
            );
        }
        Ok(())
    },
};

/// After a call was passed on, the kernel reads its argument again: a caller that changes it meanwhile gets what the bare driver
/// gives it, which is no more than it has without any engine.
pub const RACE_PASSED_ON: Story = Story {
    name: "racing_an_engine_in_user_space_gains_nothing_on_the_bare_driver",
    engines: Engines::Notify("the module's argument is a copy that no caller can change"),
    without: |stage| once(stage, Without::Right("it is the bare driver that the story compares with")),
    run: |stage| {
        let scene = stage.scene()?;
        for (raced, mode) in races(&RACES) {
            let bare = stage.aside(|| scene.a.ask(&[raced]))??.pids();
            let own = scene.own();
            let saw = race(stage, &scene, raced, mode)?;
            let gained: Vec<&u32> = saw.iter().filter(|pid| !own.contains(pid) && !bare.contains(pid)).collect();
            right!(
                gained.is_empty(),
                "racing {raced} by {mode}, threads saw {gained:?}; own are {own:?}, bare {bare:?}"
            );
        }
        Ok(())
    },
};

/// Capture sessions are foreign in every era, lists in the older ones.
fn races<'a>(modes: &'a [&'a str]) -> impl Iterator<Item = (&'static str, &'a str)> {
    ["pids", "fbc"].into_iter().flat_map(move |raced| modes.iter().map(move |mode| (raced, *mode)))
}

/// The numbers that ever stood in a result while threads raced.
fn race(stage: &Stage, scene: &Scene, raced: &str, mode: &str) -> Result<Vec<u32>, Fault> {
    let seconds = stage.race_seconds(0.5);
    let text = scene.a.script(&format!("nvctl --threads 3 --raced {raced} race {mode} {seconds}"))?;
    let accepted = text.lines().next().and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0);
    right!(accepted > 0u64, "racing {raced} by {mode}, no call was accepted: {text}");
    Ok(text.lines().filter_map(|line| line.strip_prefix("saw ")?.parse().ok()).collect())
}

/// Nobody rewrites anything.
const READERS: [&str; 1] = ["read"];

/// What the racing thread rewrites while calls run; `read` has readers only.
const RACES: [&str; 6] = ["read", "cmd", "ptr", "size", "all", "xfer"];

/// Requests that make no sense: return and status are the driver's own, and the kernel says nothing.
pub const NONSENSE: Story = Story {
    name: "nonsense_gets_the_drivers_own_return_and_status",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Right("these are the driver's own answers")),
    run: |stage| {
        let scene = stage.scene()?;
        let with = nonsense(&scene)?;
        let without = stage.aside(|| nonsense(&scene))??;
        for (with, without) in with.iter().zip(without) {
            right!(*with == without, "with the engine: {with}; without: {without}");
        }
        Ok(())
    },
};

/// The old control takes a buffer of the caller's length: every sample in it is translated, not only as many as clients ask for.
pub const SAMPLES_BEYOND: Story = Story {
    name: "samples_beyond_the_usual_hundred_are_translated",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("shows")),
    run: |stage| {
        let scene = stage.scene()?;
        for room in ["1", "101", "300"] {
            let shown = scene.a.ask(&["--room", room, "gpumon1"])?;
            right!(shown.status == 0, "the driver refuses {room} samples: {}", shown.text);
            let foreign: Vec<u32> =
                shown.distinct_pids().into_iter().filter(|pid| !scene.own().contains(pid)).collect();
            right!(foreign.is_empty(), "a buffer of {room} samples shows {foreign:?}");
        }
        let shown = scene.a.ask(&["--room", "300", "gpumon1"])?;
        exactly("a buffer of 300 samples", &shown.distinct_pids(), &scene.own())
    },
};

/// Asked for their count, the encoder's sessions are one's own; and where there is less room than all have, one's own come first.
pub const SESSION_COUNT: Story = Story {
    name: "the_count_of_encoder_sessions_is_ones_own",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Wrong("sessions")),
    run: |stage| {
        let scene = stage.scene()?;
        for control in ["enc1", "enc2"] {
            for (container, own) in [(&scene.a, 2), (&scene.b, 1)] {
                let answer = container.ask(&["--room", "0", control])?;
                let count =
                    answer.text.lines().next().and_then(|line| line.rsplit_once("count=")?.1.parse::<u32>().ok());
                right!(count == Some(own), "{control} counts {count:?} sessions, {} has {own}", container.name());
            }
            if stage.era > 0 {
                // The others refuse any room but the whole table's.
                continue;
            }
            let shown = scene.b.ask(&["--room", "1", control])?.pids();
            exactly(&format!("{control} with room for one: sessions"), &shown, &[scene.other.inside])?;
        }
        Ok(())
    },
};

/// What cannot be meant: addresses nobody has, counts and sizes beyond every table, flags and objects that do not exist.
const NONSENSE_REQUESTS: [&str; 52] = [
    "--params 0 pids",
    "--params 1 pids",
    "--params ffff888000000000 pids",
    "--params 7ffffffff000 pids",
    "--params 8000000000000000 pids",
    "--params ffffffffffffffff pids",
    "--params 0 pidinfo 1",
    "--params ffffffff81000000 pidinfo 1",
    "--params 0 gpumon",
    "--params ffffc90000000000 gpumon",
    "--params 0 acct-pids",
    "--params 0 acct-info 1",
    "--params 0 enc1",
    "--params 0 enc2",
    "--params 0 fbc",
    "--params 0 rc",
    "--params 0 --xfer pids",
    "--size 3808 pids",
    "--size 3816 pids",
    "--size 1 pids",
    "--size 4294967295 pids",
    "--size 2147483648 pids",
    "--size 4294967295 --xfer acct-pids",
    "--size 4294967295 --params ffff888000000000 fbc",
    "--flags 1 pids",
    "--flags 2 pids",
    "--flags 3 pids",
    "--flags 4 pids",
    "--flags 4 gpumon",
    "--flags ffffffff pids",
    "--class 0 pids",
    "--class ffffffff pids",
    "raw 2080018d 3812 ffffffff",
    "raw 2080018e 14408 c9000000",
    "raw 2080018e 14408 ffffffff",
    "raw 2080018e 14408 c8000000",
    "raw 2080018e 8008 c80000000000000001000000",
    "raw 2080018e 14412 01000000",
    "raw 20802096 55888 0200000000000000",
    "raw 20802096 55888 02000000ffffffff",
    "raw 20802083 24 0200000060b80000000000000000000000000000000000ff",
    "raw 20802083 24 02000000ffffffff00000000000000000010000000000000",
    "raw 2080016e 16 00020000000000000000000000000000",
    "raw 2080016e 16 000200000000000000000000000088ff",
    "raw 2080016e 16 01020000000000000010000000000000",
    "raw 2080016e 16 ffffffff000000000010000000000000",
    "raw 208001af 16388 ffffffff",
    "raw b03 48 0001000000000000",
    "raw b03 48 00010000ffffffff",
    "raw b04 16012 ffffffff",
    "--object 12345678 raw 2080018d 3812",
    "--object client raw 2080018d 3812",
];

fn nonsense(scene: &Scene) -> Result<Vec<String>, Fault> {
    let mut answers = Vec::new();
    for program in ["nvctl", "nvctl32"] {
        let each = |request: &&str| format!("{program} {request} 2>&1 | head -n 1");
        let script = NONSENSE_REQUESTS.iter().map(each).collect::<Vec<_>>().join("\n");
        let text = scene.a.script(&script)?;
        for (request, line) in NONSENSE_REQUESTS.iter().zip(text.lines()) {
            // The count is an answer's, not the refusal's.
            let line = line.split(" count=").next().unwrap_or_default();
            right!(line.starts_with("ret="), "{program} {request}: {line}");
            answers.push(format!("{program} {request}: {line}"));
        }
    }
    right!(answers.len() == 2 * NONSENSE_REQUESTS.len(), "only {} requests were answered", answers.len());
    Ok(answers)
}

/// List and memory by one way of asking.
fn all_right(scene: &Scene, program: &str, way: &str) -> Result<(), Fault> {
    let way: Vec<&str> = way.split_whitespace().collect();
    let what = format!("{program} {}", way.join(" "));
    exactly(&what, &ask(&scene.a, program, &[&way[..], &["pids"]].concat())?.pids(), &scene.own())?;
    let (first, second) = (scene.first.inside.to_string(), scene.second.inside.to_string());
    let answer = ask(&scene.a, program, &[&way[..], &["pidinfo", first.as_str(), second.as_str()]].concat())?;
    let told: Vec<&str> = answer.rows.iter().filter_map(|row| row.get("mem").map(String::as_str)).collect();
    right!(told == ["83886080", "45088768"], "{what} shows memory {told:?}");
    Ok(())
}

/// Samples by one layout: exactly the own processes, and no kernel address.
fn samples(scene: &Scene, arguments: &[&str]) -> Result<(), Fault> {
    let answer = scene.a.ask(arguments)?;
    let what = arguments.join(" ");
    exactly(&what, &answer.distinct_pids(), &scene.own())?;
    let address = answer.rows.iter().filter_map(|row| row.get("ptr")).find(|address| *address != "0");
    right!(address.is_none(), "{what} shows the kernel address {address:?}");
    Ok(())
}

fn ask(container: &Container, program: &str, arguments: &[&str]) -> anyhow::Result<Answer> {
    nvctl::ask(&container.entered(), program, arguments)
}
