//! Which engine this host takes: what another one lacks is nobody's trouble.

use super::seen::Seen;
use mpu_engine::module::{raise, state};
use mpu_engine::{choose, Engine};
use mpu_host::config::Config;
use mpu_host::driver::Driver;
use mpu_host::host::Host;
use mpu_notify::client;

/// The engine that is up, or that `mpu up` would take. What cannot be known is taken for the module, which needs more.
fn taken(host: &Host) -> Engine {
    if state::is_loaded(host) {
        return Engine::Module;
    }
    if matches!(client::state(host), Ok(Some(_))) {
        return Engine::Notify;
    }
    let Config { engine: asked, modules, .. } = Config::of(host).unwrap_or_default();
    let driver = Driver::loaded(host);
    let options = raise::ModuleOptions { modules, ..raise::ModuleOptions::default() };
    choose(host, asked, &options, driver.as_ref()).map_or(Engine::Module, |choice| choice.engine)
}

/// Why the module's needs are not looked at; none where they are.
pub(super) fn without_module(host: &Host) -> Option<Seen> {
    (taken(host) == Engine::Notify)
        .then(|| Seen::skipped("only the module needs it, and this host uses the notify engine"))
}
