//! A driver that oopses while it serves a container.

use crate::stories::common::*;

/// Answers to later callers, none of which may have a foreign PID.
const ANSWERS: usize = 200;

pub const STORIES: &[Story] = &[story!(scene module_survives_driver_oops, [7];
        "The driver dies inside a container's call: the state can be read, counts an orphan and no caller inside, later \
        callers are answered right, the module can be unloaded.")
.module("the supervisor is not in the kernel")
.kernel_story()
.real(Real::Knob)
.right("there is no engine to take along")];

fn module_survives_driver_oops(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let orphans = || stage.engine_state("orphans").and_then(|count| count.parse::<u32>().ok());
    check_own_list(scene, "the list")?;
    let before = orphans().unwrap_or(0);
    // A look-up, because the module stores its PIDs during the call.
    stage.expect_oops()?;
    stage.set_driver("oops", "0x2080018e")?;
    let text = scene.a.script("nvctl pidinfo 1; echo ended $?")?;
    check!(["ended 137", "ended 139"].iter().any(|end| text.contains(end)), "the caller lives on: {text}");
    for _ in 0..50 {
        let state = stage.engine_state("state");
        check!(state.as_deref() == Some("armed"), "after an oops the module is not armed but {state:?}");
    }
    let after = orphans();
    check!(after == Some(before + 1), "a caller died in the driver, and {after:?} count as orphans, {before} before");
    let inside = stage.state_value("inside");
    check!(inside == "0", "a caller died in the driver, and {inside} count as inside");
    // New tasks get the memory of dead ones.
    let callers = Callers::start(&scene.a, 4, "nvctl pids")?;
    let answers = || anyhow::Ok(scene.a.script("cat /tmp/calls.*")?.matches("ret=0 ").count());
    wait_until("callers that come after a dead one are not answered", || Ok(answers()? >= ANSWERS))?;
    let text = callers.stop()?;
    let own = scene.own();
    let foreign =
        |line: &&str| line.strip_prefix("pid ").is_some_and(|pid| !own.iter().any(|own| own.to_string() == pid));
    check!(!text.lines().any(|line| foreign(&line)), "a caller that came after a dead one saw {text}");
    // A dead caller that counted as inside would keep the module from retiring.
    stage.unload_engine()?;
    stage.load_engine()?;
    check_list(&scene.a, "the list", &own)
}
