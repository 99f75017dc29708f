//! The `mpu` command on a real kernel: up, down, status, probe, and its refusals, with the exit codes of docs/exit-codes.md.

use std::os::unix::process::CommandExt;

use crate::command::run_command;
use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(probe_tells_right_from_wrong, [2];
        "`mpu probe` finds the bare driver's faults, and none with the engine.")
    .wrong("the probe finds"),
    story!(scene up_status_down_control_the_module, [5, 7];
        "`mpu up`, `status` and `down` by the real command: state, counters, exit codes, second calls.")
    .module("loading and unloading")
    .kernel_story()
    .right("the story loads the engine itself"),
];

pub const REFUSALS: &[Story] = &[story!(refused_command_changes_nothing, [5, 7];
        "Not root, no headers, no driver, no module: the exit code is the documented one, a reason is given, and \
        nothing is loaded.")
.module("loading and unloading")
.kernel_story()
.right("the story loads the engine itself")];

fn probe_tells_right_from_wrong(_: &Stage) -> Result<(), Fault> {
    let done = run(&["mpu", "probe", "--json"])?;
    let report = valid_answer(&done)?;
    check!(report["right"] == true, "the probe finds {}", report["faults"]);
    check!(done.status == 0, "the probe is content and ends with {}", done.status);
    let text = run(&["mpu", "probe"])?.out;
    check!(text.contains("is seen right"), "the probe says {text}");
    Ok(())
}

fn up_status_down_control_the_module(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    stage.unload_engine()?;
    let status = run(&["mpu", "status", "--json"])?;
    check!(valid_answer(&status)?["up"] == false, "nothing is loaded, status says {}", status.out);
    let up = run(&["mpu", "up", "--module", "/mpu/mpu.ko", "--json"])?;
    check!(up.status == 0, "up ends with {}: {} {}", up.status, up.out, up.err);
    // No container has called since the module was loaded: the translation is that of `up`'s own call.
    check!(valid_answer(&up)?["module_state"]["state"] == "armed", "up says {}", up.out);
    check!(valid_answer(&up)?["proof"]["result"] == "seen", "up says {}", up.out);
    check!(stage.engine_state("state").as_deref() == Some("armed"), "after up the module is not armed");
    scene.a.query(&["pids"])?;
    let status = valid_answer(&run(&["mpu", "status", "--json"])?)?;
    let counted = stage.counter("translated.GPU_GET_PIDS");
    check!(status["up"] == true && status["ok"] == true, "armed, status says {status}");
    check!(
        status["translated"]["GPU_GET_PIDS"].as_u64() == counted,
        "{counted:?} calls were counted, status says {status}"
    );
    check!(!status["since"].is_null(), "status does not know since when: {status}");
    let text = run(&["mpu", "status"])?.out;
    check!(text.contains("armed") && text.contains("GPU_GET_PIDS"), "armed, status says {text}");
    check_exit("a second up", &run(&["mpu", "up", "--module", "/mpu/mpu.ko"])?, 0, "nothing was changed")?;
    for expected in ["MPU is down", "nothing was changed"] {
        check_exit("down", &run(&["mpu", "down"])?, 0, expected)?;
        check!(stage.engine_state("state").is_none(), "after down the module is loaded");
    }
    Ok(())
}

fn refused_command_changes_nothing(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    stage.unload_engine()?;
    let up = ["mpu", "up", "--module", "/mpu/mpu.ko"];
    refused(stage, "not root", &as_unprivileged(&up)?, 4)?;
    refused(stage, "no such command", &run(&["mpu", "sideways"])?, 2)?;
    refused(stage, "no module at that path", &run(&["mpu", "up", "--module", "/nothing.ko"])?, 3)?;
    refused(stage, "no kernel headers", &run(&["mpu", "up", "--engine", "module"])?, 3)?;
    refused(stage, "not a module", &run(&["mpu", "up", "--module", "/bin/busybox"])?, 3)?;
    stage.unload_driver()?;
    refused(stage, "no driver to probe", &run(&["mpu", "probe"])?, 3)?;
    stage.load_driver(&[])?;
    stage.load_engine()?;
    let down = as_unprivileged(&["mpu", "down"])?;
    check!(down.status == 4, "not root: down ends with {}: {} {}", down.status, down.out, down.err);
    check!(stage.engine_state("state").as_deref() == Some("placed"), "not root, and down unloaded the module");
    Ok(())
}

fn refused(stage: &Stage, why: &str, done: &Output, code: i32) -> Result<(), Fault> {
    check!(done.status == code, "{why}: ended with {}, not {code}: {} {}", done.status, done.out, done.err.trim());
    check!(!done.err.trim().is_empty(), "{why}: no word on standard error");
    check!(stage.engine_state("state").is_none(), "{why}: and yet the module is loaded");
    Ok(())
}

pub(super) fn as_unprivileged(words: &[&str]) -> Result<Output> {
    run_command(command(words).uid(65534).gid(65534))
}
