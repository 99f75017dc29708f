//! Makes the probe's child call the driver, so that the module's counters can prove translation (`engine::module::proof`).

use super::{ChildEngine, measure, this_program};
use mpu_host::driver::Driver;
use mpu_host::explain::chain;
use mpu_host::host::{CAP_SYS_ADMIN, Host};
use mpu_os::deadline::within;
use std::time::Duration;

/// Calls the driver once. If the driver hangs, the call's thread is abandoned, and ends with this process.
pub fn call_driver(host: &Host, timeout: Duration) -> Result<(), String> {
    if !host.is_this() {
        return Err("--host-root names another host, whose kernel is not the running one".to_string());
    }
    if !host.has_capability(CAP_SYS_ADMIN) {
        return Err("making a PID namespace takes the capability CAP_SYS_ADMIN".to_string());
    }
    let owned_host = host.clone();
    let measured = within(timeout, move || {
        let driver = Driver::loaded(&owned_host);
        measure(&owned_host, driver.as_ref(), &this_program(), &["probe-child"], ChildEngine::Module)
    });
    match measured {
        Some(measured) => measured.map(drop).map_err(|error| chain(&error)),
        None => Err(format!("the driver gave no answer within {} s", timeout.as_secs())),
    }
}
