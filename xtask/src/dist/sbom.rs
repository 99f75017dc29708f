//! Lists the crates in the executable as CycloneDX 1.5 (cyclonedx.org/docs/1.5/json), with version, licence and checksum, from `cargo tree`
//! and Cargo.lock. Without serial number and time: the same sources give the same list.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::run::output;
use crate::{files, lint, paths};

type Crate = (String, String);

/// The list for one program and target, as text.
pub fn cyclonedx(program: &str, target: &str) -> Result<String> {
    let mut cargo = lint::cargo();
    cargo.args(["tree", "--locked", "--edges=normal", "--prefix=depth", "--no-dedupe", "--format=|{p}|{l}"]);
    let tree = output(cargo.args([&format!("--target={target}"), "--package", program]))?;
    let lock = toml::from_str(&files::read(&paths::repo().join("Cargo.lock"))?).context("Cargo.lock is malformed")?;
    Ok(serde_json::to_string_pretty(&list(&tree, &checksums(&lock))?)? + "\n")
}

fn checksums(lock: &toml::Value) -> BTreeMap<Crate, String> {
    let packages = lock.get("package").and_then(toml::Value::as_array).into_iter().flatten();
    let text = |package: &toml::Value, key: &str| Some(package.get(key)?.as_str()?.to_owned());
    packages.filter_map(|p| Some(((text(p, "name")?, text(p, "version")?), text(p, "checksum")?))).collect()
}

/// `tree` is the output of `cargo tree --prefix=depth`: the program first, then each crate below the one that links it.
fn list(tree: &str, checksums: &BTreeMap<Crate, String>) -> Result<Value> {
    let mut licences = BTreeMap::new();
    let mut links: BTreeMap<Crate, BTreeSet<Crate>> = BTreeMap::new();
    let mut above: Vec<Crate> = Vec::new();
    for line in tree.lines() {
        let mut parts = line.split('|');
        let mut next = || parts.next().with_context(|| format!("cargo tree says {line}"));
        let (depth, package, licence) = (next()?.parse()?, next()?, next()?);
        let mut words = package.split(' ');
        let name = words.next().unwrap_or_default().to_owned();
        let version = words.next().and_then(|version| version.strip_prefix('v'));
        let this = (name, version.with_context(|| format!("{package} has no version"))?.to_owned());
        above.truncate(depth);
        if let Some(from) = above.last() {
            links.entry(from.clone()).or_default().insert(this.clone());
        }
        links.entry(this.clone()).or_default();
        licences.insert(this.clone(), licence);
        above.push(this);
    }
    let main = above.first().context("cargo tree says nothing")?;
    let reference = |(name, version): &Crate| format!("pkg:cargo/{name}@{version}");
    let component = |of: &Crate| {
        let mut component = json!({
            "type": if of == main { "application" } else { "library" },
            "bom-ref": reference(of), "name": of.0, "version": of.1, "purl": reference(of),
        });
        if !licences[of].is_empty() {
            component["licenses"] = json!([{ "expression": licences[of].replace('/', " OR ") }]);
        }
        if let Some(sum) = checksums.get(of) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let dependencies = links
        .iter()
        .map(|(of, on)| json!({ "ref": reference(of), "dependsOn": on.iter().map(reference).collect::<Vec<_>>() }));
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": { "component": component(main) },
        "components": links.keys().filter(|of| *of != main).map(component).collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    #[test]
    fn sbom_lists_only_linked_crates() {
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
