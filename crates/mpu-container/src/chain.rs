//! An error as people read it: with its causes, on one line.
//!
//! Owns that it is one line, and that it steers no terminal: messages quote names which a stranger chose.

use std::error::Error;

/// An error and its causes.
pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error: &&dyn Error| (*error).source());
    printable(&causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": "))
}

/// A text without control characters: each is written as its number or its escape.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// The same of errors of which some tell their cause themselves: it is not told twice.
pub fn chain_without_repeats(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error: &&dyn Error| (*error).source());
    let text =
        causes.map(|cause| cause.to_string()).fold(error.to_string(), |text, cause| match text.ends_with(&cause) {
            true => text,
            false => text + ": " + &cause,
        });
    printable(&text)
}
