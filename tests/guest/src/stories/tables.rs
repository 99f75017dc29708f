//! The listings of the real nvidia-smi in a container.

use crate::client::Client;
use crate::client::pids;
use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(scene container_sees_its_own_processes, [1, 2];
        "The table of nvidia-smi in a crun container has exactly its processes, once each, by its numbers, with \
        their memory. One process has two clients; one has a client of a second thread.")
    .real(Real::Client)
    .every_client()
    .wrong("the table shows"),
    story!(scene container_of_runc_sees_its_own_processes, [1, 2];
        "The same in a container that runc made.")
    .real(Real::Client)
    .every_client()
    .wrong("the table shows"),
    story!(exec_into_a_container_sees_process_1, [1];
        "A program that enters later sees the container's process 1, and another program that entered, by their \
        numbers.")
    .real(Real::Client)
    .every_client()
    .wrong("the table shows"),
    story!(scene query_compute_apps_lists_own_processes_only, [1, 3];
        "`--query-compute-apps` shows PIDs that the table hides: none is foreign.")
    .real(Real::Client)
    .every_client()
    .wrong("the query shows"),
    story!(scene pmon_shows_own_utilisation, [1, 2];
        "pmon has a row with utilisation for each own process.")
    .real(Real::Client)
    .every_client()
    .wrong("pmon"),
    story!(scene pids_and_accounting_query_lists_own_processes, [1, 3];
        "`-q -d PIDS,ACCOUNTING`: both sections hold own processes only.")
    .real(Real::Client)
    .every_client()
    .wrong("section shows"),
    story!(scene encoder_and_capture_sessions_are_own_only, [1, 3];
        "`encodersessions` and `fbcsessions` list own sessions only.")
    .real(Real::Engines)
    .every_client()
    .wrong("sessions"),
];

fn container_sees_its_own_processes(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    table(&scene.a.client(), &[(scene.first.view_pid, 80), (scene.second.view_pid, 43)])
}

fn container_of_runc_sees_its_own_processes(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    table(&scene.b.client(), &[(scene.other.view_pid, 100)])
}

fn exec_into_a_container_sees_process_1(stage: &Stage) -> Result<(), Fault> {
    // A FIFO opened for both ends never ends, so process 1 holds until it is killed.
    let script = "mkfifo /tmp/hold && exec gpu-hold --mem 64 --clients 2 <>/tmp/hold";
    let container = Container::start_with("crun", "exec", &stage.client, &["/bin/sh", "-c", script])?;
    let second = container.hold(&["--mem", "20"])?;
    table(&container.client(), &[(1, 128), (second.view_pid, 20)])
}

fn query_compute_apps_lists_own_processes_only(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let rows = scene.a.client().compute_apps()?;
    check_pids("the query", &pids(&rows), &scene.own())?;
    for row in rows {
        let mib = if row.pid == scene.first.view_pid { 80 } else { 43 };
        check!(row.mib == Some(mib), "process {} holds {mib} MiB, the query says {:?}", row.pid, row.mib);
        check!(row.name.contains("gpu-hold"), "process {} is gpu-hold, the query says {}", row.pid, row.name);
    }
    Ok(())
}

fn pmon_shows_own_utilisation(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let shown = scene.a.client().smi(&["pmon", "-c", "1", "-s", "u"])?;
    check!(shown.status == 0, "pmon ends with {}: {} {}", shown.status, shown.out.trim(), shown.err.trim());
    let rows = crate::client::pmon_rows(&shown.out);
    let shown = sorted(rows.iter().map(|row| row.0));
    check_pids("pmon", &shown, &scene.own())?;
    for (pid, sm) in rows {
        check!(sm.is_some_and(|percent| percent > 0), "process {pid} keeps the GPU busy, pmon says {sm:?}");
    }
    Ok(())
}

fn pids_and_accounting_query_lists_own_processes(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    let shown = scene.a.client().smi(&["-q", "-d", "PIDS,ACCOUNTING"])?;
    let (listed, accounted) = shown.out.split_once("Accounted Processes").unwrap_or((&shown.out, ""));
    check_pids("the processes' section", &process_ids(listed), &scene.own())?;
    check_pids("the accounting section", &process_ids(accounted), &scene.own())
}

fn encoder_and_capture_sessions_are_own_only(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let first = scene.first.view_pid;
    // These print until they are stopped; a slow guest may need more than a second to begin.
    let listing = |verb: &str| -> anyhow::Result<Vec<u32>> {
        let release = &stage.client;
        for seconds in [1, 4, 16] {
            let stopped = format!("timeout -s INT {seconds} /nvidia/{release}/nvidia-smi {verb}");
            let shown = scene.a.script(&format!("LD_LIBRARY_PATH=/nvidia/{release} {stopped}; true"))?;
            let pids = sorted(session_pids(&shown));
            if !pids.is_empty() {
                return Ok(pids);
            }
        }
        Ok(Vec::new())
    };
    check_pids("encodersessions", &listing("encodersessions")?, &[first, first])?;
    check_pids("fbcsessions", &listing("fbcsessions")?, &[first])
}

/// Checks the whole table: PIDs, then the memory of each.
fn table(client: &Client<'_>, own: &[(u32, u64)]) -> Result<(), Fault> {
    let rows = client.table()?;
    check_pids("the table", &pids(&rows), &sorted(own.iter().map(|row| row.0)))?;
    for &(pid, mib) in own {
        let shown = rows.iter().find(|row| row.pid == pid).and_then(|row| row.mib);
        check!(shown == Some(mib), "process {pid} holds {mib} MiB, the table shows {shown:?}");
    }
    Ok(())
}

fn process_ids(text: &str) -> Vec<u32> {
    let lines = text.lines().filter(|line| line.trim_start().starts_with("Process ID"));
    sorted(lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()))
}

/// The process column of the first listing that `encodersessions` or `fbcsessions` prints: GPU, session, process.
fn session_pids(text: &str) -> Vec<u32> {
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.len() > 3)
        .collect();
    // The listing repeats every second: a repeated session ends the first one.
    let mut seen = Vec::new();
    let mut pids = Vec::new();
    for row in rows {
        if seen.contains(&row[1].to_owned()) {
            break;
        }
        seen.push(row[1].to_owned());
        pids.extend(row[2].parse::<u32>());
    }
    pids
}
