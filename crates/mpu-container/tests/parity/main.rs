//! The parity suite: behaviour that users of NVIDIA's container toolkit (1.20) rely on, as data, run against the executable.
//!
//! A case has an input (program, arguments, container, fake host) and statements about the result. The cases are the TOML files in this
//! directory, one for each area; `case` has the keys. A case with device nodes needs root and is skipped otherwise. Every statement is
//! also inverted, and must then fail.
//!
//! If we differ from NVIDIA's toolkit on purpose, the case has `differs`: the difference's name in "Where it differs" of
//! `docs/container/README.md`, which has the reason.
//!
//! `MPU_CASE=TEXT cargo test -p mpu-container --test parity` runs only cases whose name contains the text, and prints the result.

mod case;
#[path = "../common/cases.rs"]
mod cases;
mod check;
mod docs;
mod facts;
#[path = "../../src/driver/fake_library.rs"]
mod fake_library;
#[path = "../common/host.rs"]
mod host;
mod run;

use case::Case;

/// Minimum number of cases, so that the suite does not shrink unnoticed.
const MIN_CASES: usize = 1000;

macro_rules! areas {
    ($($test:ident: $file:literal,)*) => {
        const AREAS: &[(&str, &str)] = &[$(($file, include_str!(concat!($file, ".toml")))),*];
        $(#[test] fn $test() { area($file); })*
    };
}

areas! {
    asking: "asking",
    modes: "modes",
    edits: "edits",
    config: "config",
    generate: "generate",
    extras: "extras",
    engines: "engines",
    setting: "setting",
    gpu: "gpu",
    hook: "hook",
    hooks: "hooks",
    system: "system",
    cli: "cli",
    hostile: "hostile",
    require: "require",
    differences: "differences",
}

fn cases_of(area: &str) -> Vec<Case> {
    let (name, text) = AREAS.iter().find(|(name, _)| *name == area).expect("an area");
    case::read(name, text)
}

fn area(area: &str) {
    let filter = std::env::var("MPU_CASE").ok();
    let mut failures = Vec::new();
    let mut run_count = 0;
    for case in cases_of(area) {
        if filter.as_ref().is_some_and(|words| !case.name.contains(words)) {
            continue;
        }
        let outcome = match run::run(&case) {
            Ok(outcome) => outcome,
            Err(reason) => {
                println!("skipped: {area}: {}: {reason}", case.name);
                continue;
            }
        };
        run_count += 1;
        if filter.is_some() {
            println!("{}: {outcome:#?}", case.name);
        }
        let failed = check::differences(&case, &outcome);
        let inverted = check::inverted(&case).into_iter();
        let unfailing =
            inverted.filter(|(_, inverted)| failed.is_empty() && check::differences(inverted, &outcome).is_empty());
        failures.extend(unfailing.map(|(statement, _)| format!("{}: cannot fail: {statement}", case.name)));
        failures.extend(failed.iter().map(|statement| format!("{}: {statement}", case.name)));
    }
    println!("{area}: {run_count} cases");
    assert!(failures.is_empty(), "{} wrong:\n\n{}\n", failures.len(), failures.join("\n\n"));
}

#[test]
fn every_case_file_is_listed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity");
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let known = AREAS.iter().any(|(area, _)| *area == name);
        assert!(known || path.extension().is_none_or(|end| end != "toml"), "{} is not played", path.display());
    }
    let cases: Vec<Case> = AREAS.iter().flat_map(|(area, _)| cases_of(area)).collect();
    assert!(cases.len() >= MIN_CASES, "{} cases, and {MIN_CASES} were promised", cases.len());
}
