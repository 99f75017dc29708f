//! `mpu top`: GPUs and their processes, live: a screen on a terminal ([`screen`]), plain text elsewhere ([`text`]).

pub mod app;
mod error;
mod options;
mod screen;
mod text;
pub mod view;

pub use error::TopError;
pub use options::TopOptions;

use crate::processes::{Depth, Monitor};
use mpu_host::exit::Exit;
use mpu_host::host::Host;
use mpu_host::progress::Progress;
use std::io::{self, IsTerminal};

/// Runs until the user quits. With `json` every reading is one line of JSON.
pub fn top(host: &Host, options: &TopOptions, json: bool) -> Result<Exit, TopError> {
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
        false => screen::run(host.clone(), monitor, options).map(|()| Exit::Ok),
    }
}
