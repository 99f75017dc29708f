//! Reads declarations from a header: the active branches of its conditions, its macros, and its types.

use std::rc::Rc;

use super::expression::is_defined;
use super::tokens::{after_closing_bracket, between_commas, is_word, lines};
use super::{Enumerator, Headers, Macro, Member, Number, Record, Token, Type, plain};

impl Headers {
    /// Adds a file's declarations.
    pub fn read(&mut self, file: &str, text: impl Into<String>) {
        let tokens = self.preprocess(file, text.into().leak());
        let mut rest = tokens.as_slice();
        while !rest.is_empty() {
            let (statement, behind) = rest.split_at(statement(rest));
            self.declaration(file, statement);
            rest = behind;
        }
    }

    /// The tokens of the active branches, without directives. Adds the macros.
    fn preprocess(&mut self, file: &str, text: &'static str) -> Vec<Token> {
        // A comment behind a macro says what its number was made of; it goes with the others.
        for line in text.lines().filter(|line| line.contains("_PARAMS_MESSAGE_ID\"")) {
            let mut words = line.split_whitespace();
            if let (Some("#define"), Some(name)) = (words.next(), words.next()) {
                let comment = line.split("/*").nth(1).unwrap_or_default();
                self.defines.push((name.to_owned(), comment.to_owned(), file.to_owned()));
            }
        }
        let mut code = Vec::new();
        // Of each open condition: whether its branch is taken, and whether one was.
        let mut open: Vec<(bool, bool)> = Vec::new();
        for line in lines(text) {
            let is_taken = open.iter().all(|(is_taken, _)| *is_taken);
            let last = open.last().copied().unwrap_or_default();
            match line.as_slice() {
                ["#", "endif", ..] => drop(open.pop()),
                ["#", "else", ..] => open.iter_mut().last().into_iter().for_each(|last| *last = (!last.1, true)),
                ["#", word @ ("if" | "ifdef" | "ifndef" | "elif"), rest @ ..] => {
                    let holds = match (*word, rest) {
                        ("ifdef", [name, ..]) => is_defined(name),
                        // A guard against reading twice, or a value that an earlier file gave: either way what follows is
                        // worth reading.
                        ("ifndef", [name, ..]) => !is_defined(name),
                        _ => self.value(rest).is_ok_and(|value| value != 0),
                    };
                    let was_taken = *word == "elif" && open.pop().is_some() && last.1;
                    open.push((holds && !was_taken, holds || was_taken));
                }
                ["#", "define", name, rest @ ..] if is_taken => self.define(file, name, rest),
                ["#", ..] => {}
                _ if is_taken => code.extend(line),
                _ => {}
            }
        }
        code
    }

    fn define(&mut self, file: &str, name: Token, rest: &[Token]) {
        // Only a bracket that touches the name begins parameters.
        let touches =
            rest.first().is_some_and(|next| *next == "(" && name.as_bytes().as_ptr_range().end == next.as_ptr());
        let end = after_closing_bracket(rest, 0).filter(|_| touches);
        let parameters = end.map(|end| rest[1..end - 1].iter().copied().filter(|name| *name != ",").collect());
        if parameters.is_none() && !self.macros.contains_key(name) {
            self.defines.push((name.to_owned(), String::new(), file.to_owned()));
        }
        let body = rest[end.unwrap_or(0)..].to_vec();
        self.macros.entry(name.to_owned()).or_insert(Macro { parameters, body });
    }

    fn declaration(&mut self, file: &str, tokens: &[Token]) {
        let (declared, tag) = match tokens {
            ["typedef", _, tag, "{", ..] => (&tokens[1..], Some(*tag)),
            ["typedef", ..] => (&tokens[1..], None),
            ["struct" | "union" | "enum", ..] => return drop(self.base_type(file, tokens)),
            _ => return,
        };
        for Member { name, kind, .. } in self.members(file, declared) {
            let Some(name) = name else { continue };
            // A record with a tag and another name is one record.
            self.used.extend(tag.filter(|tag| *tag != name).map(str::to_owned));
            // `typedef struct A A;` before the structure is no declaration of it.
            if !self.names.contains_key(&name) && !matches!(&kind, Type::Named(tag) if *tag == name) {
                if matches!(kind, Type::Record(_) | Type::Named(_)) {
                    self.records.push((name.clone(), file.to_owned()));
                }
                self.names.insert(name, kind);
            }
        }
    }

    /// The type at the start of a declaration, and the number of its tokens.
    fn base_type(&mut self, file: &str, tokens: &[Token]) -> Option<(Type, usize)> {
        const QUALIFIERS: [&str; 4] = ["const", "volatile", "static", "extern"];
        let mut at = tokens.iter().take_while(|word| QUALIFIERS.contains(word)).count();
        let sort = *tokens.get(at).filter(|word| is_word(word))?;
        if !["struct", "union", "enum"].contains(&sort) {
            return plain(&tokens[at..]).map(|(kind, used)| (kind, at + used));
        }
        at += 1;
        let mut packed = false;
        if tokens.get(at) == Some(&"__attribute__") {
            let end = after_closing_bracket(tokens, at + 1)?;
            packed = tokens[at..end].contains(&"packed");
            at = end;
        }
        let tag = tokens.get(at).filter(|tag| is_word(tag)).map(|tag| (*tag).to_owned());
        at += usize::from(tag.is_some());
        if tokens.get(at) != Some(&"{") {
            let kind = if sort == "enum" { Type::Plain("enum".into(), 4) } else { Type::Named(tag?) };
            return Some((kind, at));
        }
        let end = after_closing_bracket(tokens, at)?;
        let body = &tokens[at + 1..end - 1];
        if sort == "enum" {
            self.enumeration(body);
            return Some((Type::Plain("enum".into(), 4), end));
        }
        packed |= tokens.get(end) == Some(&"__attribute__")
            && after_closing_bracket(tokens, end + 1).is_some_and(|last| tokens[end..last].contains(&"packed"));
        let mut record = Record { union: sort == "union", packed, ..Record::default() };
        let mut rest = body;
        while !rest.is_empty() {
            let (member, behind) = rest.split_at(statement(rest));
            record.members.extend(self.members(file, member));
            rest = behind;
        }
        let kind = Type::Record(Rc::new(record));
        if let Some(tag) = tag.filter(|tag| !self.names.contains_key(tag)) {
            self.records.push((tag.clone(), file.to_owned()));
            self.names.insert(tag, kind.clone());
        }
        Some((kind, end))
    }

    fn enumeration(&mut self, body: &[Token]) {
        let (mut from, mut after): (Rc<[Token]>, _) = (["0"].into(), 0);
        for item in between_commas(body) {
            let [name, rest @ ..] = item else { continue };
            if let ["=", value @ ..] = rest {
                (from, after) = (value.into(), 0);
            }
            self.enumerators.entry((*name).to_owned()).or_insert(Enumerator { from: from.clone(), after });
            after += 1;
        }
    }

    /// The members that one statement declares.
    fn members(&mut self, file: &str, statement: &[Token]) -> Vec<Member> {
        let text = statement.strip_suffix(&[";"]).unwrap_or(statement);
        // NV_DECLARE_ALIGNED(type name, bytes)
        let (text, align) = match text {
            ["NV_DECLARE_ALIGNED", "(", inner @ .., ")"] => {
                let Some(comma) = inner.iter().rposition(|token| *token == ",") else { return Vec::new() };
                (&inner[..comma], Some(Number::Written(inner[comma + 1..].to_vec())))
            }
            _ => (text, None),
        };
        let Some((base, used)) = self.base_type(file, text) else { return Vec::new() };
        if let Type::Named(name) = &base {
            self.used.insert(name.clone());
        }
        let declarators = between_commas(text.get(used..).unwrap_or_default());
        let mut out: Vec<Member> =
            declarators.into_iter().filter_map(|declarator| declare(&base, declarator)).collect();
        if out.is_empty() && matches!(base, Type::Record(_)) {
            out.push(Member { name: None, kind: base, align: None, bits: None, offset: None });
        }
        if align.is_some() {
            out.iter_mut().for_each(|member| member.align = align.clone());
        }
        out
    }
}

/// The length of the first statement: to its semicolon, or to the end of a function's body.
fn statement(tokens: &[Token]) -> usize {
    let mut at = 0;
    let mut is_function = false;
    while let Some(token) = tokens.get(at) {
        match *token {
            // extern "C" is closed by a bracket that nothing here opened.
            ";" | "}" => return at + 1,
            open @ ("{" | "(") => {
                at = after_closing_bracket(tokens, at).unwrap_or(tokens.len());
                if open == "{" && (is_function || tokens[0] == "extern") {
                    return at;
                }
                is_function = open == "(" && tokens.get(at) == Some(&"{");
            }
            _ => at += 1,
        }
    }
    tokens.len()
}

/// Applies one declarator to a type: `*name`, `name[2][3]`, `(*name)(…)`, `name : 3`, and a following alignment.
fn declare(base: &Type, tokens: &[Token]) -> Option<Member> {
    let (mut kind, mut name, mut align, mut bits) = (base.clone(), None, None, None);
    let mut lengths = Vec::new();
    let written = |tokens: &[Token]| Number::Written(tokens.to_vec());
    let mut rest = tokens;
    while let all @ [token, behind @ ..] = rest {
        rest = behind;
        match *token {
            "*" => kind = Type::Pointer,
            "(" if name.is_none() => {
                name = behind.iter().find(|token| is_word(token) && **token != "NV_API_CALL");
                kind = Type::Pointer;
                break;
            }
            "[" => {
                let end = after_closing_bracket(all, 0)?;
                lengths.push(written(&all[1..end - 1]));
                rest = &all[end..];
            }
            ":" => {
                bits = Some(written(behind));
                break;
            }
            "NV_ALIGN_BYTES" | "__attribute__" | "__aligned" => {
                let (inner, after) = behind.split_at(after_closing_bracket(behind, 0)?);
                let open = match *token {
                    "__attribute__" => inner.iter().position(|token| *token == "aligned").map(|at| at + 1),
                    _ => Some(0),
                };
                align = open.and_then(|open| Some(written(&inner[open + 1..after_closing_bracket(inner, open)? - 1])));
                rest = after;
            }
            "const" | "volatile" | "NV_API_CALL" => {}
            word if name.is_none() && is_word(word) => name = Some(token),
            _ => {}
        }
    }
    if !lengths.is_empty() {
        kind = Type::Array(Box::new(kind), lengths);
    }
    let name = name.map(|name| (*name).to_owned());
    (name.is_some() || bits.is_some()).then_some(Member { name, kind, align, bits, offset: None })
}
