//! Parses the hook's flags as Go's package `flag`: one dash or two, before the command only.
//!
//! Source: the package's documentation, "Command line flag syntax".

use crate::config::edit::parse_bool;
use crate::runtime::command::flag;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub config: Option<OsString>,
    pub debug: bool,
    pub version: bool,
    pub help: bool,
    /// The first argument that is not a flag. Later arguments are ignored.
    pub command: Option<OsString>,
}

impl Flags {
    pub fn parse(arguments: &[OsString]) -> Result<Flags, String> {
        let mut flags = Flags::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let Some((name, value)) = flag(argument) else {
                flags.command = if argument == "--" { arguments.next().cloned() } else { Some(argument.clone()) };
                break;
            };
            let switch = || match value.map(|value| (value, value.to_str().and_then(parse_bool))) {
                None => Ok(true),
                Some((_, Some(on))) => Ok(on),
                Some((value, None)) => Err(format!("{argument:?}: {value:?} is neither true nor false")),
            };
            match name.as_bytes() {
                b"config" => {
                    let value = value.or_else(|| arguments.next().map(OsString::as_os_str));
                    flags.config = Some(value.ok_or("flag needs an argument: -config")?.to_os_string());
                }
                b"debug" => flags.debug = switch()?,
                b"version" => flags.version = switch()?,
                b"h" | b"help" => flags.help = switch()?,
                _ => return Err(format!("flag provided but not defined: {}", argument.to_string_lossy())),
            }
        }
        Ok(flags)
    }
}
