//! The wrapper's log: its own file, and for errors also the engine's file.
//!
//! containerd, CRI-O and Docker show the last error of the runtime's `--log` file to the user; standard error is often discarded.
//! Standard output belongs to the runtime. A failed log write does not fail the container.
//!
//! Source: runc's `--log` and `--log-format`: lines of `time`, `level` and `msg`, as text or as JSON.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use serde_json::json;

use super::command::Command;
use crate::chain::printable;
use crate::config::{LogLevel, Runtime};

pub(super) struct Log {
    own: Option<File>,
    max_level: LogLevel,
    engine: Option<File>,
    json: bool,
}

impl Log {
    /// Opens the engine's log only: before the configuration is read, and if it cannot be read.
    pub(super) fn open_engine_log(command: &Command) -> Log {
        let engine = command.log.as_deref().and_then(open);
        Log { own: None, max_level: LogLevel::Info, engine, json: command.json }
    }

    /// Also opens our own log, except for `--version`.
    pub(super) fn open_own_log(&mut self, command: &Command, config: &Runtime) {
        self.max_level = if command.debug { LogLevel::Debug } else { config.log_level };
        self.own = config.debug.as_deref().filter(|_| !command.version).and_then(open);
    }

    pub(super) fn info(&mut self, message: &str) {
        self.record(LogLevel::Info, "info", message);
    }

    pub(super) fn debug(&mut self, message: &str) {
        self.record(LogLevel::Debug, "debug", message);
    }

    pub(super) fn warning(&mut self, message: &str) {
        self.record(LogLevel::Warning, "warning", message);
    }

    pub(super) fn error(&mut self, message: &str) {
        self.record(LogLevel::Error, "error", message);
    }

    fn record(&mut self, level: LogLevel, word: &str, message: &str) {
        let to_own = self.own.as_mut().filter(|_| level <= self.max_level);
        let to_engine = self.engine.as_mut().filter(|_| level <= LogLevel::Warning);
        if to_own.is_none() && to_engine.is_none() {
            return;
        }
        let message = printable(message);
        let time = humantime::format_rfc3339_seconds(SystemTime::now());
        let text = || format!("time=\"{time}\" level={word} msg={}\n", json!(message));
        let as_json = || format!("{}\n", json!({"level": word, "msg": message, "time": time.to_string()}));
        // One appending write per line, so that lines of several containers do not mix.
        for (file, line) in [(to_own, text()), (to_engine, if self.json { as_json() } else { text() })] {
            let _ = file.map(|file| file.write_all(line.as_bytes()));
        }
    }
}

fn open(path: &Path) -> Option<File> {
    if path == Path::new("/dev/null") {
        return None;
    }
    // Do not block on a pipe whose reader is missing or slow. Then the message is lost.
    let no_wait = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = || OpenOptions::new().append(true).create(true).custom_flags(no_wait).open(path);
    let made = || fs::create_dir_all(path.parent()?).ok().and_then(|()| open().ok());
    open().ok().or_else(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Otherwise every runtime command on the host would block.
    #[test]
    fn log_pipe_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("log");
        crate::driver::fake::fifo(&pipe);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let command = Command { log: Some(pipe.clone()), ..Command::default() };
            let mut log = Log::open_engine_log(&command);
            log.error("there is no reader");
            let _reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
            let mut log = Log::open_engine_log(&command);
            // More than a pipe holds.
            (0..2000).for_each(|_| {
                log.error("the reader has stopped: more than sixty-four bytes of every line are waited for")
            });
            let _ = sender.send(());
        });
        receiver.recv_timeout(Duration::from_secs(20)).expect("it waited");
    }
}
