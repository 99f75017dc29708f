//! Small crates made up for the occasion, with and without circles.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::{differences, file_circles, name, neighbour_circles, Circle, Row};
use crate::tidy::imports::Target;

/// A crate in a folder of its own, by path and text.
fn made_up(files: &[(&str, &str)]) -> (tempfile::TempDir, Target) {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let target = Target::read(&folder.path().join("lib.rs"));
    (folder, target)
}

fn names(circles: &[Circle]) -> Vec<String> {
    let of = |circle: &Circle| circle.0.iter().map(|path| name(path)).collect::<Vec<_>>().join(" ");
    circles.iter().map(of).collect()
}

fn arrows(target: &Target) -> Vec<String> {
    let of = |file: &PathBuf| name(&target.files[file]);
    target.arrows.keys().map(|(from, to)| format!("{} -> {}", of(from), of(to))).collect()
}

#[test]
fn a_circle_of_three_files_is_found_by_both_rules() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "pub fn b() -> super::c::C { super::c::C }"),
        ("c.rs", "pub struct C; fn c() { println!(\"{:?}\", crate::a::A) }"),
    ]);
    assert_eq!(names(&file_circles(&target)), ["a b c"]);
    assert_eq!(names(&neighbour_circles(&target)), ["a b c"]);
}

#[test]
fn two_folders_that_import_each_other_are_found_though_no_two_of_their_files_do() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod left; mod right;"),
        ("left/mod.rs", "mod one; pub mod two;"),
        ("left/one.rs", "use crate::right::three;"),
        ("left/two.rs", ""),
        ("right/mod.rs", "pub mod three; mod four;"),
        ("right/three.rs", ""),
        ("right/four.rs", "use crate::left::two;"),
    ]);
    assert_eq!(names(&file_circles(&target)), [] as [&str; 0]);
    let circles = neighbour_circles(&target);
    assert_eq!(names(&circles), ["left right"]);
    assert_eq!(circles[0].1.len(), 2, "both places are told: {:?}", circles[0].1);
}

#[test]
fn a_folder_and_its_files_may_know_each_other_in_pairs_and_not_in_a_ring() {
    let pairs = [
        ("lib.rs", "mod room;"),
        ("room/mod.rs", "mod one; mod two; pub struct Mine; fn f() { one::f(); two::f(); }"),
        ("room/one.rs", "use super::Mine; pub fn f() {}"),
        ("room/two.rs", "use super::Mine; pub fn f() {}"),
    ];
    let (_folder, target) = made_up(&pairs);
    assert_eq!(names(&file_circles(&target)), [] as [&str; 0]);
    assert_eq!(names(&neighbour_circles(&target)), [] as [&str; 0]);

    let mut ring = pairs;
    ring[2].1 = "use super::two; pub fn f() {}";
    let (_folder, target) = made_up(&ring);
    assert_eq!(names(&file_circles(&target)), ["room room::one room::two"]);
}

#[test]
fn two_neighbours_that_know_each_other_are_found() {
    let (_folder, target) =
        made_up(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")]);
    assert_eq!(names(&neighbour_circles(&target)), ["a b"]);
}

#[test]
fn every_way_to_write_an_import_is_read() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f; mod g; mod inline { mod h; use super::a::*; }"),
        ("a.rs", "use crate::{b::{self, B as Other}, c}; fn f() { c::f(); }"),
        ("b.rs", "use super::d as renamed; fn f() { renamed::f() }"),
        ("c.rs", "#[serde(with = \"crate::d\")] struct S;"),
        ("d.rs", "fn f(x: crate::e::E) { let _ = vec![self::super::f::F { x: 1 }]; }"),
        ("e.rs", "mod below { use super::super::g; fn f() { g::f() } }"),
        ("f.rs", "use super::*; fn f() { g::f() }"),
        ("g.rs", "pub(in crate::a) struct G; // use crate::b;\nconst TEXT: &str = \"use crate::c\";"),
        ("inline/h.rs", "use super::super::a;"),
    ]);
    let expected =
        "a -> b, a -> c, b -> d, c -> d, crate -> a, d -> e, d -> f, e -> g, f -> crate, f -> g, inline::h -> a";
    let mut read = arrows(&target);
    read.sort();
    assert_eq!(read.join(", "), expected);
}

#[test]
fn a_macro_is_imported_from_where_it_stands_and_not_from_the_root_that_exports_it() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::told;"),
        ("b.rs", "#[macro_export] macro_rules! told { ($x:expr) => { $crate::a::A($x) } }"),
    ]);
    assert_eq!(arrows(&target), ["a -> b", "b -> a"]);
}

#[test]
fn what_a_file_hands_on_is_imported_from_where_it_is_defined() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod room; mod a; mod b;"),
        ("room/mod.rs", "mod deep; mod wide; pub use deep::{Thing, Other as Named}; pub use wide::*; pub struct Own;"),
        ("room/deep.rs", "pub struct Thing; pub struct Other; pub use std::fmt::Debug;"),
        ("room/wide.rs", "pub fn spread() {} use super::Thing;"),
        ("a.rs", "use crate::room::Thing; fn f() { crate::room::spread() }"),
        ("b.rs", "use crate::room; fn f(x: room::Named, y: &dyn room::Debug, z: room::Own) {}"),
    ]);
    let read = arrows(&target);
    for wanted in ["a -> room::deep", "a -> room::wide", "b -> room::deep", "b -> room", "room::wide -> room::deep"] {
        assert!(read.contains(&wanted.to_owned()), "{wanted}: {read:?}");
    }
    assert!(!read.contains(&"room::wide -> room".to_owned()), "what it has of its folder is its neighbour's: {read:?}");
}

#[test]
fn the_crate_by_another_name_is_the_crate() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate as me; fn f() { me::b::f() }"),
        ("b.rs", "use super as above; use above::c;"),
        ("c.rs", "use crate::{self as whole}; fn f() { whole::a::f() }"),
    ]);
    let read = arrows(&target);
    for wanted in ["a -> b", "b -> c", "c -> a"] {
        assert!(read.contains(&wanted.to_owned()), "{wanted}: {read:?}");
    }
}

#[test]
fn groups_in_macros_are_read() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "told! { use crate::{b, c::{self, x}, d::y}; let z = crate::b { d: 1 }; }"),
        ("b.rs", ""),
        ("c.rs", ""),
        ("d.rs", "told! { match x { 1 => { b::f() } } [self, super::c] }"),
    ]);
    assert_eq!(arrows(&target), ["a -> b", "a -> c", "a -> d", "d -> c"]);
}

#[test]
fn a_condition_that_only_sounds_like_tests_is_none() {
    for (condition, arrow) in [
        ("test", false),
        ("all(test, unix)", false),
        ("all(unix, any(test))", false),
        ("any(test, unix)", true),
        ("all(feature = \"latest\")", true),
        ("all(unix, feature = \"test\")", true),
        ("not(test)", true),
        ("all(not(test), unix)", true),
    ] {
        let text = format!("#[cfg({condition})] use crate::b::B;");
        let (_folder, target) = made_up(&[("lib.rs", "mod a; mod b;"), ("a.rs", &text), ("b.rs", "pub struct B;")]);
        assert_eq!(!arrows(&target).is_empty(), arrow, "{condition}");
    }
}

#[test]
fn what_is_built_for_tests_only_draws_no_arrow() {
    let (_folder, target) = made_up(&[
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod tests;"),
        ("a.rs", "pub fn f() {} #[cfg(test)] mod tests { use crate::b; }"),
        ("b.rs", "use crate::a; #[cfg(test)] use crate::tests::T;"),
        ("tests.rs", "use crate::b;"),
    ]);
    assert_eq!(arrows(&target), ["b -> a"]);
    assert_eq!(target.files.len(), 4, "read all the same: {:?}", target.files);
}

#[test]
fn a_row_excuses_exactly_the_circle_that_it_names() {
    let (_folder, target) =
        made_up(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")]);
    let root = PathBuf::from("lib.rs");
    let found = BTreeMap::from([(root.clone(), neighbour_circles(&target))]);
    let row = |members: &[&str], why: &str| Row {
        root: root.clone(),
        members: members.iter().map(|name| (*name).to_owned()).collect(),
        why: why.to_owned(),
    };
    let why = "both are cut up next month";
    let told = |rows: &[Row]| differences("neighbours", &found, rows);

    assert_eq!(told(&[]).len(), 1, "a new circle");
    assert!(told(&[])[0].contains("[\"a\", \"b\"]"), "{:?}", told(&[]));
    assert_eq!(told(&[row(&["a", "b"], why)]), [] as [&str; 0]);
    assert_eq!(told(&[row(&["a", "b"], "")]).len(), 1, "no reason");
    assert_eq!(told(&[row(&["a", "b", "c"], why)]).len(), 2, "the circle has shrunk, and the row has not");
    assert_eq!(told(&[row(&["a", "b"], why), row(&["c", "d"], why)]).len(), 1, "a row that outlived its circle");
}
