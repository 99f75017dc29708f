//! `mpu ps` on a real kernel, with real NVML: every GPU process by the host's number, its own in its container, and its container.

use serde_json::Value;

use crate::command::run_with;
use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(scene ps_names_every_process_and_its_container, [4];
        "`mpu ps` on the host, with every NVML, shows each process with both its PIDs, its container and runtime, \
        user and memory; filters work.")
    .real(Real::Client)
    .only(|stage| !stage.host_sees_threads(), THREADS_TO_THE_HOST)
    .every_client()
    .right("it is the host that asks"),
    story!(ps_in_pid_namespace_is_refused, [4];
        "In a PID namespace of its own, `mpu ps` says so and shows nothing.")
    .every_client()
    .right("it asks nothing"),
];

fn ps_names_every_process_and_its_container(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let all = ps(stage, &["--json"])?;
    let rows = all["processes"].as_array().context("ps has no processes")?;
    check!(all["ok"] == true && rows.len() == scene.host_pids().len(), "ps lists {all}");
    for (process, pid, inside, id, runtime, mib) in everyone(scene) {
        let row = rows.iter().find(|row| row["pid"] == pid);
        let row = row.ok_or_else(|| Fault::Wrong(format!("ps does not list {pid}, which is {process}: {all}")))?;
        check!(row["container_pid"] == inside, "{process} is {inside} in its container, ps says {row}");
        check!(row["container"]["id"] == id, "{process} is in container {id}, ps says {row}");
        check!(row["container"]["runtime"] == runtime, "{process} was started by {runtime}, ps says {row}");
        check!(row["memory"] == mib << 20, "{process} holds {mib} MiB, ps says {row}");
        check!(row["user"] == "root" && row["gpu"] == 0 && row["kind"] == "compute", "{process}: ps says {row}");
        check!(row["command"].as_str().is_some_and(|line| line.contains("gpu-hold")), "{process}: ps says {row}");
    }
    let names = |arguments: &[&str]| -> Result<Vec<u64>, Fault> {
        let listed = ps(stage, &[arguments, &["--json"]].concat())?;
        let rows = listed["processes"].as_array().cloned().unwrap_or_default();
        Ok(rows.iter().filter_map(|row| row["pid"].as_u64()).collect())
    };
    check!(names(&["--container", "b"])? == [u64::from(scene.other.host_pid)], "--container b is not b's");
    check!(names(&["--runtime", "crun", "--sort", "pid"])?.len() == 2, "--runtime crun is not a's two");
    check!(names(&["--user", "nobody"])?.is_empty(), "--user nobody lists a process");
    let table = mpu(stage, &["ps", "--no-headers", "-o", "pid,cpid,container"])?;
    let line = format!("{}  {}  b", scene.other.host_pid, scene.other.view_pid);
    let rows_of_text: Vec<String> =
        table.out.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join("  ")).collect();
    check!(rows_of_text.contains(&line), "ps shows {rows_of_text:?}, not {line}");
    Ok(())
}

fn ps_in_pid_namespace_is_refused(stage: &Stage) -> Result<(), Fault> {
    let done = mpu_behind(stage, &["unshare", "-p", "-f", "--mount-proc"], &["ps"])?;
    check!(done.status == 3 && done.err.contains("hostPID"), "ps says {} {} {}", done.status, done.out, done.err);
    Ok(())
}

type Everyone = (&'static str, u32, Value, Value, Value, u64);

/// Name, host PID, PID in its container, container, runtime, MiB.
fn everyone(scene: &Scene) -> Vec<Everyone> {
    let nothing = Value::Null;
    let inside = |number: u32| Value::from(number);
    let by = |runtime: &str| Value::from(runtime);
    vec![
        ("the host's", scene.foreign.host_pid, nothing.clone(), nothing.clone(), nothing, 300),
        ("a's first", scene.first.host_pid, inside(scene.first.view_pid), by("a"), by("crun"), 80),
        ("a's second", scene.second.host_pid, inside(scene.second.view_pid), by("a"), by("crun"), 43),
        ("b's", scene.other.host_pid, inside(scene.other.view_pid), by("b"), by("runc"), 100),
    ]
}

fn ps(stage: &Stage, arguments: &[&str]) -> Result<Value, Fault> {
    valid_answer(&mpu(stage, &[&["ps"], arguments].concat())?)
}

fn mpu(stage: &Stage, arguments: &[&str]) -> Result<Output, Fault> {
    mpu_behind(stage, &[], arguments)
}

fn mpu_behind(stage: &Stage, before: &[&str], arguments: &[&str]) -> Result<Output, Fault> {
    let libraries = format!("/nvidia/{}", stage.client);
    Ok(run_with(&[before, &["mpu"], arguments].concat(), &[("LD_LIBRARY_PATH", &libraries)])?)
}
