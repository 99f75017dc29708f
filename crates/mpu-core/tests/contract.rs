//! Tests the contract, control by control, on bytes laid out by hand. Offsets are numbers here, independent of the rows.

use mpu_abi::pid::PID_WITHOUT_PROCESS;
use mpu_abi::{Control, ControlCmd};
use mpu_core::{Argument, Call, Copied, HostPid, Outcome, PidMap, Reason, ViewPid};

/// A namespace that sees host 1002 as 2 and host 1033 as 33; host 415 and 2 are foreign.
struct Namespace;

const PAIRS: [(u32, u32); 2] = [(1002, 2), (1033, 33)];

impl PidMap for Namespace {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        PAIRS.iter().find(|(host, _)| *host == pid.get()).and_then(|(_, view)| ViewPid::new(*view))
    }
    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        PAIRS.iter().find(|(_, view)| *view == pid.get()).and_then(|(host, _)| HostPid::new(*host))
    }
    fn started(&self, pid: HostPid) -> Option<u64> {
        match pid.get() {
            1002 => Some(0),
            1033 => Some(5_000_000),
            _ => None,
        }
    }
}

/// The address of the caller's parameters.
const PARAMS: u64 = 0x1000;

fn begin(cmd: u32, size: usize) -> Call {
    Call::begin(Argument { cmd: ControlCmd(cmd), params: PARAMS, size: size as u32 }).expect("a row, or no PIDs")
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// One call as the driver makes it: copy in, `driver` answers, copy out.
fn call(cmd: u32, bytes: &mut [u8], driver: impl FnOnce(&mut [u8])) -> Option<(Control, Outcome)> {
    let mut call = begin(cmd, bytes.len());
    assert!(call.translates());
    let mut requested = vec![0; call.requested_count(PARAMS, bytes)];
    call.copied_in(PARAMS, bytes, &Namespace, &mut requested);
    driver(bytes);
    call.copying_out(PARAMS, bytes, &Namespace, &requested).outcome
}

/// Offsets and the words at them.
type Words<'a> = &'a [(usize, u32)];

fn lay(bytes: &mut [u8], words: Words<'_>) {
    words.iter().for_each(|(at, value)| put(bytes, *at, *value));
}

fn laid(size: usize, words: Words<'_>) -> Vec<u8> {
    let mut bytes = vec![0; size];
    lay(&mut bytes, words);
    bytes
}

/// Words at a stride, from `first` on.
fn column(first: usize, stride: usize, values: &[u32]) -> Vec<(usize, u32)> {
    values.iter().enumerate().map(|(i, value)| (first + stride * i, *value)).collect()
}

/// A caller sends these words and no other; the driver reads `seen` and answers; the caller gets exactly `expected`.
fn check(
    cmd: u32,
    size: usize,
    requested: Words<'_>,
    seen: Words<'_>,
    answer: Words<'_>,
    expected: Words<'_>,
) -> Outcome {
    let mut bytes = laid(size, requested);
    let outcome = call(cmd, &mut bytes, |bytes| {
        seen.iter().for_each(|(at, value)| assert_eq!(get(bytes, *at), *value, "{cmd:#x} asks the driver"));
        lay(bytes, answer);
    });
    assert!(bytes == laid(size, expected), "{cmd:#x} answers otherwise than {expected:?}");
    outcome.expect("the parameters are translated").1
}

#[test]
fn list_keeps_only_own_processes() {
    for cmd in [0x2080_018d, 0x0080_0202] {
        let answer = [vec![(8, 5)], column(12, 4, &[415, 1002, 2, 1033, 9999])].concat();
        let outcome = check(cmd, 3812, &[(4, 0xc9c0)], &[], &answer, &[(4, 0xc9c0), (8, 2), (12, 2), (16, 33)]);
        assert_eq!(outcome, Outcome::Rewritten { kept: 2, hidden: 3 });
    }
}

#[test]
fn list_of_foreign_processes_is_empty() {
    check(0x2080_018d, 3812, &[], &[], &[(8, 2), (12, 415), (16, 2)], &[]);
}

#[test]
fn list_count_beyond_table_is_malformed() {
    let outcome = check(0x2080_018d, 3812, &[], &[], &[(8, 951), (12, 1002)], &[]);
    assert_eq!(outcome, Outcome::Not(Reason::Malformed));
}

#[test]
fn answer_with_changed_count_is_malformed() {
    for count in [2, 201, u32::MAX] {
        // The driver's number for 33 stands in it.
        let outcome = check(0x2080_018e, 14408, &[(0, 1), (8, 33)], &[(8, 1033)], &[(0, count)], &[(0, count)]);
        assert_eq!(outcome, Outcome::Not(Reason::Malformed));
    }
}

#[test]
fn memory_query_uses_host_pid_and_returns_callers() {
    for (cmd, stride) in [(0x2080_018e, 72), (0x2080_018e, 48), (0x0080_0203, 40)] {
        let requested = [vec![(0, 4)], column(8, stride, &[2, 33, 415, 0])].concat();
        let seen = column(8, stride, &[1002, 1033, 0x7fff_ffff, 0]);
        let answer = column(8 + 16, stride, &[84, 43]);
        // The caller's PIDs are back.
        let outcome = check(cmd, 8 + 200 * stride, &requested, &seen, &answer, &[&requested[..], &answer].concat());
        assert_eq!(outcome, Outcome::Rewritten { kept: 4, hidden: 0 });
    }
}

#[test]
fn request_beyond_table_translates_to_no_process() {
    let mut bytes = vec![0; 14408];
    put(&mut bytes, 0, u32::MAX);
    for i in 0..200 {
        put(&mut bytes, 8 + 72 * i, 415);
    }
    call(0x2080_018e, &mut bytes, |bytes| {
        assert!((0..200).all(|i| get(bytes, 8 + 72 * i) == 0x7fff_ffff));
    });
}

#[test]
fn accounting_answers_for_own_processes_only() {
    for (cmd, size) in RECORDS {
        for (pid, host) in [(2, 1002), (415, 0x7fff_ffff)] {
            check(cmd, size, &[(4, pid)], &[(4, host)], &[], &[(4, pid)]);
        }
    }
}

/// The two controls with one process's accounting record.
const RECORDS: [(u32, usize); 2] = [(0xb03, 48), (0xb06, 64)];

/// Process 1033 started at 5,000,000.
#[test]
fn accounting_record_older_than_process_is_hidden() {
    for (cmd, size) in RECORDS {
        for (began, is_own) in [(4_999_999, false), (5_000_000, true)] {
            assert_eq!(record(cmd, size, 33, &[(16, 77), (32, began)]), is_own.then_some((33, 77)), "{cmd:#x}");
        }
    }
}

/// Queries the record of a process. Returns the PID and one field, none if the answer is empty.
fn record(cmd: u32, size: usize, pid: u32, driver: Words<'_>) -> Option<(u32, u32)> {
    let mut bytes = laid(size, &[(4, pid)]);
    let mut call = begin(cmd, size);
    let mut requested = [0];
    call.copied_in(PARAMS, &mut bytes, &Namespace, &mut requested);
    lay(&mut bytes, driver);
    match call.copying_out(PARAMS, &mut bytes, &Namespace, &requested).copied {
        Copied::All => Some((get(&bytes, 4), get(&bytes, 16))),
        copied => {
            assert_eq!((copied, bytes), (Copied::NoSuchProcess, vec![0; size]));
            None
        }
    }
}

/// If an answer is translated late, the caller can change the PID in it: any other than the requested one becomes none.
#[test]
fn accounting_record_of_other_pid_is_cleared() {
    for (named, is_own) in [(1002, true), (1033, false), (415, false), (4000, false)] {
        assert_eq!(record(0xb03, 48, 2, &[(4, named), (16, 77)]), is_own.then_some((2, 77)), "of {named}");
    }
}

/// A process that ended during the call: its PID may be in an earlier process's record. Another process can take the PID between the
/// map's two answers.
#[test]
fn accounting_record_of_ended_process_is_hidden() {
    struct Ended {
        view: Option<u32>,
        started: Option<u64>,
    }
    impl PidMap for Ended {
        fn view_of(&self, _: HostPid) -> Option<ViewPid> {
            self.view.and_then(ViewPid::new)
        }
        fn host_of(&self, _: ViewPid) -> Option<HostPid> {
            None
        }
        fn started(&self, _: HostPid) -> Option<u64> {
            self.started
        }
    }
    let found = [(None, None), (Some(33), None), (None, Some(5_000_000))];
    for ((cmd, size), (view, started)) in RECORDS.into_iter().flat_map(|record| found.map(|found| (record, found))) {
        let mut bytes = laid(size, &[(4, 33)]);
        let (mut call, mut requested) = (begin(cmd, size), [0]);
        call.copied_in(PARAMS, &mut bytes, &Namespace, &mut requested);
        lay(&mut bytes, &[(16, 77), (32, 6_000_000)]);
        let copied = call.copying_out(PARAMS, &mut bytes, &Ended { view, started }, &requested).copied;
        assert_eq!((copied, bytes), (Copied::NoSuchProcess, vec![0; size]), "{cmd:#x}");
    }
}

#[test]
fn question_without_room_names_no_process() {
    for (cmd, size) in RECORDS {
        let mut bytes = laid(size, &[(4, 2)]);
        begin(cmd, size).copied_in(PARAMS, &mut bytes, &Namespace, &mut []);
        assert!(bytes == laid(size, &[(4, PID_WITHOUT_PROCESS)]), "{cmd:#x}");
    }
}

#[test]
fn question_is_taken_once_and_only_for_driver() {
    let (cmd, size) = RECORDS[0];
    let mut bytes = laid(size, &[(4, 2)]);
    let mut call = begin(cmd, size);
    assert_eq!(call.requested_count(PARAMS, &bytes), 1);
    call.copied_in(PARAMS, &mut bytes, &Namespace, &mut [0]);
    assert_eq!(call.requested_count(PARAMS, &bytes), 0, "the bytes hold the driver's number now");
}

#[test]
fn call_names_its_control_samples_and_answer() {
    let cases = [
        (0x2080_018d, 3812, Control::GpuGetPids, false),
        (0x2080_2083, 24, Control::PerfGpumonUtil, true),
        (0x2080_2096, 16 + 72 * (8 + 6 * 128), Control::PerfGpumonUtilV2, true),
        (0x2080_016e, 16, Control::NvencSessions, false),
    ];
    for (cmd, size, control, samples) in cases {
        let mut call = begin(cmd, size);
        assert_eq!((call.control(), call.samples(), call.answered()), (Some(control), samples, false), "{cmd:#x}");
        call.copying_out(PARAMS, &mut vec![0; size], &Namespace, &[]);
        assert!(call.answered(), "{cmd:#x}");
    }
}

#[test]
fn accounting_list_holds_own_processes_once() {
    for pids in [&[415, 1033, 1002][..], &[1033, 1002, 415, 1033, 1002]] {
        let answer = [vec![(16008, pids.len() as u32)], column(8, 4, pids)].concat();
        check(0xb04, 16012, &[], &[], &answer, &[(16008, 2), (8, 33), (12, 2)]);
    }
}

/// The driver is asked for all entries.
#[test]
fn session_count_covers_only_own_processes() {
    for cmd in [0x2080_01af, 0x2080_01a9] {
        let answer = [vec![(0, 3)], column(4, 32, &[415, 1033, 415])].concat();
        check(cmd, 16388, &[], &[(0, 512)], &answer, &[(0, 1)]);
    }
}

#[test]
fn small_session_table_shows_own_sessions() {
    let answer = [vec![(0, 4)], column(4, 32, &[415, 1033, 415, 1002])].concat();
    check(0x2080_01af, 16388, &[(0, 1)], &[(0, 512)], &answer, &[(0, 1), (4, 33)]);
}

#[test]
fn sessions_move_whole() {
    for (cmd, size, stride) in [(0x2080_01af, 16388, 32), (0x2080_01a9, 16388, 32), (0x2080_017c, 13316, 52)] {
        let mut bytes = vec![0; size];
        put(&mut bytes, 0, 512);
        call(cmd, &mut bytes, |bytes| {
            put(bytes, 0, 3);
            for (i, pid) in [415, 1033, 415].into_iter().enumerate() {
                bytes[4 + stride * i..4 + stride * (i + 1)].fill(0xa0 + i as u8);
                put(bytes, 4 + stride * i, pid);
            }
        });
        assert_eq!((get(&bytes, 0), get(&bytes, 4)), (1, 33));
        assert!(bytes[8..4 + stride].iter().all(|b| *b == 0xa1), "the session's other fields came along");
        assert!(bytes[4 + stride..].iter().all(|b| *b == 0), "and nothing is left of the others");
    }
}

#[test]
fn samples_lose_foreign_pids_and_kernel_addresses() {
    for (size, capacity, engines, engine) in
        [(47216, 100, 4, 116), (34000, 72, 4, 116), (50704, 72, 6, 116), (55888, 72, 6, 128)]
    {
        let stride = 8 + engines * engine;
        let at = |slot: usize, e: usize| 16 + slot * stride + 8 + e * engine;
        let mut bytes = vec![0; size];
        call(0x2080_2096, &mut bytes, |bytes| {
            for slot in 0..capacity {
                for e in 0..engines {
                    let at = at(slot, e);
                    bytes[at..at + engine].fill(0x5a);
                    put(bytes, at, 40);
                    put(bytes, at + 8, [1033, 415, 0xffff_ffff][(slot + e) % 3]);
                }
            }
        });
        for slot in 0..capacity {
            for e in 0..engines {
                let at = at(slot, e);
                let record = &bytes[at..at + engine];
                match (slot + e) % 3 {
                    0 => assert_eq!((get(record, 0), get(record, 8), record[16]), (40, 33, 0x5a)),
                    // A foreign graphics record counts for an own process, empty; any other is idle.
                    1 => {
                        let (pid, sub) = if e == 1 { (33, 0) } else { (0xffff_ffff, 0xffff_ffff) };
                        assert_eq!((get(record, 0), get(record, 8), get(record, 12)), (0, pid, sub));
                        assert!(record[16..116].iter().all(|b| *b == 0));
                    }
                    _ => assert_eq!((get(record, 0), get(record, 8)), (40, 0xffff_ffff)),
                }
                if engine == 128 {
                    assert!(record[120..].iter().all(|b| *b == 0), "kernel address");
                }
            }
        }
    }
}

/// A ring of slots of the 580 layout, newest first: (graphics pid, utilisation). Returns graphics (pid, util) per slot.
fn graphics_after(ring: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let stride = 776;
    let start = 5; // The ring has turned: the newest slot is not the first.
    let place = |age: usize| 16 + ((start + ring.len() - age) % ring.len()) * stride;
    let mut bytes = vec![0; 55888];
    for slot in 0..72 {
        for e in 0..6 {
            put(&mut bytes, 16 + slot * stride + 8 + e * 128 + 8, 0xffff_ffff);
        }
    }
    for (age, (pid, util)) in ring.iter().enumerate() {
        put(&mut bytes, place(age), 1000 - age as u32);
        put(&mut bytes, place(age) + 8 + 128, *util);
        put(&mut bytes, place(age) + 8 + 128 + 8, *pid);
    }
    call(0x2080_2096, &mut bytes, |_| {});
    (0..ring.len()).map(|age| (get(&bytes, place(age) + 144), get(&bytes, place(age) + 136))).collect()
}

#[test]
fn hidden_sample_goes_to_nearest_newer_owner() {
    const IDLE: u32 = 0xffff_ffff;
    let ring = [(415, 40), (1002, 10), (415, 40), (IDLE, 0), (415, 30), (1033, 50), (415, 40), (415, 1)];
    let expected = [(2, 0), (2, 10), (2, 0), (IDLE, 0), (2, 0), (33, 50), (33, 0), (33, 0)];
    assert_eq!(graphics_after(&ring), expected);
}

#[test]
fn samples_without_own_process_are_idle() {
    let ring = [(415, 40); 8];
    assert_eq!(graphics_after(&ring), [(0xffff_ffff, 0); 8]);
}

/// NVML's figure from 535 on: a process's sum over the slots with a process.
fn figure(ring: &[(u32, u32)], pid: u32) -> f64 {
    let busy = ring.iter().filter(|(pid, _)| *pid != 0xffff_ffff).count();
    ring.iter().filter(|(of, _)| *of == pid).map(|(_, util)| f64::from(*util)).sum::<f64>() / busy as f64
}

#[test]
fn own_utilisation_equals_hosts_view() {
    let ring = [(415, 4000), (1002, 1000), (415, 4000), (1002, 2000), (0xffff_ffff, 0), (1002, 3000), (1033, 5000)];
    let seen = graphics_after(&ring);
    for (host, view) in PAIRS {
        assert_eq!(figure(&ring, host), figure(&seen, view), "process {view}");
    }
}

const BUFFER: u64 = 0x7f00_0000_1000;

/// A control whose answer goes to a buffer of the caller, copied out before the parameters, as RM does; `count` is the driver's. Returns
/// how much of the buffer the caller gets.
fn embedded(cmd: u32, params: &mut [u8], pointer_at: usize, inner: &mut [u8], count_at: usize, count: u32) -> Copied {
    params[pointer_at..pointer_at + 8].copy_from_slice(&BUFFER.to_le_bytes());
    let mut call = begin(cmd, params.len());
    call.copied_in(PARAMS, params, &Namespace, &mut []);
    let answer = call.copying_out(BUFFER, inner, &Namespace, &[]);
    assert!(answer.outcome.is_some());
    put(params, count_at, count);
    call.copying_out(PARAMS, params, &Namespace, &[]);
    assert_eq!(params[pointer_at..pointer_at + 8], BUFFER.to_le_bytes());
    answer.copied
}

fn sessions(pids: &[u32]) -> Vec<u8> {
    let mut inner = vec![0; 32 * 512];
    for (i, pid) in pids.iter().enumerate() {
        put(&mut inner, 32 * i, *pid);
        put(&mut inner, 32 * i + 8, pid + 1);
    }
    inner
}

#[test]
fn embedded_sessions_count_like_inline_ones() {
    let mut params = vec![0; 16];
    put(&mut params, 0, 512);
    // Beyond the count the driver filled nothing, even if it looks like a session.
    let mut inner = sessions(&[415, 1033, 2, 1002, 1002]);
    assert_eq!(embedded(0x2080_016e, &mut params, 8, &mut inner, 0, 4), Copied::First(512 * 32));
    assert_eq!(get(&params, 0), 2);
    assert_eq!((get(&inner, 0), get(&inner, 8), get(&inner, 32), get(&inner, 40)), (33, 1034, 2, 1003));
    assert!(!inner.chunks(4).any(|word| get(word, 0) == 415));
}

/// `NV2080_CTRL_CMD_FB_CLIENT_ALLOCATION_INFO` of ctrl2080fb.h: entries of 112 bytes, whose second word is the PID.
#[test]
fn allocations_of_others_are_left_out() {
    let mut params = vec![0; 32];
    put(&mut params, 16, 3);
    let mut inner = vec![0; 112 * 3];
    for (i, pid) in [415, 1033, 415].into_iter().enumerate() {
        inner[112 * i..112 * (i + 1)].fill(0xa0 + i as u8);
        put(&mut inner, 112 * i + 4, pid);
    }
    embedded(0x2080_1349, &mut params, 24, &mut inner, 16, 3);
    assert_eq!((get(&params, 16), get(&inner, 4)), (1, 33));
    assert!(inner[8..112].iter().all(|byte| *byte == 0xa1), "the entry's other fields came along");
    assert!(!inner.chunks_exact(4).any(|word| get(word, 0) == 415));
}

#[test]
fn small_session_buffer_shows_own_sessions() {
    let mut params = vec![0; 16];
    put(&mut params, 0, 1);
    let mut inner = sessions(&[415, 9999, 1033, 1002]);
    let copied = embedded(0x2080_016e, &mut params, 8, &mut inner, 0, 4);
    assert_eq!((copied, get(&params, 0), get(&inner, 0)), (Copied::First(32), 1, 33));
}

#[test]
fn session_count_without_pointer_covers_only_own() {
    let (mut params, mut inner) = (vec![0; 16], sessions(&[415, 1033, 9999]));
    let mut call = begin(0x2080_016e, 16);
    call.copied_in(PARAMS, &mut params, &Namespace, &mut []);
    let pointer = u64::from_le_bytes(params[8..16].try_into().unwrap());
    assert!(
        get(&params, 0) == 512 && (1..4096).contains(&pointer),
        "the driver copies all of it to where nothing can be"
    );
    assert_eq!(call.copying_out(pointer, &mut inner, &Namespace, &[]).copied, Copied::First(0));
    put(&mut params, 0, 3);
    assert_eq!(call.copying_out(PARAMS, &mut params, &Namespace, &[]).copied, Copied::All);
    let mut expected = vec![0; 16];
    put(&mut expected, 0, 1);
    assert_eq!(params, expected);
}

#[test]
fn invalid_session_requests_reach_driver_unchanged() {
    for (count, pointer) in [(3, 0), (0, BUFFER), (513, BUFFER), (u32::MAX, BUFFER)] {
        let mut params = vec![0; 16];
        put(&mut params, 0, count);
        params[8..].copy_from_slice(&u64::to_le_bytes(pointer));
        let before = params.clone();
        begin(0x2080_016e, 16).copied_in(PARAMS, &mut params, &Namespace, &mut []);
        assert_eq!(params, before);
    }
}

#[test]
fn size_distinguishes_parameters_and_buffer_at_one_address() {
    let (mut params, mut inner) = (vec![0; 16], sessions(&[415, 1033]));
    put(&mut params, 0, 512);
    params[8..].copy_from_slice(&PARAMS.to_le_bytes());
    let mut call = begin(0x2080_016e, 16);
    call.copied_in(PARAMS, &mut params, &Namespace, &mut []);
    call.copying_out(PARAMS, &mut inner, &Namespace, &[]);
    put(&mut params, 0, 2);
    call.copying_out(PARAMS, &mut params, &Namespace, &[]);
    assert_eq!((get(&params, 0), get(&inner, 0)), (1, 33));
}

#[test]
fn samples_beyond_usual_hundred_are_rewritten_too() {
    let (mut params, mut inner) = (vec![0; 24], vec![0; 472 * 300 + 20]);
    for slot in 0..300 {
        put(&mut inner, 472 * slot + 16, 415);
    }
    put(&mut inner, 472 * 300 + 16, 415);
    embedded(0x2080_2083, &mut params, 16, &mut inner, 8, 300);
    assert!(!inner.chunks_exact(4).any(|word| get(word, 0) == 415));
}

#[test]
fn samples_behind_pointer_are_rewritten() {
    let (mut params, mut inner) = (vec![0; 24], vec![0; 472 * 3]);
    for (slot, pid) in [1002, 415, 0xffff_ffff].into_iter().enumerate() {
        put(&mut inner, 472 * slot + 16, pid);
    }
    embedded(0x2080_2083, &mut params, 16, &mut inner, 8, 3);
    let pids: Vec<u32> = (0..3).map(|slot| get(&inner, 472 * slot + 16)).collect();
    assert_eq!(pids, [2, 0xffff_ffff, 0xffff_ffff]);
}

/// A caller can have a buffer for samples where its parameters are, and as small.
#[test]
fn samples_at_address_of_parameters_are_cut() {
    for cmd in [0x2080_2083, 0x2080_a083] {
        let mut params = laid(24, &[(8, 24), (16, PARAMS as u32)]);
        let mut call = begin(cmd, 24);
        call.copied_in(PARAMS, &mut params, &Namespace, &mut []);
        let mut samples = laid(24, &[(16, 415)]);
        call.copying_out(PARAMS, &mut samples, &Namespace, &[]);
        assert_eq!(samples, [0; 24], "{cmd:#x}");
        let before = params.clone();
        call.copying_out(PARAMS, &mut params, &Namespace, &[]);
        assert_eq!((params, call.answered()), (before, true), "{cmd:#x}");
    }
}

/// Drivers of 515 to 545 and of 550 use the same number and size with different meanings.
#[test]
fn samples_of_two_meanings_are_not_shown() {
    let (mut params, mut inner) = (vec![0; 24], vec![0x11; 704 * 59]);
    embedded(0x2080_a083, &mut params, 16, &mut inner, 8, 3);
    assert!(inner.iter().all(|byte| *byte == 0));
}

#[test]
fn foreign_reservation_is_hidden() {
    check(0x90cc_0103, 12, &[], &[], &[(0, 1), (4, 415)], &[]);
    check(0x90cc_0103, 12, &[], &[], &[(0, 1), (4, 1033)], &[(0, 1), (4, 33)]);
}

#[test]
fn error_report_names_caller_as_it_knows_itself() {
    check(0x607, 2436, &[], &[], &[(32, 1002)], &[(32, 2)]);
}

#[test]
fn unknown_size_is_named() {
    let argument = Argument { cmd: ControlCmd(0x2080_018d), params: PARAMS, size: 3816 };
    assert_eq!(Call::begin(argument).err(), Some(Reason::UnknownSize));
}

/// Size alone must not decide: any control's buffer of such a length would be changed.
#[test]
fn unrelated_copy_of_row_size_passes_unchanged() {
    for row in mpu_abi::ROWS {
        let mut bytes: Vec<u8> = (0..row.params_size).map(|at| (at / 4 % 251) as u8).collect();
        let before = bytes.clone();
        for (cmd, address) in [(0x83de_0315, PARAMS), (row.cmd.0, PARAMS + 4), (0x2080_0101, PARAMS)] {
            let size = if cmd == row.cmd.0 { row.params_size } else { 16 };
            let mut call = begin(cmd, size as usize);
            assert_eq!(call.requested_count(address, &bytes), 0);
            call.copied_in(address, &mut bytes, &Namespace, &mut []);
            assert_eq!(call.copying_out(address, &mut bytes, &Namespace, &[]).outcome, None);
            assert_eq!(bytes, before, "{cmd:#x} at {address:#x}");
            assert!(!call.answered());
        }
    }
}

/// Laid out by hand, in numbers, independent of the rows.
#[test]
fn every_control_has_contract() {
    let text = include_str!("contract.rs").replace('_', "");
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let numbers: Vec<u32> = words
        .filter_map(|word| word.strip_prefix("0x"))
        .filter_map(|digits| u32::from_str_radix(digits, 16).ok())
        .collect();
    for control in Control::ALL {
        let mut rows = mpu_abi::ROWS.iter().filter(|row| row.control == control).peekable();
        // An event has no row.
        let has_one = rows.peek().is_none() || rows.any(|row| numbers.contains(&row.cmd.0));
        assert!(has_one, "{control:?} has a row, and no bytes of it are laid out here");
    }
}

#[test]
fn untranslated_call_is_unchanged() {
    let mut call = Call::untranslated();
    let mut bytes = vec![0; 14408];
    put(&mut bytes, 0, 1);
    put(&mut bytes, 8, 1002);
    let before = bytes.clone();
    call.copied_in(0, &mut bytes, &Namespace, &mut []);
    assert_eq!(call.copying_out(0, &mut bytes, &Namespace, &[]).outcome, None);
    assert_eq!(bytes, before);
}

#[test]
fn controls_without_pids_are_not_touched() {
    let mut call = begin(0x2080_0101, 16);
    assert!(!call.translates());
    for size in [4, 12, 16, 24, 32, 48, 564] {
        let mut bytes = vec![0xab; size];
        call.copied_in(PARAMS, &mut bytes, &Namespace, &mut []);
        assert_eq!(call.copying_out(PARAMS, &mut bytes, &Namespace, &[]).outcome, None);
        assert_eq!(bytes, vec![0xab; size]);
    }
}

#[test]
fn reasons_have_own_texts_and_places() {
    assert_eq!(Reason::ALL.len(), 9);
    for text in [Reason::name, Reason::explanation] {
        let texts: std::collections::HashSet<&str> = Reason::ALL.into_iter().map(text).collect();
        assert_eq!(texts.len(), Reason::ALL.len(), "{texts:?}");
    }
    for (place, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, place);
    }
}
