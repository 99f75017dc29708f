//! Replays answers of a real driver (tests/recordings/) through the core.

mod namespace;

use mpu_abi::ControlCmd;
use mpu_core::{Argument, Call};
use namespace::{Namespace, get};

const RECORDING: &str = include_str!("recordings/h200-580.159.04.txt");
const GPUMON: u32 = 0x2080_2096;
const ENGINES: usize = 6;
const GR: usize = 1;

struct Recorded {
    caller: &'static str,
    cmd: u32,
    before: Vec<u8>,
    after: Vec<u8>,
}

fn recorded() -> Vec<Recorded> {
    let calls: Vec<_> = RECORDING.lines().filter(|line| !line.starts_with('#')).map(parse).collect();
    assert!(calls.len() > 15, "the recording is there");
    calls
}

fn parse(line: &'static str) -> Recorded {
    let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')).unwrap();
    let size = field("size").parse().unwrap();
    Recorded {
        caller: line.split(' ').next().unwrap(),
        cmd: u32::from_str_radix(field("cmd"), 16).unwrap(),
        before: bytes(field("pre"), size),
        after: bytes(field("post"), size),
    }
}

fn bytes(runs: &str, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for run in runs.split(',').filter(|run| *run != "-") {
        let (at, hex) = run.split_once(':').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (i, pair) in hex.as_bytes().chunks(2).enumerate() {
            bytes[at + i] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
    }
    bytes
}

/// The recorded answer for a caller in a namespace with these (host, view) pairs.
fn view_for(pairs: &[(u32, u32)], call: &Recorded) -> Vec<u8> {
    let map = Namespace(pairs.iter().copied().collect());
    let mut bytes = call.before.clone();
    let argument = Argument { cmd: ControlCmd(call.cmd), params: 0, size: bytes.len() as u32 };
    let mut state = Call::begin(argument)
        .unwrap_or_else(|reason| panic!("{:#x} with {} bytes: {}", call.cmd, bytes.len(), reason.name()));
    let mut requested = vec![0; state.requested_count(0, &bytes)];
    state.copied_in(0, &mut bytes, &map, &mut requested);
    bytes.copy_from_slice(&call.after);
    state.copying_out(0, &mut bytes, &map, &requested);
    bytes
}

fn record_at(slot: usize, engine: usize) -> usize {
    16 + slot * 776 + 8 + engine * 128
}

fn listed(bytes: &[u8]) -> Vec<u32> {
    (0..get(bytes, 8) as usize).map(|i| get(bytes, 12 + 4 * i)).collect()
}

#[test]
fn every_recorded_control_has_row() {
    for call in recorded() {
        // The accounting mode (0xb02) names a vGPU, not a process.
        let expected = call.cmd != 0xb02;
        assert_eq!(
            mpu_abi::find(ControlCmd(call.cmd), call.before.len() as u32).is_some(),
            expected,
            "{:#x}",
            call.cmd
        );
    }
}

#[test]
fn host_list_becomes_containers() {
    for call in recorded().iter().filter(|call| call.caller.starts_with("host") && call.cmd == 0x2080_018d) {
        let raw = listed(&call.after);
        assert_eq!(listed(&view_for(&[(415, 7)], call)), if raw.is_empty() { vec![] } else { vec![7] });
        let empty = view_for(&[(416, 7)], call);
        assert_eq!(get(&empty, 8), 0);
        assert!(empty[12..].iter().all(|byte| *byte == 0));
    }
}

/// NVML's figure from release 535 on: a process's sum, over the slots whose graphics record has a process.
fn figure(bytes: &[u8], pid: u32, engine: usize) -> f64 {
    let busy: Vec<usize> = (0..72).filter(|slot| get(bytes, record_at(*slot, GR) + 8) != 0xffff_ffff).collect();
    let own = busy.iter().map(|slot| record_at(*slot, engine)).filter(|at| get(bytes, at + 8) == pid);
    own.map(|at| f64::from(get(bytes, at))).sum::<f64>() / busy.len() as f64
}

#[test]
fn figures_agree_with_real_nvml() {
    // nvmlDeviceGetProcessUtilization of 580.159.04 on these bytes: (424, sm 10, mem 1), (423, sm 7, mem 0). With 424's records given to 423 at
    // no utilisation it returned (423, sm 7, mem 0) again; with the idle PID in them, (423, sm 16, mem 2). NVML averages in whole percents
    // as it goes, so its figures are not exact; utilisation is in hundredths of a percent.
    let call = recorded().into_iter().find(|call| call.caller == "host-two-processes").unwrap();
    for (pid, engine, percent) in [(424, GR, 10.0), (423, GR, 7.0), (424, 0, 1.0), (423, 0, 0.0)] {
        let figure = figure(&call.after, pid, engine) / 100.0;
        assert!((figure - percent).abs() < 1.2, "{pid} on engine {engine}: {figure}");
    }
}

#[test]
fn own_figures_in_real_samples_are_the_hosts() {
    let mut compared = 0;
    for call in recorded().iter().filter(|call| call.cmd == GPUMON) {
        let own = if call.caller.starts_with("host-two") { [423, 424] } else { [2, 415] };
        for host in own {
            let seen = view_for(&[(host, 9)], call);
            for engine in 0..ENGINES {
                // NaN if no process was busy: then there is no figure, for the host and for the container.
                let (host, container) = (figure(&call.after, host, engine), figure(&seen, 9, engine));
                if figure(&call.after, own[0], engine) + figure(&call.after, own[1], engine) > 0.0 && host > 0.0 {
                    assert_eq!(host, container, "{} engine {engine}", call.caller);
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 8, "{compared} figures compared");
}

#[test]
fn recorded_samples_lose_foreign_pids_and_kernel_addresses() {
    let mut addresses = 0;
    for call in recorded().iter().filter(|call| call.cmd == GPUMON) {
        for own in [2, 415, 423, 424, 99_999] {
            let seen = view_for(&[(own, 9)], call);
            for at in (0..72).flat_map(|slot| (0..ENGINES).map(move |engine| record_at(slot, engine))) {
                addresses += usize::from(call.after[at + 120..at + 128] != [0; 8]);
                assert_eq!(seen[at + 120..at + 128], [0; 8]);
                assert!(
                    matches!(get(&seen, at + 8), 0 | 9 | 0xffff_ffff),
                    "{} shows {}",
                    call.caller,
                    get(&seen, at + 8)
                );
            }
        }
    }
    assert!(addresses > 100, "the recordings leak addresses to take out");
}

#[test]
fn native_answers_of_namespace_come_through_identity_unchanged() {
    // In the recording the driver translated by itself; so the driver's and the view's numbers are the same here.
    let same: Vec<_> = [2, 33, 58].map(|pid| (pid, pid)).to_vec();
    for call in recorded().iter().filter(|call| call.caller.starts_with("namespace") && call.cmd != GPUMON) {
        if call.cmd == 0xb02 {
            continue;
        }
        assert_eq!(view_for(&same, call), call.after, "{:#x}", call.cmd);
    }
}
