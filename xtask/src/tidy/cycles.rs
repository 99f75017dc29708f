//! Finds circular imports in each target of each crate.
//!
//! - Neighbours: files and folders of one folder do not import each other in a cycle. A folder counts with all its files.
//! - Files: no cycle leads through more than two files. A `mod.rs` and one of its files may import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::imports::Target;
use super::{packages, tracked, with_ending};
use crate::paths::repo;

type Cycle = BTreeSet<Vec<String>>;

type Edges = BTreeSet<(Vec<String>, Vec<String>)>;

/// The strongly connected components with more than one node.
fn strongly_connected<T: Ord + Clone>(edges: &BTreeSet<(T, T)>) -> BTreeSet<BTreeSet<T>> {
    let mut next: BTreeMap<&T, Vec<&T>> = BTreeMap::new();
    edges.iter().for_each(|(from, to)| next.entry(from).or_default().push(to));
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

/// The components that have a cycle of more than two nodes.
fn longer_than_two<T: Ord + Clone>(edges: &BTreeSet<(T, T)>) -> Vec<BTreeSet<T>> {
    let pairs = |group: &BTreeSet<T>| {
        let inside = edges.iter().filter(|(from, to)| group.contains(from) && group.contains(to));
        inside.map(|(from, to)| (from.min(to), from.max(to))).collect::<BTreeSet<_>>().len()
    };
    // A strongly connected component has no cycle longer than two exactly if its pairs of neighbours form a tree.
    strongly_connected(edges).into_iter().filter(|group| pairs(group) >= group.len()).collect()
}

/// Files in cycles that lead through more than two of them.
fn file_cycles(target: &Target) -> Vec<Cycle> {
    let edges: Edges =
        target.edges.keys().map(|(from, to)| (target.files[from].clone(), target.files[to].clone())).collect();
    longer_than_two(&edges)
}

/// Neighbours that import each other in a cycle.
fn sibling_cycles(target: &Target) -> Vec<Cycle> {
    let mut folders: BTreeMap<&[String], Edges> = BTreeMap::new();
    for (from, to) in target.edges.keys() {
        let (from, to) = (&target.files[from], &target.files[to]);
        let shared = from.iter().zip(to).take_while(|(one, other)| one == other).count();
        if shared < from.len() && shared < to.len() {
            let edge = (from[..=shared].to_vec(), to[..=shared].to_vec());
            folders.entry(&from[..shared]).or_default().insert(edge);
        }
    }
    folders.values().flat_map(strongly_connected).collect()
}

/// The places at which the members of a cycle import each other.
fn places(target: &Target, cycle: &Cycle) -> String {
    let of = |file: &PathBuf| cycle.iter().filter(|member| target.files[file].starts_with(member)).max();
    let inside = target.edges.iter().filter(|((from, to), _)| {
        let (from, to) = (of(from), of(to));
        from.is_some() && to.is_some() && from != to
    });
    inside.map(|(_, place)| format!("\n  {place}")).collect()
}

fn name(path: &[String]) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

/// Every package's targets, by root file; and the source files that belong to no target.
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
fn imports_form_no_cycle() {
    let (targets, unread) = targets();
    assert!(unread.is_empty(), "no crate is built of these: {unread:?}");
    let edges: usize = targets.values().map(|target| target.edges.len()).sum();
    assert!(edges > 1000, "{edges} edges found: imports are not read");
    let mut found = String::new();
    for (root, target) in &targets {
        for cycle in sibling_cycles(target).iter().chain(&file_cycles(target)) {
            let members: Vec<String> = cycle.iter().map(|path| name(path)).collect();
            found += &format!("{}: {}{}\n", root.display(), members.join(", "), places(target, cycle));
        }
    }
    assert!(found.is_empty(), "these import each other in a cycle:\n{found}");
}

#[cfg(test)]
mod tests;
