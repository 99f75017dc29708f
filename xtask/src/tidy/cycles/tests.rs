//! Tests with small made-up crates.

use std::fs;
use std::path::PathBuf;

use super::{Cycle, file_cycles, name, sibling_cycles};
use crate::tidy::forbidden_imports::violations;
use crate::tidy::imports::Target;

type Files<'a> = &'a [(&'a str, &'a str)];

fn target(files: Files) -> Target {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Target::read(&folder.path().join("lib.rs"))
}

/// "a -> b, b -> c"
fn edges(files: Files) -> String {
    let target = target(files);
    let of = |file: &PathBuf| name(&target.files[file]);
    let mut found: Vec<_> = target.edges.keys().map(|(from, to)| format!("{} -> {}", of(from), of(to))).collect();
    found.sort();
    found.join(", ")
}

fn check(files: Files, by_files: &[&str], by_neighbours: &[&str]) {
    let names = |cycles: Vec<Cycle>| -> Vec<String> {
        cycles.iter().map(|group| group.iter().map(|path| name(path)).collect::<Vec<_>>().join(" ")).collect()
    };
    let target = target(files);
    assert_eq!(names(file_cycles(&target)), by_files, "{files:?}");
    assert_eq!(names(sibling_cycles(&target)), by_neighbours, "{files:?}");
}

#[test]
fn cycles_are_found() {
    let three: Files = &[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "pub fn b() -> super::c::C { super::c::C }"),
        ("c.rs", "pub struct C; fn c() { println!(\"{:?}\", crate::a::A) }"),
    ];
    check(three, &["a b c"], &["a b c"]);
    check(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")], &[], &["a b"]);
    // Folders, of which no two files import each other.
    let folders: Files = &[
        ("lib.rs", "mod left; mod right;"),
        ("left/mod.rs", "mod one; pub mod two;"),
        ("left/one.rs", "use crate::right::three;"),
        ("left/two.rs", ""),
        ("right/mod.rs", "pub mod three; mod four;"),
        ("right/three.rs", ""),
        ("right/four.rs", "use crate::left::two;"),
    ];
    check(folders, &[], &["left right"]);
    // A folder and each of its files may know each other. A ring through them is a cycle.
    let mut room = [
        ("lib.rs", "mod room;"),
        ("room/mod.rs", "mod one; mod two; pub struct Mine; fn f() { one::f(); two::f(); }"),
        ("room/one.rs", "use super::Mine; pub fn f() {}"),
        ("room/two.rs", "use super::Mine; pub fn f() {}"),
    ];
    check(&room, &[], &[]);
    room[2].1 = "use super::two; pub fn f() {}";
    check(&room, &["room room::one room::two"], &[]);
}

#[test]
fn every_spelling_of_import_is_read() {
    let files: Files = &[
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f; mod g; mod inline { mod h; use super::a::*; }"),
        ("a.rs", "use crate::{b::{self, B as Other}, c}; fn f() { c::f(); }"),
        ("b.rs", "use super::d as renamed; use super as above; fn f() { renamed::f(); above::c::f() }"),
        ("c.rs", "#[derive(super::d::D)] struct S;"),
        ("d.rs", "fn f(x: crate::e::E) { let _ = vec![self::super::f::F { x: 1 }]; }"),
        ("e.rs", "mod below { use super::super::g; fn f() { g::f() } }"),
        ("f.rs", "use super::*; fn f() { g::f() }"),
        ("g.rs", "struct G; // use crate::b;\nconst TEXT: &str = \"use crate::c\";"),
        ("inline/h.rs", "use super::super::a;"),
    ];
    let expected = "a -> b, a -> c, b -> c, b -> crate, b -> d, c -> d, crate -> a, d -> e, d -> f, e -> g, f -> crate, f -> g, inline::h -> a";
    assert_eq!(edges(files), expected);
}

#[test]
fn imports_in_macros_are_read() {
    let files: Files = &[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "rules! { use crate::{b, c::{self, x}, d::y}; let z = crate::b { d: 1 }; }"),
        ("b.rs", ""),
        ("c.rs", ""),
        ("d.rs", "rules! { match x { 1 => { b::f() } } [self, super::c] }"),
    ];
    assert_eq!(edges(files), "a -> b, a -> c, a -> d, d -> c");
    // A macro stands in its file, not in the root that exports it.
    let files: Files = &[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::rules;"),
        ("b.rs", "#[macro_export] macro_rules! rules { ($x:expr) => { $crate::a::A($x) } }"),
    ];
    assert_eq!(edges(files), "a -> b, b -> a");
}

#[test]
fn reexports_lead_to_definition() {
    let files: Files = &[
        ("lib.rs", "mod room; mod a; mod b;"),
        ("room/mod.rs", "mod deep; mod wide; pub use deep::{Thing, Other as Named}; pub use wide::*; pub struct Own;"),
        ("room/deep.rs", "pub struct Thing; pub struct Other; pub use std::fmt::Debug;"),
        ("room/wide.rs", "pub fn spread() {} use super::Thing;"),
        ("a.rs", "use crate::room::Thing; fn f() { crate::room::spread() }"),
        ("b.rs", "use crate::room; fn f(x: room::Named, y: &dyn room::Debug, z: room::Own) {}"),
    ];
    let expected = "a -> room::deep, a -> room::wide, b -> room, b -> room::deep, room -> room::deep, \
                    room -> room::wide, room::wide -> room::deep";
    assert_eq!(edges(files), expected);
}

#[test]
fn test_code_adds_no_edge() {
    for (condition, edge) in [
        ("test", ""),
        ("all(test, unix)", ""),
        ("all(unix, any(test))", ""),
        ("any(test, unix)", "a -> b"),
        ("all(unix, feature = \"test\")", "a -> b"),
        ("not(test)", "a -> b"),
        ("all(not(test), unix)", "a -> b"),
    ] {
        let text = format!("#[cfg({condition})] use crate::b::B;");
        let files: Files = &[("lib.rs", "mod a; mod b;"), ("a.rs", &text), ("b.rs", "pub struct B;")];
        assert_eq!(edges(files), edge, "{condition}");
    }
    let files: Files = &[
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
        ("a.rs", "pub fn f() {} #[cfg(test)] mod tests { use crate::b; }"),
        ("b.rs", "use crate::a; #[cfg(test)] use crate::tests::T;"),
        ("tests.rs", "use crate::b;"),
    ];
    assert_eq!(edges(files), "b -> a");
}

#[test]
fn every_spelling_of_forbidden_import_is_found() {
    for (line, expected) in [
        ("use mpu_notify::client;", 1),
        ("use mpu_notify as other;", 1),
        ("use super::super::commands::up;", 1),
        ("fn x() { crate::commands::up(host) }", 1),
        ("use crate::{sys, other::{self as r}, commands::{up, down}};", 1),
        ("use crate::other; use super::state;", 0),
        ("use other::mpu_notify; use mpu_notify_of_others::x;", 0),
        ("#[cfg(test)] mod tests { use crate::commands; }", 0),
    ] {
        let files: Files = &[
            ("lib.rs", "mod top; mod commands; mod other;"),
            ("top/mod.rs", "mod page;"),
            ("top/page.rs", line),
            ("commands.rs", "pub fn up() {} pub fn down() {}"),
            ("other.rs", ""),
        ];
        assert_eq!(violations(&target(files), "top", &["mpu_notify", "crate::commands"]).0.len(), expected, "{line}");
    }
}
