//! Runs NVIDIA's own nvidia-smi on the host or in a container, and reads its listings into rows. Source: real output of releases 418 to 580.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::command::{Output, behind, run, run_with};

/// Where and with which release nvidia-smi runs.
pub struct Client<'a> {
    before: Vec<String>,
    /// None for an nvidia-smi that is installed at a distribution's paths.
    release: Option<&'a str>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    pub pid: u32,
    pub name: String,
    /// The memory as shown; none for N/A.
    pub mib: Option<u64>,
}

impl<'a> Client<'a> {
    pub fn on_host(release: &'a str) -> Self {
        Self { before: Vec::new(), release: Some(release) }
    }

    /// Runs behind a command prefix, such as `crun exec NAME`.
    pub fn through(before: Vec<String>, release: &'a str) -> Self {
        Self { before, release: Some(release) }
    }

    /// Runs the nvidia-smi in PATH, behind a command prefix.
    pub fn installed(before: Vec<String>) -> Self {
        Self { before, release: None }
    }

    /// The folder of this release's libraries; empty if the loader finds them.
    fn libraries(&self) -> String {
        self.release.map(|release| format!("/nvidia/{release}")).unwrap_or_default()
    }

    pub fn smi(&self, arguments: &[&str]) -> Result<Output> {
        let Some(release) = self.release else {
            return run(&behind(&self.before, &[&["nvidia-smi"], arguments].concat()));
        };
        let (program, libraries) = (format!("/nvidia/{release}/nvidia-smi"), self.libraries());
        let words = [&[program.as_str()], arguments].concat();
        run_with(&behind(&self.before, &words), &[("LD_LIBRARY_PATH", &libraries)])
    }

    /// Queries NVML through nvmlcall, and returns each query's rows.
    pub fn nvml(&self, arguments: &[&str]) -> Result<Vec<Query>> {
        let libraries = format!("LD_LIBRARY_PATH={}", self.libraries());
        let words = [&["env", &libraries, "/bin/nvmlcall"], arguments].concat();
        queries(&run(&behind(&self.before, &words))?.at_most(1)?)
    }

    pub fn python(&self, script: &str) -> Result<Output> {
        let libraries = format!("LD_LIBRARY_PATH={}", self.libraries());
        let words = ["env", &libraries, "PYTHONPATH=/usr/lib/pynvml", "/usr/bin/python3", "-S", "-c", script];
        run(&behind(&self.before, &words))
    }

    /// The default table's process rows, in the order shown.
    pub fn table(&self) -> Result<Vec<Row>> {
        table_rows(&self.smi(&[])?.at_most(0)?)
    }

    /// `--query-compute-apps`: PID and memory of each row.
    pub fn compute_apps(&self) -> Result<Vec<Row>> {
        let query = ["--query-compute-apps=pid,used_memory,process_name", "--format=csv,noheader,nounits"];
        csv_rows(&self.smi(&query)?.at_most(0)?)
    }
}

#[derive(Debug, Clone)]
pub struct Query {
    pub rows: Vec<BTreeMap<String, String>>,
}

impl Query {
    /// The PIDs of the rows, sorted, repetitions kept.
    pub fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.rows.iter().filter_map(|row| row.get("pid")?.parse().ok()).collect();
        pids.sort_unstable();
        pids
    }
}

pub fn pids(rows: &[Row]) -> Vec<u32> {
    let mut pids: Vec<u32> = rows.iter().map(|row| row.pid).collect();
    pids.sort_unstable();
    pids
}

/// Parses `|  0  N/A  N/A   1234   C   name   84MiB |`, with or without the MIG columns. All releases have the type column.
pub fn table_rows(text: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let body = text.lines().skip_while(|line| !line.contains("Processes:"));
    for line in body {
        let words: Vec<&str> = line.trim_matches('|').split_whitespace().collect();
        let Some(kind) = words.iter().position(|word| ["C", "G", "C+G", "M+C"].contains(word)) else { continue };
        let Some(pid) = kind.checked_sub(1).and_then(|at| words[at].parse().ok()) else { continue };
        let memory = words.last().context("an empty row")?;
        let name = words[kind + 1..words.len() - 1].join(" ");
        rows.push(Row { pid, name, mib: memory.strip_suffix("MiB").and_then(|number| number.parse().ok()) });
    }
    Ok(rows)
}

/// Reads `CALL rc=N count=N`, each followed by its `pid N key value…` rows.
fn queries(text: &str) -> Result<Vec<Query>> {
    let mut queries: Vec<Query> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        // A failed or empty query has a return code and no rows.
        if words.get(1).is_some_and(|word| word.starts_with("rc=")) {
            queries.push(Query { rows: Vec::new() });
        } else {
            let row = words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect();
            queries.last_mut().with_context(|| format!("a row before any query: {line}"))?.rows.push(row);
        }
    }
    Ok(queries)
}

fn csv_rows(text: &str) -> Result<Vec<Row>> {
    let lines = text.lines().map(str::trim).filter(|line| line.chars().next().is_some_and(|c| c.is_ascii_digit()));
    let row = |line: &str| {
        let mut cells = line.splitn(3, ',').map(str::trim);
        let pid = cells.next().and_then(|cell| cell.parse().ok()).with_context(|| format!("no PID in {line}"))?;
        let mib = cells.next().and_then(|cell| cell.parse().ok());
        Ok(Row { pid, mib, name: cells.next().unwrap_or_default().to_owned() })
    };
    lines.map(row).collect()
}

/// PID and SM utilisation of each row of pmon; a dash is none.
pub fn pmon_rows(text: &str) -> Vec<(u32, Option<u32>)> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some((words.get(1)?.parse().ok()?, words.get(3)?.parse().ok()))
    };
    lines.filter_map(row).collect()
}
