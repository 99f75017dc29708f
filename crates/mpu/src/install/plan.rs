//! The steps of an installation and of its removal, in the order of the manual flow: copy, build, register, start, look.
//!
//! Owns the order and the words for each step. Changes nothing: `work` does.

use super::layout::{self, Item, Layout};
use super::{Installed, Record};
use mpu_engine::module::sources::Sources;
use mpu_engine::module::state;
use mpu_host::host::Host;
use mpu_notify::client;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A file is written.
    Write(Item),
    /// A folder is made.
    Folder(PathBuf),
    /// A configuration that was changed stays as it is.
    Keep(PathBuf),
    /// A file goes.
    Remove(PathBuf),
    /// A directory goes, if nobody else put anything in.
    RemoveDirectory(PathBuf),
    /// A command runs; the other undoes it.
    Run(Vec<String>, Option<Vec<String>>),
    /// Nothing happens now. If all is undone, this runs once every later step is undone.
    AtLast(Vec<String>),
    /// The engine comes up, in the place of an older one if there is one.
    Raise,
    /// The engine goes; undone, that program brings it up.
    Lower(PathBuf),
    /// It is seen that the engine is up.
    Verify,
}

/// What kind of step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A file is written.
    Write,
    /// A configuration that was changed stays as it is.
    Keep,
    /// A file or a directory goes.
    Remove,
    /// A command runs.
    Run,
    /// The engine comes, goes, or is looked at.
    Engine,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] = [Kind::Write, Kind::Keep, Kind::Remove, Kind::Run, Kind::Engine];

    /// Its name, as JSON and the text have it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Write => "write",
            Kind::Keep => "keep",
            Kind::Remove => "remove",
            Kind::Run => "run",
            Kind::Engine => "engine",
        }
    }
}

/// A step as reports have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StepView {
    /// `write`, `keep`, `remove`, `run` or `engine`.
    #[schemars(with = "&'static str", extend("enum" = Kind::ALL))]
    pub kind: Kind,
    /// The file or the command.
    pub what: String,
    /// A word more: a file's mode and purpose.
    pub note: String,
}

impl Step {
    /// The steps as a person is told of them.
    pub fn views(steps: &[Step]) -> Vec<StepView> {
        steps.iter().filter(|step| !matches!(step, Step::AtLast(_))).map(Step::view).collect()
    }

    /// For reports.
    pub fn view(&self) -> StepView {
        let view = |kind, what: String, note: &str| StepView { kind, what, note: note.to_string() };
        let path = |path: &Path| path.display().to_string();
        match self {
            Step::Write(item) => view(Kind::Write, path(&item.path), &format!("{:04o}, {}", item.mode, item.what)),
            Step::Folder(made) => view(Kind::Write, path(made), "folder"),
            Step::Keep(kept) => view(Kind::Keep, path(kept), "changed by you"),
            Step::Remove(gone) => view(Kind::Remove, path(gone), "file"),
            Step::RemoveDirectory(gone) => view(Kind::Remove, path(gone), "directory, if it is empty"),
            Step::Run(command, _) | Step::AtLast(command) => view(Kind::Run, command.join(" "), ""),
            Step::Raise => view(Kind::Engine, "mpu up --replace".into(), "by hand: modprobe mpu"),
            Step::Lower(_) => view(Kind::Engine, "mpu down".into(), "by hand: rmmod mpu"),
            Step::Verify => view(Kind::Engine, "mpu status".into(), "by hand: cat /sys/module/mpu/parameters/state"),
        }
    }
}

/// What an installation wants beyond the defaults.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wishes {
    /// Leave the engine as it is; the next boot starts it.
    pub no_start: bool,
    /// This host cannot have the module: DKMS is not to build it, which would fail.
    pub no_module: bool,
}

/// What the host has to install with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means {
    /// DKMS: the module is built again for each new kernel.
    pub dkms: bool,
    /// A running systemd: the engine is started at boot.
    pub systemd: bool,
    /// udev.
    pub udev: bool,
}

impl Means {
    /// Looks.
    pub fn of(host: &Host) -> Means {
        let systemd = host.at("/run/systemd/system").is_dir() && host.tool("systemctl").is_some();
        Means { dkms: host.tool("dkms").is_some(), systemd, udev: systemd && host.tool("udevadm").is_some() }
    }

    /// What will not happen by itself, in sentences.
    pub fn missing(self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        if !self.dkms {
            missing.push("no DKMS: the module is built at the first `mpu up` after a kernel update, not with it");
        }
        if !self.systemd {
            missing.push(
                "no systemd: start it at boot yourself, with `mpu up` (or `modprobe mpu` for an installed module)",
            );
        }
        missing
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_string).collect()
}

fn run(line: &str, undo: Option<&str>) -> Step {
    Step::Run(words(line), undo.map(words))
}

/// Whether an engine is up that goes on, or goes. What cannot be known is a later step's to say.
pub fn engine_is_up(host: &Host) -> bool {
    state::is_loaded(host) || client::state(host).is_ok_and(|state| state.is_some())
}

/// The units of the package, in the order in which they go.
const UNITS: [&str; 3] = ["mpu-metrics.service", "mpu-nri.service", "mpu.service"];

/// What systemd answers to a question about a unit, in a word.
fn asked(host: &Host, question: &str, unit: &str) -> String {
    let Some(systemctl) = host.tool("systemctl") else { return String::new() };
    let mut command = Command::new(systemctl);
    command.args([question, unit]).env("PATH", Host::this().search_path()).env("LC_ALL", "C");
    let answer = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    answer.map_or(String::new(), |answer| String::from_utf8_lossy(&answer.stdout).trim().to_string())
}

/// Whether a unit runs, or is on its way to.
fn runs(host: &Host, unit: &str) -> bool {
    matches!(&*asked(host, "is-active", unit), "active" | "activating" | "reloading")
}

/// Takes a unit from systemd; undone, it is as it was. None if there is nothing to take.
fn forget(host: &Host, unit: &str) -> Option<Step> {
    let (enabled, runs) = (asked(host, "is-enabled", unit), runs(host, unit));
    let back = match (&*enabled, runs) {
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

/// The steps that install this version, over `old` if that is there.
pub fn install(
    host: &Host,
    items: Vec<Item>,
    sources: &Sources,
    means: Means,
    old: Option<&Record>,
    wishes: Wishes,
) -> Vec<Step> {
    let written = |path: &Path| old.and_then(|old| old.files.iter().find(|file| file.path == path));
    let version = layout::VERSION;
    let is_same = old.is_some_and(|old| old.version == version);
    // Services that run the program that is replaced; all but the engine's own, which hands over.
    let restarted: Vec<&str> = match means.systemd && !is_same && old.is_some() && !wishes.no_start {
        true => UNITS.into_iter().filter(|unit| *unit != "mpu.service" && runs(host, unit)).collect(),
        false => Vec::new(),
    };
    let restarted = restarted.join(" ");
    let mut steps = Vec::new();
    // In the order in which they are done: from the last on.
    if !restarted.is_empty() {
        steps.push(Step::AtLast(words(&format!("systemctl restart {restarted}"))));
    }
    if let Some(old) = old.filter(|_| !is_same && !wishes.no_start && engine_is_up(host)) {
        let program = old.layout.executable().display().to_string();
        // The engine of the old version, with the old version's files in place again.
        steps.extend(host.tool(&program).map(|_| Step::AtLast(words(&format!("{program} up --replace")))));
    }
    if means.systemd {
        steps.push(Step::AtLast(words("systemctl daemon-reload")));
    }
    let folders = layout::FOLDERS.into_iter().filter(|folder| !host.at(folder).is_dir());
    steps.extend(folders.map(|folder| Step::Folder(folder.into())));
    for item in items {
        let now = std::fs::read(host.at(&item.path)).ok();
        let is_changed = now
            .as_ref()
            .is_some_and(|now| *now != item.bytes && written(&item.path).is_none_or(|file| file.sha256 != sha256(now)));
        if item.is_config && is_changed {
            steps.push(Step::Keep(item.path));
        } else if now.as_deref() != Some(&item.bytes) {
            steps.push(Step::Write(item));
        }
    }
    // Without sources there is nothing that could be built.
    let dkms = means.dkms && !sources.files.is_empty() && !wishes.no_module;
    if dkms && !(is_same && old.is_some_and(|old| old.dkms)) {
        steps.push(run(
            &format!("dkms add -m mpu -v {version}"),
            Some(&format!("dkms remove -m mpu -v {version} --all")),
        ));
        steps.push(run(&format!("dkms build -m mpu -v {version}"), None));
        steps.push(run(&format!("dkms install -m mpu -v {version} --force"), None));
    }
    if means.systemd {
        steps.push(run("systemctl daemon-reload", None));
        if !old.is_some_and(|old| old.service) {
            steps.push(run("systemctl enable mpu.service", Some("systemctl disable mpu.service")));
        }
    }
    if means.udev {
        steps.push(run("udevadm control --reload", Some("udevadm control --reload")));
    }
    if !wishes.no_start {
        steps.push(Step::Raise);
        if means.systemd {
            // The engine is up; this makes systemd know, so that it takes it down at the right time.
            let undo = (!runs(host, "mpu.service")).then_some("systemctl stop mpu.service");
            steps.push(run("systemctl start mpu.service", undo));
        }
        steps.push(Step::Verify);
        if !restarted.is_empty() {
            steps.push(run(&format!("systemctl try-restart {restarted}"), None));
        }
    }
    if let Some(old) = old.filter(|_| !is_same) {
        if old.dkms {
            let (remove, add) = dkms_remove(&old.version);
            steps.push(Step::Run(remove, Some(add)));
        }
        let gone = old.files.iter().filter(|file| !steps_write(&steps, &file.path) && is_versioned(file, &old.version));
        let gone: Vec<Step> = gone.map(|file| Step::Remove(file.path.clone())).collect();
        steps.extend(gone);
        steps.push(Step::RemoveDirectory(layout::dkms_sources(&old.version)));
    }
    steps
}

/// Only what carries the old version's name is left over by a newer one.
fn is_versioned(file: &Installed, version: &str) -> bool {
    file.path.starts_with(layout::dkms_sources(version))
}

fn steps_write(steps: &[Step], path: &Path) -> bool {
    steps.iter().any(|step| matches!(step, Step::Write(item) if item.path == path))
}

fn dkms_remove(version: &str) -> (Vec<String>, Vec<String>) {
    (words(&format!("dkms remove -m mpu -v {version} --all")), words(&format!("dkms install -m mpu -v {version}")))
}

/// The steps that remove what the record lists. A configuration that was changed is kept unless `purge`.
pub fn uninstall(host: &Host, record: &Record, means: Means, purge: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    if means.systemd {
        steps.push(Step::AtLast(words("systemctl daemon-reload")));
    }
    if record.service && means.systemd {
        steps.extend(UNITS.iter().filter_map(|unit| forget(host, unit)));
    }
    steps.push(Step::Lower(record.layout.executable()));
    if record.dkms && means.dkms {
        let (remove, add) = dkms_remove(&record.version);
        steps.push(Step::Run(remove, Some(add)));
    }
    for file in &record.files {
        let now = std::fs::read(host.at(&file.path)).map(|bytes| sha256(&bytes));
        let is_config = file.path == Path::new(mpu_host::config::FILE);
        let is_changed = now.is_ok_and(|now| now != file.sha256);
        if is_config && is_changed && !purge {
            steps.push(Step::Keep(file.path.clone()));
        } else {
            steps.push(Step::Remove(file.path.clone()));
        }
    }
    for directory in record.directories.iter().rev() {
        steps.push(Step::RemoveDirectory(directory.clone()));
    }
    if means.systemd {
        steps.push(run("systemctl daemon-reload", None));
    }
    if means.udev {
        steps.push(run("udevadm control --reload", Some("udevadm control --reload")));
    }
    steps
}

/// The record of an installation that these items make.
pub fn record(items: &[Item], layout: Layout, means: Means, dkms: bool, directories: Vec<PathBuf>) -> Record {
    Record {
        version: layout::VERSION.to_string(),
        layout,
        files: items.iter().map(|item| Installed { path: item.path.clone(), sha256: sha256(&item.bytes) }).collect(),
        directories,
        dkms: means.dkms && dkms,
        service: means.systemd,
    }
}
