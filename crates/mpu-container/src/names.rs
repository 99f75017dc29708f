//! The programs of the one executable, by their names.

use crate::program::Program;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The program that makes links with NVIDIA's names.
const LINKS: Program = Program {
    own: "links",
    nvidia: &[],
    about: "makes links with NVIDIA's names in a folder",
    run: |arguments| crate::links::main(arguments, &nvidia()),
    command: None,
};

const PAGES: Program = Program {
    own: "man",
    nvidia: &[],
    about: "writes manual pages",
    run: |arguments| crate::manual::man(arguments, programs()),
    command: Some(crate::manual::man_command),
};

const COMPLETIONS: Program = Program {
    own: "completions",
    nvidia: &[],
    about: "writes shell completions for a program",
    run: |arguments| crate::manual::complete(arguments, programs()),
    command: Some(crate::manual::completions_command),
};

/// The table, for the rows that need all of it: a constant cannot name itself.
fn programs() -> &'static [Program] {
    PROGRAMS
}

fn nvidia() -> Vec<&'static str> {
    PROGRAMS.iter().flat_map(|program| program.nvidia).copied().collect()
}

pub const PROGRAMS: &[Program] = &[
    //
    crate::cli::PROGRAM,
    crate::ctk::PROGRAM,
    crate::ctk::CDI,
    crate::prestart::PROGRAM,
    crate::installer::PROGRAM,
    crate::engines::leave::PROGRAM,
    LINKS,
    crate::refresh::PROGRAM,
    crate::cdi_hooks::PROGRAM,
    crate::runtime::PROGRAM,
    PAGES,
    COMPLETIONS,
];

/// The program that these arguments select, and its arguments (its name first); none for `mpu-container` itself.
///
/// A link's name decides; called by its own name, the first argument does.
pub fn choose(arguments: Vec<OsString>) -> (Option<&'static Program>, Vec<OsString>) {
    let called = arguments.first().map(|first| file_name(first)).unwrap_or_default();
    if let Some(program) = PROGRAMS.iter().find(|program| program.nvidia.iter().any(|name| called == *name)) {
        return (Some(program), arguments);
    }
    let requested = arguments.get(1).cloned().unwrap_or_default();
    let program = PROGRAMS
        .iter()
        .find(|program| requested == program.own || program.nvidia.iter().any(|name| requested == *name));
    match program {
        Some(program) => (Some(program), arguments.into_iter().skip(1).collect()),
        None => (None, arguments),
    }
}

pub fn help() -> String {
    crate::program::help(PROGRAMS)
}

fn file_name(path: &OsStr) -> OsString {
    Path::new(path).file_name().unwrap_or_default().to_os_string()
}
