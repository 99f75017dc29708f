//! The exporter with Prometheus, node_exporter and hostile clients, and its cost.
//!
//! Tests with many processes or a hanging driver use fake facts. `exporter` below is the real server with fake facts,
//! in its own process so that its memory can be measured. Tests in QEMU guests use a driver.

mod promtool;

use mpu::metrics::collect::{Exporter, ReadError, Sources, Timeouts};
use mpu::metrics::page::{HostFacts, is_missed};
use mpu::metrics::usage::{Container, ContainerNames, Gpu, Job, Label, Usage, Use};
use mpu::metrics::{OutputMode, families, run};
use mpu::processes::Utilisation;
use mpu_core::{HostPid, Reason, ViewPid};
use mpu_engine::Engine;
use mpu_engine::observe::{Cost, Observed};
use mpu_host::driver::{Driver, Flavour};
use mpu_host::phase::Phase;
use promtool::promtool;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

fn engine() -> Observed {
    Observed {
        engine: Engine::Module,
        version: "0.1.0".to_string(),
        state: Phase::Refused,
        refused: Some(("os_find_ns_pid".to_string(), 16)),
        inside: 2,
        orphans: Some(1),
        claimed: Some(true),
        tracing: Some(true),
        since: Some(1_795_205_700),
        containers: None,
        forwarded: None,
        restarts: None,
        costs: Vec::new(),
        translated: vec![("GPU_GET_PIDS".to_string(), 12)],
        passed: Reason::ALL.iter().map(|reason| (reason.name().to_string(), 3)).collect(),
    }
}

/// The other engine, up beside it.
fn supervisor() -> Observed {
    Observed {
        engine: Engine::Notify,
        state: Phase::Retired,
        refused: None,
        inside: 0,
        orphans: None,
        claimed: None,
        tracing: None,
        since: Some(1_795_205_800),
        containers: Some(4),
        forwarded: Some(1234),
        restarts: Some(2),
        costs: vec![Cost { container: "3f2a81".into(), cpu_microseconds: 1_500_000, held_back_microseconds: 250_000 }],
        translated: vec![("GPU_GET_PIDS".to_string(), 7)],
        passed: vec![("out_of_reach".to_string(), 5)],
        ..engine()
    }
}

fn facts() -> HostFacts {
    let driver =
        Driver { version: "580.159.04".to_string(), release: "580.159.04".parse().ok(), flavour: Flavour::Open };
    HostFacts { engines: vec![engine(), supervisor()], driver: Some(driver) }
}

/// This number of processes on eight GPUs: the first process on each GPU is the host's, the others share containers by
/// twos.
fn usage(processes: u32) -> Usage {
    let gpu = |index: u32| (index % 8, format!("GPU-5f0c0e9b-5b6c-4b1c-9b53-00000000000{}", index % 8));
    let of = |index: u32| Use {
        gpu: gpu(index).0,
        uuid: gpu(index).1,
        mig: String::new(),
        container: (index >= 8)
            .then(|| {
                Container::new(ContainerNames {
                    id: &format!("{:064x}", index / 16 * 8 + index % 8),
                    name: &format!("trainer-{}", index / 2),
                    pod: &format!("llama-finetune-{}-7c9d8b6f5-x2x4z", index / 2),
                    pod_uid: &format!("uid-{}", index / 16 * 8 + index % 8),
                    namespace: "team-research",
                    runtime: "containerd",
                })
            })
            .flatten(),
        job: Job::new(&format!("{}", 70 + index / 8), Some(["batch", "0"][index as usize / 8 % 2])),
        uid: Some(1000),
        pid: HostPid::new(4000 + index).unwrap(),
        container_pid: ViewPid::new(1 + index % 50),
        start_ticks: Some(u64::from(index)),
        memory: Some(1 << 28),
        utilisation: Some(Utilisation { gpu: 7, memory: 3, encoder: 0, decoder: 0 }),
    };
    let gpus = (0..8).map(|i| Gpu {
        index: i,
        uuid: gpu(i).1,
        name: "NVIDIA H200".to_string(),
        memory: Some(141 << 30),
        used: Some(70 << 30),
        readable: true,
        full: false,
        samples: Some(Vec::new()),
    });
    Usage { gpus: gpus.collect(), uses: (0..processes).map(of).collect() }
}

fn sources_of(usage: impl FnMut() -> Result<Usage, ReadError> + Send + 'static) -> Sources {
    Sources { host: Box::new(|| Ok(facts())), usage: Box::new(usage), clock: Box::new(Instant::now) }
}

fn sources(processes: u32) -> Sources {
    let usage = usage(processes);
    sources_of(move || Ok(usage.clone()))
}

/// Blocks readings of the GPUs until it is open, and counts the readings.
#[derive(Clone, Default)]
struct Gate {
    is_open: Arc<(Mutex<bool>, Condvar)>,
    readings: Arc<AtomicU64>,
}

impl Gate {
    fn sources(&self) -> Sources {
        let gate = self.clone();
        sources_of(move || {
            gate.readings.fetch_add(1, Ordering::SeqCst);
            drop(gate.is_open.1.wait_while(gate.is_open.0.lock().unwrap(), |open| !*open).unwrap());
            Ok(usage(10))
        })
    }

    fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }

    fn readings(&self) -> u64 {
        self.readings.load(Ordering::SeqCst)
    }
}

/// An exporter that reads anew at each scrape.
fn exporter_of(sources: Sources, part: Duration) -> Exporter {
    Exporter::start(sources, vec![], Timeouts { fresh: Duration::ZERO, part }, true).unwrap()
}

async fn text(exporter: &Exporter) -> String {
    String::from_utf8(exporter.page().await.to_vec()).unwrap()
}

/// Checks a page with promtool. Skips if there is none.
fn check_with_promtool(page: &str) {
    if let Some((good, output)) = promtool(&["check", "metrics"], page) {
        assert!(good && output.is_empty(), "{output}");
    }
}

fn terminate(child: &Child) {
    send(child, Signal::TERM);
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn now<T>(future: impl std::future::Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn page(sources: Sources, labels: Vec<Label>) -> String {
    now(text(&Exporter::start(sources, labels, Timeouts::default(), true).unwrap()))
}

#[test]
fn full_page_passes_promtool() {
    let page = page(sources(100), vec![]);
    for family in families::ALL {
        assert!(
            page.contains(&format!("\n{}{}", family.name, if family.labels.is_empty() { " " } else { "{" })),
            "{page}"
        );
    }
    check_with_promtool(&page);
    if let Some((good, _)) = promtool(&["check", "metrics"], &page.replace("mpu_passed_total", "mpu_passed")) {
        assert!(!good, "promtool likes everything");
    }
}

#[test]
fn each_engine_has_own_rows() {
    let page = page(sources(1), vec![]);
    let of_notify: Vec<&str> =
        page.lines().filter(|line| line.contains("engine=\"notify\"") && !line.ends_with(" 0")).collect();
    let expected = [
        "mpu_engine_state{engine=\"notify\",version=\"0.1.0\",state=\"retired\"} 1",
        "mpu_engine_start_time_seconds{engine=\"notify\"} 1795205800",
        "mpu_engine_containers{engine=\"notify\"} 4",
        "mpu_forwarded_total{engine=\"notify\"} 1234",
        "mpu_restarts_total{engine=\"notify\"} 2",
        "mpu_engine_cpu_seconds_total{engine=\"notify\",container=\"3f2a81\"} 1.5",
        "mpu_engine_held_back_seconds_total{engine=\"notify\",container=\"3f2a81\"} 0.25",
        "mpu_translated_total{engine=\"notify\",control=\"GPU_GET_PIDS\"} 7",
        "mpu_passed_total{engine=\"notify\",reason=\"out_of_reach\"} 5",
        "mpu_missed_total{engine=\"notify\",reason=\"out_of_reach\"} 5",
    ];
    assert_eq!(of_notify, expected, "{page}");
    assert!(
        !page.contains("mpu_engine_containers{engine=\"module\"") && page.contains("\nmpu_engine_up 0\n"),
        "{page}"
    );
}

#[test]
fn process_labels_need_option() {
    let without = page(sources(100), vec![]);
    assert!(!without.contains("pid=\""), "{without}");
    let with = page(sources(100), vec![Label::ContainerPid, Label::Pid, Label::Pid]);
    let row = with.lines().find(|l| l.starts_with("mpu_gpu_memory_used_bytes{")).unwrap();
    assert!(row.contains(",pid=\"4000\",container_pid=\"1\"}"), "{row}");
    assert_eq!(with.lines().filter(|l| l.starts_with("mpu_gpu_processes{")).count(), 100);
    let sum = |page: &str| -> f64 {
        let rows = page.lines().filter(|l| l.starts_with("mpu_gpu_memory_used_bytes{"));
        rows.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    };
    assert_eq!((sum(&with), sum(&without)), (100.0 * f64::from(1 << 28), 100.0 * f64::from(1 << 28)));
}

#[test]
fn pod_uid_label_adds_no_rows() {
    let rows = |page: &str| page.lines().filter(|line| line.starts_with("mpu_gpu_")).count();
    let without = page(sources(100), vec![]);
    assert!(!without.contains("uid-") && !without.contains("pod_uid"), "{without}");
    let with = page(sources(100), vec![Label::PodUid]);
    assert_eq!(rows(&with), rows(&without));
    for metric in ["mpu_gpu_memory_used_bytes{", "mpu_gpu_idle_seconds_total{", "mpu_gpu_processes_ended_total{"] {
        let rows: Vec<&str> = with.lines().filter(|line| line.starts_with(metric)).collect();
        let of_container = rows.iter().filter(|row| row.contains(",pod_uid=\"uid-"));
        let of_host = rows.iter().filter(|row| row.contains("container=\"\"") && row.contains(",pod_uid=\"\"}"));
        assert_eq!(of_container.count() + of_host.count(), rows.len(), "{rows:?}");
    }
    check_with_promtool(&with);
}

#[test]
fn slurm_labels_divide_rows_by_job() {
    // 13 jobs outside of containers, with a process on each of eight GPUs.
    let of = |labels: &[Label]| {
        let mut usage = usage(100);
        usage.uses.iter_mut().for_each(|row| row.container = None);
        page(sources_of(move || Ok(usage.clone())), labels.to_vec())
    };
    let none = of(&[]);
    assert!(!none.contains("slurm") && !none.contains("batch"), "{none}");
    let all = of(&[Label::SlurmStep, Label::SlurmJob]);
    let row = "runtime=\"\",slurm_job=\"70\",slurm_step=\"batch\"}";
    for metric in ["mpu_gpu_memory_used_bytes{", "mpu_gpu_sm_seconds_total{", "mpu_gpu_processes_ended_total{"] {
        let rows = |page: &str, text: &str| page.lines().filter(|l| l.starts_with(metric) && l.contains(text)).count();
        assert_eq!(
            (rows(&none, ""), rows(&of(&[Label::SlurmStep]), ""), rows(&of(&[Label::SlurmJob]), "")),
            (8, 16, 100)
        );
        assert_eq!((rows(&all, ""), rows(&all, row)), (100, 8), "{all}");
    }
    check_with_promtool(&all);
}

#[test]
fn hostile_container_names_stay_inside_labels() {
    let evil = "x\"} 1\nmpu_engine_up 1\n# TYPE a counter\\\u{1b}[2J\u{202e}";
    let hostile = move || {
        let mut usage = usage(16);
        for (i, row) in usage.uses.iter_mut().enumerate() {
            let known = ContainerNames {
                id: &format!("{i}{evil}"),
                name: evil,
                pod: evil,
                pod_uid: evil,
                namespace: evil,
                runtime: evil,
            };
            row.container = Container::new(known);
        }
        Ok(usage)
    };
    let page = page(sources_of(hostile), vec![]);
    assert_eq!(page.lines().filter(|l| l.starts_with("mpu_engine_up")).collect::<Vec<_>>(), ["mpu_engine_up 0"]);
    assert!(
        page.lines().all(|l| l.starts_with("mpu_") || l.starts_with("# HELP mpu_") || l.starts_with("# TYPE mpu_"))
    );
    check_with_promtool(&page);
}

#[test]
fn untranslated_answer_counts_as_missed() {
    let untranslated = ["the caller got the driver's own", "the caller got the answer that the host would get"];
    for reason in Reason::ALL {
        let is_untranslated = untranslated.iter().any(|words| reason.explanation().contains(words));
        assert_eq!(is_missed(reason.name()), is_untranslated, "{}", reason.name());
    }
    assert!(is_missed("a_reason_to_come"));
}

#[test]
fn unreadable_engine_keeps_other_metrics() {
    let broken = || Err(ReadError::Failed("unreadable".to_string()));
    let page = page(Sources { host: Box::new(broken), ..sources(10) }, vec![]);
    assert!(page.contains("mpu_scrape_errors_total{part=\"engine\"} 1\n"), "{page}");
    assert!(page.contains("mpu_gpu_processes{") && !page.contains("mpu_engine_up"), "{page}");
}

#[test]
fn hanging_driver_drops_only_gpu_metrics() {
    let gate = Gate::default();
    // A busy machine needs some of this for the other part.
    let exporter = exporter_of(gate.sources(), Duration::from_secs(2));
    now(async {
        let read = || text(&exporter);
        for errors in 1..=3 {
            let page = read().await;
            assert!(page.contains(&format!("mpu_scrape_errors_total{{part=\"gpu\"}} {errors}\n")), "{page}");
            assert!(page.contains("mpu_scrape_success{part=\"gpu\"} 0\n") && !page.contains("mpu_gpu_"), "{page}");
            assert!(page.contains("mpu_translated_total"), "the rest is there: {page}");
        }
        assert_eq!(gate.readings(), 1, "a hung driver is not asked by a second thread");
        gate.open();
        let back = tokio::time::timeout(Duration::from_secs(60), async {
            while !read().await.contains("mpu_gpu_processes{") {}
        });
        back.await.expect("it comes back");
    });
}

#[test]
fn scrapes_at_the_same_time_share_one_reading() {
    let gate = Gate::default();
    let exporter = Arc::new(exporter_of(gate.sources(), Duration::from_secs(60)));
    now(async {
        let scrape = |exporter: Arc<Exporter>| tokio::spawn(async move { text(&exporter).await });
        let scrapes: Vec<_> = (0..20).map(|_| scrape(exporter.clone())).collect();
        tokio::time::sleep(Duration::from_millis(100)).await;
        gate.open();
        for scrape in scrapes {
            assert!(scrape.await.unwrap().starts_with("# HELP"));
        }
    });
    assert_eq!(gate.readings(), 1);
}

#[test]
fn aborted_scrapes_do_not_blank_other_pages() {
    let gate = Gate::default();
    let exporter = exporter_of(gate.sources(), Duration::from_secs(60));
    now(async {
        for _ in 0..5 {
            // As when hyper drops the answer to a connection that was closed.
            let cancelled = tokio::time::timeout(Duration::from_millis(20), exporter.page()).await;
            assert!(cancelled.is_err(), "it takes longer than that");
        }
        gate.open();
        let page = text(&exporter).await;
        assert!(page.contains("mpu_scrape_success{part=\"gpu\"} 1\n"), "{page}");
        assert!(page.contains("mpu_gpu_processes{"), "{page}");
    });
    assert_eq!(gate.readings(), 1, "the one that the first of them began is for all");
}

#[test]
fn busy_scrape_part_is_awaited() {
    let gate = Gate::default();
    let exporter = exporter_of(gate.sources(), Duration::from_secs(2));
    now(async {
        // The first one hangs, the second waits behind it, and there is no place for the third.
        for success in [0, 0, 1] {
            let opened = gate.clone();
            if success == 1 {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(300));
                    opened.open();
                });
            }
            let page = text(&exporter).await;
            assert!(page.contains(&format!("mpu_scrape_success{{part=\"gpu\"}} {success}\n")), "{page}");
        }
    });
}

/// Not a test of its own: the server, when this program is started again by [`Server::start`]. Each scrape is a reading of
/// its own; with no process at all the driver hangs.
#[test]
fn exporter() {
    let Ok(processes) = std::env::var("MPU_TEST_EXPORTER") else { return };
    let mut sources = sources(processes.parse().unwrap());
    let mut timeouts = Timeouts { fresh: Duration::ZERO, ..Timeouts::default() };
    if processes == "0" {
        timeouts.part = Duration::from_millis(200);
        sources.usage = Box::new(|| {
            loop {
                std::thread::park();
            }
        });
    }
    let way = OutputMode::Serve(vec!["127.0.0.1:0".parse().unwrap()]);
    run(sources, vec![], timeouts, &way, |at| eprintln!("ADDRESS {}", at[0])).unwrap();
    eprintln!("STOPPED");
}

/// Reads until the server closes the connection, in whatever way.
fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let ended = stream.read_to_end(&mut all);
    assert!(!ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "the connection is still open");
    all
}

struct Server {
    child: Child,
    address: String,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Server {
    fn start(processes: u32) -> Server {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "exporter", "--nocapture", "--test-threads=1"])
            .env("MPU_TEST_EXPORTER", processes.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("ADDRESS ") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the exporter ended");
        }
        Server { child, address: line["ADDRESS ".len()..].trim().to_string(), stderr }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    fn request(&self, request: &str) -> String {
        let mut stream = self.connect();
        let _ = stream.write_all(request.as_bytes());
        String::from_utf8(read_to_end(&mut stream)).unwrap()
    }

    fn get(&self, path: &str) -> String {
        self.request(&format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n"))
    }

    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// CPU time used so far.
    fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // User and system, in hundredths of a second.
        Duration::from_millis(10 * (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn scrape_is_answered_over_http() {
    let server = Server::start(500);
    let answer = server.get("/metrics");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
    assert!(answer.contains("\nmpu_gpu_memory_used_bytes{gpu=\"0\""), "{answer}");
    let refused = "POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc";
    for (answer, begin, end) in [
        (server.get("/healthz"), "HTTP/1.1 200", "\r\n\r\nok\n"),
        (server.get("/etc/passwd"), "HTTP/1.1 404", ""),
        (server.request(refused), "HTTP/1.1 405", ""),
        (server.request("HEAD /metrics HTTP/1.1\r\nHost: here\r\n\r\n"), "HTTP/1.1 200", "\r\n\r\n"),
    ] {
        assert!(answer.starts_with(begin) && answer.ends_with(end), "{answer}");
    }
    assert!(server.get("/").contains("<a href=\"/metrics\">"));
}

#[test]
fn thousand_scrapes_stay_small_and_quick() {
    // CPU time, because a busy machine delays wall-clock time. Ratios instead of limits, because machines differ in
    // speed.
    let used_by = |server: &Server, scrapes: u32| {
        let before = server.cpu();
        for _ in 0..scrapes {
            let answer = server.get("/metrics");
            assert!(answer.len() > 10_000, "{answer}");
        }
        (server.cpu() - before) / scrapes
    };
    let few = used_by(&Server::start(50), 200);
    let server = Server::start(500);
    let (first, second) = (used_by(&server, 500), used_by(&server, 500));
    let resident = server.resident();
    eprintln!("a scrape takes {few:?} of CPU with 50 processes, {first:?} and later {second:?} with 500");
    assert!(resident <= 15 * 1024, "{resident} KiB resident");
    assert!(first < 15 * few, "ten times as many processes take {first:?} instead of {few:?}");
    assert!(2 * second < 3 * first, "a scrape took {first:?} of CPU, and takes {second:?} after 500");
}

#[test]
fn silent_slow_and_large_clients_block_no_scrape() {
    let server = Server::start(500);
    let before = server.resident();
    // Six times the limit of connections: half are silent, half stop in the middle of a request's head.
    let mut hostile: Vec<TcpStream> = (0..192).map(|_| server.connect()).collect();
    for (i, stream) in hostile.iter_mut().enumerate() {
        let _ = match i % 2 {
            0 => Ok(()),
            _ => stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: "),
        };
    }
    let began = Instant::now();
    assert!(server.get("/metrics").starts_with("HTTP/1.1 200"));
    // Silent clients have five seconds; this request must not wait for them.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    for (request, status) in [
        (format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)), "431"),
        (format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000)), "4"),
        ("\0\u{1}\u{2}nonsense\r\n\r\n".to_string(), "400"),
    ] {
        let answer = server.request(&request);
        assert!(answer.is_empty() || answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
    }
    let unread: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = server.connect();
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
            stream
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 8 * 1024 && server.resident() <= 15 * 1024, "{grown} KiB more");
    drop((hostile, unread));
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn unread_responses_block_no_scrape() {
    let server = Server::start(4000);
    let mut unread: Vec<TcpStream> = (0..32).map(|_| server.connect()).collect();
    for stream in &mut unread {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    // Each answer has begun, and is too long for the socket buffers.
    for stream in &mut unread {
        assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
    }
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
fn half_sent_request_is_given_up() {
    let server = Server::start(1);
    let mut slow = server.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let began = Instant::now();
    read_to_end(&mut slow);
    assert!((4..60).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[test]
fn sigterm_ends_exporter_with_silent_clients() {
    let mut server = Server::start(1);
    let _silent: Vec<TcpStream> = (0..10).map(|_| server.connect()).collect();
    assert!(server.get("/healthz").starts_with("HTTP/1.1 200"));
    let began = Instant::now();
    terminate(&server.child);
    assert!(server.child.wait().unwrap().success());
    // As above.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let mut rest = String::new();
    server.stderr.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("STOPPED"), "{rest}");
}

#[test]
fn sigterm_ends_exporter_with_hung_driver() {
    let mut server = Server::start(0);
    for _ in 0..5 {
        assert!(server.get("/metrics").contains("mpu_scrape_success{part=\"gpu\"} 0\n"));
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap().count();
    assert!(threads <= 5, "{threads} threads: main, the test's, one for each part");
    terminate(&server.child);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn sockets_of_systemd_are_served() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // As systemd does it: the socket is descriptor 3, and the number of the process that it is for is in the environment.
    let script = "exec 3<&0; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" metrics --listen systemd";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .arg(env!("CARGO_BIN_EXE_mpu"))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut answer = String::new();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
    terminate(&child);
    assert!(child.wait().unwrap().success());
}

#[test]
fn textfile_is_removed_at_end() {
    // With an ignored SIGHUP, as from nohup, a hangup does not end it.
    for (hangup, signals) in [
        ("--default-signal=HUP", &[Signal::TERM][..]),
        ("--default-signal=HUP", &[Signal::HUP]),
        ("--ignore-signal=HUP", &[Signal::HUP, Signal::TERM]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mpu.prom");
        let mut command = Command::new("env");
        command.args([hangup, env!("CARGO_BIN_EXE_mpu"), "metrics", "--interval", "1", "--textfile"]);
        let mut child = command.arg(&path).stderr(Stdio::null()).spawn().unwrap();
        let mut last = None;
        for signal in signals {
            let page = next_page(&path, &mut last);
            assert!(page.ends_with('\n') && page.contains("mpu_exporter_start_time_seconds "), "{page}");
            send(&child, *signal);
        }
        assert!(child.wait().unwrap().success(), "{signals:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "an old page would be taken for true for ever");
    }
}

/// Waits for another file than the last one at this path, and reads it. The last one stays open, so that it keeps its number.
fn next_page(path: &Path, last: &mut Option<File>) -> String {
    let number = |file: &File| file.metadata().unwrap().ino();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match File::open(path) {
            Ok(file) if last.as_ref().is_none_or(|last| number(last) != number(&file)) => {
                *last = Some(file.try_clone().unwrap());
                return std::io::read_to_string(file).unwrap();
            }
            _ if Instant::now() > deadline => panic!("no page"),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[test]
fn refusals_have_their_codes() {
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied.local_addr().unwrap().to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    let no_socket = format!("unix:{}", file.path().display());
    for (arguments, code, words) in [
        (&["--listen", &address][..], 1, "fix: something listens there already"),
        (&["--listen", &no_socket], 1, "another file is at that path"),
        (&["--listen", "systemd"], 3, "systemd handed over no socket"),
        (&["--listen", "nowhere"], 2, "wanted is IP:PORT"),
        (&["--once", "--textfile", "/no/such/mpu.prom"], 3, "fix: make the directory /no/such"),
        (&["--once", "--listen", &address], 2, "cannot be used with"),
        (&["--label", "user"], 2, "possible values"),
    ] {
        let done = assert_cmd::Command::cargo_bin("mpu").unwrap().arg("metrics").args(arguments).output().unwrap();
        let output = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {output}");
        assert!(output.contains(words), "{arguments:?}: {output}");
    }
}
