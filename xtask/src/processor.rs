//! The processor time of processes. Unlike elapsed time, it does not depend on other load.

use std::cell::Cell;
use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// The unit of times in /proc: a hundredth of a second on every x86.
const TICK: Duration = Duration::from_millis(10);

/// The fields after the process's name with its user and system time, and with those of its waited-for children. Source: proc_pid_stat(5).
const OWN: [usize; 2] = [11, 12];
const OF_CHILDREN: [usize; 2] = [13, 14];

/// The time of all threads of a process; zero once the process was waited for.
pub fn used(pid: u32) -> Duration {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(Duration::ZERO, |stat| read(&stat, &OWN))
}

/// The time of this process and its ended children.
pub fn used_in_all() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    read(&stat, &OWN) + read(&stat, &OF_CHILDREN)
}

thread_local! {
    /// The time of children that this thread waited for.
    static OF_WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Waits for a child, whose time counts as this thread's.
pub fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    // /proc has its times until it is waited for.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    retry_on_intr(|| waitid(WaitId::Pid(Pid::from_child(child)), ended))?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    OF_WAITED.set(OF_WAITED.get() + read(&stat, &OWN) + read(&stat, &OF_CHILDREN));
    child.wait()
}

/// The time of this thread and of the children that it waited for with [`wait`].
pub fn used_by_thread() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    read(&stat, &OWN) + OF_WAITED.get()
}

fn read(stat: &str, times: &[usize]) -> Duration {
    // A name can contain blanks and parentheses.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let words: Vec<&str> = behind.split_whitespace().collect();
    let ticks = times.iter().filter_map(|at| words.get(*at)?.parse::<u32>().ok());
    TICK * ticks.sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_count_whatever_process_is_called() {
        let stat = "71 (a) S 9 (b) S 1 71 71 0 -1 4194560 900 0 0 0 250 50 7 7 20 0 3 0 100 0 0";
        assert_eq!(read(stat, &OWN), Duration::from_secs(3));
        assert_eq!(read(stat, &OF_CHILDREN), Duration::from_millis(140));
        assert_eq!(read("", &OWN), Duration::ZERO);
    }

    #[test]
    fn busy_process_uses_more_processor_time() {
        let before = used(std::process::id());
        let mut sum = 0_u64;
        while used(std::process::id()) == before {
            sum = (0..1_000_000_u64).fold(sum, |sum, next| std::hint::black_box(sum ^ next));
        }
        assert!(used(std::process::id()) > before);
    }

    #[test]
    fn child_counts_for_its_thread_with_its_own_children() {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done'; exit 3"]);
        let before = used_by_thread();
        let status = wait(&mut command.spawn().unwrap()).unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(used_by_thread() > before + 2 * TICK);
        assert!(std::thread::spawn(used_by_thread).join().unwrap() < 2 * TICK, "another thread has used nothing");
    }
}
