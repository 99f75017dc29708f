//! The names that the one executable answers to.
//!
//! Owns which name is which program. Refuses to know what the programs do: each is one function of its own module.

use crate::program::Program;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Makes NVIDIA's names as links: the one program that has to know them all.
const LINKS: Program = Program {
    own: "links",
    nvidia: &[],
    about: "makes links with NVIDIA's names in a folder",
    run: |arguments| crate::links::main(arguments, &nvidia()),
    command: None,
};

/// Every name of NVIDIA's.
fn nvidia() -> Vec<&'static str> {
    PROGRAMS.iter().flat_map(|program| program.nvidia).copied().collect()
}

/// Every program; each module has its own row.
pub const PROGRAMS: &[Program] = &[
    //
    crate::cli::PROGRAM,
    crate::ctk::PROGRAM,
    crate::ctk::CDI,
    crate::hook::PROGRAM,
    LINKS,
    crate::refresh::PROGRAM,
    crate::hooks::PROGRAM,
    crate::runtime::PROGRAM,
    crate::manual::PAGES,
    crate::manual::COMPLETIONS,
];

/// The program that these arguments ask for, and the arguments as that program wants them (its name first); none when
/// they ask for `mpu-container` itself.
///
/// A link's name decides; called by its own name, the first argument does.
pub fn choose(arguments: Vec<OsString>) -> (Option<&'static Program>, Vec<OsString>) {
    let called = arguments.first().map(|first| file_name(first)).unwrap_or_default();
    if let Some(program) = PROGRAMS.iter().find(|program| program.nvidia.iter().any(|name| called == *name)) {
        return (Some(program), arguments);
    }
    let asked = arguments.get(1).cloned().unwrap_or_default();
    let program =
        PROGRAMS.iter().find(|program| asked == program.own || program.nvidia.iter().any(|name| asked == *name));
    match program {
        Some(program) => (Some(program), arguments.into_iter().skip(1).collect()),
        None => (None, arguments),
    }
}

/// The page that `mpu-container --help` prints.
pub fn help() -> String {
    let mut text = String::from(
        "Puts NVIDIA GPUs into containers.\n\nUsage: mpu-container PROGRAM [ARGUMENTS]\n\n\
         Programs (each also answers to NVIDIA's names, by a link):\n",
    );
    for program in PROGRAMS {
        let names = program.nvidia.iter().map(|name| format!("\n              {name}"));
        text.push_str(&format!("  {:<11} {}{}\n", program.own, program.about, names.collect::<String>()));
    }
    text.push_str("\n`mpu-container PROGRAM --help` tells more.\n");
    text
}

fn file_name(path: &OsStr) -> OsString {
    Path::new(path).file_name().unwrap_or_default().to_os_string()
}
