//! `mpu top`: GPUs and their processes, live.
//!
//! Owns the way there: a screen on a terminal ([`screen`]), plain text elsewhere ([`text`]). What is shown is [`app`]'s and how is
//! [`view`]'s, neither of which knows a terminal; the processes come from `crate::processes`, the columns from `mpu ps`.

pub mod app;
mod screen;
mod text;
pub mod view;

use crate::commands::ps::columns::{Column, Sort};
use crate::commands::ps::filter::Filter;
use crate::error::Error;
use crate::exit::Exit;
use crate::explain::Explain;
use crate::host::Host;
use crate::processes::Monitor;
use crate::progress::Progress;
use std::io::{self, IsTerminal};
use std::time::Duration;

/// Options of `mpu top`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Seconds between two readings
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,

    /// Print one reading as plain text, and end
    #[arg(long, conflicts_with = "batch")]
    pub once: bool,

    /// Print every reading as plain text, one below the other
    #[arg(short, long)]
    pub batch: bool,

    /// End after this number of readings
    #[arg(short = 'n', long, value_name = "COUNT", requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Show these columns, in this order
    #[arg(short = 'o', long, value_enum, value_delimiter = ',', value_name = "COLUMN,…")]
    pub columns: Vec<Column>,

    /// Sort by this column; a dash before it reverses the order
    #[arg(short, long, value_name = "COLUMN", default_value = "-util", allow_hyphen_values = true)]
    pub sort: Sort,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub filter: Filter,
}

/// From a tenth of a second, below which utilisation says nothing new, to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_string())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("seconds are to be from 0.1 to 3600".to_string()),
    }
}

/// Why there is no screen.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it, and the fields are what they name
pub enum TopError {
    #[error("standard output is not a terminal")]
    NotATerminal,
    #[error("the terminal cannot be used")]
    Terminal { source: io::Error },
    #[error("cannot write the list")]
    Output { source: io::Error },
}

impl Explain for TopError {
    fn code(&self) -> &'static str {
        match self {
            TopError::NotATerminal => "not_a_terminal",
            TopError::Terminal { .. } => "terminal_failed",
            TopError::Output { .. } => "output_failed",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            TopError::NotATerminal => Exit::Usage,
            TopError::Terminal { .. } | TopError::Output { .. } => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            TopError::NotATerminal => "use `mpu ps`, or `mpu top --once` or `--batch`, for plain text",
            TopError::Terminal { .. } => "check that $TERM names this terminal, or use `mpu ps`",
            TopError::Output { .. } => "check whether the disk is full",
        }
        .to_string()
    }
}

/// Shows it until the user has seen enough. With `json` every look is one line of JSON.
pub fn top(host: &Host, options: &Options, json: bool) -> Result<(), Error> {
    let plain = options.once || options.batch;
    if !plain && !io::stdout().is_terminal() {
        return Err(TopError::NotATerminal.into());
    }
    let monitor = {
        let _progress = Progress::of("asking the driver");
        Monitor::open(host)?
    };
    match plain {
        true => text::print(host, monitor, options, json),
        false => screen::run(host.clone(), monitor, options),
    }
}
