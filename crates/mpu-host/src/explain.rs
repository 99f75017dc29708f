//! What every error of MPU's can say beyond its message: a stable word, an exit code, and what to do.
//!
//! Knows no error by name.

use crate::exit::Exit;
use mpu_os::lock::HeldLock;
use std::error::Error;

/// What an error owes the person who meets it.
pub trait Explain: Error {
    /// A stable word for JSON and scripts, such as `no_headers`.
    fn code(&self) -> &'static str;
    /// The exit code that it leads to.
    fn exit(&self) -> Exit;
    /// What to do about it, as one sentence.
    fn fix(&self) -> String;
}

/// What [`Explain`] says of an error: code, exit code, fix.
pub type Facts = (&'static str, Exit, String);

/// Explains errors by their method `facts`, which has all three for each variant in one place.
#[macro_export]
macro_rules! explain_by_facts {
    ($error:ty) => {
        impl $crate::explain::Explain for $error {
            fn code(&self) -> &'static str {
                self.facts().0
            }
            fn exit(&self) -> $crate::exit::Exit {
                self.facts().1
            }
            fn fix(&self) -> String {
                self.facts().2
            }
        }
    };
}

/// An error that is one of several, and explains itself as that one does.
pub trait Sum: Error {
    /// The one that it is.
    fn inner(&self) -> &dyn Explain;
}

impl<E: Sum> Explain for E {
    fn code(&self) -> &'static str {
        self.inner().code()
    }
    fn exit(&self) -> Exit {
        self.inner().exit()
    }
    fn fix(&self) -> String {
        self.inner().fix()
    }
}

impl Explain for HeldLock {
    fn code(&self) -> &'static str {
        "lock_held"
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn fix(&self) -> String {
        "wait for that process, or end it, then try again".to_string()
    }
}

/// What lies behind an error, nearest first.
pub fn causes<'a>(error: &'a (dyn Error + 'a)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |error| (*error).source())
}

/// An error with its causes, in one line.
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
        fn code(&self) -> &'static str {
            "shut"
        }
        fn exit(&self) -> Exit {
            Exit::Refused
        }
        fn fix(&self) -> String {
            "open it".to_string()
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    struct One(#[from] Shut);

    impl Sum for One {
        fn inner(&self) -> &dyn Explain {
            &self.0
        }
    }

    #[test]
    fn enum_error_explains_as_its_inner_error() {
        let one = One::from(Shut { source: std::io::Error::other("a process holds it") });
        assert_eq!((one.code(), one.exit(), one.fix().as_str()), ("shut", Exit::Refused, "open it"));
        assert_eq!(chain(&one), "the door is shut: a process holds it");
        assert_eq!(causes(&one).count(), 1);
    }
}
