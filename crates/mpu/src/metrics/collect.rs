//! Reads the parts of a page, each in a thread of its own and with a deadline, so that no part holds up the page.
//!
//! A part that does not answer in time (an NVML that waits in the kernel cannot be interrupted) is missing from the page, and
//! the error is counted. It returns once its thread answers. No second thread is started: a hanging part costs one thread,
//! not one per scrape. Concurrent scrapes share one reading.

use super::ledger::Ledger;
use super::page::{Facts, HostFacts, Reading, page};
use super::usage::{Label, Usage};
use hyper::body::Bytes;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, mpsc, oneshot};

/// Why a part is not on a page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The reading failed.
    #[error("{0}")]
    Failed(String),
    /// It did not answer in time.
    #[error("no answer within {} s; the driver may hang: look at `dmesg`", .0.as_secs_f64())]
    Slow(Duration),
    /// Its thread is still busy with an earlier reading.
    #[error("still waiting for the answer to an earlier question; the driver may hang: look at `dmesg`")]
    Busy,
}

/// Reads a part. May block.
pub type Reader<T> = Box<dyn FnMut() -> Result<T, Trouble> + Send>;

/// Says what time it is.
pub type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

/// The readers of the facts, and the clock.
pub struct Sources {
    pub host: Reader<HostFacts>,
    pub usage: Reader<Usage>,
    /// When they were read, for the ledger.
    pub clock: Clock,
}

#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long a page waits for one part.
    pub part: Duration,
    /// How long a page is reused for other scrapes.
    pub fresh: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        // Prometheus abandons a scrape after 10 s by default.
        Patience { part: Duration::from_secs(5), fresh: Duration::from_millis(250) }
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
    patience: Duration,
    started: Option<f64>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    page: Option<(Instant, Bytes)>,
    errors: [u64; 2],
    logged: [Option<Trouble>; 2],
}

impl Exporter {
    /// Starts the parts' threads. `lives` is true if this exporter outlives one page.
    pub fn start(sources: Sources, mut labels: Vec<Label>, patience: Patience, lives: bool) -> io::Result<Exporter> {
        labels.sort_unstable();
        labels.dedup();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64 / 1000.0;
        let parts = Parts {
            host: Part::start("engine", sources.host)?,
            usage: Part::start("gpu", sources.usage)?,
            clock: sources.clock,
            labels,
            patience: patience.part,
            started: lives.then_some(now),
        };
        Ok(Exporter { parts: Arc::new(parts), fresh: patience.fresh, last: Arc::default() })
    }

    /// A page that was read after the call, or at most [`Patience::fresh`] before.
    pub async fn page(&self) -> Bytes {
        let arrived = Instant::now();
        // A caller that waits here shares the reading of the one before it.
        let mut state = self.last.clone().lock_owned().await;
        if let Some((read, page)) = &state.page
            && arrived.saturating_duration_since(*read) <= self.fresh
        {
            return page.clone();
        }
        // A task of its own: the reading must survive a client that disconnects.
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
        let (host, usage) = tokio::join!(self.host.read(self.patience), self.usage.read(self.patience));
        let readings = vec![
            (self.host.name, state.note(0, self.host.name, host.1, host.0.as_ref().err())),
            (self.usage.name, state.note(1, self.usage.name, usage.1, usage.0.as_ref().err())),
        ];
        let mut usage = usage.0.ok();
        if let Some(usage) = &mut usage {
            usage.keep(&self.labels);
            state.ledger.book((self.clock)(), usage);
        }
        // A single page has no span of time to book.
        let ledger = self.started.and(usage.as_ref()).map(|_| &state.ledger);
        let facts = Facts { started: self.started, host: host.0.ok(), usage, ledger, readings };
        let page = Bytes::from(page(&facts, &self.labels));
        state.page = Some((Instant::now(), page.clone()));
        page
    }
}

impl State {
    /// Counts the outcome, and logs changes only.
    fn note(&mut self, index: usize, part: &str, took: Duration, trouble: Option<&Trouble>) -> Reading {
        if self.logged[index].as_ref() != trouble {
            match trouble {
                Some(trouble) => mpu_host::progress::print_line(format_args!("mpu: metrics: {part}: {trouble}")),
                None => mpu_host::progress::print_line(format_args!("mpu: metrics: {part}: readable again")),
            }
        }
        self.logged[index] = trouble.cloned();
        self.errors[index] += u64::from(trouble.is_some());
        Reading { success: trouble.is_none(), took, errors: self.errors[index] }
    }
}

/// Where the answer goes.
type Question<T> = oneshot::Sender<Result<T, Trouble>>;

/// A part, read by its own thread.
struct Part<T> {
    name: &'static str,
    requests: mpsc::Sender<Question<T>>,
}

impl<T: Send + 'static> Part<T> {
    fn start(name: &'static str, mut reader: Reader<T>) -> io::Result<Part<T>> {
        let (requests, mut received) = mpsc::channel::<Question<T>>(1);
        std::thread::Builder::new().name(format!("mpu-{name}")).spawn(move || {
            while let Some(answer) = received.blocking_recv() {
                // The client may have gone meanwhile.
                if !answer.is_closed() {
                    let _ = answer.send(reader());
                }
            }
        })?;
        Ok(Part { name, requests })
    }

    async fn read(&self, limit: Duration) -> (Result<T, Trouble>, Duration) {
        let began = Instant::now();
        let (answer, answered) = oneshot::channel();
        let gone = || Trouble::Failed("its thread has ended".to_string());
        let mut waits = Trouble::Busy;
        let reading = tokio::time::timeout(limit, async {
            self.requests.send(answer).await.map_err(|_| gone())?;
            waits = Trouble::Slow(limit);
            answered.await.map_err(|_| gone())?
        });
        let result = reading.await.unwrap_or_else(|_| Err(waits));
        (result, began.elapsed())
    }
}
