//! Functions in a source file: prototypes by their types alone, bodies, and calls.

use super::super::c::tokens::{Token, after_closing_bracket, between_commas, is_word};
use super::super::names::names_pid;

/// Functions that are declared or defined at the top, with their types.
pub fn prototypes(tokens: &[Token]) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(token) = tokens.get(at) {
        match *token {
            ";" | "}" => {
                at += 1;
                start = at;
            }
            "{" => {
                at = after_closing_bracket(tokens, at).unwrap_or(tokens.len());
                start = at;
            }
            "(" => {
                let Some(end) = after_closing_bracket(tokens, at) else { break };
                if matches!(tokens.get(end), Some(&(";" | "{"))) && at > start + 1 && is_word(tokens[at - 1]) {
                    let result = kind(&tokens[start..at - 1], false);
                    let parameters = between_commas(&tokens[at + 1..end - 1]);
                    let parameters: Vec<String> = parameters.iter().map(|parameter| kind(parameter, true)).collect();
                    out.push((tokens[at - 1].to_owned(), format!("{result} ({})", parameters.join(", "))));
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    out
}

/// Functions with their parameters and bodies.
pub fn bodies<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<(Token<'a>, &'t [Token<'a>])> {
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if !["(", "{"].contains(token) {
            at += 1;
            continue;
        }
        let start = at;
        at = after_closing_bracket(tokens, at).unwrap_or(tokens.len());
        let name = start.checked_sub(1).map(|before| tokens[before]).filter(|name| is_word(name));
        // What is in braces at the top is no function.
        if let (Some(name), "(", Some(&"{")) = (name, *token, tokens.get(at)) {
            at = after_closing_bracket(tokens, at).unwrap_or(tokens.len());
            out.push((name, &tokens[start..at]));
        }
    }
    out
}

/// A call, or what looks like one.
pub struct Call<'t, 'a> {
    /// The index of the function's name, and the one behind the brackets.
    pub at: usize,
    pub end: usize,
    pub arguments: Vec<&'t [Token<'a>]>,
}

/// Calls of functions by their names.
pub fn calls<'t, 'a>(
    tokens: &'t [Token<'a>],
    includes: impl Fn(&str) -> bool + 't,
) -> impl Iterator<Item = Call<'t, 'a>> + 't {
    tokens.windows(2).enumerate().filter_map(move |(at, pair)| {
        if pair[1] != "(" || !is_word(pair[0]) || !includes(pair[0]) {
            return None;
        }
        let end = after_closing_bracket(tokens, at + 1)?;
        Some(Call { at, end, arguments: between_commas(&tokens[at + 2..end - 1]) })
    })
}

impl Call<'_, '_> {
    /// The PID that an argument names, by itself or by a variable that was given one shortly before.
    pub fn pid(&self, tokens: &[Token]) -> Option<String> {
        let recent = &tokens[self.at.saturating_sub(400)..self.at];
        self.arguments.iter().find_map(|argument| pid_in(argument).or_else(|| assigned_pid(argument, recent)))
    }
}

fn pid_in(argument: &[Token]) -> Option<String> {
    let is_pid = |word: &&&str| is_word(word) && (names_pid(word) || **word == "osGetCurrentProcess");
    argument.iter().find(is_pid).map(|pid| (*pid).to_owned())
}

fn assigned_pid(argument: &[Token], before: &[Token]) -> Option<String> {
    let [variable] = argument else { return None };
    if !variable.contains(|c: char| c.is_ascii_lowercase()) {
        return None;
    }
    let at = before.windows(2).rposition(|pair| pair == [*variable, "="])?;
    let value = before[at + 2..].split(|token| *token == ";").next()?;
    pid_in(value).map(|pid| format!("{variable} = {pid}"))
}

/// A parameter's type, without the parameter's name.
fn kind(tokens: &[Token], is_named: bool) -> String {
    const LEFT_OUT: [&str; 5] = ["static", "inline", "extern", "NV_API_CALL", "NVIDIA_EXPORT"];
    const PARTS: [&str; 6] = ["struct", "union", "enum", "unsigned", "const", "signed"];
    let mut words: Vec<&str> = tokens.iter().copied().filter(|word| !LEFT_OUT.contains(word)).collect();
    let count = words.iter().filter(|word| !PARTS.contains(word) && **word != "*").count();
    // `unsigned int cmd`, `void *address`, `NvU32 size`: the last word is the name where another says the type.
    let is_name = |word: &&str| !PARTS.contains(word) && !["*", "int", "long", "char"].contains(word);
    if is_named && count > 1 && words.last().is_some_and(is_name) {
        words.pop();
    }
    words.join(" ")
}
