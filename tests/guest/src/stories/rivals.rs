//! Other tools that redirected the driver's functions first: the module redirects nothing.

use std::fs;

use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(scene refused_instance_translates_nothing, [5, 7];
        "Beside a live patch one instance is refused and another comes under callers of a container: every answer is \
        the bare driver's.")
    .module("its redirects")
    .eras(&[3, 4], "only later drivers have the function that is looked at last")
    .right("there is nothing that redirects"),
    story!(scene function_patched_past_ftrace_is_refused, [5, 7];
        "Another tool has put a jump over the instruction of a function that ftrace patches: the module names the \
        function and redirects nothing, and ftrace goes on working. (x86-64, kernels whose ftrace makes no jumps \
        itself.)")
    .module("its redirects")
    .kernel_story()
    .only(can_detect_jump, "here a jump can be ftrace's own, or there is no tool that makes one")
    .right("there is nothing that redirects"),
];

fn refused_instance_translates_nothing(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    stage.unload_engine()?;
    let bare = pid_words(&scene.a.query(&["pids"])?.pids());
    run_ok(&["insmod", "/sim/rival.ko", "function=os_is_init_ns"])?;
    stage.load_engine()?;
    let state = stage.state_value("state");
    check!(state == "refused", "beside a live patch the module is {state}");
    let callers = Callers::start(&scene.a, 2, &format!("nvctl spin 1 {bare}"))?;
    let tried = run(&["insmod", "/mpu/mpu_next.ko"]).and_then(|_| unload_if_loaded("mpu_next"));
    let text = callers.stop()?;
    tried?;
    check_answers("nothing is redirected", &text, 0)?;
    stage.restore()?;
    check_own_list(scene, "once the other has gone, the list")
}

fn function_patched_past_ftrace_is_refused(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    stage.unload_engine()?;
    run_ok(&["insmod", "/sim/rival.ko", "jump=1"])?;
    let loaded = stage.load_engine();
    let state = ["state", "refused", "hooks"].map(|key| stage.state_value(key));
    let lives = set_ftrace(false).and_then(|()| set_ftrace(true));
    stage.restore()?;
    loaded?;
    let expected = ["refused", "os_memcpy_to_user:95", ""];
    check!(state == expected, "with a jump in a function the module says {state:?}, not {expected:?}");
    check!(lives.is_ok(), "ftrace has switched itself off: {lives:?}");
    check_own_list(scene, "once the other has gone, the list")
}

/// Whether such a jump differs from ftrace's own: in newer kernels ftrace jumps into BPF.
fn can_detect_jump(_: &Stage) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    cfg!(target_arch = "x86_64") && version < (6, 19)
}
