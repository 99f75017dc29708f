//! The measuring guest: its image (benches/ in place of the stories), and the figures on its console (format: benches/guest.sh).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cpio::Archive;
use crate::guest::qemu::{self, Console, Line};
use crate::guest::{Job, image};
use crate::programs::Build;
use crate::run::{find_program, run};
use crate::{kernels, paths, sysroot};

/// Measured without any peer: no engine, the kernel module, the engine in user space.
const MODULES: [&str; 3] = ["none", "mpu", "notify"];

/// The numbers of rows, in this order, each with its own population of processes.
pub const ROWS: [u32; 4] = [1, 10, 200, 950];

/// PID namespaces and processes without a GPU, for the last population: a tenth of the goal, as many as fit into a guest of 2 GiB.
pub const CROWD: (u32, u32) = (1000, 10_000);

/// The first PID of the GPU's processes, as on a machine that has been up for long. The kernel's look-up takes one step more than for
/// 200,000, and two more than for 4,000.
const FIRST_PID: u32 = 3_000_000;

#[derive(Default)]
pub struct Run {
    pub kernel: String,
    pub release: String,
    pub era: String,
    pub client: String,
    /// `none`, `mpu`, `notify`, and the peers.
    pub modules: Vec<String>,
    pub figures: BTreeMap<Key, Figure>,
    /// What could not be measured, each with its reason.
    pub failures: Vec<String>,
    pub troubles: Vec<String>,
    /// The number of processes without a GPU in the crowded population.
    pub crowd: Option<u64>,
    /// Seconds of this machine's time for `mpu up` and `mpu down`, the longest of three runs.
    pub host_seconds: BTreeMap<String, f64>,
}

/// Metric, caller and module.
pub type Key = [String; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The guest's nanoseconds: one is one instruction.
    pub instructions: u64,
    /// The right rows of the answer, and all rows.
    pub right: Option<(u32, u32)>,
}

impl Run {
    pub fn figure(&self, metric: &str, caller: &str, module: &str) -> Option<Figure> {
        self.figures.get(&[metric, caller, module].map(str::to_owned)).copied()
    }

    pub fn overhead(&self, metric: &str, caller: &str, module: &str) -> Option<i64> {
        let [with, without] = [module, "none"].map(|module| self.figure(metric, caller, module));
        Some(with?.instructions.cast_signed() - without?.instructions.cast_signed())
    }
}

pub fn measure(kernel: &str, era: &str, client: &str, redirect: Option<&str>, peers: &[PathBuf]) -> Result<Run> {
    let mut modules = MODULES.map(str::to_owned).to_vec();
    for peer in peers {
        let name = peer.file_stem().context("a peer is a file")?.to_string_lossy().replace('-', "_");
        ensure!(!modules.contains(&name), "there is a module {name} already: a peer has another name");
        modules.push(name);
    }
    let job = Job {
        kernel: kernel.to_owned(),
        rows: vec![],
        cpus: 1,
        limit: Duration::from_secs(1800),
        redirect: redirect.map(str::to_owned),
    };
    let release = kernels::ready(kernel)?.release;
    let image = build(&job, era, client, &modules, peers)?;
    let log = paths::target("guest/log")?.join(format!("bench-{kernel}-era{era}.log"));
    let console = qemu::boot_counting(&job, &image, &log)?;
    let mut found = Run {
        kernel: redirect.map_or_else(|| kernel.to_owned(), |way| format!("{kernel} by {way}")),
        release,
        era: era.to_owned(),
        client: client.to_owned(),
        modules,
        troubles: console.faults.clone(),
        ..Run::default()
    };
    read(&console, &mut found)?;
    match console.rc {
        Some(0) => {}
        None if !console.faults.is_empty() => {}
        None => bail!("the guest ended without a verdict; its console: {}", log.display()),
        Some(rc) => bail!("the guest could not measure ({rc}); its console: {}", log.display()),
    }
    Ok(found)
}

fn build(job: &Job, era: &str, client: &str, modules: &[String], peers: &[PathBuf]) -> Result<PathBuf> {
    let kernel = kernels::ready(&job.kernel)?;
    let mut archive = Archive::default();
    for folder in ["proc", "sys", "dev", "tmp", "run", "bin", "sbin", "usr/bin", "usr/sbin"] {
        archive.folder(folder);
    }
    archive.file("init", 0o755, &paths::repo().join("benches/guest.sh"))?;
    archive.file("bin/busybox", 0o755, &find_program("busybox").context("no busybox: install busybox-static")?)?;
    sysroot::add(&mut archive, kernel.arch, "bin/mpu", &Build::RELEASE.program(kernel.arch, "mpu")?)?;
    let sim = image::sim_programs(kernel.arch)?;
    for program in ["gpu-hold", "nvctl"] {
        archive.file(&format!("bin/{program}"), 0o755, &sim.join(program))?;
    }
    for program in ["ioctl_cost", "run_cost", "crowd"] {
        archive.file(&format!("bin/{program}"), 0o755, &compile(program)?)?;
    }
    archive.file("nvidia.ko", 0o644, &image::sim_module(&kernel, era)?)?;
    archive.file("modules/mpu.ko", 0o644, &image::mpu_module(&kernel, job.redirect.as_deref())?)?;
    for (name, peer) in modules[MODULES.len()..].iter().zip(peers) {
        archive.file(&format!("modules/{name}.ko"), 0o644, peer)?;
    }
    image::client(&mut archive, kernel.arch, client)?;
    let rows = ROWS.map(|rows| rows.to_string()).join(" ");
    let (modules, (namespaces, processes)) = (modules.join(" "), CROWD);
    let plan = format!(
        "CLIENT={client}\nMODULES='{modules}'\nROWS='{rows}'\nCROWD='{namespaces} {processes}'\nFIRST_PID={FIRST_PID}\n"
    );
    archive.text("plan", 0o644, plan.as_bytes());
    let path = paths::target("guest")?.join(format!("bench-{}.cpio", std::process::id()));
    fs_err::write(&path, archive.finish())?;
    Ok(path)
}

fn compile(program: &str) -> Result<PathBuf> {
    let out = paths::target("guest/bench")?.join(program);
    let source: &Path = &paths::repo().join("benches").join(program).with_extension("c");
    let mut compiler = Command::new("gcc-12");
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"]).arg(&out).arg(source);
    run(&mut compiler).with_context(|| format!("cannot build {program}"))?;
    Ok(out)
}

fn read(console: &Console, run: &mut Run) -> Result<()> {
    let mut began: Option<(String, f64)> = None;
    for Line { at, text: line, .. } in &console.lines {
        let at = at.as_secs_f64();
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["cost", module, caller, metric, cost, ref right @ ..] => {
                let figure = figure(cost, right.first().copied()).with_context(|| format!("torn figure: {line}"))?;
                let longest = run.figures.entry([metric, caller, module].map(str::to_owned)).or_insert(figure);
                // Only commands with waits are measured several times: the longest counts.
                longest.instructions = longest.instructions.max(figure.instructions);
            }
            ["failed", module, caller, ..] => {
                let why = words[3..].join(" ");
                run.failures.push(format!("{module}, {caller}: {why}"));
            }
            ["crowd", count] => run.crowd = count.parse().ok(),
            ["begin", metric] => began = Some((metric.to_owned(), at)),
            ["end", metric] => {
                if let Some((_, start)) = began.take().filter(|(begun, _)| begun == metric) {
                    let longest = run.host_seconds.entry(metric.to_owned()).or_default();
                    *longest = longest.max(at - start);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn figure(cost: &str, right: Option<&str>) -> Result<Figure> {
    let pair = |text: &str| -> Result<(u32, u32)> {
        let (right, of) = text.split_once('/').context("no slash")?;
        Ok((right.parse()?, of.parse()?))
    };
    Ok(Figure { instructions: cost.parse()?, right: right.map(pair).transpose()? })
}

#[cfg(test)]
pub mod fake {
    use super::*;

    /// A run with these lines on the guest's console.
    pub fn run(lines: &[&str]) -> Result<Run> {
        let line =
            |(second, line): (usize, &&str)| Line { at: Duration::from_secs(second as u64), ..Line::at_once(line) };
        let lines = lines.iter().enumerate().map(line).collect();
        let console = Console { lines, rc: Some(0), ..Console::default() };
        let mut run = Run {
            kernel: "6.1".into(),
            release: "6.1.0-1-amd64".into(),
            era: "0".into(),
            client: "470.256.02".into(),
            modules: vec!["none".into(), "mpu".into()],
            ..Run::default()
        };
        read(&console, &mut run)?;
        Ok(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_of_several_figures_is_used() {
        let run = fake::run(&[
            "cost none host get_pids_10 15000 10/10",
            "cost mpu host get_pids_10 17000 10/10",
            "begin mpu_up",
            "cost mpu host mpu_up 5",
            "cost mpu host mpu_up 7",
            "cost mpu host mpu_up 6",
            "end mpu_up",
            "failed peer host ioctl_cost 3 processes listed",
            "crowd 10960",
        ]);
        let run = run.unwrap();
        assert_eq!(run.overhead("get_pids_10", "host", "mpu"), Some(2000));
        assert_eq!(run.figure("mpu_up", "host", "mpu").unwrap().instructions, 7);
        assert_eq!(run.figure("get_pids_10", "host", "mpu").unwrap().right, Some((10, 10)));
        assert_eq!((run.host_seconds["mpu_up"], run.crowd), (4.0, Some(10960)));
        assert_eq!(run.failures, ["peer, host: ioctl_cost 3 processes listed"]);
    }

    #[test]
    fn torn_figure_is_error() {
        assert!(fake::run(&["cost none host no_pids 12x"]).is_err());
        assert!(fake::run(&["cost none host get_pids_1 12 1"]).is_err());
    }
}
