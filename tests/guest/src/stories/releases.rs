//! The driver's release: calls that MPU leaves unchanged, a driver that another release replaces, and one whose GPU does not work.

use crate::stories::common::*;

/// Calls of one run: on a driver without a GPU, and on one with a GPU.
const CALLS: [u32; 2] = [1500, 250];
const SEED: u32 = 77;

pub const STORIES: &[Story] = &[
    story!(calls_without_gpu_are_unchanged, [3, 5];
        "Thousands of calls on root clients, senseless ones among them, from the host and a container, 64 and 32 \
        bits: every byte is the bare driver's.")
    .real(Real::WithoutGpu)
    .right("this is what the driver answers by itself"),
    story!(another_release_of_the_driver_is_followed, [7];
        "The driver is exchanged for another release and back under callers in a container: the engine waits, \
        follows, and is right on each.")
    .real(Real::WithoutGpu)
    .without_engine(|stage| match stage.other_driver() {
        Ok(Some(_)) if stage.has_gpu() => once(stage, BareResult::Wrong("shows")),
        Ok(Some(_)) => once(stage, BareResult::Right("without a GPU the list is empty")),
        Ok(None) => BareResult::Skip("there is no other driver in this guest: a simulated one is exchanged in era 4"),
        Err(_) => BareResult::Wrong("drivers that can be listed"),
    }),
    story!(driver_without_gpu_is_reported, [5, 7];
        "A driver whose GPU does not start: status is content, and the probe says that nothing could be asked.")
    .real(Real::WithoutGpu)
    .only(|stage| !stage.has_gpu(), "this driver has a GPU")
    .wrong("status"),
];

fn calls_without_gpu_are_unchanged(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    let container = stage.container("calls")?;
    let calls = CALLS[usize::from(stage.has_gpu())];
    let answers = || -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for program in ["nvroot", "nvroot32"] {
            let call = format!("{program} {SEED} {calls}");
            lines.push(run_ok(&["sh", "-c", &call])?);
            lines.push(container.script(&call)?);
        }
        Ok(lines)
    };
    let with = answers()?;
    let (once, again) = stage.with_engine_off(|| anyhow::Ok((answers()?, answers()?)))??;
    let (mut compared, mut moving) = (0, 0);
    for ((with, once), again) in with.iter().zip(&once).zip(&again) {
        check!(with.lines().count() == once.lines().count(), "another number of lines with the engine");
        check!(accepted(with) > calls as usize / 8, "the driver accepts next to nothing: {}", accepted(with));
        for ((with, once), again) in with.lines().zip(once.lines()).zip(again.lines()) {
            // Two runs without the engine show which bytes change each time, such as times. Only the others are compared.
            let [with_engine, first, second] = [with, once, again].map(|line| line.split(" bytes ").next());
            check!(
                with_engine == first || first != second,
                "with the engine the driver says {with}, without it {once}"
            );
            if once == again {
                check!(with == once, "with the engine the driver says {with}, without it {once}");
                compared += 1;
            } else {
                moving += 1;
            }
        }
    }
    let accepted: usize = with.iter().map(|text| accepted(text)).sum();
    println!("guest: {compared} calls alike, {moving} never alike, {accepted} accepted");
    check!(moving * 100 < compared, "{moving} calls are answered differently each time, {compared} are alike");
    Ok(())
}

fn another_release_of_the_driver_is_followed(stage: &Stage) -> Result<(), Fault> {
    let own = stage.era_name.rsplit('@').next().context("no era")?.to_owned();
    let other = stage.other_driver()?.context("no other driver")?;
    stage.clear_scene();
    let container = stage.container("upgrade")?;
    for driver in [&other, &own] {
        // A call between the load of an open driver and its overrides would start the made-up GPU.
        let load = if stage.has_gpu() && stage.release().is_some() { 0 } else { 2 };
        // The callers sleep long enough to leave the driver unused now and then, on a slow machine, too.
        let callers = Callers::start(&container, load, "nvroot 5 100 | tail -n 1; sleep 1")?;
        stage.unload_driver_in_use()?;
        state(stage, &["waiting"])?;
        stage.load_driver_of(driver, &[])?;
        state(stage, &["placed", "armed"])?;
        let answered = || container.script("cat /tmp/calls.* 2>/dev/null | grep -c ' ret 0 '; true");
        let before = answered()?;
        // A second answer: the first call may have begun earlier.
        let more = wait_until("no caller was answered", || Ok(load == 0 || answered()? != before));
        callers.stop()?;
        check!(more.is_ok(), "by {driver} {more:?}: {} before and after", before.trim());
        let calls = container.script("nvroot 5 1000")?;
        check!(accepted(&calls) > 125, "{driver} accepts {} of 1000 calls", accepted(&calls));
        if stage.has_gpu() {
            let holder = container.hold_by_script("exec gpu-hold --mem 40 --clients 2")?;
            let _foreign = Holder::on_host(&["--mem", "300"])?;
            check_list(&container, &format!("on {driver} the list"), &[holder.view_pid])?;
            state(stage, &["armed"])?;
        }
        named(stage, driver)?;
    }
    Ok(())
}

fn driver_without_gpu_is_reported(_: &Stage) -> Result<(), Fault> {
    let status = run(&["mpu", "status", "--json"])?;
    let answers = valid_answer(&status)?;
    check!(answers["up"] == true, "the engine is up, and status says {}", status.out);
    check!(status.status == 0, "status ends with {}: {} {}", status.status, status.out, status.err);
    let probe = run(&["mpu", "probe"])?;
    check!(probe.status != 0, "nothing could be asked, and the probe ends with 0: {}", probe.out);
    check!(!format!("{}{}", probe.out, probe.err).contains("is seen right"), "the probe says {}", probe.out);
    check!(probe.err.contains("nothing was measured"), "the probe does not say so: {} {}", probe.out, probe.err);
    Ok(())
}

fn accepted(text: &str) -> usize {
    text.lines().filter(|line| line.contains(" ret 0 status 0 ")).count()
}

fn state(stage: &Stage, allowed: &[&str]) -> Result<(), Fault> {
    if stage.has_module() {
        let state = stage.state_value("state");
        check!(allowed.contains(&state.as_str()), "the engine is {state}, and should be {}", allowed.join(" or "));
    }
    if stage.engine == Engine::Notify {
        let listeners = stage.state_value("listeners");
        check!(!["", "0"].contains(&listeners.as_str()), "the container's calls do not come to the supervisor");
    }
    Ok(())
}

/// Checks that `mpu status` names the loaded driver.
fn named(stage: &Stage, driver: &str) -> Result<(), Fault> {
    let (Some(_), true) = (stage.release(), stage.has_engine()) else { return Ok(()) };
    let status = run(&["mpu", "status"])?;
    let release = driver.trim_end_matches("-closed");
    check!(status.out.contains(release), "the driver is {driver}, and status says {}", status.out);
    Ok(())
}
