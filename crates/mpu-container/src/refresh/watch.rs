//! Watches everything that a CDI file depends on.

use super::{Done, RefreshError, once};
use crate::char_links;
use crate::driver::{DriverRoot, tables};
use crate::output::say;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Folders below the facts' root whose names change with the GPUs and their MIG devices, and how deep that goes.
const FOLDERS: [(&str, u32); 2] = [("proc/driver/nvidia/gpus", 1), ("proc/driver/nvidia/capabilities", 5)];

/// Files of the driver's root that are replaced when its libraries are.
const FILES: [&str; 2] = ["etc/ld.so.cache", "usr/bin/nvidia-smi"];

/// No driver has as many: a listing ends there.
const MOST: usize = 4096;

pub(super) fn forever(root: &DriverRoot, output: &Path, every: Duration) -> ! {
    let mut last = None;
    let mut last_message = String::new();
    loop {
        let refresh = || {
            // For engines that read the file and call no wrapper. Without the links, a daemon-reload takes the GPUs from containers.
            let _ = char_links::ensure();
            once(root, output)
        };
        if let Some(done) = round(root, output, &mut last, refresh) {
            let message = match done {
                Ok(Done::Nothing) => String::new(),
                Ok(Done::Written) => format!("{} was written", output.display()),
                Ok(Done::Removed) => format!("{} was removed: there is no driver", output.display()),
                Err(error) => error.to_string(),
            };
            // A failure is tried again in the next round, and logged once.
            if !message.is_empty() && message != last_message {
                say(&message);
            }
            last_message = message;
        }
        std::thread::sleep(every);
    }
}

/// Acts if the driver or the file differs from the last round's. The driver's state is the one from before the act, so the next round
/// finds a GPU that was added meanwhile. The file's is the one from after it, because the act writes the file.
pub(super) fn round(
    root: &DriverRoot,
    output: &Path,
    last: &mut Option<[String; 2]>,
    act: impl FnOnce() -> Result<Done, RefreshError>,
) -> Option<Result<Done, RefreshError>> {
    let now = [driver(root), stamp(output)];
    if last.as_ref() == Some(&now) {
        return None;
    }
    let done = act();
    let [driver, _] = now;
    *last = done.is_ok().then(|| [driver, stamp(output)]);
    Some(done)
}

/// Everything that a CDI file follows from.
fn driver(root: &DriverRoot) -> String {
    let mut text = fs::read_to_string(root.kernel_files.join("proc/driver/nvidia/version")).unwrap_or_default();
    let mut left = MOST;
    for (folder, depth) in FOLDERS {
        names(&root.kernel_files.join(folder), depth, &mut left, &mut text);
    }
    nodes(&root.devices.join("dev"), "nvidia", &mut text);
    nodes(&root.devices.join("dev/dri"), "", &mut text);
    for file in FILES {
        text.push_str(&stamp(&root.files.join(file)));
    }
    let sockets = tables::SOCKETS.iter().filter(|socket| root.files.join(socket.name).exists());
    sockets.for_each(|socket| text.push_str(socket.name));
    text
}

/// The names below a folder, in order.
fn names(folder: &Path, depth: u32, left: &mut usize, text: &mut String) {
    if depth == 0 {
        return;
    }
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().take(*left).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    *left = left.saturating_sub(entries.len());
    for entry in entries {
        let _ = write!(text, "{} ", entry.file_name().to_string_lossy());
        names(&entry.path(), depth - 1, left, text);
    }
}

/// The nodes in a folder whose names begin so, in order, with their numbers.
fn nodes(folder: &Path, start: &str, text: &mut String) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    let mut ours: Vec<_> = ours.take(MOST).collect();
    ours.sort_by_key(fs::DirEntry::file_name);
    for entry in ours {
        if let Ok(node) = entry.metadata() {
            let _ = write!(text, "{}:{:x} ", entry.file_name().to_string_lossy(), node.rdev());
        }
    }
}

fn stamp(file: &Path) -> String {
    let stamp = |of: fs::Metadata| format!("{}.{} {} ", of.mtime(), of.mtime_nsec(), of.ino());
    fs::metadata(file).map_or_else(|_| String::new(), stamp)
}
