//! Reads the parts of a page, each in its own thread and with a deadline, so that no part delays the page.
//!
//! If a part times out, it is missing from the page and the error is counted. NVML may hang in the kernel, where
//! nothing can interrupt it. The part returns once its thread answers. No second thread is started, so a hanging part
//! costs one thread, not one per scrape. Concurrent scrapes share one reading.

use super::ledger::Ledger;
use super::page::{Facts, HostFacts, Reading, page};
use super::usage::{Label, Usage};
use hyper::body::Bytes;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, mpsc, oneshot};

/// Why a part is missing from a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The reading failed.
    #[error("{0}")]
    Failed(String),
    /// The reading took too long.
    #[error("no answer within {} s; the driver may hang: look at `dmesg`", .0.as_secs_f64())]
    Slow(Duration),
    /// The thread is still busy with an earlier reading.
    #[error("still waiting for the answer to an earlier question; the driver may hang: look at `dmesg`")]
    Busy,
}

/// Reads a part. May block.
pub type Reader<T> = Box<dyn FnMut() -> Result<T, ReadError> + Send>;

/// Returns the current time.
pub type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

/// The readers of the facts, and the clock.
pub struct Sources {
    pub host: Reader<HostFacts>,
    pub usage: Reader<Usage>,
    /// For the ledger.
    pub clock: Clock,
}

#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// How long a page waits for one part.
    pub part: Duration,
    /// How long a page is reused for other scrapes.
    pub fresh: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        // Prometheus abandons a scrape after 10 s by default.
        Timeouts { part: Duration::from_secs(5), fresh: Duration::from_millis(250) }
    }
}

pub struct Exporter {
    parts: Arc<Parts>,
    fresh: Duration,
    last: Arc<Mutex<State>>,
}

/// The parts of a page.
struct Parts {
    host: Part<HostFacts>,
    usage: Part<Usage>,
    clock: Clock,
    labels: Vec<Label>,
    timeout: Duration,
    started: Option<f64>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    page: Option<(Instant, Bytes)>,
    errors: [u64; 2],
    logged: [Option<ReadError>; 2],
}

impl Exporter {
    /// Starts a thread for each part. `is_long_running` is false for an exporter of a single page.
    pub fn start(
        sources: Sources,
        mut labels: Vec<Label>,
        timeouts: Timeouts,
        is_long_running: bool,
    ) -> io::Result<Exporter> {
        labels.sort_unstable();
        labels.dedup();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1000.0;
        let parts = Parts {
            host: Part::start("engine", sources.host)?,
            usage: Part::start("gpu", sources.usage)?,
            clock: sources.clock,
            labels,
            timeout: timeouts.part,
            started: is_long_running.then_some(now),
        };
        Ok(Exporter { parts: Arc::new(parts), fresh: timeouts.fresh, last: Arc::default() })
    }

    /// A page that was read after the call, or at most [`Timeouts::fresh`] before it.
    pub async fn page(&self) -> Bytes {
        let arrived = Instant::now();
        // Callers that wait here share one reading.
        let mut state = self.last.clone().lock_owned().await;
        if let Some((read, page)) = &state.page
            && arrived.saturating_duration_since(*read) <= self.fresh
        {
            return page.clone();
        }
        // A separate task, because the reading must finish if the client disconnects.
        let parts = self.parts.clone();
        let reading = tokio::spawn(async move { parts.page(&mut state).await });
        match reading.await {
            Ok(page) => page,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

impl Parts {
    async fn page(&self, state: &mut State) -> Bytes {
        let (host, usage) = tokio::join!(self.host.read(self.timeout), self.usage.read(self.timeout));
        let readings = vec![
            (self.host.name, state.record(0, self.host.name, host.1, host.0.as_ref().err())),
            (self.usage.name, state.record(1, self.usage.name, usage.1, usage.0.as_ref().err())),
        ];
        let mut usage = usage.0.ok();
        if let Some(usage) = &mut usage {
            usage.clear_unrequested(&self.labels);
            state.ledger.book((self.clock)(), usage);
        }
        // A single page covers no time.
        let ledger = self.started.and(usage.as_ref()).map(|_| &state.ledger);
        let facts = Facts { started: self.started, host: host.0.ok(), usage, ledger, readings };
        let page = Bytes::from(page(&facts, &self.labels));
        state.page = Some((Instant::now(), page.clone()));
        page
    }
}

impl State {
    /// Counts the outcome, and logs changes only.
    fn record(&mut self, index: usize, part: &str, took: Duration, error: Option<&ReadError>) -> Reading {
        if self.logged[index].as_ref() != error {
            match error {
                Some(error) => mpu_host::progress::print_line(format_args!("mpu: metrics: {part}: {error}")),
                None => mpu_host::progress::print_line(format_args!("mpu: metrics: {part}: readable again")),
            }
        }
        self.logged[index] = error.cloned();
        self.errors[index] += u64::from(error.is_some());
        Reading { success: error.is_none(), took, errors: self.errors[index] }
    }
}

/// The channel for a part's answer.
type Reply<T> = oneshot::Sender<Result<T, ReadError>>;

/// A part, read by its own thread.
struct Part<T> {
    name: &'static str,
    requests: mpsc::Sender<Reply<T>>,
}

impl<T: Send + 'static> Part<T> {
    fn start(name: &'static str, mut reader: Reader<T>) -> io::Result<Part<T>> {
        let (requests, mut received) = mpsc::channel::<Reply<T>>(1);
        std::thread::Builder::new().name(format!("mpu-{name}")).spawn(move || {
            while let Some(answer) = received.blocking_recv() {
                // The caller may have timed out.
                if !answer.is_closed() {
                    let _ = answer.send(reader());
                }
            }
        })?;
        Ok(Part { name, requests })
    }

    async fn read(&self, limit: Duration) -> (Result<T, ReadError>, Duration) {
        let began = Instant::now();
        let (answer, answered) = oneshot::channel();
        let thread_ended = || ReadError::Failed("its thread has ended".to_string());
        let mut timeout_error = ReadError::Busy;
        let reading = tokio::time::timeout(limit, async {
            self.requests.send(answer).await.map_err(|_| thread_ended())?;
            timeout_error = ReadError::Slow(limit);
            answered.await.map_err(|_| thread_ended())?
        });
        let result = reading.await.unwrap_or_else(|_| Err(timeout_error));
        (result, began.elapsed())
    }
}
