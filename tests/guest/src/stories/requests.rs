//! Callers that make their own requests: odd, forbidden, and racing ones.

use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(scene foreign_pid_has_no_answer, [3];
        "Hand-made look-ups by host PIDs get no memory and no accounting record, not even for own processes by their \
        host PIDs.")
    .wrong("the container gets"),
    story!(scene own_pid_lookup_returns_own_figures, [1, 3];
        "Look-ups by own numbers come back under those numbers, with own memory and accounting records.")
    .without_engine(|stage| match stage.era {
        4 => once(stage, BareResult::Wrong("accounting")),
        _ => once(stage, BareResult::Wrong("the container gets")),
    }),
    story!(scene every_way_to_ask_is_translated, [1];
        "XFER wrapping, other ioctl type and direction bits, ignored flags."),
    story!(scene every_layout_is_translated, [1, 3];
        "Every size of every control from R418's numbers to 580: own numbers only, no kernel address.")
    .real(Real::Sizes),
    story!(scene second_thread_is_answered_right, [1];
        "A second thread asks and gets a right answer."),
    story!(scene a_32_bit_caller_is_answered_right, [1];
        "A 32-bit program asks, plainly and wrapped, and a 32-bit program is listed."),
    story!(scene profiler_reservation_names_own_process_only, [1, 3];
        "The hardware profiler's reservation names no process for a foreign reservation, and the own PID for an own one.")
    .real(Real::Engines)
    .wrong("the reservation names"),
    story!(error_report_shows_callers_inner_pid, [1];
        "The RC error report names the caller by its own PID.")
    .real(Real::Knob)
    .only(
        |stage| stage.engine != Engine::Notify,
        "the driver files reports by who asks, so the caller asks: docs/notify.md",
    )
    .wrong("the report names"),
    story!(scene racing_threads_never_see_a_foreign_pid, [3];
        "Threads rewrite command, pointer, size or wrapping, or read the result buffer, while calls run: the buffer \
        never holds a foreign PID.")
    .without_engine(|stage| match (stage.release(), stage.era) {
        (Some(_), 4) => BareResult::Right("this driver lists no other process, and a made-up GPU has no sessions"),
        _ => once(stage, BareResult::Wrong("saw")),
    }),
    story!(scene racing_supervisor_shows_bare_drivers_rows_only, [3];
        "The same races while calls are passed on, after which the kernel reads the argument again: the caller sees \
        only own PIDs and what the bare driver shows it anyway.")
    .notify("the module's argument is a copy that no caller can change")
    .right("it is the bare driver that the story compares with"),
    story!(scene malformed_requests_get_drivers_own_status, [5];
        "52 senseless requests, 64-bit and 32-bit, with wild addresses, counts, sizes, flags and objects: return and \
        status are as without the engine, and the kernel logs nothing.")
    .right("these are the driver's own answers"),
    story!(scene samples_beyond_the_usual_hundred_are_translated, [1, 3];
        "The old samples control with room for 1, 101 and 300 samples has own PIDs only, in every sample.")
    .real(Real::Sizes),
    story!(scene encoder_session_count_is_own_only, [1, 3];
        "Asked for the count alone, both encoder controls count own sessions. With room for fewer than all sessions \
        (era 0), own sessions come first.")
    .real(Real::Engines)
    .wrong("sessions"),
];

fn foreign_pid_has_no_answer(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    for pid in scene.host_pids() {
        let memory = scene.a.query(&["pidinfo", &pid.to_string()])?.one("mem")?;
        check!(memory == 0, "the container gets {memory} bytes of process {pid} outside");
    }
    for pid in [scene.foreign.host_pid, scene.other.host_pid] {
        let answer = scene.a.query(&["acct-info", &pid.to_string()])?;
        check!(answer.status != 0, "the container gets the record of process {pid} outside: {}", answer.text);
    }
    Ok(())
}

fn own_pid_lookup_returns_own_figures(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let holders = [(scene.first.view_pid, 80), (scene.second.view_pid, 43)];
    for (pid, mib) in holders {
        let answer = scene.a.query(&["pidinfo", &pid.to_string()])?;
        let (back, memory) = (answer.one("pid")?, answer.one("mem")? >> 20);
        check!(
            back == u64::from(pid) && memory == mib,
            "of process {pid} with {mib} MiB the container gets {memory} MiB of {back}"
        );
    }
    check_pids("accounting", &scene.a.query(&["acct-pids"])?.pids(), &scene.own())?;
    for pid in scene.own() {
        let answer = scene.a.query(&["acct-info", &pid.to_string()])?;
        let back = answer.rows.first().and_then(|row| row.get("pid").cloned()).unwrap_or_default();
        check!(back == pid.to_string(), "accounting of process {pid} comes back as {}", answer.text.trim());
    }
    Ok(())
}

fn every_way_to_ask_is_translated(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let ways =
        ["", "--xfer", "--type 41", "--type 1", "--dir 0", "--dir 1", "--dir 2", "--flags 8", "--flags fffffff8"];
    for way in ways.into_iter().chain(["--xfer --dir 0 --type 7", "--on-thread"]) {
        all_right(scene, "nvctl", way)?;
    }
    Ok(())
}

fn second_thread_is_answered_right(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    all_right(scene, "nvctl", "--on-thread")
}

fn a_32_bit_caller_is_answered_right(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    all_right(scene, "nvctl32", "")?;
    all_right(scene, "nvctl32", "--xfer")?;
    // The old control's samples come from the firmware, which a made-up GPU lacks.
    if stage.release().is_none() {
        let samples = query(&scene.a, "nvctl32", &["gpumon1"])?;
        check_pids("the samples' buffer", &samples.distinct_pids(), &scene.own())?;
    }
    let old = scene.a.hold_by_script("exec gpu-hold32 --mem 32")?;
    check_list(&scene.a, "the list", &sorted([scene.first.view_pid, scene.second.view_pid, old.view_pid]))
}

fn every_layout_is_translated(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let (own, first) = (scene.own(), scene.first.view_pid);
    for size in ["47216", "34000", "50704", "55888"] {
        samples(scene, &["--size", size, "gpumon"])?;
    }
    samples(scene, &["gpumon1"])?;
    // R418's numbers have R418's sizes only.
    check_pids("--old pids", &scene.a.query(&["--old", "pids"])?.pids(), &own)?;
    for look_up in ["--size 8008", "--size 9608", "--size 14408", "--old --size 8008"] {
        let pid = first.to_string();
        let words = look_up.split(' ').chain(["pidinfo", pid.as_str()]).collect::<Vec<_>>();
        let memory = scene.a.query(&words)?.one("mem")? >> 20;
        check!(memory == 80, "{look_up} shows {memory} MiB of process {first}, it holds 80");
    }
    for sessions in ["enc1", "enc2"] {
        check_pids(sessions, &scene.a.query(&[sessions])?.pids(), &[first, first])?;
    }
    check_pids("fbc", &scene.a.query(&["fbc"])?.pids(), &[first])?;
    check_pids("acct-pids", &scene.a.query(&["acct-pids"])?.pids(), &own)
}

fn profiler_reservation_names_own_process_only(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let named = |container: &Container| container.query(&["hwpm"])?.one("pid");
    {
        let holder = Holder::on_host(&["--hwpm"])?;
        let seen = named(&scene.a)?;
        check!(seen == 0, "the reservation names {seen}, it is process {} outside", holder.host_pid);
    }
    let holder = scene.a.hold(&["--hwpm"])?;
    let seen = named(&scene.a)?;
    check!(seen == u64::from(holder.view_pid), "the reservation names {seen}, it is process {}", holder.view_pid);
    let seen = named(&scene.b)?;
    check!(seen == 0, "the reservation names {seen} in another container");
    Ok(())
}

fn error_report_shows_callers_inner_pid(stage: &Stage) -> Result<(), Fault> {
    let text = stage.scene()?.a.script("echo $$; exec nvctl --error rc")?;
    let (own, answer) = text.split_once('\n').unwrap_or((&text, ""));
    let named = nvctl::read(answer)?.one("pid")?;
    check!(own.parse() == Ok(named), "the report names {named}, its caller is {own}");
    Ok(())
}

fn racing_threads_never_see_a_foreign_pid(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let own = scene.own();
    let modes = if stage.engine == Engine::Notify { &READERS[..] } else { &RACES[..] };
    for (raced, mode) in races(modes) {
        let saw = race(stage, scene, raced, mode)?;
        check_no_foreign_pid(&format!("racing {raced} by {mode}, threads saw"), saw, &own)?;
    }
    Ok(())
}

fn racing_supervisor_shows_bare_drivers_rows_only(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    for (raced, mode) in races(&RACES) {
        let bare = stage.with_engine_off(|| scene.a.query(&[raced]))??.pids();
        let own = scene.own();
        let saw = race(stage, scene, raced, mode)?;
        check_no_foreign_pid(&format!("racing {raced} by {mode}, threads saw"), saw, &[own, bare].concat())?;
    }
    Ok(())
}

/// The raced controls in each mode. The driver's capture sessions are foreign in every era, its lists in the older ones.
fn races<'a>(modes: &'a [&'a str]) -> impl Iterator<Item = (&'static str, &'a str)> {
    ["pids", "fbc"].into_iter().flat_map(move |raced| modes.iter().map(move |mode| (raced, *mode)))
}

/// The numbers that appeared in a result buffer during a race.
fn race(stage: &Stage, scene: &Scene, raced: &str, mode: &str) -> Result<Vec<u32>, Fault> {
    let seconds = stage.race_seconds(0.5);
    let text = scene.a.script(&format!("nvctl --threads 3 --raced {raced} race {mode} {seconds}"))?;
    Ok(parse_race(&text, 1)?.1)
}

const READERS: [&str; 1] = ["read"];

/// The part that the racing thread rewrites while calls run; `read` has readers only.
const RACES: [&str; 6] = ["read", "cmd", "ptr", "size", "all", "xfer"];

fn malformed_requests_get_drivers_own_status(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    same_with_engine_off(stage, || nonsense(scene)).map(drop)
}

fn samples_beyond_the_usual_hundred_are_translated(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    for room in ["1", "101", "300"] {
        let shown = scene.a.query(&["--room", room, "gpumon1"])?;
        check!(shown.status == 0, "the driver refuses {room} samples: {}", shown.text);
        check_no_foreign_pid(&format!("a buffer of {room} samples shows"), shown.distinct_pids(), &scene.own())?;
    }
    let shown = scene.a.query(&["--room", "300", "gpumon1"])?;
    check_pids("a buffer of 300 samples", &shown.distinct_pids(), &scene.own())
}

fn encoder_session_count_is_own_only(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    for control in ["enc1", "enc2"] {
        for (container, own) in [(&scene.a, 2), (&scene.b, 1)] {
            let answer = container.query(&["--room", "0", control])?;
            let count = answer.text.lines().next().and_then(|line| line.rsplit_once("count=")?.1.parse::<u32>().ok());
            check!(count == Some(own), "{control} counts {count:?} sessions, {} has {own}", container.name());
        }
        if stage.era > 0 {
            // Later eras refuse any room but the whole table's.
            continue;
        }
        let shown = scene.b.query(&["--room", "1", control])?.pids();
        check_pids(&format!("{control} with room for one: sessions"), &shown, &[scene.other.view_pid])?;
    }
    Ok(())
}

/// Invalid requests: unmapped and kernel addresses, counts and sizes beyond every table, flags and objects that do not exist.
/// Each of the values stands for `{}`.
const NONSENSE_REQUESTS: [(&str, &[&str]); 19] = [
    (
        "--params {} pids",
        &["0", "1", "ffff888000000000", "7ffffffff000", "8000000000000000", "ffffffffffffffff", "0 --xfer"],
    ),
    ("--params {} pidinfo 1", &["0", "ffffffff81000000"]),
    ("--params {} gpumon", &["0", "ffffc90000000000"]),
    ("--params 0 {}", &["acct-pids", "acct-info 1", "enc1", "enc2", "fbc", "rc"]),
    ("--size {} pids", &["3808", "3816", "1", "4294967295", "2147483648"]),
    ("--size 4294967295 {}", &["--xfer acct-pids", "--params ffff888000000000 fbc"]),
    ("--flags {} pids", &["1", "2", "3", "4", "ffffffff"]),
    ("--flags {} gpumon", &["4"]),
    ("--class {} pids", &["0", "ffffffff"]),
    ("raw 2080018d 3812 {}", &["ffffffff"]),
    ("raw 2080018e 14408 {}", &["c9000000", "ffffffff", "c8000000"]),
    ("raw 2080018e {}", &["8008 c80000000000000001000000", "14412 01000000"]),
    ("raw 20802096 55888 {}", &["0200000000000000", "02000000ffffffff"]),
    (
        "raw 20802083 24 {}",
        &["0200000060b80000000000000000000000000000000000ff", "02000000ffffffff00000000000000000010000000000000"],
    ),
    (
        "raw 2080016e 16 {}",
        &[
            "00020000000000000000000000000000",
            "000200000000000000000000000088ff",
            "01020000000000000010000000000000",
            "ffffffff000000000010000000000000",
        ],
    ),
    ("raw 208001af 16388 {}", &["ffffffff"]),
    ("raw b03 48 {}", &["0001000000000000", "00010000ffffffff"]),
    ("raw b04 16012 {}", &["ffffffff"]),
    ("--object {} raw 2080018d 3812", &["12345678", "client"]),
];

fn nonsense(scene: &Scene) -> Result<String, Fault> {
    let of =
        |(request, values): &(&str, &[&str])| values.iter().map(|one| request.replace("{}", one)).collect::<Vec<_>>();
    let requests: Vec<String> = NONSENSE_REQUESTS.iter().flat_map(of).collect();
    let mut answers = Vec::new();
    for program in ["nvctl", "nvctl32"] {
        let each = |request: &String| format!("{program} {request} 2>&1 | head -n 1");
        let text = scene.a.script(&requests.iter().map(each).collect::<Vec<_>>().join("\n"))?;
        for (request, line) in requests.iter().zip(text.lines()) {
            // The count is not part of a refusal.
            let line = line.split(" count=").next().unwrap_or_default();
            check!(line.starts_with("ret="), "{program} {request}: {line}");
            answers.push(format!("{program} {request}: {line}"));
        }
    }
    check!(answers.len() == 2 * 52, "only {} requests were answered", answers.len());
    Ok(answers.join("\n"))
}

/// Checks list and memory by one form of request.
fn all_right(scene: &Scene, program: &str, way: &str) -> Result<(), Fault> {
    let way: Vec<&str> = way.split_whitespace().collect();
    let what = format!("{program} {}", way.join(" "));
    check_pids(&what, &query(&scene.a, program, &[&way[..], &["pids"]].concat())?.pids(), &scene.own())?;
    let (first, second) = (scene.first.view_pid.to_string(), scene.second.view_pid.to_string());
    let answer = query(&scene.a, program, &[&way[..], &["pidinfo", first.as_str(), second.as_str()]].concat())?;
    let memory: Vec<&str> = answer.rows.iter().filter_map(|row| row.get("mem").map(String::as_str)).collect();
    check!(memory == ["83886080", "45088768"], "{what} shows memory {memory:?}");
    Ok(())
}

/// Checks the samples of one layout: exactly the own processes, and no kernel address.
pub(super) fn samples(scene: &Scene, arguments: &[&str]) -> Result<(), Fault> {
    let answer = scene.a.query(arguments)?;
    let what = arguments.join(" ");
    check_pids(&what, &answer.distinct_pids(), &scene.own())?;
    let address = answer.rows.iter().filter_map(|row| row.get("ptr")).find(|address| *address != "0");
    check!(address.is_none(), "{what} shows the kernel address {address:?}");
    Ok(())
}

fn query(container: &Container, program: &str, arguments: &[&str]) -> anyhow::Result<Answer> {
    nvctl::query(&container.enter_command(), program, arguments)
}
