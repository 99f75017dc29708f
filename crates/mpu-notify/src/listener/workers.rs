//! Worker threads of one seccomp listener. Every received notification is answered exactly once.
//!
//! A listener has two threads: while one waits for the driver, the other lets calls without PIDs continue. A caller that blocks a
//! thread at its own memory (a page that it serves by userfaultfd or FUSE) blocks threads of its own container only.

use crate::budget::{Account, Worker};
use crate::caller::memory::take_caller_faults;
use crate::caller::process_cache::ProcessCache;
use crate::driver::request::{Disposition, Operation};
use crate::listener::notification::NotificationHandler;
use crate::listener::take_lock::TakeLock;
use crate::setting::Setting;
use crate::sys::{self, Answer, Journal, JournalSlot};
use mpu_core::Reason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Threads of one listener ([`TakeLock`] is for two).
pub(crate) const THREADS: usize = 2;
/// Limit of attempts to answer a call, each by a supervisor that died. Then the call fails.
const MAX_TRIES: u64 = 16;
/// Large buffers live on the heap, so a worker needs little stack.
const STACK_SIZE: usize = 256 << 10;
const ZERO_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A listener and its container.
pub(crate) struct Listener {
    fd: OwnedFd,
    /// Its index among the host's listeners, which selects its threads' slots in the journal.
    pub(crate) index: usize,
    /// The container's short id.
    pub(crate) name: String,
    /// Shared by all listeners of the container, like `cache`.
    pub(crate) account: Arc<Account>,
    pub(crate) cache: Arc<ProcessCache>,
    take_lock: TakeLock,
    /// Threads that have not ended. One that could not be started yet counts: a call of the previous supervisor may wait for it.
    threads: AtomicUsize,
}

impl Listener {
    pub(crate) fn new(fd: OwnedFd, index: usize, name: String, shared: (Arc<Account>, Arc<ProcessCache>)) -> Listener {
        let (take_lock, (account, cache)) = (TakeLock::new(fd.as_fd()), shared);
        Listener { fd, index, name, account, cache, take_lock, threads: AtomicUsize::new(THREADS) }
    }
}

/// Starts one of a listener's [`THREADS`] threads. The last one to end calls `on_end`.
pub(crate) fn start_thread(
    listener: &Arc<Listener>,
    setting: &Arc<Setting>,
    journal: &Arc<Journal>,
    thread: usize,
    on_end: impl Fn(&Listener) + Send + 'static,
) -> io::Result<()> {
    let slot = journal.slot(listener.index * THREADS + thread).ok_or(io::ErrorKind::AlreadyExists)?;
    let handler = NotificationHandler::new(listener.cache.clone())?;
    let (listener, setting) = (listener.clone(), setting.clone());
    let work = move || {
        serve(&listener, &setting, slot, handler);
        if listener.threads.fetch_sub(1, SeqCst) == 1 {
            on_end(&listener);
        }
    };
    std::thread::Builder::new().name("mpu-listener".into()).stack_size(STACK_SIZE).spawn(work).map(|_| ())
}

/// Answers until no caller is left.
fn serve(listener: &Listener, setting: &Setting, mut slot: JournalSlot, mut handler: NotificationHandler) {
    sys::set_sync_wakeup(listener.fd.as_fd());
    let mut worker = Worker::of_this_thread(listener.account.clone());
    // A call that the previous supervisor received and did not answer.
    if slot.get().notification.pid != 0 {
        let decoded = decode(setting, &mut slot);
        let response = decoded.map_or_else(
            |response| response,
            |operation| translate(listener, setting, &mut slot, &mut handler, operation),
        );
        answer(listener, &mut slot, response);
        worker.charge_caller_faults(take_caller_faults());
    }
    loop {
        let guard = listener.take_lock.acquire();
        let operation = next_operation(listener, setting, &mut slot, &mut worker);
        // Also at the end, so that the other thread ends, too.
        listener.take_lock.release(listener.fd.as_fd(), guard);
        let Some(operation) = operation else { return };
        worker.charge_faults();
        let response = translate(listener, setting, &mut slot, &mut handler, operation);
        worker.charge_caller_faults(take_caller_faults());
        // Before the answer, because the same caller may call again right after it.
        listener.take_lock.disarm(listener.fd.as_fd());
        answer(listener, &mut slot, response);
    }
}

/// Waits for a call that may carry PIDs, and lets all others continue; none if no more calls can come. Needs the lock.
fn next_operation(
    listener: &Listener,
    setting: &Setting,
    slot: &mut JournalSlot,
    worker: &mut Worker,
) -> Option<Operation> {
    while receive(listener, setting, slot, worker) {
        wait_for_budget(listener, setting, worker);
        match decode(setting, slot) {
            Ok(operation) => return Some(operation),
            Err(response) => answer(listener, slot, response),
        }
    }
    None
}

/// Waits until the container is within its budget, or its last process has ended. Also waits if the current caller has been interrupted:
/// otherwise calls that are interrupted at once would cost a container nothing.
fn wait_for_budget(listener: &Listener, setting: &Setting, worker: &mut Worker) {
    worker.wait_for_budget(&setting.budget, || {
        !setting.retired.load(Relaxed) && !has_hung_up(listener, Some(&ZERO_TIMEOUT))
    });
}

/// Waits for a notification; false if no more can come.
fn receive(listener: &Listener, setting: &Setting, slot: &mut JournalSlot, worker: &mut Worker) -> bool {
    loop {
        slot.clear();
        // Before Linux 6.11 the end of the last process does not wake NOTIF_RECV, but it wakes poll(2).
        if !setting.end_wakes_receivers() && has_hung_up(listener, None) {
            return false;
        }
        match sys::receive(listener.fd.as_fd(), &mut slot.get().notification) {
            Ok(()) => return true,
            // The caller was killed or interrupted before we received its call, or the last process has ended. The kernel returns this
            // once for each such call during a pause.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                if has_hung_up(listener, Some(&ZERO_TIMEOUT)) {
                    return false;
                }
                wait_for_budget(listener, setting, worker);
            }
            Err(_) => return false,
        }
    }
}

/// Waits for a call; true if no more can come.
fn has_hung_up(listener: &Listener, timeout: Option<&Timespec>) -> bool {
    loop {
        let mut polled = [PollFd::new(&listener.fd, PollFlags::IN)];
        match poll(&mut polled, timeout) {
            Ok(0) => return false,
            Ok(_) if polled[0].revents().contains(PollFlags::IN) => return false,
            Ok(_) if polled[0].revents().contains(PollFlags::HUP) => return true,
            // A signal interrupted `seccomp_notify_poll` at its lock, so the result means nothing.
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// Decodes the call, or returns the answer to a call that is not translated.
fn decode(setting: &Setting, slot: &mut JournalSlot) -> Result<Operation, Answer> {
    let slot = slot.get();
    slot.tries = slot.tries.saturating_add(1);
    let operation = if slot.tries > MAX_TRIES {
        Err(Disposition::RefusedBecause(libc::EIO, Reason::Unreadable))
    } else if setting.retired.load(Relaxed) {
        Err(Disposition::Continue)
    } else if setting.is_unsupported_x32(&slot.notification.data) {
        Err(Disposition::Refused(libc::ENOSYS))
    } else {
        Operation::decode(&slot.notification)
    };
    operation.map_err(|disposition| disposition.count(&setting.counters))
}

fn translate(
    listener: &Listener,
    setting: &Setting,
    slot: &mut JournalSlot,
    handler: &mut NotificationHandler,
    operation: Operation,
) -> Answer {
    let notification = slot.get().notification;
    handler.answer(setting, listener.fd.as_fd(), &notification, operation)
}

fn answer(listener: &Listener, slot: &mut JournalSlot, answer: Answer) {
    // Fails if the caller is gone and needs no answer.
    let _ = sys::answer(listener.fd.as_fd(), slot.get().notification.id, answer);
    slot.clear();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::thread_cpu_time;
    use crate::caller::pid_lookup::Lookup;
    use crate::filter;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    #[test]
    fn calls_killed_before_receipt_are_charged() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root can answer for others");
        }
        let (sender, receiver) = channel();
        let (stop, stopped) = channel::<()>();
        let caller = std::thread::spawn(move || {
            let listener = filter::listen().expect("a listener");
            for _ in 0..3 {
                let mut command = Command::new("perl");
                command.args(["-e", "ioctl(STDIN, 0xc020462a, $x = 'x' x 32)"]).stdin(Stdio::null());
                let mut child = command.spawn().expect("perl");
                let polled = poll(&mut [PollFd::new(&listener, PollFlags::IN)], None);
                assert_eq!(polled, Ok(1), "it asks");
                child.kill().expect("ours");
                child.wait().expect("ours");
            }
            sender.send(listener).expect("a receiver");
            let _ = stopped.recv();
        });
        let fd = receiver.recv().expect("three calls whose callers are dead");
        let setting = Setting::new(Lookup::of_this_kernel(), "", 1).expect("root's");
        let file = std::fs::File::from(memfd_create("mpu-test", MemfdFlags::CLOEXEC).expect("memory"));
        ftruncate(&file, 4096).expect("a page");
        let mut slot = Journal::map(&file, 1).expect("mapped").slot(0).expect("the first");
        let account = Arc::new(Account::default());
        let listener = Listener::new(fd, 0, String::new(), (account.clone(), Arc::default()));
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| {
                let mut worker = Worker::of_this_thread(account.clone());
                // The budget is a hundredth of a processor: ten milliseconds at once.
                let deadline = thread_cpu_time() + Duration::from_millis(30);
                while thread_cpu_time() < deadline {}
                receive(&listener, &setting, &mut slot, &mut worker)
            });
            let began = Instant::now();
            while account.paused().is_zero() && began.elapsed().as_secs() < 10 {
                std::thread::sleep(Duration::from_millis(10));
            }
            setting.budget.store(0, Relaxed);
            drop(stop);
            assert!(!receiving.join().expect("no panic"), "no caller is left");
        });
        caller.join().expect("no panic");
        assert!(account.paused() > Duration::from_millis(50), "{:?}", account.paused());
    }
}
