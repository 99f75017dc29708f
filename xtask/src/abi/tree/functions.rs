//! Functions in a source file: prototypes by their types alone, and bodies.

use super::super::c::tokens::{between_commas, closing, Token};
use super::named;

/// Functions that are declared or defined at the top, with their types.
pub fn prototypes(tokens: &[Token]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            Token::Mark(";" | "}") => {
                start = i + 1;
                i += 1;
            }
            Token::Mark("{") => {
                i = closing(tokens, i).unwrap_or(tokens.len());
                start = i;
            }
            Token::Mark("(") => {
                let Some(end) = closing(tokens, i) else { break };
                let ends = matches!(tokens.get(end), Some(Token::Mark(";" | "{")));
                if let (true, Some(Token::Word(name))) =
                    (ends && i > start + 1, i.checked_sub(1).map(|before| &tokens[before]))
                {
                    let result = kind(&tokens[start..i - 1], false);
                    let parameters: Vec<String> =
                        between_commas(&tokens[i + 1..end - 1]).iter().map(|p| kind(p, true)).collect();
                    out.push((name.clone(), format!("{result} ({})", parameters.join(", "))));
                }
                i = end;
            }
            _ => i += 1,
        }
    }
    out
}

/// Functions with their parameters and bodies.
pub fn bodies(tokens: &[Token]) -> Vec<(&str, &[Token])> {
    let mut out = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        let Token::Mark("(") = &tokens[i] else {
            // What is in brackets at the top is no function.
            i = if tokens[i] == Token::Mark("{") { closing(tokens, i).unwrap_or(tokens.len()) } else { i + 1 };
            continue;
        };
        let Some(end) = closing(tokens, i) else { break };
        let name = i.checked_sub(1).and_then(|before| named(&tokens[before]));
        if let (Some(name), Some(Token::Mark("{"))) = (name, tokens.get(end)) {
            let last = closing(tokens, end).unwrap_or(tokens.len());
            out.push((name, &tokens[i..last]));
            i = last;
        } else {
            i = end;
        }
    }
    out
}

/// A parameter's type, without the parameter's name.
fn kind(tokens: &[Token], named: bool) -> String {
    let mut words: Vec<&str> = Vec::new();
    for token in tokens {
        match token {
            Token::Word(word)
                if !["static", "inline", "extern", "NV_API_CALL", "NVIDIA_EXPORT"].contains(&word.as_str()) =>
            {
                words.push(word)
            }
            Token::Mark(mark) => words.push(mark),
            _ => {}
        }
    }
    let sorts = ["struct", "union", "enum", "unsigned", "const", "signed"];
    let count = words.iter().filter(|word| !sorts.contains(word) && **word != "*").count();
    // `unsigned int cmd`, `void *address`, `NvU32 size`: the last word is the name where another says the type.
    let last_is_name = named && words.last().is_some_and(|word| *word != "*" && !sorts.contains(word)) && count > 1;
    let keeps = ["int", "long", "char"];
    if last_is_name && !words.last().is_some_and(|word| keeps.contains(word)) {
        words.pop();
    }
    words.join(" ")
}
