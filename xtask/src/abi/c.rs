//! Parses the C of the driver's headers: object-like macros, enumerations, structures, unions, arrays, and their layout on x86-64.
//!
//! No crate does this. A parser of full C (lang-c, clang) needs preprocessed text, and so every include of a tree that is often
//! incomplete. tree-sitter leaves macros, constants and layouts to us. The headers are generated and use a small part of C. Other C makes
//! only the structure that uses it unknown, by name. The test `layouts_are_those_of_a_compiler` compares layouts with `cc`.

mod expression;
mod reading;
pub mod tokens;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A token of a header. Headers are leaked: they stay in memory for the rest of the run.
type Token = tokens::Token<'static>;

/// The driver's names of C's basic types, by size, which is also their alignment.
const BUILT_IN: [(usize, &str); 4] = [
    (1, "NvU8 NvS8 NvV8 NvBool NvTristate char uint8_t int8_t bool __u8"),
    (2, "NvU16 NvS16 NvV16 NvWchar short uint16_t int16_t __u16"),
    (4, "NvU32 NvS32 NvV32 NvF32 NvHandle NV_STATUS NvStatus int unsigned float uint32_t int32_t __u32 __s32"),
    (8, "NvU64 NvS64 NvF64 NvP64 NvUPtr NvSPtr NvLength long size_t uint64_t int64_t __u64 __s64"),
];

/// The size of a basic type.
pub fn built_in(name: &str) -> Option<usize> {
    BUILT_IN.iter().find(|(_, names)| names.split(' ').any(|other| other == name)).map(|(size, _)| *size)
}

/// A type as the header has it.
#[derive(Clone, Debug)]
pub enum Type {
    Plain(String, usize),
    Pointer,
    Named(String),
    Record(Rc<Record>),
    /// Only the size is known.
    Opaque(usize),
    Array(Box<Type>, Vec<Number>),
}

/// A length or an alignment. It is evaluated when it is used, because a later header can define its macros.
#[derive(Clone, Debug)]
pub enum Number {
    Known(usize),
    Written(Vec<Token>),
}

/// A structure or a union.
#[derive(Debug, Default)]
pub struct Record {
    pub union: bool,
    pub packed: bool,
    /// The size, if a compiler laid it out. Then its members have offsets.
    pub size: Option<usize>,
    pub members: Vec<Member>,
}

#[derive(Debug)]
pub struct Member {
    pub name: Option<String>,
    pub kind: Type,
    pub align: Option<Number>,
    pub bits: Option<Number>,
    pub offset: Option<usize>,
}

impl Member {
    /// A member with an offset from debug information.
    pub fn at_offset(name: Option<String>, kind: Type, offset: usize) -> Member {
        Member { name, kind, align: None, bits: None, offset: Some(offset) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub size: usize,
    pub align: usize,
}

/// An innermost member: its name, offset and repetitions.
#[derive(Clone, Debug)]
pub struct Field {
    /// Names from the outermost structure inwards, with dots.
    pub path: String,
    pub name: String,
    pub kind: String,
    pub size: usize,
    /// Byte offset of the first one.
    pub offset: usize,
    /// Count and stride of each array around it, the outermost first.
    pub repeats: Vec<(usize, usize)>,
}

impl Field {
    /// The byte offsets of all repetitions.
    pub fn offsets(&self) -> Vec<usize> {
        let mut all = vec![self.offset];
        for &(count, stride) in &self.repeats {
            all = all.iter().flat_map(|at| (0..count).map(move |i| at + i * stride)).collect();
        }
        all
    }
}

struct Macro {
    parameters: Option<Vec<Token>>,
    body: Vec<Token>,
}

/// An enumerator: its value is an expression plus `after`.
struct Enumerator {
    from: Rc<[Token]>,
    after: i128,
}

/// All declarations of a set of headers in one namespace. The first declaration of a name counts.
#[derive(Default)]
pub struct Headers {
    macros: HashMap<String, Macro>,
    enumerators: HashMap<String, Enumerator>,
    /// Types by name or tag. A name and an equal tag are one type.
    names: HashMap<String, Type>,
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
        self.names.contains_key(name)
    }

    /// The layout of a type by name; the error names what is unknown.
    pub fn layout(&self, name: &str) -> Result<Layout, String> {
        self.layout_of(&Type::Named(name.to_owned()))
    }

    /// Names a type. An existing name keeps its type.
    pub fn name(&mut self, name: &str, kind: Type) {
        self.names.entry(name.to_owned()).or_insert(kind);
    }

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
            Type::Opaque(size) => Ok(Layout { size: *size, align: 8 }),
            Type::Plain(_, size) => Ok(Layout { size: *size, align: *size }),
            Type::Pointer => Ok(Layout { size: 8, align: 8 }),
            Type::Named(name) => {
                if let Some(known) = self.laid_out.borrow().get(name) {
                    return known.clone();
                }
                // A type that holds itself stays unknown.
                self.laid_out.borrow_mut().insert(name.clone(), Err(format!("{name} holds itself")));
                let layout = self.resolved(kind).and_then(|kind| self.layout_of(&kind));
                self.laid_out.borrow_mut().insert(name.clone(), layout.clone());
                layout
            }
            Type::Array(of, lengths) => {
                let mut layout = self.layout_of(of)?;
                for length in lengths {
                    let count = self.number(length)?;
                    layout.size = layout.size.checked_mul(count).ok_or("an array larger than memory")?;
                }
                Ok(layout)
            }
            Type::Record(record) => self.place(record).map(|(layout, _)| layout),
        }
    }

    fn number(&self, number: &Number) -> Result<usize, String> {
        match number {
            Number::Known(number) => Ok(*number),
            Number::Written(tokens) if tokens.is_empty() => Ok(0),
            Number::Written(tokens) => {
                usize::try_from(self.value(tokens)?).map_err(|_| "an array of negative length".to_owned())
            }
        }
    }

    /// Resolves a named type one step.
    fn resolved(&self, kind: &Type) -> Result<Type, String> {
        let Type::Named(name) = kind else { return Ok(kind.clone()) };
        match built_in(name) {
            Some(size) => Ok(Type::Plain(name.clone(), size)),
            None => self.names.get(name).cloned().ok_or_else(|| format!("{name} is not declared")),
        }
    }

    /// A record's layout, and the byte offset of each member.
    fn place(&self, record: &Record) -> Result<(Layout, Vec<usize>), String> {
        if let Some(size) = record.size {
            let offsets = record.members.iter().map(|member| member.offset.unwrap_or(0));
            return Ok((Layout { size, align: 8 }, offsets.collect()));
        }
        let (mut bits_used, mut whole) = (0, Layout { size: 0, align: 1 });
        let mut offsets = Vec::new();
        for member in &record.members {
            let mut layout = self.layout_of(&member.kind)?;
            if record.packed {
                layout.align = 1;
            }
            if let Some(align) = &member.align {
                layout.align = layout.align.max(self.number(align)?.max(1));
            }
            whole.align = whole.align.max(layout.align);
            let bits = match &member.bits {
                Some(bits) => self.number(bits)?,
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
    pub fn member_names(&self, name: &str) -> Vec<String> {
        let mut kind = Ok(Type::Named(name.to_owned()));
        // A name, its tag, the record.
        for _ in 0..2 {
            kind = kind.and_then(|kind| self.resolved(&kind));
        }
        match kind {
            Ok(Type::Record(record)) => record.members.iter().filter_map(|member| member.name.clone()).collect(),
            _ => Vec::new(),
        }
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
        match self.resolved(kind)? {
            leaf @ (Type::Plain(..) | Type::Pointer) => {
                let kind = match (&leaf, kind) {
                    (Type::Plain(..), Type::Named(name) | Type::Plain(name, _)) => name.clone(),
                    _ => "*".to_owned(),
                };
                let name = path.rsplit('.').next().unwrap_or_default().to_owned();
                let size = self.layout_of(&leaf)?.size;
                out.push(Field { path: path.to_owned(), name, kind, size, offset, repeats: repeats.to_vec() });
            }
            Type::Array(of, lengths) => {
                let mut stride = self.layout_of(&of)?.size;
                let mut inner = Vec::new();
                for length in lengths.iter().rev() {
                    let count = self.number(length)?;
                    inner.insert(0, (count, stride));
                    stride *= count;
                }
                self.collect(&of, path, offset, &[repeats, &inner].concat(), out)?;
            }
            Type::Record(record) => {
                let (_, offsets) = self.place(&record)?;
                for (member, at) in record.members.iter().zip(offsets) {
                    let path = match (&member.name, path) {
                        (Some(name), "") => name,
                        (Some(name), path) => &format!("{path}.{name}"),
                        (None, path) => path,
                    };
                    self.collect(&member.kind, path, offset + at, repeats, out)?;
                }
            }
            Type::Opaque(size) => return Err(format!("of its {size} bytes nothing else is known")),
            named => self.collect(&named, path, offset, repeats, out)?,
        }
        Ok(())
    }
}

/// A basic or named type, such as `unsigned long long`, and the number of its tokens.
fn plain(tokens: &[&str]) -> Option<(Type, usize)> {
    const PARTS: [&str; 8] = ["unsigned", "signed", "long", "short", "int", "char", "void", "const"];
    let words: Vec<&str> = tokens.iter().copied().take_while(|word| PARTS.contains(word)).collect();
    if words.is_empty() {
        let name = tokens.first().filter(|name| tokens::is_word(name))?;
        return Some((Type::Named((*name).to_owned()), 1));
    }
    let size = match () {
        () if words.contains(&"char") || words.contains(&"void") => 1,
        () if words.contains(&"short") => 2,
        () if words.contains(&"long") => 8,
        () => 4,
    };
    Some((Type::Plain(words.join(" "), size), words.len()))
}
