//! Makes a page from facts: the rows, and the passed calls that count as missed.

use super::families as f;
use super::ledger::Ledger;
use super::text::{Labels, Text, clean};
use super::usage::{Gpu, Label, Sum, Usage};
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

/// The facts of a page. A part that could not be read is none and has no rows: no old values, no zeros.
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
        // The caller got the driver's own answer.
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
    let mut rows = text.family(&f::SINCE);
    for engine in engines {
        if let Some(since) = engine.since {
            rows.put(&[engine.engine.name()], since);
        }
    }
    let mut rows = text.family(&f::INSIDE);
    for engine in engines {
        rows.put(&[engine.engine.name()], engine.inside);
    }
    let mut rows = text.family(&f::ORPHANS);
    for engine in engines {
        if let Some(orphans) = engine.orphans {
            rows.put(&[engine.engine.name()], orphans);
        }
    }
    let mut rows = text.family(&f::CLAIMED);
    for engine in engines {
        if let Some(claimed) = engine.claimed {
            rows.put(&[engine.engine.name()], u8::from(claimed));
        }
    }
    let mut rows = text.family(&f::TRACING);
    for engine in engines {
        if let Some(tracing) = engine.tracing {
            rows.put(&[engine.engine.name()], u8::from(tracing));
        }
    }
    let mut rows = text.family(&f::CONTAINERS);
    for engine in engines {
        if let Some(containers) = engine.containers {
            rows.put(&[engine.engine.name()], containers);
        }
    }
    let mut rows = text.family(&f::FORWARDED);
    for engine in engines {
        if let Some(forwarded) = engine.forwarded {
            rows.put(&[engine.engine.name()], forwarded);
        }
    }
    let mut rows = text.family(&f::RESTARTS);
    for engine in engines {
        if let Some(restarts) = engine.restarts {
            rows.put(&[engine.engine.name()], restarts);
        }
    }
    of_containers(text, &f::CPU, engines, |cost| cost.cpu_microseconds);
    of_containers(text, &f::HELD_BACK, engines, |cost| cost.held_back_microseconds);
    counts(text, &f::TRANSLATED, engines, |e| &e.translated, |_| true);
    counts(text, &f::PASSED, engines, |e| &e.passed, |_| true);
    counts(text, &f::MISSED, engines, |e| &e.passed, is_missed);
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
    let mut rows = text.family(&f::GPU_UP);
    for gpu in &usage.gpus {
        rows.put(&[&gpu.index.to_string(), &clean(&gpu.uuid)], u8::from(gpu.readable));
    }
    let mut rows = text.family(&f::SIZE);
    for gpu in &usage.gpus {
        if let Some(memory) = gpu.memory {
            rows.put(&[&gpu.index.to_string(), &clean(&gpu.uuid)], memory);
        }
    }
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
    let mut rows = text.family(&f::DEVICE_MEMORY);
    for (gpu, used, _) in &devices {
        rows.put(&[&gpu.index.to_string(), &clean(&gpu.uuid)], used);
    }
    let mut rows = text.family(&f::RESIDUE);
    for (gpu, _, residue) in &devices {
        rows.put(&[&gpu.index.to_string(), &clean(&gpu.uuid)], residue);
    }
    // Labels are long and the same in all six metrics.
    let sums: Vec<(Labels, Sum)> = usage
        .sums(extra_labels)
        .iter()
        .map(|(labels_of_user, sum)| (labels_of_user.labels(extra_labels), *sum))
        .collect();
    of_processes(text, &f::PROCESSES, &sums, |sum| Some(sum.processes));
    of_processes(text, &f::MEMORY, &sums, |sum| sum.amounts.memory);
    let ratio = |percent: Option<u32>| percent.map(|percent| f64::from(percent) / 100.0);
    of_processes(text, &f::SM, &sums, |sum| ratio(sum.amounts.sm));
    of_processes(text, &f::TRANSFER, &sums, |sum| ratio(sum.amounts.transfer));
    of_processes(text, &f::ENCODER, &sums, |sum| ratio(sum.amounts.encoder));
    of_processes(text, &f::DECODER, &sums, |sum| ratio(sum.amounts.decoder));
}

fn accounts(ledger: &Ledger, extra_labels: &[Label], text: &mut Text) {
    let accounts: Vec<_> = ledger.accounts(extra_labels).collect();
    let mut rows = text.family(&f::BYTE_SECONDS);
    for (labels, account) in &accounts {
        if let Some(byte_seconds) = account.byte_seconds {
            rows.put_labelled(labels, byte_seconds);
        }
    }
    let mut rows = text.family(&f::IDLE);
    for (labels, account) in &accounts {
        if let Some(idle_seconds) = account.idle_seconds {
            rows.put_labelled(labels, idle_seconds);
        }
    }
    let mut rows = text.family(&f::SM_SECONDS);
    for (labels, account) in &accounts {
        if let Some(sm_seconds) = account.sm_seconds {
            rows.put_labelled(labels, sm_seconds);
        }
    }
    let mut rows = text.family(&f::ENDED);
    for (labels, account) in &accounts {
        rows.put_labelled(labels, account.ended);
    }
    let mut rows = text.family(&f::DEVICE_BYTE_SECONDS);
    for (gpu, uuid, device) in ledger.devices() {
        if let Some(byte_seconds) = device.byte_seconds {
            rows.put(&[&gpu.to_string(), &clean(uuid)], byte_seconds);
        }
    }
    let mut rows = text.family(&f::OBSERVED);
    for (gpu, uuid, device) in ledger.devices() {
        rows.put(&[&gpu.to_string(), &clean(uuid)], device.observed.as_secs_f64());
    }
}

fn of_processes<N: Display>(
    text: &mut Text,
    family: &'static f::Family,
    sums: &[(Labels, Sum)],
    number: impl Fn(&Sum) -> Option<N>,
) {
    let mut rows = text.family(family);
    for (labels, sum) in sums {
        if let Some(number) = number(sum) {
            rows.put_labelled(labels, number);
        }
    }
}
