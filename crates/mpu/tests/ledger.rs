//! The exporter's ledger over an hour of a fake clock: the sums of containers and the residue must equal the GPU's own
//! figure. The exporter is real, and its pages are read as Prometheus reads them.

use mpu::metrics::collect::{Exporter, Sources, Timeouts};
use mpu::metrics::ledger::{LONGEST_GAP, RETAINED_LIMIT, RETENTION};
use mpu::metrics::page::HostFacts;
use mpu::metrics::usage::{Container, ContainerNames, Gpu, Job, Label, Usage, Use};
use mpu::processes::Utilisation;
use mpu_core::HostPid;
use mpu_rm::EngineSample;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
const RESIDUE: u64 = 20 << 20;

/// A fake process and its lifetime in seconds.
#[derive(Clone)]
struct Life {
    container: String,
    pid: u32,
    memory: Option<u64>,
    from: u64,
    to: u64,
}

fn life(container: &str, pid: u32, memory: u64, from: u64, to: u64) -> Life {
    Life { container: container.to_string(), pid, memory: Some(memory), from, to }
}

/// The usage of the GPU at a second.
fn at(second: u64, lives: &[Life]) -> Usage {
    let here: Vec<&Life> = lives.iter().filter(|life| (life.from..life.to).contains(&second)).collect();
    let used = RESIDUE + here.iter().filter_map(|life| life.memory).sum::<u64>();
    let row = |life: &&Life| Use {
        gpu: 0,
        uuid: "GPU-0".to_string(),
        mig: String::new(),
        container: Container::new(ContainerNames {
            id: &life.container,
            name: &life.container,
            ..ContainerNames::default()
        }),
        job: Job::default(),
        uid: None,
        pid: HostPid::new(life.pid).unwrap(),
        container_pid: None,
        start_ticks: Some(life.from),
        memory: life.memory,
        utilisation: None,
    };
    let gpu = Gpu {
        index: 0,
        uuid: "GPU-0".to_string(),
        name: "NVIDIA H200".to_string(),
        memory: Some(141 * GIB),
        used: Some(used),
        readable: true,
        full: false,
        samples: None,
    };
    Usage { gpus: vec![gpu], uses: here.iter().map(row).collect() }
}

type Page = BTreeMap<String, f64>;

/// An exporter whose clock and GPUs are set by hand.
struct Rig {
    exporter: Exporter,
    set: Arc<Mutex<(Instant, Usage)>>,
    began: Instant,
}

impl Rig {
    fn new(is_long_running: bool) -> Rig {
        Rig::with(is_long_running, vec![])
    }

    fn with(is_long_running: bool, labels: Vec<Label>) -> Rig {
        let began = Instant::now();
        let set = Arc::new(Mutex::new((began, Usage::default())));
        let (clock, usage) = (set.clone(), set.clone());
        let sources = Sources {
            host: Box::new(|| Ok(HostFacts::default())),
            usage: Box::new(move || Ok(usage.lock().unwrap().1.clone())),
            clock: Box::new(move || clock.lock().unwrap().0),
        };
        let timeouts = Timeouts { fresh: Duration::ZERO, ..Timeouts::default() };
        Rig { exporter: Exporter::start(sources, labels, timeouts, is_long_running).unwrap(), set, began }
    }

    /// The rows of a scrape in that second.
    fn scrape(&self, second: u64, usage: Usage) -> Page {
        *self.set.lock().unwrap() = (self.began + Duration::from_secs(second), usage);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let page = String::from_utf8(runtime.block_on(self.exporter.page()).to_vec()).unwrap();
        assert!(!page.contains("pid=\""), "{page}");
        let rows = page.lines().filter(|line| !line.starts_with('#'));
        rows.map(|line| line.rsplit_once(' ').unwrap()).map(|(row, n)| (row.to_string(), n.parse().unwrap())).collect()
    }
}

fn of<'a>(page: &'a Page, metric: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    page.iter().filter(move |(row, _)| row.split('{').next() == Some(metric)).map(|(row, n)| (row.as_str(), *n))
}

fn sum(page: &Page, metric: &str) -> f64 {
    of(page, metric).map(|(_, number)| number).sum()
}

fn one(page: &Page, metric: &str, container: &str) -> Option<f64> {
    of(page, metric).find(|(row, _)| row.contains(&format!("container=\"{container}\""))).map(|(_, number)| number)
}

const PROCESSES: &str = "mpu_gpu_memory_used_byte_seconds_total";
const WHOLE: &str = "mpu_gpu_device_memory_used_byte_seconds_total";
const SM: &str = "mpu_gpu_sm_seconds_total";
const IDLE: &str = "mpu_gpu_idle_seconds_total";
const ENDED: &str = "mpu_gpu_processes_ended_total";

/// Eight containers whose processes start and end during an hour, and one process of the host for the whole hour.
fn hour() -> Vec<Life> {
    let mut lives = vec![life("", 7, 2 * GIB, 0, 3600)];
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for tenant in 0..8 {
        let mut second = random(60);
        while second < 3600 {
            let to = second + 20 + random(400);
            let pid = 1000 + lives.len() as u32;
            lives.push(life(&format!("tenant-{tenant}"), pid, (2 + random(14)) * GIB, second, to));
            second = to + 1 + random(60);
        }
    }
    lives
}

#[test]
fn tenant_sums_and_residue_equal_gpu_memory() {
    let lives = hour();
    let rig = Rig::new(true);
    // Like `increase`: the difference between a row's last and first value.
    let (mut first, mut last): (Page, Page) = (Page::new(), Page::new());
    let mut residue = 0.0;
    let scrapes: Vec<u64> = (0..=3600).step_by(15).collect();
    for second in &scrapes {
        let page = rig.scrape(*second, at(*second, &lives));
        let of_processes = sum(&page, "mpu_gpu_memory_used_bytes");
        let unowned = sum(&page, "mpu_gpu_memory_residue_bytes");
        assert_eq!(unowned, RESIDUE as f64);
        assert_eq!(of_processes + unowned, sum(&page, "mpu_gpu_device_memory_used_bytes"), "in second {second}");
        residue += if *second < 3600 { unowned * 15.0 } else { 0.0 };
        for (row, number) in page {
            first.entry(row.clone()).or_insert(number);
            last.insert(row, number);
        }
    }
    let increase = |metric: &str, container: &str| -> f64 {
        let of_it = |row: &str| container.is_empty() || row.contains(&format!("container=\"{container}\""));
        of(&last, metric).filter(|(row, _)| of_it(row)).map(|(row, number)| number - first[row]).sum()
    };
    let truth = |container: Option<&str>| -> f64 {
        let is_of_container = |life: &&Life| container.is_none_or(|container| life.container == container);
        let each = |life: &Life| life.memory.unwrap() as f64 * (life.to.min(3600) - life.from) as f64;
        lives.iter().filter(is_of_container).map(each).sum()
    };
    let whole = truth(None) + RESIDUE as f64 * 3600.0;
    let near = |a: f64, b: f64, within: f64| (a - b).abs() <= within * b;
    let (parts, all) = (increase(PROCESSES, "") + residue, increase(WHOLE, ""));
    assert!(near(parts, all, 1e-9), "{parts} of {all}");
    assert!(near(increase(PROCESSES, "") + residue, whole, 0.01), "{} of {whole}", increase(PROCESSES, "") + residue);
    for tenant in 0..8 {
        let name = format!("tenant-{tenant}");
        let (reported, actual) = (increase(PROCESSES, &name), truth(Some(&name)));
        assert!(near(reported, actual, 0.05), "{name}: {reported} of {actual}");
        let ended = lives.iter().filter(|life| life.container == name && life.to <= 3600).count();
        assert_eq!(increase(ENDED, &name), ended as f64, "{name}");
    }
    assert_eq!(sum(&last, "mpu_gpu_observed_seconds_total"), 3600.0);
}

#[test]
fn row_starts_at_zero_and_keeps_last_value() {
    let lives = [life("a", 1, GIB, 10, 30)];
    let rig = Rig::new(true);
    assert_eq!(one(&rig.scrape(0, at(0, &lives)), PROCESSES, "a"), None);
    assert_eq!(one(&rig.scrape(15, at(15, &lives)), PROCESSES, "a"), Some(0.0));
    let gone = rig.scrape(30, at(30, &lives));
    assert_eq!((one(&gone, PROCESSES, "a"), one(&gone, ENDED, "a")), (Some(15.0 * GIB as f64), Some(1.0)));
    assert_eq!(one(&gone, "mpu_gpu_memory_used_bytes", "a"), None, "it has none now");
    let later = rig.scrape(45, at(45, &lives));
    assert_eq!(one(&later, PROCESSES, "a"), Some(15.0 * GIB as f64));
    let last = rig.scrape(30 + RETENTION.as_secs(), at(9999, &lives));
    assert_eq!((one(&last, PROCESSES, "a"), one(&last, ENDED, "a")), (None, None), "{last:?}");
}

#[test]
fn idle_time_counts_while_driver_shows_no_work() {
    let lives =
        [life("a", 1, GIB, 0, 999), life("a", 2, GIB, 0, 999), life("b", 3, GIB, 0, 999), life("c", 4, GIB, 0, 999)];
    let rig = Rig::new(true);
    // The utilisation of the processes of a, a, b and c. None where the driver gave the sample to another process.
    let mut second = 0;
    let mut scrape = |shares: [Option<u32>; 4]| {
        let mut usage = at(second, &lives);
        for (row, share) in usage.uses.iter_mut().zip(shares) {
            row.utilisation = share.map(|gpu| Utilisation { gpu, ..Utilisation::default() });
        }
        let page = rig.scrape(second, usage);
        second += 10;
        ["a", "b", "c"].map(|container| one(&page, IDLE, container))
    };
    let zero = Some(0);
    assert_eq!(scrape([zero, zero, Some(9), None]), [Some(0.0), Some(0.0), None], "every row begins at 0");
    assert_eq!(scrape([zero, None, zero, None]), [Some(10.0), Some(0.0), None]);
    assert_eq!(scrape([zero, Some(1), zero, zero]), [Some(10.0), Some(10.0), Some(0.0)], "one of them is not known");
    assert_eq!(scrape([None; 4]), [Some(10.0), Some(20.0), Some(10.0)], "a process that works makes it busy");
    assert_eq!(scrape([zero; 4]), [Some(10.0), Some(20.0), Some(10.0)], "nothing was known");
    let mut row = at(0, &lives).uses.remove(0);
    assert_eq!(row.is_idle(), None);
    row.utilisation = Some(Utilisation { encoder: 5, ..Utilisation::default() });
    assert_eq!(row.is_idle(), Some(false));
}

/// The driver's buffer at a second: 60 samples, 200 ms apart. Process 1 works in even seconds, process 2 in odd ones.
/// The last sample of each second is idle.
fn buffer(second: u64, shares: [u32; 2]) -> Vec<EngineSample> {
    let sample = |number: u64| {
        let (of, is_idle) = ((number / 5 % 2) as usize, number % 5 == 4);
        let (busy, pid) = if is_idle { (0, None) } else { (shares[of] * 100, Some(of as u32 + 1)) };
        EngineSample { time: 1_000_000_000_000 + (number + 1) * 200_000_000, busy, pid }
    };
    ((second * 5).saturating_sub(60)..second * 5).map(sample).collect()
}

#[test]
fn sm_seconds_add_up_samples_once() {
    let lives = [life("a", 1, GIB, 0, 99), life("b", 2, GIB, 0, 99), life("c", 3, GIB, 0, 99)];
    let rig = Rig::new(true);
    let scrape = |second| {
        let mut usage = at(second, &lives);
        usage.gpus[0].samples = Some(buffer(second, [50, 100]));
        let page = rig.scrape(second, usage);
        ["a", "b", "c"].map(|container| one(&page, SM, container).map(|seconds| (seconds * 1e3).round()))
    };
    assert_eq!(scrape(20), [Some(0.0); 3], "what was before is nobody's");
    assert_eq!(scrape(22), [Some(400.0), Some(800.0), Some(0.0)]);
    assert_eq!(scrape(22), [Some(400.0), Some(800.0), Some(0.0)], "a second Prometheus");
    assert_eq!(scrape(32), [Some(2400.0), Some(4800.0), Some(0.0)]);
}

#[test]
fn sm_seconds_fill_lost_samples() {
    let lives = [life("a", 1, GIB, 0, 999), life("b", 2, GIB, 0, 31)];
    let rig = Rig::new(true);
    let scrape = |second, samples| {
        let mut usage = at(second, &lives);
        usage.gpus[0].samples = samples;
        let page = rig.scrape(second, usage);
        ["a", "b"].map(|container| one(&page, SM, container))
    };
    let near = |found: Option<f64>, wanted: f64| found.is_some_and(|found| (found - wanted).abs() < 0.05 * wanted);
    scrape(0, Some(buffer(0, [50, 100])));
    scrape(20, Some(buffer(20, [50, 100])));
    // The buffer has 12 of these 60 s, in which the process of b ended.
    let [a, b] = scrape(80, Some(buffer(80, [50, 100])));
    assert!(near(a, 0.5 * 0.4 * 60.0) && near(b, 0.4 * 60.0), "{a:?} {b:?}");
    // The driver was loaded anew, and its clock began again: nothing of that is booked twice.
    assert_eq!(scrape(90, Some(buffer(10, [50, 100]))), [a, b]);
    assert_eq!(scrape(92, None), [a, b], "no samples, no time");
    let rig = Rig::new(true);
    assert_eq!(one(&rig.scrape(0, at(0, &lives)), SM, "a"), None, "the driver has no samples");
}

#[test]
fn job_flood_evicts_no_other_users_rows() {
    let rig = Rig::with(true, vec![Label::SlurmJob, Label::SlurmStep]);
    let seconds = RETAINED_LIMIT as u64 / 100 + 20;
    for second in 0..seconds {
        let mut lives: Vec<Life> =
            (0..100).map(|i| life("", 2 + second as u32 * 100 + i, GIB >> 8, second, second + 1)).collect();
        lives.push(life("", 1, GIB, 0, 1));
        let mut usage = at(second, &lives);
        for row in &mut usage.uses {
            let pid = row.pid.get();
            (row.job, row.uid) = (Job::new(&pid.to_string(), Some("0")), Some(if pid == 1 { 1001 } else { 1000 }));
        }
        let page = rig.scrape(second, usage);
        assert!(of(&page, PROCESSES).count() <= RETAINED_LIMIT + 101);
        let theirs = of(&page, PROCESSES).filter(|(row, _)| row.contains("slurm_job=\"1\",slurm_step=\"0\"}"));
        assert_eq!(theirs.count(), 1, "in second {second}");
    }
}

#[test]
fn reused_pid_is_another_process() {
    let lives = [life("a", 1, GIB, 0, 10), life("a", 1, GIB, 12, 20)];
    let rig = Rig::new(true);
    rig.scrape(5, at(5, &lives));
    assert_eq!(one(&rig.scrape(15, at(15, &lives)), ENDED, "a"), Some(1.0));
}

#[test]
fn lingering_memory_stays_with_its_container() {
    let lives = [life("a", 1, GIB, 0, 60)];
    // NVML still lists it, but /proc no longer shows its start time and container.
    let gone = |second, lives: &[Life]| {
        let mut usage = at(second, lives);
        for row in &mut usage.uses {
            (row.start_ticks, row.container) = (None, None);
        }
        usage
    };
    let exact = |page: &Page| {
        let parts = sum(page, "mpu_gpu_memory_used_bytes") + sum(page, "mpu_gpu_memory_residue_bytes");
        assert_eq!(parts, sum(page, "mpu_gpu_device_memory_used_bytes"), "{page:?}");
    };
    let rig = Rig::new(true);
    rig.scrape(0, at(0, &lives));
    for second in [15, 30, 45] {
        let page = rig.scrape(second, gone(second, &lives));
        exact(&page);
        assert_eq!(one(&page, "mpu_gpu_memory_used_bytes", "a"), Some(GIB as f64), "in second {second}");
        assert_eq!((one(&page, ENDED, "a"), one(&page, PROCESSES, "")), (Some(0.0), None), "in second {second}");
    }
    let page = rig.scrape(60, at(60, &lives));
    assert_eq!((one(&page, ENDED, "a"), sum(&page, ENDED)), (Some(1.0), 1.0));
    assert_eq!((one(&page, PROCESSES, "a"), sum(&page, PROCESSES)), (Some(60.0 * GIB as f64), 60.0 * GIB as f64));
    // A process that no reading saw alive has an unknown owner. It must not count as the host's.
    let never = gone(75, &[life("b", 2, GIB, 70, 80)]);
    for page in [rig.scrape(75, never.clone()), Rig::new(false).scrape(75, never)] {
        exact(&page);
        assert_eq!(sum(&page, "mpu_gpu_memory_residue_bytes"), (RESIDUE + GIB) as f64);
        assert_eq!(of(&page, "mpu_gpu_processes").count(), 0);
    }
    assert_eq!(sum(&rig.scrape(90, at(90, &lives)), ENDED), 1.0, "an unowned end is not counted");
}

#[test]
fn lingering_memory_stays_with_its_job() {
    let lives = [life("", 1, GIB, 0, 60)];
    let of_job = |second, is_there: bool| {
        let mut usage = at(second, &lives);
        for row in usage.uses.iter_mut() {
            match is_there {
                true => (row.job, row.uid) = (Job::new("7", None), Some(1000)),
                false => row.start_ticks = None,
            }
        }
        usage
    };
    let rig = Rig::with(true, vec![Label::SlurmJob]);
    rig.scrape(0, of_job(0, true));
    let page = rig.scrape(15, of_job(15, false));
    let rows: Vec<_> = of(&page, "mpu_gpu_memory_used_bytes").collect();
    assert!(matches!(rows[..], [(row, _)] if row.contains("slurm_job=\"7\"")), "{rows:?}");
    assert_eq!(sum(&page, ENDED), 0.0, "{page:?}");
}

#[test]
fn unobserved_time_is_not_counted() {
    let lives = [life("a", 1, GIB, 0, 99_999), Life { memory: None, ..life("b", 2, 0, 0, 99_999) }];
    let rig = Rig::new(true);
    rig.scrape(0, at(0, &lives));
    let mut unreadable = at(20, &[]);
    unreadable.gpus[0].readable = false;
    unreadable.gpus[0].used = None;
    let blind = rig.scrape(20, unreadable);
    assert_eq!(
        (one(&blind, PROCESSES, "a"), one(&blind, ENDED, "a")),
        (Some(0.0), Some(0.0)),
        "nothing is known to be gone"
    );
    assert_eq!(of(&blind, "mpu_gpu_memory_residue_bytes").count(), 0);
    let page = rig.scrape(4000, at(4000, &lives));
    let gap = LONGEST_GAP.as_secs_f64();
    assert_eq!(one(&page, PROCESSES, "a"), Some(gap * GIB as f64));
    assert_eq!(sum(&page, "mpu_gpu_observed_seconds_total"), gap);
    assert_eq!(one(&page, PROCESSES, "b"), None, "the driver never reported its memory");
    assert_eq!(one(&page, ENDED, "b"), Some(0.0));
}

#[test]
fn containers_without_end_leave_bounded_ledger() {
    let rig = Rig::new(true);
    for second in 0..40 {
        let lives: Vec<Life> =
            (0..100).map(|i| life(&format!("c{second}-{i}"), 1 + i, GIB >> 8, second, second + 1)).collect();
        let page = rig.scrape(second, at(second, &lives));
        assert!(of(&page, PROCESSES).count() <= RETAINED_LIMIT + 100);
        if second == 39 {
            assert_eq!(of(&page, PROCESSES).count(), RETAINED_LIMIT + 100);
            assert!(
                one(&page, PROCESSES, "c38-0").is_some() && one(&page, PROCESSES, "c0-0").is_none(),
                "the oldest go first"
            );
        }
    }
}

#[test]
fn container_flood_evicts_no_other_users_rows() {
    let rig = Rig::new(true);
    let seconds = RETAINED_LIMIT as u64 / 100 + 20;
    let user = |usage: &mut Usage| {
        for row in &mut usage.uses {
            let Some(id) = (row.pid.get() > 1).then(|| format!("{}@1000", row.pid.get())) else { continue };
            row.container =
                Container::new(ContainerNames { id: &id, runtime: "docker@1000", ..ContainerNames::default() });
        }
    };
    for second in 0..seconds {
        let mut lives: Vec<Life> =
            (0..100).map(|i| life("flood", 2 + second as u32 * 100 + i, GIB >> 8, second, second + 1)).collect();
        lives.push(life("theirs", 1, GIB, 0, 1));
        let mut usage = at(second, &lives);
        user(&mut usage);
        let page = rig.scrape(second, usage);
        assert!(of(&page, PROCESSES).count() <= RETAINED_LIMIT + 101);
        assert!(one(&page, PROCESSES, "theirs").is_some(), "in second {second}");
    }
}

#[test]
fn full_process_list_ends_no_process() {
    let lives = [life("a", 1, GIB, 0, 100), life("b", 2, GIB, 0, 100)];
    let rig = Rig::new(true);
    let lacking = |second| {
        let mut usage = at(second, &lives);
        usage.uses.retain(|row| row.pid.get() == 2);
        usage.gpus[0].full = true;
        usage
    };
    rig.scrape(0, at(0, &lives));
    assert_eq!(sum(&rig.scrape(15, lacking(15)), ENDED), 0.0, "there was no room for it");
    assert_eq!(sum(&rig.scrape(30, at(30, &lives)), ENDED), 0.0);
    rig.scrape(45, lacking(45));
    let gone = at(60, &lives[1..]);
    let page = rig.scrape(60, gone);
    assert_eq!((one(&page, ENDED, "a"), sum(&page, ENDED)), (Some(1.0), 1.0), "a list with room lacks it");
}

#[test]
fn single_page_has_residue_without_time_counters() {
    let rig = Rig::new(false);
    let page = rig.scrape(0, at(0, &[life("a", 1, GIB, 0, 1)]));
    assert_eq!(sum(&page, "mpu_gpu_memory_residue_bytes"), RESIDUE as f64);
    assert_eq!(of(&page, PROCESSES).count() + of(&page, ENDED).count() + of(&page, WHOLE).count(), 0);
}
