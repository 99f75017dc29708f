//! `mpu metrics` on a real kernel, with real containers and NVIDIA's NVML, while the driver comes and goes.

use std::process::{Child, Command, Stdio};

use crate::stories::common::*;

const MIB: u64 = 1 << 20;
const MEMORY: &str = "mpu_gpu_memory_used_bytes";
const BUSY: &str = "mpu_gpu_sm_seconds_total";

pub const STORIES: &[Story] = &[story!(metrics_show_usage_and_release_the_driver, [5, 7];
        "`mpu metrics` on the host shows each container's memory under its own label, no PID, and counters that move \
        with a container's nvidia-smi. Meanwhile the driver is unloaded and loaded again.")
.real(Real::Client)
.only(|stage| !stage.host_sees_threads(), THREADS_TO_THE_HOST)
.right("the counters are the engine's")];

fn metrics_show_usage_and_release_the_driver(stage: &Stage) -> Result<(), Fault> {
    let exporter = Exporter::start(stage, &[])?;
    {
        let scene = stage.scene()?;
        let page = exporter.scrape_gpu()?;
        let expected = [("", 300), ("a", 2 * 40 + 43), ("b", 2 * 50)];
        for (container, mib) in expected {
            let sum = page.sum(MEMORY, &[("container", container)]);
            check!(sum == Some(mib * MIB), "container {container:?} uses {mib} MiB, told is {sum:?}: {}", page.0);
        }
        check!(!page.0.contains("pid=\""), "a PID is on a page that was asked for without PIDs: {}", page.0);
        check!(!page.0.contains("gpu-hold"), "a command is on the page: {}", page.0);
        let one = ("control", "GPU_GET_PIDS");
        let before = page.sum("mpu_translated_total", &[one]);
        scene.a.client().table()?;
        let after = exporter.scrape()?.sum("mpu_translated_total", &[one]);
        check!(after > before, "nvidia-smi ran in a container, translated went from {before:?} to {after:?}");
        check!(after == stage.counter("translated.GPU_GET_PIDS"), "the module counts otherwise than {after:?}");
    }
    // A made-up GPU does no work.
    if stage.release().is_none() {
        busy_time_is_booked(stage, &exporter)?;
    }
    let resident = exporter.resident()?;
    // An unoptimised program has more resident code: 15,404 KiB were measured.
    check!(resident <= 17 * 1024, "with NVML loaded {resident} KiB are resident");
    let open_files = exporter.files_of_the_driver()?;
    check!(open_files.is_empty(), "between scrapes the exporter holds {open_files:?}");
    stage.clear_scene();
    let errors = |page: &Page| page.sum("mpu_scrape_errors_total", &[("part", "gpu")]);
    let before = errors(&exporter.scrape_gpu()?);
    stage.unload_driver()?;
    let page = exporter.scrape()?;
    let has_rows = ["mpu_gpu_", "mpu_driver_info"].iter().any(|metric| page.0.contains(metric));
    check!(!has_rows, "the driver is gone, the page says {}", page.0);
    let part = ("part", "gpu");
    check!(page.sum("mpu_scrape_success", &[part]) == Some(0), "the driver is gone, the page says {}", page.0);
    check!(errors(&page) > before, "no error is counted: {}", page.0);
    stage.load_driver(&[])?;
    let _again = Holder::on_host(&["--mem", "70"])?;
    let page = exporter.scrape_gpu()?;
    check!(page.sum(MEMORY, &[]) == Some(70 * MIB), "the driver is back, the page says {}", page.0);
    check!(exporter.end()? == 0, "SIGTERM is not its end");
    Ok(())
}

/// Each second has five samples: one of each busy process of the scene, and an idle one.
fn busy_time_is_booked(stage: &Stage, exporter: &Exporter) -> Result<(), Fault> {
    let _scene = stage.scene()?;
    let read = || -> Result<[f64; 4]> {
        let page = exporter.scrape_gpu()?;
        let busy = |container| page.amount(BUSY, &[("container", container)]).unwrap_or(-1.0);
        let observed = page.amount("mpu_gpu_observed_seconds_total", &[("gpu", "0")]).unwrap_or(-1.0);
        Ok([busy(""), busy("a"), busy("b"), observed])
    };
    let before = read()?;
    std::thread::sleep(Duration::from_secs(5));
    let after = read()?;
    let [host, a, b, observed] = [0, 1, 2, 3].map(|at| after[at] - before[at]);
    let near = |seconds: f64, percent: f64| (seconds - observed * percent / 500.0).abs() < 2.0 * percent / 500.0 + 0.01;
    let all = near(host, 40.0) && near(a, 50.0) && near(b, 10.0);
    check!(
        before[0] >= 0.0 && observed > 4.0 && all,
        "in {observed} s were booked {host}, {a} and {b} s: {before:?} {after:?}"
    );
    Ok(())
}

struct Exporter {
    child: Child,
}

impl Exporter {
    fn start(stage: &Stage, more: &[&str]) -> Result<Exporter> {
        run_ok(&["ip", "link", "set", "lo", "up"])?;
        let libraries = format!("/nvidia/{}", stage.client);
        let child = Command::new("/bin/mpu")
            .arg("metrics")
            .args(more)
            .env("LD_LIBRARY_PATH", libraries)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start mpu")?;
        let exporter = Exporter { child };
        wait_until("mpu metrics does not answer", || Ok(fetch("healthz").is_ok()))?;
        Ok(exporter)
    }

    /// A page read from now on.
    fn scrape(&self) -> Result<Page> {
        // Pages are shared for 250 ms.
        std::thread::sleep(Duration::from_millis(300));
        fetch("metrics").map(Page)
    }

    /// A page with the GPU's part. On a slow machine the first query takes longer than the exporter's own limit.
    fn scrape_gpu(&self) -> Result<Page> {
        let mut page = self.scrape()?;
        wait_until("the GPU's part of the page does not come in time", || {
            let has_part = page.sum("mpu_scrape_success", &[("part", "gpu")]) == Some(1);
            if !has_part {
                page = self.scrape()?;
            }
            Ok(has_part)
        })?;
        Ok(page)
    }

    /// The driver's files that it has open or mapped.
    fn files_of_the_driver(&self) -> Result<Vec<String>> {
        let mut open_files = Vec::new();
        for file in std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))? {
            // A descriptor may be closed while they are listed.
            let Ok(target) = std::fs::read_link(file?.path()) else { continue };
            open_files.extend(Some(target.display().to_string()).filter(|name| name.starts_with("/dev/nvidia")));
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()))?;
        open_files.extend(maps.lines().filter(|line| line.contains("/dev/nvidia")).map(str::to_owned));
        Ok(open_files)
    }

    fn resident(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// Ends it by SIGTERM, and returns its exit code.
    fn end(mut self) -> Result<i32> {
        run_ok(&["kill", &self.child.id().to_string()])?;
        let mut ended = None;
        wait_until("mpu metrics does not end", || {
            ended = self.child.try_wait()?;
            Ok(ended.is_some())
        })?;
        Ok(ended.and_then(|status| status.code()).unwrap_or(-1))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fetch(path: &str) -> Result<String> {
    let done = run(&["wget", "-q", "-O", "-", &format!("http://127.0.0.1:19567/{path}")])?;
    ensure!(done.status == 0, "wget ended with {}: {}", done.status, done.err);
    Ok(done.out)
}

struct Page(String);

impl Page {
    /// The sum of a metric's rows with these labels, in whole numbers; none if there is no such row.
    fn sum(&self, metric: &str, labels: &[(&str, &str)]) -> Option<u64> {
        self.amount(metric, labels).map(|sum| sum as u64)
    }

    fn amount(&self, metric: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |row: &str| {
            labels.iter().all(|(label, value)| {
                let pair = format!("{label}=\"{value}\"");
                row.contains(&format!("{{{pair}")) || row.contains(&format!(",{pair}"))
            })
        };
        let rows =
            self.0.lines().filter_map(|line| line.strip_prefix(metric)).filter(|row| row.starts_with(['{', ' ']));
        let numbers = rows.filter(|row| has(row)).filter_map(|row| row.rsplit(' ').next()?.parse::<f64>().ok());
        numbers.fold(None, |sum, number| Some(sum.unwrap_or(0.0) + number))
    }
}
