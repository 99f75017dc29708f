//! The table of `docs/support.md`: each cell is one of four words, and a command that is named can be typed.

use std::path::Path;

use clap::Parser;

use super::read;
use crate::arch::Arch;
use crate::{kernels, Cli, Verb};

/// What a cell may begin with, and whether a command has to follow.
const WORDS: [(&str, bool); 4] = [("tested", true), ("built", true), ("expected", false), ("no", false)];

#[test]
fn each_cell_of_the_support_table_is_a_word_and_a_command() {
    let page = read(Path::new("docs/support.md"));
    let rows = page.lines().skip_while(|line| !line.starts_with("| kernels | processor |")).skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 8, "the table is not found");
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 5, "{row}");
        for cell in &cells[2..] {
            let (word, command) = cell.split_once(": ").unwrap_or((cell, ""));
            let known = WORDS.iter().find(|(known, _)| *known == word);
            let (_, wants_command) = known.unwrap_or_else(|| panic!("{cell}: none of the four words"));
            assert_eq!(*wants_command, !command.is_empty(), "{cell}");
            if *wants_command {
                can_be_typed(command, cells[1]);
            }
        }
    }
}

/// The command is one of ours, and its kernel is one that we have, of that processor.
fn can_be_typed(command: &str, processor: &str) {
    let words = command.trim_matches('`').split_whitespace();
    let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
    if let Verb::Guest(args) = cli.verb {
        if args.kernel_tree.is_some() {
            return assert_eq!(processor, "x86-64", "{command}");
        }
        let arch = kernels::arch_of(&args.kernel()).unwrap_or_else(|error| panic!("{command}: {error:#}"));
        let name = if arch == Arch::Amd64 { "x86-64" } else { arch.facts().debian };
        assert_eq!(name, processor, "{command}");
    }
}
