//! Prints an error with its causes on one line.

use std::error::Error;

pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error: &&dyn Error| (*error).source());
    printable(&causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": "))
}

/// Limit of a shown text, in bytes. An image can have names of a MiB, and each start would log them.
const LONGEST: usize = 4096;

/// A text without control characters: each is written as its number or its escape. A long one is cut.
pub fn printable(text: &str) -> String {
    let whole = text.len() <= LONGEST;
    let mut shown = String::with_capacity(text.len().min(LONGEST));
    for letter in text.chars() {
        if !whole && shown.len() >= LONGEST {
            return shown + &format!("… ({} bytes)", text.len());
        }
        match mpu_os::text::is_control(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// The same, without causes that an error's text already contains.
pub fn chain_without_repeats(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |error: &&dyn Error| (*error).source());
    let text =
        causes.map(|cause| cause.to_string()).fold(error.to_string(), |text, cause| match text.ends_with(&cause) {
            true => text,
            false => text + ": " + &cause,
        });
    printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_does_not_fill_log() {
        assert_eq!(printable("a\nb\u{202e}c"), "a\\nb\\u{202e}c");
        let whole = "x".repeat(4096);
        assert_eq!(printable(&whole), whole);
        let cut = printable(&"\u{e9}".repeat(1 << 20));
        assert!(cut.ends_with("… (2097152 bytes)") && cut.len() < 4200, "{} bytes", cut.len());
    }
}
