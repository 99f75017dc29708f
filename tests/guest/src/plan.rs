//! The plan: what the host wants done in this guest, one row per driver and client. What a row is, is `mpu_plan`'s.

use anyhow::{ensure, Context, Result};
pub use mpu_plan::{Row, ALL};

pub fn read(path: &str) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let rows = text.lines().map(|line| line.parse().map_err(anyhow::Error::msg)).collect::<Result<Vec<_>>>()?;
    ensure!(!rows.is_empty(), "{path} is empty");
    Ok(rows)
}
