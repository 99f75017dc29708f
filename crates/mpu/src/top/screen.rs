//! The terminal: taken over at the start, given back at the end, whatever the end is.
//!
//! Owns three threads that wait: for keys, for signals, and for the next look. The main one draws when one of them has something, and sleeps
//! otherwise: nothing turns while nothing happens.

use super::app::{App, Step};
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

enum Happening {
    Look(Result<Snapshot, String>),
    Terminal(Event),
    Signal,
    Trouble(io::Error),
}

/// How often to look; none to wait until told again.
type Pace = Option<Duration>;

/// Shows it until the user, or a signal, ends it.
pub fn run(host: Host, monitor: Monitor, options: &TopOptions) -> Result<(), TopError> {
    let failed = |source| TopError::Terminal { source };
    let (tell, happenings) = mpsc::channel();
    let (pace, paces) = mpsc::channel();
    let mut app = App::new(options.columns.clone(), options.sort, options.filter.clone(), options.interval);
    watch_signals(tell.clone()).map_err(failed)?;
    // Sets a panic hook, too, that gives the terminal back before the message is printed.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    watch_keys(tell.clone());
    look_on(host, monitor, options.interval, paces, tell);
    let ended = show(&mut terminal, &mut app, &happenings, &pace);
    let restored = ratatui::try_restore();
    ended.and(restored).map_err(failed)
}

fn show(
    terminal: &mut DefaultTerminal,
    app: &mut App,
    happenings: &Receiver<Happening>,
    pace: &Sender<Pace>,
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| view::draw(frame, app))?;
        // All that has come meanwhile is one picture.
        let Ok(first) = happenings.recv() else { return Ok(()) };
        for happening in std::iter::once(first).chain(happenings.try_iter()) {
            let step = match happening {
                Happening::Look(look) => {
                    // One that was under way when the user paused is not to change the picture.
                    if !app.paused {
                        app.look(look);
                    }
                    Step::Stay
                }
                Happening::Terminal(Event::Key(key)) => app.key(key),
                Happening::Terminal(_) => Step::Stay,
                Happening::Signal => Step::Quit,
                Happening::Trouble(error) => return Err(error),
            };
            match step {
                Step::Stay => {}
                Step::Quit => return Ok(()),
                Step::Pace => {
                    let _ = pace.send((!app.paused).then_some(app.interval));
                }
            }
        }
    }
}

/// Looks at once and then every interval. A look takes some milliseconds, on a GPU that sleeps some seconds: keys do not wait for it.
fn look_on(host: Host, mut monitor: Monitor, interval: Duration, paces: Receiver<Pace>, tell: Sender<Happening>) {
    thread::spawn(move || {
        let mut pace = Some(interval);
        loop {
            let began = Instant::now();
            if pace.is_some() {
                let look = monitor.snapshot(&host).map_err(|error| error.to_string());
                if tell.send(Happening::Look(look)).is_err() {
                    return;
                }
            }
            let changed = match pace {
                Some(interval) => paces.recv_timeout(interval.saturating_sub(began.elapsed())),
                None => paces.recv().map_err(RecvTimeoutError::from),
            };
            match changed {
                Ok(asked) => pace = asked,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}

fn watch_keys(tell: Sender<Happening>) {
    thread::spawn(move || {
        loop {
            let happening = event::read().map_or_else(Happening::Trouble, Happening::Terminal);
            let last = matches!(happening, Happening::Trouble(_));
            if tell.send(happening).is_err() || last {
                return;
            }
        }
    });
}

fn watch_signals(tell: Sender<Happening>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGHUP, SIGINT])?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if tell.send(Happening::Signal).is_err() {
                return;
            }
        }
    });
    Ok(())
}
