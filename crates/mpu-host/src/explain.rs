//! The facts of every error beside its message: a stable word, an exit code, and a fix.

use crate::exit::Exit;
use mpu_os::lock::HeldLock;
use std::error::Error;
use std::fmt;
use std::ops::Deref;

/// An error with its fix.
pub trait Explain: Error {
    /// All three facts, for each variant in one place.
    fn facts(&self) -> Facts;
    /// A stable word for JSON and scripts, such as `no_headers`.
    fn code(&self) -> &'static str {
        self.facts().0
    }
    /// The exit code.
    fn exit(&self) -> Exit {
        self.facts().1
    }
    /// The fix, as one sentence.
    fn fix(&self) -> String {
        self.facts().2
    }
}

/// Code, exit code and fix of an error.
pub type Facts = (&'static str, Exit, String);

impl Explain for HeldLock {
    fn facts(&self) -> Facts {
        ("lock_held", Exit::Failed, "wait for that process, or end it, then try again".to_string())
    }
}

/// Any error with its fix.
#[derive(Debug)]
pub struct Explained(Box<dyn Explain + Send + Sync>);

impl<E: Explain + Send + Sync + 'static> From<E> for Explained {
    fn from(error: E) -> Explained {
        Explained(Box::new(error))
    }
}

impl Deref for Explained {
    type Target = dyn Explain + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Explained {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// The causes of an error, nearest first.
pub fn causes<'a>(error: &'a (dyn Error + 'a)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |error| (*error).source())
}

/// An error with its causes, on one line.
pub fn chain(error: &dyn Error) -> String {
    causes(error).fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the door is shut")]
    struct Shut {
        source: std::io::Error,
    }

    impl Explain for Shut {
        fn facts(&self) -> Facts {
            ("shut", Exit::Refused, "open it".to_string())
        }
    }

    #[test]
    fn explained_error_keeps_code_exit_fix_and_causes() {
        let one = Explained::from(Shut { source: std::io::Error::other("a process holds it") });
        assert_eq!((one.code(), one.exit(), one.fix().as_str()), ("shut", Exit::Refused, "open it"));
        assert_eq!(chain(&one), "the door is shut: a process holds it");
        assert_eq!(causes(&one).count(), 1);
    }
}
