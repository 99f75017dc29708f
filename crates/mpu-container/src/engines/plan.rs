//! Plans changes to an engine's files in memory, and checks their effect before a file is written.
//!
//! A file that has the runtime already is reused, whichever tool wrote it: NVIDIA's `nvidia-ctk` leaves a file that overrides all
//! others. Every plan has the requested effect. If a file of the administrator would override it, the error names that file and
//! nothing is changed.

use super::effective::EffectiveConfig;
use super::files::{self, Files, Layer, Pending, is_pattern, read};
use super::request::RuntimeRequest;
use super::tables::is_superset;
use super::{Engine, EngineError, FormatError, containerd, docker, malformed};
use crate::text_file;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table};

#[derive(Debug)]
pub struct Plan {
    /// The new texts of changed files, `None` for a file to be removed. In the order in which they are written.
    pub changes: Vec<(PathBuf, Option<String>)>,
    pub effective: EffectiveConfig,
}

pub fn plan_add(
    files: &Files,
    requests: &[RuntimeRequest],
    template: Option<&EffectiveConfig>,
) -> Result<Plan, EngineError> {
    if let Some(kept) =
        requests.iter().find(|request| files.engine == Engine::Docker && docker::is_reserved(&request.name))
    {
        return Err(EngineError::Usage(format!(
            "Docker does not start with a runtime that is called {}, its own: use another name",
            kept.name
        )));
    }
    let mut pending = Pending::new();
    let before = EffectiveConfig::of(files, &files.layers(&pending)?)?;
    let keys = template.unwrap_or(&before).template_keys();
    for request in requests {
        if request.default == Some(false) {
            unset_default(files, &request.name, &mut pending)?;
        }
        // A drop-in is written anew, so it must repeat the present default.
        let default = request.default.or(before.is_default(&request.name).then_some(true));
        let request = RuntimeRequest { default, ..request.clone() };
        let target = target_layer(files, &request, &mut pending)?;
        let text = read(&target.path, &pending)?.unwrap_or_default();
        let new = files.engine.add_runtime(&Layer { text, ..target.clone() }, &request, &keys)?;
        let new = match files.engine == Engine::Containerd && !files.merges {
            true => {
                let names: Vec<String> = requests.iter().map(|request| request.name.clone()).collect();
                containerd::add_runc(&new, &names, target.version).map_err(malformed(&target.path))?
            }
            false => new,
        };
        pending.insert(target.path, Some(new));
    }
    let effective = EffectiveConfig::of(files, &files.layers(&pending)?)?;
    for request in requests {
        check_not_overruled(&effective, request)?;
    }
    Ok(Plan { changes: changes(files, pending)?, effective })
}

pub fn plan_remove(files: &Files, names: &[&str]) -> Result<Plan, EngineError> {
    plan_remove_from(files, names, true, |_| true)
}

/// Plans the removal of runtimes from containerd's drop-in file only; from the top file if that is of version 1, which has no
/// imports. A copied section is removed even if it enables CDI, because it would go stale.
pub fn plan_remove_from_drop_in(files: &Files, names: &[&str]) -> Result<Plan, EngineError> {
    plan_remove_from(files, names, false, |layer| {
        files.drop_in.as_ref() == Some(&layer.path) || (layer.path == files.top && layer.version == 1)
    })
}

/// Records the values of Docker's file for [`plan_restore`]: runtimes, default runtime, and `features.cdi` if that is about to be set.
pub fn record_docker(files: &Files, names: &[&str], cdi: bool) -> Result<String, EngineError> {
    let text = read(&files.top, &Pending::new())?.unwrap_or_default();
    docker::record(&text, names, cdi).map_err(malformed(&files.top))
}

/// Plans the return of the values in the file `record`. If that is missing, only removes the runtimes.
pub fn plan_restore(files: &Files, names: &[&str], record: &Path) -> Result<Plan, EngineError> {
    let mut pending = Pending::new();
    let recorded = docker::parse(&read(record, &pending)?.unwrap_or_default()).map_err(malformed(record))?;
    if let Some(text) = read(&files.top, &pending)? {
        let new = docker::restore(&text, names, &recorded).map_err(malformed(&files.top))?;
        pending.insert(files.top.clone(), new);
    }
    let effective = EffectiveConfig::of(files, &files.layers(&pending)?)?;
    Ok(Plan { changes: changes(files, pending)?, effective })
}

fn plan_remove_from(
    files: &Files,
    names: &[&str],
    cdi: bool,
    from: impl Fn(&Layer) -> bool,
) -> Result<Plan, EngineError> {
    let mut pending = Pending::new();
    let layers = files.layers(&pending)?;
    for layer in layers.iter().filter(|layer| from(layer)) {
        let settings = files.engine.settings(layer)?;
        let named = |name: &&&str| {
            settings.default.as_deref() == Some(**name) || settings.runtimes.iter().any(|(known, _)| known == **name)
        };
        let mut text = Some(layer.text.clone());
        // A file without the runtime stays, even an empty one.
        for name in names.iter().filter(named) {
            let Some(old) = text else { break };
            text = files.engine.remove_runtime(&Layer { text: old, ..layer.clone() }, name)?;
        }
        if text.as_ref() == Some(&layer.text) {
            continue;
        }
        let text = match text {
            Some(left) if layer.path != files.top && is_redundant(files, &layers, layer, &left, cdi)? => None,
            // The administrator's top file stays, even if only its version is left.
            None if files.engine == Engine::Containerd
                && layer.path == files.top
                && !containerd::is_created_by_us(&layer.text) =>
            {
                Some(containerd::keep_only_version(&layer.text).map_err(malformed(&layer.path))?)
            }
            other => other,
        };
        pending.insert(layer.path.clone(), text);
    }
    if files.engine == Engine::Containerd {
        remove_imports(files, &layers, &mut pending)?;
    }
    let effective = EffectiveConfig::of(files, &files.layers(&pending)?)?;
    Ok(Plan { changes: changes(files, pending)?, effective })
}

/// Removes imports of removed files: containerd does not start if an imported file is missing. A top file that we made only for an
/// import is removed, too.
fn remove_imports(files: &Files, layers: &[Layer], pending: &mut Pending) -> Result<(), EngineError> {
    let gone: Vec<PathBuf> = pending.iter().filter(|(_, text)| text.is_none()).map(|(path, _)| path.clone()).collect();
    let left: BTreeSet<PathBuf> = files.layers(pending)?.into_iter().map(|layer| layer.path).collect();
    for layer in layers.iter().filter(|layer| left.contains(&layer.path)) {
        let text = read(&layer.path, pending)?.unwrap_or_default();
        let is_gone = |name: &str, added_by_us: bool| {
            let of = |path: &PathBuf| import_pattern(files, path) == name;
            match is_pattern(Path::new(name)) {
                true => added_by_us && gone.iter().any(of) && !left.iter().any(of),
                false => gone.contains(&files.imported_from(&layer.path, name)),
            }
        };
        let new = containerd::remove_imports(&text, is_gone).map_err(malformed(&layer.path))?;
        if new != text {
            let spare =
                layer.path == files.top && containerd::is_created_by_us(&new) && containerd::has_only_version(&new);
            pending.insert(layer.path.clone(), (!spare).then_some(new));
        }
    }
    Ok(())
}

pub fn plan_unset_default(files: &Files, name: &str) -> Result<Plan, EngineError> {
    let mut pending = Pending::new();
    unset_default(files, name, &mut pending)?;
    let effective = EffectiveConfig::of(files, &files.layers(&pending)?)?;
    Ok(Plan { changes: changes(files, pending)?, effective })
}

impl Plan {
    /// Replaces all files or none, each atomically and with its owner and mode. Then reads them again and checks the effect.
    pub fn apply(&self, files: &Files, names: &[&str]) -> Result<EffectiveConfig, EngineError> {
        let mut done = Vec::new();
        for (path, change) in &self.changes {
            match apply_change(path, change.as_deref()) {
                Ok(undo) => done.push((path, undo)),
                Err(source) => {
                    // Half of a change may be worse than none: containerd does not start if an imported file is missing.
                    let undo_errors = done.into_iter().rev().filter_map(|(path, undo)| undo_change(path, undo).err());
                    let kept: Vec<String> = undo_errors.collect();
                    let path = path.clone();
                    return Err(match kept.is_empty() {
                        true => EngineError::Write { path, source },
                        false => EngineError::PartlyUndone { path, source, kept: kept.join("; ") },
                    });
                }
            }
        }
        // Deletes the removed files.
        drop(done);
        let now = EffectiveConfig::of(files, &files.layers(&Pending::new())?)?;
        for name in names {
            if now.program(name) != self.effective.program(name)
                || now.is_default(name) != self.effective.is_default(name)
            {
                return Err(EngineError::NotEffective { found: now.describe(name) });
            }
        }
        Ok(now)
    }
}

enum Undo {
    Remove,
    Restore(String),
    PutBack(text_file::MovedAside),
}

fn apply_change(path: &Path, new: Option<&str>) -> io::Result<Undo> {
    match new {
        Some(text) => {
            let old = match text_file::read(path, files::MAX_FILE_SIZE) {
                Ok(old) => Undo::Restore(old),
                Err(error) if error.kind() == ErrorKind::NotFound => Undo::Remove,
                Err(error) => return Err(error),
            };
            text_file::save(path, text).map(|()| old)
        }
        None => text_file::move_aside(path).map(Undo::PutBack),
    }
}

/// Undoes a change, or returns a message about the file that stays changed.
fn undo_change(path: &Path, undo: Undo) -> Result<(), String> {
    let message = |error: io::Error| format!("{} is changed ({error})", path.display());
    match undo {
        // Removes the target of a link, not the link.
        Undo::Remove => text_file::resolve_links(path).and_then(fs::remove_file).map_err(message),
        Undo::Restore(text) => text_file::save(path, &text).map_err(message),
        Undo::PutBack(removed) => removed.restore(),
    }
}

fn target_layer(files: &Files, request: &RuntimeRequest, pending: &mut Pending) -> Result<Layer, EngineError> {
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
    let existing = layers.iter().rfind(has).filter(|_| files.drop_in.is_none());
    Ok(existing.cloned().unwrap_or(Layer { path: own, text: String::new(), version: 0 }))
}

/// The file to change. containerd before 2.1 uses only the last file with the section; later releases accept that, too. A drop-in
/// becomes that last file: it is imported, and gets a copy of the section.
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
            None => containerd::drop_in_text(version, &copied_section(files, layers, &own, old.as_deref(), version)?)
                .map_err(malformed(&files.top))?,
        };
        pending.insert(own.clone(), Some(new));
        if !files.layers(pending)?.iter().any(|layer| layer.path == own) {
            let new = containerd::add_import(&top.text, &import_pattern(files, &own), version)
                .map_err(malformed(&files.top))?;
            pending.insert(files.top.clone(), Some(new));
        }
    }
    Ok(Layer { path: own, text: String::new(), version })
}

/// The section for our drop-in: that of the other files, and the runtimes that the drop-in had before.
fn copied_section(
    files: &Files,
    layers: &[Layer],
    own: &Path,
    old: Option<&str>,
    version: i64,
) -> Result<Table, EngineError> {
    if files.merges {
        return Ok(Table::new());
    }
    let mut copy = section(layers.iter().filter(|layer| layer.path != own))?;
    let before = containerd::settings(old.unwrap_or_default(), version).map_err(malformed(own))?;
    let runtimes = super::tables::table(&mut copy, &["containerd", "runtimes"]).map_err(malformed(own))?;
    for (name, runtime) in
        before.runtimes.into_iter().filter(|(name, runtime)| !containerd::is_default_runc(name, &runtime.keys))
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

/// The import for a drop-in: a pattern for all `.toml` files of its directory, as NVIDIA's toolkit writes it.
fn import_pattern(files: &Files, path: &Path) -> String {
    let path = files.paths.host(path);
    let all = path.with_file_name("*.toml");
    if path.extension().is_some_and(|end| end == "toml") { all } else { path }.display().to_string()
}

fn unset_default(files: &Files, name: &str, pending: &mut Pending) -> Result<(), EngineError> {
    for layer in files.layers(pending)? {
        let new = files.engine.unset_default(&layer, name)?;
        if new != layer.text {
            pending.insert(layer.path, Some(new));
        }
    }
    Ok(())
}

fn check_not_overruled(effective: &EffectiveConfig, request: &RuntimeRequest) -> Result<(), EngineError> {
    let program = effective.program(&request.name);
    if program != Some(request.path.as_str()) {
        let file = effective.runtimes.get(&request.name).map(|(_, path)| path.clone()).unwrap_or_default();
        let conflict = format!("runtimes.{} is {}", request.name, program.unwrap_or("nothing"));
        return Err(EngineError::Overruled { conflict, file });
    }
    match &effective.default {
        Some((other, file)) if request.default == Some(true) && *other != request.name => {
            Err(EngineError::Overruled { conflict: format!("the default runtime is {other}"), file: file.clone() })
        }
        _ => Ok(()),
    }
}

/// Whether the rest of a file only repeats other files, as a copied section does. `cdi`: whether enabling CDI counts as a difference.
fn is_redundant(files: &Files, layers: &[Layer], layer: &Layer, left: &str, cdi: bool) -> Result<bool, EngineError> {
    if files.engine != Engine::Containerd {
        return Ok(false);
    }
    let others = section(layers.iter().filter(|other| other.path != layer.path))?;
    let root = left.parse::<DocumentMut>().map_err(|error| malformed(&layer.path)(FormatError::from(error)))?;
    let plugin = containerd::plugin(layer.version).map_err(malformed(&layer.path))?;
    let plugins = root.get("plugins").and_then(Item::as_table_like);
    let alone = root.iter().all(|(key, _)| matches!(key, "version" | "plugins"))
        && plugins.is_none_or(|plugins| plugins.iter().all(|(key, _)| key == plugin));
    let mut section = containerd::section(left, layer.version).map_err(malformed(&layer.path))?;
    if let Some(section) = section.as_mut().filter(|_| !cdi) {
        section.remove("enable_cdi");
    }
    Ok(alone && !containerd::has_comments(left) && section.is_none_or(|section| is_superset(&others, &section)))
}

/// The changes of files. In their order, no import ever names a missing file: imported files are written before the top file and
/// removed after it.
fn changes(files: &Files, pending: Pending) -> Result<Vec<(PathBuf, Option<String>)>, EngineError> {
    let mut changes = Vec::new();
    for (path, new) in pending {
        if read(&path, &Pending::new())? != new {
            changes.push((path, new));
        }
    }
    changes.sort_by_key(|(path, new)| match new {
        Some(_) => (0, *path == files.top),
        None => (1, *path != files.top),
    });
    Ok(changes)
}
