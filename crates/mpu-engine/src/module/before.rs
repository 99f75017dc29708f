//! The module that was up before another version was to take its place.
//!
//! Owns how it comes back when the other one did not come and it is gone: from the file that it was loaded from, if that is still its
//! own. Decides nothing about other engines.

use super::error::ModuleError;
use super::load::{self, Kernel, Parameters};
use super::raise::{is_at_work, is_in_place};
use super::record::Record;
use super::sources;
use super::state::{self, Instance, State};
use mpu_host::config::Redirect;
use mpu_host::driver::Driver;
use mpu_host::host::Host;

/// A module that works, and that another is to replace.
#[derive(Debug)]
pub struct Before {
    version: String,
    /// Whose it was, and from which file.
    record: Option<Record>,
    policy: String,
}

impl Before {
    /// Looks; none if nothing is to be replaced.
    pub fn of(host: &Host, driver: Option<&Driver>) -> Option<Before> {
        let state = state::read(host).ok()??;
        if !is_at_work(&state, driver) || is_in_place(&state) {
            return None;
        }
        let policy = state::read_policy(host).ok().flatten().unwrap_or_default().join("\n");
        Some(Before { version: state.version, record: Record::read(host), policy })
    }

    /// Brings it back if nothing is up; the version that is up then.
    pub fn restored(&self, host: &Host, kernel: &dyn Kernel, driver: Option<&Driver>) -> Option<String> {
        let at_work = || -> Option<State> { state::read(host).ok()?.filter(|state| is_at_work(state, driver)) };
        if let Some(state) = at_work() {
            return Some(state.version);
        }
        // Where it lay, the new version's file may lie by now.
        let record = self.record.as_ref().filter(|it| sources::version(&it.module).as_ref() == Some(&self.version))?;
        let parameters = Parameters { policy: &self.policy, redirect: Redirect::Auto };
        load::insert(host, kernel, Instance::Mpu, &record.module, parameters).ok()?;
        let again = Record::now(&record.module, record.origin, &self.version);
        Record { by_agent: record.by_agent, ..again }.write(host);
        at_work().map(|state| state.version)
    }
}

/// An error with what is up after it.
pub fn replacing(error: ModuleError, now: Option<String>) -> ModuleError {
    ModuleError::Replacing { error: Box::new(error), now }
}
