//! Callers that let the driver read something else than MPU, and controls that only look as if they named processes.

use crate::right;
use crate::stage::Stage;
use crate::stories::common::{exactly, once};
use crate::story::{Engines, Fault, Story, Without};

/// Lengths that controls with process ids have; here they are the caller's choice, for a buffer of its own.
const LENGTHS: [u32; 12] = [2436, 3812, 8008, 9608, 13_316, 14_408, 16_012, 16_388, 34_000, 47_216, 50_704, 55_888];

/// Buffers of a control that names no process come back as the driver left them, whatever their length and their words are.
pub const OTHER_CONTROLS: Story = Story {
    name: "other_controls_buffers_stay_untouched",
    engines: Engines::Every,
    without: |stage| once(stage, Without::Right("the bare driver's bytes are what the story compares with")),
    run: |stage| {
        let scene = stage.scene()?;
        for seed in [1, 7] {
            let lengths = LENGTHS.map(|length| length.to_string()).join(" ");
            let text =
                scene.a.script(&format!("for n in {lengths}; do echo length $n; nvctl debug $n {seed}; done; true"))?;
            for told in text.split("length ").skip(1) {
                let length = told.lines().next().unwrap_or_default();
                right!(
                    told.contains("changed 0 "),
                    "of a buffer of {length} bytes the words came back changed: {told}"
                );
            }
            right!(text.matches("changed 0 ").count() == LENGTHS.len(), "only so much came back: {text}");
        }
        // What a container of its own processes asks in between is still translated.
        exactly("the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())
    },
};

/// Part of the argument lies on a missing page, and the rest is exchanged before the page is given: nobody is shown.
pub const FAULT: Story = Story {
    name: "a_fault_in_the_argument_shows_nobody",
    engines: Engines::Module("a call that the supervisor passes on is read again by the kernel, as it always was"),
    without: |stage| once(stage, Without::Wrong("came back")),
    run: |stage| attacked(stage, &["fault", "--xfer fault", "wrapping"], 3 * 3 * ROWS),
};

/// The argument is exchanged all the time, on every control, the small ones as well: nobody is shown.
pub const RACE_EVERY_ROW: Story = Story {
    name: "races_on_every_control_show_nobody",
    engines: Engines::Module("a call that the supervisor passes on is read again by the kernel, as it always was"),
    without: |stage| once(stage, Without::Wrong("came back")),
    run: |stage| {
        let [plain, wrapped] = [0.3, 0.2].map(|most| stage.race_seconds(most));
        attacked(stage, &[&format!("--seconds {plain} race"), &format!("--seconds {wrapped} --xfer race")], 2 * ROWS)
    },
};

/// Controls, layouts and ways to point that nvattack tries.
const ROWS: usize = 18;

fn attacked(stage: &Stage, attacks: &[&str], tries: usize) -> Result<(), Fault> {
    let scene = stage.scene()?;
    // Somebody has the profiler, too.
    let profiling = stage.hold(&["--hwpm"])?;
    let foreign: Vec<String> =
        scene.everybody().into_iter().chain([profiling.outside]).map(|pid| pid.to_string()).collect();
    let each = |attack: &&str| format!("nvattack {attack} {}", foreign.join(" "));
    let script = attacks.iter().map(each).collect::<Vec<_>>().join("; ");
    let text = scene.a.script(&format!("{script}; true"))?;
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("row ")).collect();
    let shown: Vec<&str> = rows.iter().copied().filter(|row| !row.contains(" found 0")).collect();
    right!(
        shown.is_empty(),
        "somebody else's number came back in {} of {tries} tries: {}",
        shown.len(),
        shown.join(", ")
    );
    right!(rows.len() == tries, "only {} of {tries} tries were made: {text}", rows.len());
    let accepted = rows.iter().filter(|row| !row.contains(" accepted 0 ")).count();
    right!(accepted * 2 > tries, "the driver answered {accepted} of {tries} tries: {text}");
    exactly("the list", &scene.a.ask(&["pids"])?.pids(), &scene.own())
}
