//! The terminal screen: set up at the start, restored at any end.
//!
//! Three threads wait for keys, for signals and for the next reading. The main thread draws after each of these inputs.

use super::app::{App, KeyEffect};
use super::error::TopError;
use super::options::TopOptions;
use super::view;
use crate::processes::{Monitor, Snapshot};
use mpu_host::host::Host;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

enum Input {
    Reading(Result<Snapshot, String>),
    Terminal(Event),
    Signal,
    Failed(io::Error),
}

/// The interval; none while paused.
type Pace = Option<Duration>;

/// Runs until the user or a signal ends it.
pub fn run(host: Host, monitor: Monitor, options: &TopOptions) -> Result<(), TopError> {
    let failed = |source| TopError::Terminal { source };
    let (inputs, received) = mpsc::channel();
    let (pace, pace_changes) = mpsc::channel();
    let mut app = App::new(options.columns.clone(), options.sort, options.filter.clone(), options.interval);
    watch_signals(inputs.clone()).map_err(failed)?;
    // Also sets a panic hook that restores the terminal before the message is printed.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    watch_keys(inputs.clone());
    read_repeatedly(host, monitor, options.interval, pace_changes, inputs);
    let ended = run_loop(&mut terminal, &mut app, &received, &pace);
    let restored = ratatui::try_restore();
    ended.and(restored).map_err(failed)
}

fn run_loop(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    received: &Receiver<Input>,
    pace: &Sender<Pace>,
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| view::draw(frame, app))?;
        // Draw once for all pending inputs.
        let Ok(first) = received.recv() else { return Ok(()) };
        for input in std::iter::once(first).chain(received.try_iter()) {
            let step = match input {
                Input::Reading(reading) => {
                    // Ignore a reading that was running when the user paused.
                    if !app.paused {
                        app.update(reading);
                    }
                    KeyEffect::Stay
                }
                Input::Terminal(Event::Key(key)) => app.handle_key(key),
                Input::Terminal(_) => KeyEffect::Stay,
                Input::Signal => KeyEffect::Quit,
                Input::Failed(error) => return Err(error),
            };
            match step {
                KeyEffect::Stay => {}
                KeyEffect::Quit => return Ok(()),
                KeyEffect::Pace => {
                    let _ = pace.send((!app.paused).then_some(app.interval));
                }
            }
        }
    }
}

/// Reads now and at every interval, in its own thread: a reading takes milliseconds, but seconds on a sleeping GPU, and
/// keys must not wait for it.
fn read_repeatedly(
    host: Host,
    mut monitor: Monitor,
    interval: Duration,
    pace_changes: Receiver<Pace>,
    inputs: Sender<Input>,
) {
    thread::spawn(move || {
        let mut pace = Some(interval);
        loop {
            let began = Instant::now();
            if pace.is_some() {
                let reading = monitor.snapshot(&host).map_err(|error| error.to_string());
                if inputs.send(Input::Reading(reading)).is_err() {
                    return;
                }
            }
            let changed = match pace {
                Some(interval) => pace_changes.recv_timeout(interval.saturating_sub(began.elapsed())),
                None => pace_changes.recv().map_err(RecvTimeoutError::from),
            };
            match changed {
                Ok(new_pace) => pace = new_pace,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}

fn watch_keys(inputs: Sender<Input>) {
    thread::spawn(move || {
        loop {
            let input = event::read().map_or_else(Input::Failed, Input::Terminal);
            let last = matches!(input, Input::Failed(_));
            if inputs.send(input).is_err() || last {
                return;
            }
        }
    });
}

fn watch_signals(inputs: Sender<Input>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if inputs.send(Input::Signal).is_err() {
                return;
            }
        }
    });
    Ok(())
}
