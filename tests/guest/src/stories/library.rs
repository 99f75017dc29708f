//! The answers to programs that use NVML themselves, from C and from Python.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::client::Client;
use crate::client::Query;
use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(scene containers_do_not_see_each_other, [3];
        "NVML in two containers on one GPU, by crun and runc, shows processes, utilisation, accounting and sessions \
        of no other container, and all of their own.")
    .real(Real::Client)
    .every_client()
    .wrong("is shown"),
    story!(scene own_utilisation_equals_the_hosts, [3];
        "From the same hand-made samples, NVML reports the same figures of a container's processes to the container \
        and to the host: hidden samples change no figure.")
    .real(Real::Knob)
    .only(|stage| !(stage.host_sees_threads() && stage.era == 3), THREADS_TO_THE_HOST)
    .every_client()
    .wrong("utilisation shows"),
    story!(scene look_up_of_own_pid_finds_own_utilisation, [1, 3];
        "A program finds its own PID as the one that is new in NVML's list, and adds up the utilisation of that PID, as HAMi-core does: in two \
        containers it gets its own PID and the host's figure, also while a process of the host has that number.")
    .real(Real::Knob)
    .wrong("the look-up shows"),
    story!(scene pynvml_lists_own_processes_only, [1, 3];
        "pynvml, on the main thread and on another, gets the process list and memory, utilisation, accounting and \
        sessions of own processes only.")
    .real(Real::Client)
    .without_engine(|stage| match stage.client_major() {
        _ if cfg!(not(target_arch = "x86_64")) => BareResult::Skip("only x86-64 guests have a Python"),
        0..470 => BareResult::Skip("this pynvml calls functions that releases before 470 do not have"),
        _ => BareResult::Wrong("pynvml shows"),
    }),
    story!(scene three_hundred_processes_are_listed, [1];
        "More processes than one look-up takes, by hand and by NVML from 535 on."),
];

fn containers_do_not_see_each_other(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    for (container, own) in [(&scene.a, scene.own()), (&scene.b, vec![scene.other.view_pid])] {
        let queries = queries(stage);
        for (query, answer) in queries.iter().zip(nvml(stage, container, queries)?) {
            let shown = answer.pids();
            let foreign: Vec<&u32> = shown.iter().filter(|pid| !own.contains(pid)).collect();
            check!(foreign.is_empty(), "a container is shown {foreign:?} by {query}, its own are {own:?}");
            check!(!shown.is_empty(), "a container is shown nothing by {query}, its own are {own:?}");
        }
    }
    Ok(())
}

fn own_utilisation_equals_the_hosts(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let (first, second) = (scene.first.host_pid, scene.second.host_pid);
    let (foreign, other) = (scene.foreign.host_pid, scene.other.host_pid);
    // Own and foreign samples take turns, with different engines busy, and foreign ones both newest and oldest.
    let slots = [
        format!("100,{foreign}/500,{foreign}/9000"),
        format!("300,{first}/1000,{first}/3100"),
        format!("500,{other}/2000,{foreign}/8000"),
        format!("700,{second}/1200,{second}/2300"),
        format!("900,{first}/1500,{other}/7000"),
        format!("1100,-,{first}/4700,{first}/600"),
        format!("1300,{other}/9900,{second}/5100"),
        format!("1500,{foreign}/500,{foreign}/9900"),
    ];
    let clients = [Client::on_host(&stage.client), client_inside(stage, &scene.a)];
    let [host, container] = with_samples(&slots, || clients.each_ref().map(utilisation))?;
    let (host, container) = (host?, container?);
    check_pids("utilisation", &sorted(container.keys().copied()), &scene.own())?;
    for (outside, inside) in [(first, scene.first.view_pid), (second, scene.second.view_pid)] {
        let (host, container) = (host.get(&outside), container.get(&inside));
        check!(host == container, "utilisation shows {container:?} of process {inside}, the host sees {host:?}");
    }
    Ok(())
}

fn look_up_of_own_pid_finds_own_utilisation(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    for container in [&scene.a, &scene.b] {
        let before = nvml(stage, container, &["compute"])?.remove(0).pids();
        container.set_next_pid(3_000)?;
        let own = container.hold(&["--mem", "20", "--util", "30"])?;
        let same = with_host_pid([own.view_pid; 20], |number| {
            processes::set_next_host_pid(number)?;
            Holder::on_host(&["--mem", "10", "--util", "40"])
        });
        // Not back: up to 565 the list of accounting shows a process that reuses a number in it (docs/limits.md).
        processes::set_next_host_pid(own.host_pid.max(own.view_pid) + 10)?;
        let (same, own_outside) = (same?, own.host_pid);
        let slots = [
            format!("100,-,{}/9000", same.host_pid),
            format!("300,-,{own_outside}/3000"),
            format!("500,-,{}/8000", scene.foreign.host_pid),
            format!("700,-,{own_outside}/1000"),
        ];
        let queries = &["compute", "util=-1000"];
        let answers = || (nvml(stage, container, queries), Client::on_host(&stage.client).nvml(&queries[1..]));
        let (inside, host) = with_samples(&slots, answers)?;
        let (inside, host) = (inside?, host?);
        let mut found = inside[0].pids();
        found.dedup();
        found.retain(|pid| !before.contains(pid));
        check_pids("the look-up", &found, &[own.view_pid])?;
        let sum = |query: &Query, pid: u32| -> u32 {
            let of_pid = query.rows.iter().filter(|row| row.get("pid").is_some_and(|shown| *shown == pid.to_string()));
            of_pid.filter_map(|row| row.get("sm")?.parse::<u32>().ok()).sum()
        };
        let (shown, right) = (sum(&inside[1], own.view_pid), sum(&host[0], own_outside));
        check!(
            shown == right && right > 0,
            "the look-up shows {shown} % of process {}, the host sees {right} %",
            own.view_pid
        );
    }
    Ok(())
}

fn pynvml_lists_own_processes_only(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let done = client_inside(stage, &scene.a).python(PYNVML_SCRIPT)?;
    let output: Vec<Value> = done.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if output.len() != 2 {
        return Err(anyhow::anyhow!("python ended with {}: {} {}", done.status, done.out, done.err).into());
    }
    for (thread, output) in ["main", "other"].into_iter().zip(output) {
        let (first, own) = (scene.first.view_pid, scene.own());
        let rows = [
            ("compute", own.clone()),
            ("util", own.clone()),
            ("acct", own),
            ("enc", vec![first, first]),
            ("fbc", vec![first]),
        ];
        for (query, own) in rows.into_iter().take(queries(stage).len()) {
            let shown: Vec<u32> = serde_json::from_value(output[query].clone()).unwrap_or_default();
            check!(
                shown == own,
                "on the {thread} thread pynvml shows {} by {query}, the own are {own:?}",
                output[query]
            );
        }
        let memory = format!("{}", output["memory"]);
        check!(
            memory == format!("{{\"{first}\":80,\"{}\":43}}", scene.second.view_pid),
            "pynvml shows memory {memory}"
        );
    }
    Ok(())
}

/// Prints one line of JSON for the main thread and one for another.
const PYNVML_SCRIPT: &str = "
import json, threading, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
def pids(ask):
    try:
        return sorted(int(getattr(x, 'pid', x)) for x in ask())
    except n.NVMLError as e:
        return str(e)
def processes():
    try:
        return n.nvmlDeviceGetComputeRunningProcesses_v3(d)
    except n.NVMLError_FunctionNotFound:
        return n.nvmlDeviceGetComputeRunningProcesses_v2(d)
def show():
    compute = processes()
    print(json.dumps({
        'compute': sorted(p.pid for p in compute),
        'memory': {str(p.pid): (p.usedGpuMemory or 0) >> 20 for p in sorted(compute, key=lambda p: p.pid)},
        'util': pids(lambda: n.nvmlDeviceGetProcessUtilization(d, 0)),
        'acct': pids(lambda: n.nvmlDeviceGetAccountingPids(d)),
        'enc': pids(lambda: n.nvmlDeviceGetEncoderSessions(d)),
        'fbc': pids(lambda: n.nvmlDeviceGetFBCSessions(d)),
    }), flush=True)
show()
t = threading.Thread(target=show)
t.start()
t.join()
";

fn three_hundred_processes_are_listed(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let many = scene.a.hold(&["--fork", "300", "--mem", "3"])?;
    let own = sorted(scene.own().into_iter().chain(many.children.iter().copied()));
    check_list(&scene.a, "the list", &own)?;
    for chunk in many.children.chunks(200) {
        let words: Vec<String> = chunk.iter().map(u32::to_string).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let answer = scene.a.query(&[&["pidinfo"], &words[..]].concat())?;
        let wrong = answer.rows.iter().find(|row| row.get("mem").is_none_or(|bytes| bytes != "3145728"));
        check!(wrong.is_none(), "of 3 MiB each, the look-up shows {wrong:?}");
        check!(
            answer.pids() == sorted(chunk.iter().copied()),
            "the look-up shows other numbers than it was asked about"
        );
    }
    // NVML before 535 fails above 200 processes by itself.
    if stage.client_major() >= 535 && stage.has_client() {
        let answer = nvml(stage, &scene.a, &["compute"])?.remove(0);
        check_pids("NVML's list", &answer.pids(), &own)?;
        let is_wrong = |row: &&BTreeMap<String, String>| {
            let pid = row.get("pid").and_then(|pid| pid.parse().ok()).unwrap_or(0);
            many.children.contains(&pid) && row.get("mem").is_none_or(|bytes| bytes != "3145728")
        };
        let wrong = answer.rows.iter().find(is_wrong);
        check!(wrong.is_none(), "of 3 MiB each, NVML shows {wrong:?}");
    }
    Ok(())
}

/// The queries of NVML. A made-up GPU has no sessions.
fn queries(stage: &Stage) -> &'static [&'static str] {
    const ALL: &[&str] = &["compute", "util", "acct", "enc", "fbc"];
    if stage.release().is_some() { &ALL[..3] } else { ALL }
}

/// NVML in a container, entered without its runtime.
fn client_inside<'a>(stage: &'a Stage, container: &Container) -> Client<'a> {
    Client::through(container.enter_command(), &stage.client)
}

fn nvml(stage: &Stage, container: &Container, queries: &[&str]) -> anyhow::Result<Vec<Query>> {
    let answers = client_inside(stage, container).nvml(queries)?;
    anyhow::ensure!(answers.len() == queries.len(), "{} of {} queries were answered", answers.len(), queries.len());
    Ok(answers)
}

/// Utilisation by PID, without the time.
fn utilisation(client: &Client<'_>) -> anyhow::Result<BTreeMap<u32, String>> {
    let answer = client.nvml(&["util"])?.remove(0);
    let figures = |row: &BTreeMap<String, String>| {
        let value = |key| row.get(key).cloned().unwrap_or_default();
        format!("sm {} mem {} enc {} dec {}", value("sm"), value("mem"), value("enc"), value("dec"))
    };
    Ok(answer.rows.iter().filter_map(|row| Some((row.get("pid")?.parse().ok()?, figures(row)))).collect())
}
