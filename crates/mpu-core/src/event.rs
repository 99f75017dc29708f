//! Translates an event for its subscriber.

use crate::bytes::{get_u32, put_u32};
use crate::pid::{HostPid, PidMap};
use crate::reason::{Outcome, Reason};
use mpu_abi::{Control, event};

/// The driver is about to copy an event's data to its caller: the PID in it becomes the caller's number for that process, or 0. Returns
/// what to count, if anything. An event of unknown length passes, counted.
pub fn translate_event(bytes: &mut [u8], map: &impl PidMap) -> Option<(Control, Outcome)> {
    if bytes.len() != event::SIZE {
        return Some((Control::MemoryLimitEvent, Outcome::Not(Reason::UnknownSize)));
    }
    if !event::CARRYING.contains(&get_u32(bytes, event::INDEX)?) {
        return None;
    }
    let view = HostPid::new(get_u32(bytes, event::PID)?).and_then(|host| map.view_of(host));
    put_u32(bytes, event::PID, view.map_or(0, |view| view.get()));
    let kept = u32::from(view.is_some());
    Some((Control::MemoryLimitEvent, Outcome::Rewritten { kept, hidden: 1 - kept }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pid::ViewPid;

    /// A view of process 5000 as 7, and no other process.
    struct One;

    impl PidMap for One {
        fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
            (pid.get() == 5000).then(|| ViewPid::new(7)).flatten()
        }
        fn host_of(&self, _: ViewPid) -> Option<HostPid> {
            None
        }
        fn started(&self, _: HostPid) -> Option<u64> {
            None
        }
    }

    fn gone_out(words: [u32; 4]) -> ([u32; 4], Option<Outcome>) {
        let mut bytes = [0; 16];
        for (at, word) in words.into_iter().enumerate() {
            put_u32(&mut bytes, 4 * at, word);
        }
        let outcome = translate_event(&mut bytes, &One).map(|(_, outcome)| outcome);
        ([0, 4, 8, 12].map(|at| get_u32(&bytes, at).unwrap()), outcome)
    }

    #[test]
    fn limits_event_names_own_processes_alone() {
        for index in event::CARRYING {
            assert_eq!(
                gone_out([9, index, 5000, 3]),
                ([9, index, 7, 3], Some(Outcome::Rewritten { kept: 1, hidden: 0 }))
            );
            assert_eq!(
                gone_out([9, index, 5001, 3]),
                ([9, index, 0, 3], Some(Outcome::Rewritten { kept: 0, hidden: 1 }))
            );
        }
    }

    #[test]
    fn other_events_and_sizes_pass_unchanged() {
        assert_eq!(gone_out([9, 199, 5000, 3]), ([9, 199, 5000, 3], None));
        let mut longer = [200; 20];
        let unknown = Some((Control::MemoryLimitEvent, Outcome::Not(Reason::UnknownSize)));
        assert!(translate_event(&mut longer, &One) == unknown && longer == [200; 20]);
        assert_eq!(translate_event(&mut [], &One), unknown);
    }
}
