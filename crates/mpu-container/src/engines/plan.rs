//! Plans changes to an engine's files in memory, and checks their effect before a file is written.
//!
//! A file that has the runtime already is reused, whichever tool wrote it: NVIDIA's `nvidia-ctk` leaves a file that overrides all
//! others. A plan has the requested effect when it is carried out. If a file of the administrator would override it, the error names
//! that file and nothing is changed.

use super::files::{self, Files, Layer, Pending, is_pattern, read};
use super::force::Force;
use super::request::RuntimeRequest;
use super::tables::covered;
use super::{Change, Engine, EngineError, Malformed, containerd, docker, malformed};
use crate::text_file;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table};

#[derive(Debug)]
pub struct Plan {
    /// Changed files, in the order in which they are written.
    pub changes: Vec<(PathBuf, Change)>,
    pub force: Force,
}

pub fn adding(files: &Files, requests: &[RuntimeRequest], pattern: Option<&Force>) -> Result<Plan, EngineError> {
    if let Some(kept) = requests.iter().find(|request| files.engine == Engine::Docker && docker::is_kept(&request.name))
    {
        return Err(EngineError::Usage(format!(
            "Docker does not start with a runtime that is called {}, its own: use another name",
            kept.name
        )));
    }
    let mut pending = Pending::new();
    let before = Force::of(files, &files.layers(&pending)?)?;
    let keys = pattern.unwrap_or(&before).pattern();
    for request in requests {
        if request.default == Some(false) {
            not_default(files, &request.name, &mut pending)?;
        }
        // A file that is made anew must say again what is not to change.
        let default = request.default.or(before.is_default(&request.name).then_some(true));
        let request = RuntimeRequest { default, ..request.clone() };
        let target = target(files, &request, &mut pending)?;
        let text = read(&target.path, &pending)?.unwrap_or_default();
        let new = files.engine.with(&Layer { text, ..target.clone() }, &request, &keys)?;
        let new = match files.engine == Engine::Containerd && !files.merges {
            true => {
                let names: Vec<String> = requests.iter().map(|request| request.name.clone()).collect();
                containerd::with_runc(&new, &names, target.version).map_err(malformed(&target.path))?
            }
            false => new,
        };
        pending.insert(target.path, Some(new));
    }
    let force = Force::of(files, &files.layers(&pending)?)?;
    for request in requests {
        judge(&force, request)?;
    }
    Ok(Plan { changes: changes(files, pending)?, force })
}

pub fn removing(files: &Files, names: &[&str]) -> Result<Plan, EngineError> {
    removing_from(files, names, true, |_| true)
}

/// A plan that removes runtimes from containerd's selected file only, unless its version has no such files. A copied section is removed
/// even if it enables CDI, because it would go stale.
pub fn dropping(files: &Files, names: &[&str]) -> Result<Plan, EngineError> {
    removing_from(files, names, false, |layer| {
        files.drop_in.as_ref() == Some(&layer.path) || (layer.path == files.top && layer.version == 1)
    })
}

/// A record of Docker's file for [`restoring`]: runtimes, default runtime, and `features.cdi` if that is about to be set.
pub fn before(files: &Files, names: &[&str], cdi: bool) -> Result<String, EngineError> {
    let text = read(&files.top, &Pending::new())?.unwrap_or_default();
    docker::before(&text, names, cdi).map_err(malformed(&files.top))
}

pub fn restoring(files: &Files, names: &[&str], before: &str) -> Result<Plan, EngineError> {
    let mut pending = Pending::new();
    if let Some(text) = read(&files.top, &pending)? {
        let new = docker::restored(&text, names, before);
        let new = new.map_err(malformed(&files.top))?;
        pending.insert(files.top.clone(), new);
    }
    let force = Force::of(files, &files.layers(&pending)?)?;
    Ok(Plan { changes: changes(files, pending)?, force })
}

fn removing_from(files: &Files, names: &[&str], cdi: bool, from: impl Fn(&Layer) -> bool) -> Result<Plan, EngineError> {
    let mut pending = Pending::new();
    let layers = files.layers(&pending)?;
    for layer in layers.iter().filter(|layer| from(layer)) {
        let settings = files.engine.settings(layer)?;
        let named = |name: &&&str| {
            settings.default.as_deref() == Some(**name) || settings.runtimes.iter().any(|(known, _)| known == **name)
        };
        let mut text = Some(layer.text.clone());
        // A file that never had the runtime stays, whatever is in it.
        for name in names.iter().filter(named) {
            let Some(old) = text else { break };
            text = files.engine.without(&Layer { text: old, ..layer.clone() }, name)?;
        }
        if text.as_ref() == Some(&layer.text) {
            continue;
        }
        let text = match text {
            Some(left) if layer.path != files.top && only_repeats(files, &layers, layer, &left, cdi)? => None,
            // The administrator's first file stays, if it has but its version left.
            None if files.engine == Engine::Containerd && layer.path == files.top && !containerd::made(&layer.text) => {
                Some(containerd::emptied(&layer.text).map_err(malformed(&layer.path))?)
            }
            other => other,
        };
        pending.insert(layer.path.clone(), text);
    }
    if files.engine == Engine::Containerd {
        unimport(files, &layers, &mut pending)?;
    }
    let force = Force::of(files, &files.layers(&pending)?)?;
    Ok(Plan { changes: changes(files, pending)?, force })
}

/// Removes imports of removed files: containerd does not start if an imported file is missing. A top file that we made only for an
/// import is removed, too.
fn unimport(files: &Files, layers: &[Layer], pending: &mut Pending) -> Result<(), EngineError> {
    let gone: Vec<PathBuf> = pending.iter().filter(|(_, text)| text.is_none()).map(|(path, _)| path.clone()).collect();
    let left: BTreeSet<PathBuf> = files.layers(pending)?.into_iter().map(|layer| layer.path).collect();
    for layer in layers.iter().filter(|layer| left.contains(&layer.path)) {
        let text = read(&layer.path, pending)?.unwrap_or_default();
        let is_gone = |name: &str, names: bool| {
            let of = |path: &PathBuf| import(files, path) == name;
            match is_pattern(Path::new(name)) {
                true => names && gone.iter().any(of) && !left.iter().any(of),
                false => gone.contains(&files.imported_from(&layer.path, name)),
            }
        };
        let new = containerd::not_importing(&text, is_gone).map_err(malformed(&layer.path))?;
        if new != text {
            let spare = layer.path == files.top && containerd::made(&new) && containerd::bare(&new);
            pending.insert(layer.path.clone(), (!spare).then_some(new));
        }
    }
    Ok(())
}

pub fn undefaulting(files: &Files, name: &str) -> Result<Plan, EngineError> {
    let mut pending = Pending::new();
    not_default(files, name, &mut pending)?;
    let force = Force::of(files, &files.layers(&pending)?)?;
    Ok(Plan { changes: changes(files, pending)?, force })
}

impl Plan {
    /// Carries it out: replaces all files or none, each as a whole with its owner and mode. Then reads them again.
    pub fn carry_out(&self, files: &Files, names: &[&str]) -> Result<Force, EngineError> {
        let mut done = Vec::new();
        for (path, change) in &self.changes {
            match carry(path, change) {
                Ok(undo) => done.push((path, undo)),
                Err(source) => {
                    // Half of a change may be worse than none: an import of a file that is not there stops containerd.
                    let undone = done.into_iter().rev().filter_map(|(path, undo)| take_back(path, undo).err());
                    let kept: Vec<String> = undone.collect();
                    let path = path.clone();
                    return Err(match kept.is_empty() {
                        true => EngineError::Write { path, source },
                        false => EngineError::Half { path, source, kept: kept.join("; ") },
                    });
                }
            }
        }
        // What was taken out of its place goes now.
        drop(done);
        let now = Force::of(files, &files.layers(&Pending::new())?)?;
        for name in names {
            if now.program(name) != self.force.program(name) || now.is_default(name) != self.force.is_default(name) {
                return Err(EngineError::NotInForce { found: now.describe(name).to_string() });
            }
        }
        Ok(now)
    }
}

enum Undo {
    Unmake,
    Rewrite(String),
    PutBack(text_file::MovedAside),
}

fn carry(path: &Path, change: &Change) -> io::Result<Undo> {
    match change {
        Change::Write(text) => {
            let old = match text_file::read(path, files::LIMIT) {
                Ok(old) => Undo::Rewrite(old),
                Err(error) if error.kind() == ErrorKind::NotFound => Undo::Unmake,
                Err(error) => return Err(error),
            };
            text_file::save(path, text).map(|()| old)
        }
        Change::Delete => text_file::move_aside(path).map(Undo::PutBack),
    }
}

/// Undoes a change, or returns a message about the file that stays changed.
fn take_back(path: &Path, undo: Undo) -> Result<(), String> {
    let message = |error: io::Error| format!("{} is changed ({error})", path.display());
    match undo {
        // The file behind a link, not the link.
        Undo::Unmake => text_file::resolve_links(path).and_then(fs::remove_file).map_err(message),
        Undo::Rewrite(text) => text_file::save(path, &text).map_err(message),
        Undo::PutBack(removed) => removed.restore(),
    }
}

fn target(files: &Files, request: &RuntimeRequest, pending: &mut Pending) -> Result<Layer, EngineError> {
    let layers = files.layers(pending)?;
    if files.engine == Engine::Containerd {
        return containerd_target(files, &layers, request, pending);
    }
    let own = files.own();
    let has = |layer: &&Layer| {
        files
            .engine
            .settings(layer)
            .is_ok_and(|settings| settings.runtimes.iter().any(|(name, _)| *name == request.name))
    };
    let there = layers.iter().rfind(has).filter(|_| files.drop_in.is_none());
    Ok(there.cloned().unwrap_or(Layer { path: own, text: String::new(), version: 0 }))
}

/// The file to change. Before 2.1, only the last file with the section counts, and later releases accept that, too. A selected file
/// becomes the last one: it is imported, and gets a copy of the section.
fn containerd_target(
    files: &Files,
    layers: &[Layer],
    request: &RuntimeRequest,
    pending: &mut Pending,
) -> Result<Layer, EngineError> {
    let top = layers.first().map_or(String::new(), |layer| layer.text.clone());
    let version = containerd::version(&top, 1, request.containerd_version).map_err(malformed(&files.top))?;
    let top = Layer { path: files.top.clone(), text: top, version };
    let Some(own) = files.drop_in.clone().filter(|own| *own != files.top && version > 1) else {
        let deciding = layers.iter().rfind(|layer| files.engine.settings(layer).is_ok_and(|settings| settings.section));
        return Ok(deciding.cloned().unwrap_or(top));
    };
    if !pending.contains_key(&own) {
        let old = read(&own, pending)?;
        let kept = old.as_ref().filter(|_| files.merges).cloned();
        let new = match kept {
            Some(kept) => kept,
            None => containerd::drop_in(version, &copied(files, layers, &own, old.as_deref(), version)?)
                .map_err(malformed(&files.top))?,
        };
        pending.insert(own.clone(), Some(new));
        if !files.layers(pending)?.iter().any(|layer| layer.path == own) {
            let new = containerd::importing(&top.text, &import(files, &own), version).map_err(malformed(&files.top))?;
            pending.insert(files.top.clone(), Some(new));
        }
    }
    Ok(Layer { path: own, text: String::new(), version })
}

/// The section that a file of our own repeats: the other files', and the runtimes that were added to it before.
fn copied(files: &Files, layers: &[Layer], own: &Path, old: Option<&str>, version: i64) -> Result<Table, EngineError> {
    if files.merges {
        return Ok(Table::new());
    }
    let mut copy = section(layers.iter().filter(|layer| layer.path != own))?;
    let before = containerd::settings(old.unwrap_or_default(), version).map_err(malformed(own))?;
    let runtimes = super::tables::table(&mut copy, &["containerd", "runtimes"]).map_err(malformed(own))?;
    for (name, runtime) in
        before.runtimes.into_iter().filter(|(name, runtime)| !containerd::plain_runc(name, &runtime.keys))
    {
        runtimes.entry(&name).or_insert(Item::Table(runtime.keys));
    }
    Ok(copy)
}

fn section<'a>(layers: impl Iterator<Item = &'a Layer>) -> Result<Table, EngineError> {
    let mut all = Table::new();
    for layer in layers {
        all = containerd::section(&layer.text, layer.version).map_err(malformed(&layer.path))?.unwrap_or(all);
    }
    Ok(all)
}

/// How a file of ours is imported: with its neighbours, as NVIDIA's is.
fn import(files: &Files, path: &Path) -> String {
    let path = files.paths.host(path);
    let all = path.with_file_name("*.toml");
    if path.extension().is_some_and(|end| end == "toml") { all } else { path }.display().to_string()
}

fn not_default(files: &Files, name: &str, pending: &mut Pending) -> Result<(), EngineError> {
    for layer in files.layers(pending)? {
        let new = files.engine.not_default(&layer, name)?;
        if new != layer.text {
            pending.insert(layer.path, Some(new));
        }
    }
    Ok(())
}

fn judge(force: &Force, request: &RuntimeRequest) -> Result<(), EngineError> {
    let program = force.program(&request.name);
    if program != Some(request.path.as_str()) {
        let by = force.runtimes.get(&request.name).map(|(_, path)| path.clone()).unwrap_or_default();
        let what = format!("runtimes.{} is {}", request.name, program.unwrap_or("nothing"));
        return Err(EngineError::Overruled { what, by });
    }
    match &force.default {
        Some((other, by)) if request.default == Some(true) && *other != request.name => {
            Err(EngineError::Overruled { what: format!("the default runtime is {other}"), by: by.clone() })
        }
        _ => Ok(()),
    }
}

/// Whether the rest of a file only repeats other files, as a copied section does. `cdi` is whether enabling CDI counts as a difference.
fn only_repeats(files: &Files, layers: &[Layer], layer: &Layer, left: &str, cdi: bool) -> Result<bool, EngineError> {
    if files.engine != Engine::Containerd {
        return Ok(false);
    }
    let others = section(layers.iter().filter(|other| other.path != layer.path))?;
    let root: DocumentMut = left.parse().map_err(|error| malformed(&layer.path)(Malformed::Toml(error)))?;
    let plugin = containerd::plugin(layer.version).map_err(malformed(&layer.path))?;
    let plugins = root.get("plugins").and_then(Item::as_table_like);
    let alone = root.iter().all(|(key, _)| matches!(key, "version" | "plugins"))
        && plugins.is_none_or(|plugins| plugins.iter().all(|(key, _)| key == plugin));
    let mut section = containerd::section(left, layer.version).map_err(malformed(&layer.path))?;
    if let Some(section) = section.as_mut().filter(|_| !cdi) {
        section.remove("enable_cdi");
    }
    Ok(alone && !containerd::has_comments(left) && section.is_none_or(|section| covered(&others, &section)))
}

/// The changes of files, in an order in which no import names a missing file: imported files are written before the top file, and
/// removed after it.
fn changes(files: &Files, pending: Pending) -> Result<Vec<(PathBuf, Change)>, EngineError> {
    let now = Pending::new();
    let (mut writes, mut deletes) = (Vec::new(), Vec::new());
    for (path, new) in pending {
        match (read(&path, &now)?, new) {
            (None, None) => {}
            (Some(old), Some(new)) if old == new => {}
            (_, Some(new)) => writes.push((path, Change::Write(new))),
            (Some(_), None) => deletes.push((path, Change::Delete)),
        }
    }
    writes.sort_by_key(|(path, _)| *path == files.top);
    deletes.sort_by_key(|(path, _)| *path != files.top);
    writes.append(&mut deletes);
    Ok(writes)
}
