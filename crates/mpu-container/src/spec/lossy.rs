//! Reads specifications that our tree cannot represent, to find a request in them. The result must never be stored.
//!
//! Runtimes accept invalid UTF-8, lone surrogates, very deep nesting, and text behind the value. Here these parts are replaced.
//!
//! Source: Go's `encoding/json`, by which runc reads: it replaces both kinds of letters by U+FFFD.

use serde_json::Value;

/// What lies deeper is replaced by `null`. Nothing that we ask for lies below the fifth level.
const DEEPEST: usize = 64;

/// The tree of a text's first value, in which some letters and values are replaced; none if it is no JSON all the same.
pub(super) fn read(text: &[u8]) -> Option<Value> {
    let text = flatten(&whole_letters(&String::from_utf8_lossy(text)));
    // Only the first value is read, by Go's `Decoder` and so by runc.
    serde_json::Deserializer::from_str(&text).into_iter().next()?.ok()
}

/// The text without halves of surrogate pairs.
fn whole_letters(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    // A backslash stands in strings alone, and with the letter behind it: taken in pairs, none begins in another.
    while let Some((before, escape)) = rest.find('\\').map(|at| rest.split_at(at)) {
        whole.push_str(before);
        let length = match (half(escape), escape.get(6..).and_then(half)) {
            (Some(Half::First), Some(Half::Second)) => 12,
            (Some(_), _) => {
                whole.push('\u{fffd}');
                rest = &escape[6..];
                continue;
            }
            (None, _) => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
        };
        let (kept, after) = escape.split_at(length);
        whole.push_str(kept);
        rest = after;
    }
    whole + rest
}

enum Half {
    First,
    Second,
}

/// The half that a text begins with, as `\ud83d`.
fn half(text: &str) -> Option<Half> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xd800..=0xdbff => Some(Half::First),
        0xdc00..=0xdfff => Some(Half::Second),
        _ => None,
    }
}

/// The text without the values that lie deeper than [`DEEPEST`].
fn flatten(text: &str) -> String {
    let mut flat = String::with_capacity(text.len());
    let (mut depth, mut within, mut escaped) = (0usize, false, false);
    for letter in text.chars() {
        let opens = !within && matches!(letter, '[' | '{');
        let closes = !within && matches!(letter, ']' | '}');
        if closes {
            depth = depth.saturating_sub(1);
        }
        if depth < DEEPEST {
            if opens && depth + 1 == DEEPEST {
                flat.push_str("null");
            } else if !(closes && depth + 1 == DEEPEST) {
                flat.push(letter);
            }
        }
        if opens {
            depth += 1;
        }
        (within, escaped) = match letter {
            _ if escaped => (within, false),
            '\\' => (within, within),
            '"' => (!within, false),
            _ => (within, false),
        };
    }
    flat
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unrepresentable_values_are_replaced() {
        let read = |text: &[u8]| read(text);
        assert_eq!(
            read(br#"{"a": "\ud800", "b\udc00": "\ud83d\ude00\\ud800"}"#),
            Some(json!({"a": "\u{fffd}", "b\u{fffd}": "\u{1f600}\\ud800"}))
        );
        assert_eq!(read(b"[\"\xff\", \"\\n\"]"), Some(json!(["\u{fffd}", "\n"])));
        assert_eq!(read(br#"["\ud800\ud83d\ude00", "\ud800\u0041"]"#), Some(json!(["\u{fffd}\u{1f600}", "\u{fffd}A"])));
        let deep = format!("{{\"a\": {}1{}, \"b\": [1]}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read(deep.as_bytes()).map(|tree| tree["b"].clone()), Some(json!([1])));
        let strings = format!("{}\"]}}\\\"[\"{}", "[".repeat(63), "]".repeat(63));
        assert_eq!(
            read(strings.as_bytes()).map(|tree| tree.to_string()),
            Some(strings),
            "brackets in a string are letters"
        );
        assert_eq!(read(b"[1]] x"), Some(json!([1])), "the rest behind the first value does not count");
        for text in ["", "{", "{\"a\": \\ud800}", "[\"\\u\"]", "\"\\", "]["] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn valid_json_is_read_unchanged(text in r#"[\[\]{}",:\\ud8c0-9a é]{0,40}"#) {
            if let Ok(tree) = serde_json::from_str::<Value>(&text) {
                proptest::prop_assert_eq!(read(text.as_bytes()), Some(tree));
            }
        }
    }
}
