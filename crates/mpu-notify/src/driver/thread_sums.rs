//! What a process has, where the driver knows it by its threads (565.57 to 570.144, and 575.51): each thread is asked about, and
//! what they have is the process's.
//!
//! Knows no layout: where the figures stand is the row's. Which drivers are such is `threads`' business; numbers here are the host's.

use crate::bytes::{put, wide, word};
use crate::caller::threads::others;
use mpu_abi::{Entry, Rows};
use mpu_core::HostPid;

/// Where the figures of a release stand.
pub(crate) struct Entries {
    pub(crate) rows: Rows,
    pub(crate) entry: Entry,
}

impl Entries {
    fn start(&self, place: usize) -> usize {
        usize::from(self.rows.first) + place * usize::from(self.rows.stride)
    }
}

/// Threads that are asked about for one call: what they do for one container is bounded, however many it has. What further
/// threads have is missing in the sums (docs/notify.md).
const MOST_THREADS: usize = 4096;

/// Adds what the other threads of each process have to the driver's answer about the processes. `ask` puts a question of the same
/// length to the driver, and says whether it answered.
pub(crate) fn add_up(params: &mut [u8], entries: &Entries, mut ask: impl FnMut(&mut [u8]) -> bool) {
    let Entries { rows, entry } = entries;
    let (capacity, stride) = (usize::from(rows.capacity), usize::from(rows.stride));
    if params.len() < entries.start(capacity) {
        return;
    }
    let (pid, result) = (usize::from(rows.pid), usize::from(entry.result));
    let count = (word(params, rows.count.into()) as usize).min(capacity);
    let of_memory = (0..count).map(|place| entries.start(place)).filter(|at| {
        // Video memory, the only figures that there are, and the driver has answered.
        (word(params, at + usize::from(entry.index)), word(params, at + result)) == (0, 0)
    });
    let processes = of_memory.filter_map(|at| Some((at, HostPid::new(word(params, at + pid))?)));
    let threads =
        processes.flat_map(|(at, process)| others(process, MOST_THREADS).into_iter().map(move |thread| (at, thread)));
    let threads: Vec<(usize, HostPid)> = threads.take(MOST_THREADS).collect();
    let mut question = vec![0; params.len()];
    for some in threads.chunks(capacity) {
        question.fill(0);
        put(&mut question, rows.count.into(), some.len() as u32);
        for (place, (_, thread)) in some.iter().enumerate() {
            put(&mut question, entries.start(place) + pid, thread.get());
        }
        if !ask(&mut question) {
            return;
        }
        for (place, (at, _)) in some.iter().enumerate() {
            let answer = &question[entries.start(place)..][..stride];
            if word(answer, result) == 0 {
                add(&mut params[*at..*at + stride], answer, entry);
            }
        }
    }
}

fn add(ours: &mut [u8], more: &[u8], entry: &Entry) {
    let end = entry.instances.map_or(ours.len(), usize::from);
    for at in (usize::from(entry.amounts)..end).step_by(8) {
        let sum = wide(ours, at).saturating_add(wide(more, at));
        ours[at..at + 8].copy_from_slice(&sum.to_ne_bytes());
    }
    if ours[end..].iter().all(|byte| *byte == 0xff) {
        ours[end..].copy_from_slice(&more[end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_abi::{Control, Layout, ROWS, Release, RowId, history, row_of};

    /// Numbers of the headers, typed here again: the row must say the same.
    const MOST: usize = 200;
    const FIRST: usize = 8;
    const PID: usize = 0;
    const RESULT: usize = 8;
    const AMOUNTS: usize = 16;

    fn entries(id: RowId) -> Entries {
        let (Layout::Query(rows), Some(entry)) = (ROWS[id.index()].layout, history(id).entry) else { panic!("{id:?}") };
        Entries { rows, entry }
    }

    fn of_release(major: u16) -> Entries {
        entries(row_of(Control::GpuGetPidInfo, Release::new(major, 0, 0)).expect("a row"))
    }

    #[test]
    fn process_amount_is_sum_of_its_threads() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let _ = wait.recv();
        });
        let thread_id = told.recv().expect("its number");
        for (release, stride) in [(418, 40), (470, 48), (570, 72)] {
            let mut params = vec![0; FIRST + MOST * stride];
            put(&mut params, 0, 3);
            // The second is refused, the third is no process's.
            for (place, (pid, result)) in
                [(std::process::id(), 0), (std::process::id(), 31), (u32::MAX, 0)].into_iter().enumerate()
            {
                let at = FIRST + place * stride;
                put(&mut params, at + PID, pid);
                put(&mut params, at + RESULT, result);
                params[at + AMOUNTS..at + AMOUNTS + 8].copy_from_slice(&100u64.to_ne_bytes());
                if stride > 40 {
                    params[at + stride - 8..at + stride].fill(0xff);
                }
            }
            let before = params.clone();
            add_up(&mut params, &of_release(release), |question| {
                let count = word(question, 0) as usize;
                assert!(count > 0 && count <= MOST && question.len() == FIRST + MOST * stride);
                for at in (0..count).map(|place| FIRST + place * stride) {
                    assert_ne!(word(question, at + PID), std::process::id(), "the process itself has been asked about");
                    if stride > 40 {
                        question[at + stride - 8..at + stride].fill(0xff);
                    }
                    if word(question, at + PID) == thread_id {
                        question[at + AMOUNTS..at + AMOUNTS + 8].copy_from_slice(&7u64.to_ne_bytes());
                        if stride > 40 {
                            put(question, at + stride - 8, 5);
                        }
                    }
                }
                true
            });
            assert_eq!(wide(&params, FIRST + AMOUNTS), 107);
            if stride > 40 {
                assert_eq!(word(&params, FIRST + stride - 8), 5, "the thread's instance");
            }
            assert_eq!(params[FIRST + stride..], before[FIRST + stride..], "the others are as they were");
        }
        drop(done);
        let _ = thread.join();
    }

    #[test]
    fn missing_driver_answer_keeps_params() {
        let mut params = vec![0; FIRST + MOST * 72];
        put(&mut params, 0, u32::MAX);
        put(&mut params, FIRST + PID, std::process::id());
        let before = params.clone();
        add_up(&mut params, &of_release(570), |_| false);
        assert_eq!(params, before);
        for len in [0, 4, 8, 12] {
            add_up(&mut vec![0xff; len], &of_release(570), |_| panic!("nothing to ask about"));
        }
    }
}
