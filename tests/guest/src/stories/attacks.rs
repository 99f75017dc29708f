//! Callers that show the driver other bytes than MPU, and controls that only seem to have PIDs.

use std::collections::BTreeSet;

use crate::stories::common::*;

/// The rows that nvattack tries, and those that only nvtaint has.
const ROWS: &str = include_str!("../../../../sim/nvrows.h");
const MORE_ROWS: &str = include_str!("../../../../sim/nvtaint.c");

/// The sizes of rows in C, `{ "NAME", NUMBER, SIZE, …`, one a line.
fn sizes(rows: &str) -> impl Iterator<Item = u32> {
    let rows = rows.lines().filter_map(|line| line.strip_prefix("\t{ \""));
    rows.filter_map(|row| row.split(", ").nth(2)?.parse().ok())
}

pub const STORIES: &[Story] = &[
    story!(scene other_controls_buffers_stay_untouched, [5];
        "The debugger's READ and WRITE memory controls, with the lengths that controls with PIDs have and \
        with words that look like PIDs: what was written is read back.")
    .real(Real::Engines)
    .right("the bare driver's bytes are what the story compares with"),
    story!(argument_page_fault_shows_no_foreign_pid, [3];
        "Part of the argument, or of its XFER wrapping, lies on a missing page (userfaultfd), and number, size and \
        pointer are exchanged before the page is given. This is done for every control and layout, and for buffers \
        that lie on their own parameters, behind three claims.")
    .module("a call that the supervisor passes on is read again by the kernel, as it always was")
    .real(Real::Sizes)
    .wrong("came back"),
    story!(argument_exchanged_once_probe_stands_shows_no_foreign_pid, [3];
        "A container's first call waits at a missing page until the probe in rm_ioctl is armed. Then its argument is \
        exchanged.")
    .module("its probe")
    .kernel_story()
    .real(Real::Engines)
    .wrong("came back"),
    story!(control_races_show_no_foreign_pid, [3];
        "The argument is exchanged all the time, plainly and wrapped, on every control and layout, the small ones as \
        well; every byte that comes back is searched.")
    .module("a call that the supervisor passes on is read again by the kernel, as it always was")
    .real(Real::Sizes)
    .wrong("came back"),
];

fn other_controls_buffers_stay_untouched(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    for seed in [1, 7] {
        let lengths = sizes(ROWS).chain(sizes(MORE_ROWS)).collect::<BTreeSet<_>>();
        let listed = lengths.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let text =
            scene.a.script(&format!("for n in {listed}; do echo length $n; nvctl debug $n {seed}; done; true"))?;
        for part in text.split("length ").skip(1) {
            let length = part.lines().next().unwrap_or_default();
            check!(part.contains("changed 0 "), "of a buffer of {length} bytes the words came back changed: {part}");
        }
        let unchanged = text.matches("changed 0 ").count();
        check!(unchanged > 0 && unchanged == lengths.len(), "only so much came back: {text}");
    }
    // The container's own queries are still translated.
    check_own_list(scene, "the list")
}

fn argument_page_fault_shows_no_foreign_pid(stage: &Stage) -> Result<(), Fault> {
    attacked(stage, &["fault", "--xfer fault", "wrapping"], 3)
}

fn argument_exchanged_once_probe_stands_shows_no_foreign_pid(stage: &Stage) -> Result<(), Fault> {
    let scene = stage.scene()?;
    // A freshly loaded module has no probe until a container calls.
    if stage.has_module() {
        stage.unload_engine()?;
    }
    let foreign: Vec<String> = scene.host_pids().iter().map(u32::to_string).collect();
    let attack = format!(
        "rm -f /tmp/lines /tmp/out; mkfifo /tmp/lines; nvattack --late fault {} 0<>/tmp/lines >/tmp/out 2>&1; cat /tmp/out",
        foreign.join(" ")
    );
    let container = &scene.a;
    // Opened for reading and writing: otherwise `echo` would wait for a reader, also once nvattack has ended.
    let line = || container.script("echo 1<>/tmp/lines");
    let text = std::thread::scope(|scope| {
        let attacking = scope.spawn(|| container.script(&attack));
        let attacked = (|| {
            wait_until("nvattack is not ready", || {
                Ok(container.script("cat /tmp/out 2>/dev/null || true")?.contains("ready"))
            })?;
            if stage.has_module() {
                stage.load_engine()?;
            }
            line()?;
            if stage.has_module() {
                wait_until("the probe is not armed", || Ok(stage.state_value("hooks").contains("rm_ioctl")))?;
            }
            Ok::<_, anyhow::Error>(())
        })();
        // Also after a failure: nvattack ends after two lines.
        let ended = line().and_then(|_| line());
        let text = join_result(attacking.join())?;
        attacked.and(ended).and(text)
    })?;
    let row = text.lines().find(|line| line.starts_with("row ")).unwrap_or_default();
    check!(row.ends_with(" accepted 1 found 0"), "a foreign number came back, or none was asked for: {text}");
    check_own_list(&scene, "the list")
}

fn control_races_show_no_foreign_pid(stage: &Stage) -> Result<(), Fault> {
    let [plain, wrapped] = [0.3, 0.2].map(|most| stage.race_seconds(most));
    attacked(stage, &[&format!("--seconds {plain} race"), &format!("--seconds {wrapped} --xfer race")], 1)
}

/// Runs attacks of nvattack. Each attack tries each row with so many claims.
fn attacked(stage: &Stage, attacks: &[&str], claims: usize) -> Result<(), Fault> {
    let tries = attacks.len() * claims * sizes(ROWS).count();
    let scene = stage.scene()?;
    if stage.has_module() {
        wait_until_probe_armed(stage, &scene)?;
    }
    // Another process holds the profiler, too.
    let profiling = Holder::on_host(&["--hwpm"])?;
    let foreign: Vec<String> =
        scene.host_pids().into_iter().chain([profiling.host_pid]).map(|pid| pid.to_string()).collect();
    let each = |attack: &&str| format!("nvattack {attack} {}", foreign.join(" "));
    let script = attacks.iter().map(each).collect::<Vec<_>>().join("; ");
    let text = scene.a.script(&format!("{script}; true"))?;
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("row ")).collect();
    let shown: Vec<&str> = rows.iter().copied().filter(|row| !row.contains(" found 0")).collect();
    check!(shown.is_empty(), "a foreign number came back in {} of {tries} tries: {}", shown.len(), shown.join(", "));
    check!(rows.len() == tries, "only {} of {tries} tries were made: {text}", rows.len());
    let accepted = rows.iter().filter(|row| !row.contains(" accepted 0 ")).count();
    check!(accepted * 2 > tries, "the driver answered {accepted} of {tries} tries: {text}");
    check_own_list(&scene, "the list")
}
