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
    /// One sentence for `./x stories`.
    pub claim: &'static str,
    /// The engines that it tests.
    pub engines: Engines,
    /// Whether it is independent of the driver's era and the client: `./x test` runs it in one row of each kernel's guest.
    pub is_kernel_story: bool,
    /// Whether it runs on NVIDIA's own driver.
    pub real: Real,
    only: Option<(Holds, &'static str)>,
    eras: Option<(&'static [u32], &'static str)>,
    is_once: bool,
    bare: ExpectedBare,
    /// The body: the same with every engine and without.
    pub(crate) run: fn(&Stage) -> Result<(), Fault>,
}

type Holds = fn(&Stage) -> bool;

enum ExpectedBare {
    Fixed(BareResult),
    PerStage(fn(&Stage) -> BareResult),
}

/// The expected result of a story without an engine.
#[derive(Clone, Copy)]
pub enum BareResult {
    /// A wrong answer; the fault's text contains these words.
    Wrong(&'static str),
    /// A right answer: the run without an engine is skipped for this reason.
    Right(&'static str),
    /// Not applicable to this driver or client: all its runs are skipped for this reason.
    Skip(&'static str),
}

/// `story!(name, [lines]; "claim")`: the story whose body is the function of that name. With `scene` first, the body gets the stage's scene.
macro_rules! story {
    (scene $name:ident, $lines:expr; $claim:expr) => {
        $crate::story::Story::new(stringify!($name), &$lines, $claim, |stage| $name(stage, &*stage.scene()?))
    };
    ($name:ident, $lines:expr; $claim:expr) => {
        $crate::story::Story::new(stringify!($name), &$lines, $claim, $name)
    };
}

impl Story {
    /// A story for every engine. Without one it expects a wrong list. It runs with the era's first client only.
    pub(crate) const fn new(
        name: &'static str,
        lines: &'static [u8],
        claim: &'static str,
        run: fn(&Stage) -> Result<(), Fault>,
    ) -> Self {
        let bare = ExpectedBare::Fixed(BareResult::Wrong("shows"));
        let engines = Engines::Every;
        let (real, is_kernel_story, is_once) = (Real::Played, false, true);
        Self { name, lines, claim, engines, is_kernel_story, real, only: None, eras: None, is_once, bare, run }
    }

    /// Limits the story to the module.
    pub(crate) const fn module(self, why: &'static str) -> Self {
        Self { engines: Engines::Module(why), ..self }
    }

    /// Limits the story to the supervisor.
    pub(crate) const fn notify(self, why: &'static str) -> Self {
        Self { engines: Engines::Notify(why), ..self }
    }

    /// Marks a story that tests engine and kernel only. Not for a story that compares the driver's answers or runs in some eras only.
    pub(crate) const fn kernel_story(self) -> Self {
        Self { is_kernel_story: true, ..self }
    }

    pub(crate) const fn real(self, real: Real) -> Self {
        Self { real, ..self }
    }

    /// Runs the story with every client of an era, because it starts NVIDIA's client.
    pub(crate) const fn every_client(self) -> Self {
        Self { is_once: false, ..self }
    }

    /// Runs the story where the condition holds; elsewhere it is skipped for that reason.
    pub(crate) const fn only(self, holds: Holds, why_not: &'static str) -> Self {
        Self { only: Some((holds, why_not)), ..self }
    }

    /// Runs the story in these eras; in others it is skipped for that reason.
    pub(crate) const fn eras(self, eras: &'static [u32], why_not: &'static str) -> Self {
        Self { eras: Some((eras, why_not)), ..self }
    }

    /// Without an engine the answer is wrong, and the fault's text contains these words.
    pub(crate) const fn wrong(self, words: &'static str) -> Self {
        Self { bare: ExpectedBare::Fixed(BareResult::Wrong(words)), ..self }
    }

    /// Without an engine the answer is right, for this reason.
    pub(crate) const fn right(self, why: &'static str) -> Self {
        Self { bare: ExpectedBare::Fixed(BareResult::Right(why)), ..self }
    }

    /// The result without an engine depends on the stage.
    pub(crate) const fn without_engine(self, bare: fn(&Stage) -> BareResult) -> Self {
        Self { bare: ExpectedBare::PerStage(bare), ..self }
    }

    /// The expected result without an engine.
    pub(crate) fn bare_result(&self, stage: &Stage) -> BareResult {
        match (self.only, self.eras, &self.bare) {
            (Some((holds, why_not)), ..) if !holds(stage) => BareResult::Skip(why_not),
            (_, Some((eras, why_not)), _) if !eras.contains(&stage.era) => BareResult::Skip(why_not),
            (.., ExpectedBare::PerStage(bare)) => bare(stage),
            (.., ExpectedBare::Fixed(bare)) if self.is_once => once(stage, *bare),
            (.., ExpectedBare::Fixed(bare)) => *bare,
        }
    }
}

/// Limits a story without NVIDIA's client to the first client of each era.
pub(crate) fn once(stage: &Stage, bare: BareResult) -> BareResult {
    if stage.first_of_era {
        bare
    } else {
        BareResult::Skip("no client of NVIDIA's takes part: played with the era's first client")
    }
}

#[derive(Debug)]
pub enum Fault {
    /// The answer is wrong.
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
macro_rules! check {
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

/// The verdict on a story's result with an engine, or without one.
pub fn judge(ending: Result<(), Fault>, engine: Engine, bare: &BareResult) -> Verdict {
    match (ending, engine, bare) {
        (Err(Fault::Rig(error)), ..) => Verdict::Fail(format!("the rig broke: {error:#}")),
        (Ok(()), Engine::None, BareResult::Wrong(words)) => {
            Verdict::Fail(format!("right without an engine; foretold: {words}"))
        }
        (Err(Fault::Wrong(seen)), Engine::None, BareResult::Wrong(words)) if seen.contains(words) => {
            Verdict::Pass(format!("wrong as foretold: {seen}"))
        }
        (Err(Fault::Wrong(seen)), Engine::None, BareResult::Wrong(words)) => {
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
        let expected = BareResult::Wrong("empty");
        assert!(matches!(judge(wrong("the table is empty"), Engine::None, &expected), Verdict::Pass(_)));
        assert!(matches!(judge(wrong("row twice"), Engine::None, &expected), Verdict::Fail(_)));
        assert!(matches!(judge(Ok(()), Engine::None, &expected), Verdict::Fail(_)));
        assert!(matches!(judge(Err(Fault::Rig(anyhow::anyhow!("empty"))), Engine::None, &expected), Verdict::Fail(_)));
    }

    #[test]
    fn story_with_engine_must_be_right() {
        let expected = BareResult::Wrong("empty");
        assert_eq!(judge(Ok(()), Engine::Module, &expected), Verdict::Pass(String::new()));
        assert!(matches!(judge(Err(Fault::Wrong("empty".into())), Engine::Module, &expected), Verdict::Fail(_)));
    }
}
