//! The generated tables of exported methods: number, flags, access right and type of the parameters of each control.

use anyhow::{bail, Context, Result};

use super::super::c::tokens::without_comments;
use super::{Control, Reach};

/// The entries of all method tables of a generated file. The labels before the values are comments, and have stayed while
/// what is around them changed: they are what is read.
pub fn methods(text: &str) -> Result<Vec<Control>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("NVOC_EXPORTED_METHOD_DEF ") {
        rest = &rest[at..];
        let head = &rest[..rest.find('\n').unwrap_or(rest.len())];
        let end = rest.find("\n};").unwrap_or(rest.len());
        // A declaration ahead of the table, or a use of it.
        if !head.contains("[]") || head.trim_end().ends_with(';') {
            rest = &rest[head.len()..];
            continue;
        }
        let table = &rest[..end];
        rest = &rest[end..];
        let begun = table.matches("/*flags=*/").count();
        let before = out.len();
        for entry in table.split("/*flags=*/").skip(1) {
            let flags = value(entry).with_context(|| format!("flags of a method: {}", shown(entry)))?;
            let labelled = |label: &str| entry.split_once(label).map(|(_, behind)| behind);
            let access_right = labelled("/*accessRight=*/").and_then(value).unwrap_or(0);
            let cmd = labelled("/*methodId=*/")
                .and_then(value)
                .with_context(|| format!("number of a method: {}", shown(entry)))?;
            let size =
                labelled("/*paramSize=*/").with_context(|| format!("size of method {cmd:#x}: {}", shown(entry)))?;
            let size = without_comments(size.split('\n').next().unwrap_or_default());
            let parameters = match size.trim().trim_end_matches(',').trim() {
                "0" => None,
                text => match text.strip_prefix("sizeof(").and_then(|text| text.strip_suffix(')')) {
                    Some(name) => Some(name.trim().trim_start_matches("struct ").to_owned()),
                    None => bail!("the size of method {cmd:#x} is {text:?}: neither 0 nor a sizeof"),
                },
            };
            let name = labelled("/*func=*/").and_then(|behind| behind.split('"').nth(1)).unwrap_or("?").to_owned();
            let cmd = u32::try_from(cmd)?;
            out.push(Control { cmd, name, reach: Reach::Kernel, flags, access_right, parameters });
        }
        if out.len() - before != begun || begun == 0 {
            bail!("a method table has {begun} entries that can be read: {}", shown(head));
        }
    }
    Ok(out)
}

fn value(text: &str) -> Option<u64> {
    let digits = text.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(digits.len());
    let digits = digits[..end].trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect::<String>().replace('\n', " ")
}
