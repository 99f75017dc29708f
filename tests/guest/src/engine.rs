//! The engines of a stage, and the engines that a story tests.

use anyhow::{Context, Result};

/// The engine of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// No engine: the bare driver answers.
    None,
    Module,
    /// The supervisor in user space.
    Notify,
    /// No engine at first: the story loads the module itself.
    Later,
}

impl Engine {
    pub fn named(name: &str) -> Result<Self> {
        let all = [Self::None, Self::Module, Self::Notify, Self::Later];
        all.into_iter().find(|engine| engine.name() == name).with_context(|| format!("no engine is called {name}"))
    }

    /// Its name in plans and verdicts.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Module => "module",
            Self::Notify => "notify",
            Self::Later => "later",
        }
    }
}

/// The engines that a story tests. Without an engine it runs if the plan's row has one of them.
#[derive(Debug, Clone, Copy)]
pub enum Engines {
    /// All of them, with the same body.
    Every,
    /// The module only, with the reason.
    Module(&'static str),
    /// The supervisor only, with the reason.
    Notify(&'static str),
}

impl Engines {
    /// Why a story does not run with an engine; none if it runs. `row` has all engines of the plan's row.
    pub fn skip_reason(self, engine: Engine, row: &[Engine]) -> Option<String> {
        let (only, why) = match self {
            Self::Every => return None,
            Self::Module(why) => (Engine::Module, why),
            Self::Notify(why) => (Engine::Notify, why),
        };
        let is_played = match engine {
            Engine::None => row == [Engine::None] || row.contains(&only),
            Engine::Later => true,
            engine => engine == only,
        };
        (!is_played).then(|| format!("a story of the engine {}: {why}", only.name()))
    }

    /// As `./x stories` prints them.
    pub fn names(self) -> &'static str {
        match self {
            Self::Every => "every",
            Self::Module(_) => "module",
            Self::Notify(_) => "notify",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn story_runs_with_its_engines_and_without() {
        let row = [Engine::None, Engine::Module];
        assert_eq!(Engines::Every.skip_reason(Engine::Notify, &row), None);
        assert_eq!(Engines::Module("loading").skip_reason(Engine::Module, &row), None);
        assert_eq!(Engines::Module("loading").skip_reason(Engine::None, &row), None);
        assert!(
            Engines::Module("loading").skip_reason(Engine::Notify, &row).is_some_and(|why| why.contains("loading"))
        );
        assert!(Engines::Notify("a kill").skip_reason(Engine::None, &row).is_some(), "nothing plays its other half");
        assert!(Engine::named("ebpf").is_err());
    }
}
