//! Whose turn it is to take a listener's next notification.
//!
//! Owns that one of its two threads takes, that the other sleeps for as long as that one gets along alone, and that it is woken when a
//! caller comes while that one translates. Handing the turn over for every call that is translated would cost two switches between
//! threads each time, more than half of what the translation does. Knows nothing of notifications.
//!
//! Outside truth: epoll_ctl(2) (`EPOLLONESHOT`); EPOLLHUP is always told, but once.

use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// See the module. For two threads: [`Turn::leave`] and [`Turn::come_back`] are in the order that leaves no caller alone with them.
#[derive(Debug)]
pub(crate) struct Turn {
    taken: Mutex<()>,
    /// Tells of the listener, but only when it is asked to. Without one (the kernel counts by user what is watched, and a container's root can be
    /// the same user) the turn is handed over for every call that is translated: slower, and right.
    bell: Option<OwnedFd>,
}

impl Turn {
    pub(crate) fn at(listener: BorrowedFd<'_>) -> Turn {
        Turn { taken: Mutex::default(), bell: bell(listener).ok() }
    }

    /// Waits until it is free and needed.
    pub(crate) fn wait(&self) -> MutexGuard<'_, ()> {
        let Some(bell) = &self.bell else {
            return self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        };
        loop {
            match self.taken.try_lock() {
                Ok(turn) => return turn,
                Err(TryLockError::Poisoned(poisoned)) => return PoisonError::into_inner(poisoned),
                Err(TryLockError::WouldBlock) => {}
            }
            // A bell that rings for nothing wakes once: the thread that has the turn sets it again.
            let mut told = [MaybeUninit::<epoll::Event>::uninit(); 1];
            let _ = epoll::wait(bell.as_fd(), &mut told, None);
        }
    }

    /// Lets it go to do something else: a caller that comes meanwhile, or has come, wakes the other thread.
    ///
    /// The bell is set after the turn is free. So a thread that finds it taken, in [`Turn::wait`], is behind its own
    /// [`Turn::come_back`], and hears every bell that is set from then on.
    pub(crate) fn leave(&self, listener: BorrowedFd<'_>, turn: MutexGuard<'_, ()>) {
        drop(turn);
        self.set(listener, LOUD);
    }

    /// What was done is done: only the answer is to be given, then [`Turn::wait`] comes next.
    pub(crate) fn come_back(&self, listener: BorrowedFd<'_>) {
        self.set(listener, SILENT);
    }

    fn set(&self, listener: BorrowedFd<'_>, events: epoll::EventFlags) {
        // Fails for nothing that the kernel's manual knows but for memory, of which this takes none.
        let modify = |bell| epoll::modify(bell, listener, epoll::EventData::new_u64(0), events);
        let _ = self.bell.as_ref().map(modify);
    }
}

fn bell(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let bell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&bell, listener, epoll::EventData::new_u64(0), SILENT)?;
    Ok(bell)
}

const LOUD: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);
const SILENT: epoll::EventFlags = epoll::EventFlags::ONESHOT;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    #[test]
    fn waiting_thread_is_woken_only_by_caller() {
        let listener = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let call = |count: u64| rustix::io::write(&listener, &count.to_ne_bytes()).expect("a word");
        let turn = Turn::at(listener.as_fd());
        let woken = AtomicBool::new(false);
        let pause = || std::thread::sleep(Duration::from_millis(30));
        std::thread::scope(|scope| {
            let first = turn.wait();
            scope.spawn(|| {
                let second = turn.wait();
                woken.store(true, SeqCst);
                drop(second);
            });
            pause();
            call(1);
            pause();
            assert!(!woken.load(SeqCst), "who has the turn takes by itself");
            let _ = rustix::io::read(&listener, &mut [0u8; 8]);
            turn.leave(listener.as_fd(), first);
            pause();
            assert!(!woken.load(SeqCst), "no caller calls");
            turn.come_back(listener.as_fd());
            let first = turn.wait();
            turn.leave(listener.as_fd(), first);
            call(1);
            let began = Instant::now();
            while !woken.load(SeqCst) && began.elapsed().as_secs() < 5 {
                std::thread::yield_now();
            }
            assert!(woken.load(SeqCst), "a caller has come while the first is busy");
        });
    }

    #[test]
    fn without_bell_turn_is_handed_over() {
        // Nothing that can be watched: what `epoll_ctl` says to a file, and to one watch more than a user may have.
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let turn = Turn::at(file.as_fd());
        assert!(turn.bell.is_none());
        let woken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = turn.wait();
            scope.spawn(|| {
                let second = turn.wait();
                woken.store(true, SeqCst);
                turn.leave(file.as_fd(), second);
            });
            std::thread::sleep(Duration::from_millis(30));
            assert!(!woken.load(SeqCst));
            turn.leave(file.as_fd(), first);
            turn.come_back(file.as_fd());
        });
        assert!(woken.load(SeqCst));
        drop(turn.wait());
    }
}
