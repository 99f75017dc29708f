//! `--debug FILE`: a log of all steps with time and PID. And notes on standard error about parts that the container lacks.

use crate::chain::printable;
use std::fmt::Arguments;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

pub const NAME: &str = "nvidia-container-cli";

#[derive(Debug)]
pub struct Log(Option<File>);

impl Log {
    pub fn open(path: Option<&Path>) -> io::Result<Log> {
        // Non-blocking: opening a FIFO without a reader fails instead of waiting.
        let no_wait = libc::O_NONBLOCK | libc::O_NOCTTY;
        let open = |path| File::options().append(true).create(true).custom_flags(no_wait).open(path);
        Ok(Log(path.map(open).transpose()?))
    }

    /// Writes a note about a missing part to standard error and to the log.
    pub fn note(&self, message: Arguments<'_>) {
        self.write_line(message);
        // There may be no reader.
        let _ = writeln!(io::stderr(), "{NAME}: note: {}", printable(&message.to_string()));
    }

    /// Writes a line. A full disk does not stop a container.
    pub fn write_line(&self, message: Arguments<'_>) {
        let Some(mut file) = self.0.as_ref() else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let pid = std::process::id();
        // One write per line, so that lines of several processes do not mix.
        let message = printable(&message.to_string());
        let line = format!("{}.{:06} {pid} {message}\n", now.as_secs(), now.subsec_micros());
        let _ = file.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_in_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        Log::open(Some(&path)).unwrap().write_line(format_args!("mount /a\n1.0 7 undone: /b\u{1b}[0m"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.lines().count() == 1 && text.ends_with("/a\\n1.0 7 undone: /b\\u{1b}[0m\n"), "{text}");
    }
}
