//! Holds what a tree has against MPU's rows, and says of each thing that carries a PID or a kernel pointer: it fits, it is
//! known, it is new, it changed. Knows the rows and the list of what is known; reads no file of the driver's.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{ensure, Context, Result};
use mpu_abi::{event, find, history, History, Inner, Layout, Release, Row, Rows, Samples, ROWS};
use serde::{Deserialize, Serialize};

use super::c::Field;
use super::tree::{Control, Reach, Tree};

/// What is said of one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A row has it, with its size and its offsets.
    Fits,
    /// `abi.toml` says why there is no row.
    Known,
    /// Nothing is known of it.
    New,
    /// A row or a redirect has it, and is no longer right.
    Changed,
    /// A row or a redirect has it, and the tree does not.
    Gone,
}

/// One thing.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub verdict: Verdict,
    /// `control`, `allocation`, `escape`, `class`, `uvm`, `modeset`, `drm`, `caps`, `file`, `stream`, `event`, `function`.
    pub way: &'static str,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reach: Option<Reach>,
    /// `field@offset`, with how often it is there.
    pub fields: Vec<String>,
    /// Why, in words.
    pub why: String,
    /// Of what is known: whether it is no PID at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<Sort>,
}

/// Why something known has no row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sort {
    /// It holds a host PID, and nothing at the ioctl can help: docs/limits.md names it.
    Limit,
    /// It holds a number that another level needs as it is, or that only the host's own tools see.
    LeftAlone,
    /// The name sounds like a PID or a pointer, and it is none.
    FalseAlarm,
}

/// `abi.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    known: Vec<Known>,
    function: Vec<Function>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    way: String,
    /// A control's number, or the name of another thing; with `*` at its end, whatever begins so.
    #[serde(rename = "for")]
    subject: String,
    /// The innermost name of the field; all of them unless it is there.
    field: Option<String>,
    /// The structure with a control's parameters, for the source that knows structures and no numbers.
    parameters: Option<String>,
    sort: Sort,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    /// One of them is enough.
    names: Vec<String>,
    /// The prototypes that the redirects can live with.
    wants: Vec<String>,
    /// Drivers without it are served, too.
    #[serde(default)]
    optional: bool,
    why: String,
}

impl List {
    /// The list beside the sources.
    pub fn ours() -> Result<List> {
        List::parse(include_str!("../../abi.toml"))
    }

    /// A list from its text; each entry has a reason.
    pub fn parse(text: &str) -> Result<List> {
        let list: List = toml::from_str(text).context("abi.toml")?;
        for known in &list.known {
            ensure!(known.reason.len() > 20, "abi.toml: {} {} has no reason", known.way, known.subject);
        }
        Ok(list)
    }

    /// Numbers by the structures that carry their parameters, for a source that has no numbers.
    pub fn numbers(&self) -> BTreeMap<String, u32> {
        let listed = self.known.iter().filter_map(|known| {
            let digits = known.subject.strip_prefix("0x")?;
            Some((known.parameters.clone()?, u32::from_str_radix(digits, 16).ok()?))
        });
        let rows = ROWS.iter().flat_map(|row| {
            let (class, name) = (row.cmd.0 >> 16, row.control.name());
            ["", "CMD_"].map(|cmd| (format!("NV{class:04X}_CTRL_{cmd}{name}_PARAMS"), row.cmd.0))
        });
        // Of several rows of a structure the last has the number that newer drivers give it.
        listed.chain(rows).collect()
    }

    fn known(&self, way: &str, subject: &str, field: &str) -> Option<&Known> {
        self.known.iter().find(|known| {
            let same = match known.subject.strip_suffix('*') {
                Some(start) => subject.starts_with(start),
                None => known.subject == subject,
            };
            known.way == way && same && known.field.as_deref().is_none_or(|name| name == field)
        })
    }
}

/// Everything that there is to say of a tree.
pub fn judge(tree: &Tree, list: &List) -> Vec<Finding> {
    judge_by(tree, list, ROWS, &|row| find(row.cmd, row.params_size).map(history))
}

/// What is known of a row beside its bytes.
pub type Histories<'a> = &'a dyn Fn(&Row) -> Option<&'static History>;

/// The same, by other rows.
pub fn judge_by(tree: &Tree, list: &List, rows: &[Row], histories: Histories<'_>) -> Vec<Finding> {
    let controls = tree.controls.iter().filter_map(|control| {
        let finding = judge_control(tree, list, rows, control)?;
        Some(judge_release(tree, rows, histories, finding))
    });
    let mut out: Vec<Finding> = controls.collect();
    // Where no control was found at all, none is missed.
    let has = |row: &Row| tree.controls.is_empty() || tree.controls.iter().any(|control| control.cmd == row.cmd.0);
    let mut before = BTreeSet::new();
    for row in rows.iter().filter(|row| !has(row) && before.insert(row.cmd)) {
        let finding = Finding {
            verdict: Verdict::Gone,
            way: "control",
            name: row.control.name().to_owned(),
            cmd: Some(number(row.cmd.0)),
            size: Some(row.params_size as usize),
            reach: None,
            fields: Vec::new(),
            why: "nothing here has this number".to_owned(),
            sort: None,
        };
        out.push(judge_release(tree, rows, histories, finding));
    }
    out.extend(carriers(tree, list));
    for event in &tree.events {
        let subject = event.name.as_str();
        let why = format!("{} puts {} into a notification", event.place, event.pid);
        let finding = known_or_new(list, "event", subject, &[], vec![event.pid.clone()], why);
        let number = tree.headers.constant(subject).and_then(|number| u32::try_from(number).ok());
        out.push(match number.filter(|number| event::CARRYING.contains(number)) {
            Some(number) => {
                let why = format!("{number} in CARRYING of crates/mpu-abi/src/event.rs");
                Finding { verdict: Verdict::Fits, why, ..finding }
            }
            None => finding,
        });
    }
    out.extend(tree.prints.iter().map(|print| {
        let why = format!("{} prints {}, into a file of /proc or debugfs", print.place, print.pid);
        known_or_new(list, "file", &print.name, &[], vec![print.pid.clone()], why)
    }));
    out.extend(tree.escapes_unread.iter().map(|name| {
        let why = "no handler with an argument of a known type was found".to_owned();
        known_or_new(list, "escape", name, &[], Vec::new(), why)
    }));
    out.extend(tree.streams.iter().map(|(name, field)| {
        let why = "a message of a dump has this field; dumps are byte streams behind a pointer".to_owned();
        known_or_new(list, "stream", name, &[], vec![field.clone()], why)
    }));
    if tree.has_functions {
        out.extend(list.function.iter().map(|function| judge_function(tree, function)));
        out.extend(helpers(tree, list));
    }
    out
}

/// Holds the releases of the rows against the release that was read. The rows of what is found in it must name it, and of what is
/// not there none may; a source that does not declare everything shows too little for that.
fn judge_release(tree: &Tree, rows: &[Row], histories: Histories<'_>, finding: Finding) -> Finding {
    let of_it: Vec<(&Row, &History)> = rows
        .iter()
        .filter(|row| finding.cmd == Some(number(row.cmd.0)))
        .filter_map(|row| Some((row, histories(row)?)))
        .collect();
    let is_read = |row: &Row| finding.size == Some(row.params_size as usize);
    let seen = of_it.iter().find(|(row, _)| is_read(row)).or(of_it.first()).map(|(_, history)| history.seen);
    let why = match seen {
        Some(seen) => format!("{}{}a row of {seen}", finding.why, if finding.why.is_empty() { "" } else { "; " }),
        None => finding.why.clone(),
    };
    let Some(release) = tree.release.as_deref().and_then(|text| text.parse::<Release>().ok()) else {
        return Finding { why, ..finding };
    };
    let named: Vec<&Row> = of_it
        .iter()
        .filter(|(_, history)| history.releases.iter().any(|some| some.has(release)))
        .map(|(row, _)| *row)
        .collect();
    let wrong = match finding.verdict {
        Verdict::Fits if seen.is_some() && !named.iter().any(|row| is_read(row)) => "does not name",
        Verdict::Gone if !named.is_empty() && tree.declares_all => "names",
        _ => return Finding { why, ..finding },
    };
    let why = format!("{why}; the row {wrong} {release} in its releases (crates/mpu-abi/src/rows.rs)");
    Finding { verdict: Verdict::Changed, why, ..finding }
}

fn judge_control(tree: &Tree, list: &List, rows: &[Row], control: &Control) -> Option<Finding> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.cmd.0 == control.cmd).collect();
    if control.reach == Reach::Kernel && rows.is_empty() {
        return None;
    }
    let mut finding = Finding {
        verdict: Verdict::Fits,
        way: "control",
        name: control.name.clone(),
        cmd: Some(number(control.cmd)),
        size: None,
        reach: Some(control.reach),
        fields: Vec::new(),
        why: String::new(),
        sort: None,
    };
    let changed = |finding: Finding, why: String| Some(Finding { verdict: Verdict::Changed, why, ..finding });
    let Some(parameters) = &control.parameters else {
        if rows.is_empty() {
            return None;
        }
        // A number that a later release gave to a control without parameters: no call of it meets the row's size.
        return Some(Finding {
            verdict: Verdict::Gone,
            why: "the number is another control's here, without parameters".into(),
            ..finding
        });
    };
    if let Some(size) = tree.headers.opaque(parameters) {
        return (!rows.is_empty()).then(|| judge_size(&rows, finding, size));
    }
    let fields = match tree.headers.fields(parameters) {
        Ok(fields) => fields,
        Err(error) if !rows.is_empty() => {
            return changed(finding, format!("the layout of {parameters} cannot be read: {error}"));
        }
        Err(error) => {
            let subject = number(control.cmd);
            let known = list.known("control", &subject, "").or(list.known("layout", parameters, ""));
            let why = format!("the layout of {parameters} cannot be read: {error}");
            return Some(match known {
                Some(known) => {
                    Finding { verdict: Verdict::Known, sort: Some(known.sort), why: known.reason.clone(), ..finding }
                }
                None => Finding { verdict: Verdict::New, why, ..finding },
            });
        }
    };
    let size = tree.headers.layout(parameters).map(|layout| layout.size).unwrap_or(0);
    finding.size = Some(size);
    let sensitive: Vec<&Field> = fields.iter().filter(|field| is_pid(field) || names_kernel_pointer(field)).collect();
    let pointers: Vec<&Field> =
        fields.iter().filter(|field| field.kind == "NvP64" && !names_kernel_pointer(field)).collect();
    let behind: Vec<(&str, Field)> =
        if pointers.is_empty() { Vec::new() } else { behind_pointers(tree, parameters, &fields) };
    finding.fields = sensitive.iter().map(|field| shown(field)).collect();
    finding.fields.extend(behind.iter().map(|(structure, field)| format!("→{structure}.{}", shown(field))));
    if rows.is_empty() {
        if finding.fields.is_empty() {
            return None;
        }
        let subject = number(control.cmd);
        let names: Vec<&str> = sensitive
            .iter()
            .copied()
            .chain(behind.iter().map(|(_, field)| field))
            .map(|field| field.name.as_str())
            .collect();
        let sort = match control.reach {
            Reach::Declared => "declared, and in no open table; no row",
            _ => "no row",
        };
        let judged = known_or_new(list, "control", &subject, &names, Vec::new(), sort.to_owned());
        return Some(Finding { verdict: judged.verdict, why: judged.why, sort: judged.sort, ..finding });
    }
    let Some(row) = rows.iter().find(|row| row.params_size as usize == size) else {
        if finding.fields.is_empty() {
            return Some(Finding {
                verdict: Verdict::Gone,
                why: "the number is another control's here, without PIDs".into(),
                ..finding
            });
        }
        return changed(finding, format!("{size} bytes; rows have {}", sizes(&rows)));
    };
    let doubts =
        fit(tree, row, &fields, &behind, |field| list.known("control", &number(control.cmd), &field.name).is_some());
    if !doubts.is_empty() {
        return changed(finding, doubts.join("; "));
    }
    if matches!(row.layout, Layout::Embedded { .. }) && behind.is_empty() {
        finding.why = "what its pointer leads to is not declared here".to_owned();
    }
    Some(finding)
}

/// What can be said of a control with a row when only the size of its parameters is known.
fn judge_size(rows: &[&Row], finding: Finding, size: usize) -> Finding {
    let finding = Finding { size: Some(size), ..finding };
    match rows.iter().find(|row| row.params_size as usize == size) {
        Some(_) => Finding { why: "the size fits; where its fields stand is not known here".to_owned(), ..finding },
        None => {
            let why = format!("{size} bytes; rows have {}, unless the number is another control's now", sizes(rows));
            Finding { verdict: Verdict::Changed, why, ..finding }
        }
    }
}

fn sizes(rows: &[&Row]) -> String {
    rows.iter().map(|row| row.params_size.to_string()).collect::<Vec<_>>().join(", ")
}

/// What of a row is not so in these fields.
fn fit(
    tree: &Tree,
    row: &Row,
    fields: &[Field],
    behind: &[(&str, Field)],
    known: impl Fn(&Field) -> bool,
) -> Vec<String> {
    let mut doubts = Vec::new();
    let mut expect = |offset: usize, size: usize, what: &str| {
        // Eight bytes do for four: the lower half comes first.
        let there =
            fields.iter().any(|field| field.size >= size && field.size <= 8 && field.offsets().contains(&offset));
        if !there {
            doubts.push(format!("no {what} of {size} bytes at {offset}"));
        }
    };
    let mut pids = BTreeSet::new();
    let mut kernel_pointers = BTreeSet::new();
    match row.layout {
        Layout::List(rows) | Layout::Query(rows) => {
            expect(rows.count.into(), 4, "count");
            pids.extend(in_rows(&rows));
        }
        Layout::QueryOne { pid, began } => {
            expect(began.into(), 8, "time of beginning");
            pids.insert(usize::from(pid));
        }
        Layout::Samples(samples) => (pids, kernel_pointers) = in_samples(&samples),
        Layout::One { pid, count } => {
            if let Some(count) = count {
                expect(count.into(), 4, "count");
            }
            pids.insert(usize::from(pid));
        }
        Layout::Embedded { pointer, inner } => {
            expect(pointer.into(), 8, "pointer");
            if let Inner::Rows(rows) = inner {
                expect(rows.count.into(), 4, "count");
            }
            // An object has the types that its code uses; what it hands on to the firmware is seldom among them.
            if tree.declares_all || !behind.is_empty() {
                doubts.extend(fit_behind(tree, &inner, behind));
            }
        }
    }
    let plain = |field: &&Field| is_pid(field) && !is_companion(field);
    let found: BTreeSet<usize> =
        fields.iter().filter(plain).filter(|field| !known(field)).flat_map(Field::offsets).collect();
    let all: BTreeSet<usize> = fields.iter().filter(plain).flat_map(Field::offsets).collect();
    doubts.extend(found.difference(&pids).next().map(|at| format!("a PID at {at} that the row does not have")));
    doubts.extend(pids.difference(&all).next().map(|at| format!("the row has a PID at {at}, the header none")));
    let found: BTreeSet<usize> =
        fields.iter().filter(|field| names_kernel_pointer(field) && !known(field)).flat_map(Field::offsets).collect();
    doubts.extend(found.symmetric_difference(&kernel_pointers).next().map(|at| format!("the kernel pointer at {at}")));
    doubts
}

fn fit_behind(tree: &Tree, inner: &Inner, behind: &[(&str, Field)]) -> Vec<String> {
    let found: BTreeSet<usize> =
        behind.iter().filter(|(_, field)| !is_companion(field)).flat_map(|(_, field)| field.offsets()).collect();
    let wanted: BTreeSet<usize> = match inner {
        Inner::Rows(rows) => [usize::from(rows.pid)].into(),
        Inner::Samples(samples) => in_samples(&Samples { first: 0, capacity: 1, ..*samples }).0,
    };
    let stride = match inner {
        Inner::Rows(rows) => rows.stride,
        Inner::Samples(samples) => samples.stride,
    };
    // Nothing of such a table is shown.
    if matches!(inner, Inner::Samples(samples) if samples.engines == 0) {
        return Vec::new();
    }
    let mut doubts = Vec::new();
    if found != wanted {
        doubts.push(format!("behind the pointer PIDs stand at {found:?}, in the row at {wanted:?}"));
    }
    let size = behind.first().and_then(|(structure, _)| tree.headers.layout(structure).ok()).map(|layout| layout.size);
    if let Some(size) = size.filter(|size| *size != usize::from(stride)) {
        doubts.push(format!("behind the pointer an entry has {size} bytes, in the row {stride}"));
    }
    doubts
}

fn in_rows(rows: &Rows) -> impl Iterator<Item = usize> {
    let (first, stride, pid) = (usize::from(rows.first), usize::from(rows.stride), usize::from(rows.pid));
    (0..usize::from(rows.capacity)).map(move |i| first + i * stride + pid)
}

fn in_samples(samples: &Samples) -> (BTreeSet<usize>, BTreeSet<usize>) {
    let (mut pids, mut pointers) = (BTreeSet::new(), BTreeSet::new());
    for slot in 0..usize::from(samples.capacity) {
        for engine in 0..usize::from(samples.engines) {
            let record = usize::from(samples.first)
                + slot * usize::from(samples.stride)
                + 8
                + engine * usize::from(samples.engine_stride);
            pids.insert(record + 8);
            pointers.extend(samples.kernel_pointer.map(|pointer| record + usize::from(pointer)));
        }
    }
    (pids, pointers)
}

/// PIDs in structures that parameters with a pointer are declared with, and do not hold themselves.
fn behind_pointers<'a>(tree: &'a Tree, parameters: &str, own: &[Field]) -> Vec<(&'a str, Field)> {
    let mut out: Vec<(&str, Field)> = Vec::new();
    for structure in tree.declared_with(parameters) {
        let Ok(fields) = tree.headers.fields(structure) else { continue };
        for field in fields.into_iter().filter(|field| is_pid(field) || names_kernel_pointer(field)) {
            let inside = own.iter().any(|outer| outer.path.ends_with(&field.path) && outer.kind == field.kind);
            let again = out.iter().any(|(_, other)| other.name == field.name && other.offset == field.offset);
            if !inside && !again {
                out.push((structure, field));
            }
        }
    }
    // The outermost of several that hold each other is what the pointer points to: it is declared last.
    let last = out.last().map(|(structure, _)| *structure);
    out.retain(|(structure, _)| Some(*structure) == last);
    out
}

fn carriers(tree: &Tree, list: &List) -> Vec<Finding> {
    let mut ways: BTreeMap<(&'static str, &str), BTreeSet<&str>> = BTreeMap::new();
    for carrier in &tree.carriers {
        ways.entry((carrier.way, &carrier.structure)).or_default().insert(&carrier.by);
    }
    let mut out = Vec::new();
    for ((way, structure), by) in ways {
        let by = by.into_iter().collect::<Vec<_>>().join(", ");
        let fields = match tree.headers.fields(structure) {
            Ok(fields) => fields,
            Err(error) => {
                let shown: Vec<String> =
                    tree.headers.member_names(structure).into_iter().filter(|name| names_pid(name)).collect();
                let names: Vec<&str> = shown.iter().map(String::as_str).collect();
                if !names.is_empty() {
                    let shown = shown.clone();
                    let why = format!("by {by}; its layout cannot be read: {error}");
                    out.push(known_or_new(list, way, structure, &names, shown, why));
                }
                continue;
            }
        };
        let carries = |field: &&Field| is_pid(field) || names_kernel_pointer(field) || field.name == "info32";
        let sensitive: Vec<&Field> = fields.iter().filter(carries).collect();
        if sensitive.is_empty() {
            continue;
        }
        let names: Vec<&str> = sensitive.iter().map(|field| field.name.as_str()).collect();
        let shown = sensitive.iter().map(|field| shown(field)).collect();
        let judged = known_or_new(list, way, structure, &names, shown, format!("by {by}"));
        let size = tree.headers.layout(structure).ok().map(|layout| layout.size);
        out.push(Finding { size, ..judged });
    }
    out
}

fn known_or_new(
    list: &List,
    way: &'static str,
    subject: &str,
    names: &[&str],
    fields: Vec<String>,
    why: String,
) -> Finding {
    let all: Vec<Option<&Known>> = match names {
        [] => vec![list.known(way, subject, "")],
        names => names.iter().map(|name| list.known(way, subject, name)).collect(),
    };
    let (verdict, why, sort) = match all.iter().all(Option::is_some).then(|| all.iter().flatten().next()).flatten() {
        Some(known) => (Verdict::Known, known.reason.clone(), Some(known.sort)),
        None => (Verdict::New, why, None),
    };
    Finding { verdict, way, name: subject.to_owned(), cmd: None, size: None, reach: None, fields, why, sort }
}

fn judge_function(tree: &Tree, function: &Function) -> Finding {
    let found = function.names.iter().find_map(|name| tree.functions.get(name).map(|prototypes| (name, prototypes)));
    let (verdict, name, fields, why) = match found {
        Some((name, prototypes)) if prototypes.is_empty() => {
            (Verdict::Fits, name, Vec::new(), "the name is there; its signature is not known here".into())
        }
        Some((name, prototypes)) if prototypes.iter().all(|prototype| function.wants.contains(prototype)) => {
            (Verdict::Fits, name, prototypes.iter().cloned().collect(), function.why.clone())
        }
        Some((name, prototypes)) => {
            let why = format!("the redirect wants {}", function.wants.join(" or "));
            (Verdict::Changed, name, prototypes.iter().cloned().collect(), why)
        }
        None if !tree.is_whole => {
            (Verdict::Gone, &function.names[0], Vec::new(), "not in this part of the driver".into())
        }
        None if function.optional => {
            (Verdict::Gone, &function.names[0], Vec::new(), "not in this tree; MPU does without".into())
        }
        None => (Verdict::Changed, &function.names[0], Vec::new(), format!("not in this tree: {}", function.why)),
    };
    Finding {
        verdict,
        way: "function",
        name: name.clone(),
        cmd: None,
        size: None,
        reach: None,
        fields,
        why,
        sort: None,
    }
}

/// Helpers of the driver about PIDs or namespaces that are on no list: a redirected one under another name, perhaps.
fn helpers(tree: &Tree, list: &List) -> Vec<Finding> {
    let listed: BTreeSet<&String> = list.function.iter().flat_map(|function| &function.names).collect();
    let about_pids = |name: &&String| {
        let words = words(name);
        let has = |some: &[&str]| words.iter().any(|word| some.contains(&word.as_str()));
        // `ns` stands for nanoseconds, too.
        name.starts_with("os_") && (has(&["pid", "tgid", "namespace"]) || has(&["ns"]) && !has(&["time", "tick"]))
    };
    let mut found: Vec<&String> =
        tree.functions.keys().filter(|name| !listed.contains(name)).filter(about_pids).collect();
    found.sort();
    let why = "the driver may translate by it; no redirect knows it";
    found.into_iter().map(|name| known_or_new(list, "function", name, &[], Vec::new(), why.to_owned())).collect()
}

/// A PID by name and type: a number of four or eight bytes.
fn is_pid(field: &Field) -> bool {
    names_pid(&field.name) && (field.size == 4 || field.size == 8) && !["NvP64", "*"].contains(&field.kind.as_str())
}

/// A number inside a virtual machine, beside the PID of the process that runs it: 0 without one.
fn is_companion(field: &Field) -> bool {
    words(&field.name).first().is_some_and(|word| word == "sub")
}

fn number(cmd: u32) -> String {
    format!("{cmd:#010x}")
}

fn shown(field: &Field) -> String {
    let times: usize = field.repeats.iter().map(|(count, _)| count).product();
    let times = if times == 1 { String::new() } else { format!(" ×{times}") };
    format!("{}@{}{times}", field.path, field.offset)
}

/// The words of a name: `subProcessID` is sub, process, id.
pub fn words(name: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut before = ' ';
    for c in name.chars() {
        if c == '_' {
            before = c;
            continue;
        }
        let begins = before == '_' || before == ' ' || (c.is_ascii_uppercase() && !before.is_ascii_uppercase());
        match out.last_mut().filter(|_| !begins) {
            Some(word) => word.push(c.to_ascii_lowercase()),
            None => out.push(c.to_ascii_lowercase().to_string()),
        }
        before = c;
    }
    out
}

/// Whether a name says that it holds a PID: its words end in one, in a table of them, or in half of one.
pub fn names_pid(name: &str) -> bool {
    let words = words(name);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    // Of a table, of one half of a number, of whom a call is about, of a kernel's function.
    const BEHIND: [&str; 13] =
        ["tbl", "table", "list", "array", "arr", "s", "lo", "hi", "low", "high", "target", "nr", "vnr"];
    const PID: [&str; 12] =
        ["pid", "pids", "tgid", "tgids", "tid", "tids", "procid", "processid", "process", "lwp", "lwpid", "creator"];
    while words.len() > 1 && BEHIND.contains(words.last().unwrap_or(&"")) {
        words.pop();
    }
    match words.as_slice() {
        [.., "process" | "proc" | "thread" | "task", "id" | "ids" | "num" | "number"] => true,
        [.., last] => PID.contains(last),
        [] => false,
    }
}

/// Whether a name says that it holds an address of the kernel's: the operating system's own structure, or one for processes.
pub fn names_kernel_pointer(field: &Field) -> bool {
    let words = words(&field.name);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    field.size == 8
        && matches!(
            words.as_slice(),
            ["p", "os", ..] | ["p", .., "pid", "info"] | ["p", "kernel", ..] | ["p", "task", ..]
        )
        && !words.contains(&"event")
}
