//! Engines: the ways in which translation gets between the driver and its callers.
//!
//! Owns the choice. An engine is a module below this one; another one adds a variant to [`Engine`], a line to [`choose`] and its
//! own module, and nothing else here. [`lock`] keeps those apart who bring one up at the same time.

#![allow(missing_docs)]

pub mod apply;
pub mod down;
pub mod error;
pub mod lock;
pub mod module;
pub mod observe;
pub mod signing;
pub mod up;

use error::EngineError;
use module::error::ModuleError;
use module::load_error::LoadError;
use module::{fits, raise};
use mpu_host::config::Asked;
use mpu_host::driver::Driver;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::Host;
use mpu_notify as notify;
use schemars::JsonSchema;
use serde::Serialize;

/// An engine that this build has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// The kernel module.
    Module,
    /// The supervisor in user space.
    Notify,
}

impl Engine {
    /// Every engine of this build, best first.
    pub const ALL: [Engine; 2] = [Engine::Module, Engine::Notify];

    /// Its name, as the command line and JSON write it.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Module => "module",
            Engine::Notify => "notify",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub engine: Engine,
    /// Why this one, as half a sentence.
    pub why: String,
    /// What would let a better one run here.
    pub better: Option<String>,
}

impl Choice {
    fn of(engine: Engine, why: impl Into<String>) -> Choice {
        Choice { engine, why: why.into(), better: None }
    }
}

/// Picks the engine. The module serves every container, those that run already, too; so it is first wherever it can be had.
///
/// # Errors
/// When it cannot be known whether this host can have the module.
pub fn choose(
    host: &Host,
    asked: Asked,
    module: &raise::ModuleOptions,
    driver: Option<&Driver>,
) -> Result<Choice, EngineError> {
    let about_module = module.build_only || module.module.is_some();
    match asked {
        Asked::Module => return Ok(Choice::of(Engine::Module, "asked for")),
        Asked::Notify => return Ok(Choice::of(Engine::Notify, "asked for")),
        Asked::Auto if about_module => return Ok(Choice::of(Engine::Module, "the options are for it")),
        Asked::Auto => {}
    }
    let Some(unfit) = fits::unfit(host, module, driver)? else {
        return Ok(Choice::of(Engine::Module, "this host can run it, and it serves every container"));
    };
    // With neither, the module's own failure says what is missing.
    if notify::raise::unfit(host).is_some() {
        return Ok(Choice::of(Engine::Module, "the only one whose needs this host can meet"));
    }
    Ok(instead_of_module(&unfit))
}

/// What is taken when the kernel itself refused a module that this host seemed to be fit for: a signature that it does not trust, which
/// only it can judge. None if that is not why, the module was asked for, or the other cannot be had either.
pub fn after_refusal(host: &Host, asked: Asked, module: &raise::ModuleOptions, error: &ModuleError) -> Option<Choice> {
    let is_refused = match error.plain() {
        ModuleError::Load(LoadError::Insert { .. }) => error.exit() == Exit::Refused,
        // The host seemed fit for one that was built elsewhere, and the kernel refused that file.
        ModuleError::Unfit(_) => matches!(error, ModuleError::After { .. }),
        _ => false,
    };
    let may = asked == Asked::Auto && module.module.is_none() && notify::raise::unfit(host).is_none();
    (is_refused && may).then(|| instead_of_module(error))
}

fn instead_of_module(unfit: &dyn Explain) -> Choice {
    Choice { engine: Engine::Notify, why: format!("the module cannot be used: {unfit}"), better: Some(unfit.fix()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::raise::fake::Setup;

    fn choice(setup: &Setup, asked: Asked, module: &raise::ModuleOptions) -> Choice {
        let host = setup.fake.host();
        choose(&host, asked, module, Driver::loaded(&host).as_ref()).expect("a choice")
    }

    #[test]
    fn the_module_is_first_where_it_can_be_had_and_the_reason_is_given_where_it_cannot() {
        let s = Setup::new();
        s.fake.can_notify();
        let options = s.options();
        let auto = raise::ModuleOptions::default();
        assert_eq!(choice(&s, Asked::Auto, &options).engine, Engine::Module);
        s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
        let found = choice(&s, Asked::Auto, &auto);
        assert_eq!(found.engine, Engine::Notify);
        assert!(found.why.contains("locked down (integrity)") && found.better.is_some(), "{found:?}");
        assert_eq!(choice(&s, Asked::Module, &auto).engine, Engine::Module, "what is asked for is taken");
        let build = raise::ModuleOptions { build_only: true, ..auto.clone() };
        assert_eq!(choice(&s, Asked::Auto, &build).engine, Engine::Module, "there is nothing to build of the other");

        s.fake.write("/proc/sys/kernel/osrelease", "5.8.0-generic");
        assert_eq!(choice(&s, Asked::Auto, &auto).engine, Engine::Module, "neither: the module says what is missing");
    }
}
