//! Programs that know the language of manual pages read those of `mpu`.

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
