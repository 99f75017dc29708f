//! Every check there is, cheapest first: formatting, lints, host tests, the kernel object, module builds, guests.
//!
//! The quick matrix boots every kernel and covers every era, client and engine at least once; `--full` crosses them. `wanted` says which part
//! of all this a person asked for.

mod matrix;
mod wanted;

use std::cmp::Reverse;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{anyhow, Result};

use crate::arch::Arch;
use crate::guest::verdict::{Ending, Report, Tally};
use crate::guest::{self, image, Job};
use crate::node::{self, Play};
use crate::outcome::Outcome;
use crate::run::say;
use crate::skips::without;
use crate::{apt, chart, containers, emulated, kernels, kmod, libtest, lint, packages, paths, promtool, rig, setup};
use matrix::{Guest, Matrix};
use wanted::{Stage, Wanted};

#[derive(clap::Args)]
pub struct Args {
    /// These stages alone: lint, chart, host, containers, packages, arm64, modules, guest, node; or the guests of the matrix with these stories alone
    #[arg(value_name = "STAGE|STORY")]
    only: Vec<String>,
    /// Cross every kernel, era and client instead of covering each once
    #[arg(long)]
    full: bool,
    /// Leave the guests out
    #[arg(long, conflicts_with = "only")]
    no_guests: bool,
    /// Guests at a time
    #[arg(long, default_value_t = 2)]
    guests: usize,
}

/// Whose headers the module is also built with as if they knew no return thunks: no kernel without them can be had.
const THUNKLESS: &str = "6.1";

/// The verb.
pub fn test(args: &Args) -> Result<Outcome> {
    let began = Instant::now();
    let wanted = Wanted::of(&args.only)?;
    let mut tally = Tally::default();
    // Where the time goes is seen in every log.
    let stages = Mutex::new(Vec::<(String, u64)>::new());
    let stage = |what: &str| {
        let now = began.elapsed().as_secs();
        say(format!("{what}, after {now} s"));
        stages.lock().unwrap_or_else(PoisonError::into_inner).push((what.to_owned(), now));
    };
    let all_ran = everything(args, &wanted, &mut tally, &stage);
    if !args.only.is_empty() && tally.is_idle() {
        tally.check(&args.only.join(" "), Ending::Fail, "nothing of it was played");
    }
    stage("the end");
    let stages = stages.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (one, next) in stages.iter().zip(stages.iter().skip(1)) {
        say(format!("{:5} s: {}", next.1 - one.1, one.0));
    }
    // What was found out before the rig broke is still worth reading.
    tally.print();
    all_ran.map(|()| tally.outcome())
}

fn everything(args: &Args, wanted: &Wanted, tally: &mut Tally, stage: &dyn Fn(&str)) -> Result<()> {
    setup::require(setup::HOST)?;
    for arch in Arch::ALL {
        guest::prepare(arch)?;
    }
    host_checks(args.full, wanted, tally, stage)?;
    if wanted.has(Stage::Modules) {
        stage("the module for every kernel");
        // Without a module there is nothing to boot a guest for.
        if !module_builds(args.full, tally)? {
            return Ok(());
        }
    }
    let matrix = Matrix::read()?;
    let mut work = Vec::new();
    if wanted.has(Stage::Node) && !args.no_guests {
        stage("what whole Debians are made of");
        let seconds = |play: Play| matrix.plays.get(play.name()).copied().unwrap_or(matrix.row_seconds);
        work.extend(plays(args.full, tally)?.into_iter().map(|play| (seconds(play), Work::Node(play))));
    }
    if wanted.has(Stage::Guest) && !args.no_guests {
        stage("NVIDIA's own drivers, and what guests are made of");
        let guests = guests(&matrix, args.full, wanted, tally)?;
        work.extend(guests.into_iter().map(|guest| (guest.seconds, Work::Guest(guest.job))));
    }
    if work.is_empty() {
        return Ok(());
    }
    // One that begins late and takes long would be waited for alone.
    work.sort_by_key(|(seconds, _)| Reverse(*seconds));
    let work: Vec<Work> = work.into_iter().map(|(_, work)| work).collect();
    stage("guests");
    for report in boot_all(&work, args.guests.max(1)) {
        tally.add(&report);
    }
    Ok(())
}

/// The guests of the matrix, ready to be made.
fn guests(matrix: &Matrix, full: bool, wanted: &Wanted, tally: &mut Tally) -> Result<Vec<Guest>> {
    let mut guests = matrix::simulated(matrix, full, &wanted::stories())?;
    guests.extend(matrix::real(matrix, full, tally)?);
    for guest in &mut guests {
        guest.job.rows.retain_mut(|row| wanted.keeps(row, &matrix.last));
    }
    guests.retain(|guest| !guest.job.rows.is_empty());
    // Downloads first, one at a time: a guest's time is for the guest.
    guests.iter().try_for_each(|guest| guest.job.fetch())?;
    Ok(guests)
}

/// One guest to boot: a kernel with what is tried on it, or a whole Debian.
enum Work {
    Guest(Job),
    Node(Play),
}

impl Work {
    fn name(&self) -> String {
        match self {
            Work::Guest(job) => job.name(),
            Work::Node(play) => format!("node {}", play.name()),
        }
    }

    fn build(&self) -> Result<PathBuf> {
        match self {
            Work::Guest(job) => image::build(job),
            Work::Node(play) => node::build(*play, false),
        }
    }

    fn boot(&self, image: &Path) -> Result<Report> {
        match self {
            Work::Guest(job) => guest::boot_image(job, image, false),
            Work::Node(play) => node::boot(*play, image, false),
        }
    }
}

/// The Debian's plays, where this user can make one.
fn plays(full: bool, tally: &mut Tally) -> Result<Vec<Play>> {
    if !node::possible() {
        tally.check("node stories", Ending::Skip, "debootstrap makes a Debian as root only");
        return Ok(Vec::new());
    }
    let plays = if full { Play::ALL.to_vec() } else { vec![Play::Life, Play::SecureBoot, Play::Containers] };
    for play in Play::ALL.iter().filter(|play| !plays.contains(play)) {
        tally.check(&format!("node stories of {}", play.name()), Ending::Skip, "minutes more: `./x test --full`");
    }
    node::fetch(&plays)?;
    Ok(plays)
}

fn host_checks(full: bool, wanted: &Wanted, tally: &mut Tally, stage: &dyn Fn(&str)) -> Result<()> {
    if wanted.has(Stage::Lint) {
        stage("formatting and lints");
        for (name, result) in [("formatting", lint::formatting()?), ("clippy", lint::lints()?)] {
            match result {
                Some(outcome) => tally.check(name, ending(outcome == Outcome::Passed), "see above"),
                None => tally.check(
                    name,
                    Ending::Skip,
                    "this Rust came without it, or is newer than the lints were read with",
                ),
            }
        }
    }
    if wanted.has(Stage::Chart) {
        stage("the Helm chart");
        match chart::tools() {
            Ok(tools) => {
                let outcome = chart::check(&tools, false)?;
                tally.check("Helm chart", ending(outcome == Outcome::Passed), "see above");
            }
            Err(error) => without(tally, "Helm chart", &error),
        }
    }
    if wanted.has(Stage::Host) {
        stage("host tests");
        host_tests(tally)?;
    }
    if wanted.has(Stage::Containers) {
        stage("container engines");
        containers::check(None, full, tally)?;
    }
    if wanted.has(Stage::Packages) {
        stage("packages");
        packages::check(full, tally)?;
    }
    if wanted.has(Stage::Arm64) {
        stage("user space for arm64");
        emulated::check(full, tally)?;
    }
    Ok(())
}

fn host_tests(tally: &mut Tally) -> Result<()> {
    let mut cargo = lint::cargo();
    match promtool::ready() {
        Ok(program) => drop(cargo.env(promtool::VARIABLE, program)),
        Err(error) => without(tally, "promtool", &error),
    }
    let log = |name: &str| Ok::<_, anyhow::Error>(paths::target("log")?.join(name));
    // What a test prints is shown of those that pass, too: one that was skipped says so there. One that fails hides no other.
    cargo.args(["test", "--quiet", "--locked", "--no-fail-fast", "--", "--show-output"]);
    let text = libtest::check(&mut cargo, "cargo test", &log("cargo-test.log")?, tally)?;
    // Those that need the rig are the stage `containers`.
    for reason in libtest::skipped(&text).filter(|reason| !reason.contains(rig::VARIABLE)) {
        tally.check("cargo test", Ending::Skip, reason);
    }
    // No default member: what it builds is for the kernel. Its test holds kmod/mpu_core.h to it.
    let mut boundary = lint::cargo();
    boundary.args(["test", "--quiet", "--locked", "--package", "mpu-kmod"]);
    libtest::check(&mut boundary, "the boundary of C and Rust", &log("boundary-test.log")?, tally)?;
    Ok(())
}

/// The module for every kernel: no complaint of compiler, modpost or objtool is let pass. True if all came out.
fn module_builds(full: bool, tally: &mut Tally) -> Result<bool> {
    let mut all_built = true;
    for arch in Arch::ALL {
        let faults = kmod::faults(arch, &kmod::build(arch)?)?;
        tally.check(&arch.named("kernel object"), ending(faults.is_empty()), &faults.join("; "));
        all_built &= faults.is_empty();
        for name in kernels::debian(arch)?.iter().filter(|_| faults.is_empty()) {
            let kernel = kernels::ready(name)?;
            let built = image::mpu_module(&kernel, None).err().map(|error| format!("{error:#}"));
            all_built &= built.is_none();
            tally.check(&format!("mpu.ko for {}", kernel.release), ending(built.is_none()), &built.unwrap_or_default());
        }
    }
    if all_built {
        all_built &= flavours_build(full, tally)?;
    }
    if all_built {
        let left = image::left_without_return_thunks(&kernels::ready(THUNKLESS)?)?;
        let thunks: Vec<&str> = left.iter().map(String::as_str).filter(|name| name.contains("return_thunk")).collect();
        let known = left.iter().any(|name| name == "register_kprobe");
        let told = format!("leaves {} to the kernel", if known { thunks.join(", ") } else { left.join(", ") });
        tally.check("mpu.ko for a kernel without return thunks", ending(known && thunks.is_empty()), &told);
    }
    Ok(all_built)
}

/// The module for kernels that no guest boots; one whose headers cannot be reached from here is a counted skip.
fn flavours_build(full: bool, tally: &mut Tally) -> Result<bool> {
    let mut all_built = true;
    for name in kernels::flavours(full)? {
        let kernel = match kernels::ready(&name) {
            Ok(kernel) => kernel,
            Err(error) => {
                let ending = if apt::is_unreachable(&error) { Ending::Skip } else { Ending::Fail };
                tally.check(&format!("headers of {name}"), ending, &format!("{error:#}"));
                continue;
            }
        };
        let built = image::mpu_module(&kernel, None).err().map(|error| format!("{error:#}"));
        all_built &= built.is_none();
        tally.check(&format!("mpu.ko for {}", kernel.release), ending(built.is_none()), &built.unwrap_or_default());
    }
    Ok(all_built)
}

/// Boots the jobs, a few at a time, in this order. One whose image cannot be made, or that breaks, is reported as such beside the others.
fn boot_all(jobs: &[Work], at_a_time: usize) -> Vec<Report> {
    // Images share one build folder: they are made one at a time, while other guests run.
    let building = Mutex::new(());
    let play = |job: &Work| {
        let image = {
            let _guard = building.lock().unwrap_or_else(PoisonError::into_inner);
            job.build()?
        };
        job.boot(&image)
    };
    play_all(jobs, at_a_time, Work::name, play)
}

fn play_all<T: Sync>(
    jobs: &[T],
    at_a_time: usize,
    name: impl Fn(&T) -> String + Sync,
    play: impl Fn(&T) -> Result<Report> + Sync,
) -> Vec<Report> {
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(Vec::new());
    let work = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let played = catch_unwind(AssertUnwindSafe(|| play(job))).unwrap_or_else(|_| Err(anyhow!("it panicked")));
            let report = played.unwrap_or_else(|error| Report::broken(name(job), &error));
            say(format!("guest {}: {}", name(job), report.summary()));
            reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
        }
    };
    std::thread::scope(|scope| (0..at_a_time).for_each(|_| drop(scope.spawn(work))));
    reports.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn ending(passed: bool) -> Ending {
    if passed {
        Ending::Pass
    } else {
        Ending::Fail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ran_is_reported_beside_what_could_not_be_made() {
        let play = |job: &u32| match job {
            2 => Err(anyhow!("no room left").context("cannot make its image")),
            3 => panic!("as a bug would"),
            _ => Ok(Report { verdicts: Vec::new(), ..Report::broken(job.to_string(), &anyhow!("of the guest")) }),
        };
        for at_a_time in [1, 3] {
            let mut reports = play_all(&[1, 2, 3, 4], at_a_time, u32::to_string, play);
            reports.sort_by(|one, other| one.kernel.cmp(&other.kernel));
            let told: Vec<String> = reports.iter().map(|report| report.troubles.join("; ")).collect();
            let wanted = ["of the guest", "cannot make its image: no room left", "it panicked", "of the guest"];
            assert_eq!(told, wanted.map(|why| format!("the rig broke: {why}")));
        }
    }
}
