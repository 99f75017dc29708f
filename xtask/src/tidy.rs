//! What prose and manifests promise about the tree, as tests: paths exist, crates are on the map, arrows point one way, unsafe
//! stays where it may be, the contract names tests that are there.
//!
//! Reads files only; knows nothing of what the code does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::paths::repo;

mod arrows;
mod asked;
mod c_files;
mod chores;
mod circles;
mod imports;
mod probes;
mod promises;
mod support;
mod units;
mod walls;

/// Files that git knows, relative to the repository.
fn tracked() -> Vec<PathBuf> {
    let listed = std::process::Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(repo())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout).unwrap();
    let files: Vec<_> = text.lines().map(PathBuf::from).filter(|file| repo().join(file).is_file()).collect();
    assert!(files.len() > 50);
    files
}

fn with_ending<'a>(files: &'a [PathBuf], endings: &'a [&str]) -> impl Iterator<Item = &'a PathBuf> {
    files.iter().filter(move |file| endings.iter().any(|ending| file.extension().is_some_and(|found| found == *ending)))
}

fn read(file: &Path) -> String {
    fs::read_to_string(repo().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Words in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn paths_in_prose_exist() {
    let tops = ["crates/", "kmod/", "sim/", "tests/", "xtask/", "benches/", "fuzz/", "docs/", "packaging/"];
    let mut seen = 0;
    for page in with_ending(&tracked(), &["md"]) {
        let text = read(page);
        // Code blocks show commands and output, not paths.
        let prose: String = text.split("```").step_by(2).collect();
        let bare = prose.split_whitespace().map(|word| word.trim_matches(|c: char| "().,:;*".contains(c)));
        for word in quoted(&prose).chain(bare.filter(|word| word.starts_with("docs/"))) {
            let path = word.split(['#', '*', '{', ' ', '`', ',']).next().unwrap_or_default();
            if tops.iter().any(|top| path.starts_with(top)) && path == word.trim_end_matches('`') {
                seen += 1;
                assert!(repo().join(path).exists(), "{} names {path}, which is not there", page.display());
            }
        }
    }
    assert!(seen > 40, "{seen} paths found");
}

#[test]
fn map_has_every_crate_and_only_those() {
    let map = read(Path::new("ARCHITECTURE.md"));
    let named: BTreeSet<&str> =
        quoted(&map).filter(|word| word.starts_with("crates/") && word.matches('/').count() == 1).collect();
    let there = fs::read_dir(repo().join("crates")).unwrap();
    let there: BTreeSet<String> =
        there.map(|entry| format!("crates/{}", entry.unwrap().file_name().display())).collect();
    assert_eq!(named, there.iter().map(String::as_str).collect());
}

/// Columns at which prose wraps.
const PROSE: usize = 120;

/// Of the pages that a user reads; the map and the simulator's page are for those who read code.
#[test]
fn prose_wraps() {
    let is_for_users = |page: &&PathBuf| page.starts_with("docs") || page.components().count() == 1;
    let files = tracked();
    for page in with_ending(&files, &["md"]).filter(is_for_users).filter(|page| *page != Path::new("ARCHITECTURE.md")) {
        let mut in_code = false;
        for (number, line) in read(page).lines().enumerate() {
            let fence = line.starts_with("```");
            in_code ^= fence;
            // What a person copies, and tables, have the width that they need.
            let is_prose = !(in_code || fence || line.starts_with("    ") || line.trim_start().starts_with('|'));
            let width = line.chars().count();
            assert!(!is_prose || width <= PROSE, "{}:{}: {width} columns", page.display(), number + 1);
        }
    }
}

/// `docs/README.md` links every page, and only pages that are there.
#[test]
fn index_has_every_page_and_no_other() {
    let index = read(Path::new("docs/README.md"));
    let links = index.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
    let linked: BTreeSet<PathBuf> = links.map(|link| repo().join("docs").join(link).canonicalize().unwrap()).collect();
    for page in with_ending(&tracked(), &["md"]).filter(|page| page.starts_with("docs")) {
        let path = repo().join(page).canonicalize().unwrap();
        let is_listed = linked.iter().any(|link| path == *link || path.parent().is_some_and(|dir| dir == link));
        let is_index = page == Path::new("docs/README.md");
        assert!(is_listed || is_index, "docs/README.md does not link {}", page.display());
    }
}

/// Decisions excepted: their titles say what was decided.
#[test]
fn pages_open_with_what_they_are_for() {
    let is_page = |page: &&PathBuf| page.starts_with("docs") && !page.starts_with("docs/adr");
    for page in with_ending(&tracked(), &["md"]).filter(is_page) {
        let text = read(page);
        let opening = text.split("\n\n").nth(1).unwrap_or_default();
        assert!(opening.starts_with("This page "), "{} does not open with what it is for", page.display());
    }
}

#[test]
fn unsafe_stays_where_it_may_be() {
    let files = tracked();
    for file in with_ending(&files, &["rs"]) {
        let text = read(file);
        let allows = text.contains(concat!("allow(", "unsafe_code)"));
        let may = file.file_name().is_some_and(|name| name == "sys.rs");
        assert!(!allows || may, "{} allows unsafe code; only files named sys.rs may", file.display());
    }
    for file in with_ending(&files, &["toml"]).filter(|file| file.ends_with("Cargo.toml")) {
        let text = read(file);
        let kernel = file.starts_with("crates/mpu-kmod");
        let outside = file.starts_with("fuzz") || file == Path::new("Cargo.toml");
        assert!(kernel || outside || text.contains("[lints]\nworkspace = true"), "{} leaves the lints", file.display());
    }
}

#[test]
fn modules_open_with_what_they_own() {
    for file in with_ending(&tracked(), &["rs"]) {
        let text = read(file);
        let first = text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
        assert!(first.starts_with("//!"), "{} has no module documentation", file.display());
    }
}

#[test]
fn lines_fit() {
    for file in with_ending(&tracked(), &["rs", "c", "h", "S", "sh"]) {
        for (number, line) in read(file).lines().enumerate() {
            let width: usize = line.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum();
            // String literals of one sentence may be longer than code.
            assert!(width <= 150, "{}:{}: {width} columns", file.display(), number + 1);
        }
    }
}

#[test]
fn contract_names_tests_that_are_there() {
    let files = tracked();
    let code: String = with_ending(&files, &["rs"]).map(|file| read(file)).collect();
    let page = read(Path::new("docs/contract.md"));
    let mut proofs = 0;
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let names: Vec<&str> = quoted(row.rsplit(" | ").next().unwrap_or_default()).collect();
        assert!(!names.is_empty() || row.contains("pending"), "no proof named: {row}");
        for name in names {
            let function = format!("fn {name}(");
            let story = format!("\"{name}\"");
            assert!(
                code.contains(&function) || code.contains(&story),
                "docs/contract.md names {name}, which is no test and no story"
            );
            proofs += 1;
        }
    }
    assert!(proofs >= 14, "{proofs} proofs named");
}
