//! Which C file of a folder uses which other's functions and variables, as a test: no circle through more than two files.
//!
//! Reads C in the kernel's style: what a file gives others begins in the first column and is not `static`. Knows no macro.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::circles::long;
use super::{read, tracked};

/// Folders of C whose files know each other through one header.
const FOLDERS: [&str; 2] = ["kmod", "sim/driver"];

type Arrows = BTreeSet<(String, String)>;

/// Text without comments, strings, and what the preprocessor reads.
fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (end, keep) = match first {
            _ if rest.starts_with("/*") => (rest.find("*/").map(|at| at + 2), false),
            _ if rest.starts_with("//") => (rest.find('\n'), false),
            '#' => (end_of_directive(rest), false),
            '"' | '\'' => (end_of_literal(rest, first), false),
            _ => (Some(first.len_utf8()), true),
        };
        let (this, after) = rest.split_at(end.unwrap_or(rest.len()));
        out += if keep { this } else { " " };
        rest = after;
    }
    out
}

fn end_of_directive(text: &str) -> Option<usize> {
    text.match_indices('\n').map(|(at, _)| at).find(|at| !text[..*at].ends_with('\\'))
}

fn end_of_literal(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    let end = |(_, c): &(usize, char)| {
        let ends = *c == quote && !escaped;
        escaped = *c == '\\' && !escaped;
        ends
    };
    text.char_indices().skip(1).find(end).map(|(at, c)| at + c.len_utf8())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The names that a file gives others.
fn given(plain: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut depth = 0usize;
    let mut head = 0;
    for (at, c) in plain.char_indices() {
        match c {
            '{' => {
                if depth == 0 {
                    names.extend(name(&plain[head..at]));
                }
                depth += 1;
            }
            '}' => {
                depth = depth.saturating_sub(1);
                head = at + 1;
            }
            ';' if depth == 0 => {
                // A function without a body is only announced.
                let text = &plain[head..at];
                if !text.contains('(') || text.contains('=') {
                    names.extend(name(text));
                }
                head = at + 1;
            }
            _ => {}
        }
    }
    names
}

/// What a head such as `u32 f(int a)` or `const char v[] =` gives a name to; nothing where it is the file's own or a type.
fn name(head: &str) -> Option<&str> {
    let before = head.split(['(', '[', '=']).next()?;
    let all: Vec<&str> = words(before).collect();
    let (last, types) = all.split_last()?;
    let own = types.is_empty() || ["static", "extern", "typedef"].iter().any(|word| types.contains(word));
    // `struct tag` before a brace is a type of its own.
    let is_type = head == before && types.last().is_some_and(|word| ["struct", "union", "enum"].contains(word));
    (!own && !is_type).then_some(*last)
}

/// The names that stand in a text, those of types left out.
fn used(plain: &str) -> BTreeSet<&str> {
    let tags = ["struct", "union", "enum"];
    let before = [""].into_iter().chain(words(plain));
    words(plain).zip(before).filter(|(_, before)| !tags.contains(before)).map(|(word, _)| word).collect()
}

fn arrows(files: &BTreeMap<String, String>) -> Arrows {
    let plain: BTreeMap<&String, String> = files.iter().map(|(file, text)| (file, plain(text))).collect();
    let given: BTreeMap<&String, BTreeSet<&str>> = plain.iter().map(|(file, text)| (*file, given(text))).collect();
    let mut arrows = Arrows::new();
    for file in files.keys() {
        // One name in two files is one name in two programs.
        let used = used(&plain[file]).difference(&given[file]).copied().collect();
        let others = given.iter().filter(|(_, names)| !names.is_disjoint(&used));
        arrows.extend(others.map(|(other, _)| (file.clone(), (*other).clone())));
    }
    arrows
}

#[test]
fn c_files_do_not_go_round_in_circles() {
    for folder in FOLDERS {
        let listed = tracked().into_iter().filter(|file| {
            file.parent() == Some(Path::new(folder)) && file.extension().is_some_and(|ending| ending == "c")
        });
        let files: BTreeMap<String, String> =
            listed.map(|file| (file.file_name().unwrap().display().to_string(), read(&file))).collect();
        let arrows = arrows(&files);
        assert!(arrows.len() > 10, "{folder}: {} arrows found: the reader has lost its eyes", arrows.len());
        let circles = long(&arrows);
        assert!(circles.is_empty(), "{folder}: these files use each other in a circle: {circles:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        ("a.c", "u32 first(void)\n{\n\treturn second(\"third\"); /* third */\n}\nstatic int own;\n"),
        ("b.c", "#define X third\nu32 second(void);\nu32 second(void)\n{\n\treturn count + own;\n}\nstruct s {\n\tint x;\n};\n"),
        ("c.c", "atomic_t count = INIT(0);\nstruct s third = { .x = 1 };\nint table[3];\n"),
        ("d.c", "void last(void)\n{\n\tstruct first *f;\n\tstruct s *s = &third;\n\n\ttable[0] = s->x;\n}\n"),
    ];

    fn drawn(files: &[(&str, &str)]) -> Arrows {
        arrows(&files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn functions_and_variables_of_others_are_seen_and_words_in_comments_are_not() {
        let drawn = drawn(&FILES);
        let pairs: Vec<_> = drawn.iter().map(|(from, to)| (from.as_str(), to.as_str())).collect();
        assert_eq!(pairs, [("a.c", "b.c"), ("b.c", "c.c"), ("d.c", "c.c")]);
    }

    #[test]
    fn a_circle_is_found() {
        let mut files = FILES;
        files[2].1 = "atomic_t count = INIT(0);\nstruct s third = { .x = 1 };\nint table[3];\nint f(void)\n{\n\treturn first();\n}\n";
        let circle = ["a.c", "b.c", "c.c"].map(str::to_owned);
        assert_eq!(long(&drawn(&files)), [BTreeSet::from(circle)]);
    }
}
