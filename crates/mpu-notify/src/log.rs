//! The engine's log lines on standard error, each with its time.

use crate::LOG;
use mpu_os::file::is_at;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

/// No tool rotates a file in /run, which is the host's memory.
const MAX_SIZE: u64 = 1 << 20;

/// Writes a line to standard error. Ignores errors: a full disk must not stop the supervisor.
pub(crate) fn write(line: Arguments<'_>) {
    let mut stderr = io::stderr();
    if let Ok(file) = stderr.as_fd().try_clone_to_owned() {
        empty_if_long(&File::from(file), Path::new(LOG));
    }
    let _ = writeln!(stderr, "{}mpu: {line}", mpu_host::time::of_line());
}

/// Empties the file if it is the one at this path, not a file of the administrator's choice.
fn empty_if_long(file: &File, path: &Path) {
    if file.metadata().is_ok_and(|metadata| metadata.len() > MAX_SIZE) && is_at(file, path) {
        let _ = file.set_len(0);
    }
}

macro_rules! log {
    ($($arguments:tt)+) => {
        $crate::log::write(format_args!($($arguments)+))
    };
}
pub(crate) use log;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_log_is_emptied_and_other_files_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, other) = (folder.path().join("log"), folder.path().join("other"));
        let check = |path: &Path, length, expected| {
            let file = File::options().create(true).append(true).open(path).expect("made");
            file.set_len(length).expect("set");
            empty_if_long(&file, &log);
            assert_eq!(file.metadata().expect("its length").len(), expected, "{path:?} with {length} bytes");
        };
        check(&other, MAX_SIZE + 1, MAX_SIZE + 1);
        check(&log, MAX_SIZE, MAX_SIZE);
        check(&log, MAX_SIZE + 1, 0);
        File::options().append(true).open(&log).expect("there").write_all(b"next").expect("written");
        assert_eq!(std::fs::read(&log).expect("there"), b"next");
    }
}
