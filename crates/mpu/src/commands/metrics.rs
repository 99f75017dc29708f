//! `mpu metrics`: hands options to the exporter.

use crate::error::Error;
use crate::metrics::collect::Patience;
use crate::metrics::{self, source, Done, MetricsOptions};
use mpu_host::host::Host;

/// Serves, writes or gives back the metrics of a host. Addresses go to standard error once they are open.
pub fn metrics(host: &Host, options: &MetricsOptions) -> Result<Done, Error> {
    let told = |addresses: &[String]| {
        mpu_host::progress::say(format_args!("mpu: metrics: listening at {}", addresses.join(", ")))
    };
    let (sources, labels) = (source::sources(host), options.label.clone());
    Ok(metrics::run(sources, labels, Patience::default(), &options.way(), told)?)
}
