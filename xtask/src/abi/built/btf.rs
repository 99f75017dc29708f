//! Reads the driver's BTF of a running kernel (`/sys/kernel/btf/nvidia`), or a copy with its kernel's `vmlinux` beside it. It has
//! structures and prototypes, but no tables and no numbers: controls are found by the names of their structures.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use btf_rs::{Btf, BtfType, Type as Kind};

use super::super::c::{Headers, Member, Number, Record, Type, built_in};
use super::super::judge::is_sensitive;
use super::super::tree::{Carrier, Control, Reach, Tree, is_escape};
use super::dwarf::{MAX_DEPTH, MAX_SIZE, prototype as written_prototype, source_name};
use super::{Expected, add_escapes, is_helper};

/// Reads the types of a module; `base` is the file with the types of its kernel.
pub fn tree(bytes: &[u8], base: &Path, expected: &Expected) -> Result<Tree> {
    let btf = if base.is_file() {
        let kernel = std::fs::read(base).with_context(|| format!("cannot read {}", base.display()))?;
        let kernel = Btf::from_bytes(&kernel).with_context(|| format!("{}", base.display()))?;
        Btf::from_split_bytes(bytes, &kernel)
            .context("damaged, cut short, or of another kernel than the vmlinux beside it")?
    } else {
        Btf::from_bytes(bytes).context("damaged, cut short, or a supplement to a vmlinux that is not beside it")?
    };
    let mut reader = Reader { btf: &btf, headers: Headers::default() };
    let (mut parameters, mut unreadable) = (BTreeSet::new(), BTreeSet::new());
    let mut functions: HashMap<String, BTreeSet<String>> = HashMap::new();
    let (first, last) = btf.split().unwrap_or(btf.base()).type_id_range();
    for id in first.max(1)..=last {
        match btf.resolve_type_by_id(id)? {
            Kind::Typedef(kind) => {
                let name = reader.name(&kind);
                if !is_escape(&name) && !is_parameters(&name) {
                    continue;
                }
                // A structure may hold a type that this reader does not know, or one that has no size.
                if reader.kind(id, 0).is_err() || reader.headers.fields(&name).is_err() {
                    unreadable.insert(name);
                } else if is_parameters(&name) {
                    parameters.insert(name);
                }
            }
            Kind::Func(kind) if is_helper(&reader.name(&kind)) => {
                let prototype = reader.prototype(kind.get_type_id().unwrap_or(0))?;
                functions.entry(reader.name(&kind)).or_default().insert(prototype);
            }
            _ => {}
        }
    }
    // The driver's own cannot be called, whatever is in it.
    unreadable.retain(|name| !name.contains("_INTERNAL_"));
    let found: BTreeSet<u32> = parameters.iter().filter_map(|name| expected.numbers.get(name)).copied().collect();
    let too_few = expected.too_few(|cmd| found.contains(&cmd));
    let has_fields = too_few.is_none() && unreadable.is_empty();
    let mut tree = Tree { functions, has_functions: true, has_fields, ..Tree::of(reader.headers) };
    tree.declares_all = false;
    for name in &parameters {
        let fields = tree.headers.fields(name).unwrap_or_default();
        if let Some(cmd) = expected.numbers.get(name) {
            let (name, parameters) = (name.clone(), Some(name.clone()));
            tree.controls.push(Control { cmd: *cmd, name, reach: Reach::Declared, parameters });
        } else if !name.contains("_INTERNAL_") && fields.iter().any(is_sensitive) {
            tree.carriers.push(Carrier::new("control", "its name; its number is not known here", name));
        }
    }
    tree.controls.sort_by_key(|control| control.cmd);
    add_escapes(&mut tree);
    tree.cannot_tell.push(format!(
        "{} structures of controls' parameters are among its types, without numbers and without callers",
        parameters.len()
    ));
    if found.is_empty() {
        tree.cannot_tell
            .push("as in most builds of the driver these types are of the interface to the kernel: no controls".into());
    } else {
        tree.cannot_tell.extend(too_few);
    }
    if !unreadable.is_empty() {
        let names = unreadable.into_iter().collect::<Vec<_>>();
        tree.cannot_tell.push(format!("{} structures cannot be read: {}", names.len(), names.join(" ")));
    }
    tree.cannot_tell.push("shared memory, notifications and streams need the sources".into());
    Ok(tree)
}

fn is_parameters(name: &str) -> bool {
    name.starts_with("NV") && name.contains("_CTRL_") && (name.ends_with("_PARAMS") || name.ends_with("_PARAM"))
}

struct Reader<'a> {
    btf: &'a Btf,
    headers: Headers,
}

impl Reader<'_> {
    /// The name of a type; empty for one without.
    fn name(&self, kind: &dyn BtfType) -> String {
        self.btf.resolve_name(kind).unwrap_or_default()
    }

    fn kind(&mut self, id: u32, depth: usize) -> Result<Type> {
        ensure!(depth < MAX_DEPTH, "types inside types without an end");
        let kind = self.btf.resolve_type_by_id(id)?;
        let onward = |kind: &dyn BtfType| kind.get_type_id().unwrap_or(0);
        Ok(match &kind {
            Kind::Typedef(inner) => {
                let name = self.name(inner);
                if built_in(&name).is_none() && !self.headers.has(&name) {
                    let target = self.kind(onward(inner), depth + 1)?;
                    self.headers.name(&name, target);
                }
                Type::Named(name)
            }
            Kind::Const(_) | Kind::Volatile(_) | Kind::Restrict(_) | Kind::TypeTag(_) => {
                let inner = kind.as_btf_type().context("a type without an inner one")?;
                self.kind(onward(inner), depth + 1)?
            }
            Kind::Ptr(_) => Type::Pointer,
            Kind::Array(array) => {
                let one = self.kind(onward(array), depth + 1)?;
                ensure!(array.len() <= MAX_SIZE, "an array of gigabytes");
                Type::Array(Box::new(one), vec![Number::Known(array.len())])
            }
            Kind::Struct(record) | Kind::Union(record) => {
                ensure!(record.size() <= MAX_SIZE, "a type of gigabytes");
                let mut members = Vec::new();
                for member in &record.members {
                    let kind = self.kind(onward(member), depth + 1)?;
                    let name = Some(self.name(member)).filter(|name| !name.is_empty());
                    let offset = member.bit_offset() as usize / 8;
                    ensure!(offset <= record.size(), "a member outside its structure");
                    members.push(Member::at_offset(name, kind, offset));
                }
                Type::Record(Rc::new(Record { size: Some(record.size()), members, ..Record::default() }))
            }
            Kind::Int(inner) => Type::Plain(self.name(inner), inner.size()),
            Kind::Float(inner) => Type::Plain(self.name(inner), inner.size()),
            Kind::Enum(inner) => Type::Plain(self.name(inner), inner.size()),
            Kind::Enum64(inner) => Type::Plain(self.name(inner), inner.size()),
            Kind::Void => Type::Plain("void".into(), 0),
            other => anyhow::bail!("a type of the sort {}", other.name()),
        })
    }

    fn prototype(&self, id: u32) -> Result<String> {
        let kind = self.btf.resolve_type_by_id(id)?;
        let Kind::FuncProto(prototype) = &kind else { anyhow::bail!("a function without a prototype") };
        let parameters: Vec<String> = prototype
            .parameters
            .iter()
            .filter(|parameter| !parameter.is_variadic())
            .map(|parameter| self.written(parameter.get_type_id().unwrap_or(0), 0))
            .collect::<Result<_>>()?;
        Ok(written_prototype(&self.written(prototype.return_type_id(), 0)?, &parameters))
    }

    /// A type as the driver's sources write it.
    fn written(&self, id: u32, depth: usize) -> Result<String> {
        ensure!(depth < MAX_DEPTH, "types inside types without an end");
        let kind = self.btf.resolve_type_by_id(id)?;
        let inner = |kind: &dyn BtfType| self.written(kind.get_type_id().unwrap_or(0), depth + 1);
        Ok(match &kind {
            Kind::Void => "void".to_owned(),
            Kind::Ptr(pointer) => format!("{} *", inner(pointer)?),
            Kind::Const(kind) => format!("const {}", inner(kind)?),
            Kind::Volatile(kind) => format!("volatile {}", inner(kind)?),
            Kind::Restrict(kind) => inner(kind)?,
            Kind::TypeTag(kind) => inner(kind)?,
            Kind::Struct(kind) => format!("struct {}", self.name(kind)),
            Kind::Union(kind) => format!("union {}", self.name(kind)),
            Kind::Fwd(kind) => format!("struct {}", self.name(kind)),
            Kind::Enum(kind) => format!("enum {}", self.name(kind)),
            Kind::Int(kind) => source_name(&self.name(kind)),
            Kind::FuncProto(_) => "function".to_owned(),
            other => match other.as_btf_type() {
                Some(kind) => self.name(kind),
                None => other.name().to_owned(),
            },
        })
    }
}
