//! Properties for any bytes, sizes and namespaces.

mod namespace;

use mpu_abi::{Layout, ROWS, Row};
use mpu_core::{Argument, Call};
use namespace::{Namespace, get};
use proptest::prelude::*;

/// Host pids from 100 to 139, of which some are visible under 1 to 20.
fn namespace() -> impl Strategy<Value = Namespace> {
    proptest::collection::btree_map(100u32..140, 1u32..20, 0..12).prop_map(|pairs| {
        let mut used = Vec::new();
        Namespace(
            pairs
                .into_iter()
                .filter(|(_, view)| {
                    !used.contains(view) && {
                        used.push(*view);
                        true
                    }
                })
                .collect(),
        )
    })
}

fn begin(row: &Row, params: u64) -> Call {
    Call::begin(Argument { cmd: row.cmd, params, size: row.params_size }).unwrap()
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any row, any bytes of any length, described correctly or not: nothing panics.
    #[test]
    fn any_bytes_are_survived(
        row in 0..ROWS.len(), seed in any::<u64>(), len in 0usize..60_000, claim in any::<bool>(), map in namespace(),
    ) {
        let row = &ROWS[row];
        let len = if seed % 3 == 0 { len } else { row.params_size as usize };
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 56) as u8 & 0x83
        };
        let mut bytes: Vec<u8> = (0..len).map(|_| next()).collect();
        let begun = begin(row, if seed % 5 == 0 { 1 } else { seed });
        let mut call = if claim { begun } else { Call::untranslated() };
        let room = call.requested_count(seed, &bytes);
        prop_assert!(room <= 200);
        let mut requested = vec![0; if seed % 2 == 0 { room } else { room / 2 }];
        call.copied_in(seed, &mut bytes, &map, &mut requested);
        call.copying_out(seed, &mut bytes, &map, &requested);
        prop_assert_eq!(bytes.len(), len);
    }

    /// A rewritten list has the visible PIDs in the driver's order, every other field of a kept entry unchanged, and zeroes behind them.
    #[test]
    fn list_holds_only_own_rows_in_order(
        row in 0..ROWS.len(), pids in proptest::collection::vec(100u32..140, 0..250), map in namespace(),
    ) {
        let row = &ROWS[row];
        let Layout::List(rows) = row.layout else { return Ok(()) };
        let (first, stride, pid) = (usize::from(rows.first), usize::from(rows.stride), usize::from(rows.pid));
        let mut bytes = vec![0; row.params_size as usize];
        for (i, number) in pids.iter().enumerate() {
            let entry = &mut bytes[first + i * stride..first + (i + 1) * stride];
            entry.fill(i as u8 | 1);
            put(entry, pid, *number);
        }
        put(&mut bytes, usize::from(rows.count), pids.len() as u32);
        let before = bytes.clone();
        let mut call = begin(row, 0);
        call.copying_out(0, &mut bytes, &map, &[]);

        let own = pids.iter().enumerate().filter_map(|(i, host)| Some((i, *map.0.get(host)?)));
        let mut own: Vec<(usize, u32)> = own.collect();
        if rows.repeats {
            let mut seen = Vec::new();
            own.retain(|(_, view)| !seen.contains(view) && { seen.push(*view); true });
        }
        let mut expected = before.clone();
        expected[first..first + pids.len() * stride].fill(0);
        for (place, (was, view)) in own.iter().enumerate() {
            let entry = before[first + was * stride..first + (was + 1) * stride].to_vec();
            expected[first + place * stride..first + (place + 1) * stride].copy_from_slice(&entry);
            put(&mut expected, first + place * stride + pid, *view);
        }
        put(&mut expected, usize::from(rows.count), own.len() as u32);
        prop_assert_eq!(bytes, expected);
    }

    /// In and out again is the identity; in between the driver sees host PIDs or the PID of no process.
    #[test]
    fn questions_come_back_as_they_went(
        row in 0..ROWS.len(),
        pids in proptest::collection::vec(any::<u32>().prop_map(|n| if n % 2 == 0 { n % 30 } else { n }), 0..=200),
        map in namespace(),
    ) {
        let row = &ROWS[row];
        let Layout::Query(rows) = row.layout else { return Ok(()) };
        let at = |i: usize| usize::from(rows.first) + i * usize::from(rows.stride) + usize::from(rows.pid);
        let mut bytes = vec![0x11; row.params_size as usize];
        put(&mut bytes, usize::from(rows.count), pids.len() as u32);
        for (i, number) in pids.iter().enumerate() {
            put(&mut bytes, at(i), *number);
        }
        let before = bytes.clone();
        let mut call = begin(row, 0);
        prop_assert_eq!(call.requested_count(0, &bytes), pids.len());
        let mut requested = vec![0; pids.len()];
        call.copied_in(0, &mut bytes, &map, &mut requested);
        for (i, number) in pids.iter().enumerate() {
            let seen = get(&bytes, at(i));
            let own = map.0.iter().find(|(_, view)| *view == number).map(|(host, _)| *host);
            prop_assert_eq!(seen, if *number == 0 { 0 } else { own.unwrap_or(0x7fff_ffff) });
        }
        call.copying_out(0, &mut bytes, &map, &requested);
        prop_assert_eq!(bytes, before);
    }

    /// No foreign PID and no kernel address is left in samples; records of own processes change in the PID alone.
    #[test]
    fn samples_have_no_foreign_pid(
        row in 0..ROWS.len(), picks in proptest::collection::vec(0usize..42, 600), map in namespace(),
    ) {
        let row = &ROWS[row];
        let Layout::Samples(samples) = row.layout else { return Ok(()) };
        let engine = usize::from(samples.engine_stride);
        let mut bytes = vec![0x77; row.params_size as usize];
        let places: Vec<usize> = (0..usize::from(samples.capacity))
            .flat_map(|slot| (0..usize::from(samples.engines)).map(move |e| (slot, e)))
            .map(|(slot, e)| usize::from(samples.first) + slot * usize::from(samples.stride) + 8 + e * engine)
            .collect();
        for (i, at) in places.iter().enumerate() {
            let pid = match picks[i % picks.len()] { 40 => 0, 41 => 0xffff_ffff, n => 100 + n as u32 };
            put(&mut bytes, at + 8, pid);
        }
        let before = bytes.clone();
        let mut call = begin(row, 0);
        call.copying_out(0, &mut bytes, &map, &[]);
        for at in places {
            let (was, is) = (&before[at..at + engine], &bytes[at..at + engine]);
            if samples.kernel_pointer.is_some() {
                prop_assert_eq!(&is[120..128], &[0; 8]);
            }
            match map.0.get(&get(was, 8)) {
                Some(view) => {
                    prop_assert_eq!(get(is, 8), *view);
                    prop_assert_eq!(&is[..8], &was[..8]);
                    prop_assert_eq!(&is[12..116], &was[12..116]);
                }
                None => {
                    let pid = get(is, 8);
                    let own = map.0.values().any(|view| *view == pid) && get(is, 0) == 0;
                    prop_assert!(matches!(pid, 0 | 0xffff_ffff) || own);
                }
            }
        }
    }
}
