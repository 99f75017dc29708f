//! The columns of a list of GPU processes: title, layout, cell and sort order.

use crate::processes::{GpuProcess, Utilisation};
use Align::{Left, Right};
use clap::ValueEnum;
use clap::builder::{PossibleValue, TypedValueParser, ValueParserFactory};
use std::cmp::Ordering;
use std::ffi::OsStr;
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

/// Alignment, and the least width to which cells are cut. None: cells are never cut.
pub type Layout = (Align, Option<usize>);

/// Stands for an unknown or absent value.
pub const EMPTY_CELL: &str = "-";

type Cell = fn(&GpuProcess, u64) -> Option<String>;
type Order = fn(&GpuProcess, &GpuProcess) -> Ordering;

/// Title, layout, cell, and order.
type ColumnRow = (&'static str, Layout, Cell, Order);

/// In the order of [`Column`].
const ROWS: &[ColumnRow] = &[
    ("GPU", (Right, None), |p, _| Some(p.gpu.to_string()), |a, b| a.gpu.cmp(&b.gpu)),
    ("MIG", (Left, None), |p, _| mig(p), |a, b| a.mig.cmp(&b.mig)),
    ("PID", (Right, None), |p, _| Some(p.pid.get().to_string()), |a, b| a.pid.cmp(&b.pid)),
    ("CPID", (Right, None), |p, _| container_pid(p), |a, b| a.facts.container_pid.cmp(&b.facts.container_pid)),
    ("USER", (Left, Some(6)), |p, _| user(p), |a, b| user(a).cmp(&user(b))),
    ("UID", (Right, None), |p, _| Some(p.facts.uid?.to_string()), |a, b| a.facts.uid.cmp(&b.facts.uid)),
    ("RUNTIME", (Left, None), |p, _| runtime(p), |a, b| runtime(a).cmp(&runtime(b))),
    ("CONTAINER", (Left, Some(6)), |p, _| container(p), |a, b| container(a).cmp(&container(b))),
    ("ID", (Left, None), |p, _| id(p), |a, b| id(a).cmp(&id(b))),
    ("OUTER", (Left, Some(6)), |p, _| outer(p), |a, b| outer(a).cmp(&outer(b))),
    ("NAMESPACE", (Left, Some(6)), |p, _| namespace(p), |a, b| namespace(a).cmp(&namespace(b))),
    ("POD", (Left, Some(6)), |p, _| pod(p), |a, b| pod(a).cmp(&pod(b))),
    ("TYPE", (Left, None), |p, _| Some(p.kind.letters().to_string()), |a, b| a.kind.cmp(&b.kind)),
    ("MEMORY", (Right, None), |p, _| p.memory.map(mebibytes), |a, b| a.memory.cmp(&b.memory)),
    ("LIMIT", (Right, None), |p, _| p.memory_limit.map(mebibytes), |a, b| a.memory_limit.cmp(&b.memory_limit)),
    ("GPU%", (Right, None), |p, _| share(p, |u| u.gpu), |a, b| by_share(a, b, |u| u.gpu)),
    ("MEM%", (Right, None), |p, _| share(p, |u| u.memory), |a, b| by_share(a, b, |u| u.memory)),
    ("ENC%", (Right, None), |p, _| share(p, |u| u.encoder), |a, b| by_share(a, b, |u| u.encoder)),
    ("DEC%", (Right, None), |p, _| share(p, |u| u.decoder), |a, b| by_share(a, b, |u| u.decoder)),
    (
        "AGE",
        (Right, None),
        |p, at| Some(age(at.saturating_sub(p.facts.started?))),
        |a, b| b.facts.started.cmp(&a.facts.started),
    ),
    ("NAME", (Left, Some(6)), |p, _| p.facts.name.clone(), |a, b| a.facts.name.cmp(&b.facts.name)),
    ("COMMAND", (Left, Some(10)), |p, _| command(p), |a, b| command(a).cmp(&command(b))),
];

/// Columns that are shown only if `--columns` names them, only with `--wide`, and only if a row has a value.
const ONLY_BY_NAME: &[Column] = &[Column::Uid, Column::Name];
const ONLY_WIDE: &[Column] =
    &[Column::Runtime, Column::Id, Column::Outer, Column::MemUtil, Column::Enc, Column::Dec, Column::Age];
const ONLY_WITH_VALUES: &[Column] = &[Column::Mig, Column::Namespace, Column::Pod, Column::Outer, Column::Limit];

/// The columns to show for these processes: the requested ones, or the default ones.
pub fn visible(requested: &[Column], wide: bool, processes: &[GpuProcess]) -> Vec<Column> {
    if !requested.is_empty() {
        return requested.to_vec();
    }
    let any = |column: &Column| processes.iter().any(|process| column.value(process, 0).is_some());
    let usual = Column::value_variants().iter().filter(|column| !ONLY_BY_NAME.contains(column));
    let usual = usual.filter(|column| wide || !ONLY_WIDE.contains(column));
    usual.filter(|column| !ONLY_WITH_VALUES.contains(column) || any(column)).copied().collect()
}

impl Column {
    pub fn title(self) -> &'static str {
        ROWS[self as usize].0
    }

    pub fn layout(self) -> Layout {
        ROWS[self as usize].1
    }

    /// The cell of a process at a time, without control characters: a process can choose its own name.
    pub fn cell(self, process: &GpuProcess, at: u64) -> String {
        self.value(process, at).map_or(EMPTY_CELL.to_string(), |text| printable(&text))
    }

    fn value(self, process: &GpuProcess, at: u64) -> Option<String> {
        (ROWS[self as usize].2)(process, at).filter(|text| !text.is_empty())
    }

    fn order(self, a: &GpuProcess, b: &GpuProcess) -> Ordering {
        (ROWS[self as usize].3)(a, b)
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

/// Parses a [`Sort`]. Completions offer the columns without a dash: a word with one is an option to them.
#[derive(Debug, Clone)]
pub struct SortParser;

impl ValueParserFactory for Sort {
    type Parser = SortParser;

    fn value_parser() -> SortParser {
        SortParser
    }
}

impl TypedValueParser for SortParser {
    type Value = Sort;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<Sort, clap::Error> {
        Sort::from_str.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Column::value_variants().iter().filter_map(Column::to_possible_value)))
    }
}

/// Sorts; equal rows stay by GPU and PID.
pub fn sort(processes: &mut [GpuProcess], by: &[Sort]) {
    processes.sort_by(|a, b| {
        let keys = by.iter().map(|key| match key.descending {
            true => key.column.order(b, a),
            false => key.column.order(a, b),
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

fn container_pid(p: &GpuProcess) -> Option<String> {
    Some(p.facts.container_pid?.get().to_string())
}

fn user(p: &GpuProcess) -> Option<String> {
    p.facts.user.clone().or_else(|| p.facts.uid.map(|uid| uid.to_string()))
}

fn runtime(p: &GpuProcess) -> Option<String> {
    Some(p.facts.container.as_ref()?.runtime_name())
}

fn container(p: &GpuProcess) -> Option<String> {
    let container = p.facts.container.as_ref()?;
    Some(container.name.clone().unwrap_or_else(|| container.short_id().to_string()))
}

fn id(p: &GpuProcess) -> Option<String> {
    Some(p.facts.container.as_ref()?.short_id().to_string())
}

fn outer(p: &GpuProcess) -> Option<String> {
    let outer = p.facts.container.as_ref()?.outer.as_ref()?;
    Some(outer.name.clone().unwrap_or_else(|| outer.short_id().to_string()))
}

fn pod(p: &GpuProcess) -> Option<String> {
    let pod = p.facts.container.as_ref()?.pod.as_ref()?;
    pod.name.clone().or_else(|| pod.uid.clone())
}

fn namespace(p: &GpuProcess) -> Option<String> {
    p.facts.container.as_ref()?.pod.as_ref()?.namespace.clone()
}

/// The command line. A kernel thread or a zombie has none: as `ps`, its name in brackets.
fn command(p: &GpuProcess) -> Option<String> {
    p.facts.command.clone().or_else(|| p.facts.name.as_ref().map(|name| format!("[{name}]")))
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

/// Replaces control characters in text from outside.
pub fn printable(text: &str) -> String {
    mpu_os::text::printable(text, usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_its_row_and_its_name() {
        assert_eq!(ROWS.len(), Column::value_variants().len());
        let shares = [Column::Util, Column::MemUtil, Column::Enc, Column::Dec];
        for column in Column::value_variants().iter().filter(|column| !shares.contains(column)) {
            let name = column.to_possible_value().expect("a name").get_name().to_uppercase();
            assert_eq!(column.title(), name);
        }
        assert_eq!(shares.map(Column::title), ["GPU%", "MEM%", "ENC%", "DEC%"]);
    }

    #[test]
    fn age_has_two_units() {
        let ages = [0, 59, 60, 3599, 3600, 90_061].map(age);
        assert_eq!(ages, ["0s", "59s", "1m00s", "59m59s", "1h00m", "1d01h"]);
    }

    #[test]
    fn control_characters_in_names_are_replaced() {
        assert_eq!(printable("a\x1b[2Jb\n\u{202e}é"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}é");
    }

    #[test]
    fn sort_key_has_column_and_direction() {
        let key = |text: &str| text.parse::<Sort>();
        assert_eq!(key("-memory"), Ok(Sort { column: Column::Memory, descending: true }));
        assert!(key("mem-util").is_ok_and(|key| !key.descending));
        assert!(key("colour").is_err_and(|why| why.contains("memory") && why.contains("gpu")));
    }
}
