//! Makes untrusted text harmless for a terminal and a log.

/// At most `longest` characters of a text. U+FFFD replaces control characters, and marks that reorder text or break lines.
pub fn printable(text: &str, longest: usize) -> String {
    let is_mark =
        |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    text.chars().take(longest).map(|c| if c.is_control() || is_mark(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_is_made_harmless() {
        let cases = [
            ("plain \u{fc} text", 99, "plain \u{fc} text"),
            ("\u{1b}[31mred\u{9b}0m", 99, "\u{fffd}[31mred\u{fffd}0m"),
            ("a\r\n\tb\0\u{7f}", 99, "a\u{fffd}\u{fffd}\u{fffd}b\u{fffd}\u{fffd}"),
            ("txt.\u{202e}exe", 99, "txt.\u{fffd}exe"),
            ("\u{fc}\u{fc}\u{fc}", 2, "\u{fc}\u{fc}"),
        ];
        for (text, longest, shown) in cases {
            assert_eq!(printable(text, longest), shown, "{text:?}");
        }
    }
}
