//! Formats an error with its causes on one line.

use std::error::Error;

pub fn chain(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error: &&dyn Error| (*error).source());
    printable(&causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": "))
}

/// Limit of a text, in bytes. An image can have names of 1 MiB, and each start would log them.
const MAX_BYTES: usize = 4096;

/// Escapes control characters and truncates a long text.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_BYTES));
    for letter in text.chars() {
        if shown.len() >= MAX_BYTES {
            return shown + &format!("… ({} bytes)", text.len());
        }
        match mpu_os::text::is_control(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// The same, without causes that the text already ends with.
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
    fn message_is_escaped_and_truncated() {
        assert_eq!(printable("a\nb\u{202e}c"), "a\\nb\\u{202e}c");
        let whole = "x".repeat(4096);
        assert_eq!(printable(&whole), whole);
        let cut = printable(&"\u{e9}".repeat(1 << 20));
        assert!(cut.ends_with("… (2097152 bytes)") && cut.len() < 4200, "{} bytes", cut.len());
        let escaped = printable(&"\u{202e}".repeat(1000));
        assert!(escaped.ends_with("… (3000 bytes)") && escaped.len() < 4200, "{} bytes", escaped.len());
    }
}
