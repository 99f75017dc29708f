//! Checks the allowlist of `tests/gpu/taint.sh`, which calls a shared GPU: rows, and a few other controls.

use std::collections::BTreeSet;
use std::path::Path;

use crate::tidy::read;

/// Controls without a row: about a client's objects, counts beside rows, and the substitute in exchange races.
const BESIDE_ROWS: [u32; 5] = [0x201, 0x215, 0x2080_016d, 0x2080_017b, 0x2080_1303];

/// Rows that the test does not call on a real GPU, and why.
const EXCLUDED: &[(u32, &str)] = &[
    (0xb06, "of 610: the driver at hand does not have it, and what it does with an unknown number was not seen"),
    (0x2080_01a9, "of 525 alone, for the same reason"),
    (0x2080_a083, "a number of the vGPU manager's, for the same reason"),
    (0x2080_1349, "release drivers answer NOT_SUPPORTED"),
    (0x90cc_0103, "its object is the hardware performance monitor's"),
];

#[test]
fn taint_allowlist_covers_rows_with_reasons() {
    let text = read(Path::new("tests/gpu/taint.allowed"));
    let mut controls = BTreeSet::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (kind, number, how) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let number = u32::from_str_radix(number.trim_start_matches("0x"), 16).unwrap();
        assert!(["whole", "torn"].contains(&how), "{line}");
        assert!(words.count() > 2, "{line}: no reason");
        match kind {
            "control" => assert!(controls.insert(number), "{line}: named twice"),
            "class" => assert!([0x41, 0x80, 0x2080].contains(&number), "{line}: another object than a client's"),
            "escape" => assert_eq!(number, 0x52, "{line}"),
            _ => panic!("{line}: neither control nor class nor escape"),
        }
    }
    let rows: BTreeSet<u32> = mpu_abi::ROWS.iter().map(|row| row.cmd.0).collect();
    let excluded: BTreeSet<u32> = EXCLUDED.iter().map(|(number, _)| *number).collect();
    let expected: BTreeSet<u32> = rows.difference(&excluded).copied().chain(BESIDE_ROWS).collect();
    assert_eq!(controls, expected, "each row is asked, or is left out with a reason, and nothing else is asked");
    assert!(EXCLUDED.iter().all(|(number, why)| rows.contains(number) && !why.is_empty()));
}
