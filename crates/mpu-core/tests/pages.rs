//! Holds docs/reasons.md to the list of reasons.

use mpu_core::Reason;

#[test]
fn page_has_every_reason_with_its_sentence() {
    let page = include_str!("../../../docs/reasons.md");
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let expected: Vec<_> =
        Reason::ALL.iter().map(|reason| format!("| `{}` | {} |", reason.name(), reason.explanation())).collect();
    assert_eq!(rows, expected);
}
