//! Reads specifications that `serde_json` refuses, to find a request in them. The result must never be stored.
//!
//! Runtimes accept invalid UTF-8, lone surrogates, very deep nesting, and text after the value. Here these parts are replaced or ignored.
//!
//! Source: Go's `encoding/json` in runc. It replaces invalid UTF-8 and lone surrogates by U+FFFD.

use serde_json::Value;

/// Deeper values are replaced by `null`. Requests are at most five levels deep.
const MAX_DEPTH: usize = 64;

/// Parses the first value of a text after these replacements. None if it still is not JSON.
pub(super) fn read(text: &[u8]) -> Option<Value> {
    let text = limit_depth(&replace_lone_surrogates(&String::from_utf8_lossy(text)));
    // As Go's `Decoder` in runc, reads only the first value.
    serde_json::Deserializer::from_str(&text).into_iter().next()?.ok()
}

/// Replaces lone surrogates by U+FFFD.
fn replace_lone_surrogates(text: &str) -> String {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    // A backslash occurs only in strings. Skip it with the next character, so that an escaped backslash starts no escape.
    while let Some((before, escape)) = rest.find('\\').map(|at| rest.split_at(at)) {
        whole.push_str(before);
        let length = match (surrogate(escape), escape.get(6..).and_then(surrogate)) {
            (Some(Surrogate::High), Some(Surrogate::Low)) => 12,
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

enum Surrogate {
    High,
    Low,
}

/// The surrogate at the start of a text, such as `\ud83d`.
fn surrogate(text: &str) -> Option<Surrogate> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xd800..=0xdbff => Some(Surrogate::High),
        0xdc00..=0xdfff => Some(Surrogate::Low),
        _ => None,
    }
}

/// Replaces values deeper than [`MAX_DEPTH`] by `null`.
fn limit_depth(text: &str) -> String {
    let mut flat = String::with_capacity(text.len());
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for letter in text.chars() {
        let opens = !in_string && matches!(letter, '[' | '{');
        let closes = !in_string && matches!(letter, ']' | '}');
        if closes {
            depth = depth.saturating_sub(1);
        }
        if depth < MAX_DEPTH {
            if opens && depth + 1 == MAX_DEPTH {
                flat.push_str("null");
            } else if !(closes && depth + 1 == MAX_DEPTH) {
                flat.push(letter);
            }
        }
        if opens {
            depth += 1;
        }
        (in_string, escaped) = match letter {
            _ if escaped => (in_string, false),
            '\\' => (in_string, in_string),
            '"' => (!in_string, false),
            _ => (in_string, false),
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
