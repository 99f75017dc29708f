//! Evaluates constant expressions: sizes of arrays, numbers of controls, conditions of `#if`. An error names the unknown identifier.

use super::tokens::{after_closing_bracket, between_commas, is_word, number};
use super::{Headers, Token, Type, built_in, plain};

/// Whether a name in `#ifdef` is defined for MPU's platform; any other name is not.
pub fn is_defined(name: &str) -> bool {
    "NV_UNIX NV_LINUX NVCPU_X86_64 NVCPU_IS_X86_64 NVCPU_IS_64_BITS NV_64_BITS __linux__ __GNUC__ __x86_64__"
        .split(' ')
        .any(|defined| defined == name)
}

type Operation = fn(i128, i128) -> Option<i128>;

/// Operators with precedence and function.
const OPERATORS: [(&str, u8, Operation); 18] = [
    ("||", 1, |a, b| Some((a != 0 || b != 0).into())),
    ("&&", 2, |a, b| Some((a != 0 && b != 0).into())),
    ("|", 3, |a, b| Some(a | b)),
    ("^", 4, |a, b| Some(a ^ b)),
    ("&", 5, |a, b| Some(a & b)),
    ("==", 6, |a, b| Some((a == b).into())),
    ("!=", 6, |a, b| Some((a != b).into())),
    ("<", 7, |a, b| Some((a < b).into())),
    (">", 7, |a, b| Some((a > b).into())),
    ("<=", 7, |a, b| Some((a <= b).into())),
    (">=", 7, |a, b| Some((a >= b).into())),
    ("<<", 8, |a, b| a.checked_shl(u32::try_from(b).ok()?)),
    (">>", 8, |a, b| a.checked_shr(u32::try_from(b).ok()?)),
    ("+", 9, |a, b| a.checked_add(b)),
    ("-", 9, |a, b| a.checked_sub(b)),
    ("*", 10, |a, b| a.checked_mul(b)),
    ("/", 10, |a, b| a.checked_div(b)),
    ("%", 10, |a, b| a.checked_rem(b)),
];

impl Headers {
    /// The value of a macro or an enumerator.
    pub fn constant(&self, name: &str) -> Option<i128> {
        self.evaluate(&[name], 0).ok()
    }

    /// The value of a constant expression; the error names what is unknown.
    pub(super) fn value(&self, expression: &[Token]) -> Result<i128, String> {
        self.evaluate(expression, 0)
    }

    fn evaluate(&self, tokens: &[&str], depth: u8) -> Result<i128, String> {
        if depth > 40 {
            return Err("macros that name each other in a circle".to_owned());
        }
        let mut expression = Expression { headers: self, tokens, depth };
        let value = expression.binary(0)?;
        match expression.tokens.first() {
            None => Ok(value),
            Some(more) => Err(format!("an expression goes on with {more}")),
        }
    }
}

struct Expression<'a> {
    headers: &'a Headers,
    /// The remaining tokens.
    tokens: &'a [&'a str],
    depth: u8,
}

impl<'a> Expression<'a> {
    /// Consumes the next token if it is this one.
    fn accept(&mut self, token: &str) -> bool {
        let is_next = self.tokens.first() == Some(&token);
        self.tokens = &self.tokens[usize::from(is_next)..];
        is_next
    }

    /// Consumes a pair of brackets with its contents.
    fn brackets(&mut self) -> Result<&'a [&'a str], String> {
        let end =
            after_closing_bracket(self.tokens, 0).filter(|_| self.tokens[0] == "(").ok_or("brackets are missing")?;
        let (inner, rest) = self.tokens.split_at(end);
        self.tokens = rest;
        Ok(&inner[1..end - 1])
    }

    fn nested(&self, tokens: &[&str]) -> Result<i128, String> {
        self.headers.evaluate(tokens, self.depth + 1)
    }

    fn binary(&mut self, least: u8) -> Result<i128, String> {
        let mut left = self.unary()?;
        loop {
            if least == 0 && self.accept("?") {
                let yes = self.binary(0)?;
                if !self.accept(":") {
                    return Err("a ? without its :".to_owned());
                }
                let no = self.binary(0)?;
                return Ok(if left != 0 { yes } else { no });
            }
            let is_next =
                |(mark, strength, _): &&(&str, u8, Operation)| self.tokens.first() == Some(mark) && *strength > least;
            let Some((mark, strength, operation)) = OPERATORS.iter().find(is_next) else { return Ok(left) };
            self.accept(mark);
            let right = self.binary(*strength)?;
            left = operation(left, right).ok_or_else(|| format!("{left} {mark} {right} has no value"))?;
        }
    }

    fn unary(&mut self) -> Result<i128, String> {
        let token = *self.tokens.first().ok_or("an expression ends early")?;
        if token == "(" {
            let inner = self.brackets()?;
            // A cast: a type in brackets, with a value behind it.
            if let [name, rest @ ..] = inner {
                let is_type = built_in(name).is_some() || self.headers.has(name);
                if is_type && rest.iter().all(|token| *token == "*" || is_word(token)) {
                    return self.unary();
                }
            }
            return self.nested(inner);
        }
        self.tokens = &self.tokens[1..];
        match token {
            "-" => Ok(-self.unary()?),
            "+" => self.unary(),
            "~" => Ok(!self.unary()?),
            "!" => Ok((self.unary()? == 0).into()),
            "defined" => match self.tokens {
                ["(", name, ")", rest @ ..] | [name, rest @ ..] => {
                    self.tokens = rest;
                    Ok(is_defined(name).into())
                }
                [] => Err("an expression ends early".to_owned()),
            },
            "sizeof" => {
                let kind = match self.brackets()? {
                    [.., "*"] => Type::Pointer,
                    ["struct" | "union", tag] => Type::Named((*tag).to_owned()),
                    inner => plain(inner).ok_or("a sizeof of no type")?.0,
                };
                Ok(self.headers.layout_of(&kind)?.size as i128)
            }
            name if is_word(name) => self.named(name),
            other => number(other).ok_or_else(|| format!("an expression has {other}")),
        }
    }

    fn named(&mut self, name: &str) -> Result<i128, String> {
        if let Some(item) = self.headers.enumerators.get(name) {
            return Ok(self.nested(&item.from)? + item.after);
        }
        let Some(found) = self.headers.macros.get(name) else { return Err(format!("{name} has no value")) };
        let Some(parameters) = &found.parameters else { return self.nested(&found.body) };
        let given = between_commas(self.brackets()?);
        let replaced = found.body.iter().map(|token| match parameters.iter().position(|name| name == token) {
            Some(place) => given.get(place).copied().unwrap_or_default(),
            None => std::slice::from_ref(token),
        });
        self.nested(&replaced.collect::<Vec<_>>().concat())
    }
}
