//! `mpu nri`: a plugin for container engines by the Node Resource Interface (NRI). It gives containers the notify
//! engine's listener without a runtime wrapper or a RuntimeClass.
//!
//! `mpu_seccomp` decides which container gets a listener, as for the wrapper. In doubt a container does not change, and
//! no container ever fails. No crate implements NRI: `ttrpc` serves listening sockets, but NRI has two streams on one
//! connection. So `mux` handles the frames, and `prost` decodes the messages.

mod container;
mod engines;
mod error;
mod mux;
pub mod presence;
mod proto;
mod session;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueHint;
use clap::builder::PossibleValuesParser;
use mpu_host::explain::chain;
use mpu_seccomp::{Notify, NotifyPolicy, SOCKET};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use error::NriError;
use mux::Mux;
use presence::{Presence, Standing};
use session::Session;

/// The plugin's name.
pub const NAME: &str = "mpu";

/// Options of `mpu nri`.
#[derive(Debug, Clone, clap::Args)]
pub struct NriOptions {
    /// The container engine's socket for plugins
    #[arg(long, value_name = "PATH", default_value = "/var/run/nri/nri.sock", value_hint = ValueHint::FilePath)]
    pub socket: PathBuf,

    /// The plugin's place among others: engines ask plugins in ascending order
    #[arg(long, value_name = "NN", default_value = "90", value_parser = index)]
    pub index: String,

    /// Which containers with a GPU get the listener: all but those with MPU_NOTIFY=off in their environment (on), those with
    /// MPU_NOTIFY=on (opt-in), or all (always)
    #[arg(long, default_value = "on", value_parser = PossibleValuesParser::new(["on", "opt-in", "always"]))]
    pub policy: String,

    /// The socket where the notify engine accepts containers
    #[arg(long, value_name = "PATH", default_value = SOCKET, value_hint = ValueHint::FilePath)]
    pub listener: PathBuf,

    /// Where it leaves word for `mpu status`
    #[arg(long, value_name = "DIR", default_value = presence::FOLDER, hide = true)]
    pub presence: PathBuf,
}

/// Two digits, as engines require.
fn index(text: &str) -> Result<String, String> {
    match text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(text.into()),
        false => Err("two digits are wanted, from 00 to 99".into()),
    }
}

/// The pause until the first retry. It is short, because a container that starts meanwhile runs without MPU.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest pause, after several failed connections.
const MAX_RETRY: Duration = Duration::from_secs(30);

/// Serves the container engine, reconnecting as needed, until `stop` is readable.
pub fn run(options: &NriOptions, stop: BorrowedFd<'_>, log: &dyn Fn(&str)) -> Result<(), NriError> {
    let policy = NotifyPolicy::ALL.into_iter().find(|(word, _)| *word == options.policy);
    let notify =
        Notify { policy: policy.map_or(NotifyPolicy::On, |(_, policy)| policy), socket: options.listener.clone() };
    let (mut pause, mut logged) = (FIRST_RETRY, String::new());
    let mut presence = Presence::new(&options.presence, &options.socket, log);
    loop {
        // No timeout: waiting for a hung engine would also delay `stop`.
        match mpu_os::socket::connect(&options.socket, Duration::ZERO) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(NriError::Forbidden(options.socket.clone(), error));
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(NriError::NoPath(error));
            }
            Err(error) => {
                // Log a repeated reason once.
                let line = format!("waiting for a container engine at {}: {error}", options.socket.display());
                if line != logged {
                    log(&line);
                    presence.publish(Standing::Waits, &line);
                    logged = line;
                }
                pause = FIRST_RETRY;
            }
            Ok(socket) => {
                let begun = Mux::new(socket, stop).map_err(error::SessionError::from);
                let ended = begun.and_then(|mux| {
                    let (index, presence) = (options.index.as_str(), &mut presence);
                    let mut session = Session { mux, index, notify: &notify, log, presence, engine: None };
                    let ended = session.serve();
                    pause = if session.engine.is_some() { FIRST_RETRY } else { (pause * 2).min(MAX_RETRY) };
                    ended
                });
                match ended {
                    Ok(()) => return Ok(()),
                    Err(why) => {
                        let line =
                            format!("{}; trying again: containers made meanwhile start without MPU", chain(&why));
                        log(&line);
                        presence.publish(Standing::Waits, &line);
                    }
                }
                logged.clear();
            }
        }
        if wait_for_stop(stop, pause) {
            return Ok(());
        }
    }
}

/// Whether `stop` becomes readable within this time.
fn wait_for_stop(stop: BorrowedFd<'_>, time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs().try_into().unwrap_or(1), tv_nsec: time.subsec_nanos().into() };
    let mut on = [PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    // Another signal only shortens the pause.
    poll(&mut on, Some(&time)).is_ok_and(|ready| ready > 0)
}

/// Serves until SIGTERM or SIGINT.
pub fn run_until_signal(options: &NriOptions, log: &dyn Fn(&str)) -> Result<(), NriError> {
    let (write_end, stop) = UnixStream::pair().map_err(NriError::Signals)?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let write_end = write_end.try_clone().map_err(NriError::Signals)?;
        signal_hook::low_level::pipe::register(signal, write_end).map_err(NriError::Signals)?;
    }
    run(options, stop.as_fd(), log)
}
