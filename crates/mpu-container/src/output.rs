//! What a program says and prints, where the reader may have gone.
//!
//! The usual macros panic then: half of what was begun would be left.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Says a line on standard error. Whether there is a reader changes nothing.
pub fn say(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints what a program was asked for, and nothing else: its version, its help. How the program ends.
pub fn page(program: &str, text: &str) -> ExitCode {
    match print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("{program}: cannot write standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}
