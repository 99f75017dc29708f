//! Worker threads of one seccomp listener.
//!
//! Every notification taken is answered, once, and that one container's callers take no more than two threads of
//! ours: while one of them waits for the driver, the other passes on what carries no PID. A caller that stops us at its own
//! memory (a page that it serves itself) stops its own container's threads only.

use crate::budget::{Account, Worker};
use crate::caller::memory::brought;
use crate::caller::process_cache::ProcessCache;
use crate::driver::request::{Asked, Disposition};
use crate::listener::notification::Asker;
use crate::listener::take_lock::Turn;
use crate::setting::Setting;
use crate::sys::{self, Answer, Journal, JournalPlace};
use mpu_core::Reason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Threads of one listener: one that takes, and one for as long as that one translates (`turn` is made for two).
pub(crate) const THREADS: usize = 2;
/// A call that was begun so often by supervisors that did not live to answer it fails.
const MOST_TRIES: u64 = 16;
/// What a thread needs is in buffers elsewhere.
const STACK: usize = 256 << 10;
const ZERO_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A listener and whose it is.
pub(crate) struct Listener {
    fd: OwnedFd,
    /// Its number among the listeners of this host, which gives its threads their places in the journal.
    pub(crate) key: usize,
    /// The container's id, or what stands for it.
    pub(crate) name: String,
    /// The container's, which its listeners share.
    pub(crate) account: Arc<Account>,
    pub(crate) held: Arc<ProcessCache>,
    /// Who takes the next notification.
    turn: Turn,
    threads: AtomicUsize,
}

impl Listener {
    pub(crate) fn new(fd: OwnedFd, key: usize, name: String, of: (Arc<Account>, Arc<ProcessCache>)) -> Listener {
        let (turn, (account, held)) = (Turn::at(fd.as_fd()), of);
        Listener { fd, key, name, account, held, turn, threads: AtomicUsize::new(0) }
    }
}

/// Starts a listener's threads; the last one to end calls `gone`. Not all need to start, but one.
pub(crate) fn attend(
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

/// Answers until no caller is left.
fn serve(listener: &Listener, setting: &Setting, mut place: JournalPlace, mut asker: Asker) {
    sys::wake_in_turn(listener.fd.as_fd());
    let mut worker = Worker::of_this_thread(listener.account.clone());
    // What the supervisor before us had taken and not answered.
    if place.get().taken.pid != 0 {
        let found = look(setting, &mut place);
        let result =
            found.map_or_else(|passed| passed, |asked| translate(listener, setting, &mut place, &mut asker, asked));
        answer(listener, &mut place, result);
        worker.after_translating(brought());
    }
    loop {
        let turn = listener.turn.wait();
        let asked = next(listener, setting, &mut place, &mut worker);
        // Also at the end: the other thread has to find that out.
        listener.turn.leave(listener.fd.as_fd(), turn);
        let Some(asked) = asked else { return };
        worker.before_translating();
        let result = translate(listener, setting, &mut place, &mut asker, asked);
        worker.after_translating(brought());
        // Before the answer, after which the same caller may ask again at once.
        listener.turn.come_back(listener.fd.as_fd());
        answer(listener, &mut place, result);
    }
}

/// Waits for a call that may carry PIDs, and passes on all others; none when there will be no more calls. The thread that has the turn does this.
fn next(listener: &Listener, setting: &Setting, place: &mut JournalPlace, worker: &mut Worker) -> Option<Asked> {
    while take(listener, setting, place, worker) {
        keep_within(listener, setting, worker);
        match look(setting, place) {
            Ok(asked) => return Some(asked),
            Err(passed) => answer(listener, place, passed),
        }
    }
    None
}

/// Comes back once the container is within its budget, or no caller is left whose calls are held back. A caller who does not wait any more
/// changes nothing: else calls that are interrupted as soon as they are made would be for nothing.
fn keep_within(listener: &Listener, setting: &Setting, worker: &mut Worker) {
    worker.keep_within(&setting.budget, || !setting.retired.load(Relaxed) && !has_gone(listener, Some(&ZERO_TIMEOUT)));
}

/// Waits for a notification; false when there will be none.
fn take(listener: &Listener, setting: &Setting, place: &mut JournalPlace, worker: &mut Worker) -> bool {
    loop {
        place.clear();
        // A kernel before 6.11 does not wake those who wait to take when the last caller has gone, but it tells those who poll.
        if !setting.wakes_takers() && has_gone(listener, None) {
            return false;
        }
        match sys::receive(listener.fd.as_fd(), &mut place.get().taken) {
            Ok(()) => return true,
            // The caller was killed or interrupted before we took it; or it was the last one. The kernel tells once of each that was, however
            // many there were while we paused.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                if has_gone(listener, Some(&ZERO_TIMEOUT)) {
                    return false;
                }
                keep_within(listener, setting, worker);
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
            Ok(_) if polled[0].revents().contains(PollFlags::IN) => return false,
            Ok(_) if polled[0].revents().contains(PollFlags::HUP) => return true,
            // A signal came while the kernel waited for its own lock (`seccomp_notify_poll`): that says nothing.
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// What is asked, or the answer to a call that is not translated.
fn look(setting: &Setting, place: &mut JournalPlace) -> Result<Asked, Answer> {
    let place = place.get();
    place.tries = place.tries.saturating_add(1);
    let asked = if place.tries > MOST_TRIES {
        Err(Disposition::RefusedBecause(libc::EIO, Reason::Unreadable))
    } else if setting.retired.load(Relaxed) {
        Err(Disposition::Continue)
    } else if setting.kernel_lacks(&place.taken.data) {
        Err(Disposition::Refused(libc::ENOSYS))
    } else {
        Asked::by(&place.taken)
    };
    asked.map_err(|pass| pass.count(&setting.counters))
}

fn translate(
    listener: &Listener,
    setting: &Setting,
    place: &mut JournalPlace,
    asker: &mut Asker,
    asked: Asked,
) -> Answer {
    let taken = place.get().taken;
    asker.answer(setting, listener.fd.as_fd(), &taken, asked)
}

fn answer(listener: &Listener, place: &mut JournalPlace, answer: Answer) {
    // Fails when the caller is gone, which needs no answer.
    let _ = sys::answer(listener.fd.as_fd(), place.get().taken.id, answer);
    place.clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::own_time;
    use crate::caller::numbers::Lookup;
    use crate::filter;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[test]
    fn calls_killed_before_receipt_are_charged() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can answer for others");
            return;
        }
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        let caller = std::thread::spawn(move || {
            let listener = filter::listen().expect("a listener");
            for _ in 0..3 {
                let mut asks = Command::new("perl");
                asks.args(["-e", "ioctl(STDIN, 0xc020462a, $x = 'x' x 32)"]).stdin(Stdio::null());
                let mut child = asks.spawn().expect("perl");
                let waits = poll(&mut [PollFd::new(&listener, PollFlags::IN)], None);
                assert_eq!(waits, Ok(1), "it asks");
                child.kill().expect("ours");
                child.wait().expect("ours");
            }
            tell.send(listener).expect("a receiver");
            let _ = ended.recv();
        });
        let fd = told.recv().expect("three calls whose callers are dead");
        let setting = Setting::new(Lookup::of_this_kernel(), "", 1).expect("root's");
        let file = std::fs::File::from(memfd_create("mpu-test", MemfdFlags::CLOEXEC).expect("memory"));
        ftruncate(&file, 4096).expect("a page");
        let mut place = Journal::map(&file, 1).expect("mapped").place(0).expect("the first");
        let account = Arc::new(Account::default());
        let listener = Listener::new(fd, 0, String::new(), (account.clone(), Arc::default()));
        std::thread::scope(|scope| {
            let takes = scope.spawn(|| {
                let mut worker = Worker::of_this_thread(account.clone());
                // A hundredth of a processor is the budget: ten milliseconds can be had at once.
                let end = own_time() + Duration::from_millis(30);
                while own_time() < end {}
                take(&listener, &setting, &mut place, &mut worker)
            });
            let began = Instant::now();
            while account.paused().is_zero() && began.elapsed().as_secs() < 10 {
                std::thread::sleep(Duration::from_millis(10));
            }
            setting.budget.store(0, Relaxed);
            drop(end);
            assert!(!takes.join().expect("no panic"), "no caller is left");
        });
        caller.join().expect("no panic");
        assert!(account.paused() > Duration::from_millis(50), "{:?}", account.paused());
    }
}
