//! Reading the parts of a page so that no part can hold up the page.
//!
//! Owns the threads, the deadlines, the errors' counts, the ledger, and that scrapes at the same time share one reading. Knows
//! nothing of what a part reads.
//!
//! Each part has a thread of its own. One that does not answer in time (an NVML that waits in the kernel cannot be
//! interrupted) is left alone: the page goes out without that part, the error is counted, and the part is there again
//! once its thread answers. A second thread is never started, so a part that hangs costs one thread, not one a scrape.

use super::ledger::Ledger;
use super::page::{Facts, HostFacts, Reading, page};
use super::usage::{Label, Usage};
use hyper::body::Bytes;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Mutex, mpsc, oneshot};

/// Why a part is not on a page, in words for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It was read, and failed.
    #[error("{0}")]
    Failed(String),
    /// It did not answer in time.
    #[error("no answer within {} s; the driver may hang: look at `dmesg`", .0.as_secs_f64())]
    Slow(Duration),
    /// Its thread is still at an earlier question.
    #[error("still waiting for the answer to an earlier question; the driver may hang: look at `dmesg`")]
    Busy,
}

/// Reads a part. May block.
pub type Reader<T> = Box<dyn FnMut() -> Result<T, Trouble> + Send>;

/// Says what time it is.
pub type Clock = Box<dyn Fn() -> Instant + Send + Sync>;

/// Where the facts come from.
pub struct Sources {
    pub host: Reader<HostFacts>,
    pub usage: Reader<Usage>,
    /// When they were read, for the ledger.
    pub clock: Clock,
}

#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long a page waits for a part.
    pub part: Duration,
    /// For how long a page is given to others, too.
    pub fresh: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        // Prometheus gives up a scrape after 10 s unless told otherwise.
        Patience { part: Duration::from_secs(5), fresh: Duration::from_millis(250) }
    }
}

pub struct Exporter {
    parts: Arc<Parts>,
    fresh: Duration,
    last: Arc<Mutex<State>>,
}

/// What a page is made of.
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
    told: [Option<Trouble>; 2],
}

impl Exporter {
    /// Starts the parts' threads. `lives` says that this exporter outlives one page.
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

    /// A page that was read after this was called, or at most [`Patience::fresh`] before.
    pub async fn page(&self) -> Bytes {
        let arrived = Instant::now();
        // Who waits here while another reads shares what that one read.
        let mut state = self.last.clone().lock_owned().await;
        if let Some((read, page)) = &state.page
            && arrived.saturating_duration_since(*read) <= self.fresh
        {
            return page.clone();
        }
        // A task of its own: a client that goes away ends no reading: its answer would be lost, and so would the next scrape's time.
        let parts = self.parts.clone();
        let reading = tokio::spawn(async move { parts.page(&mut state).await });
        match reading.await {
            Ok(page) => page,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// What is wrong now, part by part.
    pub async fn troubles(&self) -> Vec<(&'static str, Trouble)> {
        let state = self.last.lock().await;
        let parts = [self.parts.host.name, self.parts.usage.name];
        parts.into_iter().zip(&state.told).filter_map(|(part, told)| told.clone().map(|told| (part, told))).collect()
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
        // Who writes one page has not seen any time go by.
        let ledger = self.started.and(usage.as_ref()).map(|_| &state.ledger);
        let facts = Facts { started: self.started, host: host.0.ok(), usage, ledger, readings };
        let page = Bytes::from(page(&facts, &self.labels));
        state.page = Some((Instant::now(), page.clone()));
        page
    }
}

impl State {
    /// Counts, and tells the log when something changes rather than at each scrape.
    fn note(&mut self, index: usize, part: &str, took: Duration, trouble: Option<&Trouble>) -> Reading {
        if self.told[index].as_ref() != trouble {
            match trouble {
                Some(trouble) => mpu_host::progress::say(format_args!("mpu: metrics: {part}: {trouble}")),
                None => mpu_host::progress::say(format_args!("mpu: metrics: {part}: is read again")),
            }
        }
        self.told[index] = trouble.cloned();
        self.errors[index] += u64::from(trouble.is_some());
        Reading { success: trouble.is_none(), took, errors: self.errors[index] }
    }
}

/// Who asks a part, and wants its answer.
type Question<T> = oneshot::Sender<Result<T, Trouble>>;

/// A part, read by a thread of its own.
struct Part<T> {
    name: &'static str,
    ask: mpsc::Sender<Question<T>>,
}

impl<T: Send + 'static> Part<T> {
    fn start(name: &'static str, mut reader: Reader<T>) -> io::Result<Part<T>> {
        let (ask, mut asked) = mpsc::channel::<Question<T>>(1);
        std::thread::Builder::new().name(format!("mpu-{name}")).spawn(move || {
            while let Some(answer) = asked.blocking_recv() {
                // Who asked may have gone while an earlier question was answered.
                if !answer.is_closed() {
                    let _ = answer.send(reader());
                }
            }
        })?;
        Ok(Part { name, ask })
    }

    async fn read(&self, limit: Duration) -> (Result<T, Trouble>, Duration) {
        let began = Instant::now();
        let (answer, answered) = oneshot::channel();
        let gone = || Trouble::Failed("its thread has ended".to_string());
        let mut waits = Trouble::Busy;
        let told = tokio::time::timeout(limit, async {
            self.ask.send(answer).await.map_err(|_| gone())?;
            waits = Trouble::Slow(limit);
            answered.await.map_err(|_| gone())?
        });
        let told = told.await.unwrap_or_else(|_| Err(waits));
        (told, began.elapsed())
    }
}
