//! The C that the driver's headers are written in: object-like macros, enumerations, structures, unions, arrays, and their
//! layout on x86-64. Knows nothing of drivers.
//!
//! Written by hand, and not taken from a crate: a parser of full C wants the headers preprocessed by a compiler, which in
//! turn wants every include of a tree that is often there in part only (a folder of headers, a few files of an unreleased
//! driver). These headers are generated, and use a small part of C. What is outside that part makes the one structure that
//! uses it unknown, by name, and nothing else. The layout's witness is a compiler: `layouts_are_those_of_a_compiler` lays the
//! same text out with `cc`.

mod expression;
mod reading;
pub mod tokens;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use tokens::Token;

/// The driver's own names for what C has, by their bytes, which are their alignment, too.
const BUILT_IN: [(usize, &[&str]); 5] = [
    (1, &["NvU8", "NvS8", "NvV8", "NvBool", "NvTristate", "char", "uint8_t", "int8_t", "bool", "__u8"]),
    (2, &["NvU16", "NvS16", "NvV16", "NvWchar", "short", "uint16_t", "int16_t", "__u16"]),
    (4, &["NvU32", "NvS32", "NvV32", "NvF32", "NvHandle", "NV_STATUS", "NvStatus"]),
    (4, &["int", "unsigned", "float", "uint32_t", "int32_t", "__u32", "__s32"]),
    (
        8,
        &[
            "NvU64", "NvS64", "NvF64", "NvP64", "NvUPtr", "NvSPtr", "NvLength", "long", "size_t", "uint64_t",
            "int64_t", "__u64", "__s64",
        ],
    ),
];

/// The bytes of a type that the parser knows by itself.
pub fn built_in(name: &str) -> Option<usize> {
    BUILT_IN.iter().find(|(_, names)| names.contains(&name)).map(|(size, _)| *size)
}

/// A type as it was written.
#[derive(Clone, Debug)]
pub enum Type {
    Plain(String, usize),
    Pointer,
    Named(String),
    Tagged(String),
    Record(Rc<Record>),
    /// Laid out by a compiler, whose word is taken.
    Placed(Rc<Placed>),
    /// So many bytes, and nothing else is known of them.
    Opaque(usize),
    Array(Box<Type>, Vec<Vec<Token>>),
}

/// A structure or a union as a compiler laid it out: members with their byte offsets.
#[derive(Debug)]
pub struct Placed {
    pub size: usize,
    pub members: Vec<(Option<String>, Type, usize)>,
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

impl Headers {
    /// Whether there is a type of that name.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains_key(name) || self.tags.contains_key(name)
    }

    /// The layout of a type by name; the error names what is unknown.
    pub fn layout(&self, name: &str) -> Result<Layout, String> {
        self.layout_of(&Type::Named(name.to_owned()))
    }

    /// Gives a type a name; what has one keeps it.
    pub fn name(&mut self, name: &str, kind: Type) {
        self.names.entry(name.to_owned()).or_insert(kind);
    }

    /// Names of types.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    /// The bytes of a type of which only the size is known.
    pub fn opaque(&self, name: &str) -> Option<usize> {
        match self.names.get(name) {
            Some(Type::Opaque(size)) => Some(*size),
            _ => None,
        }
    }

    fn layout_of(&self, kind: &Type) -> Result<Layout, String> {
        match kind {
            Type::Placed(placed) => Ok(Layout { size: placed.size, align: 8 }),
            Type::Opaque(size) => Ok(Layout { size: *size, align: 8 }),
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
                let size = one.size.checked_mul(count).ok_or("an array larger than memory")?;
                Ok(Layout { size, align: one.align })
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
            Type::Named(name) => match built_in(name) {
                Some(size) => Some(Type::Plain(name.clone(), size)),
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

    /// Names of a record's own members, also of one that cannot be laid out.
    pub fn member_names(&self, name: &str) -> impl Iterator<Item = &str> {
        let record = match self.names.get(name).or_else(|| self.tags.get(name)) {
            Some(Type::Record(record)) => Some(record),
            Some(Type::Tagged(tag)) => self.tags.get(tag).and_then(|kind| match kind {
                Type::Record(record) => Some(record),
                _ => None,
            }),
            _ => None,
        };
        record.into_iter().flat_map(|record| record.members.iter().filter_map(|member| member.name.as_deref()))
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
                    self.collect(&member.kind, &within(path, member.name.as_deref()), offset + at, repeats, out)?;
                }
            }
            Type::Placed(placed) => {
                for (name, kind, at) in &placed.members {
                    self.collect(kind, &within(path, name.as_deref()), offset + at, repeats, out)?;
                }
            }
            Type::Opaque(size) => return Err(format!("of its {size} bytes nothing else is known")),
            named => self.collect(&named, path, offset, repeats, out)?,
        }
        Ok(())
    }
}

fn within(path: &str, name: Option<&str>) -> String {
    match (name, path) {
        (Some(name), "") => name.to_owned(),
        (Some(name), path) => format!("{path}.{name}"),
        (None, path) => path.to_owned(),
    }
}

/// A type of one word, or of several as `unsigned long long`.
fn plain(tokens: &[Token]) -> Option<(Type, usize)> {
    let words: Vec<&str> = tokens
        .iter()
        .map_while(|token| match token {
            Token::Word(word) => Some(word.as_str()),
            _ => None,
        })
        .take_while(|word| ["unsigned", "signed", "long", "short", "int", "char", "void", "const"].contains(word))
        .collect();
    if words.is_empty() {
        let Some(Token::Word(name)) = tokens.first() else { return None };
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
