//! `./x abi check SOURCE`: compares a new driver with MPU's rows. The source is a tree of the open modules, their headers, a built
//! object, or the BTF of a running kernel. Lists what has a PID or a kernel pointer, and whether MPU knows it. It builds nothing and
//! needs no network. Runbook: `docs/how-to/a-new-driver.md`.

mod built;
mod c;
mod judge;
mod names;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Subcommand;
use serde::Serialize;

use crate::outcome::Outcome;
use judge::{Finding, List, Sort, Verdict};
use tree::Tree;
pub use tree::release;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Reads a driver, and says what carries a PID: exit 0 if the rows fit and nothing is new, 1 if something is, 69 if
    /// it cannot be determined
    Check {
        /// One of: the top of a source tree of NVIDIA's open kernel modules; a folder with its headers (ctrl/, class/,
        /// …); a built object of them with debug information (nvidia.ko, nv-kernel.o, nv-kernel.o_binary,
        /// nv-interface.o); a copy of a host's /sys/kernel/btf/nvidia with that host's vmlinux beside it
        #[arg(value_parser = source, required_unless_present = "host")]
        source: Option<PathBuf>,
        /// Reads what this machine's kernel knows of the driver that it runs: /sys/kernel/btf/nvidia and /proc/kallsyms
        #[arg(long, conflicts_with = "source")]
        host: bool,
        /// Prints JSON
        #[arg(long)]
        json: bool,
        /// Prints what fits, what is known and what is gone, too, with reasons
        #[arg(long)]
        all: bool,
    },
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    schema: u8,
    release: Option<&'a str>,
    /// `tables` where method tables were read, with their parameters' fields; `sizes` where not all fields are known, or
    /// not all of a driver was there; `headers` where only declarations were there.
    read: &'static str,
    /// What such a source cannot tell, in sentences.
    cannot_tell: &'a [String],
    controls: usize,
    escapes: usize,
    notifications: usize,
    count: BTreeMap<String, usize>,
    false_alarms: usize,
    findings: &'a [Finding],
}

/// The verb.
pub fn abi(args: &Args) -> Result<Outcome> {
    let Verb::Check { source, host: _, json, all } = &args.what;
    let list = List::committed()?;
    let expected = built::Expected { rows: mpu_abi::ROWS, numbers: list.numbers() };
    let tree = match source {
        Some(source) if source.is_dir() => Tree::read(source)?,
        Some(source) => built::read(source, &expected)?,
        None => built::read_host(Path::new("/"), &expected)?,
    };
    let findings = judge::judge(&tree, &list);
    let text = if *json { as_json(&tree, &findings)? } else { as_table(&tree, &findings, *all) };
    // A closed pipe is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    outcome(&tree, &findings)
}

/// The exit status. A finding counts even if little of the driver was read. Success needs the parameters' fields.
fn outcome(tree: &Tree, findings: &[Finding]) -> Result<Outcome> {
    if findings.iter().any(is_alarm) {
        return Ok(Outcome::Failed);
    }
    ensure!(
        tree.has_fields,
        "nothing is wrong, and whether something is new cannot be determined: what was not read is listed above"
    );
    Ok(Outcome::Passed)
}

fn source(text: &str) -> Result<PathBuf, String> {
    Some(PathBuf::from(text)).filter(|path| path.exists()).ok_or_else(|| "not there".to_owned())
}

/// Whether a person has to look at a finding.
fn is_alarm(finding: &Finding) -> bool {
    matches!(finding.verdict, Verdict::New | Verdict::Changed)
}

fn is_false_alarm(finding: &&Finding) -> bool {
    finding.sort == Some(Sort::FalseAlarm)
}

fn as_json(tree: &Tree, findings: &[Finding]) -> Result<String> {
    let mut count = BTreeMap::new();
    for finding in findings {
        *count.entry(format!("{:?}", finding.verdict).to_lowercase()).or_default() += 1;
    }
    let report = Report {
        schema: 1,
        release: tree.release.as_deref(),
        read: match (tree.has_tables, tree.has_fields) {
            (true, true) => "tables",
            (_, false) => "sizes",
            (false, true) => "headers",
        },
        cannot_tell: &tree.cannot_tell,
        controls: tree.controls.len(),
        escapes: tree.escapes,
        notifications: tree.notifications,
        count,
        false_alarms: findings.iter().filter(is_false_alarm).count(),
        findings,
    };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

/// Facts that no source shows.
const NOT_COVERED: &str =
    "not seen: what the driver does with a field, a PID under a name that does not say so, a PID in opaque bytes\n";

fn as_table(tree: &Tree, findings: &[Finding], all: bool) -> String {
    let release = tree.release.as_deref().unwrap_or("of an unnamed release");
    let read = match (tree.has_tables, tree.has_fields) {
        (true, _) => "method tables",
        (false, false) if tree.controls.is_empty() => "no table and no declaration",
        (false, _) => "declarations alone: who may call is not known",
    };
    let (controls, escapes, notifications) = (tree.controls.len(), tree.escapes, tree.notifications);
    let mut out = format!("driver {release}: {controls} controls from {read}; ");
    out += &match tree.declares_all {
        true => format!("{escapes} escapes, {notifications} notifications\n"),
        false => format!("{escapes} structures of escapes\n"),
    };
    for sentence in &tree.cannot_tell {
        out += &format!("  {sentence}\n");
    }
    let order = [
        (Verdict::New, "new"),
        (Verdict::Changed, "changed"),
        (Verdict::Fits, "fits"),
        (Verdict::Known, "known, no row"),
        (Verdict::Gone, "not in this driver"),
    ];
    for (verdict, title) in order {
        let some: Vec<&Finding> = findings.iter().filter(|finding| finding.verdict == verdict).collect();
        out += &format!("\n{title}: {}\n", some.len());
        for finding in some.into_iter().filter(|finding| all || is_alarm(finding)) {
            let cmd = finding.cmd.iter().map(|cmd| format!("{cmd} "));
            let size = finding.size.iter().map(|size| format!(", {size} bytes"));
            let reach = finding.reach.iter().map(|reach| format!(", {reach:?}").to_lowercase());
            let [cmd, rest] = [cmd.collect::<String>(), size.chain(reach).collect()];
            out += &format!("  {} {cmd}{}{rest}\n", finding.way, finding.name);
            if !finding.fields.is_empty() {
                let (shown, more) = finding.fields.split_at(finding.fields.len().min(8));
                let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
                out += &format!("      {}{more}\n", shown.join(", "));
            }
            out += &format!("      {}\n", finding.why);
        }
    }
    let alarms = findings.iter().filter(|finding| is_alarm(finding)).count();
    let false_alarms = findings.iter().filter(is_false_alarm).count();
    out += &format!("\n{false_alarms} false alarms are on the list in xtask/abi.toml\n");
    out += &match alarms {
        0 if !tree.has_fields => "nothing is wrong, and whether something is new cannot be determined\n".to_owned(),
        0 => {
            let limit = if tree.declares_all { "" } else { ", as far as this source tells" };
            format!("nothing to do{limit}: every row fits, and nothing is new\n{NOT_COVERED}")
        }
        n => format!("{n} to look at: docs/how-to/a-new-driver.md\n"),
    };
    out
}
