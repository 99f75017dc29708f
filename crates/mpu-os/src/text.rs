//! Makes untrusted text harmless for a terminal and a log.

/// Whether a character controls a terminal, reorders text or breaks lines.
pub fn is_control(c: char) -> bool {
    let is_format_character = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    c.is_control() || is_format_character
}

/// At most `max_chars` characters of a text. U+FFFD replaces control characters, and marks that reorder text or break lines.
pub fn printable(text: &str, max_chars: usize) -> String {
    text.chars().take(max_chars).map(|c| if is_control(c) { '\u{fffd}' } else { c }).collect()
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
            ("txt.\u{202e}e\u{61c}xe", 99, "txt.\u{fffd}e\u{fffd}xe"),
            ("\u{fc}\u{fc}\u{fc}", 2, "\u{fc}\u{fc}"),
        ];
        for (text, max_chars, shown) in cases {
            assert_eq!(printable(text, max_chars), shown, "{text:?}");
        }
    }
}
