//! C in pieces: comments away, words, numbers and marks, and the brackets that belong together. Knows no grammar.

use Token::{Number, Word};

/// A piece of C.
#[derive(Clone, PartialEq, Debug)]
pub enum Token {
    Word(String),
    Number(i128),
    Text,
    Mark(&'static str),
}

const MARKS: [&str; 39] = [
    "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "->", "##", "{", "}", "(", ")", "[", "]", ";", ",", "*", ":", "=",
    "+", "-", "/", "%", "&", "|", "^", "~", "!", "<", ">", "?", ".", "#", "@", "\\", "$", "`",
];

/// The text without comments and joined at line ends that a backslash takes away; lines keep their numbers.
pub fn without_comments(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        match (bytes[i], bytes.get(i + 1)) {
            (b'/', Some(b'*')) => {
                let end = text[i + 2..].find("*/").map_or(bytes.len(), |at| i + 2 + at + 2);
                out.push(b' ');
                out.extend(bytes[i..end].iter().filter(|b| **b == b'\n'));
                i = end;
            }
            (b'/', Some(b'/')) => i += text[i..].find('\n').unwrap_or(text.len() - i),
            (quote @ (b'"' | b'\''), _) => {
                let start = i;
                i += 1;
                while i < bytes.len() && bytes[i] != quote && bytes[i] != b'\n' {
                    i += if bytes[i] == b'\\' { 2 } else { 1 };
                }
                i = (i + 1).min(bytes.len());
                out.extend(&bytes[start..i]);
            }
            (byte, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The text in pieces.
pub fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let mut out = Vec::new();
    let mut i = 0;
    while i < bytes.len() {
        let byte = bytes[i];
        if byte.is_ascii_whitespace() || !byte.is_ascii() {
            i += 1;
        } else if word(byte) {
            let end = bytes[i..].iter().position(|b| !word(*b)).map_or(bytes.len(), |n| i + n);
            out.push(if byte.is_ascii_digit() { number(&text[i..end]) } else { Word(text[i..end].to_owned()) });
            i = end;
        } else if byte == b'"' || byte == b'\'' {
            i += 1;
            while i < bytes.len() && bytes[i] != byte {
                i += if bytes[i] == b'\\' { 2 } else { 1 };
            }
            out.push(Token::Text);
            i += 1;
        } else {
            match MARKS.iter().find(|mark| text[i..].starts_with(**mark)) {
                Some(mark) => {
                    out.push(Token::Mark(mark));
                    i += mark.len();
                }
                None => i += 1,
            }
        }
    }
    out
}

fn number(text: &str) -> Token {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let value = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(hex) => i128::from_str_radix(hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => i128::from_str_radix(digits, 8),
        None => digits.parse(),
    };
    value.map_or(Token::Text, Number)
}

/// The index behind the bracket that closes the one at `open`.
pub fn closing(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Mark("(" | "[" | "{") => depth += 1,
            Token::Mark(")" | "]" | "}") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i + 1);
        }
    }
    None
}

/// What stands between commas that no bracket encloses.
pub fn between_commas(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut out, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark("(" | "[" | "{") => depth += 1,
            Token::Mark(")" | "]" | "}") => depth -= 1,
            Token::Mark(",") if depth == 0 => {
                out.push(&tokens[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    if start < tokens.len() {
        out.push(&tokens[start..]);
    }
    out
}
