//! Selects the thread that receives a listener's next notification.
//!
//! One of the listener's two threads receives. The other sleeps, and is woken only if a call arrives while the first translates. A
//! hand-over for each translated call would cost two thread switches, more than half of a translation's time.
//!
//! Source: epoll_ctl(2) (`EPOLLONESHOT`); EPOLLHUP is always reported, but once.

use crate::lock;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// For two threads. The order of [`TakeLock::release`] and [`TakeLock::disarm`] makes sure that no caller waits while both sleep.
#[derive(Debug)]
pub(crate) struct TakeLock {
    mutex: Mutex<()>,
    /// Reports calls of the listener while armed. Without it the lock is handed over for each translated call, which is slower. (The
    /// kernel limits watches by user, and a container's root can be the same user.)
    epoll_fd: Option<OwnedFd>,
}

impl TakeLock {
    pub(crate) fn new(listener: BorrowedFd<'_>) -> TakeLock {
        TakeLock { mutex: Mutex::default(), epoll_fd: epoll_fd(listener).ok() }
    }

    /// Waits until the lock is free and a thread is needed.
    pub(crate) fn acquire(&self) -> MutexGuard<'_, ()> {
        let Some(epoll_fd) = &self.epoll_fd else {
            return lock(&self.mutex);
        };
        loop {
            match self.mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return PoisonError::into_inner(poisoned),
                Err(TryLockError::WouldBlock) => {}
            }
            // A needless event wakes this thread once only: the thread with the lock arms the descriptor again.
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1];
            let _ = epoll::wait(epoll_fd.as_fd(), &mut events, None);
        }
    }

    /// Releases the lock for a translation. A call that arrives, or has arrived, wakes the other thread.
    ///
    /// Arms the descriptor after the release. So a thread that finds the lock taken in [`TakeLock::acquire`] has already called
    /// [`TakeLock::disarm`], and receives every later event.
    pub(crate) fn release(&self, listener: BorrowedFd<'_>, guard: MutexGuard<'_, ()>) {
        drop(guard);
        self.modify(listener, ARMED);
    }

    /// Ends the wake-ups. The thread then only sends its answer and calls [`TakeLock::acquire`].
    pub(crate) fn disarm(&self, listener: BorrowedFd<'_>) {
        self.modify(listener, DISARMED);
    }

    fn modify(&self, listener: BorrowedFd<'_>, events: epoll::EventFlags) {
        // epoll_ctl(2) names only one error that could occur, ENOMEM, and a modification needs no memory.
        let modify = |epoll_fd| epoll::modify(epoll_fd, listener, epoll::EventData::new_u64(0), events);
        let _ = self.epoll_fd.as_ref().map(modify);
    }
}

fn epoll_fd(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let epoll_fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll_fd, listener, epoll::EventData::new_u64(0), DISARMED)?;
    Ok(epoll_fd)
}

const ARMED: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);
const DISARMED: epoll::EventFlags = epoll::EventFlags::ONESHOT;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    #[test]
    fn waiting_thread_is_woken_only_by_caller() {
        let listener = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let send_calls = |count: u64| rustix::io::write(&listener, &count.to_ne_bytes()).expect("a word");
        let lock = TakeLock::new(listener.as_fd());
        let woken = AtomicBool::new(false);
        let pause = || std::thread::sleep(Duration::from_millis(30));
        std::thread::scope(|scope| {
            let first = lock.acquire();
            scope.spawn(|| {
                let second = lock.acquire();
                woken.store(true, SeqCst);
                drop(second);
            });
            pause();
            send_calls(1);
            pause();
            assert!(!woken.load(SeqCst), "the thread with the lock receives it");
            let _ = rustix::io::read(&listener, &mut [0u8; 8]);
            lock.release(listener.as_fd(), first);
            pause();
            assert!(!woken.load(SeqCst), "no caller calls");
            lock.disarm(listener.as_fd());
            let first = lock.acquire();
            lock.release(listener.as_fd(), first);
            send_calls(1);
            let began = Instant::now();
            while !woken.load(SeqCst) && began.elapsed().as_secs() < 5 {
                std::thread::yield_now();
            }
            assert!(woken.load(SeqCst), "a caller has come while the first is busy");
        });
    }

    #[test]
    fn lock_without_epoll_is_handed_over() {
        // A regular file cannot be watched. `epoll_ctl` also fails beyond the user's limit of watches.
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let lock = TakeLock::new(file.as_fd());
        assert!(lock.epoll_fd.is_none());
        let woken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = lock.acquire();
            scope.spawn(|| {
                let second = lock.acquire();
                woken.store(true, SeqCst);
                lock.release(file.as_fd(), second);
            });
            std::thread::sleep(Duration::from_millis(30));
            assert!(!woken.load(SeqCst));
            lock.release(file.as_fd(), first);
            lock.disarm(file.as_fd());
        });
        assert!(woken.load(SeqCst));
        drop(lock.acquire());
    }
}
