//! The plan: what the host wants done in this guest, one row per driver and client.
//!
//! `era=1 client=550.163.01 engines=none,module stories=all reloads=10`

use anyhow::{ensure, Context, Result};

/// One row.
#[derive(Debug, Clone)]
pub struct Row {
    /// The simulated driver's era, as its folder below /sim is called.
    pub era: String,
    /// The release of nvidia-smi and NVML.
    pub client: String,
    /// Engines, in order.
    pub engines: Vec<String>,
    /// Stories by name, or `all`.
    pub stories: Vec<String>,
    /// How often the module is reloaded under load.
    pub reloads: u32,
}

/// Reads a plan.
pub fn read(path: &str) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let rows = text.lines().map(row).collect::<Result<Vec<_>>>()?;
    ensure!(!rows.is_empty(), "{path} is empty");
    Ok(rows)
}

fn row(line: &str) -> Result<Row> {
    let value = |key: &str| {
        let found = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        found.with_context(|| format!("the plan's row has no {key}: {line}"))
    };
    let list = |key: &str| Ok::<_, anyhow::Error>(value(key)?.split(',').map(str::to_owned).collect());
    Ok(Row {
        era: value("era")?.to_owned(),
        client: value("client")?.to_owned(),
        engines: list("engines")?,
        stories: list("stories")?,
        reloads: value("reloads")?.parse().context("reloads is a number")?,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_row_is_read_and_a_torn_one_is_not() {
        let row = super::row("era=1f client=535.261.03 engines=none,module stories=all reloads=10").unwrap();
        assert_eq!((row.era.as_str(), row.engines.len()), ("1f", 2));
        assert!(super::row("era=1 engines=none").is_err());
    }
}
