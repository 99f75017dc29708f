//! The facts of every error beside its message: a stable word, an exit code, and a fix.

use crate::exit::Exit;
use mpu_os::lock::Held;
use std::error::Error;

/// An error with its fix.
pub trait Explain: Error {
    /// A stable word for JSON and scripts, such as `no_headers`.
    fn code(&self) -> &'static str;
    /// The exit code.
    fn exit(&self) -> Exit;
    /// The fix, as one sentence.
    fn fix(&self) -> String;
}

/// Code, exit code and fix of an error.
pub type Facts = (&'static str, Exit, String);

/// Implements [`Explain`] by a method `facts`, which has all three for each variant in one place.
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

/// An error that wraps one of several errors, and explains itself as that one does.
pub trait Sum: Error {
    /// The wrapped error.
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

impl Explain for Held {
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
