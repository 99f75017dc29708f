//! The walls between rooms, as ARCHITECTURE.md promises them: who may name whom, as a test.
//!
//! Read from the sources: a path from `crate::` or `super::` names a room of the same crate, and one from `mpu_engine::` or another crate
//! of ours a room of that crate. Tests may reach over every wall. Circles are `circles`'s to see, arrows between crates `arrows`'s.

use std::fs;
use std::path::{Path, PathBuf};

use super::repo;

/// A room, and what its product code may not name: rooms, as crate and folders below its sources.
struct Wall {
    room: &'static str,
    never: &'static [&'static str],
    why: &'static str,
}

const WALLS: [Wall; 11] = [
    Wall { room: "mpu-engine/module", never: &["mpu-notify"], why: "engines do not know each other" },
    Wall {
        room: "mpu-engine/signing",
        never: &["mpu-engine/module", "mpu-engine/up", "mpu-engine/down", "mpu-notify"],
        why: "who signs knows no engine",
    },
    Wall { room: "mpu/processes", never: &["mpu-engine", "mpu-notify"], why: "processes are listed without an engine" },
    Wall {
        room: "mpu/listing",
        never: &["mpu-engine", "mpu-notify", "mpu/commands"],
        why: "processes are shown without an engine",
    },
    Wall {
        room: "mpu/top",
        never: &["mpu-engine", "mpu-notify", "mpu/commands"],
        why: "processes are shown without an engine",
    },
    Wall {
        room: "mpu/metrics",
        never: &["mpu-engine/module", "mpu-notify", "mpu-rm", "mpu/probe", "mpu/commands", "mpu/report"],
        why: "it asks the driver nothing itself, and sees engines through mpu_engine::observe",
    },
    Wall {
        room: "mpu/probe",
        never: &["mpu/commands", "mpu/report", "mpu/cli"],
        why: "it measures and compares, and says nothing",
    },
    Wall {
        room: "mpu/agent",
        never: &["mpu-notify", "mpu/commands", "mpu/report", "mpu/cli"],
        why: "it keeps the module up: a supervisor in a pod would take the containers' calls with it",
    },
    Wall {
        room: "mpu/cluster",
        never: &["mpu-engine", "mpu-notify", "mpu/agent", "mpu/commands", "mpu/report", "mpu/cli"],
        why: "it carries what is said, and knows nothing of what it says",
    },
    Wall {
        room: "mpu/nri",
        never: &["mpu-engine", "mpu-notify", "mpu/commands", "mpu/report", "mpu/cli"],
        why: "it knows the notify engine by its socket, and container engines by theirs",
    },
    Wall {
        room: "mpu/install",
        never: &["mpu/cli", "mpu/manual", "mpu/commands", "mpu/report"],
        why: "it is handed what the command line says of itself",
    },
];

/// A file's module, from its crate's name on, and its product code.
type Source = (Vec<String>, String);

/// The product code below a room.
fn files_of(room: &str) -> Vec<Source> {
    fn collect(at: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()) {
            match entry.is_dir() {
                true => collect(&entry, files),
                false => files.push(entry),
            }
        }
    }
    let (name, inside) = room.split_once('/').expect("a crate and a folder");
    let sources = repo().join("crates").join(name).join("src");
    let mut files = Vec::new();
    collect(&sources.join(inside), &mut files);
    let is_product =
        |path: &PathBuf| !["tests", "fake"].contains(&path.file_stem().unwrap_or_default().to_str().unwrap_or(""));
    let product = files.into_iter().filter(is_product).map(|path| {
        let inside = path.strip_prefix(&sources).expect("below src").with_extension("");
        let mut module = vec![name.to_string()];
        module.extend(inside.iter().map(|name| name.to_string_lossy().into_owned()));
        module.pop_if(|name| name == "mod");
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

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Every path in a text that leads somewhere in the crate of its module, or into another crate of ours.
fn named(module: &[String], text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, start) in ["crate::", "super::", "mpu_"].into_iter().flat_map(|start| text.match_indices(start)) {
        if text[..at].ends_with(|c: char| is_name(c) || c == ':') {
            continue;
        }
        let from = match start {
            "crate::" => module[..1].to_vec(),
            "super::" => module.to_vec(),
            _ => Vec::new(),
        };
        follow(from, &text[at..], &mut found);
    }
    found
}

/// Adds the paths that begin at a place and at `text`: one, or as many as a group in braces has. Gives what follows them.
fn follow<'a>(mut place: Vec<String>, text: &'a str, found: &mut Vec<String>) -> &'a str {
    let mut rest = text.trim_start();
    loop {
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        match &rest[..end] {
            "crate" | "self" | "" => {}
            "super" => drop(place.pop()),
            name if place.is_empty() => place.push(name.replace('_', "-")),
            name => place.push(name.to_string()),
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(further) => rest = further,
            None => break,
        }
        if let Some(mut group) = rest.strip_prefix('{') {
            while !group.is_empty() && !group.starts_with('}') {
                let after = follow(place.clone(), group, found);
                // What a path is renamed to, and whatever else stands before the next one.
                group = after
                    .trim_start_matches(|c| c != ',' && c != '}')
                    .trim_start_matches(|c: char| c == ',' || c.is_whitespace());
            }
            return group.strip_prefix('}').unwrap_or(group);
        }
    }
    found.push(place.join("/"));
    rest
}

/// What a room names and may not.
fn breaches(wall: &Wall, files: &[Source]) -> Vec<String> {
    let is_in =
        |path: &str, room: &str| path.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let of_file = |(module, text): &Source| {
        let wrong = named(module, text).into_iter().filter(|path| wall.never.iter().any(|room| is_in(path, room)));
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
    let module = ["mpu", "top", "view", "page"].map(str::to_string);
    let wall = Wall { room: "mpu/top", never: &["mpu-notify", "mpu/commands"], why: "" };
    let count = |text: &str| breaches(&wall, &[(module.to_vec(), without_tests(text))]).len();
    for line in [
        "use mpu_notify::client;",
        "use mpu_notify as other;",
        "use super::super::super::commands::up;",
        "fn x() { crate::commands::down::down(host) }",
        "use crate::{\n    sys,\n    report::{self as r, line},\n    commands::{up, down},\n};",
        "use crate::{sys as s, commands};",
    ] {
        assert!(count(line) >= 1, "{line}");
    }
    for line in [
        "use super::state;",
        "use crate::sys;",
        "use crate::{sys, probe::commands};",
        "// mpu_notify",
        "use other::mpu_notify;",
        "use mpu_notify_of_others::x;",
        "#[cfg(test)]\nmod tests {\nuse crate::commands;",
    ] {
        assert_eq!(count(line), 0, "{line}");
    }
}
