//! Declarations out of a header: which branches of its conditions are taken, its macros, and the types that it makes.

use std::rc::Rc;

use super::tokens::{between_commas, closing, tokens, without_comments, Token};
use super::{plain, Enumerator, Headers, Macro, Member, Record, Type};
use Token::{Mark, Number, Word};

/// What is known to be defined where MPU runs; everything else that a header asks for with `#ifdef` is not.
const DEFINED: [&str; 9] = [
    "NV_UNIX",
    "NV_LINUX",
    "NVCPU_X86_64",
    "NVCPU_IS_X86_64",
    "NVCPU_IS_64_BITS",
    "NV_64_BITS",
    "__linux__",
    "__GNUC__",
    "__x86_64__",
];

impl Headers {
    /// Takes in what a file declares.
    pub fn read(&mut self, file: &str, text: &str) {
        let code = self.preprocessed(file, text);
        let tokens = tokens(&code);
        let mut i = 0;
        while i < tokens.len() {
            let end = statement(&tokens, i);
            self.declaration(file, &tokens[i..end]);
            i = end;
        }
    }

    /// The text of the branches that are taken; macros are noted, directives gone.
    fn preprocessed(&mut self, file: &str, text: &str) -> String {
        // A comment behind a macro says what its number was made of; it goes with the others.
        for line in text.lines().filter(|line| line.contains("_PARAMS_MESSAGE_ID\"")) {
            let mut words = line.split_whitespace();
            if let (Some("#define"), Some(name)) = (words.next(), words.next()) {
                let comment = line.split("/*").nth(1).unwrap_or_default();
                self.defines.push((name.to_owned(), comment.to_owned(), file.to_owned()));
            }
        }
        let text = without_comments(text).replace("\\\r\n", " ").replace("\\\n", " ");
        let mut code = String::with_capacity(text.len());
        // Of each open condition: whether its branch is taken, and whether one was.
        let mut open: Vec<(bool, bool)> = Vec::new();
        for line in text.lines() {
            let taken = open.iter().all(|(taken, _)| *taken);
            let Some(directive) = line.trim_start().strip_prefix('#').map(str::trim_start) else {
                if taken {
                    code.push_str(line);
                    code.push('\n');
                }
                continue;
            };
            let (word, rest) =
                directive.split_at(directive.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(directive.len()));
            match word {
                "if" | "ifdef" | "ifndef" => {
                    let holds = self.holds(word, rest);
                    open.push((holds, holds));
                }
                "elif" => {
                    let holds = self.holds("if", rest);
                    if let Some(last) = open.last_mut() {
                        *last = (holds && !last.1, last.1 || holds);
                    }
                }
                "else" => {
                    if let Some(last) = open.last_mut() {
                        *last = (!last.1, true);
                    }
                }
                "endif" => {
                    open.pop();
                }
                "define" if taken => self.define(file, rest.trim()),
                _ => {}
            }
        }
        code
    }

    fn holds(&self, word: &str, rest: &str) -> bool {
        let name = rest.trim();
        match word {
            "ifdef" => DEFINED.contains(&name),
            // A guard against reading twice, or a value that an earlier file gave: either way what follows is worth reading.
            "ifndef" => !DEFINED.contains(&name),
            _ => {
                let tokens = tokens(rest);
                let mut plain = Vec::new();
                let mut i = 0;
                while i < tokens.len() {
                    if tokens[i] != Word("defined".into()) {
                        plain.push(tokens[i].clone());
                        i += 1;
                        continue;
                    }
                    i += 1;
                    while tokens.get(i) == Some(&Mark("(")) {
                        i += 1;
                    }
                    let known = matches!(tokens.get(i), Some(Word(name)) if DEFINED.contains(&name.as_str()));
                    plain.push(Number(known.into()));
                    i += 1;
                    while tokens.get(i) == Some(&Mark(")")) && unbalanced(&plain, &tokens[i..]) {
                        i += 1;
                    }
                }
                self.value(&plain).is_ok_and(|value| value != 0)
            }
        }
    }

    fn define(&mut self, file: &str, text: &str) {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let (parameters, body) = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((list, body)) => (Some(list.split(',').map(|name| name.trim().to_owned()).collect()), body),
            None => (None, rest),
        };
        if parameters.is_none() && !self.macros.contains_key(name) {
            self.defines.push((name.to_owned(), String::new(), file.to_owned()));
        }
        self.macros.entry(name.to_owned()).or_insert_with(|| Macro { parameters, body: body.trim().to_owned() });
    }

    fn declaration(&mut self, file: &str, tokens: &[Token]) {
        let typedef = tokens.first() == Some(&Word("typedef".into()));
        let rest = if typedef { &tokens[1..] } else { tokens };
        if !matches!(rest.first(), Some(Word(word)) if typedef || ["struct", "union", "enum"].contains(&word.as_str()))
        {
            return;
        }
        let Some((base, used)) = self.base_type(file, rest) else { return };
        if !typedef {
            return;
        }
        self.uses(&base);
        let end = rest.len() - usize::from(rest.last() == Some(&Mark(";")));
        for declarator in between_commas(&rest[used.min(end)..end]) {
            let Some(member) = declare(&base, declarator) else { continue };
            if let Some(name) = member.name {
                // A record with a tag and another name is one record.
                if let [Word(_), Word(tag), Mark("{"), ..] = rest {
                    if *tag != name {
                        self.used.insert(tag.clone());
                    }
                }
                if !self.names.contains_key(&name) {
                    if matches!(member.kind, Type::Record(_) | Type::Named(_) | Type::Tagged(_)) {
                        self.records.push((name.clone(), file.to_owned()));
                    }
                    self.names.insert(name, member.kind);
                }
            }
        }
    }

    fn uses(&mut self, kind: &Type) {
        if let Type::Named(name) | Type::Tagged(name) = kind {
            self.used.insert(name.clone());
        }
    }

    /// The type that a declaration begins with, and how many pieces it took.
    fn base_type(&mut self, file: &str, tokens: &[Token]) -> Option<(Type, usize)> {
        let mut i = 0;
        while matches!(tokens.get(i), Some(Word(word)) if ["const", "volatile", "static", "extern"].contains(&word.as_str()))
        {
            i += 1;
        }
        let Some(Word(word)) = tokens.get(i) else { return None };
        let sort = word.as_str();
        if !["struct", "union", "enum"].contains(&sort) {
            return plain(&tokens[i..]).map(|(kind, used)| (kind, i + used));
        }
        i += 1;
        let mut packed = false;
        while matches!(tokens.get(i), Some(Word(word)) if word == "__attribute__") {
            let end = closing(tokens, i + 1)?;
            packed |= tokens[i..end].contains(&Word("packed".into()));
            i = end;
        }
        let tag = match tokens.get(i) {
            Some(Word(tag)) => {
                i += 1;
                Some(tag.clone())
            }
            _ => None,
        };
        if tokens.get(i) != Some(&Mark("{")) {
            let kind = if sort == "enum" { Type::Plain("enum".into(), 4) } else { Type::Tagged(tag?) };
            return Some((kind, i));
        }
        let end = closing(tokens, i)?;
        let body = &tokens[i + 1..end - 1];
        packed |= matches!(tokens.get(end), Some(Word(word)) if word == "__attribute__")
            && closing(tokens, end + 1).is_some_and(|last| tokens[end..last].contains(&Word("packed".into())));
        let kind = if sort == "enum" {
            self.enumeration(body);
            Type::Plain("enum".into(), 4)
        } else {
            Type::Record(Rc::new(Record { union: sort == "union", packed, members: self.members(file, body) }))
        };
        if let Some(tag) = tag {
            if sort != "enum" && !self.tags.contains_key(&tag) {
                self.records.push((tag.clone(), file.to_owned()));
                self.tags.insert(tag, kind.clone());
            }
        }
        Some((kind, end))
    }

    fn enumeration(&mut self, body: &[Token]) {
        let (mut from, mut after) = (None, 0);
        for item in between_commas(body) {
            let Some(Word(name)) = item.first() else { continue };
            if item.get(1) == Some(&Mark("=")) {
                (from, after) = (Some(Rc::new(item[2..].to_vec())), 0);
            }
            self.enumerators.entry(name.clone()).or_insert(Enumerator { from: from.clone(), after });
            after += 1;
        }
    }

    fn members(&mut self, file: &str, body: &[Token]) -> Vec<Member> {
        let mut out = Vec::new();
        let mut i = 0;
        while i < body.len() {
            let end = statement(body, i);
            let mut text = &body[i..end - usize::from(body[end - 1] == Mark(";"))];
            i = end;
            let mut align = None;
            if text.first() == Some(&Word("NV_DECLARE_ALIGNED".into())) {
                // NV_DECLARE_ALIGNED(type name, bytes)
                let inner = &text[2..text.len().saturating_sub(1)];
                let Some(comma) = inner.iter().rposition(|token| *token == Mark(",")) else { continue };
                align = Some(inner[comma + 1..].to_vec());
                text = &inner[..comma];
            }
            let Some((base, used)) = self.base_type(file, text) else { continue };
            self.uses(&base);
            let before = out.len();
            for declarator in between_commas(&text[used..]) {
                if let Some(mut member) = declare(&base, declarator) {
                    member.align = align.clone().or(member.align);
                    out.push(member);
                }
            }
            if out.len() == before && matches!(base, Type::Record(_)) {
                out.push(Member { name: None, kind: base, align, bits: None });
            }
        }
        out
    }
}

/// Whether the closing bracket that comes next belongs to `defined(`: the pieces so far have none open.
fn unbalanced(plain: &[Token], rest: &[Token]) -> bool {
    let count = |tokens: &[Token], mark| tokens.iter().filter(|token| **token == Mark(mark)).count();
    count(rest, ")") > count(rest, "(") + count(plain, "(").saturating_sub(count(plain, ")"))
}

/// The index behind the statement that begins at `start`: behind its semicolon, or behind the body of a function.
fn statement(tokens: &[Token], start: usize) -> usize {
    let mut i = start;
    let mut function = false;
    while i < tokens.len() {
        match &tokens[i] {
            Mark(";") => return i + 1,
            Mark("{") => {
                let Some(end) = closing(tokens, i) else { return tokens.len() };
                i = end;
                if function || matches!(tokens.get(start), Some(Word(word)) if word == "extern") {
                    return i;
                }
            }
            // extern "C" is closed by a bracket that nothing here opened.
            Mark("}") => return i + 1,
            Mark("(") => {
                let Some(end) = closing(tokens, i) else { return tokens.len() };
                i = end;
                function = tokens.get(i) == Some(&Mark("{"));
            }
            _ => i += 1,
        }
    }
    tokens.len()
}

/// What one declarator makes of a type: `*name`, `name[2][3]`, `(*name)(…)`, `name : 3`, with an alignment behind it.
fn declare(base: &Type, tokens: &[Token]) -> Option<Member> {
    let (mut kind, mut name, mut align, mut bits) = (base.clone(), None, None, None);
    let mut dimensions = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            Mark("*") => kind = Type::Pointer,
            Mark("(") if name.is_none() => {
                let end = closing(tokens, i)?;
                name = tokens[i..end].iter().find_map(|token| match token {
                    Word(word) if word != "NV_API_CALL" => Some(word.clone()),
                    _ => None,
                });
                kind = Type::Pointer;
                break;
            }
            Mark("[") => {
                let end = closing(tokens, i)?;
                dimensions.push(tokens[i + 1..end - 1].to_vec());
                i = end;
                continue;
            }
            Mark(":") => {
                bits = Some(tokens[i + 1..].to_vec());
                break;
            }
            Word(word) if word == "NV_ALIGN_BYTES" || word == "__attribute__" || word == "__aligned" => {
                let end = closing(tokens, i + 1)?;
                let inner = &tokens[i..end];
                let at = inner.iter().position(|token| *token == Word("aligned".into()));
                let open = if word == "__attribute__" { at.map(|at| i + at + 1) } else { Some(i + 1) };
                if let Some(open) = open {
                    align = closing(tokens, open).map(|last| tokens[open + 1..last - 1].to_vec());
                }
                i = end;
                continue;
            }
            Word(word) if ["const", "volatile", "NV_API_CALL"].contains(&word.as_str()) => {}
            Word(word) if name.is_none() => name = Some(word.clone()),
            _ => {}
        }
        i += 1;
    }
    if !dimensions.is_empty() {
        kind = Type::Array(Box::new(kind), dimensions);
    }
    (name.is_some() || bits.is_some()).then_some(Member { name, kind, align, bits })
}
