//! The C that the driver's headers are written in: object-like macros, enumerations, structures, unions, arrays, and their layout on
//! x86-64. Knows nothing of drivers.
//!
//! Written by hand, and not taken from a crate: a parser of full C wants the headers preprocessed by a compiler, which in turn wants every
//! include of a tree that is often there in part only (a folder of headers, a few files of an unreleased driver). These headers are
//! generated, and use a small part of C. What is outside that part makes the one structure that uses it unknown, by name, and nothing else.
//! The layout's witness is a compiler: `layouts_are_those_of_a_compiler` lays the same text out with `cc`.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A piece of C.
#[derive(Clone, PartialEq, Debug)]
pub enum Token {
    Word(String),
    Number(i128),
    Text,
    Mark(&'static str),
}

use Token::{Mark, Number, Word};

const MARKS: [&str; 39] = [
    "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "->", "##", "{", "}", "(", ")", "[", "]", ";", ",", "*", ":", "=",
    "+", "-", "/", "%", "&", "|", "^", "~", "!", "<", ">", "?", ".", "#", "@", "\\", "$", "`",
];

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

/// The driver's own names for what C has: bytes, which are their alignment, too.
const BUILT_IN: [(&str, usize); 39] = [
    ("NvU8", 1),
    ("NvS8", 1),
    ("NvV8", 1),
    ("NvBool", 1),
    ("NvTristate", 1),
    ("char", 1),
    ("uint8_t", 1),
    ("int8_t", 1),
    ("bool", 1),
    ("NvU16", 2),
    ("NvS16", 2),
    ("NvV16", 2),
    ("NvWchar", 2),
    ("short", 2),
    ("uint16_t", 2),
    ("int16_t", 2),
    ("NvU32", 4),
    ("NvS32", 4),
    ("NvV32", 4),
    ("NvF32", 4),
    ("NvHandle", 4),
    ("NV_STATUS", 4),
    ("NvStatus", 4),
    ("int", 4),
    ("unsigned", 4),
    ("float", 4),
    ("uint32_t", 4),
    ("int32_t", 4),
    ("NvU64", 8),
    ("NvS64", 8),
    ("NvF64", 8),
    ("NvP64", 8),
    ("NvUPtr", 8),
    ("NvSPtr", 8),
    ("NvLength", 8),
    ("long", 8),
    ("size_t", 8),
    ("uint64_t", 8),
    ("int64_t", 8),
];

/// A type as it was written.
#[derive(Clone, Debug)]
pub enum Type {
    Plain(String, usize),
    Pointer,
    Named(String),
    Tagged(String),
    Record(Rc<Record>),
    Array(Box<Type>, Vec<Vec<Token>>),
}

/// A structure or a union.
#[derive(Debug)]
pub struct Record {
    union: bool,
    packed: bool,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    name: Option<String>,
    kind: Type,
    align: Option<Vec<Token>>,
    bits: Option<Vec<Token>>,
}

/// Bytes and alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub size: usize,
    pub align: usize,
}

/// A member that holds no other: where it is, how often, and what it is called.
#[derive(Clone, Debug)]
pub struct Field {
    /// Names from the outermost structure inwards, with dots.
    pub path: String,
    /// The innermost name.
    pub name: String,
    /// Its type as written.
    pub kind: String,
    /// Bytes of one.
    pub size: usize,
    /// Byte offset of the first one.
    pub offset: usize,
    /// How often it is repeated, and each time after how many bytes, from the outermost array inwards.
    pub repeats: Vec<(usize, usize)>,
}

impl Field {
    /// Byte offsets of all of them.
    pub fn offsets(&self) -> Vec<usize> {
        let mut all = vec![self.offset];
        for &(count, stride) in &self.repeats {
            all = all.iter().flat_map(|at| (0..count).map(move |i| at + i * stride)).collect();
        }
        all
    }
}

struct Macro {
    parameters: Option<Vec<String>>,
    body: String,
}

/// One enumerator: so many after the value of an expression, or after 0.
#[derive(Clone)]
struct Enumerator {
    from: Option<Rc<Vec<Token>>>,
    after: i128,
}

/// All declarations of a set of headers, in one space of names: what is read first stays.
#[derive(Default)]
pub struct Headers {
    macros: HashMap<String, Macro>,
    enumerators: HashMap<String, Enumerator>,
    names: HashMap<String, Type>,
    tags: HashMap<String, Type>,
    /// Structures by name, with the file each is in, in the order of reading.
    pub records: Vec<(String, String)>,
    /// Object-like macros with the comment behind them, and the file.
    pub defines: Vec<(String, String, String)>,
    /// Types that another declaration uses: as a member, or under another name.
    pub used: HashSet<String>,
    laid_out: RefCell<HashMap<String, Result<Layout, String>>>,
}

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
                    out.push(Mark(mark));
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
            Mark("(" | "[" | "{") => depth += 1,
            Mark(")" | "]" | "}") => depth -= 1,
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
            Mark("(" | "[" | "{") => depth += 1,
            Mark(")" | "]" | "}") => depth -= 1,
            Mark(",") if depth == 0 => {
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
        for line in text.lines().filter(|line| line.contains("_PARAMS_MESSAGE_ID)\"")) {
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

    /// The value of a macro or an enumerator.
    pub fn constant(&self, name: &str) -> Option<i128> {
        self.value(&[Word(name.to_owned())]).ok()
    }

    /// Whether there is a type of that name.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains_key(name) || self.tags.contains_key(name)
    }

    /// The layout of a type by name; the error names what is unknown.
    pub fn layout(&self, name: &str) -> Result<Layout, String> {
        self.layout_of(&Type::Named(name.to_owned()))
    }

    fn layout_of(&self, kind: &Type) -> Result<Layout, String> {
        match kind {
            Type::Plain(_, size) => Ok(Layout { size: *size, align: *size }),
            Type::Pointer => Ok(Layout { size: 8, align: 8 }),
            Type::Named(name) | Type::Tagged(name) => {
                if let Some(known) = self.laid_out.borrow().get(name) {
                    return known.clone();
                }
                // A type that holds itself stays unknown.
                self.laid_out.borrow_mut().insert(name.clone(), Err(format!("{name} holds itself")));
                let layout = match self.resolved(kind) {
                    Some(kind) => self.layout_of(&kind),
                    None => Err(format!("{name} is not declared")),
                };
                self.laid_out.borrow_mut().insert(name.clone(), layout.clone());
                layout
            }
            Type::Array(of, dimensions) => {
                let one = self.layout_of(of)?;
                let count = dimensions.iter().try_fold(1, |all, size| Ok::<_, String>(all * self.length(size)?))?;
                Ok(Layout { size: one.size * count, align: one.align })
            }
            Type::Record(record) => self.place(record).map(|(layout, _)| layout),
        }
    }

    fn length(&self, expression: &[Token]) -> Result<usize, String> {
        if expression.is_empty() {
            return Ok(0);
        }
        usize::try_from(self.value(expression)?).map_err(|_| "an array of negative length".to_owned())
    }

    fn resolved(&self, kind: &Type) -> Option<Type> {
        match kind {
            Type::Named(name) => match BUILT_IN.iter().find(|(known, _)| known == name) {
                Some((_, size)) => Some(Type::Plain(name.clone(), *size)),
                None => self.names.get(name).or_else(|| self.tags.get(name)).cloned(),
            },
            Type::Tagged(name) => self.tags.get(name).or_else(|| self.names.get(name)).cloned(),
            other => Some(other.clone()),
        }
    }

    /// A record's layout, and the byte offset of each member.
    fn place(&self, record: &Record) -> Result<(Layout, Vec<usize>), String> {
        let (mut bits_used, mut whole) = (0, Layout { size: 0, align: 1 });
        let mut offsets = Vec::new();
        for member in &record.members {
            let mut layout = self.layout_of(&member.kind)?;
            if record.packed {
                layout.align = 1;
            }
            if let Some(align) = &member.align {
                layout.align = layout.align.max(self.length(align)?.max(1));
            }
            whole.align = whole.align.max(layout.align);
            let bits = match &member.bits {
                Some(bits) => self.length(bits)?,
                None => layout.size * 8,
            };
            let start = if record.union { 0 } else { bits_used };
            let unit = layout.align * 8;
            let fits = member.bits.is_some() && bits > 0 && start / unit == (start + bits - 1) / unit;
            let start = if fits { start } else { start.div_ceil(unit) * unit };
            offsets.push(start / 8);
            bits_used = bits_used.max(start + bits);
        }
        whole.size = bits_used.div_ceil(8).div_ceil(whole.align) * whole.align;
        Ok((whole, offsets))
    }

    /// Every innermost member of a type, by name; the error names what is unknown.
    pub fn fields(&self, name: &str) -> Result<Vec<Field>, String> {
        self.layout(name)?;
        let mut out = Vec::new();
        self.collect(&Type::Named(name.to_owned()), "", 0, &[], &mut out)?;
        Ok(out)
    }

    fn collect(
        &self,
        kind: &Type,
        path: &str,
        offset: usize,
        repeats: &[(usize, usize)],
        out: &mut Vec<Field>,
    ) -> Result<(), String> {
        let written = match kind {
            Type::Named(name) | Type::Tagged(name) | Type::Plain(name, _) => name.clone(),
            _ => String::new(),
        };
        match self.resolved(kind).ok_or_else(|| format!("{written} is not declared"))? {
            leaf @ (Type::Plain(..) | Type::Pointer) => {
                let name = path.rsplit('.').next().unwrap_or_default().to_owned();
                let kind = if matches!(leaf, Type::Pointer) { "*".to_owned() } else { written };
                let size = self.layout_of(&leaf)?.size;
                out.push(Field { path: path.to_owned(), name, kind, size, offset, repeats: repeats.to_vec() });
            }
            Type::Array(of, dimensions) => {
                let mut stride = self.layout_of(&of)?.size;
                let mut inner = Vec::new();
                for size in dimensions.iter().rev() {
                    let count = self.length(size)?;
                    inner.insert(0, (count, stride));
                    stride *= count;
                }
                self.collect(&of, path, offset, &[repeats, &inner].concat(), out)?;
            }
            Type::Record(record) => {
                let (_, offsets) = self.place(&record)?;
                for (member, at) in record.members.iter().zip(offsets) {
                    let path = match (&member.name, path) {
                        (Some(name), "") => name.clone(),
                        (Some(name), path) => format!("{path}.{name}"),
                        (None, path) => path.to_owned(),
                    };
                    self.collect(&member.kind, &path, offset + at, repeats, out)?;
                }
            }
            named => self.collect(&named, path, offset, repeats, out)?,
        }
        Ok(())
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

/// A type of one word, or of several as `unsigned long long`.
fn plain(tokens: &[Token]) -> Option<(Type, usize)> {
    let words: Vec<&str> = tokens
        .iter()
        .map_while(|token| match token {
            Word(word) => Some(word.as_str()),
            _ => None,
        })
        .take_while(|word| ["unsigned", "signed", "long", "short", "int", "char", "void", "const"].contains(word))
        .collect();
    if words.is_empty() {
        let Some(Word(name)) = tokens.first() else { return None };
        return Some((Type::Named(name.clone()), 1));
    }
    let size = match () {
        () if words.contains(&"char") || words.contains(&"void") => 1,
        () if words.contains(&"short") => 2,
        () if words.contains(&"long") => 8,
        () => 4,
    };
    Some((Type::Plain(words.join(" "), size), words.len()))
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
                    let is_type = BUILT_IN.iter().any(|(known, _)| known == name) || self.headers.has(name);
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
