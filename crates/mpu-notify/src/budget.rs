//! Accounts and limits the supervisor's processor time for each container.
//!
//! A worker thread serves one container only, so the thread's CPU clock measures the container's cost. While a container exceeds its
//! budget, its threads pause before they answer. Other containers are not affected.
//!
//! Page faults in a caller's memory are charged, too. For a page that the caller's program never touched before, the kernel charges
//! page tables (and a huge page) to our control group instead of the container's.
//!
//! Source: getrusage(2) (`RUSAGE_THREAD`: a fault counts for the accessing thread, also in another process's memory);
//! clock_gettime(2); for the clock of a thread, include/linux/posix-timers_types.h (`CPUCLOCK_PERTHREAD_MASK`).

use crate::kernel::Tid;
use crate::lock;
use crate::sys;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The budget is an average over one second, in nanoseconds. A container can use up one window's budget at once.
const WINDOW: u64 = 1_000_000_000;
/// Charge for a page fault: 64 pages cost one second.
const FAULT_COST: Duration = Duration::from_micros(15_625);
/// The budget is checked at least once in this many calls. A fast processor handles hundreds of calls in one clock tick, and each
/// may have caused a page fault.
const CALLS_PER_CHECK: u32 = 16;
/// Interval at which a paused thread reads the budget again.
const RECHECK: Duration = Duration::from_millis(100);

/// Processor time spent on one container.
#[derive(Debug, Default)]
pub(crate) struct Account {
    spent: Mutex<Spent>,
    debt: Mutex<Debt>,
    paused: AtomicU64,
}

#[derive(Debug, Default)]
struct Spent {
    /// Sum over threads that have ended.
    before: Duration,
    threads: Vec<Tid>,
}

impl Account {
    /// Processor time of all its threads until now.
    pub(crate) fn spent(&self) -> Duration {
        let spent = lock(&self.spent);
        // A thread in the list cannot end before the lock is released, so no TID is reused.
        spent.before + spent.threads.iter().filter_map(|tid| sys::thread_time(*tid).ok()).sum::<Duration>()
    }

    /// Sum of its threads' pauses.
    pub(crate) fn paused(&self) -> Duration {
        Duration::from_nanos(self.paused.load(Relaxed))
    }
}

/// One thread's side of an account.
pub(crate) struct Worker {
    account: Arc<Account>,
    tid: Tid,
    charged: Duration,
    /// Page faults of this thread up to the last count.
    faults: u64,
    /// Page faults to charge to the container.
    pages: u64,
    clock_tick: Timespec,
    calls: u32,
    percent: u32,
}

impl Worker {
    /// Opens the side of the calling thread, which must also drop it.
    pub(crate) fn of_this_thread(account: Arc<Account>) -> Worker {
        let tid = Tid::of_this_thread();
        lock(&account.spent).threads.push(tid);
        let clock_tick = Timespec { tv_sec: 0, tv_nsec: 0 };
        Worker {
            account,
            tid,
            charged: thread_cpu_time(),
            faults: sys::thread_page_faults(),
            pages: 0,
            clock_tick,
            calls: 0,
            percent: 0,
        }
    }

    /// Waits until the container is within its budget of `percent` of one processor; 0 is no limit. If `is_needed` is false, no caller
    /// waits: then it returns at once and keeps the debt.
    ///
    /// Reads the thread's clock, a system call, only once in a tick of the coarse clock or in [`CALLS_PER_CHECK`] calls.
    pub(crate) fn wait_for_budget(&mut self, percent: &AtomicU32, is_needed: impl Fn() -> bool) {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        self.calls += 1;
        if now == self.clock_tick && self.calls < CALLS_PER_CHECK {
            return;
        }
        (self.clock_tick, self.calls) = (now, 0);
        let mut charge = self.charge();
        loop {
            let began = Instant::now();
            self.percent = percent.load(Relaxed);
            let released = lock(&self.account.debt).charge(charge, Instant::now(), self.percent);
            if released.is_zero() || !is_needed() {
                return;
            }
            charge = Duration::ZERO;
            std::thread::sleep(released.min(RECHECK));
            self.account.paused.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
        }
    }

    /// Time and page faults since the last call of this function.
    fn charge(&mut self) -> Duration {
        self.charge_faults();
        let spent = thread_cpu_time();
        let fault_cost = FAULT_COST.saturating_mul(u32::try_from(std::mem::take(&mut self.pages)).unwrap_or(u32::MAX));
        let charge = spent.saturating_sub(self.charged).saturating_add(fault_cost);
        self.charged = spent;
        charge
    }

    /// Charges all page faults since the last count. Between translations a thread faults in callers' memory only.
    pub(crate) fn charge_faults(&mut self) {
        let faults = sys::thread_page_faults();
        self.pages = self.pages.saturating_add(faults.saturating_sub(self.faults));
        self.faults = faults;
    }

    /// Charges `caller_faults` of a translation's page faults. The others are in our own memory.
    pub(crate) fn charge_caller_faults(&mut self, caller_faults: u64) {
        self.pages = self.pages.saturating_add(caller_faults);
        self.faults = sys::thread_page_faults();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The last call came after the last check of the budget.
        if self.percent != 0 {
            let charge = self.charge();
            lock(&self.account.debt).charge(charge, Instant::now(), self.percent);
        }
        let mut spent = lock(&self.account.spent);
        spent.threads.retain(|tid| *tid != self.tid);
        spent.before += thread_cpu_time();
    }
}

/// Processor time of this thread.
pub(crate) fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time used beyond what the budget has granted since, in nanoseconds.
#[derive(Debug, Default)]
struct Debt {
    nanos: u64,
    at: Option<Instant>,
}

impl Debt {
    /// Adds a charge. Returns the time to wait until the container is within the budget.
    fn charge(&mut self, charge: Duration, now: Instant, percent: u32) -> Duration {
        let Some(budget) = std::num::NonZeroU64::new(percent.into()) else {
            *self = Debt::default();
            return Duration::ZERO;
        };
        let passed = now.saturating_duration_since(self.at.unwrap_or(now)).as_nanos() as u64;
        self.at = Some(now);
        self.nanos = self.nanos.saturating_sub(passed.saturating_mul(budget.get()) / 100);
        self.nanos = self.nanos.saturating_add(charge.as_nanos() as u64);
        let excess = self.nanos.saturating_sub(WINDOW.saturating_mul(budget.get()) / 100);
        Duration::from_nanos(excess.saturating_mul(100) / budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn burn(time: Duration) {
        let end = thread_cpu_time() + time;
        while thread_cpu_time() < end {}
    }

    #[test]
    fn charge_beyond_budget_returns_wait() {
        let (mut debt, began) = (Debt::default(), Instant::now());
        let mut charge = |millis: u64, at: u64, percent| {
            debt.charge(Duration::from_millis(millis), began + Duration::from_millis(at), percent).as_millis()
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
        worker.charge_faults();
        worker.pages = 0;
        let own = vec![1u8; 8 << 20];
        worker.charge_caller_faults(3);
        assert_eq!((worker.pages, own[1 << 20]), (3, 1));
        let callers = vec![1u8; 8 << 20];
        worker.charge_faults();
        assert!(worker.pages > 3 && callers[1 << 20] == 1, "faults between translations are the callers'");
        let fault_cost = FAULT_COST * u32::try_from(worker.pages).expect("not so many");
        assert!(worker.charge() >= fault_cost && worker.pages == 0);
    }

    #[test]
    fn two_busy_threads_are_limited_to_budget() {
        let (mut debt, began) = (Debt::default(), Instant::now());
        // Two threads that pause only for the budget, for ten seconds in steps of four milliseconds.
        let (mut used, mut free) = (Duration::ZERO, [began; 2]);
        let step = Duration::from_millis(4);
        for now in (0..2500).map(|tick| began + tick * step) {
            for thread in free.iter_mut().filter(|free| **free <= now) {
                used += step;
                *thread = now + step + debt.charge(step, now + step, 100);
            }
        }
        assert!(used > 10 * SECOND && used < 11 * SECOND + 4 * step, "{used:?}");
    }

    #[test]
    fn account_includes_running_and_ended_threads() {
        let account = Arc::new(Account::default());
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (sender, burned) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let account = account.clone();
            move || {
                let _worker = Worker::of_this_thread(account);
                burn(Duration::from_millis(40));
                let _ = sender.send(thread_cpu_time());
                let _ = released.recv();
                let resumed = thread_cpu_time();
                burn(Duration::from_millis(20));
                resumed
            }
        });
        let burned = burned.recv().expect("burnt");
        let while_running = account.spent();
        drop(release);
        let resumed = thread.join().expect("it ends");
        assert!(while_running >= burned && while_running <= resumed, "{burned:?} {while_running:?} {resumed:?}");
        let ended = account.spent();
        assert!(
            ended >= while_running + Duration::from_millis(20) && lock(&account.spent).threads.is_empty(),
            "{ended:?}"
        );
    }

    #[test]
    fn paused_thread_resumes_after_budget_change() {
        let (account, percent) = (Arc::new(Account::default()), AtomicU32::new(0));
        let mut worker = Worker::of_this_thread(account.clone());
        let tick = || std::thread::sleep(Duration::from_millis(12));
        burn(Duration::from_millis(30));
        worker.wait_for_budget(&percent, || true);
        assert_eq!(account.paused(), Duration::ZERO, "there is no limit");
        percent.store(1, Relaxed);
        let began = thread_cpu_time();
        burn(Duration::from_millis(11));
        tick();
        // One millisecond above the budget of ten: a wait of a hundred milliseconds, or more on a slow machine.
        worker.wait_for_budget(&percent, || true);
        let (paused, used) = (account.paused(), thread_cpu_time() - began);
        assert!(paused >= Duration::from_millis(100) && paused < 100 * used + 2 * SECOND, "{paused:?}, {used:?}");
        burn(Duration::from_millis(200));
        tick();
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                percent.store(0, Relaxed);
            });
            worker.wait_for_budget(&percent, || true);
        });
        assert!(began.elapsed() < Duration::from_secs(15), "the limit was taken away: {:?}", began.elapsed());
    }
}
