//! Fulfilled, unfulfilled and malformed conditions.

use super::*;
use proptest::prelude::*;

fn version(text: &str) -> Version {
    Version::parse(text).expect("a version")
}

fn h200() -> Facts {
    Facts {
        cuda: Some(version("13.0")),
        driver: Some(version("580.159.04")),
        arch: Some(version("9.0")),
        brand: Some("Tesla".into()),
    }
}

#[test]
fn conditions_compare_with_facts() {
    for (text, holds) in [
        (" , ,", true),
        ("cuda>=13.0", true),
        ("cuda>=13", true),
        ("cuda=13.0.0", true),
        ("cuda!12", true),
        ("cuda<14", true),
        ("CUDA>=12.0", true),
        ("driver>=580.159.4", true),
        ("driver<580.159.04", false),
        ("driver>580.159", true),
        ("driver<1000000000000000000000000000", true),
        ("driver>=580.95.05", true),
        ("arch>=8.9,arch<10", true),
        ("arch=9", true),
        ("brand!=GeForce", true),
        ("cuda>=14 brand=geforce,driver>=580 arch<8", false),
        ("cuda>=14  ", false),
        ("brand=geforce brand=quadro brand=tesla", true),
        (",cuda>=12,,brand=tesla,", true),
    ] {
        assert_eq!(check(text, &h200()).is_ok(), holds, "{text}");
    }
}

#[test]
fn unknown_facts_satisfy_every_condition() {
    for text in ["cuda>=99", "driver<1", "arch=x.y", "brand=none", "brand=a,cuda<1 x"] {
        assert_eq!(check(text, &Facts::default()), Ok(()), "{text}");
    }
    assert!(check("cuda>=99", &Facts { brand: None, ..h200() }).is_err());
}

#[test]
fn all_gpus_are_checked_or_driver_without_gpus() {
    let driver = Facts { arch: None, brand: None, ..h200() };
    let old = Facts { arch: Some(version("7.0")), ..h200() };
    let requirements = ["cuda>=12".to_string(), "arch>=8".to_string()];
    assert!(check_all(&requirements, &driver, &[]).is_ok());
    assert!(check_all(&requirements, &driver, &[h200()]).is_ok());
    assert!(check_all(&requirements, &driver, &[h200(), old]).is_err());
    assert!(check_all(&["cuda>=14".to_string()], &driver, &[]).is_err());
}

fn any_version() -> impl Strategy<Value = Vec<u16>> {
    proptest::collection::vec(prop_oneof![Just(0u16), 0u16..4, any::<u16>()], 1..5)
}

fn written(numbers: &[u16]) -> String {
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(".")
}

/// The numbers, padded with zeros: a second way to compare versions.
fn filled(numbers: &[u16]) -> Vec<u16> {
    let mut filled = numbers.to_vec();
    filled.resize(8, 0);
    filled
}

proptest! {
    #[test]
    fn versions_are_ordered_by_their_numbers(a in any_version(), b in any_version()) {
        let expected = filled(&a).cmp(&filled(&b));
        prop_assert_eq!(version(&written(&a)).cmp(&version(&written(&b))), expected);
        let facts = Facts { cuda: Some(version(&written(&a))), ..Facts::default() };
        for (operator, holds) in [
            ("=", expected.is_eq()), ("!=", expected.is_ne()), ("<", expected.is_lt()),
            ("<=", expected.is_le()), (">", expected.is_gt()), (">=", expected.is_ge()),
        ] {
            let text = format!("cuda{operator}{}", written(&b));
            prop_assert_eq!(check(&text, &facts).is_ok(), holds, "{}", text);
        }
    }

    #[test]
    fn any_text_is_evaluated_or_refused(text in "\\PC{0,40}") {
        if let Err(RequireError::Malformed { column, .. }) = check(&text, &h200()) {
            prop_assert!(column >= 1 && column <= text.chars().count() + 1);
        }
    }

    #[test]
    fn malformed_conditions_report_valid_column(text in "((cuda|driver|arch|brand|x)?[<>=!]{0,3}[0-9.a]{0,4}[ ,]{0,2}){0,5}") {
        if let Err(RequireError::Malformed { column, .. }) = check(&text, &h200()) {
            prop_assert!(column >= 1 && column <= text.len() + 1);
        }
    }

    #[test]
    fn spaces_mean_or_and_commas_mean_and(bits in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 1..4), 1..4)) {
        let word = |bit: &bool| if *bit { "cuda>=1" } else { "cuda<1" };
        let text: Vec<String> = bits.iter().map(|all| all.iter().map(word).collect::<Vec<_>>().join(",")).collect();
        let expected = bits.iter().any(|all| all.iter().all(|bit| *bit));
        prop_assert_eq!(check(&text.join(" "), &h200()).is_ok(), expected);
    }
}
