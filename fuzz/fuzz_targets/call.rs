//! Any bytes as any control's parameters, in and out: nothing panics, no stranger's PID comes through a PID field, and a
//! buffer that no row fits stays as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpu_abi::{ControlCmd, Layout, ROWS};
use mpu_core::{Argument, Call, HostPid, PidMap, ViewPid};

/// Host PIDs below 64 are visible, under their number plus 1000.
struct Namespace;

impl PidMap for Namespace {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        (pid.get() < 64).then(|| ViewPid::new(pid.get() + 1000)).flatten()
    }
    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        (1000..1064).contains(&pid.get()).then(|| HostPid::new(pid.get() - 1000)).flatten()
    }
    fn started(&self, pid: HostPid) -> Option<u64> {
        self.view_of(pid).map(|_| 0)
    }
}

fuzz_target!(|data: &[u8]| {
    let [pick, how, address, rest @ ..] = data else { return };
    let row = &ROWS[usize::from(*pick) % ROWS.len()];
    // Claimed as it is, claimed as something else, or of another size.
    let cmd = if how & 1 == 0 { row.cmd } else { ControlCmd(0x2080_0102) };
    let size = if how & 2 == 0 { row.params_size } else { row.params_size ^ 4 };
    let mut bytes = vec![0; if how & 4 == 0 { row.params_size as usize } else { rest.len() }];
    for (to, from) in bytes.iter_mut().zip(rest.iter().cycle()) {
        *to = *from;
    }
    let before = bytes.clone();
    let argument = Argument { cmd, params: 1, size };
    let mut call = Call::begin(argument).unwrap_or_else(|_| Call::untranslated());
    // The parameters, most of the time; else some other copy.
    let address = u64::from(*address).clamp(1, 8);
    let mut asked = vec![0; call.requested_count(address, &bytes)];
    call.copied_in(address, &mut bytes, &Namespace, &mut asked);
    let outcome = call.copying_out(address, &mut bytes, &Namespace, &asked).outcome;
    if !call.translates() || address != 1 && !matches!(row.layout, Layout::Embedded { .. }) {
        assert!(outcome.is_none());
        assert_eq!(bytes, before);
    }
    if let (Layout::List(rows), Some((_, mpu_core::Outcome::Rewritten { kept, .. }))) = (row.layout, outcome) {
        for entry in 0..kept as usize {
            let at = usize::from(rows.first) + entry * usize::from(rows.stride) + usize::from(rows.pid);
            let pid = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert!((1001..1064).contains(&pid), "a listed PID is one of the caller's");
        }
    }
});
