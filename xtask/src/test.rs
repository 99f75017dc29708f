//! Runs every check: formatting, lints, host tests and container engines; at the same time packages, the kernel object, module builds and
//! guests' images, and the first guests.
//!
//! The quick matrix boots every kernel and covers every era, client and engine at least once; `--full` crosses kernels and eras. `selection`
//! limits a run to parts.

mod clock;
mod matrix;
mod selection;

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::ValueEnum;

use crate::arch::Arch;
use crate::guest::verdict::{Ending, Report, Tally};
use crate::guest::{self, Job, image};
use crate::kernels::Kernel;
use crate::node::{self, Play};
use crate::outcome::Outcome;
use crate::run::{is_root, print_progress};
use crate::skips::{self, available};
use crate::{
    chart, cluster, containers, emulated, kernels, kmod, libtest, lint, packages, paths, promtool, rig, setup,
};
use clock::{Clock, Lane};
use matrix::{Guest, Matrix};
use selection::{Selection, Shard, Stage};

#[derive(clap::Args)]
pub struct Args {
    /// These stages alone: lint, chart, host, containers, packages, arm64, modules, guest, node; or the guests of the matrix with these stories alone
    #[arg(value_name = "STAGE|STORY")]
    only: Vec<String>,
    /// Cross every kernel and era instead of covering each once
    #[arg(long)]
    full: bool,
    /// Boot every Nth guest from the Kth alone: for N machines, or for one in N runs
    #[arg(long, value_name = "K/N", default_value = "1/1")]
    shard: Shard,
    /// Guests at a time, and one fewer while this machine is tested; each takes 1 to 2 GiB, a whole Debian 4
    #[arg(long, default_value_t = 3)]
    guests: usize,
}

/// The module is also built for this kernel as for one without return thunks: no such kernel is available.
const THUNKLESS_BUILD_KERNEL: &str = "6.1";

/// The verb.
pub fn test(args: &Args) -> Result<Outcome> {
    let selection = Selection::of(&args.only)?;
    let clock = Clock::start();
    setup::require(setup::HOST)?;
    for arch in Arch::ALL {
        guest::prepare(arch)?;
    }
    let (mut tally, all_ran) = run_stages(args, &selection, &clock);
    if !args.only.is_empty() && tally.is_idle() {
        tally.check(&args.only.join(" "), Ending::Fail, "nothing of it was played");
    }
    clock.print();
    // Print the results so far even if the rig broke.
    tally.print();
    all_ran.map(|()| tally.outcome())
}

/// Runs two lanes: host checks in one, packages and guests' images in the other, with the first guests in parallel. After the host checks one
/// more guest runs at a time.
fn run_stages(args: &Args, selection: &Selection, clock: &Clock) -> (Tally, Result<()>) {
    let (sender, received) = channel();
    std::thread::scope(|scope| {
        let maker = scope.spawn(move || {
            let mut lane = Lane::of(clock);
            let made = make(args, selection, &mut lane, sender);
            (lane.end(), made)
        });
        let mut lane = Lane::of(clock);
        let mut checked = Ok(());
        // The host checks leave a processor idle most of the time.
        let began = Instant::now();
        let reports = boot_all(received, args.guests.max(1), || checked = check_host(args.full, selection, &mut lane));
        if !reports.is_empty() {
            clock.add("guests", began.elapsed(), reports.iter().map(|report| report.used).sum());
        }
        reports.iter().for_each(|report| lane.tally.add(report));
        let mut tally = lane.end();
        let (more, made) =
            maker.join().unwrap_or_else(|_| (Tally::default(), Err(anyhow!("what makes guests panicked"))));
        tally.join(more);
        (tally, checked.and(made))
    })
}

/// Makes the guests' images first, so that guests start early; then packages and programs for arm64.
fn make(args: &Args, selection: &Selection, lane: &mut Lane, sender: Sender<GuestImage>) -> Result<()> {
    make_guests(args, selection, lane, sender)?;
    if selection.has(Stage::Packages) {
        lane.enter("packages");
        packages::check(args.full, &mut lane.tally)?;
    }
    if selection.has(Stage::Arm64) {
        lane.enter("user space for arm64");
        emulated::check(args.full, &mut lane.tally)?;
    }
    Ok(())
}

/// Makes the modules, and then the guests' images, the longest guest's first.
fn make_guests(args: &Args, selection: &Selection, lane: &mut Lane, sender: Sender<GuestImage>) -> Result<()> {
    if selection.has(Stage::Modules) {
        lane.enter("the module for every kernel");
        // Without a module no guest is needed.
        if !build_modules(args.full, &mut lane.tally)? {
            return Ok(());
        }
    }
    let matrix = Matrix::read()?;
    let mut work = Vec::new();
    if selection.has(Stage::Node) {
        lane.enter("what whole Debians are made of");
        for debian in debian_guests(args, &mut lane.tally) {
            let seconds = matrix.plays.get(&debian.name()).copied().unwrap_or(matrix.row_seconds);
            work.push((seconds, debian.fetch()?));
        }
    }
    if selection.has(Stage::Guest) {
        lane.enter("NVIDIA's own drivers, and what guests are made of");
        for guest in guests(&matrix, args, selection, &mut lane.tally)? {
            work.push((guest.seconds, Work::Guest(guest.job).fetch()?));
        }
    }
    match (args.shard.is_partial(), work.is_empty()) {
        (true, true) => lane.tally.check("--shard", Ending::Fail, "no guest is in this shard: name fewer shards"),
        (true, false) => lane.tally.check("guests", Ending::Skip, "those of the other shards: `--shard`"),
        (false, _) => {}
    }
    // A long guest that starts late would run alone at the end.
    work.sort_by_key(|(seconds, _)| Reverse(*seconds));
    if !work.is_empty() {
        lane.enter("images of guests");
    }
    for (_, work) in work {
        // Images share a build folder, so they are made one at a time.
        let image = work.build();
        if sender.send(GuestImage { work, image }).is_err() {
            break;
        }
    }
    Ok(())
}

/// The selected guests of the matrix.
fn guests(matrix: &Matrix, args: &Args, selection: &Selection, tally: &mut Tally) -> Result<Vec<Guest>> {
    let mut guests = matrix::simulated(matrix, args.full)?;
    // Sorted, so that all shards take about the same time.
    guests.sort_by_key(|guest| Reverse(guest.seconds));
    let mut guests = args.shard.share(guests);
    guests.extend(matrix::real(matrix, args.full, args.shard, tally)?);
    for guest in &mut guests {
        guest.job.rows.retain_mut(|row| selection.keeps(row, matrix::last_story()));
    }
    guests.retain(|guest| !guest.job.rows.is_empty());
    Ok(guests)
}

/// One guest to boot: a kernel with rows, or a whole Debian.
enum Work {
    Guest(Job),
    Node(Play),
    Cluster,
}

impl Work {
    fn name(&self) -> String {
        match self {
            Work::Guest(job) => job.name(),
            Work::Node(play) => format!("node {}", play.name()),
            Work::Cluster => "cluster".to_owned(),
        }
    }

    /// Downloads everything for it.
    fn fetch(self) -> Result<Self> {
        match &self {
            Work::Guest(job) => job.fetch()?,
            Work::Node(play) => node::fetch(*play)?,
            Work::Cluster => cluster::fetch()?,
        }
        Ok(self)
    }

    fn build(&self) -> Result<PathBuf> {
        match self {
            Work::Guest(job) => image::build(job),
            Work::Node(play) => node::build(*play, false),
            Work::Cluster => cluster::build(),
        }
    }

    fn boot(&self, image: &Path) -> Result<Report> {
        match self {
            Work::Guest(job) => guest::boot_image(job, image, false),
            Work::Node(play) => node::boot(*play, image, false),
            Work::Cluster => cluster::boot(image, false, false),
        }
    }
}

/// Whole Debians, if this user can make one.
fn debian_guests(args: &Args, tally: &mut Tally) -> Vec<Work> {
    let is_quick = |debian: &Work| matches!(debian, Work::Node(Play::Package | Play::Containers));
    // debootstrap makes device nodes and uses chroot.
    let possible = is_root();
    let all = Play::value_variants().iter().copied().map(Work::Node).chain([Work::Cluster]);
    let (played, others): (Vec<Work>, Vec<Work>) = all.partition(|debian| possible && (args.full || is_quick(debian)));
    let reason = if possible { "minutes more: `./x test --full`" } else { "debootstrap makes a Debian as root only" };
    others.iter().for_each(|debian| tally.check(&debian.name(), Ending::Skip, reason));
    args.shard.share(played)
}

fn check_host(full: bool, selection: &Selection, lane: &mut Lane) -> Result<()> {
    if selection.has(Stage::Lint) {
        lane.enter("formatting and lints");
        for (name, result, reason) in lint::checks()? {
            match result {
                Some(outcome) => lane.tally.check(name, ending(outcome == Outcome::Passed), "see above"),
                None => lane.tally.check(name, Ending::Skip, reason),
            }
        }
    }
    if selection.has(Stage::Chart) {
        lane.enter("the Helm chart");
        if let Some(tools) = available(&mut lane.tally, "Helm chart", chart::tools()) {
            let outcome = chart::check(&tools)?;
            lane.tally.check("Helm chart", ending(outcome == Outcome::Passed), "see above");
        }
    }
    if selection.has(Stage::Host) {
        lane.enter("host tests");
        run_host_tests(&mut lane.tally)?;
    }
    if selection.has(Stage::Containers) {
        lane.enter("container engines");
        containers::check(None, full, &mut lane.tally)?;
    }
    if selection.has(Stage::Guest) || selection.has(Stage::Node) {
        lane.leave();
        print_progress("guests alone");
    }
    Ok(())
}

fn run_host_tests(tally: &mut Tally) -> Result<()> {
    let mut cargo = lint::linting_cargo();
    cargo.envs(available(tally, "promtool", promtool::ready()).map(|program| (promtool::VARIABLE, program)));
    let log = |name: &str| Ok::<_, anyhow::Error>(paths::target("log")?.join(name));
    // --show-output shows passed tests, too: a skipped test prints its reason. --no-fail-fast runs all tests after a failure.
    cargo.args(["test", "--quiet", "--locked", "--no-fail-fast", "--", "--show-output"]);
    let text = libtest::check(&mut cargo, "cargo test", &log("cargo-test.log")?, tally)?;
    // Tests that need the rig belong to the stage `containers`.
    for reason in libtest::skip_reasons(&text).filter(|reason| !reason.contains(rig::VARIABLE)) {
        tally.check("cargo test", Ending::Skip, reason);
    }
    // mpu-kmod is no default member: it builds for the kernel. Its test compares it with kmod/mpu_core.h.
    let mut boundary = lint::linting_cargo();
    boundary.args(["test", "--quiet", "--locked", "--package", "mpu-kmod"]);
    libtest::check(&mut boundary, "the boundary of C and Rust", &log("boundary-test.log")?, tally)?;
    Ok(())
}

/// Builds the module for every kernel, without any warning of compiler, modpost or objtool. True if all builds succeeded.
fn build_modules(full: bool, tally: &mut Tally) -> Result<bool> {
    let mut all_built = true;
    for arch in Arch::ALL {
        let faults = kmod::faults(arch, &kmod::build(arch)?)?;
        tally.faults(&arch.named("kernel object"), &faults);
        all_built &= faults.is_empty();
        for name in kernels::debian(arch)?.iter().filter(|_| faults.is_empty()) {
            all_built &= build_module(&kernels::ready(name)?, tally);
        }
    }
    if all_built {
        all_built &= build_flavours(full, tally)?;
    }
    if all_built {
        let left = image::symbols_without_return_thunks(&kernels::ready(THUNKLESS_BUILD_KERNEL)?)?;
        let thunks: Vec<&str> = left.iter().map(String::as_str).filter(|name| name.contains("return_thunk")).collect();
        let known = left.iter().any(|name| name == "register_kprobe");
        let text = format!("leaves {} to the kernel", if known { thunks.join(", ") } else { left.join(", ") });
        let fault = (!known || !thunks.is_empty()).then_some(text);
        tally.faults("mpu.ko for a kernel without return thunks", fault.as_slice());
    }
    Ok(all_built)
}

fn build_module(kernel: &Kernel, tally: &mut Tally) -> bool {
    let fault = image::mpu_module(kernel, None).err().map(|error| format!("{error:#}"));
    tally.faults(&format!("mpu.ko for {}", kernel.release), fault.as_slice());
    fault.is_none()
}

/// Builds the module for kernels that no guest boots. If a kernel's headers cannot be downloaded, it is skipped and counted.
fn build_flavours(full: bool, tally: &mut Tally) -> Result<bool> {
    let mut all_built = true;
    for name in kernels::flavours(full)? {
        match kernels::ready(&name) {
            Ok(kernel) => all_built &= build_module(&kernel, tally),
            Err(error) => tally.check(&format!("headers of {name}"), skips::ending(&error), &format!("{error:#}")),
        }
    }
    Ok(all_built)
}

/// A guest's image, or the error.
struct GuestImage {
    work: Work,
    image: Result<PathBuf>,
}

/// Boots the received guests, a few at a time, one fewer while `beside` runs. A guest without an image, or that breaks, gets a report, too.
fn boot_all(made: Receiver<GuestImage>, at_a_time: usize, beside: impl FnOnce() + Send) -> Vec<Report> {
    play_all(made, at_a_time, |made| made.work.name(), |made| made.work.boot(made.image?.as_path()), beside)
}

fn play_all<T: Send>(
    jobs: Receiver<T>,
    at_a_time: usize,
    name: impl Fn(&T) -> String + Sync,
    play: impl Fn(T) -> Result<Report> + Sync,
    beside: impl FnOnce() + Send,
) -> Vec<Report> {
    let (jobs, reports) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
    let work = || {
        while let Some(job) = next() {
            let name = name(&job);
            let played = catch_unwind(AssertUnwindSafe(|| play(job))).unwrap_or_else(|_| Err(anyhow!("it panicked")));
            let report = played.unwrap_or_else(|error| Report::broken(name.clone(), &error));
            print_progress(format!("guest {name}: {}", report.summary()));
            reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        }
    };
    std::thread::scope(|scope| {
        (1..at_a_time).for_each(|_| drop(scope.spawn(work)));
        beside();
        work();
    });
    reports.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn ending(passed: bool) -> Ending {
    if passed { Ending::Pass } else { Ending::Fail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_jobs_are_reported_beside_failed_ones() {
        let play = |job: u32| match job {
            2 => Err(anyhow!("no room left").context("cannot make its image")),
            3 => panic!("as a bug would"),
            _ => Ok(Report { verdicts: Vec::new(), ..Report::broken(job.to_string(), &anyhow!("of the guest")) }),
        };
        for at_a_time in [1, 3] {
            let (sender, received) = channel();
            (1..=4).for_each(|job| sender.send(job).unwrap());
            drop(sender);
            let mut is_done = false;
            let mut reports = play_all(received, at_a_time, u32::to_string, play, || is_done = true);
            assert!(is_done);
            reports.sort_by(|one, other| one.kernel.cmp(&other.kernel));
            let troubles: Vec<String> = reports.iter().map(|report| report.troubles.join("; ")).collect();
            let expected = ["of the guest", "cannot make its image: no room left", "it panicked", "of the guest"];
            assert_eq!(troubles, expected.map(|why| format!("the rig broke: {why}")));
        }
    }
}
