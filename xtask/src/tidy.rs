//! Rules about the tree without a lint: links have targets, unsafe code is in `sys.rs` only, lines fit. Its modules check imports between
//! files of a crate; deny.toml has those between crates.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::git_files;
use crate::paths::repo;

mod cycles;
mod forbidden_imports;
mod imports;

/// Tracked files, and untracked ones that git does not ignore, relative to the repository.
pub fn tracked() -> Vec<PathBuf> {
    let files: Vec<_> = git_files(repo()).unwrap().into_iter().map(PathBuf::from).collect();
    assert!(files.len() > 50);
    files
}

fn with_ending<'a>(files: &'a [PathBuf], endings: &'a [&str]) -> impl Iterator<Item = &'a PathBuf> {
    files.iter().filter(move |file| endings.iter().any(|ending| file.extension().is_some_and(|found| found == *ending)))
}

pub fn read(file: &Path) -> String {
    fs::read_to_string(repo().join(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The packages of the tree, as `cargo metadata` prints them.
fn packages() -> Vec<serde_json::Value> {
    let of = |manifest| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path", manifest]);
        let done = cargo.current_dir(repo()).output().unwrap();
        let metadata: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        metadata["packages"].as_array().unwrap().clone()
    };
    // The fuzz targets are a workspace of their own.
    ["Cargo.toml", "fuzz/Cargo.toml"].into_iter().flat_map(of).collect()
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// A page without its code blocks: those show commands and output.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// The anchors of a page's headings, as forges make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
    headings.map(|text| text.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn links_and_paths_in_pages_exist() {
    let tops = ["crates/", "kmod/", "sim/", "tests/", "xtask/", "benches/", "fuzz/", "docs/", "packaging/"];
    let (mut links, mut paths) = (0, 0);
    for page in with_ending(&tracked(), &["md"]) {
        let text = prose(&read(page));
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in targets.filter(|link| !link.contains("://")) {
            links += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.with_file_name("").join(path) };
            assert!(repo().join(&target).exists(), "{} links {link}, which is not there", page.display());
            let has_anchor = || anchors(&prose(&read(&target))).contains(anchor);
            assert!(anchor.is_empty() || has_anchor(), "{} links {link}: no such heading", page.display());
        }
        let bare = text.split_whitespace().map(|word| word.trim_matches(|c: char| "().,:;*".contains(c)));
        for word in quoted(&text).chain(bare.filter(|word| word.starts_with("docs/"))) {
            let path = word.split(['#', '*', '{', ' ', '`', ',']).next().unwrap_or_default();
            if tops.iter().any(|top| path.starts_with(top)) && path == word.trim_end_matches('`') {
                paths += 1;
                assert!(repo().join(path).exists(), "{} names {path}, which is not there", page.display());
            }
        }
    }
    assert!(links > 40 && paths > 40, "{links} links and {paths} paths found");
}

/// Each line of the contract names the tests and stories that prove it.
#[test]
fn contract_names_existing_tests() {
    let files = tracked();
    let code: String = with_ending(&files, &["rs"]).map(|file| read(file)).collect();
    let page = read(Path::new("docs/contract.md"));
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect();
    assert!(rows.len() > 4, "{rows:?}");
    for row in rows {
        let names: Vec<&str> = quoted(row.rsplit(" | ").next().unwrap_or_default()).collect();
        assert!(!names.is_empty(), "no proof named: {row}");
        for name in names {
            let is_there = code.contains(&format!("fn {name}(")) || code.contains(&format!("\"{name}\""));
            assert!(is_there, "docs/contract.md names {name}, which is no test and no story");
        }
    }
}

#[test]
fn unsafe_code_stays_in_sys_files() {
    let files = tracked();
    for file in with_ending(&files, &["rs"]) {
        let allows = read(file).contains(concat!("allow(", "unsafe_code)"));
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

/// rustfmt does not wrap comments and string literals.
#[test]
fn lines_fit() {
    for file in with_ending(&tracked(), &["rs", "c", "h", "S", "sh"]) {
        for (number, line) in read(file).lines().enumerate() {
            let width: usize = line.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum();
            assert!(width <= 150, "{}:{}: {width} columns", file.display(), number + 1);
        }
    }
}
