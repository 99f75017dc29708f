//! The generated tables of exported methods: number, flags, access right and type of the parameters of each control.

use anyhow::{Context, Result, ensure};

use super::super::c::tokens::{number, tokens};
use super::{Control, Flags};

/// The entries of all method tables of a generated file. The labels before the values are comments, and have stayed while
/// what is around them changed: they are what is read.
pub fn methods(text: &str, flags: Flags) -> Result<Vec<Control>> {
    let mut out = Vec::new();
    for part in text.split("NVOC_EXPORTED_METHOD_DEF ").skip(1) {
        let head = part.lines().next().unwrap_or_default();
        // A declaration ahead of the table, or a use of it.
        if !head.contains("[]") || head.trim_end().ends_with(';') {
            continue;
        }
        let table = part.split("\n};").next().unwrap_or_default();
        let entries: Vec<&str> = table.split("/*flags=*/").skip(1).collect();
        ensure!(!entries.is_empty(), "a method table has 0 entries that can be read: {}", shown(head));
        for entry in entries {
            out.push(method(entry, flags).with_context(|| format!("a method: {}", shown(entry)))?);
        }
    }
    Ok(out)
}

fn method(entry: &str, meaning: Flags) -> Result<Control> {
    // What is behind a label, up to the end of the line.
    let labelled = |label: &str| Some(tokens(entry.split_once(label)?.1.lines().next()?));
    let value = |label: &str| number(labelled(label)?.first()?);
    let flags = number(tokens(entry).first().context("flags of a method")?).context("flags of a method")?;
    let cmd = u32::try_from(value("/*methodId=*/").context("number of a method")?)?;
    let size = labelled("/*paramSize=*/").with_context(|| format!("size of method {cmd:#x}"))?;
    let parameters = match size.as_slice() {
        ["0", ..] => None,
        ["sizeof", "(", "struct", name, ")", ..] | ["sizeof", "(", name, ")", ..] => Some((*name).to_owned()),
        other => anyhow::bail!("the size of method {cmd:#x} is {other:?}: neither 0 nor a sizeof"),
    };
    let name = labelled("/*func=*/").and_then(|tokens| Some(tokens.first()?.trim_matches('"').to_owned()));
    let name = name.unwrap_or_else(|| "?".to_owned());
    let reach = meaning.reach(flags as u64, value("/*accessRight=*/").unwrap_or(0) as u64);
    Ok(Control { cmd, name, reach, parameters })
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect::<String>().replace('\n', " ")
}
