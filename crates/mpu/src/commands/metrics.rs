//! `mpu metrics`: hands options to the exporter.

use crate::cli;
use crate::error::Error;
use crate::host::Host;
use crate::metrics::collect::Patience;
use crate::metrics::{self, source, Done, Way};
use std::time::Duration;

/// Serves, writes or gives back the metrics of a host. Addresses go to standard error once they are open.
pub fn metrics(host: &Host, options: &cli::Metrics) -> Result<Done, Error> {
    let way = match (&options.textfile, options.once) {
        (Some(path), true) => Way::WriteOnce(path.clone()),
        (Some(path), false) => Way::Write(path.clone(), Duration::from_secs(options.interval)),
        (None, true) => Way::Print,
        (None, false) => Way::Serve(options.listen.clone()),
    };
    let told = |addresses: &[String]| {
        crate::progress::say(format_args!("mpu: metrics: listening at {}", addresses.join(", ")))
    };
    Ok(metrics::run(source::sources(host), options.label.clone(), Patience::default(), &way, told)?)
}
