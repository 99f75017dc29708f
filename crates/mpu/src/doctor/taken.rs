//! Which engine this host takes: what another one lacks does not matter.

use super::seen::Seen;
use mpu_engine::Engine;
use mpu_engine::module::state;
use mpu_engine::up::{self, Choice, UpOptions};
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

const OF_MODULE: [&str; 9] = [
    "kernel",
    "modules_allowed",
    "function_tracing",
    "signatures",
    "headers",
    "next_kernel",
    "dkms",
    "livepatch",
    "other_redirects",
];

/// Checks of what only the notify engine needs.
const OF_NOTIFY: [&str; 2] = ["notify_wrapper", "notify_rootless"];

/// Why a check is not made; none where it is.
pub(super) fn skipped(host: &Host, check: &str) -> Option<Seen> {
    if OF_MODULE.contains(&check) && taken(host) == Engine::Notify {
        return Some(Seen::skipped("only the module needs it, and this host uses the notify engine"));
    }
    (OF_NOTIFY.contains(&check) && !uses_notify(host)).then(not_used)
}

/// Whether the notify engine is up, or would be taken.
pub(super) fn uses_notify(host: &Host) -> bool {
    let chosen = || planned(host).is_some_and(|choice| choice.engine == Engine::Notify);
    matches!(client::state(host), Ok(Some(_))) || !state::is_loaded(host) && chosen()
}

pub(super) fn not_used() -> Seen {
    Seen::skipped("this host does not use the notify engine")
}
