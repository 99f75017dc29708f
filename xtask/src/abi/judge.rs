//! Compares a tree with MPU's rows and the list of known names. Each field with a PID or a kernel pointer fits, is known, is new, or has
//! changed.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use mpu_abi::{History, Inner, Layout, ROWS, Release, Row, Rows, Samples, event, find, history};
use serde::{Deserialize, Serialize};

use super::c::Field;
use super::names::{names_kernel_pointer, names_pid, words};
use super::tree::{Control, Reach, Tree, Use};

/// The verdict on one field, control or function.
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
    pub why: String,
    /// Of what is known: whether it is no PID at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sort: Option<Sort>,
}

impl Finding {
    /// A finding with the verdict `New`.
    fn new(way: &'static str, name: &str, fields: Vec<String>, why: impl Into<String>) -> Finding {
        let (name, why) = (name.to_owned(), why.into());
        Finding { verdict: Verdict::New, way, name, cmd: None, size: None, reach: None, fields, why, sort: None }
    }

    fn with_verdict(self, verdict: Verdict, why: impl Into<String>) -> Finding {
        Finding { verdict, why: why.into(), ..self }
    }

    /// Changes the verdict to `Known` if the list has all these fields; without fields, if it has the finding's name.
    fn or_known<'a>(self, list: &List, fields: impl IntoIterator<Item = &'a str>) -> Finding {
        let subject = self.cmd.as_ref().unwrap_or(&self.name);
        let entries: Option<Vec<_>> = fields.into_iter().map(|field| list.known(self.way, subject, field)).collect();
        match entries.and_then(|entries| entries.first().copied().or(list.known(self.way, subject, ""))) {
            Some((sort, reason)) => Finding { sort: Some(sort), ..self.with_verdict(Verdict::Known, reason) },
            None => self,
        }
    }
}

/// Why the list has an entry instead of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
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
    /// Reasons by way, name and, if there is one, field.
    #[serde(default)]
    known: BTreeMap<Sort, BTreeMap<String, String>>,
    #[serde(default)]
    parameters: BTreeMap<String, u32>,
    #[serde(default)]
    function: Vec<Function>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Function {
    /// Alternative names: one must exist.
    names: Vec<String>,
    /// The prototype that the redirect supports.
    wants: String,
    /// MPU also works with drivers without it.
    #[serde(default)]
    optional: bool,
    why: String,
}

impl List {
    /// The list in xtask/abi.toml.
    pub fn committed() -> Result<List> {
        List::parse(include_str!("../../abi.toml"))
    }

    /// A list from its text; each entry has a reason.
    pub fn parse(text: &str) -> Result<List> {
        let list: List = toml::from_str(text).context("abi.toml")?;
        for (key, reason) in list.known.values().flatten() {
            ensure!(reason.len() > 20, "abi.toml: {key} has no reason");
        }
        Ok(list)
    }

    /// Numbers by the structures that carry their parameters, for a source that has no numbers.
    pub fn numbers(&self) -> BTreeMap<String, u32> {
        let rows = ROWS.iter().flat_map(|row| {
            let (class, name) = (row.cmd.0 >> 16, row.control.name());
            ["", "CMD_"].map(|cmd| (format!("NV{class:04X}_CTRL_{cmd}{name}_PARAMS"), row.cmd.0))
        });
        // Of several rows of a structure the last has the number that newer drivers give it.
        self.parameters.clone().into_iter().chain(rows).collect()
    }

    fn known(&self, way: &str, subject: &str, field: &str) -> Option<(Sort, &str)> {
        let is_it = |key: &str| {
            let mut words = key.split(' ');
            let (of, name, only) = (words.next(), words.next().unwrap_or_default(), words.next());
            let same = name.strip_suffix('*').map_or(name == subject, |start| subject.starts_with(start));
            of == Some(way) && same && only.is_none_or(|only| only == field)
        };
        let mut all = self.known.iter().flat_map(|(sort, entries)| entries.iter().map(move |entry| (*sort, entry)));
        let found = all.find(|(_, (key, _))| is_it(key));
        found.map(|(sort, (_, reason))| (sort, reason.as_str()))
    }
}

/// All findings of a tree.
pub fn judge(tree: &Tree, list: &List) -> Vec<Finding> {
    judge_by(tree, list, ROWS, &|row| find(row.cmd, row.params_size).map(history))
}

/// The releases of a row.
pub type Histories<'a> = &'a dyn Fn(&Row) -> Option<&'static History>;

/// The same, by other rows.
pub fn judge_by(tree: &Tree, list: &List, rows: &[Row], histories: Histories<'_>) -> Vec<Finding> {
    let controls = tree.controls.iter().filter_map(|control| judge_control(tree, list, rows, control));
    let mut out: Vec<Finding> = controls.collect();
    // Where no control was found at all, none is missed.
    let has = |row: &Row| tree.controls.is_empty() || tree.controls.iter().any(|control| control.cmd == row.cmd.0);
    let mut before = BTreeSet::new();
    for row in rows.iter().filter(|row| !has(row) && before.insert(row.cmd)) {
        let finding = Finding::new("control", row.control.name(), Vec::new(), "")
            .with_verdict(Verdict::Gone, "nothing here has this number");
        out.push(Finding { cmd: Some(number(row.cmd.0)), size: Some(row.params_size as usize), ..finding });
    }
    out = out.into_iter().map(|finding| judge_release(tree, rows, histories, finding)).collect();
    out.extend(carriers(tree, list));
    for Use { name, place, pid } in &tree.events {
        let why = format!("{place} puts {pid} into a notification");
        let finding = Finding::new("event", name, vec![pid.clone()], why).or_known(list, []);
        let number = tree.headers.constant(name).and_then(|number| u32::try_from(number).ok());
        out.push(match number.filter(|number| event::CARRYING.contains(number)) {
            Some(number) => {
                finding.with_verdict(Verdict::Fits, format!("{number} in CARRYING of crates/mpu-abi/src/event.rs"))
            }
            None => finding,
        });
    }
    let prints = tree.prints.iter().map(|Use { name, place, pid }| {
        let why = format!("{place} prints {pid}, into a file of /proc or debugfs");
        Finding::new("file", name, vec![pid.clone()], why)
    });
    let escapes = tree
        .escapes_unread
        .iter()
        .map(|name| Finding::new("escape", name, Vec::new(), "no handler with an argument of a known type was found"));
    let streams = tree.streams.iter().map(|(name, field)| {
        let why = "a message of a dump has this field; dumps are byte streams behind a pointer";
        Finding::new("stream", name, vec![field.clone()], why)
    });
    out.extend(prints.chain(escapes).chain(streams).map(|finding| finding.or_known(list, [])));
    if tree.has_functions {
        out.extend(list.function.iter().map(|function| judge_function(tree, function)));
        out.extend(helpers(tree, list));
    }
    out
}

/// Compares the rows' releases with the release of the tree. Rows of found controls must include it, and rows of missing ones must not. A
/// source without all declarations cannot show that.
fn judge_release(tree: &Tree, rows: &[Row], histories: Histories<'_>, mut finding: Finding) -> Finding {
    let same_number = rows.iter().filter(|row| finding.cmd == Some(number(row.cmd.0)));
    let of_it: Vec<(&Row, &History)> = same_number.filter_map(|row| Some((row, histories(row)?))).collect();
    let size = finding.size;
    let is_read = |(row, _): &&(&Row, &History)| size == Some(row.params_size as usize);
    let Some((_, History { seen, .. })) = of_it.iter().find(is_read).or(of_it.first()) else { return finding };
    finding.why += &format!("{}a row of {seen}", if finding.why.is_empty() { "" } else { "; " });
    let Some(release) = tree.release.as_deref().and_then(|text| text.parse::<Release>().ok()) else { return finding };
    let mut named = of_it.iter().filter(|(_, history)| history.releases.iter().any(|some| some.has(release)));
    let wrong = match finding.verdict {
        Verdict::Fits if !named.any(|row| is_read(&row)) => "does not name",
        Verdict::Gone if tree.declares_all && named.next().is_some() => "names",
        _ => return finding,
    };
    let why = format!("{}; the row {wrong} {release} in its releases (crates/mpu-abi/src/rows.rs)", finding.why);
    finding.with_verdict(Verdict::Changed, why)
}

fn judge_control(tree: &Tree, list: &List, rows: &[Row], control: &Control) -> Option<Finding> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.cmd.0 == control.cmd).collect();
    if control.reach == Reach::Kernel && rows.is_empty() {
        return None;
    }
    let mut finding = Finding::new("control", &control.name, Vec::new(), "");
    (finding.cmd, finding.reach) = (Some(number(control.cmd)), Some(control.reach));
    let Some(parameters) = &control.parameters else {
        // A number that a later release gave to a control without parameters: no call of it meets the row's size.
        let why = "the number is another control's here, without parameters";
        return (!rows.is_empty()).then(|| finding.with_verdict(Verdict::Gone, why));
    };
    let row_of = |size: usize| rows.iter().find(|row| row.params_size as usize == size);
    let sizes = rows.iter().map(|row| row.params_size.to_string()).collect::<Vec<_>>().join(", ");
    if let Some(size) = tree.headers.opaque(parameters) {
        finding.size = Some(size);
        let finding = match row_of(size) {
            Some(_) => finding.with_verdict(Verdict::Fits, "the size fits; where its fields stand is not known here"),
            None => {
                let why = format!("{size} bytes; rows have {sizes}, unless the number is another control's now");
                finding.with_verdict(Verdict::Changed, why)
            }
        };
        return (!rows.is_empty()).then_some(finding);
    }
    let (fields, size) = match (tree.headers.fields(parameters), tree.headers.layout(parameters)) {
        (Ok(fields), Ok(layout)) => (fields, layout.size),
        (Err(error), _) | (_, Err(error)) => {
            finding.why = format!("the layout of {parameters} cannot be read: {error}");
            return Some(match rows.is_empty() {
                true => finding.or_known(list, []),
                false => Finding { verdict: Verdict::Changed, ..finding },
            });
        }
    };
    finding.size = Some(size);
    let sensitive: Vec<&Field> = fields.iter().filter(|field| is_sensitive(field)).collect();
    let has_pointer = fields.iter().any(|field| field.kind == "NvP64" && !names_kernel_pointer(field));
    let behind = if has_pointer { behind_pointers(tree, parameters, &fields) } else { Vec::new() };
    finding.fields = sensitive.iter().map(|field| shown(field)).collect();
    finding.fields.extend(behind.iter().map(|(structure, field)| format!("→{structure}.{}", shown(field))));
    if rows.is_empty() {
        if finding.fields.is_empty() {
            return None;
        }
        let why = match control.reach {
            Reach::Declared => "declared, and in no open table; no row",
            _ => "no row",
        };
        let names = sensitive.into_iter().chain(behind.iter().map(|(_, field)| field));
        return Some(finding.with_verdict(Verdict::New, why).or_known(list, names.map(|field| field.name.as_str())));
    }
    let Some(row) = row_of(size) else {
        return Some(match finding.fields.is_empty() {
            true => finding.with_verdict(Verdict::Gone, "the number is another control's here, without PIDs"),
            false => finding.with_verdict(Verdict::Changed, format!("{size} bytes; rows have {sizes}")),
        });
    };
    let is_known = |field: &Field| list.known("control", &number(control.cmd), &field.name).is_some();
    let doubts = fit(tree, row, &fields, &behind, is_known);
    Some(match row.layout {
        _ if !doubts.is_empty() => finding.with_verdict(Verdict::Changed, doubts.join("; ")),
        Layout::Embedded { .. } if behind.is_empty() => {
            finding.with_verdict(Verdict::Fits, "what its pointer leads to is not declared here")
        }
        _ => finding.with_verdict(Verdict::Fits, ""),
    })
}

/// The differences between a row and these fields.
fn fit(
    tree: &Tree,
    row: &Row,
    fields: &[Field],
    behind: &[(&str, Field)],
    is_known: impl Fn(&Field) -> bool,
) -> Vec<String> {
    let mut doubts = Vec::new();
    let (mut pids, mut kernel_pointers) = (BTreeSet::new(), BTreeSet::new());
    // What must be there, with its bytes and its place.
    let mut expected = Vec::new();
    match row.layout {
        Layout::List(rows) | Layout::Query(rows) => {
            expected.push(("count", 4, rows.count));
            pids.extend(in_rows(&rows));
        }
        Layout::QueryOne { pid, began } => {
            expected.push(("time of beginning", 8, began));
            pids.insert(usize::from(pid));
        }
        Layout::Samples(samples) => (pids, kernel_pointers) = in_samples(&samples),
        Layout::One { pid, count } => {
            expected.extend(count.map(|count| ("count", 4, count)));
            pids.insert(usize::from(pid));
        }
        Layout::Embedded { pointer, inner } => {
            expected.push(("pointer", 8, pointer));
            if let Inner::Rows(rows) = inner {
                expected.push(("count", 4, rows.count));
            }
            // An object has the types that its code uses; what it hands on to the firmware is seldom among them.
            if tree.declares_all || !behind.is_empty() {
                doubts.extend(fit_behind(tree, &inner, behind));
            }
        }
    }
    for (what, size, offset) in expected {
        // Eight bytes do for four: the lower half comes first.
        let is_it = |field: &Field| (size..=8).contains(&field.size) && field.offsets().contains(&offset.into());
        if !fields.iter().any(is_it) {
            doubts.push(format!("no {what} of {size} bytes at {offset}"));
        }
    }
    let offsets = |is_it: &dyn Fn(&Field) -> bool| -> BTreeSet<usize> {
        fields.iter().filter(|field| is_it(field)).flat_map(Field::offsets).collect()
    };
    let is_plain = |field: &Field| is_pid(field) && !is_companion(field);
    let (all, unknown) = (offsets(&is_plain), offsets(&|field| is_plain(field) && !is_known(field)));
    let pointers = offsets(&|field| names_kernel_pointer(field) && !is_known(field));
    doubts.extend(unknown.difference(&pids).next().map(|at| format!("a PID at {at} that the row does not have")));
    doubts.extend(pids.difference(&all).next().map(|at| format!("the row has a PID at {at}, the header none")));
    let pointer = pointers.symmetric_difference(&kernel_pointers).next();
    doubts.extend(pointer.map(|at| format!("the kernel pointer at {at}")));
    doubts
}

fn fit_behind(tree: &Tree, inner: &Inner, behind: &[(&str, Field)]) -> Vec<String> {
    let (expected, stride): (BTreeSet<usize>, u16) = match inner {
        Inner::Rows(rows) => ([usize::from(rows.pid)].into(), rows.stride),
        // Nothing of such a table is shown.
        Inner::Samples(samples) if samples.engines == 0 => return Vec::new(),
        Inner::Samples(samples) => (in_samples(&Samples { first: 0, capacity: 1, ..*samples }).0, samples.stride),
    };
    let pids = behind.iter().filter(|(_, field)| !is_companion(field));
    let found: BTreeSet<usize> = pids.flat_map(|(_, field)| field.offsets()).collect();
    let mut doubts = Vec::new();
    if found != expected {
        doubts.push(format!("behind the pointer PIDs stand at {found:?}, in the row at {expected:?}"));
    }
    let layout = behind.first().and_then(|(structure, _)| tree.headers.layout(structure).ok());
    if let Some(layout) = layout.filter(|layout| layout.size != usize::from(stride)) {
        doubts.push(format!("behind the pointer an entry has {} bytes, in the row {stride}", layout.size));
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
        let slot = usize::from(samples.first) + slot * usize::from(samples.stride) + 8;
        for engine in 0..usize::from(samples.engines) {
            let record = slot + engine * usize::from(samples.engine_stride);
            pids.insert(record + 8);
            pointers.extend(samples.kernel_pointer.map(|pointer| record + usize::from(pointer)));
        }
    }
    (pids, pointers)
}

/// PIDs in structures to which the parameters only have a pointer.
fn behind_pointers<'a>(tree: &'a Tree, parameters: &str, own: &[Field]) -> Vec<(&'a str, Field)> {
    let mut out: Vec<(&str, Field)> = Vec::new();
    for structure in tree.declared_with(parameters) {
        for field in tree.headers.fields(structure).unwrap_or_default().into_iter().filter(is_sensitive) {
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
    let judged = ways.into_iter().filter_map(|((way, structure), by)| {
        let by = by.into_iter().collect::<Vec<_>>().join(", ");
        // Names, and how they are shown.
        let (names, fields, why): (Vec<String>, Vec<String>, _) = match tree.headers.fields(structure) {
            Ok(fields) => {
                let carries = fields.into_iter().filter(|field| is_sensitive(field) || field.name == "info32");
                let (names, fields) = carries.map(|field| (field.name.clone(), shown(&field))).unzip();
                (names, fields, format!("by {by}"))
            }
            Err(error) => {
                let names = tree.headers.member_names(structure).into_iter().filter(|name| names_pid(name));
                let names: Vec<String> = names.collect();
                (names.clone(), names, format!("by {by}; its layout cannot be read: {error}"))
            }
        };
        let size = tree.headers.layout(structure).ok().map(|layout| layout.size);
        let finding = Finding { size, ..Finding::new(way, structure, fields, why) };
        (!names.is_empty()).then(|| finding.or_known(list, names.iter().map(String::as_str)))
    });
    judged.collect()
}

fn judge_function(tree: &Tree, function: &Function) -> Finding {
    let found = function.names.iter().find_map(|name| tree.functions.get_key_value(name));
    let Some((name, prototypes)) = found else {
        let finding = Finding::new("function", &function.names[0], Vec::new(), "");
        return match function.optional {
            _ if !tree.is_whole => finding.with_verdict(Verdict::Gone, "not in this part of the driver"),
            true => finding.with_verdict(Verdict::Gone, "not in this tree; MPU does without"),
            false => finding.with_verdict(Verdict::Changed, format!("not in this tree: {}", function.why)),
        };
    };
    let finding = Finding::new("function", name, prototypes.iter().cloned().collect(), &function.why);
    match prototypes.iter().all(|prototype| *prototype == function.wants) {
        _ if prototypes.is_empty() => {
            finding.with_verdict(Verdict::Fits, "the name is there; its signature is not known here")
        }
        true => Finding { verdict: Verdict::Fits, ..finding },
        false => finding.with_verdict(Verdict::Changed, format!("the redirect wants {}", function.wants)),
    }
}

/// Unlisted helpers of the driver about PIDs or namespaces: such a helper can be a redirected one under a new name.
fn helpers(tree: &Tree, list: &List) -> Vec<Finding> {
    let is_listed = |name: &String| list.function.iter().any(|function| function.names.contains(name));
    let about_pids = |name: &&String| {
        let words = words(name);
        let has = |some: &[&str]| words.iter().any(|word| some.contains(&word.as_str()));
        // `ns` stands for nanoseconds, too.
        name.starts_with("os_") && (has(&["pid", "tgid", "namespace"]) || has(&["ns"]) && !has(&["time", "tick"]))
    };
    let found: BTreeSet<&String> = tree.functions.keys().filter(|name| !is_listed(name)).filter(about_pids).collect();
    let why = "the driver may translate by it; no redirect knows it";
    found.into_iter().map(|name| Finding::new("function", name, Vec::new(), why).or_known(list, [])).collect()
}

/// Whether a field is a PID or a kernel address.
pub fn is_sensitive(field: &Field) -> bool {
    is_pid(field) || names_kernel_pointer(field)
}

/// A PID by name and type: a number of four or eight bytes.
fn is_pid(field: &Field) -> bool {
    names_pid(&field.name) && (field.size == 4 || field.size == 8) && !["NvP64", "*"].contains(&field.kind.as_str())
}

/// A PID inside a virtual machine, next to that of its host process; 0 without a virtual machine.
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
