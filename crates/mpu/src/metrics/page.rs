//! Renders a page from facts. Decides which passed calls count as missed.

use super::families as f;
use super::ledger::Ledger;
use super::text::{Labels, Text, clean};
use super::usage::{Gpu, Label, Sum, Usage};
use crate::processes::Utilisation;
use mpu_core::Reason;
use mpu_engine::observe::{Cost, Observed};
use mpu_host::driver::{self, Driver, Flavour};
use mpu_host::phase::Phase;
use std::fmt::Display;
use std::time::Duration;

/// Facts of the host that need no request to the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The engines that are up.
    pub engines: Vec<Observed>,
    /// The driver, if one is loaded.
    pub driver: Option<Driver>,
}

/// The outcome of reading one part.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    pub success: bool,
    pub took: Duration,
    /// The failures since the beginning.
    pub errors: u64,
}

/// The facts of a page. A part that could not be read is none, and has no rows: neither old values nor zeros.
#[derive(Debug, Default)]
pub struct Facts<'a> {
    /// When the exporter began, in seconds since 1970; none on a single page.
    pub started: Option<f64>,
    pub host: Option<HostFacts>,
    pub usage: Option<Usage>,
    /// The sums since the beginning; none on a single page, and without `usage`.
    pub ledger: Option<&'a Ledger>,
    /// The parts by name, and the outcome of reading them.
    pub readings: Vec<(&'static str, Reading)>,
}

/// Whether this reason left a caller in a container with an answer that should have been translated. An unknown reason counts
/// as missed: a false alarm is better than a missing one.
pub fn is_missed(reason: &str) -> bool {
    let Some(reason) = Reason::ALL.iter().find(|known| known.name() == reason) else { return true };
    match reason {
        // The caller got the driver's own answer. The notify engine refuses an unknown size: MPU must be updated all the same.
        Reason::UnknownSize | Reason::NoMemory | Reason::ArgumentNotSeen | Reason::CopyNotSeen | Reason::OutOfReach => {
            true
        }
        // The driver refused: there was no answer.
        Reason::Unreadable => false,
        // The answer lists no process.
        Reason::Malformed => false,
        // Translated by the caller's copy of the argument.
        Reason::ProbePending => false,
        // By policy.
        Reason::Exempt => false,
    }
}

pub fn page(facts: &Facts<'_>, extra_labels: &[Label]) -> String {
    let rows = facts.usage.as_ref().map_or(0, |usage| usage.uses.len());
    let mut text = Text::with_capacity(8192 + rows * 1024);
    text.family(&f::BUILD).put(&[env!("CARGO_PKG_VERSION")], 1);
    if let Some(started) = facts.started {
        text.family(&f::STARTED).put(&[], started);
    }
    if let Some(host) = &facts.host {
        engines(&host.engines, &mut text);
        if let Some(driver) = &host.driver {
            self::driver(driver, &mut text);
        }
    }
    if let Some(usage) = &facts.usage {
        gpus(usage, extra_labels, &mut text);
    }
    if let Some(ledger) = facts.ledger {
        accounts(ledger, extra_labels, &mut text);
    }
    for (family, number) in [
        (&f::SUCCESS, (|r| f64::from(u8::from(r.success))) as fn(&Reading) -> f64),
        (&f::DURATION, |r| r.took.as_secs_f64()),
        (&f::ERRORS, |r| r.errors as f64),
    ] {
        let mut rows = text.family(family);
        for (part, reading) in &facts.readings {
            rows.put(&[part], number(reading));
        }
    }
    text.finish()
}

fn engines(engines: &[Observed], text: &mut Text) {
    text.family(&f::UP).put(&[], u8::from(engines.iter().any(is_up)));
    let mut rows = text.family(&f::STATE);
    for engine in engines {
        let other = (!Phase::REPORTED.contains(&engine.state)).then(|| engine.state.clone());
        for state in Phase::REPORTED.into_iter().chain(other) {
            let is_so = u8::from(engine.state == state);
            rows.put(&[engine.engine.name(), &clean(&engine.version), &clean(state.word())], is_so);
        }
    }
    let mut rows = text.family(&f::REFUSED);
    for engine in engines {
        if let Some((symbol, errno)) = &engine.refused {
            rows.put(&[engine.engine.name(), &clean(symbol), &errno.to_string()], 1);
        }
    }
    by_engine(text, &f::SINCE, engines, |engine| engine.since);
    by_engine(text, &f::INSIDE, engines, |engine| Some(engine.inside));
    by_engine(text, &f::ORPHANS, engines, |engine| engine.orphans);
    by_engine(text, &f::CLAIMED, engines, |engine| engine.claimed.map(u8::from));
    by_engine(text, &f::TRACING, engines, |engine| engine.tracing.map(u8::from));
    by_engine(text, &f::CONTAINERS, engines, |engine| engine.containers);
    by_engine(text, &f::FORWARDED, engines, |engine| engine.forwarded);
    by_engine(text, &f::RESTARTS, engines, |engine| engine.restarts);
    of_containers(text, &f::CPU, engines, |cost| cost.cpu_microseconds);
    of_containers(text, &f::HELD_BACK, engines, |cost| cost.held_back_microseconds);
    counts(text, &f::TRANSLATED, engines, |e| &e.translated, |_| true);
    counts(text, &f::PASSED, engines, |e| &e.passed, |_| true);
    counts(text, &f::MISSED, engines, |e| &e.passed, is_missed);
}

fn by_engine<N: Display>(
    text: &mut Text,
    family: &'static f::Family,
    engines: &[Observed],
    number: impl Fn(&Observed) -> Option<N>,
) {
    let mut rows = text.family(family);
    for engine in engines {
        if let Some(number) = number(engine) {
            rows.put(&[engine.engine.name()], number);
        }
    }
}

fn of_containers(text: &mut Text, family: &'static f::Family, engines: &[Observed], micros: fn(&Cost) -> u64) {
    let mut rows = text.family(family);
    for engine in engines {
        for of in &engine.costs {
            rows.put(&[engine.engine.name(), &clean(&of.container)], micros(of) as f64 / 1e6);
        }
    }
}

/// Whether callers in containers pass an engine that can translate.
fn is_up(engine: &Observed) -> bool {
    engine.state.is_placed() && engine.tracing != Some(false)
}

fn counts(
    text: &mut Text,
    family: &'static f::Family,
    engines: &[Observed],
    of: fn(&Observed) -> &Vec<(String, u64)>,
    includes: fn(&str) -> bool,
) {
    let mut rows = text.family(family);
    for engine in engines {
        for (name, count) in of(engine).iter().filter(|(name, _)| includes(name)) {
            rows.put(&[engine.engine.name(), &clean(name)], count);
        }
    }
}

fn driver(driver: &Driver, text: &mut Text) {
    let flavour = match driver.flavour {
        Flavour::Open => "open",
        Flavour::Proprietary => "proprietary",
        Flavour::Unknown => "unknown",
    };
    let era = driver.known().map(|release| driver::native(release).era.to_string()).unwrap_or_default();
    text.family(&f::DRIVER).put(&[&clean(&driver.version), flavour, &era], 1);
}

fn gpus(usage: &Usage, extra_labels: &[Label], text: &mut Text) {
    let mut rows = text.family(&f::GPU);
    for gpu in &usage.gpus {
        rows.put(&[&gpu.index.to_string(), &clean(&gpu.uuid), &clean(&gpu.name)], 1);
    }
    let all = || usage.gpus.iter();
    by_gpu(text, &f::GPU_UP, all().map(|gpu| (gpu.index, &*gpu.uuid, Some(u8::from(gpu.readable)))));
    by_gpu(text, &f::SIZE, all().map(|gpu| (gpu.index, &*gpu.uuid, gpu.memory)));
    let memory_of_gpus = usage.memory_of_gpus();
    let devices: Vec<(&Gpu, u64, i128)> = usage
        .gpus
        .iter()
        .filter(|gpu| gpu.readable)
        .filter_map(|gpu| {
            let used = gpu.used?;
            let memory_of_processes = memory_of_gpus.get(&(gpu.index, gpu.uuid.as_str())).copied().unwrap_or_default();
            Some((gpu, used, i128::from(used) - i128::from(memory_of_processes)))
        })
        .collect();
    let readable = || devices.iter();
    by_gpu(text, &f::DEVICE_MEMORY, readable().map(|(gpu, used, _)| (gpu.index, &*gpu.uuid, Some(used))));
    by_gpu(text, &f::RESIDUE, readable().map(|(gpu, _, residue)| (gpu.index, &*gpu.uuid, Some(residue))));
    let sums: Vec<(Labels, Sum)> =
        usage.sums(extra_labels).into_iter().map(|((_, labels), sum)| (labels, sum)).collect();
    by_labels(text, &f::PROCESSES, &sums, |sum| Some(sum.processes));
    by_labels(text, &f::MEMORY, &sums, |sum| sum.memory);
    let ratio = |sum: &Sum, of: fn(Utilisation) -> u32| sum.utilisation.map(|used| f64::from(of(used)) / 100.0);
    by_labels(text, &f::SM, &sums, |sum| ratio(sum, |used| used.gpu));
    by_labels(text, &f::TRANSFER, &sums, |sum| ratio(sum, |used| used.memory));
    by_labels(text, &f::ENCODER, &sums, |sum| ratio(sum, |used| used.encoder));
    by_labels(text, &f::DECODER, &sums, |sum| ratio(sum, |used| used.decoder));
}

fn accounts(ledger: &Ledger, extra_labels: &[Label], text: &mut Text) {
    let accounts: Vec<_> = ledger.accounts(extra_labels).collect();
    by_labels(text, &f::BYTE_SECONDS, &accounts, |account| account.byte_seconds);
    by_labels(text, &f::IDLE, &accounts, |account| account.idle_seconds);
    by_labels(text, &f::SM_SECONDS, &accounts, |account| account.sm_seconds);
    by_labels(text, &f::ENDED, &accounts, |account| Some(account.ended));
    let devices = || ledger.devices();
    by_gpu(text, &f::DEVICE_BYTE_SECONDS, devices().map(|(gpu, uuid, device)| (gpu, uuid, device.byte_seconds)));
    let observed = devices().map(|(gpu, uuid, device)| (gpu, uuid, Some(device.observed.as_secs_f64())));
    by_gpu(text, &f::OBSERVED, observed);
}

fn by_gpu<'a, N: Display>(
    text: &mut Text,
    family: &'static f::Family,
    gpus: impl Iterator<Item = (u32, &'a str, Option<N>)>,
) {
    let mut rows = text.family(family);
    for (index, uuid, number) in gpus {
        if let Some(number) = number {
            rows.put(&[&index.to_string(), &clean(uuid)], number);
        }
    }
}

fn by_labels<T, N: Display>(
    text: &mut Text,
    family: &'static f::Family,
    all: &[(Labels, T)],
    number: impl Fn(&T) -> Option<N>,
) {
    let mut rows = text.family(family);
    for (labels, one) in all {
        if let Some(number) = number(one) {
            rows.put_labelled(labels, number);
        }
    }
}
