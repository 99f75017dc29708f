//! The exported methods of a built driver, out of its tables: they are data, so they are there without debug information,
//! too.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::super::tree::{Flags, Reach};
use super::elf::{Elf, Place};
use super::number;

/// An entry of a table.
#[derive(Debug)]
pub struct Method {
    pub cmd: u32,
    pub flags: u64,
    pub access_right: u64,
    /// Bytes of the parameters; 0 for a method without.
    pub size: usize,
    /// The class that the table belongs to.
    pub class: String,
    /// What the driver calls the method; drivers are built with these names in.
    pub name: Option<String>,
    /// The function that is called; none where the firmware answers.
    pub function: Option<String>,
}

/// Where an entry of a table has what, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    pub size: usize,
    pub function: usize,
    pub flags: usize,
    pub access_right: usize,
    pub number: usize,
    pub parameters: usize,
    pub class: usize,
    pub name: Option<usize>,
}

/// The forms of every release from 515.43.04 to 595.45.04: with the method's name, and without it. Debug information goes
/// first.
const FORMS: [Form; 2] = [
    Form { size: 40, function: 0, flags: 8, access_right: 12, number: 16, parameters: 20, class: 24, name: Some(32) },
    Form { size: 32, function: 0, flags: 8, access_right: 12, number: 16, parameters: 20, class: 24, name: None },
];

/// How a table is called, with the name of its class behind it.
pub const TABLE: &str = "__nvoc_exported_method_def_";

/// Every entry of every table.
pub fn methods(elf: &Elf, form: Option<Form>) -> Result<Vec<Method>> {
    let mut out = Vec::new();
    for (name, place, size) in elf.objects(TABLE) {
        let class = name[TABLE.len()..].to_owned();
        let data = elf.data(place, size)?;
        let leads = elf.pointers(place, size)?;
        let fits = |form: &&Form| {
            size > 0
                && size % form.size == 0
                && (0..size).step_by(form.size).all(|at| leads.contains_key(&(at + form.class)))
        };
        let form =
            form.as_ref().into_iter().chain(&FORMS).find(fits).with_context(|| {
                format!("the table {name} of {size} bytes is in a form that this reader does not know")
            })?;
        for (start, entry) in (0..size).step_by(form.size).zip(data.chunks(form.size)) {
            let number = |at: usize| number(entry, at).with_context(|| format!("the table {name} ends early"));
            let lead = |at: usize| leads.get(&(start + at));
            out.push(Method {
                cmd: number(form.number)?,
                flags: number(form.flags)?.into(),
                access_right: number(form.access_right)?.into(),
                size: number(form.parameters)? as usize,
                class: class.clone(),
                name: form.name.and_then(lead).and_then(|place| elf.text(*place)),
                function: lead(form.function).and_then(|place: &Place| elf.function_at(*place)),
            });
        }
    }
    Ok(out)
}

/// Which bits of a method's flags mean what. They moved once; `rmapi/control.h` of the releases
/// says how.
const FLAGS: [Flags; 2] = [
    // 515.43.04 to 550.163.01
    Flags { any: 0x10, root: 0x4 | 0x100, internal: 0x400 },
    // 555.58.02 to 595.45.04
    Flags { any: 0x8, root: 0x4 | 0x20, internal: 0x80 },
];

/// Who may call what, by the meaning of the flags that agrees with what is known of methods otherwise. None if no known
/// meaning does.
///
/// - Of the bit for the driver's own the names say it: of methods that are called internal nine in ten have it, of the
///   others one in twenty (counted in 535, 550 and 595).
/// - Of the bits for anybody and for root the methods say it that programs are known to call: none of them is the driver's
///   own in any release. Where a bit has moved they would be, and with them what is new.
pub fn meaning(methods: &[Method], is_called: impl Fn(&Method) -> bool) -> Option<Flags> {
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

/// The structure of a class that a method's name spells: `subdeviceCtrlCmdGpuGetPids` is `NV2080_CTRL_GPU_GET_PIDS_PARAMS`.
pub fn spelled<'a>(method: &Method, structures: impl Iterator<Item = &'a String>) -> Option<String> {
    let plain = |text: &str| text.replace('_', "").to_lowercase();
    let (_, said) = method.name.as_ref()?.split_once("CtrlCmd")?;
    let wanted = plain(said);
    let all: BTreeMap<String, &String> = structures
        .filter_map(|name| {
            let (_, said) = name.split_once("_CTRL_")?;
            let said = said.strip_prefix("CMD_").unwrap_or(said);
            Some((plain(said.split("_PARAM").next()?), name))
        })
        .collect();
    all.get(&wanted).map(|name| (*name).clone())
}

/// Methods that two classes export with the same parameters are one.
pub fn without_repeats(methods: Vec<Method>) -> Vec<Method> {
    let mut seen = BTreeSet::new();
    methods.into_iter().filter(|method| seen.insert((method.cmd, method.size))).collect()
}
