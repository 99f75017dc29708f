//! Output that does not panic if the reader has closed the pipe. The standard macros would panic and leave work unfinished.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Writes a line to standard error. Ignores errors.
pub fn eprint_line(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints a version or help to standard output. Returns the exit code.
pub fn print_page(program: &str, text: &str) -> ExitCode {
    match print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint_line(format!("{program}: cannot write standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}
