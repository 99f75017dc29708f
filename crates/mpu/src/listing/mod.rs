//! GPU processes as a list, for `mpu ps` and `mpu top`: the options, the table, and notes about what is missing and why.

pub mod columns;
pub mod filter;
pub mod table;

use crate::processes::{Facts, Gpu, GpuProcess, Snapshot};
use crate::report::{Report, Style};
use columns::{Column, Sort};
use filter::Filter;
use mpu_host::exit::Exit;
use mpu_host::host::{CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, Host};
use schemars::JsonSchema;
use serde::Serialize;

/// Options of `mpu ps`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ListOptions {
    /// Show these columns, in this order
    #[arg(short = 'o', long, value_enum, value_delimiter = ',', value_name = "COLUMN,…")]
    pub columns: Vec<Column>,

    /// Sort by these columns; a dash before one reverses its order
    #[arg(
        short,
        long,
        value_delimiter = ',',
        value_name = "COLUMN,…",
        default_value = "gpu,-memory",
        allow_hyphen_values = true,
        hide_possible_values = true
    )]
    pub sort: Vec<Sort>,

    /// Show more columns, and cut nothing
    #[arg(short, long)]
    pub wide: bool,

    /// Omit the header line
    #[arg(long)]
    pub no_headers: bool,

    #[command(flatten)]
    pub filter: Filter,
}

/// The list.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Listed")]
pub struct ProcessList {
    /// The time of the reading, in seconds since 1970.
    pub at: u64,
    /// All GPUs.
    pub gpus: Vec<Gpu>,
    /// The selected processes, in the requested order.
    pub processes: Vec<GpuProcess>,
    /// How many processes the filters left out.
    pub left_out: usize,
    /// What is missing, and why.
    pub notes: Vec<String>,
    /// How to show them.
    #[serde(skip)]
    table_style: TableStyle,
}

/// How the table is shown.
#[derive(Debug, Clone, PartialEq)]
struct TableStyle {
    columns: Vec<Column>,
    headers: bool,
    width: Option<usize>,
}

/// Selects and sorts the processes of a snapshot.
pub fn select(host: &Host, seen: Snapshot, options: &ListOptions, width: Option<usize>) -> ProcessList {
    let notes = notes(host, &seen);
    let all = seen.processes.len();
    let mut processes: Vec<GpuProcess> =
        seen.processes.into_iter().filter(|process| options.filter.matches(process, &seen.gpus)).collect();
    columns::sort(&mut processes, &options.sort);
    let table_style = TableStyle {
        columns: columns::visible(&options.columns, options.wide, &processes),
        headers: !options.no_headers,
        width: width.filter(|_| !options.wide),
    };
    ProcessList { at: seen.at, gpus: seen.gpus, left_out: all - processes.len(), processes, notes, table_style }
}

/// Notes about what is missing, each with the fix.
pub fn notes(host: &Host, seen: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    for gpu in &seen.gpus {
        if let Some(why) = &gpu.unreadable {
            notes.push(format!("the processes of GPU {} are not known: {why}", gpu.index));
        }
    }
    let unknown = seen.processes.iter().filter(|process| process.facts.uid.is_none()).count();
    if unknown > 0 {
        notes.push(format!(
            "{unknown} of the processes ended meanwhile, or /proc hides them (hidepid): nothing but their numbers is known"
        ));
    }
    let can_read_all = host.has_capability(CAP_DAC_OVERRIDE) || host.has_capability(CAP_DAC_READ_SEARCH);
    // A process in its own PID namespace may be in a container whose runtime hides its state from this user.
    let facts = seen.processes.iter().map(|process| &process.facts);
    let nameless = |p: &&Facts| p.container.as_ref().map_or(p.container_pid.is_some(), |c| c.name.is_none());
    let nameless = facts.filter(nameless).count();
    if nameless > 0 && !can_read_all {
        notes.push(format!("{nameless} of the processes are in containers that only root can name: sudo mpu ps"));
    }
    notes
}

impl ProcessList {
    /// The notes, for standard error: standard output has only the table.
    pub fn stderr_lines(&self) -> Vec<String> {
        let mut lines = self.notes.clone();
        match (self.processes.is_empty(), self.left_out) {
            (true, 0) => lines.push("no process uses a GPU".to_string()),
            (true, out) => lines.push(format!("none of the {out} processes that use a GPU matches the filters")),
            _ => {}
        }
        lines
    }
}

impl Report for ProcessList {
    fn exit(&self) -> Exit {
        match self.gpus.iter().any(|gpu| gpu.unreadable.is_some()) {
            true => Exit::Failed,
            false => Exit::Ok,
        }
    }

    fn text(&self, style: Style) -> String {
        if self.processes.is_empty() {
            return String::new();
        }
        let TableStyle { columns, headers, width } = &self.table_style;
        let mut rows = Vec::new();
        if *headers {
            rows.push(columns.iter().map(|column| column.title().to_string()).collect());
        }
        rows.extend(self.processes.iter().map(|process| columns.iter().map(|c| c.cell(process, self.at)).collect()));
        let layouts: Vec<_> = columns.iter().map(|column| column.layout()).collect();
        let mut lines = table::format_rows(&layouts, &rows, *width);
        if let (true, Some(first)) = (*headers, lines.first_mut()) {
            *first = style.name(first);
        }
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
pub(crate) mod tests;
