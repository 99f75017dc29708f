//! The list on fake snapshots.

use super::*;
use crate::processes::tests::pid;
use crate::processes::{Facts, Kind, Memory, Mig, MigDevice, Utilisation};
use clap::Parser;
use mpu_core::ViewPid;
use mpu_host::containers::{Container, Pod, Runtime};
use mpu_host::host::fake::FakeHost;

const LONG: &str = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90";

fn process(number: u32, gpu: u32, mib: u64) -> GpuProcess {
    GpuProcess {
        pid: pid(number),
        gpu,
        mig: None,
        kind: Kind::Compute,
        memory: Some(mib << 20),
        memory_limit: None,
        utilisation: Some(Utilisation { gpu: 7, memory: 3, encoder: 0, decoder: 0 }),
        facts: Facts {
            uid: Some(0),
            user: Some("root".to_string()),
            name: Some("python3".to_string()),
            command: Some(format!("python3 train.py --gpu {gpu}")),
            started: Some(1_700_000_000),
            ..Facts::default()
        },
    }
}

/// A process on the host, one in docker, one in a pod in a kind node.
pub(crate) fn seen() -> Snapshot {
    let gpu = |index: u32| Gpu {
        index,
        uuid: Some(format!("GPU-{index}aaa-bbbb")),
        name: Some("NVIDIA H200".to_string()),
        bus_id: Some(format!("00000000:{index}5:00.0")),
        memory: Some(Memory { total: 143_771 << 20, used: 9_000 << 20 }),
        utilisation: Some(40),
        memory_utilisation: Some(12),
        temperature: Some(41),
        power: Some(212_000),
        power_limit: Some(700_000),
        ..Gpu::default()
    };
    let docker = |name: &str| Container {
        id: LONG.to_string(),
        runtime: Runtime::Docker,
        user: None,
        name: Some(name.to_string()),
        pod: None,
        outer: None,
    };
    let pod = Pod {
        uid: Some("2ca4a155-3599".to_string()),
        name: Some("serve-0".to_string()),
        namespace: Some("web".to_string()),
    };
    let inner = Container {
        id: LONG.chars().rev().collect(),
        runtime: Runtime::Containerd,
        user: None,
        name: None,
        pod: Some(pod),
        outer: Some(Box::new(docker("kind-worker"))),
    };
    let contained = |container: Container, view: u32, mut p: GpuProcess| {
        let (container_pid, container) = (ViewPid::new(view), Some(container));
        p.facts = Facts { container_pid, container, uid: Some(1000), user: None, ..p.facts };
        p
    };
    let mut of_job = process(100, 0, 500);
    of_job.facts.job = Some(mpu_host::cgroup::Job { id: "77".to_string(), step: Some("0".to_string()) });
    let part = MigDevice { instance: Mig { gpu_instance: 1, compute_instance: Some(0) }, uuid: None, memory: None };
    Snapshot {
        at: 1_700_003_725,
        gpus: vec![gpu(0), Gpu { mig: vec![part], ..gpu(1) }],
        processes: vec![
            of_job,
            contained(docker("train"), 5, process(20_001, 0, 8_000)),
            contained(inner, 12, process(20_002, 1, 300)),
        ],
    }
}

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    options: ListOptions,
}

fn list(line: &str, width: Option<usize>) -> ProcessList {
    let words = std::iter::once("ps").chain(line.split_whitespace());
    let options = Line::try_parse_from(words).expect("a line that makes sense").options;
    select(&FakeHost::in_order().host(), seen(), &options, width)
}

fn pids(line: &str) -> Vec<u32> {
    list(line, None).processes.iter().map(|p| p.pid.get()).collect()
}

#[test]
fn table_lists_process_columns() {
    let expected = "\
GPU    PID  CPID  USER  CONTAINER     NAMESPACE  POD      TYPE   MEMORY  GPU%  COMMAND
  0  20001     5  1000  train         -          -        C     8000MiB     7  python3 train.py --gpu 0
  0    100     -  root  -             -          -        C      500MiB     7  python3 train.py --gpu 0
  1  20002    12  1000  09f8e7d6c5b4  web        serve-0  C      300MiB     7  python3 train.py --gpu 1
";
    assert_eq!(list("", None).text(Style::Plain), expected);
}

#[test]
fn columns_can_be_chosen_and_titles_left_out() {
    assert_eq!(
        list("-o pid,cpid,age --no-headers --gpu 0", None).text(Style::Plain),
        "20001  5  1h02m\n  100  -  1h02m\n"
    );
    let wide = list("--wide", Some(40)).text(Style::Plain);
    assert!(wide.contains("kind-worker") && wide.contains("docker") && wide.contains("--gpu 1"), "{wide}");
}

#[test]
fn unknown_gpu_filter_is_error() {
    let check = |line: &str| {
        let words = ["ps", "--gpu", line];
        let filter = Line::try_parse_from(words).expect("a line that makes sense").options.filter;
        filter.check(&seen().gpus).map_err(|error| error.to_string())
    };
    assert_eq!(check("0,1"), Ok(()));
    assert_eq!(check("GPU-1aaa"), Ok(()));
    assert_eq!(check("15:00.0"), Ok(()));
    assert_eq!(check("7"), Err("there is no GPU 7: this host has 0, 1".to_string()));
    assert_eq!(check("0,GPU-9"), Err("there is no GPU GPU-9: this host has 0, 1".to_string()));
}

#[test]
fn no_line_is_wider_than_terminal() {
    use unicode_width::UnicodeWidthStr;
    for width in 80..140 {
        let text = list("", Some(width)).text(Style::Plain);
        assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
        assert_eq!(text.lines().count(), 4);
    }
}

#[test]
fn rows_follow_requested_order() {
    assert_eq!(pids(""), [20_001, 100, 20_002]);
    assert_eq!(pids("--sort memory"), [20_002, 100, 20_001]);
    assert_eq!(pids("--sort -gpu,pid"), [20_002, 100, 20_001]);
    assert_eq!(pids("--sort -pid"), [20_002, 20_001, 100]);
}

#[test]
fn filters_are_combined_with_and() {
    for (line, expected) in [
        ("--gpu 0", &[20_001, 100][..]),
        ("--gpu 0,1 --user root", &[100]),
        ("--gpu GPU-1aaa", &[20_002]),
        ("--gpu 15:00.0", &[20_002]),
        ("--container train", &[20_001]),
        ("--container a1b2c3", &[20_001, 20_002]),
        ("--container kind-*", &[20_002]),
        ("--pod serve-*", &[20_002]),
        ("--pod 2ca4a155", &[20_002]),
        ("--namespace web", &[20_002]),
        ("--user 1000", &[20_001, 20_002]),
        ("--runtime containerd", &[20_002]),
        ("--runtime docker,podman", &[20_001, 20_002]),
        ("--runtime docker --gpu 0", &[20_001]),
        ("--container absent", &[]),
    ] {
        assert_eq!(pids(line), expected, "{line}");
    }
}

#[test]
fn empty_list_is_noted_beside_table() {
    let none = list("--user nobody", None);
    assert_eq!((none.text(Style::Plain).as_str(), none.left_out, none.exit()), ("", 3, Exit::Ok));
    assert!(none.stderr_lines()[0].contains("none of the 3 processes"), "{:?}", none.stderr_lines());
    let empty = Snapshot { processes: vec![], ..seen() };
    let empty = select(&FakeHost::in_order().host(), empty, &ListOptions::default(), None);
    assert_eq!(empty.stderr_lines(), ["no process uses a GPU"]);
}

#[test]
fn unreadable_processes_and_gpus_are_noted() {
    let fake = FakeHost::in_order();
    assert_eq!(notes(&fake.host(), &seen()), [""; 0], "root, and an unused name");
    fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    let notes = notes(&fake.host(), &seen());
    assert!(notes.len() == 1 && notes[0].contains("sudo mpu ps"), "{notes:?}");
    let mut dark = seen();
    dark.processes[0].facts.uid = None;
    dark.gpus[1].unreadable = Some("device fell off the bus".to_string());
    let list = select(&fake.host(), dark, &ListOptions::default(), None);
    assert_eq!(list.exit(), Exit::Failed);
    assert!(list.notes[0].contains("GPU 1") && list.notes[1].contains("hidepid"), "{:?}", list.notes);
}

#[test]
fn json_is_documented() {
    let json = crate::report::json_of("ps", &list("", None));
    crate::report::documented::check(&json);
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&value["processes"][0]["pid"], &value["processes"][0]["container"]["name"]),
        (&20_001.into(), &"train".into())
    );
}
