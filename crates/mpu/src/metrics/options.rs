//! Options of `mpu metrics`.

use super::listen;
use super::usage::Label;
use clap::ValueHint;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `mpu metrics`.
#[derive(Debug, clap::Args)]
pub struct MetricsOptions {
    /// Where to listen: IP:PORT, unix:/PATH, or systemd for the sockets of a socket unit; may be given several times
    #[arg(long, value_name = "ADDRESS", default_value = listen::DEFAULT)]
    pub listen: Vec<listen::Address>,

    /// Write the page into this file instead of listening; its name must end in .prom for node_exporter to read it
    #[arg(long, value_name = "FILE.prom", value_hint = ValueHint::FilePath, conflicts_with = "listen")]
    pub textfile: Option<PathBuf>,

    /// How often to write the file
    #[arg(long, value_name = "SECONDS", default_value_t = 15, requires = "textfile", conflicts_with = "once")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub interval: u64,

    /// Write one page, into the file or to standard output, and end
    #[arg(long, conflicts_with = "listen")]
    pub once: bool,

    /// Also print this label; with pid and container_pid, each process becomes a series of its own
    #[arg(long, value_enum, value_name = "LABEL")]
    pub label: Vec<Label>,
}

/// What to do with pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputMode {
    Serve(Vec<listen::Address>),
    /// Write one into a file every so often.
    Write(PathBuf, Duration),
    /// Write one into a file.
    WriteOnce(PathBuf),
    Print,
}

impl MetricsOptions {
    /// What to do with pages.
    pub fn output_mode(&self) -> OutputMode {
        match (&self.textfile, self.once) {
            (Some(path), true) => OutputMode::WriteOnce(path.clone()),
            (Some(path), false) => OutputMode::Write(path.clone(), Duration::from_secs(self.interval)),
            (None, true) => OutputMode::Print,
            (None, false) => OutputMode::Serve(self.listen.clone()),
        }
    }
}
