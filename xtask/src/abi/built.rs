//! Reads a built driver: an object (`nvidia.ko`, `nv-kernel.o`, `nv-interface.o`), or the BTF of a running kernel. Fills the same tree
//! as sources do, and lists the facts that are missing.
//!
//! Method tables are data, so an object has them unless symbols were stripped. Structures and prototypes are in its debug information. The
//! names of controls and the meanings of flags are macros, which an object does not have.

mod btf;
mod dwarf;
mod elf;
mod tables;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use gimli::{EndianSlice, LittleEndian, SectionId};
use mpu_abi::{Release, Row};

use super::c::{Headers, Type};
use super::tree::{Carrier, Control, Flags, Reach, Tree, is_escape};
use dwarf::Dwarf;
use elf::Elf;
use tables::{Method, Shape, TABLE, deduplicate, flag_layout, is_called_internal, methods, parameters_by_name};

/// The driver's BTF in a running kernel.
pub const HOST: &str = "/sys/kernel/btf/nvidia";

/// The text before the release in a closed driver. In an open one, another text is there.
const CLOSED: &str = "UNIX x86_64 Kernel Module  ";

/// Why a host that runs the driver can lack its BTF.
const WHY_NO_TYPES: &str = "the module was built without BTF (most builds of it are: they have no vmlinux at hand), or the \
kernel has no CONFIG_DEBUG_INFO_BTF_MODULES. Its nvidia.ko or its sources tell more";

/// Controls that every driver has. If few of them are found, the source is only a part of a driver, or this reader does not understand it.
/// Then it is unknown whether anything is new.
pub struct Expected<'a> {
    pub rows: &'a [Row],
    /// Numbers of controls by their structures, for controls with and without a row.
    pub numbers: BTreeMap<String, u32>,
}

impl Expected<'_> {
    /// Whether programs call this control. A row's number counts only with a row's size: a later release can give the number to another control.
    pub fn is_called(&self, cmd: u32, size: usize) -> bool {
        let mut rows = self.rows.iter().filter(|row| row.cmd.0 == cmd).peekable();
        match rows.peek() {
            Some(_) => rows.any(|row| row.params_size as usize == size),
            None => self.numbers.values().any(|known| *known == cmd),
        }
    }

    /// Returns a sentence about the missing controls, if fewer than two thirds of the controls that every driver has are found.
    ///
    /// By the rows, ten controls are in 515.43.04 and in the newest driver. The tables of releases up to 595.45.04 have nine of them, and the
    /// largest part of a driver (the subdevice's tables) has five. Two thirds are seven: a later release may drop a control, and a part does
    /// not pass for a whole driver.
    pub fn too_few(&self, found: impl Fn(u32) -> bool) -> Option<String> {
        let lasting = self.rows.iter().filter(|row| is_in_every_release(row));
        let all: BTreeSet<&str> = lasting.clone().map(|row| row.control.name()).collect();
        let here: BTreeSet<&str> = lasting.filter(|row| found(row.cmd.0)).map(|row| row.control.name()).collect();
        let missing: Vec<&str> = all.difference(&here).copied().collect();
        (here.len() * 3 < all.len() * 2).then(|| {
            let (count, all, missing) = (here.len(), all.len(), missing.join(", "));
            format!(
                "of {all} controls that every driver has {count} are in it, too few for a whole driver: what else is missing is not \
known. Not found: {missing}"
            )
        })
    }
}

/// Whether every open driver has a row's control.
fn is_in_every_release(row: &Row) -> bool {
    let is_ours = mpu_abi::find(row.cmd, row.params_size).is_some();
    let has = |release| mpu_abi::row_of(row.control, release).is_some();
    // Made-up rows of a test count, too.
    !is_ours || (has(Release::new(515, 43, 4)) && has(Release::new(u16::MAX, 0, 0)))
}

/// Reads an object or a BTF file.
pub fn read(path: &Path, expected: &Expected) -> Result<Tree> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let tree = match bytes.as_slice() {
        [0x7f, b'E', b'L', b'F', ..] => object(&bytes, expected),
        [0x9f, 0xeb, ..] => btf::tree(&bytes, &path.with_file_name("vmlinux"), expected),
        [0xfd, b'7', b'z', ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x1f, 0x8b, ..] => {
            Err(anyhow::anyhow!("compressed: unpack it first (xz -dk, zstd -d, gzip -dk)"))
        }
        _ => Err(anyhow::anyhow!("neither an ELF object nor BTF, and no folder")),
    };
    tree.with_context(|| format!("{}", path.display()))
}

/// Reads a running kernel's BTF, and the names of the driver's functions.
pub fn read_host(root: &Path, expected: &Expected) -> Result<Tree> {
    let symbols = std::fs::read_to_string(root.join("proc/kallsyms")).unwrap_or_default();
    let functions: Vec<&str> = functions_of_module(&symbols, "[nvidia]").filter(|name| is_helper(name)).collect();
    let types = root.join("sys/kernel/btf/nvidia");
    let mut tree = if types.exists() {
        read(&types, expected)?
    } else {
        ensure!(
            !functions.is_empty(),
            "no driver is loaded here: /proc/kallsyms has none of its functions, and {HOST} is not there"
        );
        let mut tree = Tree::of(Headers::default());
        (tree.has_fields, tree.declares_all, tree.has_functions) = (false, false, true);
        tree.cannot_tell.push(format!("{HOST} is not there: {WHY_NO_TYPES}"));
        tree
    };
    tree.is_whole = !functions.is_empty();
    for name in functions {
        tree.functions.entry(name.to_owned()).or_default();
    }
    let version = std::fs::read_to_string(root.join("sys/module/nvidia/version")).ok();
    tree.release = version.map(|version| version.trim().to_owned());
    Ok(tree)
}

/// A module's functions in `/proc/kallsyms`: `0000000000000000 t name\t[module]`.
fn functions_of_module<'a>(symbols: &'a str, module: &'a str) -> impl Iterator<Item = &'a str> {
    symbols.lines().filter_map(move |line| {
        let mut words = line.split_whitespace();
        let (_, sort, name) = (words.next()?, words.next()?, words.next()?);
        (words.next()? == module && sort.eq_ignore_ascii_case("t")).then_some(name)
    })
}

fn is_helper(name: &str) -> bool {
    ["os_", "rm_", "nvidia_"].iter().any(|start| name.starts_with(start))
}

fn object(bytes: &[u8], expected: &Expected) -> Result<Tree> {
    let elf = Elf::parse(bytes)?;
    let has_tables = !elf.objects(TABLE).is_empty();
    let has_entry = elf.defined.contains("rm_ioctl");
    let has_core = has_tables || has_entry;
    let has_interface = ["os_memcpy_to_user", "os_alloc_mem"].iter().any(|name| elf.defined.contains(*name));
    let is_whole = elf.has(".gnu.linkonce.this_module") || has_entry && has_interface;
    if !has_core && !has_interface {
        bail!("none of the driver's functions is in it: is it nvidia.ko or a part of it, with its symbols?");
    }
    let sections = gimli::DwarfSections::load(|id| match id {
        SectionId::DebugInfo | SectionId::DebugAbbrev | SectionId::DebugStr => elf.section(id.name()),
        SectionId::DebugLine | SectionId::DebugLineStr | SectionId::DebugStrOffsets => elf.section(id.name()),
        _ => Ok(Cow::Borrowed(&[][..])),
    })?;
    let dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));

    // Tables with a known layout name their functions. If only the debug information has the layout, every function is indexed.
    let first = methods(&elf, None).unwrap_or_default();
    let functions: BTreeSet<&str> = first.iter().filter_map(|method| method.function.as_deref()).collect();
    let is_method = |name: &str| functions.contains(name) || functions.is_empty() && elf.defined.contains(name);
    let mut dwarf = Dwarf::index(dwarf, |name| is_helper(name) || is_method(name))?;
    let mut headers = Headers::default();
    dwarf.add_public(&mut headers, is_escape);
    let shape = shape(&mut dwarf, &mut headers, "NVOC_EXPORTED_METHOD_DEF");
    let methods = deduplicate(methods(&elf, shape)?);
    let flags = flag_layout(&methods, |method| expected.is_called(method.cmd, method.size));
    let mut controls = controls(&methods, flags, &mut dwarf, &mut headers);
    controls.sort_by_key(|control| control.cmd);
    let descriptors = descriptors(&elf, &mut dwarf, &mut headers).unwrap_or_default();
    let (release, is_closed) = release(&elf)?;
    let too_few = expected.too_few(|cmd| methods.iter().any(|method| method.cmd == cmd)).filter(|_| has_tables);

    // Controls with parameters that programs may call; and those with unknown fields.
    let is_open = |control: &&Control| control.reach != Reach::Kernel && control.parameters.is_some();
    let is_unknown =
        |control: &&Control| control.parameters.as_ref().is_some_and(|parameters| headers.opaque(parameters).is_some());
    let open = controls.iter().filter(is_open).count();
    let unknown = controls.iter().filter(is_open).filter(is_unknown);
    let unknown: Vec<String> = unknown.map(|control| format!("{:#010x}", control.cmd)).collect();
    let few_fields = match unknown.len() == open {
        true => "of controls the numbers and the sizes of parameters are known; no fields".to_owned(),
        false => format!("of {} controls only the size of parameters is known: {}", unknown.len(), unknown.join(" ")),
    };
    let has_fields = has_tables && has_entry && too_few.is_none() && unknown.is_empty();
    let mut tree = Tree { release, has_tables, is_whole, has_fields, controls, ..Tree::of(headers) };
    (tree.declares_all, tree.has_functions) = (false, true);
    carriers(&mut tree, &descriptors);
    // In a part of a driver, functions of other parts have declarations only.
    let is_known = |name: &&String| elf.defined.contains(*name) || !is_whole && elf.undefined.contains(*name);
    let names = elf.defined.iter().chain(dwarf.function_names().filter(is_known)).filter(|name| is_helper(name));
    tree.functions = names.map(|name| (name.clone(), dwarf.prototypes(name))).collect();

    let sentences = [
        (!has_core, "this is the driver's interface to the kernel alone (nv-interface.o): controls are in nv-kernel.o"),
        (
            has_core && is_closed,
            "this is the closed driver: it has no method tables, and which controls it has is not known",
        ),
        (
            has_core && !is_closed && !has_tables,
            "no method table is in it by name, as when symbols were stripped: which controls it has is not known",
        ),
        (
            has_core && !has_entry,
            "rm_ioctl is not in it: this is a piece of the driver's core, and what other pieces have is not known",
        ),
        (
            has_entry && !is_whole,
            "this is the driver's core alone (nv-kernel.o): functions of nv-interface.o are as the core declares them",
        ),
        (
            dwarf.is_empty(),
            "no debug information (DWARF): no structure and no signature is known, only names of functions",
        ),
        (dwarf.is_elsewhere(), "its debug information is in other files (.dwo, -gsplit-dwarf), which are not read"),
        (has_tables && !unknown.is_empty(), &few_fields),
        (
            has_tables && flags.is_none(),
            "the flags of methods agree with no release that is known: who may call is not known",
        ),
        (too_few.is_some(), too_few.as_deref().unwrap_or_default()),
        (true, "notifications, streams and names of controls need the sources"),
    ];
    tree.cannot_tell
        .extend(sentences.iter().filter(|(applies, _)| *applies).map(|(_, sentence)| (*sentence).to_owned()));
    Ok(tree)
}

/// The layout of a structure, from the debug information.
fn shape(dwarf: &mut Dwarf, headers: &mut Headers, name: &str) -> Option<Shape> {
    dwarf.add(headers, name).ok()?;
    let fields = headers.fields(name).ok()?.into_iter().map(|field| (field.name, field.offset)).collect();
    Some(Shape { size: headers.layout(name).ok()?.size, fields })
}

/// Controls with the types of their parameters. The type comes from the called function, from the class's function pointer if the firmware
/// answers, or from the method's name. It must have the size in the table.
fn controls(methods: &[Method], flags: Option<Flags>, dwarf: &mut Dwarf, headers: &mut Headers) -> Vec<Control> {
    let mut out = Vec::new();
    for method in methods {
        let name =
            method.name.clone().or(method.function.clone()).unwrap_or_else(|| format!("one of {}", method.class));
        let reach = match flags {
            Some(flags) => flags.reach(method.flags, method.access_right),
            None if is_called_internal(method) => Reach::Kernel,
            None => Reach::Anybody,
        };
        let member = format!("__{}__", method.name.as_deref().unwrap_or_default());
        let structures = [format!("NVOC_VTABLE__{}", method.class), method.class.clone()];
        let candidates = [method.function.as_deref().and_then(|function| dwarf.last_parameter(function))]
            .into_iter()
            .chain(structures.iter().map(|structure| dwarf.last_parameter_of_member(structure, &member)))
            .chain([parameters_by_name(method, dwarf.parameters_of_class(method.cmd >> 16))])
            .flatten()
            .collect::<Vec<String>>();
        let fits = |name: &String| {
            dwarf.add(headers, name).is_ok() && headers.layout(name).is_ok_and(|layout| layout.size == method.size)
        };
        let parameters = match candidates.into_iter().find(fits) {
            _ if method.size == 0 => None,
            Some(known) => Some(known),
            None => {
                let unknown = format!("the parameters of {name}");
                headers.name(&unknown, Type::Opaque(method.size));
                Some(unknown)
            }
        };
        out.push(Control { cmd: method.cmd, name, reach, parameters });
    }
    out
}

/// Classes with the bytes of their allocation parameters.
fn descriptors(elf: &Elf, dwarf: &mut Dwarf, headers: &mut Headers) -> Option<BTreeMap<u32, usize>> {
    let Shape { size: stride, fields } = shape(dwarf, headers, "RS_RESOURCE_DESC")?;
    let (class, size) = (fields.get("externalClassId")?, fields.get("allocParamSize")?);
    let (_, place, whole) = elf.objects("g_RsResourceDescList").pop()?;
    let data = elf.data(place, whole).ok()?;
    let entries = data.chunks_exact(stride.max(1));
    Some(entries.filter_map(|entry| Some((number(entry, *class)?, number(entry, *size)? as usize))).collect())
}

/// Four bytes of some data.
fn number(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*data.get(at..)?.first_chunk()?))
}

/// Other structures that programs use, found by their names: allocation parameters, escapes, and mapped pages in class headers.
fn carriers(tree: &mut Tree, descriptors: &BTreeMap<u32, usize>) {
    let mut sizes = BTreeSet::new();
    for (name, file) in &tree.headers.records {
        let Ok(layout) = tree.headers.layout(name) else { continue };
        // NVA084_ALLOC_PARAMETERS belongs to a class by its number, NV_CHANNEL_ALLOC_PARAMS to any that takes its size.
        let class = name.get(2..6).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let takes = match class {
            Some(class) => descriptors.get(&class) == Some(&layout.size),
            None => descriptors.is_empty() || descriptors.values().any(|size| *size == layout.size),
        };
        if name.contains("_ALLOC") && name.contains("_PARAM") && takes {
            tree.carriers.push(Carrier::new("allocation", file, name));
            sizes.insert(layout.size);
        }
    }
    add_escapes(tree);
    // Four bytes are a handle or a number, and a process's only by what no type says.
    let unknown = descriptors.iter().filter(|(_, size)| **size > 4 && !sizes.contains(*size));
    let unknown: Vec<String> = unknown.map(|(class, _)| format!("{class:#06x}")).collect();
    if !unknown.is_empty() {
        let (count, unknown) = (unknown.len(), unknown.join(" "));
        tree.cannot_tell.push(format!(
            "the allocation parameters of {count} classes are of a type that no code here uses: {unknown}"
        ));
    }
    tree.read_classes();
}

/// Escapes by the names of their structures.
fn add_escapes(tree: &mut Tree) {
    let names = tree.headers.names().filter(|name| is_escape(name));
    let escapes: Vec<Carrier> = names.map(|name| Carrier::new("escape", "its name", name)).collect();
    tree.escapes = escapes.len();
    tree.carriers.extend(escapes);
}

/// The release in the driver's load message, and whether it is the closed driver.
fn release(elf: &Elf) -> Result<(Option<String>, bool)> {
    let marks = [(".modinfo", "version="), (".rodata", "UNIX Open Kernel Module for x86_64  "), (".rodata", CLOSED)];
    for (section, before) in marks {
        let data = elf.section(section)?;
        let at = data.windows(before.len()).position(|part| part == before.as_bytes());
        let text = at.map(|at| &data[at + before.len()..]).unwrap_or_default();
        let end = text.iter().position(|byte| !(byte.is_ascii_digit() || *byte == b'.')).unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..end]).into_owned();
        if text.contains('.') {
            let data = elf.section(".rodata")?;
            return Ok((Some(text), data.windows(CLOSED.len()).any(|part| part == CLOSED.as_bytes())));
        }
    }
    Ok((None, false))
}
