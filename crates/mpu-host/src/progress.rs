//! Prints progress of a long step on standard error: nothing for two seconds; then a terminal gets one line that counts the seconds, and a
//! log gets a line at once and one every 15 seconds.

use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Prints one line on standard error. A closed pipe is no error.
pub fn print_line(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether this stream is a terminal that understands escape sequences.
pub fn takes_escapes(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Delay before the first line.
const DELAY: Duration = Duration::from_secs(2);

/// A running step; it ends when this is dropped.
pub struct Progress {
    done: Option<Sender<()>>,
    watcher: Option<JoinHandle<()>>,
}

impl Progress {
    pub fn of(step: impl Into<String>) -> Progress {
        let (done, wait) = mpsc::channel::<()>();
        let step = step.into();
        let watcher = thread::spawn(move || {
            let began = Instant::now();
            let on_terminal = takes_escapes(&std::io::stderr());
            let mut pause = DELAY;
            let mut printed = false;
            while wait.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                printed = true;
                let line = line(&step, began.elapsed(), on_terminal);
                let _ = write!(std::io::stderr(), "{line}");
                pause = if on_terminal { Duration::from_secs(1) } else { Duration::from_secs(15) };
            }
            if printed && on_terminal {
                let _ = write!(std::io::stderr(), "\r\x1b[K");
            }
        });
        Progress { done: Some(done), watcher: Some(watcher) }
    }
}

fn line(step: &str, elapsed: Duration, on_terminal: bool) -> String {
    match on_terminal {
        true => format!("\r\x1b[K{step} … {} s", elapsed.as_secs()),
        false => format!("mpu: {step} … {} s\n", elapsed.as_secs()),
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done = None; // hangs up, which wakes the watcher
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_gets_whole_lines_and_terminal_one_line() {
        assert_eq!(line("building", Duration::from_secs(3), false), "mpu: building … 3 s\n");
        assert!(!line("building", Duration::from_secs(3), true).contains('\n'));
    }

    #[test]
    fn quick_step_does_not_wait_for_its_watcher() {
        let began = Instant::now();
        drop(Progress::of("nothing"));
        assert!(began.elapsed() < DELAY);
    }
}
