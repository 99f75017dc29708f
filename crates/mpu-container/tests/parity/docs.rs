//! Checks that the documented differences and the cases with `differs` agree.

use std::collections::BTreeSet;

use crate::{AREAS, cases_of};

const PAGE: &str = include_str!("../../../../docs/container/README.md");
const HEADING: &str = "## Where it differs";

/// The names in the section: the bold text at the beginning of each item, which a reason must follow.
fn named(page: &str) -> Vec<String> {
    let section = page.split_once(HEADING).unwrap_or_else(|| panic!("no section {HEADING:?}")).1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let items = section.split("\n- ").skip(1).map(|item| item.split("\n\n").next().unwrap_or_default());
    let name = |item: &str| {
        let item = item.split_whitespace().collect::<Vec<_>>().join(" ");
        let (name, reason) =
            item.strip_prefix("**").and_then(|item| item.split_once("**")).unwrap_or_else(|| panic!("no name: {item}"));
        assert!(reason.len() > 20, "{name}: no reason");
        name.trim_end_matches('.').to_owned()
    };
    items.map(name).collect()
}

#[test]
fn differences_in_docs_and_cases_agree() {
    let listed: BTreeSet<String> = named(PAGE).into_iter().collect();
    let cases = AREAS.iter().flat_map(|(area, _)| cases_of(area));
    let shown: BTreeSet<String> = cases.filter_map(|case| case.differs).collect();
    let not_shown: Vec<_> = listed.difference(&shown).collect();
    let not_listed: Vec<_> = shown.difference(&listed).collect();
    assert!(not_shown.is_empty(), "docs/container/README.md lists what no case shows: {not_shown:#?}");
    assert!(not_listed.is_empty(), "cases show what docs/container/README.md does not list: {not_listed:#?}");
}

#[test]
fn difference_without_name_or_reason_is_refused() {
    let page = "## Where it differs\n\n- **A thing.** Because of a good\n  reason.\n- **B** because of another one.\n\n## x\n- y";
    assert_eq!(named(page), ["A thing", "B"]);
    for page in ["## Where it differs\n\n- A thing.\n", "## Where it differs\n\n- **A thing.** So.\n", "nothing"] {
        assert!(std::panic::catch_unwind(|| named(page)).is_err(), "{page}");
    }
}
