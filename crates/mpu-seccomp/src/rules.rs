//! Which calls of `ioctl` the notify engine receives, as rules that libseccomp takes.
//!
//! Owns the split of all requests into those that the engine receives and the rest. In libseccomp a rule without a condition
//! wins over one with a condition, silently and in either order (seen with 2.5.4); so, where a profile allows `ioctl`, the
//! rest is allowed by rules with conditions, too. No request matches rules of both kinds. Refuses to know profiles.
//!
//! The driver looks at a request's number and size only, so the rules do not look at its type and direction. Nor do they
//! look at the argument register's upper half, as the kernel does not.
//!
//! Outside truth: `mpu_abi::ioctl`; the kernel's `asm-generic/ioctl.h` (where number and size stand); libseccomp 2.5,
//! seccomp_rule_add(3): `SCMP_CMP_MASKED_EQ` compares after a mask, and its first datum is the mask. OCI's `value` is
//! that first datum and `valueTwo` the second, in runc (`getCondition`) and crun (`libcrun_generate_seccomp`).

use mpu_abi::ioctl::{
    NV_ESC_IOCTL_XFER_CMD, NV_ESC_RM_CONTROL, NV_ESC_RM_GET_EVENT_DATA, RM_CONTROL_SIZE, RM_EVENT_SIZE, XFER_SIZE,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Number and size of a request.
const MASK: u32 = 0x3fff_00ff;
/// RM control, 32 bytes.
const CONTROL: u32 = (RM_CONTROL_SIZE as u32) << 16 | NV_ESC_RM_CONTROL as u32;
/// What fetches an event, 16 bytes.
const EVENT: u32 = (RM_EVENT_SIZE as u32) << 16 | NV_ESC_RM_GET_EVENT_DATA as u32;
/// A wrapped request, 16 bytes.
const XFER: u32 = (XFER_SIZE as u32) << 16 | NV_ESC_IOCTL_XFER_CMD as u32;
/// All requests that the engine receives.
const TOLD: [u32; 3] = [CONTROL, EVENT, XFER];
const _: () = assert!(CONTROL == 0x0020_002a && EVENT == 0x0010_0052 && XFER == 0x0010_00d3);

/// Requests that are the same as `value` where `mask` has bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requests {
    mask: u32,
    value: u32,
}

impl Requests {
    /// The rule that does something with them. One condition for each rule: runtimes take several on one argument for
    /// alternatives (runc) and read six at most (crun).
    pub(super) fn rule(self, action: &str) -> Value {
        json!({
            "names": ["ioctl"],
            "action": action,
            "args": [{"index": 1, "value": self.mask, "valueTwo": self.value, "op": "SCMP_CMP_MASKED_EQ"}]
        })
    }
}

/// The requests that the engine receives.
pub(super) fn told() -> Vec<Requests> {
    TOLD.map(|value| Requests { mask: MASK, value }).into()
}

/// All the rest: what has one bit, or two bits side by side, as none of [`TOLD`] has them.
///
/// Bits that tell the same of them (each of [`TOLD`] has both as they are in the first of them, or both otherwise) are taken together:
/// of those, going round, one as in the first is followed by one otherwise somewhere, unless they agree. Then one bit of each such group stands
/// for it, and two groups are not as none of [`TOLD`] has them. Two are enough for these three requests; a test goes through all there are.
pub(super) fn rest() -> Vec<Requests> {
    let first = TOLD[0];
    let mut groups: BTreeMap<[bool; TOLD.len()], Vec<u32>> = BTreeMap::new();
    for bit in (0..u32::BITS).map(|at| 1 << at).filter(|bit| MASK & bit != 0) {
        groups.entry(TOLD.map(|one| (one ^ first) & bit != 0)).or_default().push(bit);
    }
    // As in the first of them, or otherwise.
    let has = |bit: u32, otherwise: bool| if otherwise { !first & bit } else { first & bit };
    let pair = |(a, x), (b, y)| Requests { mask: a | b, value: has(a, x) | has(b, y) };
    let common = groups.remove(&[false; TOLD.len()]).unwrap_or_default();
    let common = common.into_iter().map(|bit| Requests { mask: bit, value: has(bit, true) });
    let going_round = |bits: &Vec<u32>| {
        let following = bits.iter().cycle().skip(1);
        let round = bits.iter().zip(following).filter(|(bit, next)| bit != next);
        round.map(|(bit, next)| pair((*bit, false), (*next, true))).collect::<Vec<_>>()
    };
    let mixed: Vec<_> = groups.values().flat_map(going_round).collect();
    let groups: Vec<_> = groups.iter().collect();
    let mut between = Vec::new();
    for (at, (in_one, one)) in groups.iter().enumerate() {
        for (in_other, other) in &groups[at + 1..] {
            let is_had = |x, y| in_one.iter().zip(in_other.iter()).any(|had| had == (&x, &y));
            let never = [(false, true), (true, false), (true, true)].into_iter().filter(|(x, y)| !is_had(*x, *y));
            between.extend(never.map(|(x, y)| pair((one[0], x), (other[0], y))));
        }
    }
    common.chain(mixed).chain(between).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(all: &[Requests], request: u64) -> usize {
        // As the kernel's filter does: a mask without upper bits does not look at them.
        all.iter().filter(|one| request & u64::from(one.mask) == u64::from(one.value)).count()
    }

    /// Every number and size there is: 2²² of them.
    #[test]
    fn every_request_is_told_or_among_rest_and_never_both() {
        let (told, rest) = (told(), rest());
        let mut of_engine = Vec::new();
        for number in 0..=0xffu32 {
            for size in 0..=0x3fffu32 {
                let request = size << 16 | number;
                let is_told = matches(&told, request.into()) > 0;
                assert_eq!(matches(&rest, request.into()) == 0, is_told, "{request:#x}");
                if is_told {
                    of_engine.push(request);
                }
            }
        }
        assert_eq!(of_engine, [CONTROL, EVENT, XFER]);
        assert_eq!(rest.len(), 23, "fewer rules than bits would be a mistake, more a waste");
    }

    proptest! {
        #[test]
        fn request_bits_outside_mask_are_ignored(request: u64) {
            let (told, rest) = (told(), rest());
            let bare = request & u64::from(MASK);
            prop_assert_eq!(matches(&told, request), matches(&told, bare));
            prop_assert_eq!(matches(&rest, request), matches(&rest, bare));
            for one in TOLD {
                let ours = request & !u64::from(MASK) | u64::from(one);
                prop_assert!(matches(&told, ours) == 1 && matches(&rest, ours) == 0);
            }
        }
    }

    #[test]
    fn rule_is_as_runtimes_read_it() {
        assert_eq!(
            told()[0].rule("SCMP_ACT_NOTIFY").to_string(),
            r#"{"names":["ioctl"],"action":"SCMP_ACT_NOTIFY","args":[{"index":1,"value":1073676543,"valueTwo":2097194,"op":"SCMP_CMP_MASKED_EQ"}]}"#
        );
    }
}
