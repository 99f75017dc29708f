//! The table of programs in this executable.

use crate::program::Program;
use std::ffi::{OsStr, OsString};
use std::path::Path;

const LINKS: Program = Program {
    name: "links",
    nvidia_names: &[],
    about: "makes links with NVIDIA's names in a folder",
    run: |arguments| crate::links::main(arguments, &nvidia_names()),
    command: None,
};

const PAGES: Program = Program {
    name: "man",
    nvidia_names: &[],
    about: "writes manual pages",
    run: |arguments| crate::manual::man(arguments, programs()),
    command: Some(crate::manual::man_command),
};

const COMPLETIONS: Program = Program {
    name: "completions",
    nvidia_names: &[],
    about: "writes shell completions for a program",
    run: |arguments| crate::manual::complete(arguments, programs()),
    command: Some(crate::manual::completions_command),
};

/// The table for rows that need it: a constant cannot refer to itself.
fn programs() -> &'static [Program] {
    PROGRAMS
}

fn nvidia_names() -> Vec<&'static str> {
    PROGRAMS.iter().flat_map(|program| program.nvidia_names).copied().collect()
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

/// Selects a program by the name of a link, or else by the first argument. Returns it with its arguments (its name first). None for
/// `mpu-container` itself.
pub fn choose(arguments: Vec<OsString>) -> (Option<&'static Program>, Vec<OsString>) {
    let name = arguments.first().map(|first| file_name(first)).unwrap_or_default();
    if let Some(program) = PROGRAMS.iter().find(|program| program.nvidia_names.iter().any(|nvidia| name == *nvidia)) {
        return (Some(program), arguments);
    }
    let requested = arguments.get(1).cloned().unwrap_or_default();
    let program = PROGRAMS
        .iter()
        .find(|program| requested == program.name || program.nvidia_names.iter().any(|name| requested == *name));
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
