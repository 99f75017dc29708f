//! Applies the configuration's rules and budget to running engines. `mpu up` does so anyway.

use super::module::{checks, state};
use mpu_host::config::{Config, rules};
use mpu_host::explain::Explained;
use mpu_host::host::Host;
use mpu_notify::client;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum How {
    Applied,
    NotUp,
}

/// What was applied.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Applied {
    /// `applied`, or `not_up` if no engine was up.
    pub result: How,
    /// The number of compiled rules.
    pub rules: usize,
}

pub fn apply(host: &Host) -> Result<Applied, Explained> {
    checks::root(host)?;
    let config = Config::of(host)?;
    let text = rules::of_host(host, &config);
    let applied_to = [state::write_policy(host, &text)?, client::set_policy(host, &text)?].contains(&true);
    client::set_cpu_percent(host, config.notify_cpu_percent)?;
    Ok(Applied { result: if applied_to { How::Applied } else { How::NotUp }, rules: text.lines().count() })
}

/// Whether every running engine has these compiled rules, and the notify engine this budget; none if none is up, or if this user
/// may not read it.
pub fn holds(host: &Host, config: &Config, compiled: &[String]) -> Option<bool> {
    let of_module = state::read_policy(host).ok().flatten();
    let supervisor = client::state(host).ok().flatten();
    let has_budget = |state: &client::State| state.cpu_percent.is_none_or(|has| has == config.notify_cpu_percent);
    let by_module = of_module.map(|running| running == compiled);
    let by_supervisor = supervisor.map(|state| state.policy == compiled && has_budget(&state));
    [by_module, by_supervisor].into_iter().flatten().reduce(|a, b| a && b)
}
