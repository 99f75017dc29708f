//! The made-up GPU and the overrides of tests/real-driver/overrides.toml, checked against the driver's symbols and compiled for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use mpu_abi::Release;
use serde::Deserialize;

use super::source::{Driver, Internals};
use crate::files::{self, read};
use crate::kernels::Kernel;
use crate::run::output;
use crate::{modules, paths};

/// The folder with our sources.
fn parts() -> PathBuf {
    paths::repo().join("tests/real-driver")
}

#[derive(Deserialize)]
struct Table {
    #[serde(rename = "override")]
    overrides: Vec<Override>,
    standin: Vec<Standin>,
    used: Vec<Used>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Override {
    symbol: Vec<String>,
    returns: Returned,
    fill: Option<Fill>,
    from: Option<String>,
    until: Option<String>,
    reason: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Returned {
    Number(u32),
    Nothing(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fill {
    argument: u8,
    offset: u16,
    byte: u8,
    count: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Standin {
    symbol: Vec<String>,
    by: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Used {
    symbol: Vec<String>,
    reason: String,
}

/// Puts the modules of the driver and the made-up GPU into `folder`; for an open driver also the overrides.
pub fn make(kernel: &Kernel, driver: &Driver, folder: &Path) -> Result<()> {
    std::fs::copy(&driver.module, folder.join("nvidia.ko")).context("cannot copy the driver")?;
    modules::build(kernel, &parts().join("gpu"), folder, &[])?.checked("the made-up GPU")?;
    let Some(internals) = &driver.internals else { return Ok(()) };

    let listed = output(Command::new("nm").arg("--defined-only").arg(&driver.module))?;
    let symbols: BTreeSet<&str> = listed.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    let table = table(&read(&parts().join("overrides.toml"))?, &driver.release, &symbols)?;
    let sources = folder.join("overrides");
    files::recreate(&sources)?;
    for file in files::entries(&parts().join("overrides"))? {
        files::copy(&file, &sources.join(file.file_name().unwrap_or_default()))?;
    }
    std::fs::write(sources.join("table.h"), table)?;
    standins(internals, &sources).with_context(|| {
        format!("the stand-ins do not fit to {}: see tests/real-driver/overrides/standins.c", driver.release)
    })?;
    modules::build(kernel, &sources, folder, &[])?.checked("the overrides").map(drop)
}

fn standins(internals: &Internals, sources: &Path) -> Result<()> {
    let mut compiler = Command::new("gcc-12");
    compiler
        .current_dir(&internals.folder)
        .args(&internals.flags)
        .args(["-Wall", "-Werror", "-Wno-undef", "-I"])
        .arg(sources);
    compiler.arg("-c").arg(sources.join("standins.c")).arg("-o").arg(sources.join("standins.o_shipped"));
    output(&mut compiler).map(drop)
}

/// The rows as a C header. Each row's symbol must exist in the driver, if its release has it.
fn table(rows: &str, release: &str, symbols: &BTreeSet<&str>) -> Result<String> {
    let rows: Table = toml::from_str(rows).context("tests/real-driver/overrides.toml")?;
    let (mut text, mut missing) = (String::from("/* Made of tests/real-driver/overrides.toml. */\n"), Vec::new());
    let mut applies = |names: &[String], [from, until]: [Option<&String>; 2], reason: &str| {
        let found = names.iter().find(|name| symbols.contains(name.as_str())).cloned();
        let number = |release: &str| release.parse::<Release>().ok();
        let may_lack = until.is_some_and(|until| number(release) >= number(until))
            || from.is_some_and(|from| number(release) < number(from));
        if found.is_none() && !may_lack {
            missing.push(format!("{} ({reason})", names.join(" or ")));
        }
        found
    };
    for row in &rows.overrides {
        let Some(name) = applies(&row.symbol, [row.from.as_ref(), row.until.as_ref()], &row.reason) else { continue };
        let (value, is_void) = match &row.returns {
            Returned::Number(value) => (*value, false),
            Returned::Nothing(word) if word == "nothing" => (0, true),
            Returned::Nothing(word) => bail!("overrides.toml: {name} cannot return {word:?}"),
        };
        let Fill { argument, offset, byte, count } =
            row.fill.as_ref().unwrap_or(&Fill { argument: 1, offset: 0, byte: 0, count: 0 });
        text += &format!("OVERRIDE({name}, {value:#x}, {is_void}, {argument}, {offset}, {byte:#x}, {count})\n");
    }
    let standins = rows.standin.iter().map(|row| (&row.symbol, &row.reason, Some(&row.by)));
    let used = rows.used.iter().map(|row| (&row.symbol, &row.reason, None));
    for (names, reason, by) in standins.chain(used) {
        if let Some(name) = applies(names, [None, None], reason) {
            text += &by.map_or_else(|| format!("USED({name})\n"), |by| format!("STANDIN({name}, {by})\n"));
        }
    }
    ensure!(
        missing.is_empty(),
        "nvidia.ko of {release} lacks what tests/real-driver/overrides.toml names; find out what it is called there, and \
         add the name to the row:\n{}",
        missing.join("\n")
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "
        [[override]]
        symbol = [\"old\", \"new\"]
        returns = 0x56
        reason = \"an engine\"
        [[override]]
        symbol = [\"gone\"]
        returns = \"nothing\"
        until = \"550\"
        reason = \"a question\"
        [[standin]]
        symbol = [\"memory\"]
        by = \"ours\"
        reason = \"no heap\"
        [[used]]
        symbol = [\"helper\"]
        reason = \"called\"
    ";

    #[test]
    fn row_takes_drivers_symbol() {
        let symbols = BTreeSet::from(["new", "memory", "helper"]);
        let text = table(ROWS, "595.45.04", &symbols).unwrap();
        assert!(text.contains("OVERRIDE(new, 0x56, false, 1, 0, 0x0, 0)\n"), "{text}");
        assert!(text.contains("STANDIN(memory, ours)\n") && text.contains("USED(helper)\n"), "{text}");
        assert!(!text.contains("gone"), "{text}");
    }

    #[test]
    fn missing_driver_symbols_are_named_with_reasons() {
        let fault = table(ROWS, "535.261.03", &BTreeSet::from(["old", "helper"])).unwrap_err().to_string();
        assert!(fault.contains("535.261.03") && fault.contains("gone (a question)"), "{fault}");
        assert!(fault.contains("memory (no heap)") && !fault.contains("helper ("), "{fault}");
    }

    #[test]
    fn override_list_names_existing_stand_ins() {
        let rows: Table = toml::from_str(&read(&parts().join("overrides.toml")).unwrap()).unwrap();
        let source = read(&parts().join("overrides/standins.c")).unwrap();
        assert!(rows.standin.iter().all(|row| source.contains(&format!(" {}(", row.by))));
        let used = rows.used.iter().map(|row| &row.symbol[0]);
        let called = used.filter(|name| source.contains(&format!("real_{name}"))).count();
        assert_eq!(called, source.matches("= real_").count());
        let reasons = rows.overrides.iter().map(|row| &row.reason);
        assert!(reasons.chain(rows.used.iter().map(|row| &row.reason)).all(|reason| reason.len() > 7));
    }
}
