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
    most: LogLevel,
    engines: Option<File>,
    json: bool,
}

impl Log {
    /// Opens the engine's file alone: before the configuration is read, and when it cannot be.
    pub(super) fn of_engine(command: &Command) -> Log {
        let engines = command.log.as_deref().and_then(open);
        Log { own: None, most: LogLevel::Info, engines, json: command.json }
    }

    /// Opens our own file, too. Asking for the version makes no file.
    pub(super) fn open_own(&mut self, command: &Command, config: &Runtime) {
        self.most = if command.debug { LogLevel::Debug } else { config.log_level };
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
        let to_own = self.own.as_mut().filter(|_| level <= self.most);
        let to_engine = self.engines.as_mut().filter(|_| level <= LogLevel::Warning);
        if to_own.is_none() && to_engine.is_none() {
            return;
        }
        let message = printable(message);
        let time = humantime::format_rfc3339_seconds(SystemTime::now());
        let text = || format!("time=\"{time}\" level={word} msg={}\n", json!(message));
        let as_json = || format!("{}\n", json!({"level": word, "msg": message, "time": time.to_string()}));
        // One write each, at the file's end, so that lines of several containers do not mix.
        for (file, line) in [(to_own, text()), (to_engine, if self.json { as_json() } else { text() })] {
            let _ = file.map(|file| file.write_all(line.as_bytes()));
        }
    }
}

fn open(path: &Path) -> Option<File> {
    if path == Path::new("/dev/null") {
        return None;
    }
    // Never blocks on a pipe without an active reader; then nothing is logged.
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

    /// Every command of the runtime would wait, of every container of the host.
    #[test]
    fn log_pipe_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("log");
        crate::driver::fake::fifo(&pipe);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let command = Command { log: Some(pipe.clone()), ..Command::default() };
            let mut log = Log::of_engine(&command);
            log.error("there is no reader");
            let _reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
            let mut log = Log::of_engine(&command);
            // More than a pipe holds.
            (0..2000).for_each(|_| {
                log.error("the reader has stopped: more than sixty-four bytes of every line are waited for")
            });
            let _ = sender.send(());
        });
        receiver.recv_timeout(Duration::from_secs(20)).expect("it waited");
    }
}
