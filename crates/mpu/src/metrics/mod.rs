//! `mpu metrics`: counters of MPU and the use of GPUs, for Prometheus: over HTTP, or as a file for node_exporter.
//!
//! Labels name GPUs, containers, pods and runtimes, no person and no command; PIDs only on request.

pub mod collect;
mod error;
pub mod families;
pub mod ledger;
pub mod listen;
mod options;
pub mod page;
pub mod serve;
pub mod source;
pub mod text;
pub mod textfile;
pub mod usage;

pub use error::MetricsError;
pub use options::{MetricsOptions, OutputMode};

use collect::{Exporter, Sources, Timeouts};
use hyper::body::Bytes;
use mpu_host::Host;
use mpu_host::explain::{Explain, chain};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Runs until SIGTERM, SIGINT or SIGHUP, or writes one page. Returns the page if it is to be printed. `on_listening` gets the
/// addresses once the sockets are open.
pub fn run(
    sources: Sources,
    labels: Vec<usage::Label>,
    timeouts: Timeouts,
    output_mode: &OutputMode,
    on_listening: impl FnOnce(&[String]),
) -> Result<Option<Bytes>, MetricsError> {
    let setup = |source| MetricsError::Setup { source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(setup)?;
    let is_long_running = matches!(output_mode, OutputMode::Serve(_) | OutputMode::Write(..));
    let exporter = Arc::new(Exporter::start(sources, labels, timeouts, is_long_running).map_err(setup)?);
    let done = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(setup)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(setup)?;
        let mut hangup = match ignores_hangup() {
            true => None,
            false => Some(signal(SignalKind::hangup()).map_err(setup)?),
        };
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                Some(()) = async { hangup.as_mut()?.recv().await } => {}
            }
        };
        match output_mode {
            OutputMode::Serve(addresses) => {
                let mut sockets = Vec::new();
                for address in addresses {
                    sockets.extend(listen::open(address)?);
                }
                on_listening(&sockets.iter().map(listen::Socket::address).collect::<Vec<_>>());
                serve::serve(sockets, exporter, serve::Limits::default(), stop).await?;
                Ok(None)
            }
            OutputMode::Write(path, interval) => write_until(&exporter, path, *interval, stop).await.map(|()| None),
            OutputMode::WriteOnce(path) => {
                textfile::write(path, &exporter.page().await)?;
                Ok(None)
            }
            OutputMode::Print => Ok(Some(exporter.page().await)),
        }
    });
    // Do not wait for a thread that hangs in the driver.
    runtime.shutdown_background();
    done
}

/// Whether this process was started with SIGHUP ignored, as nohup(1) does.
fn ignores_hangup() -> bool {
    let status = Host::this().text("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    // Bit 0 is signal 1.
    ignored.is_some_and(|signals| signals & 1 == 1)
}

/// Writes the file until a signal arrives, then removes it, because stale values would stay forever.
async fn write_until(
    exporter: &Exporter,
    path: &Path,
    interval: Duration,
    stop: impl std::future::Future<Output = ()>,
) -> Result<(), MetricsError> {
    // A first failure is fatal: the path is wrong. Later ones may pass, for example a full disk.
    let mut written = textfile::write(path, &exporter.page().await)?;
    let mut failing = false;
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = tick.tick() => {}
        }
        match textfile::write(path, &exporter.page().await) {
            Ok(now) => (written, failing) = (now, false),
            Err(error) if !failing => {
                failing = true;
                mpu_host::progress::print_line(format_args!("mpu: metrics: {}; fix: {}", chain(&error), error.fix()));
            }
            Err(_) => {}
        }
    }
    written.remove(path);
    Ok(())
}
