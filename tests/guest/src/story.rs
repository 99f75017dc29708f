//! What a story is, and how its ending becomes a verdict.
//!
//! A story states what is right. With no engine its statement has to be found wrong, in the way the story itself foretells for the
//! driver's era: so every story proves that it can fail. Where the driver is right by itself, that run is a counted skip.

use std::fmt;

use crate::engine::Engine;
pub use crate::engine::Engines;
use crate::stage::Stage;

/// One story. Its name is its claim.
pub struct Story {
    /// `container_sees_its_own_processes`
    pub name: &'static str,
    /// The engines that it is about.
    pub engines: Engines,
    /// What is to be seen without an engine.
    pub without: fn(&Stage) -> Without,
    /// The body: the same for every engine and for none.
    pub run: fn(&Stage) -> Result<(), Fault>,
}

/// What the bare driver of an era does with a story.
pub enum Without {
    /// It gives a wrong answer, and the fault's text holds these words.
    Wrong(&'static str),
    /// It is right by itself: the run without an engine is skipped for this reason.
    Right(&'static str),
    /// The story says nothing about this driver or client: all its runs are skipped for this reason.
    Moot(&'static str),
}

/// How a story's statement fails.
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
#[macro_export]
macro_rules! right {
    ($holds:expr, $($told:tt)+) => {
        if !$holds {
            return Err($crate::story::Fault::Wrong(format!($($told)+)));
        }
    };
}

/// A verdict about one run of one story.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Pass(String),
    /// Not so.
    Fail(String),
    /// Not run.
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
    fn a_story_without_an_engine_has_to_be_wrong_as_foretold() {
        let wrong = |text: &str| Err(Fault::Wrong(text.to_owned()));
        let foretold = Without::Wrong("empty");
        assert!(matches!(judge(wrong("the table is empty"), Engine::None, &foretold), Verdict::Pass(_)));
        assert!(matches!(judge(wrong("row twice"), Engine::None, &foretold), Verdict::Fail(_)));
        assert!(matches!(judge(Ok(()), Engine::None, &foretold), Verdict::Fail(_)));
        assert!(matches!(judge(Err(Fault::Rig(anyhow::anyhow!("empty"))), Engine::None, &foretold), Verdict::Fail(_)));
    }

    #[test]
    fn with_an_engine_only_right_is_right() {
        let foretold = Without::Wrong("empty");
        assert_eq!(judge(Ok(()), Engine::Module, &foretold), Verdict::Pass(String::new()));
        assert!(matches!(judge(Err(Fault::Wrong("empty".into())), Engine::Module, &foretold), Verdict::Fail(_)));
    }
}
