//! Checks the manual pages with mandoc and groff, and the names in the documentation's tables.

use mpu_core::Reason;
use mpu_host::exit::Exit;
use std::collections::BTreeSet;
use std::fs;

/// mandoc's own check (mandoc(1), "Diagnostics") and groff's warnings, each where it is installed.
#[test]
fn manual_pages_are_sound() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut files = Vec::new();
    for (name, page) in mpu::manual::pages().expect("rendered") {
        files.push(dir.path().join(name + ".1"));
        fs::write(&files[files.len() - 1], page).expect("written");
    }
    assert!(files.len() > 15, "{files:?}");
    for (tool, arguments) in [("mandoc", &["-T", "lint", "-W", "warning"][..]), ("groff", &["-ww", "-man", "-z"])] {
        match std::process::Command::new(tool).args(arguments).args(&files).output() {
            Err(_) => println!("skipped: no {tool}"),
            Ok(found) => {
                let output =
                    String::from_utf8_lossy(&found.stdout).into_owned() + &String::from_utf8_lossy(&found.stderr);
                // The pages have no date on purpose: the same sources give the same pages.
                let wrong: Vec<&str> = output.lines().filter(|line| !line.contains("missing date")).collect();
                assert!(wrong.is_empty(), "{tool}:\n{}", wrong.join("\n"));
            }
        }
    }
}

/// The names in a column of a page's table.
fn check_names(page: &str, header: &str, column: usize, expected: impl IntoIterator<Item = String>) {
    let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).expect("the page");
    let (_, table) = text.split_once(header).expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let names = rows.filter_map(|row| Some(row.split('|').nth(column)?.trim().trim_matches('`').to_owned()));
    assert_eq!(names.collect::<BTreeSet<_>>(), expected.into_iter().collect(), "docs/{page}");
}

#[test]
fn tables_have_every_metric_reason_and_exit_code() {
    let metrics = mpu::metrics::families::ALL.iter().map(|family| family.name.to_owned());
    check_names("metrics.md", "| metric | type |", 1, metrics);
    check_names("reasons.md", "| reason |", 1, Reason::ALL.map(|reason| reason.name().to_owned()));
    check_names("exit-codes.md", "| code |", 2, Exit::ALL.map(|exit| exit.name().to_owned()));
}
