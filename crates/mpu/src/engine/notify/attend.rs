//! Threads that answer one listener.
//!
//! Owns that every notification taken is answered, once, and that one container's callers take no more than two threads of
//! ours: while one of them waits for the driver, the other passes on what carries no PID. A caller that stops us at its own
//! memory (a page that it serves itself) stops its own container's threads only.

use super::ask::{Asker, Setting};
use super::asked::{Asked, Pass};
use super::budget::{Account, Worker};
use super::held::Held as Processes;
use super::sys::{self, Answer, Held, Journal};
use super::turn::Turn;
use mpu_core::Reason;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::Arc;

/// Threads of one listener: one that takes, and one for as long as that one translates (`turn` is made for two).
pub(super) const THREADS: usize = 2;
/// A call that was begun so often by supervisors that did not live to answer it fails.
const MOST_TRIES: u64 = 16;
/// What a thread needs is in buffers elsewhere.
const STACK: usize = 256 << 10;

/// A listener and whose it is.
pub(super) struct Listener {
    fd: OwnedFd,
    /// Its number among the listeners of this host, which gives its threads their places in the journal.
    pub(super) key: usize,
    /// The container's id, or what stands for it.
    pub(super) name: String,
    /// The container's, which its listeners share.
    pub(super) account: Arc<Account>,
    /// The container's, too.
    pub(super) held: Arc<Processes>,
    /// Who takes the next notification.
    turn: Turn,
    threads: AtomicUsize,
}

impl Listener {
    pub(super) fn new(fd: OwnedFd, key: usize, name: String, of: (Arc<Account>, Arc<Processes>)) -> io::Result<Listener> {
        let (turn, (account, held)) = (Turn::at(fd.as_fd())?, of);
        Ok(Listener { fd, key, name, account, held, turn, threads: AtomicUsize::new(0) })
    }
}

/// Starts a listener's threads; the last one to end calls `gone`. Not all need to start, but one.
pub(super) fn attend(
    listener: &Arc<Listener>,
    setting: &Arc<Setting>,
    journal: &Arc<Journal>,
    gone: impl Fn(&Listener) + Send + Clone + 'static,
) -> io::Result<()> {
    let mut failed = None;
    // Counted before any of them can end.
    listener.threads.store(THREADS, SeqCst);
    for thread in 0..THREADS {
        let started = start(listener, setting, journal, thread, gone.clone());
        if let Err(error) = started {
            listener.threads.fetch_sub(1, SeqCst);
            failed = Some(error);
        }
    }
    match failed {
        Some(error) if listener.threads.load(SeqCst) == 0 => Err(error),
        _ => Ok(()),
    }
}

fn start(
    listener: &Arc<Listener>,
    setting: &Arc<Setting>,
    journal: &Arc<Journal>,
    thread: usize,
    gone: impl Fn(&Listener) + Send + 'static,
) -> io::Result<()> {
    let place = journal.place(listener.key * THREADS + thread).ok_or(io::ErrorKind::AlreadyExists)?;
    let asker = Asker::new(listener.held.clone())?;
    let (listener, setting) = (listener.clone(), setting.clone());
    let work = move || {
        serve(&listener, &setting, place, asker);
        if listener.threads.fetch_sub(1, SeqCst) == 1 {
            gone(&listener);
        }
    };
    std::thread::Builder::new().name("mpu-listener".into()).stack_size(STACK).spawn(work).map(|_| ())
}

/// Answers until nobody is left who could ask.
fn serve(listener: &Listener, setting: &Setting, mut place: Held, mut asker: Asker) {
    sys::wake_in_turn(listener.fd.as_fd());
    let mut worker = Worker::of_this_thread(listener.account.clone());
    // What the supervisor before us had taken and not answered.
    if place.get().taken.pid != 0 {
        let found = look(setting, &mut place);
        let result = found.map_or_else(|passed| passed, |asked| translate(listener, setting, &mut place, &mut asker, asked));
        answer(listener, &mut place, result);
    }
    loop {
        let turn = listener.turn.wait();
        let asked = next(listener, setting, &mut place, &mut worker);
        // Also at the end: the other thread has to find that out.
        listener.turn.leave(listener.fd.as_fd(), turn);
        let Some(asked) = asked else { return };
        let result = translate(listener, setting, &mut place, &mut asker, asked);
        // Before the answer, after which the same caller may ask again at once.
        listener.turn.come_back(listener.fd.as_fd());
        answer(listener, &mut place, result);
    }
}

/// Waits for a call that may carry PIDs, and passes on all others; none when there will be no more calls. Whoever has the turn does this.
fn next(listener: &Listener, setting: &Setting, place: &mut Held, worker: &mut Worker) -> Option<Asked> {
    while take(listener, setting, place) {
        // Only a kill ends a wait from here on, where the filter asks for that; before, any signal does.
        let id = place.get().taken.id;
        worker.keep_within(&setting.budget, || {
            !setting.retired.load(Relaxed) && sys::still_waits(listener.fd.as_fd(), id)
        });
        match look(setting, place) {
            Ok(asked) => return Some(asked),
            Err(passed) => answer(listener, place, passed),
        }
    }
    None
}

/// Waits for a notification; false when there will be none.
fn take(listener: &Listener, setting: &Setting, place: &mut Held) -> bool {
    loop {
        place.clear();
        // A kernel before 6.11 does not wake those who wait to take when the last caller has gone, but it tells those who poll.
        if !setting.wakes_takers() && has_gone(listener, None) {
            return false;
        }
        match sys::receive(listener.fd.as_fd(), &mut place.get().taken) {
            Ok(()) => return true,
            // The caller was killed or interrupted before we took it; or it was the last one.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                if has_gone(listener, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
}

/// Waits for a caller; true when there will be none.
fn has_gone(listener: &Listener, patience: Option<&Timespec>) -> bool {
    loop {
        let mut polled = [PollFd::new(&listener.fd, PollFlags::IN)];
        match poll(&mut polled, patience) {
            Ok(0) => return false,
            Ok(_) => return !polled[0].revents().contains(PollFlags::IN),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// What is asked, or the answer to a call that is not translated.
fn look(setting: &Setting, place: &mut Held) -> Result<Asked, Answer> {
    let place = place.get();
    place.tries = place.tries.saturating_add(1);
    let asked = if place.tries > MOST_TRIES {
        Err(Pass::RefusedBecause(libc::EIO, Reason::Unreadable))
    } else if setting.retired.load(Relaxed) {
        Err(Pass::On)
    } else if setting.kernel_lacks(&place.taken.data) {
        Err(Pass::Refused(libc::ENOSYS))
    } else {
        Asked::by(&place.taken)
    };
    asked.map_err(|pass| pass.count(&setting.counters))
}

fn translate(listener: &Listener, setting: &Setting, place: &mut Held, asker: &mut Asker, asked: Asked) -> Answer {
    let taken = place.get().taken;
    asker.answer(setting, listener.fd.as_fd(), &taken, asked)
}

fn answer(listener: &Listener, place: &mut Held, answer: Answer) {
    // Fails when the caller is gone, which needs no answer.
    let _ = sys::answer(listener.fd.as_fd(), place.get().taken.id, answer);
    place.clear();
}
