//! Which folder of a crate must not name which other, or which crate.

use super::imports::paths;
use super::{read, tracked, with_ending};

/// A folder below `crates/CRATE/src`, and what its product code must not name.
const ROOMS: &str = "
    mpu-engine/module: mpu-notify
    mpu-engine/signing: mpu-notify mpu-engine/module mpu-engine/up mpu-engine/down
    mpu/processes: mpu-engine mpu-notify
    mpu/listing: mpu-engine mpu-notify mpu/commands
    mpu/top: mpu-engine mpu-notify mpu/commands
    mpu/who: mpu-engine mpu-notify mpu/commands mpu/report mpu/cli
    mpu/metrics: mpu-engine/module mpu-notify mpu-rm mpu/probe mpu/commands mpu/report
    mpu/probe: mpu/commands mpu/report mpu/cli
    mpu/agent: mpu-notify mpu/commands mpu/report mpu/cli
    mpu/cluster: mpu-engine mpu-notify mpu/agent mpu/commands mpu/report mpu/cli
    mpu/nri: mpu-engine mpu-notify mpu/commands mpu/report mpu/cli
    mpu/install: mpu/cli mpu/manual mpu/commands mpu/report";

/// Where a path leads: `crate::a::b` of the crate `mpu` is `mpu/a/b`.
fn place(module: &[&str], path: &str) -> String {
    let mut at: Vec<String> = Vec::new();
    for (index, segment) in path.split("::").enumerate() {
        if index == 0 && ["self", "super"].contains(&segment) {
            at.extend(module.iter().map(ToString::to_string));
        }
        match segment {
            "crate" => at.push(module[0].to_owned()),
            "super" => drop(at.pop()),
            "self" => {}
            name if index == 0 => at.push(name.replace('_', "-")),
            name => at.push(name.to_owned()),
        }
    }
    at.join("/")
}

fn breaches(module: &[&str], text: &str, never: &[&str]) -> Vec<String> {
    let is_in =
        |path: &str, room: &str| path.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let places = paths(text).into_iter().map(|path| place(module, &path));
    places.filter(|place| never.iter().any(|room| is_in(place, room))).collect()
}

#[test]
fn rooms_import_only_allowed_modules() {
    let files = tracked();
    for row in ROOMS.trim().lines() {
        let (room, never) = row.trim().split_once(": ").unwrap();
        let never: Vec<&str> = never.split(' ').collect();
        let mut seen = 0;
        for file in with_ending(&files, &["rs"]) {
            let inside = file.strip_prefix("crates").unwrap_or(file).with_extension("");
            let segments = inside.iter().map(|name| name.to_str().unwrap());
            let module: Vec<&str> = segments.filter(|name| !["src", "mod"].contains(name)).collect();
            let is_product = !["tests", "fake"].contains(module.last().unwrap());
            if is_product && format!("{}/", module.join("/")).starts_with(&format!("{room}/")) {
                seen += 1;
                let found = breaches(&module, &read(file), &never);
                assert!(found.is_empty(), "{} names {found:?}", file.display());
            }
        }
        assert!(seen > 0, "there is no room {room}");
    }
}

#[test]
fn every_spelling_of_breach_is_found() {
    for (line, expected) in [
        ("use mpu_notify::client;", 1),
        ("use mpu_notify as other;", 1),
        ("use super::super::super::commands::up;", 1),
        ("fn x() { crate::commands::down::down(host) }", 1),
        ("use crate::{sys, report::{self as r, line}, commands::{up, down}};", 2),
        ("use crate::{sys, probe::commands}; use super::state;", 0),
        ("use other::mpu_notify; use mpu_notify_of_others::x;", 0),
        ("#[cfg(test)] mod tests { use crate::commands; }", 0),
    ] {
        let found = breaches(&["mpu", "top", "view", "page"], line, &["mpu-notify", "mpu/commands"]);
        assert_eq!(found.len(), expected, "{line}: {found:?}");
    }
}
