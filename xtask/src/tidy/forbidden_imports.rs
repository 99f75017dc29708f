//! Lists the modules and crates that a folder of a crate must not import.

use super::imports::Target;
use crate::paths::repo;

/// A folder below `crates/CRATE/src`, and the paths that its code outside tests must not name.
const FORBIDDEN: &str = "
    mpu-engine/module: mpu_notify
    mpu-engine/signing: mpu_notify crate::module crate::up crate::down
    mpu/processes: mpu_engine mpu_notify
    mpu/listing: mpu_engine mpu_notify crate::commands
    mpu/top: mpu_engine mpu_notify crate::commands
    mpu/who: mpu_engine mpu_notify crate::commands crate::report crate::cli
    mpu/metrics: mpu_engine::module mpu_notify mpu_rm crate::probe crate::commands crate::report
    mpu/probe: crate::commands crate::report crate::cli
    mpu/agent: mpu_notify crate::commands crate::report crate::cli
    mpu/cluster: mpu_engine mpu_notify crate::agent crate::commands crate::report crate::cli
    mpu/nri: mpu_engine mpu_notify crate::commands crate::report crate::cli
    mpu/install: crate::cli crate::manual crate::commands crate::report";

/// The forbidden paths that a folder's files name, and the number of its files.
pub fn violations(target: &Target, folder: &str, never: &[&str]) -> (Vec<String>, usize) {
    let inside =
        target.named.iter().filter(|(file, _)| target.files[*file].first().is_some_and(|first| first == folder));
    let is_never = |path: &&Vec<String>| {
        never.iter().any(|never| path.starts_with(&never.split("::").map(str::to_owned).collect::<Vec<_>>()))
    };
    let found = inside.clone().flat_map(|(file, named)| {
        named.iter().filter(is_never).map(|path| format!("{} names {}", file.display(), path.join("::")))
    });
    (found.collect(), inside.count())
}

#[test]
fn folders_import_only_allowed_modules() {
    let targets =
        ["mpu", "mpu-engine"].map(|name| (name, Target::read(&repo().join(format!("crates/{name}/src/lib.rs")))));
    for row in FORBIDDEN.trim().lines() {
        let (place, never) = row.trim().split_once(": ").unwrap();
        let (name, folder) = place.split_once('/').unwrap();
        let (_, target) = targets.iter().find(|(of, _)| *of == name).unwrap();
        let (found, files) = violations(target, folder, &never.split(' ').collect::<Vec<_>>());
        assert!(found.is_empty(), "{found:?}");
        assert!(files > 0, "there is no folder {place}");
    }
}
