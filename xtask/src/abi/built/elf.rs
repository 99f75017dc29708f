//! Reads an ELF file: sections after relocation, symbols, strings.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::{Context, Result, ensure};
use object::read::{Object, ObjectSection, ObjectSymbol};
use object::{CompressionFormat, ObjectKind, RelocationKind, RelocationTarget, SectionIndex, SymbolKind};

/// A byte of a section.
pub type Place = (SectionIndex, u64);

pub struct Elf<'a> {
    file: object::File<'a>,
    functions: HashMap<Place, String>,
    /// Functions that the file defines.
    pub defined: BTreeSet<String>,
    /// Undefined symbols.
    pub undefined: BTreeSet<String>,
}

impl<'a> Elf<'a> {
    /// Parses a 64-bit little-endian file.
    pub fn parse(bytes: &'a [u8]) -> Result<Elf<'a>> {
        let file = object::File::parse(bytes).context("the file is damaged or cut short")?;
        ensure!(file.is_64() && file.is_little_endian(), "an ELF file, and not of a 64-bit little-endian machine");
        let (mut functions, mut defined, mut undefined) = (HashMap::new(), BTreeSet::new(), BTreeSet::new());
        for symbol in file.symbols() {
            let name = symbol.name().context("a symbol's name")?;
            if symbol.is_undefined() {
                undefined.insert(name.to_owned());
            } else if symbol.kind() == SymbolKind::Text
                && let Some(section) = symbol.section_index()
            {
                functions.entry((section, symbol.address())).or_insert_with(|| name.to_owned());
                defined.insert(name.to_owned());
            }
        }
        Ok(Elf { file, functions, defined, undefined })
    }

    /// Whether there is a section of that name.
    pub fn has(&self, section: &str) -> bool {
        self.file.section_by_name(section).is_some()
    }

    /// A section after relocation; empty if it does not exist.
    pub fn section(&self, name: &str) -> Result<Cow<'a, [u8]>> {
        let Some(section) = self.file.section_by_name(name) else { return Ok(Cow::Borrowed(&[])) };
        let packed = section.compressed_file_range().with_context(|| format!("the section {name}"))?;
        ensure!(
            packed.format == CompressionFormat::None,
            "{name} is compressed: `objcopy --decompress-debug-sections` makes a file that can be read"
        );
        let data = section.data().with_context(|| format!("the section {name} is cut short"))?;
        if self.file.kind() != ObjectKind::Relocatable {
            return Ok(Cow::Borrowed(data));
        }
        let mut out = Cow::Borrowed(data);
        for (offset, relocation) in section.relocations() {
            if relocation.kind() != RelocationKind::Absolute {
                continue;
            }
            let RelocationTarget::Symbol(target) = relocation.target() else { continue };
            let symbol = self.file.symbol_by_index(target).with_context(|| format!("a relocation of {name}"))?;
            let value = symbol.address().wrapping_add_signed(relocation.addend()).to_le_bytes();
            let size = usize::from(relocation.size() / 8).min(8);
            let at = usize::try_from(offset)?;
            let place = out.to_mut().get_mut(at..at.saturating_add(size));
            place.with_context(|| format!("a relocation outside {name}"))?.copy_from_slice(&value[..size]);
        }
        Ok(out)
    }

    /// Data symbols with this prefix: name, place, size.
    pub fn objects(&self, start: &str) -> Vec<(String, Place, usize)> {
        let named = self.file.symbols().filter_map(|symbol| {
            let name = symbol.name().ok().filter(|name| name.starts_with(start) && symbol.size() > 0)?;
            let section = self.file.section_by_index(symbol.section_index()?).ok()?;
            // Sections of an object begin at 0, those of a linked file at an address.
            let at = symbol.address().wrapping_sub(section.address());
            Some((name.to_owned(), (section.index(), at), symbol.size() as usize))
        });
        let mut out: Vec<(String, Place, usize)> = named.collect();
        out.sort_by(|a, b| (&a.0, a.1.1).cmp(&(&b.0, b.1.1)));
        out
    }

    pub fn data(&self, place: Place, size: usize) -> Result<&'a [u8]> {
        let data = self.file.section_by_index(place.0)?.data().context("a section is cut short")?;
        let start = usize::try_from(place.1)?;
        data.get(start..start.saturating_add(size)).context("data outside its section")
    }

    /// The targets of the pointers in some data, by offset.
    pub fn pointers(&self, place: Place, size: usize) -> Result<BTreeMap<usize, Place>> {
        let mut out = BTreeMap::new();
        for (offset, relocation) in self.file.section_by_index(place.0)?.relocations() {
            let Some(at) = offset.checked_sub(place.1).and_then(|at| usize::try_from(at).ok()) else { continue };
            let RelocationTarget::Symbol(target) = relocation.target() else { continue };
            if at >= size {
                continue;
            }
            let symbol = self.file.symbol_by_index(target).context("a relocation of a table")?;
            // Another object's leads somewhere, and nothing more is known.
            let section = symbol.section_index().unwrap_or(SectionIndex(0));
            out.insert(at, (section, symbol.address().wrapping_add_signed(relocation.addend())));
        }
        Ok(out)
    }

    /// The function at this place.
    pub fn function_at(&self, place: Place) -> Option<String> {
        self.functions.get(&place).cloned()
    }

    /// The string at this place.
    pub fn text(&self, place: Place) -> Option<String> {
        let data = self.file.section_by_index(place.0).ok()?.data().ok()?;
        let rest = data.get(usize::try_from(place.1).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok().map(str::to_owned)
    }
}
