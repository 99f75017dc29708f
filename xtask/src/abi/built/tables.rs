//! Reads the exported methods of a built driver from its tables, which exist without debug information.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result};

use super::super::tree::{Flags, Reach};
use super::elf::Elf;
use super::number;

/// An entry of a table.
#[derive(Debug)]
pub struct Method {
    pub cmd: u32,
    pub flags: u64,
    pub access_right: u64,
    /// The size of the parameters; 0 if there are none.
    pub size: usize,
    /// The class that the table belongs to.
    pub class: String,
    /// The method's name, which is in built drivers.
    pub name: Option<String>,
    /// The called function; none if the firmware answers.
    pub function: Option<String>,
}

/// The size of a structure, and its fields' offsets by name.
pub struct Shape {
    pub size: usize,
    pub fields: HashMap<String, usize>,
}

/// An entry in releases 515.43.04 to 595.45.04, and its size with and without the method's name.
const FIELDS: [(&str, usize); 7] = [
    ("pFunc", 0),
    ("flags", 8),
    ("accessRight", 12),
    ("methodId", 16),
    ("paramSize", 20),
    ("pClassInfo", 24),
    ("func", 32),
];
const SIZES: [usize; 2] = [40, 32];

/// The prefix of a table's symbol, before its class.
pub const TABLE: &str = "__nvoc_exported_method_def_";

/// All entries of all tables. A shape from debug information takes precedence.
pub fn methods(elf: &Elf, shape: Option<Shape>) -> Result<Vec<Method>> {
    let known = SIZES.map(|size| {
        let fields = FIELDS.iter().filter(|(_, at)| *at < size).map(|(name, at)| ((*name).to_owned(), *at));
        Shape { size, fields: fields.collect() }
    });
    let mut out = Vec::new();
    for (name, place, size) in elf.objects(TABLE) {
        let data = elf.data(place, size)?;
        let leads = elf.pointers(place, size)?;
        let fits = |shape: &&Shape| {
            let has_class = |entry: usize| leads.contains_key(&(entry + shape.fields["pClassInfo"]));
            FIELDS[..6].iter().all(|(name, _)| shape.fields.contains_key(*name))
                && size.checked_rem(shape.size) == Some(0)
                && (0..size).step_by(shape.size).all(has_class)
        };
        let shape =
            shape.iter().chain(&known).find(fits).with_context(|| {
                format!("the table {name} of {size} bytes is in a form that this reader does not know")
            })?;
        for (start, entry) in (0..size).step_by(shape.size).zip(data.chunks(shape.size)) {
            let number =
                |field| number(entry, shape.fields[field]).with_context(|| format!("the table {name} ends early"));
            let lead = |field| leads.get(&(start + shape.fields.get(field)?)).copied();
            out.push(Method {
                cmd: number("methodId")?,
                flags: number("flags")?.into(),
                access_right: number("accessRight")?.into(),
                size: number("paramSize")? as usize,
                class: name[TABLE.len()..].to_owned(),
                name: lead("func").and_then(|place| elf.text(place)),
                function: lead("pFunc").and_then(|place| elf.function_at(place)),
            });
        }
    }
    Ok(out)
}

/// The layouts of a method's flags. They changed once. Source: `rmapi/control.h` of the releases.
const FLAGS: [Flags; 2] = [
    // 515.43.04 to 550.163.01
    Flags { any: 0x10, root: 0x4 | 0x100, internal: 0x400 },
    // 555.58.02 to 595.45.04
    Flags { any: 0x8, root: 0x4 | 0x20, internal: 0x80 },
];

/// The layout of the flags that is consistent with other facts about the methods; none if no known layout is.
///
/// - The bit for internal methods: nine in ten methods with an internal name have it, and one in twenty of the others (counted in 535, 550 and
///   595).
/// - The bits for anybody and for root: no method that programs call is internal in any release. In a wrong layout such methods would be, and
///   new ones with them.
pub fn flag_layout(methods: &[Method], is_called: impl Fn(&Method) -> bool) -> Option<Flags> {
    let (internal, others): (Vec<&Method>, Vec<&Method>) =
        methods.iter().partition(|method| is_called_internal(method));
    let share = |some: &[&Method], bit: u64| {
        some.iter().filter(|method| method.flags & bit != 0).count() * 100 / some.len().max(1)
    };
    let agrees = |flags: &&Flags| {
        share(&internal, flags.internal) >= 80
            && share(&others, flags.internal) <= 20
            && methods
                .iter()
                .filter(|method| is_called(method))
                .all(|method| flags.reach(method.flags, method.access_right) != Reach::Kernel)
    };
    FLAGS.iter().find(agrees).copied()
}

/// Whether a method's name says that only the driver itself calls it.
pub fn is_called_internal(method: &Method) -> bool {
    method.name.as_ref().is_some_and(|name| name.contains("Internal"))
}

/// The structure that belongs to a method's name: `subdeviceCtrlCmdGpuGetPids` has `NV2080_CTRL_GPU_GET_PIDS_PARAMS`.
pub fn parameters_by_name<'a>(method: &Method, structures: impl Iterator<Item = &'a String>) -> Option<String> {
    let plain = |text: &str| text.replace('_', "").to_lowercase();
    let expected = plain(method.name.as_ref()?.split_once("CtrlCmd")?.1);
    let spells = |name: &&String| {
        let name = name.split_once("_CTRL_").map_or("", |(_, name)| name.strip_prefix("CMD_").unwrap_or(name));
        name.split("_PARAM").next().map(plain).as_ref() == Some(&expected)
    };
    structures.filter(spells).max().cloned()
}

/// Merges methods that two classes export with the same parameters.
pub fn deduplicate(methods: Vec<Method>) -> Vec<Method> {
    let mut seen = BTreeSet::new();
    methods.into_iter().filter(|method| seen.insert((method.cmd, method.size))).collect()
}
