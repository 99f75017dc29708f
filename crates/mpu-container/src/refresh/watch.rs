//! Polls everything that a CDI file depends on.

use super::{Outcome, RefreshError, refresh};
use crate::char_links;
use crate::driver::DriverRoot;
use crate::driver::files::firmware_folders;
use crate::driver::tables::{self, FileRow};
use crate::output::eprint_line;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Folders whose names change with the GPUs and their MIG devices, and the depth to which they are listed.
const FOLDERS: [(&str, u32); 2] = [("proc/driver/nvidia/gpus", 1), ("proc/driver/nvidia/capabilities", 5)];

/// Files that are replaced with the driver's libraries.
const FILES: [&str; 2] = ["etc/ld.so.cache", "usr/bin/nvidia-smi"];

/// Files that may come and go without the libraries, and the folders that may have them.
const TABLES: [(&[FileRow], &[&str]); 7] = [
    (tables::PROGRAMS, tables::PROGRAM_FOLDERS),
    (tables::PROGRAMS, &[tables::DEBIANS_PROGRAM_FOLDER]),
    (tables::SOCKETS, &["."]),
    (tables::DATA, tables::DATA_FOLDERS),
    (tables::OPENCL, tables::DATA_FOLDERS),
    (tables::VULKAN, tables::DATA_FOLDERS),
    (tables::VULKAN, &["."]),
];

/// Limit of entries, above any driver's.
const MAX_ENTRIES: usize = 4096;

pub(super) fn run(root: &DriverRoot, output: &Path, interval: Duration) -> ! {
    let mut last = None;
    let mut last_message = String::new();
    loop {
        let refresh_file = || {
            // Engines that read the file themselves call no wrapper, which would create the links. Without the links, a daemon-reload
            // removes the GPUs from containers.
            let _ = char_links::ensure();
            refresh(root, output)
        };
        if let Some(done) = refresh_if_changed(root, output, &mut last, refresh_file) {
            let message = match done {
                Ok(Outcome::Unchanged) => String::new(),
                Ok(Outcome::Written) => format!("{} was written", output.display()),
                Ok(Outcome::Removed) => format!("{} was removed: there is no driver", output.display()),
                Err(error) => error.to_string(),
            };
            // A failure is retried in the next round, but logged only once.
            if !message.is_empty() && message != last_message {
                eprint_line(&message);
            }
            last_message = message;
        }
        std::thread::sleep(interval);
    }
}

/// Calls `action` if the driver or the file has changed since the last round. Keeps the driver's state from before the action, so that the
/// next round detects a GPU that was added meanwhile. Keeps the file's state from after the action, which writes the file.
pub(super) fn refresh_if_changed(
    root: &DriverRoot,
    output: &Path,
    last: &mut Option<[String; 2]>,
    action: impl FnOnce() -> Result<Outcome, RefreshError>,
) -> Option<Result<Outcome, RefreshError>> {
    let now = [driver_state(root), file_stamp(output)];
    if last.as_ref() == Some(&now) {
        return None;
    }
    let done = action();
    let [driver, _] = now;
    *last = done.is_ok().then(|| [driver, file_stamp(output)]);
    Some(done)
}

/// A text that changes with everything that a CDI file depends on.
fn driver_state(root: &DriverRoot) -> String {
    let mut text = fs::read_to_string(root.kernel_files.join("proc/driver/nvidia/version")).unwrap_or_default();
    let mut left = MAX_ENTRIES;
    for (folder, depth) in FOLDERS {
        append_names(&root.kernel_files.join(folder), depth, &mut left, &mut text);
    }
    append_nodes(&root.devices.join("dev"), "nvidia", &mut text);
    append_nodes(&root.devices.join("dev/dri"), "", &mut text);
    for file in FILES {
        text.push_str(&file_stamp(&root.files.join(file)));
    }
    for (rows, folders) in TABLES {
        let paths = folders.iter().flat_map(|folder| rows.iter().map(move |row| Path::new(folder).join(row.name)));
        for path in paths.filter(|path| root.files.join(path).exists()) {
            let _ = write!(text, "{} ", path.display());
        }
    }
    // One folder for each release, with its files.
    for folder in firmware_folders(root) {
        append_names(&root.files.join(folder), 2, &mut left, &mut text);
    }
    text
}

/// Appends the sorted names below a folder.
fn append_names(folder: &Path, depth: u32, left: &mut usize, text: &mut String) {
    if depth == 0 {
        return;
    }
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().take(*left).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    *left = left.saturating_sub(entries.len());
    for entry in entries {
        let _ = write!(text, "{} ", entry.file_name().to_string_lossy());
        append_names(&entry.path(), depth - 1, left, text);
    }
}

/// Appends the sorted nodes of a folder that have this prefix, with their device numbers.
fn append_nodes(folder: &Path, prefix: &str, text: &mut String) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let matching = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    let mut matching: Vec<_> = matching.take(MAX_ENTRIES).collect();
    matching.sort_by_key(fs::DirEntry::file_name);
    for entry in matching {
        if let Ok(node) = entry.metadata() {
            let _ = write!(text, "{}:{:x} ", entry.file_name().to_string_lossy(), node.rdev());
        }
    }
}

fn file_stamp(file: &Path) -> String {
    let text = |of: fs::Metadata| format!("{}.{} {} ", of.mtime(), of.mtime_nsec(), of.ino());
    fs::metadata(file).map_or_else(|_| String::new(), text)
}
