//! The columns for GPU processes: title, cell and order of rows of each.

use crate::processes::{GpuProcess, Utilisation};
use clap::ValueEnum;
use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Column {
    /// The GPU's index
    Gpu,
    /// The MIG device, as GPU instance:compute instance
    Mig,
    /// The process's number on the host
    Pid,
    /// Its number in its container
    Cpid,
    /// Its user on the host
    User,
    /// Its user's number
    Uid,
    /// What runs the container
    Runtime,
    /// The container's name, or its id
    Container,
    /// The container's id
    Id,
    /// The container around the container
    Outer,
    /// The pod's namespace
    Namespace,
    /// The pod's name, or its uid
    Pod,
    /// C computes, G draws, M+C computes through MPS
    Type,
    /// Video memory
    Memory,
    /// The most video memory that its container may use on the GPU
    Limit,
    /// Share of the GPU's compute and graphics engines
    Util,
    /// Share of the GPU's memory traffic
    MemUtil,
    /// Share of the encoder
    Enc,
    /// Share of the decoder
    Dec,
    /// How long ago it started
    Age,
    /// The program's name
    Name,
    /// The command line
    Command,
}

/// The alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Stands for an unknown or absent value.
pub const NOTHING: &str = "-";

type Cell = fn(&GpuProcess, u64) -> Option<String>;
type Order = fn(&GpuProcess, &GpuProcess, u64) -> Ordering;

/// Column, title, alignment, the least width that it is cut to (none: never), its cell, and its order.
type ColumnRow = (Column, &'static str, Align, Option<usize>, Cell, Order);

const ROWS: &[ColumnRow] = &[
    (Column::Gpu, "GPU", Align::Right, None, |p, _| Some(p.gpu.to_string()), |a, b, _| a.gpu.cmp(&b.gpu)),
    (Column::Mig, "MIG", Align::Left, None, |p, _| mig(p), |a, b, _| a.mig.cmp(&b.mig)),
    (Column::Pid, "PID", Align::Right, None, |p, _| Some(p.pid.get().to_string()), |a, b, _| a.pid.cmp(&b.pid)),
    (
        Column::Cpid,
        "CPID",
        Align::Right,
        None,
        |p, _| Some(p.container_pid?.get().to_string()),
        |a, b, _| a.container_pid.cmp(&b.container_pid),
    ),
    (Column::User, "USER", Align::Left, Some(6), |p, _| user(p), |a, b, _| user(a).cmp(&user(b))),
    (Column::Uid, "UID", Align::Right, None, |p, _| Some(p.uid?.to_string()), |a, b, _| a.uid.cmp(&b.uid)),
    (Column::Runtime, "RUNTIME", Align::Left, None, |p, _| runtime(p), |a, b, _| runtime(a).cmp(&runtime(b))),
    (
        Column::Container,
        "CONTAINER",
        Align::Left,
        Some(6),
        |p, _| container(p),
        |a, b, _| container(a).cmp(&container(b)),
    ),
    (Column::Id, "ID", Align::Left, None, |p, _| id(p), |a, b, _| id(a).cmp(&id(b))),
    (Column::Outer, "OUTER", Align::Left, Some(6), |p, _| outer(p), |a, b, _| outer(a).cmp(&outer(b))),
    (
        Column::Namespace,
        "NAMESPACE",
        Align::Left,
        Some(6),
        |p, _| namespace(p),
        |a, b, _| namespace(a).cmp(&namespace(b)),
    ),
    (Column::Pod, "POD", Align::Left, Some(6), |p, _| pod(p), |a, b, _| pod(a).cmp(&pod(b))),
    (Column::Type, "TYPE", Align::Left, None, |p, _| Some(p.kind.letters().to_string()), |a, b, _| a.kind.cmp(&b.kind)),
    (Column::Memory, "MEMORY", Align::Right, None, |p, _| p.memory.map(mebibytes), |a, b, _| a.memory.cmp(&b.memory)),
    (
        Column::Limit,
        "LIMIT",
        Align::Right,
        None,
        |p, _| p.memory_limit.map(mebibytes),
        |a, b, _| a.memory_limit.cmp(&b.memory_limit),
    ),
    (Column::Util, "GPU%", Align::Right, None, |p, _| share(p, |u| u.gpu), |a, b, _| by_share(a, b, |u| u.gpu)),
    (
        Column::MemUtil,
        "MEM%",
        Align::Right,
        None,
        |p, _| share(p, |u| u.memory),
        |a, b, _| by_share(a, b, |u| u.memory),
    ),
    (Column::Enc, "ENC%", Align::Right, None, |p, _| share(p, |u| u.encoder), |a, b, _| by_share(a, b, |u| u.encoder)),
    (Column::Dec, "DEC%", Align::Right, None, |p, _| share(p, |u| u.decoder), |a, b, _| by_share(a, b, |u| u.decoder)),
    (
        Column::Age,
        "AGE",
        Align::Right,
        None,
        |p, at| Some(age(at.saturating_sub(p.started?))),
        |a, b, _| b.started.cmp(&a.started),
    ),
    (Column::Name, "NAME", Align::Left, Some(6), |p, _| p.name.clone(), |a, b, _| a.name.cmp(&b.name)),
    (Column::Command, "COMMAND", Align::Left, Some(10), |p, _| command(p), |a, b, _| command(a).cmp(&command(b))),
];

/// Default columns; those of [`IF_ANY`] only if a row has a value.
const USUAL: &[Column] = &[
    Column::Gpu,
    Column::Mig,
    Column::Pid,
    Column::Cpid,
    Column::User,
    Column::Container,
    Column::Namespace,
    Column::Pod,
    Column::Type,
    Column::Memory,
    Column::Limit,
    Column::Util,
    Column::Command,
];
const WIDE: &[Column] = &[
    Column::Gpu,
    Column::Mig,
    Column::Pid,
    Column::Cpid,
    Column::User,
    Column::Runtime,
    Column::Container,
    Column::Id,
    Column::Outer,
    Column::Namespace,
    Column::Pod,
    Column::Type,
    Column::Memory,
    Column::Limit,
    Column::Util,
    Column::MemUtil,
    Column::Enc,
    Column::Dec,
    Column::Age,
    Column::Command,
];
const IF_ANY: &[Column] = &[Column::Mig, Column::Namespace, Column::Pod, Column::Outer, Column::Limit];

/// The columns to show for these processes.
pub fn chosen(requested: &[Column], wide: bool, processes: &[GpuProcess]) -> Vec<Column> {
    if !requested.is_empty() {
        return requested.to_vec();
    }
    let usual = if wide { WIDE } else { USUAL };
    let any = |column: Column| processes.iter().any(|process| column.value(process, 0).is_some());
    usual.iter().copied().filter(|column| !IF_ANY.contains(column) || any(*column)).collect()
}

impl Column {
    fn row(self) -> &'static ColumnRow {
        // The test below keeps the list complete.
        ROWS.iter().find(|row| row.0 == self).unwrap_or(&ROWS[0])
    }

    pub fn title(self) -> &'static str {
        self.row().1
    }

    pub fn align(self) -> Align {
        self.row().2
    }

    /// The least width that its cells may be cut to; none if they are never cut.
    pub fn least(self) -> Option<usize> {
        self.row().3
    }

    /// The cell of a process at a time, without control characters: a process chooses its name.
    pub fn cell(self, process: &GpuProcess, at: u64) -> String {
        self.value(process, at).map_or(NOTHING.to_string(), |text| harmless(&text))
    }

    fn value(self, process: &GpuProcess, at: u64) -> Option<String> {
        (self.row().4)(process, at).filter(|text| !text.is_empty())
    }

    fn order(self, a: &GpuProcess, b: &GpuProcess, at: u64) -> Ordering {
        (self.row().5)(a, b, at)
    }
}

/// A column to sort by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    pub column: Column,
    /// Largest first.
    pub descending: bool,
}

impl FromStr for Sort {
    type Err = String;

    fn from_str(text: &str) -> Result<Sort, String> {
        let (descending, name) = match text.strip_prefix('-') {
            Some(name) => (true, name),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let names =
            || Column::value_variants().iter().filter_map(|c| c.to_possible_value()).map(|v| v.get_name().to_string());
        let column = Column::from_str(name, true)
            .map_err(|_| format!("there is no column {name}; there are {}", names().collect::<Vec<_>>().join(", ")))?;
        Ok(Sort { column, descending })
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.column.to_possible_value().map(|value| value.get_name().to_string()).unwrap_or_default();
        write!(f, "{}{name}", if self.descending { "-" } else { "" })
    }
}

/// Sorts; equal rows stay by GPU and PID.
pub fn sort(processes: &mut [GpuProcess], by: &[Sort], at: u64) {
    processes.sort_by(|a, b| {
        let keys = by.iter().map(|key| match key.descending {
            true => key.column.order(b, a, at),
            false => key.column.order(a, b, at),
        });
        keys.fold(Ordering::Equal, Ordering::then)
            .then(a.gpu.cmp(&b.gpu))
            .then(a.pid.cmp(&b.pid))
            .then(a.mig.cmp(&b.mig))
    });
}

fn mig(p: &GpuProcess) -> Option<String> {
    let mig = p.mig?;
    Some(match mig.compute_instance {
        Some(compute) => format!("{}:{compute}", mig.gpu_instance),
        None => mig.gpu_instance.to_string(),
    })
}

fn user(p: &GpuProcess) -> Option<String> {
    p.user.clone().or_else(|| p.uid.map(|uid| uid.to_string()))
}

fn runtime(p: &GpuProcess) -> Option<String> {
    Some(p.container.as_ref()?.runtime_name())
}

fn container(p: &GpuProcess) -> Option<String> {
    let container = p.container.as_ref()?;
    Some(container.name.clone().unwrap_or_else(|| container.short_id().to_string()))
}

fn id(p: &GpuProcess) -> Option<String> {
    Some(p.container.as_ref()?.short_id().to_string())
}

fn outer(p: &GpuProcess) -> Option<String> {
    let outer = p.container.as_ref()?.outer.as_ref()?;
    Some(outer.name.clone().unwrap_or_else(|| outer.short_id().to_string()))
}

fn pod(p: &GpuProcess) -> Option<String> {
    let pod = p.container.as_ref()?.pod.as_ref()?;
    pod.name.clone().or_else(|| pod.uid.clone())
}

fn namespace(p: &GpuProcess) -> Option<String> {
    p.container.as_ref()?.pod.as_ref()?.namespace.clone()
}

/// The command line. A kernel thread or a zombie has none: as `ps`, its name in brackets.
fn command(p: &GpuProcess) -> Option<String> {
    p.command.clone().or_else(|| p.name.as_ref().map(|name| format!("[{name}]")))
}

fn share(p: &GpuProcess, of: fn(&Utilisation) -> u32) -> Option<String> {
    p.utilisation.as_ref().map(|utilisation| of(utilisation).to_string())
}

fn by_share(a: &GpuProcess, b: &GpuProcess, of: fn(&Utilisation) -> u32) -> Ordering {
    a.utilisation.as_ref().map(of).cmp(&b.utilisation.as_ref().map(of))
}

/// Memory as nvidia-smi writes it.
pub fn mebibytes(bytes: u64) -> String {
    format!("{}MiB", bytes >> 20)
}

/// A length of time in its two largest units.
pub fn age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if days > 0 => format!("{days}d{:02}h", hours % 24),
        () if hours > 0 => format!("{hours}h{:02}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{:02}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

/// Makes foreign text printable.
pub fn harmless(text: &str) -> String {
    mpu_os::text::printable(text, usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_its_row_and_its_name() {
        for column in Column::value_variants() {
            assert_eq!(column.row().0, *column);
        }
        assert_eq!(ROWS.len(), Column::value_variants().len());
    }

    #[test]
    fn age_has_two_units() {
        let ages = [0, 59, 60, 3599, 3600, 90_061].map(age);
        assert_eq!(ages, ["0s", "59s", "1m00s", "59m59s", "1h00m", "1d01h"]);
    }

    #[test]
    fn control_characters_in_names_are_replaced() {
        assert_eq!(harmless("a\x1b[2Jb\n\u{202e}é"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}é");
    }

    #[test]
    fn key_to_sort_by_is_column_and_direction() {
        let key = |text: &str| text.parse::<Sort>();
        assert_eq!(key("-memory"), Ok(Sort { column: Column::Memory, descending: true }));
        assert_eq!(key("mem-util").map(|k| k.to_string()), Ok("mem-util".to_string()));
        assert!(key("colour").is_err_and(|why| why.contains("memory") && why.contains("gpu")));
    }
}
