//! `mpu who` on a real kernel: it lists exactly what keeps the driver from being unloaded.

use serde_json::Value;

use crate::stories::common::*;
use crate::stories::up_down::as_unprivileged;

pub const STORIES: &[Story] = &[story!(who_lists_all_driver_holders, [7];
        "Twelve kinds of holders: an open node in a container, renamed nodes on the host and in other namespaces, a \
        node that is open for ioctl(2) alone, a thread's own table, a process whose first thread has ended, a mapping, \
        an inherited descriptor, the control node, a capability, a descriptor in flight and a module. `mpu who` lists \
        them and nothing else. While one of them is left `rmmod` refuses, and afterwards it works.")
.module("what holds the driver is the same with every engine")
.kernel_story()
.real(Real::Knob)
.right("`mpu who` asks no engine")];

const MODULE: &str = "nvidia_peermem";

fn who_lists_all_driver_holders(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    let idle = who(&[])?;
    check!(idle["free"] == true && pids(&idle).is_empty(), "nothing holds the driver, mpu who says {idle}");

    let container = stage.container("who")?;
    run_ok(&["mknod", "/tmp/renamed", "c", "195", "0"])?;
    // The nodes are missing before any client has run on the host.
    for (node, minor) in [("/dev/nvidia0", "0"), ("/dev/nvidiactl", "255")] {
        if !std::fs::exists(node)? {
            run_ok(&["mknod", node, "c", "195", minor])?;
        }
    }
    run_ok(&["mknod", "/tmp/capability", "c", &caps_major()?, "1"])?;
    let inside = "mknod /tmp/renamed c 195 255; exec nvkeep open /tmp/renamed";
    let kinds = [
        ("a node in a container", container.hold(&[])?),
        ("a renamed node in other namespaces", container.hold_by_script(inside)?),
        ("a renamed node", keep(&["open", "/tmp/renamed"])?),
        ("a node that is open for ioctl(2) alone", keep(&["ioctl", "/dev/nvidia0"])?),
        ("a thread's own table", keep(&["thread", "/dev/nvidia0"])?),
        ("a process whose first thread has ended", keep(&["leader", "/dev/nvidia0"])?),
        ("a mapping", keep(&["mapping", "/dev/nvidia0"])?),
        ("an inherited descriptor", keep(&["child", "/dev/nvidia0"])?),
        ("the control node", keep(&["open", "/dev/nvidiactl"])?),
        ("a capability", keep(&["open", "/tmp/capability"])?),
    ];
    let in_flight = keep(&["socket", "/dev/nvidia0"])?;
    run_ok(&["insmod", "/sim/nvidia-peermem.ko"])?;

    let verdict = listed_and_ended(&kinds, &in_flight);
    drop((kinds, in_flight, container));
    for node in ["/tmp/capability", "/tmp/renamed"] {
        std::fs::remove_file(node)?;
    }
    if std::fs::exists(format!("/sys/module/{MODULE}"))? {
        run_ok(&["rmmod", MODULE])?;
    }
    verdict?;

    let free = run(&["mpu", "who", "--wait", "20", "--json"])?;
    check!(
        free.status == 0 && valid_answer(&free)?["free"] == true,
        "nothing is left, mpu who says {} {}",
        free.out,
        free.err
    );
    check!(run(&["rmmod", "nvidia"])?.status == 0, "nothing is left, and rmmod does not unload the driver");
    let none = who(&[]);
    stage.load_driver(&[])?;
    let none = none?;
    check!(none["driver"].is_null() && none["free"] == true, "no driver is loaded, mpu who says {none}");
    Ok(())
}

/// Checks that all are listed, and ends one after the other by the printed PID or command.
fn listed_and_ended(kinds: &[(&str, Holder)], in_flight: &Holder) -> Result<(), Fault> {
    let mut left: Vec<(&str, u32)> = kinds.iter().map(|(kind, holder)| (*kind, holder.host_pid)).collect();
    let seen = who(&[])?;
    for (kind, pid) in &left {
        check!(pids(&seen).contains(pid), "{kind} holds the driver by process {pid}, mpu who lists {:?}", pids(&seen));
    }
    check_pids("mpu who", &pids(&seen), &sorted(left.iter().map(|(_, pid)| *pid)))?;
    // A search by names, as in a shell loop over /proc, must miss some. Otherwise the kinds are too easy to find.
    let by_name = by_name()?;
    if by_name.len() >= left.len() {
        return Err(anyhow!("a look by names finds all of {by_name:?}").into());
    }

    let container = seen["processes"].as_array().into_iter().flatten().find(|one| one["pid"] == left[0].1);
    let end = container.map(|process| process["end"].to_string()).unwrap_or_default();
    check!(end.contains("crun delete --force who"), "a container's process is ended by {end}");
    // Kernels before 5.6 do not count descriptors in flight.
    let counts = std::fs::read_dir(format!("/proc/{}/fdinfo", in_flight.host_pid))?
        .flatten()
        .any(|file| std::fs::read_to_string(file.path()).is_ok_and(|text| text.contains("scm_fds")));
    let listed = seen["in_flight"].as_array().into_iter().flatten().any(|one| one["pid"] == in_flight.host_pid);
    check!(listed == counts, "the kernel counts what is in flight: {counts}; mpu who lists it: {listed}: {seen}");
    let user = as_unprivileged(&["mpu", "who"])?;
    check!(user.status == 4 && !user.out.contains("nvkeep"), "to a user mpu who says {} {}", user.out, user.err);
    let mut late = run(&["mpu", "who", "--wait", "1"])?;
    // One search takes longer than 1 s on a debug kernel.
    if !late.err.contains("waiting for") {
        late = run(&["mpu", "who", "--wait", "10"])?;
    }
    check!(late.status == 5 && late.err.contains("waiting for"), "a wait ends with {}: {}", late.status, late.err);

    while let Some((kind, pid)) = left.pop() {
        is_kept(kind)?;
        run_ok(&["kill", "-9", &pid.to_string()])?;
        let rest = sorted(left.iter().map(|(_, pid)| *pid));
        let ended =
            wait_until("a killed holder is still listed", || Ok(who(&[]).is_ok_and(|seen| pids(&seen) == rest)));
        check!(ended.is_ok(), "{kind} has ended, and mpu who lists {:?}, not {rest:?}", pids(&who(&[])?));
    }
    is_kept("a descriptor in flight")?;
    let seen = who(&[])?;
    check!(seen["free"] == false && !seen["notes"][0].is_null(), "a descriptor is in flight, mpu who says {seen}");
    run_ok(&["kill", "-9", &in_flight.host_pid.to_string()])?;
    let module = |seen: &Value| seen["modules"][0]["end"].as_str().map(str::to_owned);
    check!(module(&seen).as_deref() == Some("rmmod nvidia_peermem"), "a module holds the driver, mpu who says {seen}");
    is_kept("a module")?;
    check!(run(&["mpu", "who", "--wait", "20"])?.status == 0, "a module that nothing uses keeps mpu who waiting");
    run_ok(&["rmmod", MODULE])?;
    Ok(())
}

/// Checks that `rmmod` does not unload the driver.
fn is_kept(by: &str) -> Result<(), Fault> {
    let done = run(&["rmmod", "nvidia"])?;
    check!(done.status == 1, "{by} does not keep the driver from being unloaded: rmmod ended with {}", done.status);
    Ok(())
}

fn keep(arguments: &[&str]) -> Result<Holder> {
    Holder::on_host_as("/bin/nvkeep", arguments)
}

/// The major number of `nvidia-caps`, which the kernel chose.
fn caps_major() -> Result<String> {
    let devices = std::fs::read_to_string("/proc/devices")?;
    let major = devices.lines().find_map(|line| line.strip_suffix(" nvidia-caps"));
    Ok(major.context("the driver has no nvidia-caps")?.trim().to_string())
}

fn who(more: &[&str]) -> Result<Value, Fault> {
    valid_answer(&run(&[&["mpu", "who", "--json"], more].concat())?)
}

fn pids(seen: &Value) -> Vec<u32> {
    let processes = seen["processes"].as_array().into_iter().flatten();
    sorted(processes.filter_map(|process| process["pid"].as_u64()?.try_into().ok()))
}

/// Processes with an open file whose name begins with `/dev/nvidia`.
fn by_name() -> Result<Vec<u32>> {
    let script =
        "for p in /proc/[0-9]*; do ls -l $p/fd 2>/dev/null | grep -q ' /dev/nvidia' && echo ${p#/proc/}; done; true";
    let text = run_ok(&["sh", "-c", script])?;
    Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
}
