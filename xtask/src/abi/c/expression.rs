//! Constant expressions: the sizes of arrays, the numbers of controls, the conditions of `#if`. What has no value is named.

use super::tokens::{between_commas, closing, tokens, Token};
use super::{built_in, plain, Headers, Type};
use Token::{Mark, Number, Word};

impl Headers {
    /// The value of a macro or an enumerator.
    pub fn constant(&self, name: &str) -> Option<i128> {
        self.value(&[Word(name.to_owned())]).ok()
    }

    /// The value of a constant expression; the error names what is unknown.
    pub fn value(&self, expression: &[Token]) -> Result<i128, String> {
        let mut reader = Expression { headers: self, tokens: expression.to_vec(), at: 0, depth: 0 };
        let value = reader.binary(0)?;
        if reader.at == reader.tokens.len() {
            Ok(value)
        } else {
            Err(format!("an expression goes on with {:?}", reader.tokens[reader.at]))
        }
    }
}

struct Expression<'a> {
    headers: &'a Headers,
    tokens: Vec<Token>,
    at: usize,
    depth: u8,
}

impl Expression<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn binary(&mut self, least: u8) -> Result<i128, String> {
        let mut left = self.unary()?;
        loop {
            let Some(Mark(mark)) = self.peek().cloned() else { return Ok(left) };
            if mark == "?" && least == 0 {
                self.at += 1;
                let yes = self.binary(0)?;
                if self.peek() != Some(&Mark(":")) {
                    return Err("a ? without its :".to_owned());
                }
                self.at += 1;
                let no = self.binary(0)?;
                return Ok(if left != 0 { yes } else { no });
            }
            let strength = match mark {
                "||" => 1,
                "&&" => 2,
                "|" => 3,
                "^" => 4,
                "&" => 5,
                "==" | "!=" => 6,
                "<" | ">" | "<=" | ">=" => 7,
                "<<" | ">>" => 8,
                "+" | "-" => 9,
                "*" | "/" | "%" => 10,
                _ => return Ok(left),
            };
            if strength <= least {
                return Ok(left);
            }
            self.at += 1;
            let right = self.binary(strength)?;
            let shift = u32::try_from(right).unwrap_or(127).min(127);
            left = match mark {
                "||" => (left != 0 || right != 0).into(),
                "&&" => (left != 0 && right != 0).into(),
                "|" => left | right,
                "^" => left ^ right,
                "&" => left & right,
                "==" => (left == right).into(),
                "!=" => (left != right).into(),
                "<" => (left < right).into(),
                ">" => (left > right).into(),
                "<=" => (left <= right).into(),
                ">=" => (left >= right).into(),
                "<<" => left.checked_shl(shift).unwrap_or(0),
                ">>" => left >> shift,
                "+" => left.wrapping_add(right),
                "-" => left.wrapping_sub(right),
                "*" => left.wrapping_mul(right),
                "/" => left.checked_div(right).ok_or("a division by zero")?,
                _ => left.checked_rem(right).ok_or("a division by zero")?,
            };
        }
    }

    fn unary(&mut self) -> Result<i128, String> {
        let token = self.peek().cloned().ok_or("an expression ends early")?;
        self.at += 1;
        match token {
            Number(value) => Ok(value),
            Mark("-") => Ok(-self.unary()?),
            Mark("+") => self.unary(),
            Mark("~") => Ok(!self.unary()?),
            Mark("!") => Ok((self.unary()? == 0).into()),
            Mark("(") => {
                let end = closing(&self.tokens, self.at - 1).ok_or("a bracket without its other")?;
                let inner = self.tokens[self.at..end - 1].to_vec();
                self.at = end;
                // A cast: a type in brackets, with a value behind it.
                if let [Word(name), stars @ ..] = inner.as_slice() {
                    let is_type = built_in(name).is_some() || self.headers.has(name);
                    if is_type && stars.iter().all(|token| matches!(token, Mark("*") | Word(_))) {
                        return self.unary();
                    }
                }
                self.nested(inner)
            }
            Word(name) if name == "sizeof" => {
                let end = closing(&self.tokens, self.at).ok_or("a sizeof without brackets")?;
                let inner = self.tokens[self.at + 1..end - 1].to_vec();
                self.at = end;
                let kind = match inner.as_slice() {
                    [.., Mark("*")] => Type::Pointer,
                    [Word(sort), Word(tag)] if sort == "struct" || sort == "union" => Type::Tagged(tag.clone()),
                    inner => plain(inner).ok_or("a sizeof of no type")?.0,
                };
                Ok(self.headers.layout_of(&kind)?.size as i128)
            }
            Word(name) => self.name(&name),
            other => Err(format!("an expression has {other:?}")),
        }
    }

    fn name(&mut self, name: &str) -> Result<i128, String> {
        if let Some(item) = self.headers.enumerators.get(name) {
            return match &item.from {
                Some(from) => Ok(self.nested(from.to_vec())? + item.after),
                None => Ok(item.after),
            };
        }
        let Some(found) = self.headers.macros.get(name) else { return Err(format!("{name} has no value")) };
        let mut body = tokens(&found.body);
        if let Some(parameters) = &found.parameters {
            let end = closing(&self.tokens, self.at).ok_or_else(|| format!("{name} without brackets"))?;
            let inner = self.tokens[self.at + 1..end - 1].to_vec();
            self.at = end;
            let given = between_commas(&inner);
            body = body
                .into_iter()
                .flat_map(|token| match parameters.iter().position(|name| token == Word(name.clone())) {
                    Some(place) => given.get(place).map_or(Vec::new(), |tokens| tokens.to_vec()),
                    None => vec![token],
                })
                .collect();
        }
        self.nested(body)
    }

    fn nested(&self, tokens: Vec<Token>) -> Result<i128, String> {
        if self.depth > 40 {
            return Err("macros that name each other in a circle".to_owned());
        }
        let mut inner = Expression { headers: self.headers, tokens, at: 0, depth: self.depth + 1 };
        let value = inner.binary(0)?;
        if inner.at == inner.tokens.len() {
            Ok(value)
        } else {
            Err("an expression with something behind it".to_owned())
        }
    }
}
