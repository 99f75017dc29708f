//! Compares kmod/mpu_core.h with this crate: constants, reason codes, structures by field offset, functions by the names and kinds of their
//! parameters. A difference fails, and so does anything that only one of them has.

use super::*;
use core::mem::offset_of;
use std::collections::{BTreeMap, BTreeSet};

const HEADER: &str = include_str!("../../../kmod/mpu_core.h");
const CRATE: &str = include_str!("lib.rs");

/// A bit that only the C code sets. It must differ from ours.
const EVENT: u32 = 8;

/// The kernel's callbacks, for the linker. No test calls them.
mod kernel {
    use core::ffi::c_void;

    #[unsafe(no_mangle)]
    extern "C" fn mpu_c_view_of(_: *const c_void, _: u32) -> u32 {
        0
    }
    #[unsafe(no_mangle)]
    extern "C" fn mpu_c_host_of(_: *const c_void, _: u32) -> u32 {
        0
    }
    #[unsafe(no_mangle)]
    extern "C" fn mpu_c_started(_: u32) -> u64 {
        0
    }
}

/// The header without its comments.
fn header() -> String {
    let mut out = String::new();
    let mut rest = HEADER;
    while let Some((before, after)) = rest.split_once("/*") {
        out.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, rest)| rest);
    }
    out + rest
}

fn number(text: &str) -> u64 {
    let text = text.trim_end_matches('u');
    let hexadecimal = text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    hexadecimal.unwrap_or_else(|| text.parse()).unwrap_or_else(|_| panic!("{text} is no number"))
}

/// The items between `{` and `};` of a declaration in the header.
fn body<'a>(header: &'a str, of: &str) -> Vec<&'a str> {
    let (_, rest) = header.split_once(&format!("{of} {{")).unwrap_or_else(|| panic!("the header has no {of}"));
    let (body, _) = rest.split_once("};").expect("an end");
    body.split([',', ';']).map(str::trim).filter(|word| !word.is_empty()).collect()
}

#[test]
fn numbers_are_the_same() {
    let header = header();
    let defined: Vec<(&str, u64)> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_once(' '))
        .map(|(name, value)| (name, number(value.trim())))
        .collect();
    let ours = [
        ("MPU_CALL_BYTES", CALL_BYTES as u64),
        ("MPU_POLICY_BYTES", POLICY_BYTES as u64),
        ("MPU_COUNTERS", COUNTERS as u64),
        ("MPU_NOT_COUNTED", NOT_COUNTED.into()),
        ("MPU_TRANSLATES", TRANSLATES.into()),
        ("MPU_SAMPLES", SAMPLES.into()),
        ("MPU_HIDES_DEAD", HIDES_DEAD.into()),
        ("MPU_EVENT", EVENT.into()),
        ("MPU_SEES_OWN", SEES_OWN.into()),
        ("MPU_SEES_GROUP", SEES_GROUP.into()),
        ("MPU_SEES_HOST", SEES_HOST.into()),
    ];
    assert_eq!(defined, ours);
    let bits = [TRANSLATES, SAMPLES, HIDES_DEAD, EVENT];
    assert_eq!(
        bits.iter().map(|bit| bit.count_ones()).sum::<u32>(),
        (bits.iter().fold(0, |all, bit| all | bit)).count_ones()
    );
}

#[test]
fn reasons_have_same_order() {
    let header = header();
    let named: Vec<String> =
        Reason::ALL.iter().map(|reason| format!("MPU_REASON_{}", reason.name().to_uppercase())).collect();
    assert_eq!(body(&header, "enum mpu_reason"), named);
}

#[test]
fn structures_have_the_same_shape() {
    let header = header();
    // The layout of C on 64-bit processors.
    let shape = |name: &str| {
        let (mut at, mut widest) = (0_usize, 1_usize);
        let mut fields = vec![];
        for field in body(&header, &format!("struct {name}")) {
            let (kind, name) = field.rsplit_once(' ').expect("a kind and a name");
            let size = match kind {
                "u64" => 8,
                "u32" => 4,
                "bool" => 1,
                other => panic!("{name} is a {other}"),
            };
            at = at.next_multiple_of(size);
            widest = widest.max(size);
            fields.push((name.to_string(), at));
            at += size;
        }
        (fields, at.next_multiple_of(widest))
    };
    let field = |name: &str, at: usize| (name.to_string(), at);
    let argument = vec![
        field("cmd", offset_of!(CArgument, cmd)),
        field("flags", offset_of!(CArgument, _flags)),
        field("params", offset_of!(CArgument, params)),
        field("params_size", offset_of!(CArgument, params_size)),
        field("status", offset_of!(CArgument, _status)),
    ];
    assert_eq!(shape("mpu_argument"), (argument, size_of::<CArgument>()));
    let copy = vec![field("bytes", offset_of!(CCopy, bytes)), field("refused", offset_of!(CCopy, refused))];
    assert_eq!(shape("mpu_copy"), (copy, size_of::<CCopy>()));
}

/// Functions by name: the kind of the result, then the parameters' names and kinds.
type Functions = BTreeMap<String, Vec<String>>;

/// Maps both languages' names of a pointer's target to one name. C sees untyped memory as bytes.
fn pointee(name: &str) -> &str {
    match name {
        "Call" | "Table" | "c_void" | "u8" | "void" => "bytes",
        "CArgument" | "struct mpu_argument" => "argument",
        "CCopy" | "struct mpu_copy" => "copy",
        "c_char" | "char" => "char",
        other => other,
    }
}

fn rust_kind(text: &str) -> String {
    match (text.strip_prefix("*const "), text.strip_prefix("*mut ")) {
        (Some(to), _) => format!("const {} *", pointee(to)),
        (_, Some(to)) => format!("{} *", pointee(to)),
        _ => text.to_string(),
    }
}

fn c_kind(text: &str) -> String {
    let Some(to) = text.strip_suffix('*').map(str::trim) else {
        return if text == "void" { String::new() } else { text.to_string() };
    };
    match to.strip_prefix("const ") {
        Some(to) => format!("const {} *", pointee(to)),
        None => format!("{} *", pointee(to)),
    }
}

fn in_rust() -> Functions {
    let mut found = Functions::new();
    for part in CRATE.split("fn mpu_").skip(1) {
        let (name, rest) = part.split_once('(').expect("parameters");
        let (parameters, rest) = rest.split_once(')').expect("their end");
        let end = rest.find(['{', ';']).expect("an end");
        let comes_back = rest[..end].trim().strip_prefix("->").map_or("", str::trim);
        let each = parameters.split(',').filter_map(|one| one.trim().split_once(": "));
        let each = each.map(|(name, kind)| format!("{name}: {}", rust_kind(kind)));
        found.insert(format!("mpu_{name}"), [rust_kind(comes_back)].into_iter().chain(each).collect());
    }
    found
}

fn in_c() -> Functions {
    let mut found = Functions::new();
    let header = header();
    for line in header.split(';').filter(|line| line.contains("(") && line.contains("mpu_")) {
        let line = line.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ");
        let (head, parameters) = line.split_once('(').expect("parameters");
        let kind_and_name = |text: &str| {
            let text = text.trim();
            let at = text.rfind([' ', '*']).expect("a kind and a name") + 1;
            (c_kind(text[..at].trim()), text[at..].to_string())
        };
        let (comes_back, name) = kind_and_name(head);
        let each = parameters.trim().trim_end_matches(')').split(',').map(kind_and_name);
        let each = each.map(|(kind, name)| format!("{name}: {kind}"));
        found.insert(name, [comes_back].into_iter().chain(each).collect());
    }
    found
}

#[test]
fn functions_take_and_return_the_same() {
    let (rust, c) = (in_rust(), in_c());
    let names = |of: &Functions| of.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&rust), names(&c));
    assert!(rust.len() >= 14, "{} functions found", rust.len());
    for (name, signature) in &rust {
        println!("{name}: {signature:?}");
        assert_eq!(signature, &c[name], "{name}");
    }
}
