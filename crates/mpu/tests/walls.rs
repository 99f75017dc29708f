//! The walls between the rooms of this crate, as ARCHITECTURE.md promises them: who may name whom.
//!
//! Read from the sources: a path from `crate::` or `super::` names a room. Tests may reach over every wall. That there is no circle
//! at all is `xtask`'s to see.

use std::fs;
use std::path::{Path, PathBuf};

/// A room, and what its product code may name of the crate.
struct Wall {
    room: &'static str,
    rule: Rule,
    why: &'static str,
}

enum Rule {
    /// These rooms and itself, and no other.
    Only(&'static [&'static str]),
    /// Anything but these.
    Never(&'static [&'static str]),
}
use Rule::{Never, Only};

const WALLS: [Wall; 12] = [
    Wall {
        room: "engine",
        rule: Only(&["signing", "sys"]),
        why: "an engine is raised and lowered without a word: words are the commands'",
    },
    Wall { room: "engine/notify", rule: Only(&["sys"]), why: "it is root's code on hostile input, to be read alone" },
    Wall { room: "engine/module", rule: Never(&["engine/notify"]), why: "engines do not know each other" },
    Wall { room: "signing", rule: Only(&[]), why: "who signs knows no engine" },
    Wall { room: "processes", rule: Never(&["engine"]), why: "processes are listed without an engine" },
    Wall { room: "listing", rule: Never(&["engine", "commands"]), why: "processes are shown without an engine" },
    Wall { room: "top", rule: Never(&["engine", "commands"]), why: "processes are shown without an engine" },
    Wall {
        room: "metrics",
        rule: Never(&["engine/module", "engine/notify", "rm", "probe", "commands", "report"]),
        why: "it asks the driver nothing itself, and sees engines through engine::observe",
    },
    Wall {
        room: "probe",
        rule: Never(&["commands", "report", "cli"]),
        why: "it measures and compares, and says nothing",
    },
    Wall {
        room: "agent",
        rule: Never(&["engine/notify", "commands", "report", "cli"]),
        why: "it keeps the module up: a supervisor in a pod would take the containers' calls with it",
    },
    Wall {
        room: "nri",
        rule: Only(&[]),
        why: "it knows the notify engine by its socket, and container engines by theirs",
    },
    Wall {
        room: "install",
        rule: Never(&["cli", "manual", "commands", "report"]),
        why: "it is handed what the command line says of itself",
    },
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The product code below a room, each file with its module's path.
fn files_of(room: &str) -> Vec<(Vec<String>, String)> {
    fn collect(at: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(at).expect("a folder").flatten().map(|entry| entry.path()) {
            match entry.is_dir() {
                true => collect(&entry, files),
                false => files.push(entry),
            }
        }
    }
    let mut files = Vec::new();
    collect(&sources().join(room), &mut files);
    let is_product =
        |path: &PathBuf| !["tests", "fake"].contains(&path.file_stem().unwrap_or_default().to_str().unwrap_or(""));
    let product = files.into_iter().filter(is_product).map(|path| {
        let inside = path.strip_prefix(sources()).expect("below src").with_extension("");
        let mut module: Vec<String> = inside.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        if module.last().is_some_and(|name| name == "mod") {
            module.pop();
        }
        (module, without_tests(&fs::read_to_string(&path).expect("a source")))
    });
    product.collect()
}

/// Test modules stand at the end of a file.
fn without_tests(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let is_tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].ends_with('{');
    let end = lines.windows(2).position(is_tests).unwrap_or(lines.len());
    let code = lines[..end].iter().filter(|line| !line.trim_start().starts_with("//"));
    code.copied().collect::<Vec<_>>().join("\n")
}

/// Every path in a text that leads somewhere in the crate, from its root.
fn named(module: &[String], text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, start) in text.match_indices("crate::").chain(text.match_indices("super::")) {
        if text[..at].ends_with(|c: char| is_name(c) || c == ':') {
            continue;
        }
        let mut path: Vec<String> = if start == "crate::" { Vec::new() } else { module.to_vec() };
        let end = text[at..].find(|c: char| !is_name(c) && c != ':').map_or(text.len(), |len| at + len);
        for name in text[at..end].split("::") {
            match name {
                "crate" | "" => {}
                "super" => drop(path.pop()),
                name => path.push(name.to_string()),
            }
        }
        found.push(path.join("/"));
    }
    found
}

/// What a room names and may not.
fn breaches(wall: &Wall, files: &[(Vec<String>, String)]) -> Vec<String> {
    let is_in =
        |path: &str, room: &str| path.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_wrong = |path: &String| match wall.rule {
        Only(rooms) => !is_in(path, wall.room) && !rooms.iter().any(|room| is_in(path, room)),
        Never(rooms) => rooms.iter().any(|room| is_in(path, room)),
    };
    let of_file = |(module, text): &(Vec<String>, String)| {
        let wrong = named(module, text).into_iter().filter(is_wrong);
        wrong.map(|path| format!("{} names {path}", module.join("/"))).collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

#[test]
fn no_room_names_what_it_must_not_know() {
    let mut all = Vec::new();
    for wall in &WALLS {
        let files = files_of(wall.room);
        assert!(!files.is_empty(), "there is no room {}", wall.room);
        all.extend(breaches(wall, &files).iter().map(|breach| format!("{breach}: {}", wall.why)));
    }
    assert!(all.is_empty(), "{all:#?}");
}

#[test]
fn a_breach_is_seen_however_it_is_written() {
    let module = ["engine".to_string(), "module".to_string(), "load".to_string()];
    let wall = |rule| Wall { room: "engine/module", rule, why: "" };
    let count = |rule, text: &str| breaches(&wall(rule), &[(module.to_vec(), without_tests(text))]).len();
    for line in [
        "use crate::engine::notify::client;",
        "use super::super::notify;",
        "fn x() { crate::engine::notify::raise::lower(host) }",
    ] {
        assert_eq!(count(Never(&["engine/notify"]), line), 1, "{line}");
        assert_eq!(count(Only(&["sys"]), line), 1, "{line}");
    }
    for line in [
        "use super::state;",
        "use crate::sys;",
        "// crate::engine::notify",
        "#[cfg(test)]\nmod tests {\nuse crate::top;",
    ] {
        assert_eq!(count(Never(&["engine/notify"]), line), 0, "{line}");
        assert_eq!(count(Only(&["sys"]), line), 0, "{line}");
    }
}
