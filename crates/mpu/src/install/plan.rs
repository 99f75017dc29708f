//! The steps of an installation and of its removal: copy, build, register, start, verify.

use super::journal;
use super::layout::{self, Item, Layout, VERSION};
use super::record::{Installed, RECORD, Record};
use mpu_engine::module::state;
use mpu_host::host::Host;
use mpu_notify::client;
use mpu_os::file::{Links, read_bounded};
use rustix::process::geteuid;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A step, and the command that undoes it. The undo of an engine's step runs only if the step changes whether the
/// engine is up. The journal restores files without a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub action: Action,
    pub undo: Option<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Write(Item),
    /// Keeps a file that the administrator changed.
    Keep(PathBuf),
    /// Removes a file, or a folder if it is empty.
    Remove(PathBuf),
    Run(Vec<String>),
    /// Does nothing. On rollback, `undo` runs after all later steps are undone.
    Nothing,
    /// Starts the engine, and replaces an older one.
    Raise,
    Lower,
    /// Checks that the engine is up.
    Verify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Kind {
    Write,
    Keep,
    Remove,
    Run,
    Engine,
}

/// A step in reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StepView {
    /// `write`, `keep`, `remove`, `run` or `engine`.
    pub kind: Kind,
    /// The file or the command.
    pub what: String,
    /// A file's mode and purpose; for the engine's steps, the command of the manual flow.
    pub note: String,
}

impl Step {
    /// For reports; none if nothing happens.
    pub fn view(&self) -> Option<StepView> {
        let path = |path: &Path| path.display().to_string();
        let (kind, what, note) = match &self.action {
            Action::Write(item) => (Kind::Write, path(&item.path), format!("{:04o}, {}", item.mode, item.what)),
            Action::Keep(retained) => (Kind::Keep, path(retained), "changed by you".to_string()),
            Action::Remove(gone) => (Kind::Remove, path(gone), String::new()),
            Action::Run(command) => (Kind::Run, command.join(" "), String::new()),
            Action::Nothing => return None,
            Action::Raise => (Kind::Engine, "mpu up --replace".into(), "by hand: modprobe mpu".into()),
            Action::Lower => (Kind::Engine, "mpu down".into(), "by hand: rmmod mpu".into()),
            Action::Verify => {
                (Kind::Engine, "mpu status".into(), "by hand: cat /sys/module/mpu/parameters/state".into())
            }
        };
        Some(StepView { kind, what, note })
    }
}

/// The tools of the host for an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostTools {
    pub dkms: bool,
    pub systemd: bool,
    pub udev: bool,
}

impl HostTools {
    pub fn of(host: &Host) -> HostTools {
        let systemd = host.at("/run/systemd/system").is_dir() && host.tool("systemctl").is_some();
        HostTools { dkms: host.tool("dkms").is_some(), systemd, udev: systemd && host.tool("udevadm").is_some() }
    }
}

fn split_words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_string).collect()
}

fn run(line: &str, undo: Option<&str>) -> Step {
    Step { action: Action::Run(split_words(line)), undo: undo.map(split_words) }
}

fn step(action: Action) -> Step {
    Step { action, undo: None }
}

fn on_rollback(undo: Vec<String>) -> Step {
    Step { action: Action::Nothing, undo: Some(undo) }
}

fn dkms_remove(version: &str) -> Step {
    let undo = format!("dkms install -m mpu -v {version}");
    run(&format!("dkms remove -m mpu -v {version} --all"), Some(&undo))
}

fn reload(tools: HostTools) -> Vec<Step> {
    let udev = "udevadm control --reload";
    [tools.systemd.then(|| run("systemctl daemon-reload", None)), tools.udev.then(|| run(udev, Some(udev)))]
        .into_iter()
        .flatten()
        .collect()
}

/// Whether an engine is up. If the state cannot be read, a later step reports the error.
pub(super) fn engine_is_up(host: &Host) -> bool {
    state::is_loaded(host) || client::state(host).is_ok_and(|state| state.is_some())
}

/// The units of the package, in the order of removal.
const UNITS: [&str; 3] = ["mpu-metrics.service", "mpu-nri.service", "mpu.service"];

/// The output of `systemctl VERB UNIT`, such as `active` or `enabled`.
fn unit_state(host: &Host, verb: &str, unit: &str) -> String {
    let answer = journal::output(host, &split_words(&format!("systemctl {verb} {unit}")));
    answer.map_or(String::new(), |answer| String::from_utf8_lossy(&answer.stdout).trim().to_string())
}

/// Whether a unit runs or is starting.
fn is_running(host: &Host, unit: &str) -> bool {
    matches!(&*unit_state(host, "is-active", unit), "active" | "activating" | "reloading")
}

/// The step that disables and stops a unit. Its undo restores both. None if there is nothing to do.
fn disable_unit(host: &Host, unit: &str) -> Option<Step> {
    let back = match (&*unit_state(host, "is-enabled", unit), is_running(host, unit)) {
        ("enabled", true) => "enable --now",
        ("enabled", false) => "enable",
        ("enabled-runtime", true) => "enable --runtime --now",
        ("enabled-runtime", false) => "enable --runtime",
        (_, true) => "start",
        (_, false) => return None,
    };
    Some(run(&format!("systemctl disable --now {unit}"), Some(&format!("systemctl {back} {unit}"))))
}

/// The hexadecimal SHA-256 of some bytes.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_config(path: &Path) -> bool {
    path == Path::new(mpu_host::config::FILE)
}

/// Reads a regular file. A pipe in its place would wait for a writer.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_bounded(path, u64::MAX, Links::Followed)
}

/// Whether the administrator changed a file of `/etc` since its installation.
fn is_edited(host: &Host, file: &Installed) -> bool {
    let found = read(&host.at(&file.path));
    file.path.starts_with("/etc") && found.is_ok_and(|bytes| sha256(&bytes) != file.sha256)
}

fn recorded<'a>(old: Option<&'a Record>, path: &Path) -> Option<&'a Installed> {
    old?.files.iter().find(|file| file.path == path)
}

/// Other files in the places of items, which no `mpu install` wrote. The configuration is not among them: it stays.
pub fn foreign_files(host: &Host, items: &[Item], old: Option<&Record>) -> Vec<PathBuf> {
    let is_foreign = |item: &&Item| {
        let at = host.at(&item.path);
        let is_there = fs::symlink_metadata(&at).is_ok_and(|found| found.is_file() || found.is_symlink());
        let is_ours =
            is_config(&item.path) || recorded(old, &item.path).is_some() || is_masked_by_package(host, &item.path);
        item.bytes.is_some() && is_there && !is_ours && read(&at).ok() != item.bytes
    };
    items.iter().filter(is_foreign).map(|item| item.path.clone()).collect()
}

/// Whether the removal of Debian's package has masked this unit, by a link to `/dev/null` (deb-systemd-helper(1p)).
fn is_masked_by_package(host: &Host, path: &Path) -> bool {
    let is_mask = fs::read_link(host.at(path)).is_ok_and(|target| target == Path::new("/dev/null"));
    let name = path.file_name().unwrap_or_default();
    is_mask && host.at("/var/lib/systemd/deb-systemd-helper-masked").join(name).exists()
}

/// Whether an item is there with its mode, as a file of this user's. A link, or another user's file, can change later.
fn is_in_place(at: &Path, item: &Item) -> bool {
    let is_own = |found: &Metadata| found.is_file() && found.uid() == geteuid().as_raw();
    fs::symlink_metadata(at).is_ok_and(|found| is_own(&found) && found.mode() & 0o7777 == item.mode)
}

/// The step that writes an item; none if the host already has it. Keeps a file of `/etc` that the administrator
/// changed.
fn write(host: &Host, item: Item, old: Option<&Record>) -> Option<Step> {
    let at = host.at(&item.path);
    let Some(new_bytes) = &item.bytes else { return (!at.is_dir()).then(|| step(Action::Write(item))) };
    let found = read(&at).ok();
    let recorded_file = recorded(old, &item.path);
    if found.as_ref() == Some(new_bytes) && (recorded_file.is_some() || is_in_place(&at, &item)) {
        return None;
    }
    let is_administrators = is_config(&item.path) || recorded_file.is_some() && item.path.starts_with("/etc");
    let is_kept =
        is_administrators && found.is_some_and(|found| recorded_file.is_none_or(|file| file.sha256 != sha256(&found)));
    Some(step(if is_kept { Action::Keep(item.path) } else { Action::Write(item) }))
}

/// The steps that install this version, or upgrade `old` to it.
pub fn install(host: &Host, items: Vec<Item>, dkms: bool, old: Option<&Record>, is_started: bool) -> Vec<Step> {
    let tools = HostTools::of(host);
    let record = record(host, &items, dkms, tools.systemd, old);
    let replaced = old.filter(|old| old.version != VERSION);
    // Services that run the replaced program, except the engine's own, which hands over.
    let is_restarted = |unit: &&str| *unit != "mpu.service" && is_running(host, unit);
    let restarted: Vec<&str> = match tools.systemd && replaced.is_some() && is_started {
        true => UNITS.into_iter().filter(is_restarted).collect(),
        false => Vec::new(),
    };
    let restarted = restarted.join(" ");
    let mut steps = Vec::new();
    // Undo runs from the last step to the first.
    if !restarted.is_empty() {
        steps.push(on_rollback(split_words(&format!("systemctl restart {restarted}"))));
    }
    let program = Layout::Local.executable().display().to_string();
    if replaced.is_some() && is_started && engine_is_up(host) && host.tool(&program).is_some() {
        // Restores the engine of the old version, after its files are back.
        steps.push(on_rollback(split_words(&format!("{program} up --replace"))));
    }
    if tools.systemd {
        steps.push(on_rollback(split_words("systemctl daemon-reload")));
    }
    let gone = replaced.into_iter().flat_map(|old| &old.files);
    let gone: Vec<&Installed> = gone.filter(|file| !items.iter().any(|item| item.path == file.path)).collect();
    steps.extend(items.into_iter().filter_map(|item| write(host, item, old)));
    if dkms && !old.is_some_and(|old| old.version == VERSION && old.dkms) {
        let undo = format!("dkms remove -m mpu -v {VERSION} --all");
        steps.push(run(&format!("dkms add -m mpu -v {VERSION}"), Some(&undo)));
        steps.push(run(&format!("dkms build -m mpu -v {VERSION}"), None));
        steps.push(run(&format!("dkms install -m mpu -v {VERSION} --force"), None));
    }
    steps.extend(reload(tools));
    if tools.systemd && !old.is_some_and(|old| old.service) {
        steps.push(run("systemctl enable mpu.service", Some("systemctl disable mpu.service")));
    }
    if is_started {
        let own = std::env::current_exe().map_or("mpu".to_string(), |path| path.display().to_string());
        steps.push(Step { action: Action::Raise, undo: Some(vec![own, "down".to_string()]) });
        if tools.systemd {
            // The engine is already up. Starting the unit lets systemd stop it at shutdown.
            let undo = (!is_running(host, "mpu.service")).then_some("systemctl stop mpu.service");
            steps.push(run("systemctl start mpu.service", undo));
        }
        steps.push(step(Action::Verify));
        if !restarted.is_empty() {
            steps.push(run(&format!("systemctl try-restart {restarted}"), None));
        }
    }
    if let Some(old) = replaced {
        steps.extend(old.dkms.then(|| dkms_remove(&old.version)));
        for file in gone {
            let is_kept = is_edited(host, file);
            steps.push(step(if is_kept { Action::Keep } else { Action::Remove }(file.path.clone())));
        }
        steps.push(step(Action::Remove(layout::dkms_sources(&old.version))));
    }
    steps.extend(write(host, record, None));
    steps
}

/// The steps that remove the recorded items. A changed configuration stays, unless `purge`.
pub fn uninstall(host: &Host, record: &Record, purge: bool) -> Vec<Step> {
    let tools = HostTools::of(host);
    let mut steps = Vec::new();
    if tools.systemd {
        steps.push(on_rollback(split_words("systemctl daemon-reload")));
    }
    if record.service && tools.systemd {
        steps.extend(UNITS.iter().filter_map(|unit| disable_unit(host, unit)));
    }
    let up = vec![Layout::Local.executable().display().to_string(), "up".to_string()];
    steps.push(Step { action: Action::Lower, undo: Some(up) });
    if record.dkms && tools.dkms {
        steps.push(dkms_remove(&record.version));
    }
    for file in &record.files {
        let is_kept = is_config(&file.path) && is_edited(host, file) && !purge;
        steps.push(step(if is_kept { Action::Keep } else { Action::Remove }(file.path.clone())));
    }
    // The administrator may have replaced a folder by a link, which stays.
    let is_folder = |path: &&PathBuf| fs::symlink_metadata(host.at(path)).is_ok_and(|found| found.is_dir());
    let folders = record.directories.iter().rev().filter(is_folder).cloned();
    steps.extend(folders.chain([RECORD.into()]).map(Action::Remove).map(step));
    steps.extend(reload(tools));
    steps
}

/// The record of an installation of these items, with the missing folders that it makes.
fn record(host: &Host, items: &[Item], dkms: bool, service: bool, old: Option<&Record>) -> Item {
    let of = |item: &Item| Some(Installed { path: item.path.clone(), sha256: sha256(item.bytes.as_ref()?) });
    let needed = items.iter().flat_map(|item| item.path.ancestors().skip(usize::from(item.bytes.is_some())));
    let made = needed.filter(|folder| !host.at(folder).exists()).map(Path::to_path_buf);
    let before = old.into_iter().flat_map(|old| &old.directories).filter(|folder| host.at(folder).exists()).cloned();
    let directories: BTreeSet<PathBuf> = made.chain(before).collect();
    let directories = directories.into_iter().collect();
    let files = items.iter().filter_map(of).collect();
    let record = Record { version: VERSION.to_string(), files, directories, dkms, service };
    // The serialization cannot fail: strings, booleans and paths.
    Item::file(RECORD, 0o644, serde_json::to_vec_pretty(&record).unwrap_or_default(), "what is installed")
}
