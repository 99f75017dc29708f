//! The parity suite: behaviour that users of NVIDIA's container toolkit (1.20) rely on, as data, run against the executable.
//!
//! A case has an input (program, arguments, container, fake host) and statements about the result. The cases are the TOML files in this
//! folder, one for each area; `case` has the keys. A case with device nodes needs root and is skipped otherwise. Every statement is
//! also inverted, and must then fail.
//!
//! Where we differ from NVIDIA's on purpose, the case has `differs`: the difference's name in "Where it differs" of
//! `docs/container/README.md`, which has the reason.
//!
//! `MPU_CASE=WORDS cargo test -p mpu-container --test parity` runs only cases whose name has the words, and prints the result.

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

/// The suite must not shrink below what was promised.
const PROMISED: usize = 600;

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
    let only = std::env::var("MPU_CASE").ok();
    let mut wrong = Vec::new();
    let mut played = 0;
    for case in cases_of(area) {
        if only.as_ref().is_some_and(|words| !case.name.contains(words)) {
            continue;
        }
        let outcome = match run::run(&case) {
            Ok(outcome) => outcome,
            Err(reason) => {
                println!("skipped: {area}: {}: {reason}", case.name);
                continue;
            }
        };
        played += 1;
        if only.is_some() {
            println!("{}: {outcome:#?}", case.name);
        }
        let found = check::differences(&case, &outcome);
        let turned = check::turned(&case).into_iter();
        let deaf = turned.filter(|(_, turned)| found.is_empty() && check::differences(turned, &outcome).is_empty());
        wrong.extend(deaf.map(|(what, _)| format!("{}: cannot fail: {what}", case.name)));
        wrong.extend(found.iter().map(|what| format!("{}: {what}", case.name)));
    }
    println!("{area}: {played} cases");
    assert!(wrong.is_empty(), "{} wrong:\n\n{}\n", wrong.len(), wrong.join("\n\n"));
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
    assert!(cases.len() >= PROMISED, "{} cases, and {PROMISED} were promised", cases.len());
}
