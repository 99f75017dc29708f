//! The two ways to redirect: a direct call, and a handler that changes the continuation address. Also other users of the same functions.

use std::fs;
use std::process::{Command, Stdio};

use crate::stories::common::*;
use crate::stories::neighbours::under_probe;

/// Each way, and the text in the module's `probes` on a kernel that lacks it.
const WAYS: [(&str, &str); 2] = [("direct", "direct=none"), ("ipmodify", "handler=none")];

/// The ways that this kernel has, and those that it lacks.
fn ways(stage: &Stage) -> Result<[Vec<&'static str>; 2], Fault> {
    let probes = stage.state_value("probes");
    check!(probes.contains("direct=") && probes.contains("handler="), "the module was built by {probes:?}");
    let (lacks, has): (Vec<_>, Vec<_>) = WAYS.iter().partition(|(_, none)| probes.contains(none));
    Ok([has, lacks].map(|ways| ways.into_iter().map(|(way, _)| way).collect()))
}

pub const STORIES: &[Story] = &[
    story!(scene redirect_parameter_selects_the_method, [5, 7];
        "Direct calls and a handler, each that the kernel has, by the module's parameter `redirect`: the state names \
        it, lists are right, another instance takes over and keeps it, and one loaded with the other way is \
        refused and changes nothing.")
    .module("its redirects")
    .kernel_story()
    .right("there is nothing that redirects"),
    story!(scene successor_unloads_under_callers, [5, 7];
        "By each way an instance takes over, the first is unloaded, and then the second under callers of the host \
        and of a container: nothing crashes, and every answer is right or the bare driver's.")
    .module("two instances of the module")
    .kernel_story()
    .right("there is no engine to hand over"),
    story!(scene livepatch_is_reported_and_kprobe_is_harmless, [5, 7];
        "Another module keeps a redirected function to itself as a live patch does: `mpu up` names the cause and \
        where to look, and nothing is redirected until it has gone. A kprobe on the function, and a processor that \
        goes and comes back under callers, change no answer.")
    .module("its redirects")
    .kernel_story()
    .right("there is nothing that redirects"),
];

fn redirect_parameter_selects_the_method(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let [has, lacks] = ways(stage)?;
    stage.unload_engine()?;
    let others = WAYS.iter().rev().map(|(other, _)| *other);
    let pairs = WAYS.iter().map(|(way, _)| *way).zip(others).filter(|(way, _)| has.contains(way));
    let verdict = pairs.into_iter().try_for_each(|(way, other)| by(stage, scene, way, other));
    let ways = ["sideways"].iter().chain(&lacks);
    let loads = ways.map(|way| run(&["insmod", "/mpu/mpu.ko", &format!("redirect={way}")]));
    let loads = loads.collect::<Result<Vec<_>>>()?;
    if loads.iter().any(|loaded| loaded.status == 0) {
        unload_module("mpu")?;
    }
    stage.load_engine()?;
    check!(
        loads.iter().all(|loaded| loaded.status != 0),
        "the module took a way that it does not know or this kernel lacks"
    );
    verdict
}

fn by(stage: &Stage, scene: &Scene, way: &str, other: &str) -> Result<(), Fault> {
    let load = |module: &str, way: &str| run(&["insmod", &format!("/mpu/{module}.ko"), &format!("redirect={way}")]);
    let right_list = |when: &str| check_own_list(scene, &format!("{way}, {when}: the list"));
    check!(load("mpu", way)?.status == 0, "the module does not load with redirect={way}");
    let verdict = (|| {
        check_redirect("mpu", way)?;
        right_list("loaded")?;
        let refused = load("mpu_next", other)?;
        check!(refused.status != 0, "an instance loaded with {other} took over from one by {way}");
        check_redirect("mpu", way)?;
        right_list("after a refused hand-over")?;
        check!(load("mpu_next", "auto")?.status == 0, "an instance loaded with auto does not take over from {way}");
        let loads = check_redirect("mpu_next", way).and_then(|()| right_list("taken over"));
        unload_module("mpu")?;
        let back = load("mpu", way)?.status == 0;
        unload_module("mpu_next")?;
        loads?;
        check!(back, "{way} is not taken back");
        right_list("taken back")
    })();
    stage.unload_engine()?;
    verdict
}

fn check_redirect(module: &str, way: &str) -> Result<(), Fault> {
    let state = fs::read_to_string(format!("/sys/module/{module}/parameters/state")).context("no state")?;
    let redirect = state.lines().find_map(|line| line.strip_prefix("redirect=")).unwrap_or("nothing");
    check!(redirect == way, "with redirect={way}, {module} says {redirect}");
    Ok(())
}

fn successor_unloads_under_callers(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let seen = || Ok::<_, Fault>([nvctl::query(&[], "nvctl", &["pids"])?.pids(), scene.a.query(&["pids"])?.pids()]);
    let translated = seen()?;
    let [has, _] = ways(stage)?;
    stage.unload_engine()?;
    let gone = seen().and_then(|bare| {
        let spins = [0, 1].map(|place| format!("{} or {}", pid_words(&bare[place]), pid_words(&translated[place])));
        let times = stage.reloads.clamp(1, 3) as usize;
        has.iter().flat_map(|way| [way].repeat(times)).try_for_each(|way| heir_goes(scene, &spins, way))
    });
    for module in ["mpu", "mpu_next"] {
        unload_if_loaded(module)?;
    }
    stage.load_engine()?;
    gone?;
    check_own_list(scene, "the list")
}

/// `spins`: the lists that the host and the container may be shown.
fn heir_goes(scene: &Scene, spins: &[String; 2], way: &str) -> Result<(), Fault> {
    let way_of = format!("redirect={way}");
    run_ok(&["insmod", "/mpu/mpu.ko", &way_of])?;
    run_ok(&["insmod", "/mpu/mpu_next.ko", &way_of])?;
    check_redirect("mpu_next", way)?;
    unload_module("mpu")?;
    let callers = Callers::start(&scene.a, 2, &format!("nvctl spin 1 {}", spins[1]))?;
    let mut host = Command::new("nvctl");
    host.args(["spin", "600"]).args(spins[0].split(' ')).stdout(Stdio::piped());
    let mut host = host.spawn().context("cannot start a caller on the host")?;
    let unloaded = unload_module("mpu_next");
    // It must still run: it ends by itself only after a wrong answer.
    let ended = host.try_wait();
    let killed = host.kill();
    let output = host.wait_with_output().context("the host's caller is lost")?;
    let text = callers.stop()?;
    unloaded?;
    killed.context("the host's caller cannot be ended")?;
    let output = String::from_utf8_lossy(&output.stdout);
    check!(ended?.is_none(), "{way}: while an instance went, the host's caller ended: {output}");
    check!(!text.contains("wrong"), "{way}: while an instance went, an answer was neither's: {text}");
    check!(text.contains("matched"), "{way}: no caller in the container was answered: {text}");
    Ok(())
}

fn livepatch_is_reported_and_kprobe_is_harmless(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    stage.unload_engine()?;
    run_ok(&["insmod", "/sim/rival.ko"])?;
    let loaded = stage.load_engine();
    let state = ["state", "refused", "hooks"].map(|key| stage.state_value(key));
    // On kernels that register direct calls one by one, the module reports the function. There it tries the handler last, if allowed.
    let one_by_one = state[1].starts_with("os_");
    if loaded.is_ok() {
        stage.unload_engine()?;
    }
    let up = run(&["mpu", "up", "--module", "/mpu/mpu.ko"])?;
    run_ok(&["rmmod", "rival"])?;
    stage.load_engine()?;
    let expected = ["refused", if one_by_one { "os_memcpy_to_user:16" } else { "functions:16" }, ""];
    check!(state == expected, "beside a live patch the module says {state:?}, not {expected:?}");
    check!(up.status == 4 && up.err.contains("live patch"), "`mpu up` ends with {} and says {}", up.status, up.err);
    check_own_list(scene, "once the other has gone, the list")?;
    under_probe("p:mpu_story/probe nvidia:os_memcpy_to_user", || under_hotplug(scene))
}

/// Takes a processor offline and back online under callers.
fn under_hotplug(scene: &Scene) -> Result<(), Fault> {
    const ONLINE: &str = "/sys/devices/system/cpu/cpu1/online";
    check_own_list(scene, "under a probe, the list")?;
    if !fs::exists(ONLINE)? {
        return Ok(());
    }
    let own = pid_words(&scene.own());
    let callers = Callers::start(&scene.a, 3, &format!("nvctl spin 1 {own}"))?;
    let turned = (0..3).try_for_each(|_| ["0", "1"].iter().try_for_each(|on| fs::write(ONLINE, on)));
    let text = callers.stop()?;
    turned.context("a processor does not go, or does not come back")?;
    check_answers("while a processor went", &text, 0)
}
