//! `mpu top`: GPUs and their processes, live.
//!
//! Owns the way there: a screen on a terminal ([`screen`]), plain text elsewhere ([`text`]). What is shown is [`app`]'s and how is
//! [`view`]'s, neither of which knows a terminal; the processes come from `crate::processes`, the columns from `crate::listing`.

pub mod app;
mod error;
mod options;
mod screen;
mod text;
pub mod view;

pub use error::TopError;
pub use options::TopOptions;

use crate::processes::{Depth, Monitor};
use mpu_host::host::Host;
use mpu_host::progress::Progress;
use std::io::{self, IsTerminal};

/// Shows it until the user has seen enough. With `json` every look is one line of JSON.
pub fn top(host: &Host, options: &TopOptions, json: bool) -> Result<(), TopError> {
    let plain = options.once || options.batch;
    if !plain && !io::stdout().is_terminal() {
        return Err(TopError::NotATerminal);
    }
    let monitor = {
        let _progress = Progress::of("asking the driver");
        Monitor::open(host, Depth::Everything)?
    };
    match plain {
        true => text::print(host, monitor, options, json),
        false => screen::run(host.clone(), monitor, options),
    }
}
