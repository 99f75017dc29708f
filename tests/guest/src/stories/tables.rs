//! What the real nvidia-smi shows in a container, listing by listing.

use crate::client::{pids, Client};
use crate::container::Container;
use crate::right;
use crate::scene::sorted;
use crate::stories::common::exactly;
use crate::story::{Engines, Fault, Story, Without};

/// The table shows exactly the container's processes, by the container's PIDs, with their memory.
pub const SEES_ITS_OWN_PROCESSES: Story = Story {
    name: "container_sees_its_own_processes",
    engines: Engines::Every,
    without: |_| Without::Wrong("the table shows"),
    run: |stage| {
        let scene = stage.scene()?;
        table(&scene.a.client(), &[(scene.first.inside, 80), (scene.second.inside, 43)])
    },
};

/// The same in a container that runc made.
pub const RUNC_SEES_ITS_OWN: Story = Story {
    name: "container_of_runc_sees_its_own_processes",
    engines: Engines::Every,
    without: |_| Without::Wrong("the table shows"),
    run: |stage| {
        let scene = stage.scene()?;
        table(&scene.b.client(), &[(scene.other.inside, 100)])
    },
};

/// A program that enters a container later sees the container's process 1 by that number.
pub const EXEC_SEES_PROCESS_1: Story = Story {
    name: "exec_into_a_container_sees_process_1",
    engines: Engines::Every,
    without: |_| Without::Wrong("the table shows"),
    run: |stage| {
        // A FIFO opened for both ends never ends, so process 1 holds until it is killed.
        let script = "mkfifo /tmp/hold && exec gpu-hold --mem 64 --clients 2 <>/tmp/hold";
        let container = Container::start_with("crun", "exec", &stage.client, &["/bin/sh", "-c", script])?;
        let second = container.hold(&["--mem", "20"])?;
        table(&container.client(), &[(1, 128), (second.inside, 20)])
    },
};

/// `--query-compute-apps` has exactly the container's processes: it shows numbers that the table would hide.
pub const QUERY_COMPUTE_APPS: Story = Story {
    name: "query_compute_apps_lists_own_processes_only",
    engines: Engines::Every,
    without: |_| Without::Wrong("the query shows"),
    run: |stage| {
        let scene = stage.scene()?;
        let rows = scene.a.client().compute_apps()?;
        exactly("the query", &pids(&rows), &scene.own())?;
        for row in rows {
            let held = if row.pid == scene.first.inside { 80 } else { 43 };
            right!(row.mib == Some(held), "process {} holds {held} MiB, the query says {:?}", row.pid, row.mib);
            right!(row.name.contains("gpu-hold"), "process {} is gpu-hold, the query says {}", row.pid, row.name);
        }
        Ok(())
    },
};

/// pmon has a row for each own process, with its utilisation.
pub const PMON: Story = Story {
    name: "pmon_shows_own_utilisation",
    engines: Engines::Every,
    without: |_| Without::Wrong("pmon"),
    run: |stage| {
        let scene = stage.scene()?;
        let shown = scene.a.client().smi(&["pmon", "-c", "1", "-s", "u"])?;
        right!(shown.status == 0, "pmon ends with {}: {} {}", shown.status, shown.out.trim(), shown.err.trim());
        let rows = crate::client::pmon_rows(&shown.out);
        let shown = sorted(rows.iter().map(|row| row.0));
        exactly("pmon", &shown, &scene.own())?;
        for (pid, sm) in rows {
            right!(sm.is_some_and(|percent| percent > 0), "process {pid} keeps the GPU busy, pmon says {sm:?}");
        }
        Ok(())
    },
};

/// `-q -d PIDS,ACCOUNTING` names own processes only, in both sections.
pub const QUERY_PIDS_AND_ACCOUNTING: Story = Story {
    name: "query_of_pids_and_accounting_names_own_processes_only",
    engines: Engines::Every,
    without: |_| Without::Wrong("section shows"),
    run: |stage| {
        let scene = stage.scene()?;
        let shown = scene.a.client().smi(&["-q", "-d", "PIDS,ACCOUNTING"])?;
        let (listed, accounted) = shown.out.split_once("Accounted Processes").unwrap_or((&shown.out, ""));
        exactly("the processes' section", &process_ids(listed), &scene.own())?;
        exactly("the accounting section", &process_ids(accounted), &scene.own())
    },
};

/// `encodersessions` and `fbcsessions` list own sessions only.
pub const SESSIONS: Story = Story {
    name: "encoder_and_capture_sessions_are_own_only",
    engines: Engines::Every,
    without: |_| Without::Wrong("sessions"),
    run: |stage| {
        let scene = stage.scene()?;
        let first = scene.first.inside;
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
        exactly("encodersessions", &listing("encodersessions")?, &[first, first])?;
        exactly("fbcsessions", &listing("fbcsessions")?, &[first])
    },
};

/// Checks the whole table: PIDs, then the memory of each.
fn table(client: &Client<'_>, own: &[(u32, u64)]) -> Result<(), Fault> {
    let rows = client.table()?;
    exactly("the table", &pids(&rows), &sorted(own.iter().map(|row| row.0)))?;
    for &(pid, mib) in own {
        let shown = rows.iter().find(|row| row.pid == pid).and_then(|row| row.mib);
        right!(shown == Some(mib), "process {pid} holds {mib} MiB, the table shows {shown:?}");
    }
    Ok(())
}

/// The numbers of `Process ID : N` lines.
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
    // The listing comes again every second; a session that came already ends the first one.
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
