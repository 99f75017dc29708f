//! Finds circular imports in each target of each crate.
//!
//! - Neighbours: files and folders of one folder do not import each other in a circle. A folder counts with all its files.
//! - Files: no circle leads through more than two files. A `mod.rs` and one of its files may import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::imports::Target;
use super::{packages, tracked, with_ending};
use crate::paths::repo;

type Circle = BTreeSet<Vec<String>>;

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
fn long<T: Ord + Clone>(arrows: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
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
    long(&arrows)
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
    folders.values().flat_map(groups).collect()
}

/// The places at which the members of a circle import each other.
fn places(target: &Target, circle: &Circle) -> String {
    let of = |file: &PathBuf| circle.iter().filter(|member| target.files[file].starts_with(member)).max();
    let inside = target.arrows.iter().filter(|((from, to), _)| {
        let (from, to) = (of(from), of(to));
        from.is_some() && to.is_some() && from != to
    });
    inside.map(|(_, place)| format!("\n  {place}")).collect()
}

fn name(path: &[String]) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

/// Every package's targets, by root file; with them the sources that no target reaches.
fn targets() -> (BTreeMap<PathBuf, Target>, BTreeSet<PathBuf>) {
    let files = tracked();
    let mut unread: BTreeSet<PathBuf> = with_ending(&files, &["rs"]).map(|file| repo().join(file)).collect();
    let roots = packages().into_iter().flat_map(|package| package["targets"].as_array().unwrap().clone());
    let read = |target: serde_json::Value| {
        let root = PathBuf::from(target["src_path"].as_str().unwrap());
        let target = Target::read(&root);
        unread.retain(|file| !target.files.contains_key(file));
        (root, target)
    };
    (roots.map(read).collect(), unread)
}

#[test]
fn imports_draw_no_circle() {
    let (targets, unread) = targets();
    assert!(unread.is_empty(), "no crate is built of these: {unread:?}");
    let arrows: usize = targets.values().map(|target| target.arrows.len()).sum();
    assert!(arrows > 1000, "{arrows} arrows found: imports are not read");
    let mut found = String::new();
    for (root, target) in &targets {
        for circle in neighbour_circles(target).iter().chain(&file_circles(target)) {
            let members: Vec<String> = circle.iter().map(|path| name(path)).collect();
            found += &format!("{}: {}{}\n", root.display(), members.join(", "), places(target, circle));
        }
    }
    assert!(found.is_empty(), "these import each other in a circle:\n{found}");
}

#[cfg(test)]
mod tests;
