//! Which engine this host takes: what another one lacks is nobody's trouble.

use super::seen::Seen;
use mpu_engine::module::state;
use mpu_engine::up::{self, Choice, UpOptions};
use mpu_engine::Engine;
use mpu_host::config::Config;
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
    planned(host).map_or(Engine::Module, |choice| choice.engine)
}

/// What `mpu up` would take; none if that is not known. What is wrong with the configuration is another check's.
pub(super) fn planned(host: &Host) -> Option<Choice> {
    let config = Config::of(host).unwrap_or_default();
    up::preflight(host, &config, &UpOptions::default()).ok().map(|plan| plan.choice)
}

/// Why the module's needs are not looked at; none where they are.
pub(super) fn without_module(host: &Host) -> Option<Seen> {
    (taken(host) == Engine::Notify)
        .then(|| Seen::skipped("only the module needs it, and this host uses the notify engine"))
}
