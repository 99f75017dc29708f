//! An error as people read it: with its causes, on one line.

use std::error::Error;

/// An error and its causes.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error: &&dyn Error| (*error).source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

/// The same of errors of which some tell their cause themselves: it is not told twice.
pub fn chain_without_repeats(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error: &&dyn Error| (*error).source());
    causes.map(|cause| cause.to_string()).fold(error.to_string(), |text, cause| match text.ends_with(&cause) {
        true => text,
        false => text + ": " + &cause,
    })
}
