//! Splits C into tokens without comments, and finds matching brackets.

/// A word, a number, a string or an operator, as in the source.
pub type Token<'a> = &'a str;

const LONG_MARKS: [&str; 10] = ["<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "->", "##"];

/// The tokens of each line, without comments. A backslash joins its line to the next.
pub fn lines(text: &str) -> Vec<Vec<Token<'_>>> {
    let mut out = vec![Vec::new()];
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let behind = |end: &str| rest[2..].find(end).map_or(rest.len(), |at| 2 + at + end.len());
        let (is_token, length) = match rest.as_bytes() {
            [b'/', b'*', ..] => (false, behind("*/")),
            [b'/', b'/', ..] => (false, rest.find('\n').unwrap_or(rest.len())),
            [b'\\', b'\r', b'\n', ..] => (false, 3),
            [b'\\', b'\n', ..] => (false, 2),
            _ if first.is_ascii_whitespace() => (false, 1),
            [quote @ (b'"' | b'\''), ..] => (true, quoted(rest, *quote)),
            _ if is_of_word(first) => (true, rest.find(|c| !is_of_word(c)).unwrap_or(rest.len())),
            _ if LONG_MARKS.iter().any(|mark| rest.starts_with(mark)) => (true, 2),
            _ => (first.is_ascii_punctuation(), first.len_utf8()),
        };
        let (token, behind) = rest.split_at(length);
        rest = behind;
        if token == "\n" {
            out.push(Vec::new());
        } else if let (true, Some(line)) = (is_token, out.last_mut()) {
            line.push(token);
        }
    }
    out
}

/// The tokens of a text.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    lines(text).concat()
}

/// The length of a string or character literal. An unterminated one ends with its line.
fn quoted(text: &str, quote: u8) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'\n' || byte == quote && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |at| if text.as_bytes()[at + 1] == quote { at + 2 } else { at + 1 })
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether it is a name or a keyword.
pub fn is_word(token: Token) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// The value of a number as C writes it.
pub fn number(token: Token) -> Option<i128> {
    let digits = token.trim_end_matches(['u', 'U', 'l', 'L']);
    match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None if digits.len() > 1 && digits.starts_with('0') => i128::from_str_radix(digits, 8).ok(),
        None => digits.parse().ok(),
    }
}

/// The change of the bracket depth by a token.
fn bracket_step(token: Token) -> i32 {
    match token {
        "(" | "[" | "{" => 1,
        ")" | "]" | "}" => -1,
        _ => 0,
    }
}

/// The index after the bracket that closes the one at `open`.
pub fn after_closing_bracket(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0;
    let length = tokens.get(open..)?.iter().position(|token| {
        depth += bracket_step(token);
        depth == 0
    });
    Some(open + length? + 1)
}

/// Splits at commas outside brackets.
pub fn between_commas<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        depth += bracket_step(token);
        depth == 0 && *token == ","
    });
    let mut parts: Vec<_> = parts.collect();
    // A comma at the end has nothing behind it.
    parts.pop_if(|last| last.is_empty());
    parts
}
