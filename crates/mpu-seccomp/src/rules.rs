//! libseccomp rules that split the requests of `ioctl`: the notify engine receives some, the kernel handles the others.
//!
//! In libseccomp a rule without a condition silently wins over one with a condition, in either order (seen with 2.5.4). So
//! if a profile allows `ioctl`, rules with conditions allow the other requests. No request matches rules of both kinds.
//!
//! The driver looks at a request's number and size only, so the rules ignore type and direction. Like the kernel, they
//! ignore the upper half of the argument register.
//!
//! Source: `mpu_abi::ioctl`; the kernel's `asm-generic/ioctl.h` (place of number and size); libseccomp 2.5,
//! seccomp_rule_add(3): `SCMP_CMP_MASKED_EQ` compares after a mask, and its first datum is the mask. OCI's `value` is
//! that first datum and `valueTwo` the second, in runc (`getCondition`) and crun (`libcrun_generate_seccomp`).

use mpu_abi::ioctl::{CONTROL, EVENT, REQUEST_MASK, WRAPPED};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// All requests that the engine receives.
const ENGINE_REQUESTS: [u32; 3] = [CONTROL, EVENT, WRAPPED];

/// Requests that equal `value` under `mask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requests {
    mask: u32,
    value: u32,
}

impl Requests {
    /// The rule with an action for them. It has one condition: runc treats several conditions on one argument as
    /// alternatives, and crun reads six at most.
    pub(super) fn rule(self, action: &str) -> Value {
        json!({
            "names": ["ioctl"],
            "action": action,
            "args": [{"index": 1, "value": self.mask, "valueTwo": self.value, "op": "SCMP_CMP_MASKED_EQ"}]
        })
    }
}

pub(super) fn engine_requests() -> Vec<Requests> {
    ENGINE_REQUESTS.map(|value| Requests { mask: REQUEST_MASK, value }).into()
}

/// All other requests. Each pattern fixes one or two bits to values that no request of [`ENGINE_REQUESTS`] has.
///
/// Compare each bit with the same bit of the first engine request. Two bits form a group if in every engine request both
/// are equal to the first's, or both differ. A request matches one of these patterns if
/// - a bit differs that is the same in all engine requests (`common`),
/// - the bits of one group disagree: going round the group, an equal bit is followed by a differing one (`mixed`), or
/// - two groups, by one bit of each, have a combination that no engine request has (`between`).
///
/// Pairs of groups are enough for these three requests: a test tries every request.
pub(super) fn other_requests() -> Vec<Requests> {
    let first = ENGINE_REQUESTS[0];
    let mut groups: BTreeMap<[bool; ENGINE_REQUESTS.len()], Vec<u32>> = BTreeMap::new();
    for bit in (0..u32::BITS).map(|at| 1 << at).filter(|bit| REQUEST_MASK & bit != 0) {
        groups.entry(ENGINE_REQUESTS.map(|one| (one ^ first) & bit != 0)).or_default().push(bit);
    }
    // The bit's value: the first request's, or the other one.
    let value_of = |bit: u32, differs: bool| if differs { !first & bit } else { first & bit };
    let pair = |(a, x), (b, y)| Requests { mask: a | b, value: value_of(a, x) | value_of(b, y) };
    let common = groups.remove(&[false; ENGINE_REQUESTS.len()]).unwrap_or_default();
    let common = common.into_iter().map(|bit| Requests { mask: bit, value: value_of(bit, true) });
    let cycle_patterns = |bits: &Vec<u32>| {
        let following = bits.iter().cycle().skip(1);
        let pairs = bits.iter().zip(following).filter(|(bit, next)| bit != next);
        pairs.map(|(bit, next)| pair((*bit, false), (*next, true))).collect::<Vec<_>>()
    };
    let mixed: Vec<_> = groups.values().flat_map(cycle_patterns).collect();
    let groups: Vec<_> = groups.iter().collect();
    let mut between = Vec::new();
    for (at, (one_differs, one)) in groups.iter().enumerate() {
        for (other_differs, other) in &groups[at + 1..] {
            let occurs = |x, y| one_differs.iter().zip(other_differs.iter()).any(|both| both == (&x, &y));
            let absent = [(false, true), (true, false), (true, true)].into_iter().filter(|(x, y)| !occurs(*x, *y));
            between.extend(absent.map(|(x, y)| pair((one[0], x), (other[0], y))));
        }
    }
    common.chain(mixed).chain(between).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(all: &[Requests], request: u64) -> usize {
        // As in the kernel's filter, a mask without upper bits ignores them.
        all.iter().filter(|one| request & u64::from(one.mask) == u64::from(one.value)).count()
    }

    /// Tries every number and size: 2²² of them.
    #[test]
    fn each_request_matches_exactly_one_kind_of_rule() {
        let (engine_requests, other_requests) = (engine_requests(), other_requests());
        let mut found = Vec::new();
        for number in 0..=0xffu32 {
            for size in 0..=0x3fffu32 {
                let request = size << 16 | number;
                let is_engine_request = matches(&engine_requests, request.into()) > 0;
                assert_eq!(matches(&other_requests, request.into()) == 0, is_engine_request, "{request:#x}");
                if is_engine_request {
                    found.push(request);
                }
            }
        }
        assert_eq!(found, ENGINE_REQUESTS);
        assert_eq!(other_requests.len(), 23, "fewer rules than bits would be a mistake, more a waste");
    }

    proptest! {
        #[test]
        fn request_bits_outside_mask_are_ignored(request: u64) {
            let (engine_requests, other_requests) = (engine_requests(), other_requests());
            let bare = request & u64::from(REQUEST_MASK);
            prop_assert_eq!(matches(&engine_requests, request), matches(&engine_requests, bare));
            prop_assert_eq!(matches(&other_requests, request), matches(&other_requests, bare));
            for one in ENGINE_REQUESTS {
                let ours = request & !u64::from(REQUEST_MASK) | u64::from(one);
                prop_assert!(matches(&engine_requests, ours) == 1 && matches(&other_requests, ours) == 0);
            }
        }
    }

    #[test]
    fn rule_has_oci_format() {
        assert_eq!(
            engine_requests()[0].rule("SCMP_ACT_NOTIFY").to_string(),
            r#"{"names":["ioctl"],"action":"SCMP_ACT_NOTIFY","args":[{"index":1,"value":1073676543,"valueTwo":2097194,"op":"SCMP_CMP_MASKED_EQ"}]}"#
        );
    }
}
