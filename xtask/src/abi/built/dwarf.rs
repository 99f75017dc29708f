//! Reads types and prototypes from an object's DWARF. An object repeats every type in several hundred units: a first pass indexes the
//! first declaration of each name, and types are read on request.

use std::collections::{BTreeSet, HashMap, hash_map};
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use gimli::{AttributeValue, DebuggingInformationEntry, DwAt, DwTag, EndianSlice, LittleEndian, Unit, UnitOffset};

use super::super::c::{Headers, Member, Number, Record, Type, built_in};

/// The limit of a type's size and an array's length. Only a damaged file has more.
pub const MAX_SIZE: usize = 1 << 24;

/// The limit of nested types. Only a damaged file has more.
pub const MAX_DEPTH: usize = 64;

/// Where the driver keeps the headers that programs see.
const SDK: &str = "sdk/nvidia/inc/";

pub type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Entry<'a> = DebuggingInformationEntry<Bytes<'a>>;

/// A declaration: its unit, and where in it.
type At = (usize, UnitOffset);

pub struct Dwarf<'a> {
    dwarf: gimli::Dwarf<Bytes<'a>>,
    units: Vec<Unit<Bytes<'a>>>,
    typedefs: HashMap<String, At>,
    tags: HashMap<String, At>,
    functions: HashMap<String, Vec<At>>,
    /// Header, line and name of the declarations in the driver's public headers.
    public: BTreeSet<(String, u64, String)>,
    cache: HashMap<At, Type>,
}

impl<'a> Dwarf<'a> {
    /// Indexes the top-level declarations of each unit; `includes` selects functions.
    pub fn index(dwarf: gimli::Dwarf<Bytes<'a>>, includes: impl Fn(&str) -> bool) -> Result<Dwarf<'a>> {
        let mut headers = dwarf.units();
        let mut units = Vec::new();
        while let Some(header) = headers.next().context("a unit of .debug_info")? {
            units.push(dwarf.unit(header).context("a unit of .debug_info")?);
        }
        let (typedefs, tags, functions, public, cache) = Default::default();
        let mut index = Dwarf { dwarf, units, typedefs, tags, functions, public, cache };
        for unit in 0..index.units.len() {
            index.index_unit(unit, &includes).with_context(|| format!("unit {unit} of .debug_info"))?;
        }
        Ok(index)
    }

    fn index_unit(&mut self, number: usize, includes: &impl Fn(&str) -> bool) -> Result<()> {
        let unit = &self.units[number];
        let mut files: HashMap<u64, Option<String>> = HashMap::new();
        let mut tree = unit.entries_tree(None)?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            let names = match entry.tag() {
                _ if entry.has_attr(gimli::DW_AT_declaration) && entry.tag() != gimli::DW_TAG_subprogram => continue,
                gimli::DW_TAG_typedef => &mut self.typedefs,
                gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_enumeration_type => {
                    &mut self.tags
                }
                gimli::DW_TAG_subprogram => {
                    if let Some(name) = name(&self.dwarf, unit, entry).filter(|name| includes(name)) {
                        self.functions.entry(name).or_default().push((number, entry.offset()));
                    }
                    continue;
                }
                _ => continue,
            };
            let Some(name) = name(&self.dwarf, unit, entry) else { continue };
            if let hash_map::Entry::Vacant(vacant) = names.entry(name) {
                let file = match entry.attr_value(gimli::DW_AT_decl_file) {
                    Some(AttributeValue::FileIndex(file)) => Some(file),
                    _ => None,
                };
                let header = |file| public_header(&self.dwarf, unit, file);
                let file = file.and_then(|file| files.entry(file).or_insert_with(|| header(file)).clone());
                let line = value(entry, gimli::DW_AT_decl_line).unwrap_or(0);
                self.public.extend(file.map(|file| (file, line, vacant.key().clone())));
                vacant.insert((number, entry.offset()));
            }
        }
        Ok(())
    }

    /// The type that an entry of this unit has.
    fn of(&self, number: usize, entry: &Entry<'a>) -> Option<At> {
        match entry.attr_value(gimli::DW_AT_type)? {
            AttributeValue::UnitRef(offset) => Some((number, offset)),
            AttributeValue::DebugInfoRef(offset) => {
                let offset = |unit: &Unit<Bytes>| offset.to_unit_offset(&unit.header);
                self.units.iter().enumerate().find_map(|(number, unit)| Some((number, offset(unit)?)))
            }
            _ => None,
        }
    }

    fn name(&self, number: usize, entry: &Entry<'a>) -> Option<String> {
        name(&self.dwarf, &self.units[number], entry)
    }

    fn entry(&self, at: At) -> Result<Entry<'a>> {
        Ok(self.units[at.0].entry(at.1)?)
    }

    /// The entries of a sort directly inside another.
    fn inside(&self, at: At, tag: DwTag) -> Result<Vec<Entry<'a>>> {
        let mut tree = self.units[at.0].entries_tree(Some(at.1))?;
        let mut children = tree.root()?.children();
        let mut out = Vec::new();
        while let Some(child) = children.next()? {
            if child.entry().tag() == tag {
                out.push(child.entry().clone());
            }
        }
        Ok(out)
    }

    /// Whether there is no debug information.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Whether a unit says that the rest of it is in another file.
    pub fn is_elsewhere(&self) -> bool {
        self.units.iter().any(|unit| unit.dwo_name().is_ok_and(|name| name.is_some()))
    }

    /// Adds every structure of the public headers, in their order, and those that `also` selects.
    pub fn add_public(&mut self, headers: &mut Headers, also: impl Fn(&str) -> bool) {
        let also: BTreeSet<String> = self.typedefs.keys().filter(|name| also(name)).cloned().collect();
        for (file, _, name) in std::mem::take(&mut self.public) {
            if self.add(headers, &name).is_ok() && headers.layout(&name).is_ok_and(|layout| layout.size > 0) {
                headers.records.push((name, file));
            }
        }
        for name in also {
            // What cannot be read stays undeclared, and says so where it is asked for.
            let _ = self.add(headers, &name);
        }
    }

    /// Adds a type by its name.
    pub fn add(&mut self, headers: &mut Headers, name: &str) -> Result<()> {
        if headers.has(name) {
            return Ok(());
        }
        let at = self.typedefs.get(name).or_else(|| self.tags.get(name)).copied();
        let kind = self.kind(headers, Some(at.with_context(|| format!("{name} is not declared"))?), 0)?;
        // A typedef has its name already.
        if !matches!(&kind, Type::Named(own) if own == name) {
            headers.name(name, kind);
        }
        Ok(())
    }

    fn kind(&mut self, headers: &mut Headers, at: Option<At>, depth: usize) -> Result<Type> {
        ensure!(depth < MAX_DEPTH, "types inside types without an end");
        let Some(at) = at else { return Ok(Type::Plain("void".into(), 0)) };
        if let Some(cache) = self.cache.get(&at) {
            return Ok(cache.clone());
        }
        let kind = self.read_kind(headers, at, depth)?;
        self.cache.insert(at, kind.clone());
        Ok(kind)
    }

    fn read_kind(&mut self, headers: &mut Headers, at: At, depth: usize) -> Result<Type> {
        let entry = self.entry(at)?;
        let size = usize::try_from(value(&entry, gimli::DW_AT_byte_size).unwrap_or(0)).ok();
        let size = size.filter(|size| *size <= MAX_SIZE).context("a type of gigabytes")?;
        let name = self.name(at.0, &entry).unwrap_or_default();
        let of = self.of(at.0, &entry);
        Ok(match entry.tag() {
            gimli::DW_TAG_typedef => {
                if built_in(&name).is_none() {
                    let target = self.kind(headers, of, depth + 1)?;
                    headers.name(&name, target);
                }
                Type::Named(name)
            }
            gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type | gimli::DW_TAG_restrict_type => {
                self.kind(headers, of, depth + 1)?
            }
            gimli::DW_TAG_pointer_type => Type::Pointer,
            gimli::DW_TAG_array_type => {
                let one = self.kind(headers, Some(of.context("an array of nothing")?), depth + 1)?;
                let ranges = self.inside(at, gimli::DW_TAG_subrange_type)?;
                let counts = ranges.iter().map(|range| {
                    let last = value(range, gimli::DW_AT_upper_bound);
                    let count = value(range, gimli::DW_AT_count).or(last.map(|last| last.wrapping_add(1)));
                    usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX)
                });
                let counts: Vec<usize> = counts.collect();
                let all = counts.iter().try_fold(1, |all: usize, count| all.checked_mul(*count));
                ensure!(all.is_some_and(|all| all <= MAX_SIZE), "an array of gigabytes");
                Type::Array(Box::new(one), counts.into_iter().map(Number::Known).collect())
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type if entry.has_attr(gimli::DW_AT_declaration) => {
                match self.tags.get(&name).copied().filter(|other| *other != at) {
                    Some(other) => self.kind(headers, Some(other), depth + 1)?,
                    None => bail!("{name} is not declared"),
                }
            }
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type => {
                let mut members = Vec::new();
                for member in self.inside(at, gimli::DW_TAG_member)? {
                    let of = self.of(at.0, &member).context("a member without a type")?;
                    let kind = self.kind(headers, Some(of), depth + 1)?;
                    if let Type::Named(name) = &kind {
                        headers.used.insert(name.clone());
                    }
                    let place = member.attr(gimli::DW_AT_data_member_location);
                    let place = place.map(|place| place.udata_value().context("a member whose place is computed"));
                    let bit = value(&member, gimli::DW_AT_data_bit_offset);
                    let offset = place.transpose()?.or(bit.map(|bit| bit / 8)).unwrap_or(0) as usize;
                    ensure!(offset <= size, "a member outside its structure");
                    members.push(Member::at_offset(self.name(at.0, &member), kind, offset));
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

    /// The names of the indexed functions.
    pub fn function_names(&self) -> impl Iterator<Item = &String> {
        self.functions.keys()
    }

    fn prototype(&self, at: At) -> Result<String> {
        let mut parameters = Vec::new();
        for parameter in self.inside(at, gimli::DW_TAG_formal_parameter)? {
            parameters.push(self.written(self.of(at.0, &parameter), 0)?);
        }
        Ok(prototype(&self.written(self.of(at.0, &self.entry(at)?), 0)?, &parameters))
    }

    /// A type as the driver's sources write it.
    fn written(&self, at: Option<At>, depth: usize) -> Result<String> {
        ensure!(depth < MAX_DEPTH, "types inside types without an end");
        let Some(at) = at else { return Ok("void".to_owned()) };
        let entry = self.entry(at)?;
        let name = self.name(at.0, &entry).unwrap_or_default();
        let of = || self.written(self.of(at.0, &entry), depth + 1);
        Ok(match entry.tag() {
            gimli::DW_TAG_pointer_type => format!("{} *", of()?),
            gimli::DW_TAG_const_type => format!("const {}", of()?),
            gimli::DW_TAG_volatile_type => format!("volatile {}", of()?),
            gimli::DW_TAG_restrict_type => of()?,
            gimli::DW_TAG_structure_type => format!("struct {name}"),
            gimli::DW_TAG_union_type => format!("union {name}"),
            gimli::DW_TAG_enumeration_type => format!("enum {name}"),
            gimli::DW_TAG_base_type => source_name(&name),
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
        let at = *self.tags.get(structure)?;
        let members = self.inside(at, gimli::DW_TAG_member).ok()?;
        let member = members.iter().find(|entry| self.name(at.0, entry).as_deref() == Some(member))?;
        let at = self.of(at.0, member)?;
        let pointer = self.entry(at).ok().filter(|entry| entry.tag() == gimli::DW_TAG_pointer_type)?;
        self.pointed_to_by_last(self.of(at.0, &pointer)?)
    }

    fn pointed_to_by_last(&self, function: At) -> Option<String> {
        let mut at = self.of(function.0, self.inside(function, gimli::DW_TAG_formal_parameter).ok()?.last()?)?;
        let mut is_pointer = false;
        for _ in 0..MAX_DEPTH {
            let entry = self.entry(at).ok()?;
            match entry.tag() {
                gimli::DW_TAG_pointer_type if !is_pointer => is_pointer = true,
                gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type => {}
                // A pointer with a name of its own, and what it points to.
                gimli::DW_TAG_typedef if !is_pointer => {}
                _ => return self.name(at.0, &entry).filter(|_| is_pointer),
            }
            at = self.of(at.0, &entry)?;
        }
        None
    }

    /// Structures of a control's class, by the name that such structures have.
    pub fn parameters_of_class(&self, class: u32) -> impl Iterator<Item = &String> {
        let start = format!("NV{class:04X}_CTRL_");
        self.typedefs.keys().filter(move |name| name.starts_with(&start) && name.contains("_PARAM"))
    }
}

fn name<'a>(dwarf: &gimli::Dwarf<Bytes<'a>>, unit: &Unit<Bytes<'a>>, entry: &Entry<'a>) -> Option<String> {
    let text = dwarf.attr_string(unit, entry.attr_value(gimli::DW_AT_name)?).ok()?;
    Some(text.to_string_lossy().into_owned())
}

fn value(entry: &Entry, attribute: DwAt) -> Option<u64> {
    entry.attr(attribute)?.udata_value()
}

/// A function's types as the driver's sources write them.
pub fn prototype(result: &str, parameters: &[String]) -> String {
    match parameters {
        [] => format!("{result} (void)"),
        some => format!("{result} ({})", some.join(", ")),
    }
}

/// The name that sources use: `unsigned long` for `long unsigned int`.
pub fn source_name(name: &str) -> String {
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
