//! Types and prototypes out of an object's DWARF.
//!
//! Knows nothing of drivers but where their headers are kept. An object repeats every type in each of its several hundred
//! units: a first walk notes where each name is declared first, and only what is asked for afterwards is taken in.

use std::collections::{hash_map, BTreeSet, HashMap};
use std::rc::Rc;

use anyhow::{bail, ensure, Context, Result};
use gimli::{AttributeValue, DebuggingInformationEntry as Entry, DwTag, EndianSlice, LittleEndian, Unit, UnitOffset};

use super::super::c::{built_in, Headers, Member, Number, Record, Type};

/// Bytes of a type, and entries of an array. What is more is a damaged file.
pub const BIGGEST: usize = 1 << 24;

pub type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// A declaration: its unit, and where in it.
type At = (usize, UnitOffset);

/// Types inside types; what is deeper is no C but a damaged file.
const DEEPEST: usize = 64;

/// Where the driver keeps the headers that programs see.
const SDK: &str = "sdk/nvidia/inc/";

/// An entry inside another.
type Inner = (DwTag, Said);

/// What an entry's attributes say, as far as it is asked.
#[derive(Default)]
struct Said {
    name: Option<String>,
    kind: Option<At>,
    size: Option<u64>,
    at: Option<u64>,
    bit: Option<u64>,
    count: Option<u64>,
    last: Option<u64>,
    file: Option<u64>,
    line: u64,
    is_declaration: bool,
}

/// Declarations by name.
pub struct Dwarf<'a> {
    dwarf: gimli::Dwarf<Bytes<'a>>,
    units: Vec<Unit<Bytes<'a>>>,
    typedefs: HashMap<String, At>,
    tags: HashMap<String, At>,
    functions: HashMap<String, Vec<At>>,
    /// Header, line and name of what the driver's public headers declare.
    public: Vec<(String, u64, String)>,
    taken: HashMap<At, Type>,
}

impl<'a> Dwarf<'a> {
    /// Notes what is declared at the top of each unit; `wanted` names the functions.
    pub fn index(dwarf: gimli::Dwarf<Bytes<'a>>, wanted: impl Fn(&str) -> bool) -> Result<Dwarf<'a>> {
        let mut headers = dwarf.units();
        let mut units = Vec::new();
        while let Some(header) = headers.next().context("a unit of .debug_info")? {
            units.push(dwarf.unit(header).context("a unit of .debug_info")?);
        }
        let (typedefs, tags, functions) = Default::default();
        let mut index = Dwarf { dwarf, units, typedefs, tags, functions, public: Vec::new(), taken: HashMap::new() };
        for unit in 0..index.units.len() {
            index.note(unit, &wanted).with_context(|| format!("unit {unit} of .debug_info"))?;
        }
        index.public.sort();
        index.public.dedup();
        Ok(index)
    }

    fn note(&mut self, number: usize, wanted: &impl Fn(&str) -> bool) -> Result<()> {
        let unit = &self.units[number];
        let mut files: HashMap<u64, Option<String>> = HashMap::new();
        let mut entries = unit.entries();
        entries.next_dfs()?.context("an empty unit")?;
        // Down to the children of the unit, and then along them.
        entries.next_entry()?;
        let mut left = entries.current().is_some();
        while left {
            let Some(entry) = entries.current() else { break };
            let (tag, at) = (entry.tag(), (number, entry.offset()));
            let is_type = matches!(
                tag,
                gimli::DW_TAG_typedef
                    | gimli::DW_TAG_structure_type
                    | gimli::DW_TAG_union_type
                    | gimli::DW_TAG_enumeration_type
            );
            if is_type {
                let said = self.said(number, entry)?;
                if let (Some(name), false) = (said.name, said.is_declaration) {
                    let names = if tag == gimli::DW_TAG_typedef { &mut self.typedefs } else { &mut self.tags };
                    if let hash_map::Entry::Vacant(vacant) = names.entry(name) {
                        let file = said.file.and_then(|file| {
                            files.entry(file).or_insert_with(|| public_header(&self.dwarf, unit, file)).clone()
                        });
                        self.public.extend(file.map(|file| (file, said.line, vacant.key().clone())));
                        vacant.insert(at);
                    }
                }
            } else if tag == gimli::DW_TAG_subprogram {
                if let Some(name) = self.said(number, entry)?.name.filter(|name| wanted(name)) {
                    self.functions.entry(name).or_default().push(at);
                }
            }
            left = entries.next_sibling()?.is_some();
        }
        Ok(())
    }

    fn said(&self, number: usize, entry: &Entry<Bytes<'a>>) -> Result<Said> {
        let unit = &self.units[number];
        let mut said = Said::default();
        let mut attributes = entry.attrs();
        while let Some(attribute) = attributes.next()? {
            let value = attribute.udata_value();
            match attribute.name() {
                gimli::DW_AT_name => {
                    let text = self.dwarf.attr_string(unit, attribute.value())?;
                    said.name = Some(text.to_string_lossy().into_owned());
                }
                gimli::DW_AT_type => said.kind = self.target(number, attribute.value()),
                gimli::DW_AT_byte_size => said.size = value,
                gimli::DW_AT_data_member_location => {
                    ensure!(value.is_some(), "a member whose place is computed");
                    said.at = value;
                }
                gimli::DW_AT_data_bit_offset => said.bit = value,
                gimli::DW_AT_count => said.count = value,
                gimli::DW_AT_upper_bound => said.last = value,
                gimli::DW_AT_decl_file => {
                    said.file = match attribute.value() {
                        AttributeValue::FileIndex(file) => Some(file),
                        _ => value,
                    }
                }
                gimli::DW_AT_decl_line => said.line = value.unwrap_or(0),
                gimli::DW_AT_declaration => said.is_declaration = true,
                _ => {}
            }
        }
        Ok(said)
    }

    fn target(&self, number: usize, value: AttributeValue<Bytes<'a>>) -> Option<At> {
        match value {
            AttributeValue::UnitRef(offset) => Some((number, offset)),
            AttributeValue::DebugInfoRef(offset) => self.units.iter().enumerate().find_map(|(number, unit)| {
                let offset = offset.to_unit_offset(&unit.header)?;
                Some((number, offset))
            }),
            _ => None,
        }
    }

    /// An entry, and those directly inside it.
    fn entry(&self, at: At) -> Result<(DwTag, Said, Vec<Inner>)> {
        let mut tree = self.units[at.0].entries_tree(Some(at.1))?;
        let root = tree.root()?;
        let (tag, said) = (root.entry().tag(), self.said(at.0, root.entry())?);
        let mut inner = Vec::new();
        let mut children = root.children();
        while let Some(child) = children.next()? {
            inner.push((child.entry().tag(), self.said(at.0, child.entry())?));
        }
        Ok((tag, said, inner))
    }

    /// Whether a unit says that the rest of it is in another file.
    pub fn is_elsewhere(&self) -> bool {
        self.units.iter().any(|unit| unit.dwo_name().is_ok_and(|name| name.is_some()))
    }

    /// Takes in every structure that the public headers declare, in their order, and those whose name is asked for.
    pub fn take_public(&mut self, headers: &mut Headers, also: impl Fn(&str) -> bool) {
        let also: BTreeSet<String> = self.typedefs.keys().filter(|name| also(name)).cloned().collect();
        let public: Vec<_> = self.public.iter().map(|(file, _, name)| (file.clone(), name.clone())).collect();
        for (file, name) in public {
            if self.take(headers, &name).is_ok() && headers.layout(&name).is_ok_and(|layout| layout.size > 0) {
                headers.records.push((name, file));
            }
        }
        for name in also {
            // What cannot be read stays undeclared, and says so where it is asked for.
            let _ = self.take(headers, &name);
        }
    }

    /// Takes in a type by its name.
    pub fn take(&mut self, headers: &mut Headers, name: &str) -> Result<()> {
        if headers.has(name) {
            return Ok(());
        }
        let at = self.typedefs.get(name).or_else(|| self.tags.get(name)).copied();
        let at = at.with_context(|| format!("{name} is not declared"))?;
        let mut kind = self.kind(headers, at, 0)?;
        // A typedef is laid out as what it stands for.
        if matches!(&kind, Type::Named(own) if own == name) {
            kind = match self.entry(at)?.1.kind {
                Some(target) => self.kind(headers, target, 1)?,
                None => return Ok(()),
            };
        }
        headers.name(name, kind);
        Ok(())
    }

    fn kind(&mut self, headers: &mut Headers, at: At, depth: usize) -> Result<Type> {
        ensure!(depth < DEEPEST, "types inside types without an end");
        if let Some(taken) = self.taken.get(&at) {
            return Ok(taken.clone());
        }
        let kind = self.kind_anew(headers, at, depth)?;
        self.taken.insert(at, kind.clone());
        Ok(kind)
    }

    fn kind_anew(&mut self, headers: &mut Headers, at: At, depth: usize) -> Result<Type> {
        let (tag, said, inner) = self.entry(at)?;
        let size = usize::try_from(said.size.unwrap_or(0)).ok().filter(|size| *size <= BIGGEST);
        let size = size.context("a type of gigabytes")?;
        let name = said.name.unwrap_or_default();
        Ok(match tag {
            gimli::DW_TAG_typedef if built_in(&name).is_some() => Type::Named(name),
            gimli::DW_TAG_typedef => {
                let target = match said.kind {
                    Some(target) => self.kind(headers, target, depth + 1)?,
                    None => Type::Plain("void".into(), 0),
                };
                headers.name(&name, target);
                Type::Named(name)
            }
            gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type | gimli::DW_TAG_restrict_type => match said.kind {
                Some(target) => self.kind(headers, target, depth + 1)?,
                None => Type::Plain("void".into(), 0),
            },
            gimli::DW_TAG_pointer_type => Type::Pointer,
            gimli::DW_TAG_array_type => {
                let one = self.kind(headers, said.kind.context("an array of nothing")?, depth + 1)?;
                let mut lengths = Vec::new();
                for (_, said) in inner.iter().filter(|(tag, _)| *tag == gimli::DW_TAG_subrange_type) {
                    let count = said.count.or(said.last.map(|last| last.wrapping_add(1))).unwrap_or(0);
                    lengths.push(count);
                }
                ensure!(product(&lengths).is_some(), "an array of gigabytes");
                let lengths = lengths.into_iter().map(|count| Number::Known(count as usize)).collect();
                Type::Array(Box::new(one), lengths)
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type if said.is_declaration => {
                match self.tags.get(&name).copied().filter(|other| *other != at) {
                    Some(other) => self.kind(headers, other, depth + 1)?,
                    None => bail!("{name} is not declared"),
                }
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type => {
                let mut members = Vec::new();
                for (tag, member) in inner {
                    if tag != gimli::DW_TAG_member {
                        continue;
                    }
                    let kind = self.kind(headers, member.kind.context("a member without a type")?, depth + 1)?;
                    if let Type::Named(name) = &kind {
                        headers.used.insert(name.clone());
                    }
                    let offset = member.at.or(member.bit.map(|bit| bit / 8)).unwrap_or(0);
                    let offset = usize::try_from(offset).ok().filter(|offset| *offset <= size);
                    let offset = Some(offset.context("a member outside its structure")?);
                    members.push(Member { name: member.name, kind, align: None, bits: None, offset });
                }
                Type::Record(Rc::new(Record { size: Some(size), members, ..Record::default() }))
            }
            gimli::DW_TAG_base_type | gimli::DW_TAG_enumeration_type => Type::Plain(name, size),
            other => bail!("a type of the sort {other}"),
        })
    }

    /// The prototypes that units give a function.
    pub fn prototypes(&self, name: &str) -> BTreeSet<String> {
        let places = self.functions.get(name).into_iter().flatten();
        places.filter_map(|at| self.prototype(*at).ok()).collect()
    }

    /// Functions by name, as far as they were wanted.
    pub fn function_names(&self) -> impl Iterator<Item = &String> {
        self.functions.keys()
    }

    fn prototype(&self, at: At) -> Result<String> {
        let (_, said, inner) = self.entry(at)?;
        let parameters = inner.iter().filter(|(tag, _)| *tag == gimli::DW_TAG_formal_parameter);
        let parameters: Vec<String> =
            parameters.map(|(_, parameter)| self.written(parameter.kind, 0)).collect::<Result<_>>()?;
        let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
        Ok(format!("{} ({parameters})", self.written(said.kind, 0)?))
    }

    /// A type as the driver's sources write it.
    fn written(&self, at: Option<At>, depth: usize) -> Result<String> {
        ensure!(depth < DEEPEST, "types inside types without an end");
        let Some(at) = at else { return Ok("void".to_owned()) };
        let (tag, said, _) = self.entry(at)?;
        let name = said.name.unwrap_or_default();
        Ok(match tag {
            gimli::DW_TAG_pointer_type => format!("{} *", self.written(said.kind, depth + 1)?),
            gimli::DW_TAG_const_type => format!("const {}", self.written(said.kind, depth + 1)?),
            gimli::DW_TAG_volatile_type => format!("volatile {}", self.written(said.kind, depth + 1)?),
            gimli::DW_TAG_restrict_type => self.written(said.kind, depth + 1)?,
            gimli::DW_TAG_structure_type => format!("struct {name}"),
            gimli::DW_TAG_union_type => format!("union {name}"),
            gimli::DW_TAG_enumeration_type => format!("enum {name}"),
            gimli::DW_TAG_base_type => plainly(&name),
            gimli::DW_TAG_subroutine_type => "function".to_owned(),
            _ => name,
        })
    }

    /// The type that a function's last parameter points to.
    pub fn last_parameter(&self, function: &str) -> Option<String> {
        self.functions.get(function)?.iter().find_map(|at| self.pointed_to_by_last(*at))
    }

    /// The same of a function that a member of a structure points to.
    pub fn last_parameter_of_member(&self, structure: &str, member: &str) -> Option<String> {
        let (_, _, inner) = self.entry(*self.tags.get(structure)?).ok()?;
        let (_, said) = inner.into_iter().find(|(_, said)| said.name.as_deref() == Some(member))?;
        let (tag, pointer, _) = self.entry(said.kind?).ok()?;
        self.pointed_to_by_last(pointer.kind.filter(|_| tag == gimli::DW_TAG_pointer_type)?)
    }

    fn pointed_to_by_last(&self, function: At) -> Option<String> {
        let (_, _, inner) = self.entry(function).ok()?;
        let (_, last) = inner.into_iter().rfind(|(tag, _)| *tag == gimli::DW_TAG_formal_parameter)?;
        let mut at = last.kind?;
        let mut is_pointer = false;
        for _ in 0..DEEPEST {
            let (tag, said, _) = self.entry(at).ok()?;
            match tag {
                gimli::DW_TAG_pointer_type if !is_pointer => is_pointer = true,
                gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type => {}
                // A pointer with a name of its own, and what it points to.
                gimli::DW_TAG_typedef if !is_pointer => {}
                _ => return said.name.filter(|_| is_pointer),
            }
            at = said.kind?;
        }
        None
    }

    /// Structures of a control's class, by the name that such structures have.
    pub fn parameters_of_class(&self, class: u32) -> impl Iterator<Item = &String> {
        let start = format!("NV{class:04X}_CTRL_");
        self.typedefs.keys().filter(move |name| name.starts_with(&start) && name.contains("_PARAM"))
    }
}

fn product(lengths: &[u64]) -> Option<u64> {
    let all = lengths.iter().try_fold(1_u64, |all, count| all.checked_mul(*count))?;
    Some(all).filter(|all| usize::try_from(*all).is_ok_and(|all| all <= BIGGEST))
}

/// `long unsigned int` is what sources call `unsigned long`.
pub fn plainly(name: &str) -> String {
    let words: Vec<&str> = name.split(' ').collect();
    let long_or_short = words.iter().any(|word| ["long", "short", "char"].contains(word));
    let mut out: Vec<&str> = words.iter().copied().filter(|word| *word == "unsigned").collect();
    out.extend(words.iter().filter(|word| **word != "unsigned" && !(long_or_short && **word == "int")));
    out.join(" ")
}

/// A file of a unit, if it is one of the headers that programs see.
fn public_header(dwarf: &gimli::Dwarf<Bytes>, unit: &Unit<Bytes>, file: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(file)?;
    let text = |value| Some(dwarf.attr_string(unit, value).ok()?.to_string_lossy().into_owned());
    let path = match file.directory(header).and_then(text) {
        Some(folder) => format!("{folder}/{}", text(file.path_name())?),
        None => text(file.path_name())?,
    };
    path.split_once(SDK).map(|(_, name)| name.to_owned())
}
