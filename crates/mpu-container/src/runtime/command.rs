//! Parses an engine's call of its OCI runtime: whether it creates a container, and from which bundle.
//!
//! Source: the OCI runtime command line interface 1.1.0; `runc --help`, `crun --help`. The bundle's flag has the
//! forms `-b`, `-bundle` and `--bundle`, with a space or `=`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The commands of OCI runtimes. Another word before the command is the value of an unknown flag.
const COMMANDS: &[&str] = &[
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "init",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "restore",
    "resume",
    "run",
    "spec",
    "start",
    "state",
    "update",
];

/// Flags before the command that take a value. A value may equal a command's name.
const WITH_VALUE: &[&str] =
    &["b", "bundle", "cgroup-manager", "criu", "log", "log-format", "log-level", "root", "rootless"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) creates: bool,
    pub(super) bundle: Option<PathBuf>,
    pub(super) version: bool,
    pub(super) debug: bool,
    pub(super) log: Option<PathBuf>,
    pub(super) json: bool,
}

impl Command {
    pub(super) fn read(arguments: &[OsString]) -> Command {
        let mut command = Command::default();
        let mut rest = arguments.iter().skip(1);
        // Read all arguments of `create`. After other commands, the arguments may belong to a program in the container.
        let mut after_command = false;
        while let Some(argument) = rest.next() {
            let Some((flag, value)) = flag(argument) else {
                after_command |= COMMANDS.iter().any(|word| argument == *word);
                command.creates |= argument == "create" && after_command;
                if after_command && !command.creates {
                    break;
                }
                continue;
            };
            if command.creates && ["h", "help"].iter().any(|word| flag == *word) {
                command.creates = false;
                break;
            }
            let value = match value {
                Some(value) => Some(value.to_os_string()),
                None if takes_value(flag, after_command) => rest.next().cloned(),
                None => None,
            };
            command.flag(flag, value, after_command);
        }
        command
    }

    fn flag(&mut self, flag: &OsStr, value: Option<OsString>, after_command: bool) {
        let value = value.filter(|value| !value.is_empty());
        match flag.to_str().unwrap_or_default() {
            "b" | "bundle" => self.bundle = value.map(PathBuf::from),
            "version" | "v" | "V" if !after_command => self.version = true,
            "debug" if !after_command => self.debug = true,
            "log" if !after_command => self.log = value.map(PathBuf::from),
            "log-format" if !after_command => self.json = value.is_some_and(|value| value == "json"),
            _ => {}
        }
    }
}

/// A flag's name without its dashes, and its value if that is in the same argument.
pub fn flag(argument: &OsStr) -> Option<(&OsStr, Option<&OsStr>)> {
    let bytes = argument.as_bytes();
    let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")).filter(|name| !name.is_empty())?;
    let mut parts = name.splitn(2, |byte| *byte == b'=');
    Some((OsStr::from_bytes(parts.next()?), parts.next().map(OsStr::from_bytes)))
}

fn takes_value(flag: &OsStr, after_command: bool) -> bool {
    let flags: &[&str] = if after_command {
        &["b", "bundle", "config", "console-socket", "f", "pid-file", "preserve-fds"]
    } else {
        WITH_VALUE
    };
    flags.iter().any(|word| flag == *word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Command {
        Command::read(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn bundle_is_found_in_every_form() {
        let lines =
            ["-b /x", "-b=/x", "-bundle /x", "-bundle=/x", "--bundle /x", "--bundle=/x", "--b /x", "-b /y --bundle /x"];
        for line in lines {
            for line in [format!("r create {line} id"), format!("r {line} create id"), format!("r create id {line}")] {
                let read = read(&line);
                assert!(read.creates, "{line}");
                assert_eq!(read.bundle, Some("/x".into()), "{line}");
            }
        }
        assert_eq!(read("r create id").bundle, None);
        assert_eq!(read("r create --bundle").bundle, None);
        assert_eq!(read("r create --bundle= id").bundle, None);
    }

    #[test]
    fn only_create_command_creates() {
        for line in [
            "r create x",
            "r --root create --log state create x",
            "r --new-flag value create x",
            "r --bundle create create x",
        ] {
            assert!(read(line).creates, "{line}");
        }
        for line in [
            "r",
            "r --bundle create run x",
            "r -b create",
            "r exec x create",
            "r state create",
            "r --root create state x",
            "r run create",
            "r --version",
            "r create --help",
            "r create -h",
            "r --bundle=create",
            "r - creates",
        ] {
            assert!(!read(line).creates, "{line}");
        }
        assert_eq!(read("r create --pid-file -b --bundle /x id").bundle, Some("/x".into()));
    }

    #[test]
    fn version_flag_counts_before_command_only() {
        assert!(read("r --version").version && read("r -v").version && read("r --debug -version").version);
        assert!(
            !read("r exec x cat --version").version
                && !read("r events -v").version
                && !read("r --log --version").version
        );
    }

    #[test]
    fn engines_log_is_found() {
        let read = read("r --root /r --log /l --log-format json --debug create x");
        assert_eq!((read.log, read.json, read.debug, read.creates), (Some("/l".into()), true, true, true));
    }
}
