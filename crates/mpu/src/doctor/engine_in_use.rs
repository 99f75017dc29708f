//! Decides which engine this host uses, so that the other engine's checks are skipped.

use super::check::CheckResult;
use mpu_engine::Engine;
use mpu_engine::module::state;
use mpu_engine::up::{self, Choice, UpOptions};
use mpu_host::config::Config;
use mpu_host::host::Host;
use mpu_notify::client;

/// The engine that is up, or that `mpu up` would choose. If unknown, the module, because it has more checks.
fn engine_in_use(host: &Host) -> Engine {
    if state::is_loaded(host) {
        return Engine::Module;
    }
    if matches!(client::state(host), Ok(Some(_))) {
        return Engine::Notify;
    }
    planned_choice(host).map_or(Engine::Module, |choice| choice.engine)
}

/// The engine that `mpu up` would choose; none if unknown. Another check reports errors of the configuration.
pub(super) fn planned_choice(host: &Host) -> Option<Choice> {
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

/// Checks of the notify engine's needs.
const OF_NOTIFY: [&str; 2] = ["notify_wrapper", "notify_rootless"];

/// Why a check is skipped; none if it is made.
pub(super) fn skip_reason(host: &Host, check: &str) -> Option<CheckResult> {
    if OF_MODULE.contains(&check) && engine_in_use(host) == Engine::Notify {
        return Some(CheckResult::skipped("only the module needs it, and this host uses the notify engine"));
    }
    (OF_NOTIFY.contains(&check) && !uses_notify(host)).then(not_used)
}

/// Whether the notify engine is up, or would be chosen.
pub(super) fn uses_notify(host: &Host) -> bool {
    let chosen = || planned_choice(host).is_some_and(|choice| choice.engine == Engine::Notify);
    matches!(client::state(host), Ok(Some(_))) || !state::is_loaded(host) && chosen()
}

pub(super) fn not_used() -> CheckResult {
    CheckResult::skipped("this host does not use the notify engine")
}
