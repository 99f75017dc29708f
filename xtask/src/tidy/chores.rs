//! The chores of docs/how-to: each page says how many files its chore takes, and which; a test walks it.
//!
//! Knows the goals. What a page lists is looked up in the tree; for some chores a thing that is there shows that no other file
//! names it.

use std::collections::BTreeSet;
use std::path::Path;

use super::{quoted, read, tracked, with_ending};

/// A page, and how many files by hand its chore may take.
const CHORES: [(&str, usize); 5] =
    [("add-a-row", 3), ("a-new-driver", 1), ("a-command", 4), ("a-story", 3), ("a-cdi-bug", 3)];

/// A line of a page's table of files.
#[derive(Debug, PartialEq)]
struct File<'a> {
    path: &'a str,
    by_hand: bool,
    names: Vec<&'a str>,
}

/// The table below `## Files`.
fn files(page: &str) -> Vec<File<'_>> {
    let (_, below) = page.split_once("\n## Files\n").expect("a list of files");
    let rows = below.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with("| `"));
    let read = |row: &'_ str| -> Vec<String> { row.split('|').map(|cell| cell.trim().to_owned()).collect() };
    rows.map(|row| {
        let made = &read(row)[2];
        assert!(made == "by hand" || made == "by a test", "{row}");
        let mut words = quoted(row);
        let path = words.next().expect("a path");
        File { path, by_hand: made == "by hand", names: words.collect() }
    })
    .collect()
}

#[test]
fn chores_take_the_files_that_their_pages_say() {
    for (name, goal) in CHORES {
        let page = read(Path::new(&format!("docs/how-to/{name}.md")));
        let files = files(&page);
        for file in &files {
            let text = read(Path::new(file.path));
            assert!(!file.names.is_empty(), "{name}: nothing to look for in {}", file.path);
            for word in &file.names {
                assert!(text.contains(word), "{name}: {} has no {word}", file.path);
            }
        }
        let by_hand = files.iter().filter(|file| file.by_hand).count();
        assert!(by_hand <= goal, "{name} takes {by_hand} files by hand, and should take {goal}");
        // It stands in the page's first words, too.
        let opening = page.split("\n\n").nth(1).unwrap_or_default().replace('\n', " ");
        let claim = [format!("takes {by_hand} files by hand"), format!("takes {by_hand} file by hand")];
        assert!(claim.iter().any(|claim| opening.contains(claim)), "{name} takes {by_hand} files by hand: {opening}");
    }
}

/// Rust sources below some folders that have one of some words, except tests.
fn naming(folders: &[&str], words: &[&str]) -> BTreeSet<String> {
    let files = tracked();
    let below = |file: &&std::path::PathBuf| folders.iter().any(|folder| file.starts_with(folder));
    let has = |file: &&std::path::PathBuf| {
        let text = read(file);
        words.iter().any(|word| text.contains(word))
    };
    with_ending(&files, &["rs", "c", "h", "md"])
        .filter(below)
        .filter(has)
        .map(|file| file.display().to_string())
        .collect()
}

fn by_hand(name: &str) -> BTreeSet<String> {
    let page = read(Path::new(&format!("docs/how-to/{name}.md")));
    files(&page).into_iter().filter(|file| file.by_hand).map(|file| file.path.to_owned()).collect()
}

/// One that is there shows what it takes: product code names it in the row alone.
#[test]
fn a_control_is_named_in_its_row_its_contract_and_the_simulator() {
    let words = ["HwpmReservation", "HWPM_GET_RESERVATION", "90cc_0103", "0x90cc0103"];
    let product = ["crates", "kmod", "sim/driver"];
    assert_eq!(naming(&product, &words), by_hand("add-a-row"));
}

/// Whether the simulator knows each control, from the headers: a row without has no witness.
#[test]
fn the_simulator_answers_every_control() {
    let files = tracked();
    let text: String = with_ending(&files, &["c", "h"])
        .filter(|file| file.starts_with("sim"))
        .map(|file| read(file).to_lowercase())
        .collect();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(|word| word.strip_prefix("0x"));
    let numbers: BTreeSet<u32> =
        words.filter_map(|digits| u32::from_str_radix(digits.trim_end_matches('u'), 16).ok()).collect();
    for control in mpu_abi::Control::ALL {
        let mut rows = mpu_abi::ROWS.iter().filter(|row| row.control == control).peekable();
        let has_one = rows.peek().is_none() || rows.any(|row| numbers.contains(&row.cmd.0));
        assert!(has_one, "{control:?} has a row, and no program or driver of sim/ has its number");
    }
}

#[test]
fn a_command_is_named_in_its_own_file_the_folder_the_grammar_and_main() {
    let mut named = naming(&["crates/mpu/src"], &["Command::Down", "down::Done", "pub mod down;"]);
    named.insert("crates/mpu/src/commands/down.rs".to_owned());
    assert_eq!(named, by_hand("a-command"));
}

#[test]
fn a_story_is_named_where_it_is_written_listed_and_explained() {
    let story = naming(&["tests/guest/src/stories/namespaces.rs"], &["TWO_DEEP"]);
    assert_eq!(story.len(), 1);
    let text = read(Path::new("tests/guest/src/stories/namespaces.rs"));
    let (_, rest) = text.split_once("TWO_DEEP").unwrap();
    let name = rest.split('"').nth(1).unwrap();
    let mut named = naming(&["tests/guest", "docs/stories.md"], &["TWO_DEEP", name]);
    // What a made-up GPU lacks for it is more than the story.
    named.remove("tests/guest/src/real.rs");
    assert_eq!(named, by_hand("a-story"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let page = "# A\n\n## Files\n\n| file | made | what |\n|---|---|---|\n\
                    | `a/b` | by hand | `c` `d` |\n| `e` | by a test | `f` |\n\n| `g` | x |\n";
        let expected = [
            File { path: "a/b", by_hand: true, names: vec!["c", "d"] },
            File { path: "e", by_hand: false, names: vec!["f"] },
        ];
        assert_eq!(files(page), expected);
    }
}
