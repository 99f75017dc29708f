//! The engine's counters: every control that it translates, every reason not to.

use crate::stories::common::*;
use crate::stories::events;

/// The handle of the driver's first client, which is the host's.
pub const FOREIGN_CLIENT: &str = "c1d00001";

pub const STORIES: &[Story] = &[
    story!(scene every_translated_control_is_counted_once, [5];
        "Each control of a container raises its counter by one; a control of the host raises none.")
    .real(Real::Engines)
    .right("the counters are the engine's"),
    story!(scene passed_call_is_counted_by_reason, [5];
        "The module passes and counts an unknown size and calls that miss its probe. The supervisor refuses and \
        counts an argument that cannot be read, and does not count what the driver refuses to everybody.")
    .real(Real::Probes)
    .right("the counters are the engine's"),
];

fn every_translated_control_is_counted_once(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    // No release serves this control; the simulated driver does so on demand.
    stage.set_driver("client_allocs", "1")?;
    let own = scene.first.view_pid.to_string();
    let requests: &[(&str, &[&str])] = &[
        ("GPU_GET_PIDS", &["pids"]),
        ("GPU_GET_PID_INFO", &["pidinfo", &own]),
        ("PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2", &["gpumon"]),
        ("PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES", &["gpumon1"]),
        ("GPUACCT_GET_ACCOUNTING_PIDS", &["acct-pids"]),
        ("GPUACCT_GET_PROC_ACCOUNTING_INFO", &["acct-info", &own]),
        ("GPU_GET_NVENC_SW_SESSION_INFO", &["enc1"]),
        ("GPU_GET_NVENC_SW_SESSION_INFO_V2", &["enc2"]),
        ("GPU_GET_NVFBC_SW_SESSION_INFO", &["fbc"]),
        ("HWPM_GET_RESERVATION_INFO", &["hwpm"]),
        ("NVD_GET_RCERR_RPT", &["--error", "rc"]),
        ("FB_GET_CLIENT_ALLOCATION_INFO", &["allocs"]),
    ];
    for &(control, question) in requests {
        if stage.engine == Engine::Notify && control == "NVD_GET_RCERR_RPT" {
            // The caller makes this call itself: the driver returns only the calling process's reports.
            continue;
        }
        let before = counter(stage, &format!("translated.{control}"))?;
        nvctl::query(&[], "nvctl", question)?;
        let after_host = counter(stage, &format!("translated.{control}"))?;
        check!(after_host == before, "a host's call was counted as {control}");
        let answer = scene.a.query(question)?;
        check!(answer.status == 0, "{control} is refused: {}", answer.text);
        let after = counter(stage, &format!("translated.{control}"))?;
        check!(after == before + 1, "{control} was counted {} times", after - before);
    }
    Ok(())
}

fn passed_call_is_counted_by_reason(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    // The probe may be armed during this call, which must not count it twice.
    let before = counter(stage, "passed.unknown_size")?;
    let answer = scene.a.query(&["--size", "3816", "pids"])?;
    check!(answer.status == 0x1f, "the driver refuses this size with 0x1f, the caller got 0x{:x}", answer.status);
    let after = counter(stage, "passed.unknown_size")?;
    // The engine in user space calls the driver before it counts, and does not count a refused call.
    let counted = u64::from(stage.has_module());
    check!(after == before + counted, "an unknown size was counted {} times", after - before);

    // An engine in user space reads the argument once, and calls with its own copy. It does not count a call that the driver refuses
    // to every caller: a container could raise the counter at will.
    if !stage.has_module() {
        for way in [&["nowhere"][..], &["--xfer", "nowhere"]] {
            let before = counter(stage, "passed.unreadable")?;
            let answer = scene.a.query(way)?;
            check!(answer.text.starts_with("ret=-14 "), "the driver says EFAULT, the caller got {}", answer.text);
            let after = counter(stage, "passed.unreadable")?;
            check!(after == before + 1, "an unreadable argument was counted {} times", after - before);
        }
        let before = counter(stage, "passed.out_of_reach")?;
        let answer = scene.a.query(&["--client", FOREIGN_CLIENT, "pids"])?;
        check!(answer.status == 0x23, "the driver refuses this client with 0x23, the caller got 0x{:x}", answer.status);
        let after = counter(stage, "passed.out_of_reach")?;
        check!(after == before, "a client of another process was counted {} times", after - before);
        return Ok(());
    }
    wait_until_probe_armed(stage, scene)?;
    // An administrator switches the kernel's probes off: one call is lost. For later calls the module reads the caller's argument.
    let right_list = || check_own_list(scene, "the list");
    let before = counter(stage, "passed.argument_not_seen")?;
    switch_probes("0")?;
    let lost = scene.a.query(&["pids"]);
    let after = counter(stage, "passed.argument_not_seen")?;
    let argument = stage.state_value("argument");
    let still = right_list();
    let events = if stage.is_newest() { events::by_own_numbers(scene) } else { Ok(()) };
    switch_probes("1")?;
    lost?;
    check!(after == before + 1, "calls past the probe were counted {} times", after - before);
    check!(argument.starts_with("claimed:"), "without the probe the state says that the argument is {argument}");
    still?;
    events?;
    stage.reload_engine()?;
    right_list()?;
    let argument = stage.state_value("argument");
    check!(argument == "driver", "with probes again the state says that the argument is {argument}");
    Ok(())
}

fn counter(stage: &Stage, name: &str) -> Result<u64, Fault> {
    stage.counter(name).ok_or_else(|| Fault::Wrong(format!("there is no counter {name}")))
}

/// Switches all of the kernel's probes on or off, as root can (Documentation/trace/kprobes.rst).
fn switch_probes(to: &str) -> anyhow::Result<()> {
    const SWITCH: &str = "/sys/kernel/debug/kprobes/enabled";
    mount_debugfs(SWITCH)?;
    std::fs::write(SWITCH, to).with_context(|| format!("cannot write {SWITCH}"))
}
