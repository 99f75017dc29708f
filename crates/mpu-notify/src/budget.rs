//! The supervisor's own processor time: whose calls it went to, and how much of it one container may have.
//!
//! Owns one account for each container. The threads that answer for a container answer for no other, so the kernel's clock of each
//! thread is the measure, and a thread that takes no call spends nothing. A thread that finds its container beyond the budget pauses with the call in
//! its hand; no other container's thread knows of it.
//!
//! Owns, too, what a page costs that a caller's program had never touched: the kernel makes it for us, and charges the tables for it (and a huge
//! page) to our control group instead of the container's. Each is paid for like so much time, so that no container gets
//! much of that.
//!
//! Outside truth: getrusage(2) (`RUSAGE_THREAD`: faults count for the thread that touches, also in another's memory); clock_gettime(2), and for
//! the clock of a thread include/linux/posix-timers_types.h (`CPUCLOCK_PERTHREAD_MASK`).

use crate::kernel::Tid;
use crate::sys;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Over so long the budget is averaged: so much of it can be had at once.
const WINDOW: u64 = 1_000_000_000;
/// What a fault costs: of a budget of 100 percent, 64 pages come to a second.
const FAULT: Duration = Duration::from_micros(15_625);
/// Of so many calls one is looked at whatever the clock says: in one of its ticks a quick processor passes on hundreds, each of which may have
/// brought a page.
const CALLS: u32 = 16;
/// A thread that pauses looks so often whether it has another budget.
const LOOK: Duration = Duration::from_millis(100);

/// What one container has had.
#[derive(Debug, Default)]
pub(crate) struct Account {
    spent: Mutex<Spent>,
    level: Mutex<Level>,
    paused: AtomicU64,
}

#[derive(Debug, Default)]
struct Spent {
    /// By threads that have ended.
    before: Duration,
    threads: Vec<Tid>,
}

impl Account {
    /// Processor time of all its threads, up to now.
    pub(crate) fn spent(&self) -> Duration {
        let spent = lock(&self.spent);
        // A thread in the list cannot end before the lock is let go, so no number is another's.
        spent.before + spent.threads.iter().filter_map(|tid| sys::thread_time(*tid).ok()).sum::<Duration>()
    }

    /// How long its threads paused, added up.
    pub(crate) fn paused(&self) -> Duration {
        Duration::from_nanos(self.paused.load(Relaxed))
    }
}

/// One thread's side of an account.
pub(crate) struct Worker {
    account: Arc<Account>,
    tid: Tid,
    charged: Duration,
    /// Our own faults that are none of the container's, or are counted.
    faults: u64,
    /// Pages that were brought in and are to be paid for.
    pages: u64,
    looked: Timespec,
    calls: u32,
    percent: u32,
}

impl Worker {
    /// Of this thread, which must drop it.
    pub(crate) fn of_this_thread(account: Arc<Account>) -> Worker {
        let tid = Tid::of_this_thread();
        lock(&account.spent).threads.push(tid);
        let looked = Timespec { tv_sec: 0, tv_nsec: 0 };
        Worker { account, tid, charged: own_time(), faults: sys::own_faults(), pages: 0, looked, calls: 0, percent: 0 }
    }

    /// Comes back once the container is within its budget: so many percent of one processor; 0 is no limit. Or once there is no caller whose calls
    /// are held back: what was spent stays to be paid for.
    ///
    /// The coarse clock is a read of memory. Once in each of its ticks, or in [`CALLS`] calls, the thread's own is asked: so a call costs next to
    /// nothing.
    pub(crate) fn keep_within(&mut self, percent: &AtomicU32, is_needed: impl Fn() -> bool) {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        self.calls += 1;
        if now == self.looked && self.calls < CALLS {
            return;
        }
        (self.looked, self.calls) = (now, 0);
        let mut more = self.more();
        loop {
            let began = Instant::now();
            self.percent = percent.load(Relaxed);
            let wait = lock(&self.account.level).charge(more, self.percent);
            if wait.is_zero() || !is_needed() {
                return;
            }
            more = Duration::ZERO;
            std::thread::sleep(wait.min(LOOK));
            self.account.paused.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// What came to be paid for since this was asked last.
    fn more(&mut self) -> Duration {
        self.before_translating();
        let spent = own_time();
        let price = FAULT.saturating_mul(u32::try_from(std::mem::take(&mut self.pages)).unwrap_or(u32::MAX));
        let more = spent.saturating_sub(self.charged).saturating_add(price);
        self.charged = spent;
        more
    }

    /// While calls are passed on, this thread touches nothing new but what callers point at.
    pub(crate) fn before_translating(&mut self) {
        let faults = sys::own_faults();
        self.pages = self.pages.saturating_add(faults.saturating_sub(self.faults));
        self.faults = faults;
    }

    /// A translation needs memory of our own, too: `brought` of its faults are the container's.
    pub(crate) fn after_translating(&mut self, brought: u64) {
        self.pages = self.pages.saturating_add(brought);
        self.faults = sys::own_faults();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The last call is behind the last look at the budget.
        if self.percent != 0 {
            let more = self.more();
            lock(&self.account.level).charge(more, self.percent);
        }
        let mut spent = lock(&self.account.spent);
        spent.threads.retain(|tid| *tid != self.tid);
        spent.before += own_time();
    }
}

/// Processor time of this thread.
pub(crate) fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What was had and is not yet paid for by the passing of time, in nanoseconds.
#[derive(Debug, Default)]
struct Level {
    had: u64,
    at: Option<Instant>,
}

impl Level {
    /// Adds some; how long to wait until all is within the budget.
    fn charge(&mut self, more: Duration, percent: u32) -> Duration {
        self.charge_at(more, Instant::now(), percent)
    }

    fn charge_at(&mut self, more: Duration, now: Instant, percent: u32) -> Duration {
        let Some(budget) = std::num::NonZeroU64::new(percent.into()) else {
            *self = Level::default();
            return Duration::ZERO;
        };
        let passed = now.saturating_duration_since(self.at.unwrap_or(now)).as_nanos() as u64;
        self.at = Some(now);
        self.had = self.had.saturating_sub(passed.saturating_mul(budget.get()) / 100);
        self.had = self.had.saturating_add(more.as_nanos() as u64);
        let beyond = self.had.saturating_sub(WINDOW.saturating_mul(budget.get()) / 100);
        Duration::from_nanos(beyond.saturating_mul(100) / budget)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn burn(time: Duration) {
        let end = own_time() + time;
        while own_time() < end {}
    }

    #[test]
    fn charge_beyond_budget_returns_wait() {
        let (mut level, began) = (Level::default(), Instant::now());
        let mut charge = |millis: u64, at: u64, percent| {
            level.charge_at(Duration::from_millis(millis), began + Duration::from_millis(at), percent).as_millis()
        };
        assert_eq!(charge(1000, 0, 100), 0, "a second of one processor can be had at once");
        assert_eq!(charge(100, 0, 100), 100);
        assert_eq!(charge(0, 100, 100), 0);
        assert_eq!(charge(900, 1100, 100), 0, "that has been paid for meanwhile, or nearly");
        assert_eq!(charge(1900, 1100, 200), 800 / 2, "of two processors twice as much");
        assert_eq!(charge(5, 1100, 0), 0, "no limit");
        assert_eq!(charge(60, 1100, 5), 200, "a twentieth: 50 at once");
    }

    #[test]
    fn only_callers_page_faults_are_charged() {
        let mut worker = Worker::of_this_thread(Arc::default());
        worker.before_translating();
        worker.pages = 0;
        let own = vec![1u8; 8 << 20];
        worker.after_translating(3);
        assert_eq!((worker.pages, own[1 << 20]), (3, 1));
        let asked = vec![1u8; 8 << 20];
        worker.before_translating();
        assert!(worker.pages > 3 && asked[1 << 20] == 1, "what is touched while calls are passed on is theirs");
        let price = FAULT * u32::try_from(worker.pages).expect("not so many");
        assert!(worker.more() >= price && worker.pages == 0);
    }

    #[test]
    fn two_processors_worth_of_calls_come_to_budget() {
        let (mut level, began) = (Level::default(), Instant::now());
        // Two threads that rest only when the budget makes them, for ten seconds in steps of four milliseconds.
        let (mut had, mut free) = (Duration::ZERO, [began; 2]);
        let step = Duration::from_millis(4);
        for now in (0..2500).map(|tick| began + tick * step) {
            for thread in free.iter_mut().filter(|free| **free <= now) {
                had += step;
                *thread = now + step + level.charge_at(step, now + step, 100);
            }
        }
        assert!(had > 10 * SECOND && had < 11 * SECOND + 4 * step, "{had:?}");
    }

    #[test]
    fn account_has_its_threads_time_whether_they_live_or_not() {
        let account = Arc::new(Account::default());
        let (told, wait) = std::sync::mpsc::channel::<()>();
        let (tell, burnt) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let account = account.clone();
            move || {
                let _worker = Worker::of_this_thread(account);
                burn(Duration::from_millis(40));
                let _ = tell.send(());
                let _ = wait.recv();
                burn(Duration::from_millis(20));
            }
        });
        burnt.recv().expect("burnt");
        let living = account.spent();
        assert!(living >= Duration::from_millis(40) && living < Duration::from_millis(60), "{living:?}");
        drop(told);
        thread.join().expect("it ends");
        let ended = account.spent();
        assert!(ended >= living + Duration::from_millis(20) && lock(&account.spent).threads.is_empty(), "{ended:?}");
    }

    #[test]
    fn thread_beyond_its_budget_pauses_until_it_has_another() {
        let (account, percent) = (Arc::new(Account::default()), AtomicU32::new(0));
        let mut worker = Worker::of_this_thread(account.clone());
        let tick = || std::thread::sleep(Duration::from_millis(12));
        burn(Duration::from_millis(30));
        worker.keep_within(&percent, || true);
        assert_eq!(account.paused(), Duration::ZERO, "there is no limit");
        percent.store(1, Relaxed);
        burn(Duration::from_millis(11));
        tick();
        // One millisecond beyond the ten: a hundred to wait.
        worker.keep_within(&percent, || true);
        let paused = account.paused();
        assert!(paused >= Duration::from_millis(100) && paused < Duration::from_secs(5), "{paused:?}");
        burn(Duration::from_millis(200));
        tick();
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                percent.store(0, Relaxed);
            });
            worker.keep_within(&percent, || true);
        });
        assert!(began.elapsed() < Duration::from_secs(15), "the limit was taken away: {:?}", began.elapsed());
    }
}
