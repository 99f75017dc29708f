//! The list of what is in the executable, in CycloneDX 1.5 (cyclonedx.org/docs/1.5/json): each crate with version, licence and checksum.
//!
//! Written here from what cargo says, in forty lines: the libraries for it cost `./x` half a minute of compiling, every first time.
//! No serial number and no time: the same sources give the same list.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::{json, Value};

use crate::run::output;
use crate::{lint, paths};

/// The list for one of our programs, by its package's name, and a machine, as text.
pub fn cyclonedx(program: &str, target: &str) -> Result<String> {
    let mut cargo = lint::cargo();
    cargo.args(["metadata", "--format-version=1", "--locked", &format!("--filter-platform={target}")]);
    let metadata: Value = serde_json::from_str(&output(&mut cargo)?).context("cargo metadata is no JSON")?;
    let lock = std::fs::read_to_string(paths::repo().join("Cargo.lock"))?;
    let lock: toml::Value = toml::from_str(&lock).context("Cargo.lock is malformed")?;
    Ok(serde_json::to_string_pretty(&list(program, &metadata, &built(program, target)?, &checksums(&lock))?)? + "\n")
}

/// Name and version of what is built for a program. `cargo metadata` adds what features that only tests ask for bring along.
fn built(program: &str, target: &str) -> Result<BTreeSet<(String, String)>> {
    let mut cargo = lint::cargo();
    cargo.args(["tree", "--locked", "--edges=normal", "--prefix=none", &format!("--target={target}")]);
    let tree = output(cargo.args(["--format={p}", "--package", program]))?;
    let both = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    Ok(tree.lines().filter_map(both).collect())
}

fn checksums(lock: &toml::Value) -> BTreeMap<(String, String), String> {
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let text = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    packages.filter_map(|p| Some(((text(p, "name")?, text(p, "version")?), text(p, "checksum")?))).collect()
}

fn list(
    program: &str,
    metadata: &Value,
    built: &BTreeSet<(String, String)>,
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Value> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, &Value> =
        metadata["packages"].as_array().context("no packages")?.iter().map(|p| (text(p, "id"), p)).collect();
    let nodes: BTreeMap<String, &Value> =
        metadata["resolve"]["nodes"].as_array().context("no graph")?.iter().map(|n| (text(n, "id"), n)).collect();
    let root = packages.values().find(|p| p["name"] == program).with_context(|| format!("no package {program}"))?;
    // What is linked: neither what only tests use nor what only builds.
    let mut wanted = vec![text(root, "id")];
    let mut depends: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(id) = wanted.pop() {
        if depends.contains_key(&id) {
            continue;
        }
        let edges = nodes.get(&id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        let linked =
            |edge: &&Value| edge["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k["kind"].is_null()));
        let is_built = |id: &String| built.contains(&(text(packages[id], "name"), text(packages[id], "version")));
        let mut on: Vec<String> = edges.filter(linked).map(|edge| text(edge, "pkg")).filter(is_built).collect();
        on.sort();
        wanted.extend(on.iter().cloned());
        depends.insert(id, on);
    }
    let reference = |id: &str| {
        packages.get(id).map_or_else(String::new, |p| format!("pkg:cargo/{}@{}", text(p, "name"), text(p, "version")))
    };
    let component = |id: &str| {
        let package = packages[id];
        let (name, version) = (text(package, "name"), text(package, "version"));
        let mut component = json!({
            "type": if name == program { "application" } else { "library" },
            "bom-ref": reference(id), "name": name, "version": version, "purl": reference(id),
        });
        if let Some(licence) = package["license"].as_str() {
            component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
        }
        if let Some(sum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let main = text(root, "id");
    let libraries: Vec<Value> = depends.keys().filter(|id| **id != main).map(|id| component(id)).collect();
    let graph: Vec<Value> = depends
        .iter()
        .map(|(id, on)| json!({ "ref": reference(id), "dependsOn": on.iter().map(|o| reference(o)).collect::<Vec<_>>() }))
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": component(&main) },
        "components": libraries, "dependencies": graph,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn what_is_linked_is_listed_with_licence_and_checksum_and_nothing_else() {
        let list: Value =
            serde_json::from_str(&super::cyclonedx("mpu", crate::arch::Arch::Amd64.facts().target).unwrap()).unwrap();
        let components = list["components"].as_array().unwrap();
        let named = |name: &str| components.iter().find(|c| c["name"] == name);
        let clap = named("clap").expect("clap is linked");
        assert_eq!(clap["hashes"][0]["content"].as_str().unwrap().len(), 64);
        assert!(clap["licenses"][0]["expression"].as_str().unwrap().contains("MIT"));
        assert!(named("mpu-core").is_some() && named("assert_cmd").is_none() && named("xtask").is_none());
        assert!(named("proptest").is_none(), "what tests alone ask for is no part of mpu");
        let refs: Vec<&str> =
            list["dependencies"].as_array().unwrap().iter().map(|d| d["ref"].as_str().unwrap()).collect();
        assert_eq!(refs.len(), components.len() + 1);
        assert!(refs.contains(&list["metadata"]["component"]["bom-ref"].as_str().unwrap()));
    }
}
