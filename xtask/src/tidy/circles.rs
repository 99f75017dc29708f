//! The shape of each crate, as tests: which of its imports go round in a circle. Two rules, each for every target of every crate.
//!
//! - Neighbours: what lies beside each other in one folder, files and folders, does not import each other in a circle. A folder
//!   counts with all that is in it.
//! - Files: no circle leads through more than two files. So a folder's `mod.rs` and one of its files may know each other, as Rust's
//!   `super` invites them to; a way out by one file and back by another is a circle.
//!
//! What breaks a rule today is a row of xtask/circles.toml. A row that says more or less than what is found is refused, too: the
//! list can only shrink, and no shrinking is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::imports::Target;
use super::{read, tracked, with_ending};
use crate::paths::repo;

/// xtask/circles.toml.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Known {
    #[serde(default)]
    neighbours: Vec<Row>,
    #[serde(default)]
    files: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// The root file of the target.
    root: PathBuf,
    /// Modules by name; the root is `crate`.
    members: Vec<String>,
    why: String,
}

/// Modules by their names' segments, and the places that tie them.
type Circle = (BTreeSet<Vec<String>>, Vec<String>);

/// From which module to which other.
type Arrows = BTreeSet<(Vec<String>, Vec<String>)>;

/// The groups in which each thing reaches each other along the arrows.
fn groups<T: Ord + Clone>(arrows: &BTreeSet<(T, T)>) -> BTreeSet<BTreeSet<T>> {
    let mut next: BTreeMap<&T, Vec<&T>> = BTreeMap::new();
    arrows.iter().for_each(|(from, to)| next.entry(from).or_default().push(to));
    let reached = |from: &T| {
        let mut seen: BTreeSet<T> = BTreeSet::new();
        let mut left: Vec<&T> = next.get(from).cloned().unwrap_or_default();
        while let Some(at) = left.pop() {
            if seen.insert(at.clone()) {
                left.extend(next.get(at).into_iter().flatten());
            }
        }
        seen
    };
    let reach: BTreeMap<&T, BTreeSet<T>> = next.keys().map(|from| (*from, reached(from))).collect();
    let round = |from: &T| {
        let back = |to: &&T| reach.get(*to).is_some_and(|further| further.contains(from));
        reach[from].iter().filter(back).cloned().collect::<BTreeSet<T>>()
    };
    next.keys().map(|from| round(from)).filter(|group| group.len() > 1).collect()
}

/// Those of the groups in which a circle leads through more than two.
pub fn long<T: Ord + Clone>(arrows: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
    let pairs = |group: &BTreeSet<T>| {
        let inside = arrows.iter().filter(|(from, to)| group.contains(from) && group.contains(to));
        inside.map(|(from, to)| (from.min(to), from.max(to))).collect::<BTreeSet<_>>().len()
    };
    // Where each reaches each other, no circle is longer than two exactly if the pairs that know each other form a tree.
    groups(arrows).into_iter().filter(|group| pairs(group) >= group.len()).collect()
}

/// Files in circles that lead through more than two of them.
fn file_circles(target: &Target) -> Vec<Circle> {
    let arrows: Arrows =
        target.arrows.keys().map(|(from, to)| (target.files[from].clone(), target.files[to].clone())).collect();
    long(&arrows).into_iter().map(|group| with_places(target, group, |path| Some(path.to_vec()))).collect()
}

/// Neighbours that import each other in a circle.
fn neighbour_circles(target: &Target) -> Vec<Circle> {
    let mut folders: BTreeMap<&[String], Arrows> = BTreeMap::new();
    for (from, to) in target.arrows.keys() {
        let (from, to) = (&target.files[from], &target.files[to]);
        let shared = from.iter().zip(to).take_while(|(one, other)| one == other).count();
        if shared < from.len() && shared < to.len() {
            let arrow = (from[..=shared].to_vec(), to[..=shared].to_vec());
            folders.entry(&from[..shared]).or_default().insert(arrow);
        }
    }
    let mut found = Vec::new();
    for (folder, arrows) in folders {
        for group in groups(&arrows) {
            let neighbour = |path: &[String]| path.get(..=folder.len()).map(<[String]>::to_vec);
            found.push(with_places(target, group, neighbour));
        }
    }
    found
}

fn with_places(
    target: &Target,
    group: BTreeSet<Vec<String>>,
    member: impl Fn(&[String]) -> Option<Vec<String>>,
) -> Circle {
    let of = |file: &PathBuf| member(&target.files[file]).filter(|name| group.contains(name));
    let ties = target.arrows.iter().filter_map(|((from, to), place)| {
        let (from, to) = (of(from)?, of(to)?);
        (from != to).then(|| place.clone())
    });
    let places = ties.collect();
    (group, places)
}

fn name(path: &[String]) -> String {
    if path.is_empty() {
        "crate".to_owned()
    } else {
        path.join("::")
    }
}

/// What differs between the circles that are there and the rows that are known, in sentences.
fn differences(kind: &str, found: &BTreeMap<PathBuf, Vec<Circle>>, rows: &[Row]) -> Vec<String> {
    let members = |row: &Row| row.members.iter().cloned().collect::<BTreeSet<String>>();
    let mut told = Vec::new();
    let mut there = BTreeSet::new();
    for (root, circles) in found {
        for (group, places) in circles {
            let group: BTreeSet<String> = group.iter().map(|path| name(path)).collect();
            if !rows.iter().any(|row| row.root == *root && members(row) == group) {
                let row: Vec<String> = group.iter().map(|name| format!("{name:?}")).collect();
                let short = |place: &String| place.replace(&format!("{}/", repo().display()), "");
                let shown = places.iter().take(30).map(|place| format!("\n      {}", short(place))).collect::<String>();
                let size = group.len();
                told.push(format!(
                    "{}: a circle of {size} ({kind}), which no row of xtask/circles.toml has:\n    members = [{}]{shown}",
                    root.display(),
                    row.join(", ")
                ));
            }
            there.insert((root.clone(), group));
        }
    }
    for row in rows {
        if !there.contains(&(row.root.clone(), members(row))) {
            let (root, members) = (row.root.display(), row.members.join(", "));
            told.push(format!(
                "xtask/circles.toml has a circle ({kind}) of {root} that is not there as it says: cut the row to what is left, \
                 or strike it out: {members}"
            ));
        }
        if row.why.len() < 20 {
            told.push(format!("xtask/circles.toml gives no reason for {}", row.members.join(", ")));
        }
    }
    told
}

/// The root files of a package's targets, relative to the folder that holds the packages.
fn roots(manifest: &Path, files: &[PathBuf]) -> BTreeSet<PathBuf> {
    let package = manifest.parent().unwrap_or(Path::new(""));
    let text = read(manifest);
    let parsed: toml::Table = text.parse().unwrap_or_else(|error| panic!("{}: {error}", manifest.display()));
    let mut roots: BTreeSet<PathBuf> = ["src/lib.rs", "src/main.rs", "build.rs"].map(|file| package.join(file)).into();
    for section in ["lib", "bin", "test", "bench", "example"] {
        let said = parsed.get(section);
        let list = said.and_then(toml::Value::as_array).cloned().or_else(|| said.map(|one| vec![one.clone()]));
        let paths =
            list.into_iter().flatten().filter_map(|one| one.get("path")?.as_str().map(|path| package.join(path)));
        roots.extend(paths);
    }
    for folder in ["src/bin", "tests", "examples", "benches"] {
        let folder = package.join(folder);
        let is_root = |file: &&PathBuf| {
            let above = file.parent().unwrap_or(Path::new(""));
            above == folder || (above.parent() == Some(&folder) && file.ends_with("main.rs"))
        };
        roots.extend(with_ending(files, &["rs"]).filter(is_root).cloned());
    }
    roots.retain(|root| files.contains(root));
    roots
}

/// Every package's targets, by root file; with them the sources that no target reaches.
fn targets() -> (BTreeMap<PathBuf, Target>, Vec<PathBuf>) {
    let files = tracked();
    let mut targets = BTreeMap::new();
    let mut unread: BTreeSet<PathBuf> = with_ending(&files, &["rs"]).cloned().collect();
    for manifest in files.iter().filter(|file| file.ends_with("Cargo.toml")) {
        for root in roots(manifest, &files) {
            let target = Target::read(&repo().join(&root));
            for file in target.files.keys() {
                let file = file.strip_prefix(repo()).unwrap_or(file);
                assert!(
                    file.starts_with(manifest.parent().unwrap_or(Path::new(""))),
                    "{} is built of {}, which is another crate's",
                    root.display(),
                    file.display()
                );
                unread.remove(file);
            }
            targets.insert(root, target);
        }
    }
    (targets, unread.into_iter().collect())
}

#[test]
fn imports_go_round_nowhere_that_is_not_known() {
    let known = fs::read_to_string(repo().join("xtask/circles.toml")).unwrap();
    let known: Known = toml::from_str(&known).unwrap();
    assert!(known.neighbours.is_empty() && known.files.is_empty(), "no circle of Rust is left; make no new one");
    let (targets, unread) = targets();
    assert!(unread.is_empty(), "no crate is built of these: {unread:?}");
    let each = |circles: fn(&Target) -> Vec<Circle>| {
        targets.iter().map(|(root, target)| (root.clone(), circles(target))).collect::<BTreeMap<_, _>>()
    };
    let arrows: usize = targets.values().map(|target| target.arrows.len()).sum();
    assert!(arrows > 1000, "{arrows} arrows found: the reader has lost its eyes");
    let mut told = differences("neighbours", &each(neighbour_circles), &known.neighbours);
    told.extend(differences("files", &each(file_circles), &known.files));
    assert!(told.is_empty(), "\n{}\n", told.join("\n\n"));
}

#[cfg(test)]
mod tests;
