//! Which crate may be built of which, as a test: the order is the sentence of ARCHITECTURE.md, the facts are the manifests.
//!
//! Knows no order of its own but what the crates that nothing is shipped of may use: they stand in no sentence.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{quoted, read, tracked};

/// Crates that are tools of this tree, and what of it they may use.
const TOOLS: [(&str, &[&str]); 4] = [
    ("mpu-plan", &[]),
    ("xtask", &["mpu-abi", "mpu-core", "mpu-plan"]),
    ("mpu-guest", &["mpu-abi", "mpu-core", "mpu-plan"]),
    ("mpu-fuzz", &["mpu-abi", "mpu-core", "mpu-container"]),
];

/// How the sentence begins.
const SENTENCE: &str = "Arrows go one way: ";

type Order = BTreeMap<String, BTreeSet<String>>;

/// What each crate may use, by a sentence like "`a` ← `b` ← {`c`, `d`}, `c` ← `e`, and `a` ← `f`". An arrow carries on: `c` may use `a`.
fn order(prose: &str) -> Order {
    let (_, sentence) = prose.split_once(SENTENCE).unwrap_or_else(|| panic!("no sentence begins with {SENTENCE:?}"));
    let sentence = sentence.split_once(". ").map_or(sentence, |(sentence, _)| sentence);
    let mut order = Order::new();
    for chain in chains(sentence) {
        let mut before: BTreeSet<String> = BTreeSet::new();
        for link in chain.split('←') {
            let names: BTreeSet<String> = quoted(link).map(str::to_owned).collect();
            assert!(!names.is_empty(), "an arrow without a crate: {chain:?}");
            for name in &names {
                order.entry(name.clone()).or_default().extend(before.iter().cloned());
            }
            before.extend(names);
        }
    }
    // What a chain says of a crate holds in every other chain that it stands in.
    for _ in 0..order.len() {
        let known = order.clone();
        for used in order.values_mut() {
            let further: Vec<String> = used.iter().filter_map(|name| known.get(name)).flatten().cloned().collect();
            used.extend(further);
        }
    }
    order
}

/// A sentence at its commas, those between braces left alone.
fn chains(sentence: &str) -> Vec<&str> {
    let mut inside = false;
    let at_end = |c: char| {
        inside = match c {
            '{' => true,
            '}' => false,
            _ => inside,
        };
        c == ',' && !inside
    };
    sentence.split(at_end).collect()
}

/// A package's name and the packages that it names, of whatever kind of dependency. `workspace` is the manifest at the top.
fn package(manifest: &str, workspace: &str) -> Option<(String, BTreeSet<String>)> {
    let parse = |text: &str| -> toml::Table { text.parse().unwrap_or_else(|error| panic!("{error}: {text}")) };
    let (manifest, workspace) = (parse(manifest), parse(workspace));
    let shared = workspace.get("workspace").and_then(|all| all.get("dependencies")?.as_table());
    let name = manifest.get("package")?.get("name")?.as_str()?.to_owned();
    let of_systems = manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten();
    let tables: Vec<&toml::Table> = of_systems.filter_map(|(_, table)| table.as_table()).chain([&manifest]).collect();
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let listed = tables.iter().flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()));
    let called = |(key, said): (&String, &toml::Value)| {
        let is_shared = said.get("workspace").and_then(toml::Value::as_bool) == Some(true);
        let said = if is_shared { shared.and_then(|shared| shared.get(key)) } else { Some(said) };
        said.and_then(|said| said.get("package")?.as_str()).unwrap_or(key).to_owned()
    };
    Some((name, listed.flatten().map(called).collect()))
}

/// The arrows between packages that an order does not have, and the packages that it does not know.
fn back_arrows(packages: &Order, order: &Order) -> Vec<String> {
    let mut told = Vec::new();
    for (name, uses) in packages {
        let Some(may) = order.get(name) else {
            told.push(format!("{name} stands nowhere in the order of crates"));
            continue;
        };
        let wrong = uses.iter().filter(|used| packages.contains_key(*used) && !may.contains(*used));
        told.extend(wrong.map(|used| format!("{name} must not use {used}")));
    }
    let gone = order.keys().filter(|name| !packages.contains_key(*name));
    told.extend(gone.map(|name| format!("{name} stands in the order of crates and is none")));
    told
}

#[test]
fn crates_use_each_other_as_the_map_says() {
    let mut order = order(&read(Path::new("ARCHITECTURE.md")));
    for (tool, uses) in TOOLS {
        order.insert(tool.to_owned(), uses.iter().map(|name| (*name).to_owned()).collect());
    }
    let round: Vec<_> = order.iter().filter(|(name, uses)| uses.contains(*name)).collect();
    assert!(round.is_empty(), "ARCHITECTURE.md draws a circle: {round:?}");
    let manifests = tracked().into_iter().filter(|file| file.ends_with("Cargo.toml"));
    let workspace = read(Path::new("Cargo.toml"));
    let packages: Order = manifests.filter_map(|manifest| package(&read(&manifest), &workspace)).collect();
    let told = back_arrows(&packages, &order);
    assert!(told.is_empty(), "{}", told.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::{back_arrows, order, package, Order};

    const MAP: &str =
        "Arrows go one way: `low` ← `middle` ← {`one`, `two`}, `one` ← `top`, and `low` ← `aside`. `cargo test` refuses others.";

    const WORKSPACE: &str = "[workspace.dependencies]\nother = { package = \"middle\", path = \"../middle\" }\n";

    #[test]
    fn the_sentence_is_read() {
        let order = order(MAP);
        let uses = |name: &str| order[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(uses("low"), [] as [&str; 0]);
        assert_eq!(uses("two"), ["low", "middle"]);
        assert_eq!(uses("top"), ["low", "middle", "one"], "what one may use, top may");
        assert_eq!(uses("aside"), ["low"]);
        assert_eq!(order.len(), 6);
    }

    #[test]
    fn a_back_arrow_is_refused_however_the_manifest_writes_it() {
        let named =
            |name: &str, rest: &str| package(&format!("[package]\nname = \"{name}\"\n{rest}"), WORKSPACE).unwrap();
        let told = |low: &str| {
            let packages: Order = ["middle", "one", "two", "top", "aside"]
                .map(|name| named(name, ""))
                .into_iter()
                .chain([named("low", low)])
                .collect();
            back_arrows(&packages, &order(MAP))
        };
        assert_eq!(told("[dependencies]\nserde = \"1\"\n"), [] as [&str; 0]);
        for back in [
            "[dependencies]\nmiddle.workspace = true\n",
            "[dev-dependencies]\nmiddle = { path = \"../middle\" }\n",
            "[dependencies]\nother.workspace = true\n",
            "[dev-dependencies]\nother = { workspace = true, features = [] }\n",
            "[build-dependencies.middle]\npath = \"../middle\"\n",
            "[target.'cfg(unix)'.dependencies]\nother = { package = \"middle\", path = \"../middle\" }\n",
        ] {
            assert_eq!(told(back), ["low must not use middle"], "{back}");
        }
    }

    #[test]
    fn a_crate_that_the_sentence_lacks_and_one_that_is_gone_are_told() {
        let packages: Order = [package("[package]\nname = \"new\"\n", "").unwrap()].into();
        let told = back_arrows(&packages, &order("Arrows go one way: `old`. More."));
        assert_eq!(
            told,
            ["new stands nowhere in the order of crates", "old stands in the order of crates and is none"]
        );
    }
}
