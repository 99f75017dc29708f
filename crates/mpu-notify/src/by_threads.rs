//! What a process has, where the driver knows it by its threads (565.57 to 570.144, and 575.51): each thread is asked about, and
//! what they have is the process's.
//!
//! Owns where GPU_GET_PID_INFO's figures stand. Which drivers are such is `threads`' business; numbers here are the host's.
//!
//! Outside truth: NV2080_CTRL_GPU_PID_INFO and NV2080_CTRL_GPU_PID_INFO_VIDEO_MEMORY_USAGE_DATA of ctrl2080gpu.h.

use super::threads::others;
use super::words::{put, wide, word};
use mpu_core::HostPid;

/// Entries of one question, and the byte at which the first stands; before it stands how many there are.
const MOST: usize = 200;
const FIRST: usize = 8;
/// In an entry: whose figures, which ones (0: video memory, the only ones), the driver's status.
const PID: usize = 0;
const INDEX: usize = 4;
const RESULT: usize = 8;
/// Amounts of memory, 8 bytes each, up to the instances.
const AMOUNTS: usize = 16;
/// Compute and GPU instance, the last of entries that are longer than 40 bytes; all bits set where there are none.
const INSTANCES: usize = 8;
/// Threads that are asked about for one call: what they do for one container is bounded, however many it has.
const MOST_THREADS: usize = 4096;

/// Adds what the other threads of each process have to the driver's answer about the processes. `ask` puts a question of the same
/// length to the driver, and says whether it answered.
pub(super) fn add_up(params: &mut [u8], mut ask: impl FnMut(&mut [u8]) -> bool) {
    let stride = params.len().saturating_sub(FIRST) / MOST;
    if stride < AMOUNTS {
        return;
    }
    let count = (word(params, 0) as usize).min(MOST);
    let entries = (0..count).map(|at| FIRST + at * stride);
    let of_memory = entries.filter(|at| (word(params, at + INDEX), word(params, at + RESULT)) == (0, 0));
    let processes = of_memory.filter_map(|at| Some((at, HostPid::new(word(params, at + PID))?)));
    let threads = processes.flat_map(|(at, process)| others(process).into_iter().map(move |thread| (at, thread)));
    let threads: Vec<(usize, HostPid)> = threads.take(MOST_THREADS).collect();
    let mut question = vec![0; params.len()];
    for some in threads.chunks(MOST) {
        question.fill(0);
        put(&mut question, 0, some.len() as u32);
        for (place, (_, thread)) in some.iter().enumerate() {
            put(&mut question, FIRST + place * stride + PID, thread.get());
        }
        if !ask(&mut question) {
            return;
        }
        for (place, (at, _)) in some.iter().enumerate() {
            let answer = &question[FIRST + place * stride..][..stride];
            if word(answer, RESULT) == 0 {
                add(&mut params[*at..*at + stride], answer);
            }
        }
    }
}

fn add(entry: &mut [u8], more: &[u8]) {
    let instances = if entry.len() > 40 { INSTANCES } else { 0 };
    let end = entry.len() - instances;
    for at in (AMOUNTS..end).step_by(8) {
        let sum = wide(entry, at).saturating_add(wide(more, at));
        entry[at..at + 8].copy_from_slice(&sum.to_ne_bytes());
    }
    if entry[end..].iter().all(|byte| *byte == 0xff) {
        entry[end..].copy_from_slice(&more[end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_what_its_threads_have() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let _ = wait.recv();
        });
        let thread_id = told.recv().expect("its number");
        for stride in [40, 48, 72] {
            let mut params = vec![0; FIRST + MOST * stride];
            put(&mut params, 0, 3);
            // The second is refused, the third is nobody's.
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
            add_up(&mut params, |question| {
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
    fn an_answer_that_does_not_come_changes_nothing() {
        let mut params = vec![0; FIRST + MOST * 72];
        put(&mut params, 0, u32::MAX);
        put(&mut params, FIRST + PID, std::process::id());
        let before = params.clone();
        add_up(&mut params, |_| false);
        assert_eq!(params, before);
        for len in [0, 4, 8, 12] {
            add_up(&mut vec![0xff; len], |_| panic!("nothing to ask about"));
        }
    }
}
