//! Sums a process's memory over its threads, for drivers that record clients by thread (565.57 to 570.144, and 575.51).

use crate::bytes::{read_u32, read_u64, write_u32};
use crate::caller::threads::other_threads;
use mpu_abi::{Entry, Rows};
use mpu_core::HostPid;

/// Layout of a release's entries.
pub(crate) struct Entries {
    pub(crate) rows: Rows,
    pub(crate) entry: Entry,
}

impl Entries {
    fn offset(&self, index: usize) -> usize {
        usize::from(self.rows.first) + index * usize::from(self.rows.stride)
    }
}

/// Limit of threads for one call, to bound the work for a container. Memory of further threads is missing in the sums
/// (docs/notify.md).
const MAX_THREADS: usize = 4096;

/// Adds the amounts of each process's other threads to the driver's answer about processes. `issue` sends a query of the same
/// length to the driver and returns whether it succeeded.
pub(crate) fn add_thread_sums(params: &mut [u8], entries: &Entries, mut issue: impl FnMut(&mut [u8]) -> bool) {
    let Entries { rows, entry } = entries;
    let (capacity, stride) = (usize::from(rows.capacity), usize::from(rows.stride));
    if params.len() < entries.offset(capacity) {
        return;
    }
    let (pid, result) = (usize::from(rows.pid), usize::from(entry.result));
    let count = (read_u32(params, rows.count.into()) as usize).min(capacity);
    let answered = (0..count).map(|index| entries.offset(index)).filter(|at| {
        // Video memory, the only kind of amount, and the driver has an answer for the process.
        (read_u32(params, at + usize::from(entry.index)), read_u32(params, at + result)) == (0, 0)
    });
    let processes = answered.filter_map(|at| Some((at, HostPid::new(read_u32(params, at + pid))?)));
    let threads = processes
        .flat_map(|(at, process)| other_threads(process, MAX_THREADS).into_iter().map(move |thread| (at, thread)));
    let threads: Vec<(usize, HostPid)> = threads.take(MAX_THREADS).collect();
    let mut request = vec![0; params.len()];
    for chunk in threads.chunks(capacity) {
        request.fill(0);
        write_u32(&mut request, rows.count.into(), chunk.len() as u32);
        for (index, (_, thread)) in chunk.iter().enumerate() {
            write_u32(&mut request, entries.offset(index) + pid, thread.get());
        }
        if !issue(&mut request) {
            return;
        }
        for (index, (at, _)) in chunk.iter().enumerate() {
            let answer = &request[entries.offset(index)..][..stride];
            if read_u32(answer, result) == 0 {
                add(&mut params[*at..*at + stride], answer, entry);
            }
        }
    }
}

fn add(total: &mut [u8], amounts: &[u8], entry: &Entry) {
    let end = entry.instances.map_or(total.len(), usize::from);
    for at in (usize::from(entry.amounts)..end).step_by(8) {
        let sum = read_u64(total, at).saturating_add(read_u64(amounts, at));
        total[at..at + 8].copy_from_slice(&sum.to_ne_bytes());
    }
    if total[end..].iter().all(|byte| *byte == 0xff) {
        total[end..].copy_from_slice(&amounts[end..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::thread::tests::Worker;
    use mpu_abi::{Control, Layout, ROWS, Release, RowId, history, row_of};

    /// Numbers from the headers, independent of the row.
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
        let worker = Worker::start();
        let thread_id = worker.tid.get();
        for (release, stride) in [(418, 40), (470, 48), (570, 72)] {
            let mut params = vec![0; FIRST + MOST * stride];
            write_u32(&mut params, 0, 3);
            // The driver refuses the second; no process has the third PID.
            for (index, (pid, result)) in
                [(std::process::id(), 0), (std::process::id(), 31), (u32::MAX, 0)].into_iter().enumerate()
            {
                let at = FIRST + index * stride;
                write_u32(&mut params, at + PID, pid);
                write_u32(&mut params, at + RESULT, result);
                params[at + AMOUNTS..at + AMOUNTS + 8].copy_from_slice(&100u64.to_ne_bytes());
                if stride > 40 {
                    params[at + stride - 8..at + stride].fill(0xff);
                }
            }
            let before = params.clone();
            add_thread_sums(&mut params, &of_release(release), |request| {
                let count = read_u32(request, 0) as usize;
                assert!(count > 0 && count <= MOST && request.len() == FIRST + MOST * stride);
                for at in (0..count).map(|index| FIRST + index * stride) {
                    assert_ne!(
                        read_u32(request, at + PID),
                        std::process::id(),
                        "the process itself is in the caller's query"
                    );
                    if stride > 40 {
                        request[at + stride - 8..at + stride].fill(0xff);
                    }
                    if read_u32(request, at + PID) == thread_id {
                        request[at + AMOUNTS..at + AMOUNTS + 8].copy_from_slice(&7u64.to_ne_bytes());
                        if stride > 40 {
                            write_u32(request, at + stride - 8, 5);
                        }
                    }
                }
                true
            });
            assert_eq!(read_u64(&params, FIRST + AMOUNTS), 107);
            if stride > 40 {
                assert_eq!(read_u32(&params, FIRST + stride - 8), 5, "the thread's instance");
            }
            assert_eq!(params[FIRST + stride..], before[FIRST + stride..], "the others are as they were");
        }
    }

    #[test]
    fn missing_driver_answer_keeps_params() {
        let mut params = vec![0; FIRST + MOST * 72];
        write_u32(&mut params, 0, u32::MAX);
        write_u32(&mut params, FIRST + PID, std::process::id());
        let before = params.clone();
        add_thread_sums(&mut params, &of_release(570), |_| false);
        assert_eq!(params, before);
        for len in [0, 4, 8, 12] {
            add_thread_sums(&mut vec![0xff; len], &of_release(570), |_| panic!("nothing to ask about"));
        }
    }
}
