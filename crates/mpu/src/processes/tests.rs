//! Joins NVML's rows with `/proc`, on fake hosts. Tests in QEMU guests cover NVML itself.

use super::reading::GpuReading;
use super::*;
use mpu_core::ViewPid;
use mpu_host::host::fake::FakeHost;
use mpu_host::maker;
use std::collections::BTreeSet;

const LONG: &str = "a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f90";

pub(crate) fn pid(number: u32) -> HostPid {
    HostPid::new(number).expect("a PID")
}

fn row(number: u32, kind: Kind, memory: Option<u64>) -> ProcessRow {
    ProcessRow { pid: pid(number), kind, memory, mig: None }
}

fn reading(rows: Vec<ProcessRow>, samples: Option<&[(u32, u32)]>) -> Reading {
    let sample = |(number, gpu): &(u32, u32)| (pid(*number), Utilisation { gpu: *gpu, ..Utilisation::default() });
    let samples = samples.map(|samples| samples.iter().map(sample).collect());
    Reading { gpus: vec![GpuReading { gpu: Gpu::default(), rows, samples }] }
}

/// A host on which ada's process 20001 is PID 5 in a docker container.
fn host() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n");
    fake.write("/proc/stat", "cpu 1 2 3\nbtime 1700000000\n");
    fake.write("/proc/20001/status", "Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t20001\t5\n");
    fake.write("/proc/20001/cmdline", "python3\0train.py\0--lr=0.1\0");
    fake.write("/proc/20001/stat", &stat(12_345));
    fake.write("/proc/20001/cgroup", &format!("0::/system.slice/docker-{LONG}.scope\n"));
    descriptor(&fake, 20001, 3, DRIVERS);
    fake
}

/// The driver's device on fake hosts: one that every Linux has.
const DRIVERS: &str = "/dev/full";

fn descriptor(fake: &FakeHost, number: u32, descriptor: u32, target: &str) {
    fake.link(&format!("/proc/{number}/fd/{descriptor}"), target);
}

fn makers() -> maker::Look {
    maker::Look::at_most(1 << 16, |device| device == Some((1, 7)))
}

fn cache(depth: Depth) -> Cache {
    Cache::with(depth, makers)
}

fn facts(fake: &FakeHost, cache: &mut Cache, number: u32) -> Facts {
    let host = fake.host();
    let context = cache.begin(&host, BTreeSet::from([20001, 20002].map(pid)));
    cache.of(&context, pid(number))
}

fn stat(ticks: u64) -> String {
    format!("20001 (evil) name) S 1 1 1 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 {ticks} 1000 10\n")
}

fn joined(fake: &FakeHost, reading: Reading) -> Snapshot {
    join(&fake.host(), reading, 7, &mut cache(Depth::Everything))
}

#[test]
fn row_has_facts_of_its_process() {
    let seen = joined(&host(), reading(vec![row(20001, Kind::Compute, Some(64 << 20))], Some(&[(20001, 30)])));
    let process = &seen.processes[0];
    let facts = &process.facts;
    assert_eq!((process.pid, facts.container_pid), (pid(20001), ViewPid::new(5)));
    assert_eq!((facts.uid, facts.user.as_deref()), (Some(1000), Some("ada")));
    assert_eq!((facts.name.as_deref(), facts.command.as_deref()), (Some("python3"), Some("python3 train.py --lr=0.1")));
    assert_eq!(facts.started, Some(1_700_000_123));
    assert_eq!(facts.container.as_ref().map(|c| c.short_id()), Some(&LONG[..12]));
    assert_eq!((process.memory, process.utilisation.map(|u| u.gpu)), (Some(64 << 20), Some(30)));
}

#[test]
fn lowest_cgroup_limit_applies() {
    let fake = host();
    let look = |fake: &FakeHost| {
        let mut reading = reading(vec![row(20001, Kind::Compute, Some(64 << 20))], None);
        reading.gpus[0].gpu.bus_id = Some("00000000:1b:00.0".to_string());
        joined(fake, reading).processes[0].memory_limit
    };
    let region = "nvidia/00000000:1B:00.0/vidmem";
    let docker = format!("/sys/fs/cgroup/system.slice/docker-{LONG}.scope/dmem.max");
    fake.write(&docker, &format!("drm/0000:03:00.0/vram0 5\n{region} 4294967296\n"));
    assert_eq!(look(&fake), None, "a kernel without the controller");
    fake.write("/sys/fs/cgroup/dmem.capacity", &format!("{region} 150754820096\n"));
    assert_eq!(look(&fake), Some(4 << 30));
    fake.write("/sys/fs/cgroup/system.slice/dmem.max", &format!("{region} 1073741824\n"));
    assert_eq!(look(&fake), Some(1 << 30), "what is above holds, too");
    fake.write("/sys/fs/cgroup/system.slice/dmem.max", &format!("{region} max\n"));
    fake.write(&docker, &format!("{region} max\n"));
    assert_eq!(look(&fake), None);
    for odd in ["", "no line", "nvidia/00000000:1B:00.0/vidmem", "nvidia/00000000:1B:00.0/vidmem -1\n\u{0}"] {
        fake.write(&docker, odd);
        assert_eq!(look(&fake), None, "{odd:?}");
    }
    // Elsewhere in the tree of cgroups, and a path that leads out of it.
    fake.write(&docker, &format!("{region} 7\n"));
    for (cgroups, limit) in
        [("0::/\n", None), ("1:cpu:/a\n", None), ("0::/../system.slice\n", None), ("0::/gone\n", None)]
    {
        fake.write("/proc/20001/cgroup", cgroups);
        assert_eq!(look(&fake), limit, "{cgroups}");
    }
}

#[test]
fn reused_pid_keeps_no_facts_of_successor() {
    let fake = host();
    let mut cache = cache(Depth::Everything);
    let region = "nvidia/00000000:1B:00.0/vidmem 1073741824\n";
    fake.write("/sys/fs/cgroup/dmem.capacity", region);
    fake.write("/sys/fs/cgroup/system.slice/dmem.max", region);
    let mut look = || {
        let mut reading = reading(vec![row(20001, Kind::Compute, Some(64 << 20))], None);
        reading.gpus[0].gpu.bus_id = Some("00000000:1B:00.0".to_string());
        join(&fake.host(), reading, 7, &mut cache)
    };
    // The process that got the PID has other files open; a child of the client's maker keeps its descriptor.
    fake.remove("/proc/20001/fd");
    descriptor(&fake, 20001, 3, "/dev/null");
    descriptor(&fake, 20002, 3, DRIVERS);
    fake.write("/proc/20002/comm", "worker\n");
    let process = look().processes.remove(0);
    let facts = process.facts;
    assert_eq!(facts.command.as_deref(), Some("ended, memory still held by 20002 (worker)"));
    assert_eq!((facts.container, facts.container_pid, process.memory), (None, None, Some(64 << 20)));
    assert_eq!((facts.start_ticks, process.memory_limit), (None, None), "the heir's cgroup is not its own");
    // Now as its own maker; a process seen with the driver stays its owner.
    descriptor(&fake, 20001, 4, DRIVERS);
    let process = look().processes.remove(0);
    assert_eq!((process.facts.name.as_deref(), process.memory_limit), (Some("python3"), Some(1 << 30)));
    fake.remove("/proc/20001/fd/4");
    assert_eq!(look().processes[0].facts.name.as_deref(), Some("python3"));
}

#[test]
fn limit_of_successor_is_none() {
    let fake = host();
    let region = "nvidia/00000000:1B:00.0/vidmem 1073741824\n";
    fake.write("/sys/fs/cgroup/dmem.capacity", region);
    fake.write("/sys/fs/cgroup/system.slice/dmem.max", region);
    let host = fake.host();
    let context = cache(Depth::Everything).begin(&host, BTreeSet::from([pid(20001)]));
    let limit = |ticks| Limits::of(&host).of_process(&context, pid(20001), ticks, Some("00000000:1B:00.0"));
    assert_eq!((limit(12_345), limit(99_999)), (Some(1 << 30), None));
}

#[test]
fn process_with_moved_descriptors_keeps_container() {
    let name = |fake: &FakeHost| facts(fake, &mut cache(Depth::Owner), 20001).container.map(|container| container.id);
    let expected = Some(LONG.to_string());
    let fake = host();
    assert_eq!(name(&fake), expected, "the node's name is not the driver's, its device is");
    // A thread with a table of its own.
    fake.remove("/proc/20001/fd");
    descriptor(&fake, 20001, 3, "/dev/null");
    assert_eq!(name(&fake), None, "an heir");
    fake.link("/proc/20001/task/20009/fd/7", DRIVERS);
    assert_eq!(name(&fake), expected);
}

#[test]
fn process_with_dead_leader_uses_other_threads() {
    let fake = host();
    fake.remove("/proc/20001/fd");
    std::fs::create_dir_all(fake.host().at("/proc/20001/fd")).expect("a folder");
    let zombie = stat(12_345).replace(") S ", ") Z ");
    fake.write("/proc/20001/stat", &zombie);
    let look = || facts(&fake, &mut cache(Depth::Everything), 20001);
    assert_eq!(look().container.map(|container| container.id).as_deref(), Some(LONG), "version 2 goes on saying it");
    // Cgroup version 1 shows an ended thread at the root.
    fake.write("/proc/20001/cgroup", "4:memory:/\n1:name=systemd:/\n0::/\n");
    let without_facts = look();
    assert_eq!((without_facts.container, without_facts.start_ticks), (None, None), "and not the host's");
    fake.write("/proc/20001/task/20001/stat", &zombie);
    fake.write("/proc/20001/task/20009/stat", "20009 (python3) R 1");
    fake.write("/proc/20001/task/20009/cgroup", &format!("4:memory:/docker/{LONG}\n"));
    fake.write("/proc/20001/task/20009/cmdline", "python3\0train.py\0");
    let living = look();
    assert_eq!(living.container.map(|container| container.id).as_deref(), Some(LONG));
    assert_eq!((living.command.as_deref(), living.start_ticks), (Some("python3 train.py"), Some(12_345)));
}

thread_local! {
    /// Changes a host while its descriptors are read.
    static MEANWHILE: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
}

/// The facts of a process, if this change happens between the first and the last read.
fn facts_after_change_during_read(happens: impl FnOnce(&FakeHost) + 'static) -> Facts {
    let fake = std::rc::Rc::new(host());
    let copy = fake.clone();
    MEANWHILE.with(|meanwhile| *meanwhile.borrow_mut() = Some(Box::new(move || happens(&copy))));
    let makers = || {
        maker::Look::at_most(1 << 16, |device| {
            if let Some(happens) = MEANWHILE.with(|meanwhile| meanwhile.borrow_mut().take()) {
                happens();
            }
            device == Some((1, 7))
        })
    };
    facts(&fake, &mut Cache::with(Depth::Owner, makers), 20001)
}

#[test]
fn process_ending_during_read_has_no_facts() {
    assert_eq!(facts_after_change_during_read(|_| ()).container.map(|container| container.id).as_deref(), Some(LONG));
    let without_facts = Facts::default();
    // Cgroup version 1 shows an ended process at the root.
    let ends = |fake: &FakeHost| {
        fake.write("/proc/20001/stat", &stat(12_345).replace(") S ", ") Z "));
        fake.write("/proc/20001/cgroup", "4:memory:/\n1:name=systemd:/\n0::/\n");
    };
    assert_eq!(facts_after_change_during_read(ends), without_facts);
    assert_eq!(facts_after_change_during_read(|fake| fake.remove("/proc/20001")), without_facts);
    let heir = |fake: &FakeHost| {
        fake.write("/proc/20001/stat", &stat(99_999));
        fake.write("/proc/20001/cgroup", &format!("0::/system.slice/docker-{}.scope\n", LONG.replace('a', "b")));
    };
    assert_eq!(facts_after_change_during_read(heir), without_facts);
    let of_the_host = facts_after_change_during_read(|fake| fake.write("/proc/20001/cgroup", "0::/\n"));
    assert_eq!((of_the_host.container, of_the_host.start_ticks), (None, Some(12_345)), "one that lives counts");
}

/// A cgroup may be so deep that the kernel gives no path, and a container makes its own cgroups.
#[test]
fn process_without_readable_cgroup_has_no_container() {
    let fake = host();
    fake.remove("/proc/20001/cgroup");
    assert_eq!(facts(&fake, &mut cache(Depth::Owner), 20001), Facts::default());
    let shown = facts(&fake, &mut cache(Depth::Everything), 20001);
    assert_eq!((shown.name.as_deref(), shown.container), (Some("python3"), None), "a person sees what is known");
}

/// Limits take a read for each cgroup above a process, a tenant can create thousands, and no metric needs them.
#[test]
fn exporter_reads_no_limits() {
    let fake = host();
    let region = "nvidia/00000000:1B:00.0/vidmem 1073741824\n";
    fake.write("/sys/fs/cgroup/dmem.capacity", region);
    fake.write("/sys/fs/cgroup/system.slice/dmem.max", region);
    let limit = |depth| {
        let mut reading = reading(vec![row(20001, Kind::Compute, Some(1))], None);
        reading.gpus[0].gpu.bus_id = Some("00000000:1B:00.0".to_string());
        join(&fake.host(), reading, 7, &mut cache(depth)).processes[0].memory_limit
    };
    assert_eq!((limit(Depth::Everything), limit(Depth::Owner)), (Some(1 << 30), None));
}

#[test]
fn unverified_process_facts_are_not_cached() {
    let fake = host();
    fake.remove("/proc/20001/fd");
    for number in 0..20 {
        descriptor(&fake, 20001, number, "/dev/null");
    }
    let few = || maker::Look::at_most(10, |device| device == Some((1, 7)));
    let mut cache = Cache::with(Depth::Everything, few);
    assert_eq!(facts(&fake, &mut cache, 20001).name.as_deref(), Some("python3"));
    fake.write("/proc/20001/status", "Name:\tother\n");
    assert_eq!(facts(&fake, &mut cache, 20001).name.as_deref(), Some("other"));
}

#[test]
fn holders_are_searched_once_and_not_for_exporter() {
    let fake = host();
    for number in [20001, 20002] {
        fake.write(&format!("/proc/{number}/stat"), "");
    }
    for number in 30_001..30_031 {
        descriptor(&fake, number, 3, DRIVERS);
        fake.write(&format!("/proc/{number}/comm"), "worker\n");
    }
    let rows = || reading(vec![row(20001, Kind::Compute, Some(1)), row(20002, Kind::Compute, Some(1))], None);
    let host = fake.host();
    let mut cache = cache(Depth::Everything);
    let context = cache.begin(&host, BTreeSet::from([20001, 20002].map(pid)));
    let command = cache.of(&context, pid(20001)).command.expect("holders");
    assert_eq!(command.matches("(worker)").count(), 16, "not all of them: {command}");
    fake.remove("/proc/30001/comm");
    assert_eq!(cache.of(&context, pid(20002)).command, Some(command));
    let billed = join(&host, rows(), 7, &mut super::tests::cache(Depth::Owner));
    assert!(billed.processes.iter().all(|row| row.facts.command.is_none() && row.facts.start_ticks.is_none()));
}

#[test]
fn exporter_skips_user_owned_files() {
    let fake = host();
    let line = format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{LONG}.scope\n");
    fake.write("/proc/20001/cgroup", &line);
    fake.write(&format!("/home/ada/.local/share/docker/containers/{LONG}/config.v2.json"), r#"{"Name":"/notebook"}"#);
    let name = |depth| facts(&fake, &mut cache(depth), 20001).container.and_then(|container| container.name);
    assert_eq!(name(Depth::Everything).as_deref(), Some("notebook"));
    assert_eq!(name(Depth::Owner), None);
    let owner = facts(&fake, &mut cache(Depth::Owner), 20001);
    assert_eq!((owner.command, owner.start_ticks), (None, Some(12_345)));
}

#[test]
fn ended_process_keeps_its_row() {
    let fake = host();
    fake.remove("/proc/20001");
    let seen = joined(&fake, reading(vec![row(4242, Kind::Graphics, None)], None));
    let process = &seen.processes[0];
    assert_eq!((process.pid, process.kind, process.memory), (pid(4242), Kind::Graphics, None));
    let facts = &process.facts;
    assert_eq!((&facts.command, facts.uid, &facts.container, process.utilisation), (&None, None, &None, None));
}

#[test]
fn several_rows_of_process_on_gpu_are_one() {
    let rows = vec![
        row(20001, Kind::Compute, Some(10)),
        row(20001, Kind::Compute, Some(10)),
        row(20001, Kind::Graphics, None),
        row(20002, Kind::Mps, Some(3)),
        row(20002, Kind::Compute, Some(3)),
    ];
    let seen = joined(&host(), reading(rows, None));
    let rows: Vec<_> = seen.processes.iter().map(|p| (p.pid.get(), p.kind.letters(), p.memory)).collect();
    assert_eq!(rows, [(20001, "C+G", Some(10)), (20002, "M+C", Some(3))]);
}

#[test]
fn process_on_two_mig_parts_has_two_rows() {
    let part = |gpu_instance| Some(Mig { gpu_instance, compute_instance: Some(0) });
    let rows = vec![
        ProcessRow { mig: part(2), ..row(20001, Kind::Compute, Some(1)) },
        ProcessRow { mig: part(1), ..row(20001, Kind::Compute, Some(2)) },
    ];
    let seen = joined(&host(), reading(rows, None));
    let rows: Vec<_> = seen.processes.iter().map(|p| (p.mig, p.memory)).collect();
    assert_eq!(rows, [(part(1), Some(2)), (part(2), Some(1))]);
}

#[test]
fn unsampled_process_on_idle_gpu_used_zero() {
    let rows = || vec![row(20001, Kind::Compute, None)];
    let seen = joined(&host(), reading(rows(), Some(&[(20002, 60)])));
    assert_eq!(seen.processes[0].utilisation, None, "a busier one has all the samples");
    let seen = joined(&host(), reading(rows(), Some(&[(20002, 0)])));
    assert_eq!(seen.processes[0].utilisation, Some(Utilisation::default()));
    let seen = joined(&host(), reading(rows(), Some(&[])));
    assert_eq!(seen.processes[0].utilisation, Some(Utilisation::default()));
    let seen = joined(&host(), reading(rows(), None));
    assert_eq!(seen.processes[0].utilisation, None);
}

#[test]
fn reused_pid_gets_new_facts() {
    let fake = host();
    let mut cache = cache(Depth::Everything);
    let rows = || reading(vec![row(20001, Kind::Compute, None)], None);
    let mut command = |fake: &FakeHost| {
        let seen = join(&fake.host(), rows(), 7, &mut cache);
        seen.processes[0].facts.command.clone().unwrap_or_default()
    };
    assert_eq!(command(&fake), "python3 train.py --lr=0.1");
    fake.write("/proc/20001/cmdline", "sleep\0");
    assert_eq!(command(&fake), "python3 train.py --lr=0.1");
    fake.write("/proc/20001/stat", &stat(99_999));
    assert_eq!(command(&fake), "sleep");
}

#[test]
fn clock_change_keeps_start_ticks() {
    let fake = host();
    // The exporter reads in a new process each time.
    let look = || joined(&fake, reading(vec![row(20001, Kind::Compute, None)], None)).processes.remove(0).facts;
    let before = look();
    fake.write("/proc/stat", "btime 1700003600\n");
    let after = look();
    assert_ne!(before.started, after.started);
    assert_eq!((before.start_ticks, after.start_ticks), (Some(12_345), Some(12_345)));
}

#[test]
fn malformed_proc_files_give_none() {
    let fake = host();
    for (file, text) in [("status", "Uid:\tx\nNSpid:\t\nName:"), ("stat", "20001 (python3"), ("cgroup", ":::")] {
        fake.write(&format!("/proc/20001/{file}"), text);
    }
    fake.write("/proc/20001/cmdline", "");
    let facts = facts(&fake, &mut cache(Depth::Everything), 20001);
    assert_eq!((facts.uid, facts.container_pid, facts.started, facts.command), (None, None, None, None));
}

#[test]
fn passwd_and_boot_time_are_read_once() {
    let fake = host();
    fake.write("/proc/20002/status", "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t20002\n");
    fake.write("/proc/20002/stat", &stat(200));
    let mut cache = cache(Depth::Everything);
    descriptor(&fake, 20002, 3, DRIVERS);
    facts(&fake, &mut cache, 20001);
    fake.remove("/proc/stat");
    fake.remove("/etc/passwd");
    let other = facts(&fake, &mut cache, 20002);
    assert_eq!((other.user.as_deref(), other.started), (Some("ada"), Some(1_700_000_002)));
}

/// A process whose memory cannot be read (`blocked.c`), and its PID. Dropping it ends both processes.
struct Blocked(std::process::Child, u32);

impl Blocked {
    fn start(folder: &std::path::Path) -> Option<Blocked> {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let (program, source) = (folder.join("blocked"), folder.join("blocked.c"));
        std::fs::write(&source, include_str!("blocked.c")).expect("a file");
        let made = Command::new("cc").args(["-pthread", "-o"]).args([&program, &source]).status();
        assert!(made.expect("a compiler, which Rust links with").success());
        let mut child = Command::new(program).arg(folder).stdout(Stdio::piped()).spawn().expect("a program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        if let Ok(pid) = line.trim().parse() {
            return Some(Blocked(child, pid));
        }
        assert_eq!(child.wait().expect("waited").code(), Some(77), "{line}");
        None
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn command_line_without_answer_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(blocked) = Blocked::start(folder.path()) else {
        return eprintln!("skipped: not root, or no FUSE");
    };
    let fake = host();
    fake.remove("/proc/20001/cmdline");
    fake.link("/proc/20001/cmdline", format!("/proc/{}/cmdline", blocked.1));
    let began = std::time::Instant::now();
    let mut cache = cache(Depth::Everything);
    // All together have a limit.
    for ticks in 0..40 {
        fake.write("/proc/20001/stat", &stat(ticks));
        let facts = facts(&fake, &mut cache, 20001);
        assert_eq!((facts.name.as_deref(), facts.command), (Some("python3"), None));
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(60));
}

#[test]
fn status_with_most_groups_is_read() {
    let fake = host();
    let groups = "4294967294 ".repeat(65_536);
    let status = format!("Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGroups:\t{groups}\nNSpid:\t20001\t5\n");
    fake.write("/proc/20001/status", &status);
    let facts = facts(&fake, &mut cache(Depth::Everything), 20001);
    assert_eq!((facts.uid, facts.container_pid, facts.name.as_deref()), (Some(1000), ViewPid::new(5), Some("x")));
}

#[test]
fn command_line_has_end() {
    let fake = host();
    fake.write("/proc/20001/cmdline", &"x\0".repeat(1 << 20));
    let command = facts(&fake, &mut cache(Depth::Everything), 20001).command.expect("a command");
    assert!(command.len() <= 4096, "{}", command.len());
}

#[test]
fn monitor_outside_host_namespace_is_refused() {
    let fake = FakeHost::in_order();
    let error = Monitor::open(&fake.host(), Depth::Everything).err().expect("a made-up host has no namespace");
    use mpu_host::explain::Explain;
    assert_eq!((error.code(), error.exit()), ("not_on_host", mpu_host::Exit::NotReady));
}

#[test]
fn json_has_plain_numbers() {
    let seen = joined(&host(), reading(vec![row(20001, Kind::Compute, Some(1))], None));
    let value = serde_json::to_value(&seen).expect("JSON");
    assert_eq!(value["processes"][0]["pid"], 20001);
    assert_eq!(value["processes"][0]["container_pid"], 5);
    assert_eq!(value["processes"][0]["container"]["runtime"], "docker");
}
