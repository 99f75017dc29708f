//! The definition of a story, and its verdict.
//!
//! A story states the right answer. Without an engine it must fail, in the way that the story expects for the driver's era: so every story
//! proves that it can fail. If the driver is right by itself, that run is a counted skip.

use std::fmt;

use crate::engine::Engine;
use crate::engine::Engines;
use crate::real::Real;
use crate::stage::Stage;

/// One story. Its name is its claim.
pub struct Story {
    /// `container_sees_its_own_processes`
    pub name: &'static str,
    /// The lines of docs/contract.md that it proves.
    pub lines: &'static [u8],
    /// What it proves, for `./x stories`.
    pub shows: &'static str,
    /// The engines that it is about.
    pub engines: Engines,
    /// Whether it is independent of the driver's era and the client: `./x test` runs it in one row of each kernel's guest.
    pub is_of_the_kernel: bool,
    /// Where NVIDIA's own driver plays it.
    pub real: Real,
    only: Option<(Holds, &'static str)>,
    eras: Option<(&'static [u32], &'static str)>,
    is_once: bool,
    bare: Bare,
    /// The body: the same for every engine and for none.
    pub(crate) run: fn(&Stage) -> Result<(), Fault>,
}

type Holds = fn(&Stage) -> bool;

enum Bare {
    Is(Without),
    By(fn(&Stage) -> Without),
}

/// The bare driver's result for a story, by era.
#[derive(Clone, Copy)]
pub enum Without {
    /// A wrong answer; the fault's text contains these words.
    Wrong(&'static str),
    /// A right answer: the run without an engine is skipped for this reason.
    Right(&'static str),
    /// Not applicable to this driver or client: all its runs are skipped for this reason.
    Moot(&'static str),
}

/// `story!(name, [lines]; "what it proves")`: the story whose body is the function of that name; with `scene` before it, on the stage's scene.
macro_rules! story {
    (scene $name:ident, $lines:expr; $shows:expr) => {
        $crate::story::Story::new(stringify!($name), &$lines, $shows, |stage| $name(stage, &*stage.scene()?))
    };
    ($name:ident, $lines:expr; $shows:expr) => {
        $crate::story::Story::new(stringify!($name), &$lines, $shows, $name)
    };
}

impl Story {
    /// A story of every engine that only needs nvctl, and expects a wrong list.
    pub(crate) const fn new(
        name: &'static str,
        lines: &'static [u8],
        shows: &'static str,
        run: fn(&Stage) -> Result<(), Fault>,
    ) -> Self {
        let bare = Bare::Is(Without::Wrong("shows"));
        let engines = Engines::Every;
        let (real, is_of_the_kernel, is_once) = (Real::Played, false, true);
        Self { name, lines, shows, engines, is_of_the_kernel, real, only: None, eras: None, is_once, bare, run }
    }

    /// The module's alone, and why.
    pub(crate) const fn module(self, why: &'static str) -> Self {
        Self { engines: Engines::Module(why), ..self }
    }

    /// The supervisor's alone, and why.
    pub(crate) const fn notify(self, why: &'static str) -> Self {
        Self { engines: Engines::Notify(why), ..self }
    }

    /// Of the engine and the kernel under it. Not for a story whose answers are the driver's, nor one that is played in some eras alone.
    pub(crate) const fn of_the_kernel(self) -> Self {
        Self { is_of_the_kernel: true, ..self }
    }

    pub(crate) const fn real(self, real: Real) -> Self {
        Self { real, ..self }
    }

    /// Played with every client of an era, as one of NVIDIA's takes part.
    pub(crate) const fn every_client(self) -> Self {
        Self { is_once: false, ..self }
    }

    /// Played where this holds; elsewhere moot for that reason.
    pub(crate) const fn only(self, holds: Holds, why_not: &'static str) -> Self {
        Self { only: Some((holds, why_not)), ..self }
    }

    /// Played in these eras; in others moot for that reason.
    pub(crate) const fn eras(self, eras: &'static [u32], why_not: &'static str) -> Self {
        Self { eras: Some((eras, why_not)), ..self }
    }

    /// The bare driver is wrong, and the fault's text holds these words.
    pub(crate) const fn wrong(self, words: &'static str) -> Self {
        Self { bare: Bare::Is(Without::Wrong(words)), ..self }
    }

    /// The bare driver is right, and why.
    pub(crate) const fn right(self, why: &'static str) -> Self {
        Self { bare: Bare::Is(Without::Right(why)), ..self }
    }

    /// What the bare driver does depends on the stage.
    pub(crate) const fn by(self, bare: fn(&Stage) -> Without) -> Self {
        Self { bare: Bare::By(bare), ..self }
    }

    /// The expected result without an engine.
    pub(crate) fn without(&self, stage: &Stage) -> Without {
        match (self.only, self.eras, &self.bare) {
            (Some((holds, why_not)), ..) if !holds(stage) => Without::Moot(why_not),
            (_, Some((eras, why_not)), _) if !eras.contains(&stage.era) => Without::Moot(why_not),
            (.., Bare::By(bare)) => bare(stage),
            (.., Bare::Is(bare)) if self.is_once => once(stage, *bare),
            (.., Bare::Is(bare)) => *bare,
        }
    }
}

/// For stories that only need nvctl: once for each era, not for each client.
pub(crate) fn once(stage: &Stage, without: Without) -> Without {
    if stage.first_of_era {
        without
    } else {
        Without::Moot("no client of NVIDIA's takes part: played with the era's first client")
    }
}

#[derive(Debug)]
pub enum Fault {
    /// A wrong answer was seen.
    Wrong(String),
    /// The rig broke before any answer: never a verdict about the product, always a failure of the run.
    Rig(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self::Rig(error.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(what) => write!(f, "{what}"),
            Self::Rig(error) => write!(f, "the rig broke: {error:#}"),
        }
    }
}

/// Ends a story with a wrong answer unless the condition holds.
macro_rules! right {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err($crate::story::Fault::Wrong(format!($($message)+)));
        }
    };
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass(String),
    Fail(String),
    Skip(String),
}

/// The verdict on an ending, given the engine at work.
pub fn judge(ending: Result<(), Fault>, engine: Engine, without: &Without) -> Verdict {
    match (ending, engine, without) {
        (Err(Fault::Rig(error)), ..) => Verdict::Fail(format!("the rig broke: {error:#}")),
        (Ok(()), Engine::None, Without::Wrong(words)) => {
            Verdict::Fail(format!("right without an engine; foretold: {words}"))
        }
        (Err(Fault::Wrong(seen)), Engine::None, Without::Wrong(words)) if seen.contains(words) => {
            Verdict::Pass(format!("wrong as foretold: {seen}"))
        }
        (Err(Fault::Wrong(seen)), Engine::None, Without::Wrong(words)) => {
            Verdict::Fail(format!("wrong in another way than foretold ({words}): {seen}"))
        }
        (Err(Fault::Wrong(seen)), ..) => Verdict::Fail(seen),
        (Ok(()), ..) => Verdict::Pass(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn story_without_engine_must_fail_as_expected() {
        let wrong = |text: &str| Err(Fault::Wrong(text.to_owned()));
        let expected = Without::Wrong("empty");
        assert!(matches!(judge(wrong("the table is empty"), Engine::None, &expected), Verdict::Pass(_)));
        assert!(matches!(judge(wrong("row twice"), Engine::None, &expected), Verdict::Fail(_)));
        assert!(matches!(judge(Ok(()), Engine::None, &expected), Verdict::Fail(_)));
        assert!(matches!(judge(Err(Fault::Rig(anyhow::anyhow!("empty"))), Engine::None, &expected), Verdict::Fail(_)));
    }

    #[test]
    fn with_engine_only_right_is_right() {
        let expected = Without::Wrong("empty");
        assert_eq!(judge(Ok(()), Engine::Module, &expected), Verdict::Pass(String::new()));
        assert!(matches!(judge(Err(Fault::Wrong("empty".into())), Engine::Module, &expected), Verdict::Fail(_)));
    }
}
