//! Options of `mpu top`.

use crate::listing::columns::{Column, Sort};
use crate::listing::filter::Filter;
use std::time::Duration;

/// Options of `mpu top`.
#[derive(Debug, Clone, clap::Args)]
pub struct TopOptions {
    /// Seconds between two readings
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,

    /// Print one reading as plain text, and end
    #[arg(long, conflicts_with = "batch")]
    pub once: bool,

    /// Print every reading as plain text, one below the other
    #[arg(short, long)]
    pub batch: bool,

    /// End after this number of readings
    #[arg(short = 'n', long, value_name = "COUNT", requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Show these columns, in this order
    #[arg(short = 'o', long, value_enum, value_delimiter = ',', value_name = "COLUMN,…")]
    pub columns: Vec<Column>,

    /// Sort by this column; a dash before it reverses the order
    #[arg(
        short,
        long,
        value_name = "COLUMN",
        default_value = "-util",
        allow_hyphen_values = true,
        hide_possible_values = true
    )]
    pub sort: Sort,

    #[command(flatten)]
    pub filter: Filter,
}

/// From a tenth of a second, below which utilisation does not change, to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_string())?;
    match (0.1..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("seconds are to be from 0.1 to 3600".to_string()),
    }
}
