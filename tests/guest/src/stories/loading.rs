//! Loads and unloads driver and engine in any order while containers call.

use crate::stories::common::*;

pub const UNDER_LOAD: &[Story] = &[
    story!(scene engine_reload_under_load_mixes_no_answer, [7];
        "The engine is unloaded and loaded under four callers that are killed at any point: each answer is exactly \
        right or exactly the bare driver's. More often with `x test --full`.")
    .module("loading and unloading")
    .kernel_story()
    .right("there is no engine to reload"),
    story!(scene engine_swap_under_load_loses_no_answer, [7];
        "One instance of the module takes over from another under four callers that are killed at any point, there \
        and back: every answer is right. More often with `x test --full`.")
    .module("two instances of the module")
    .kernel_story(),
    story!(hand_over_during_driver_unload_is_clean, [7];
        "Another instance comes while the driver is being unloaded: the hand-over does not begin, no redirect stays \
        registered, and with the driver back the list is right.")
    .module("two instances of the module")
    .kernel_story()
    .real(Real::Knob)
    .right("there is no engine to hand over"),
    story!(module_and_driver_go_at_once, [7];
        "Module and driver are unloaded at the same time, five times: both go, both come again, and the kernel logs \
        nothing.")
    .module("its own going")
    .real(Real::Knob)
    .kernel_story()
    .right("there is no module to go"),
];

pub const STORIES: &[Story] = &[
    story!(either_order_of_loading_is_right, [7];
        "Engine before driver: it waits, then arms. Engine after driver and clients: also right.")
    .module("the module's own waiting for the driver"),
    story!(driver_reload_under_load_is_followed, [7];
        "The driver is reloaded twice under callers while the engine stays, and follows."),
    story!(rows_stay_on_their_gpu_and_instance, [1];
        "Two GPUs, one with MIG ids: each row on its own.")
    .real(Real::Knob),
];

fn either_order_of_loading_is_right(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    stage.unload_all()?;
    if stage.has_engine() {
        stage.load_engine()?;
        state_is(stage, "waiting")?;
        let hooks = stage.state_value("hooks");
        check!(hooks.is_empty(), "the engine waits and has redirected {hooks}");
    }
    stage.load_driver(&[])?;
    if stage.has_engine() {
        state_is(stage, "placed")?;
    }
    let container = stage.container("order")?;
    let holder = container.hold_by_script("exec gpu-hold --mem 40 --clients 2")?;
    let right_list = || check_list(&container, "the list", &[holder.view_pid]);
    right_list()?;
    if stage.has_engine() {
        stage.reload_engine()?;
        state_is(stage, "placed")?;
        right_list()?;
        state_is(stage, "armed")?;
    }
    Ok(())
}

fn driver_reload_under_load_is_followed(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    let container = stage.container("reload")?;
    // A call between the load of the real driver and its overrides would start the made-up GPU.
    let load = if stage.release().is_some() { 0 } else { 2 };
    let callers = Callers::start(&container, load, "nvctl pids")?;
    for _ in 0..2 {
        stage.unload_driver_in_use()?;
        if stage.has_module() {
            state_is(stage, "waiting")?;
        }
        std::thread::sleep(Duration::from_millis(50));
        stage.load_driver(&[])?;
        if stage.has_module() {
            // A caller may have been answered already.
            let state = stage.state_value("state");
            check!(["placed", "armed"].contains(&state.as_str()), "the driver is back, and the engine is {state}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let text = callers.stop()?;
    check!(load == 0 || text.contains("ret=0 status=0x0 count=0"), "no caller was answered: {text}");
    check!(!text.contains("pid "), "callers saw processes where there is none: {text}");
    let holder = container.hold_by_script("exec gpu-hold --mem 40 --clients 2")?;
    check_list(&container, "the list", &[holder.view_pid])
}

fn engine_reload_under_load_mixes_no_answer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let own = pid_words(&scene.own());
    stage.unload_engine()?;
    let bare = scene.a.query(&["pids"]);
    stage.load_engine()?;
    let bare = pid_words(&bare?.pids());
    check!(bare != own, "the bare driver shows {bare}, which is right");
    let callers = Callers::start_with_killer(&scene.a, 4, &format!("nvctl spin 1 {bare} or {own}"))?;
    let reloaded = callers.repeat_until_killed(stage.reloads, || {
        stage.unload_engine()?;
        std::thread::sleep(Duration::from_millis(20));
        stage.load_engine()?;
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    });
    let text = callers.stop()?;
    reloaded?;
    check_both_lists_answered(&text)?;
    state_is(stage, "armed")?;
    check_no_caller_inside(stage)?;
    check_own_list(scene, "the list")
}

fn engine_swap_under_load_loses_no_answer(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let own = pid_words(&scene.own());
    check_own_list(scene, "the list")?;
    let callers = Callers::start_with_killer(&scene.a, 4, &format!("nvctl spin 1 {own}"))?;
    let swapped = callers.repeat_until_killed(stage.reloads, || {
        for (new, old) in [("mpu_next", "mpu"), ("mpu", "mpu_next")] {
            run_ok(&["insmod", &format!("/mpu/{new}.ko")]).context("the new instance does not take over")?;
            unload_module(old)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    let text = callers.stop()?;
    swapped?;
    check_answers("between two instances", &text, 100)?;
    state_is(stage, "armed")?;
    check_no_caller_inside(stage)?;
    check_own_list(scene, "the list")
}

fn hand_over_during_driver_unload_is_clean(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    // Long enough for a program to start, at the machine's current speed.
    let began = Instant::now();
    run(&["insmod", "/nothing.ko"])?;
    let stay = 3000 + 20 * began.elapsed().as_millis();
    stage.set_driver("exit_ms", &stay.to_string())?;
    let gone = std::thread::scope(|scope| {
        let unloading = scope.spawn(|| run_ok(&["rmmod", "nvidia"]));
        let begun = wait_until("the driver does not go", || Ok(is_going() || unloading.is_finished()));
        let taken_over = begun.and_then(|()| run(&["insmod", "/mpu/mpu_next.ko"]));
        // If the driver was gone before, there was nothing to take over.
        let in_time = is_going();
        unloading.join().map(|gone| (gone.is_ok(), taken_over, in_time))
    });
    let Ok((true, taken_over, in_time)) = gone else {
        return Err(Fault::Wrong("the driver cannot be unloaded".to_owned()));
    };
    let taken_over = taken_over?.status == 0;
    stage.load_driver(&[])?;
    let container = stage.container("going")?;
    let holder = container.hold_by_script("exec gpu-hold --mem 40 --clients 2")?;
    let listed = container.query(&["pids"]).map(|answer| answer.pids());
    if taken_over {
        unload_module("mpu_next")?;
    }
    stage.unload_engine()?;
    // The kernel refuses this while a permanent redirect is registered.
    let free = set_ftrace(false).is_ok();
    set_ftrace(true)?;
    stage.load_engine()?;
    check_pids("after a hand-over under a driver that went, the list", &listed?, &[holder.view_pid])?;
    check!(free, "no engine is loaded, and its redirects are still registered");
    check!(!(taken_over && in_time), "an instance took over redirects of a driver that was on its way out");
    if !in_time {
        return Err(anyhow::anyhow!("the other instance came too late to find the driver on its way out").into());
    }
    Ok(())
}

fn module_and_driver_go_at_once(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    let mut at_once = 0;
    let container = stage.container("together")?;
    // In short steps near the end, when the kernel removes the driver's probes.
    for wait_ms in [0, 50, 150, 250].into_iter().chain((300..500).step_by(20)) {
        // A container's first call arms the probe, which becomes a jump some jiffies later.
        container.query(&["pids"])?;
        std::thread::sleep(Duration::from_millis(100));
        stage.set_driver("exit_ms", "500")?;
        let driver = std::thread::scope(|scope| {
            let unloading = scope.spawn(|| run_ok(&["rmmod", "nvidia"]));
            // At the same time, or `wait_ms` after the driver began to unload.
            // On a busy machine, the driver can be gone before it is seen to go.
            let goes = || Ok(wait_ms == 0 || is_going() || unloading.is_finished());
            let begun = wait_until("the driver does not go", goes);
            std::thread::sleep(Duration::from_millis(wait_ms));
            at_once += u32::from(is_going());
            let module = begun.and_then(|()| stage.unload_engine());
            unloading.join().map(|driver| (driver, module))
        });
        let Ok((driver, module)) = driver else { return Err(anyhow::anyhow!("a thread of the rig died").into()) };
        driver?;
        module?;
        stage.load_driver(&[])?;
        stage.load_engine()?;
        state_is(stage, "placed")?;
    }
    check!(at_once > 1, "the driver was on its way out {at_once} times when the module went");
    let holder = container.hold_by_script("exec gpu-hold --mem 40 --clients 2")?;
    check_list(&container, "the list", &[holder.view_pid])
}

fn is_going() -> bool {
    std::fs::read_to_string("/sys/module/nvidia/initstate").is_ok_and(|state| state.trim() == "going")
}

fn rows_stay_on_their_gpu_and_instance(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    stage.unload_all()?;
    stage.load_driver(&["gpus=2"])?;
    if stage.has_engine() {
        stage.load_engine()?;
    }
    let _foreign = Holder::on_host(&["--gpu", "1", "--mem", "300"])?;
    let container = stage.container("gpus")?;
    let zero = container.hold_by_script("exec gpu-hold --gpu 0 --mem 11 --clients 2")?;
    let one = container.hold_by_script("exec gpu-hold --gpu 1 --mem 12 --clients 2 --mig 3:1")?;
    for (gpu, holder, mib) in [("0", &zero, 22), ("1", &one, 24)] {
        check_pids(&format!("GPU {gpu}"), &container.query(&["--gpu", gpu, "pids"])?.pids(), &[holder.view_pid])?;
        let answer = container.query(&["--gpu", gpu, "pidinfo", &holder.view_pid.to_string()])?;
        let memory = answer.one("mem")? >> 20;
        check!(memory == mib, "GPU {gpu} shows {memory} MiB of process {}, it holds {mib}", holder.view_pid);
        let instances = if gpu == "1" { " gi 3 ci 1" } else { " gi -1 ci -1" };
        check!(answer.text.contains(instances), "GPU {gpu} shows {}, not{instances}", answer.text.trim());
    }
    let table = container.client().table()?;
    check_pids("the table", &crate::client::pids(&table), &sorted([zero.view_pid, one.view_pid]))
}

fn state_is(stage: &Stage, expected: &str) -> Result<(), Fault> {
    let state = stage.state_value("state");
    check!(state == expected, "the engine is {state}, not {expected}");
    Ok(())
}
