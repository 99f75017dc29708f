//! The programs `man` and `completions`: manual pages and shell completions.

use crate::output::{self, eprint_line};
use crate::program::{self, Program};
use clap::{Command, CommandFactory, Parser};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The executable's own page. Pages of programs without clap redirect to it.
const OWN: &str = "mpu-container";

/// Writes the manual page of a program to standard output
#[derive(Debug, Parser)]
#[command(
    name = "mpu-container man",
    bin_name = "mpu-container man",
    after_help = "Examples:
  mpu-container man | man -l -
  mpu-container man nvidia-ctk | man -l -
  sudo mpu-container man --all /usr/local/share/man/man1"
)]
struct Pages {
    /// Which program
    #[arg(default_value = OWN)]
    program: String,
    /// Write the pages of all programs into this folder instead
    #[arg(long, value_name = "FOLDER", conflicts_with = "program")]
    all: Option<PathBuf>,
}

/// Writes a program's completions for a shell to standard output
#[derive(Debug, Parser)]
#[command(
    name = "mpu-container completions",
    bin_name = "mpu-container completions",
    after_help = "Example:
  mpu-container completions bash nvidia-ctk | sudo tee /usr/share/bash-completion/completions/nvidia-ctk"
)]
struct Completions {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
    /// Which program
    program: String,
}

pub fn man_command() -> Command {
    Pages::command()
}

pub fn completions_command() -> Command {
    Completions::command()
}

pub fn man(arguments: Vec<OsString>, programs: &[Program]) -> ExitCode {
    let options = match Pages::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => return program::print_clap_error(&error),
    };
    let Some(folder) = options.all else {
        return match page(&options.program, programs) {
            Some(text) => exit_code(output::print(&text)),
            None => unknown(&options.program, programs),
        };
    };
    exit_code(write_all(&folder, programs))
}

pub fn complete(arguments: Vec<OsString>, programs: &[Program]) -> ExitCode {
    let options = match Completions::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => return program::print_clap_error(&error),
    };
    let Some(command) = command(&options.program, programs) else { return unknown(&options.program, programs) };
    exit_code(output::print(&script(options.shell, &command, &options.program)))
}

/// A built command line without its hidden commands and options: clap_complete would list them, and clap has no method that removes them.
fn without_hidden(command: &Command) -> Command {
    // Clap accepts only names that live as long as the process, which ends soon.
    let name = |name: &str| -> &'static str { name.to_string().leak() };
    // The build has already added these, and has given global options to each command.
    Command::new(name(command.get_name()))
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .version(env!("CARGO_PKG_VERSION"))
        .allow_external_subcommands(command.is_allow_external_subcommands_set())
        .visible_aliases(command.get_visible_aliases().map(name))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).map(|arg| arg.clone().global(false)))
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(without_hidden))
}

/// The completion script of a program with this name.
fn script(shell: Shell, command: &Command, name: &str) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut without_hidden(command), name, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    // clap_complete 4.6 writes a hyphen of the name in two ways, so Bash would complete nothing after a subcommand
    // (<https://github.com/clap-rs/clap/issues/6421>).
    match shell {
        Shell::Bash => script.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__")),
        _ => script,
    }
}

fn exit_code(written: io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint_line(format!("mpu-container: cannot write: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn unknown(name: &str, programs: &[Program]) -> ExitCode {
    let help = program::help(programs);
    eprint_line(format!(
        "mpu-container: no program with a command line of ours is called '{name}'\n\n{}",
        help.trim_end()
    ));
    ExitCode::from(2)
}

/// Writes the page of the executable, and a page for each of NVIDIA's names.
fn write_all(folder: &Path, programs: &[Program]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let redirect = |to: &str| format!(".so man1/{to}.1\n");
    let write = |name: &str, text: String| std::fs::write(folder.join(format!("{name}.1")), text);
    write(OWN, page(OWN, programs).unwrap_or_default())?;
    for program in programs {
        let Some((first, others)) = program.nvidia_names.split_first() else { continue };
        let text = page(first, programs);
        let to = if text.is_some() { first } else { OWN };
        write(first, text.unwrap_or_else(|| redirect(OWN)))?;
        others.iter().try_for_each(|other| write(other, redirect(to)))?;
    }
    Ok(())
}

fn command(name: &str, programs: &[Program]) -> Option<Command> {
    let has_name = |program: &&Program| program.name == name || program.nvidia_names.contains(&name);
    let mut command = programs.iter().find(has_name).and_then(|program| program.command)?();
    command = command.disable_help_subcommand(true);
    command.build();
    Some(command)
}

fn page(name: &str, programs: &[Program]) -> Option<String> {
    let text = if name == OWN { own_page(programs) } else { program_page(&command(name, programs)?) };
    text.map(|text| to_ascii(&String::from_utf8_lossy(&text))).ok()
}

fn title(name: &str) -> Vec<u8> {
    format!(".TH \"{name}\" 1 \"\" \"MPU {}\" \"MPU\"\n", env!("CARGO_PKG_VERSION")).into_bytes()
}

fn own_page(programs: &[Program]) -> io::Result<Vec<u8>> {
    let mut out = title(OWN);
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{OWN} - puts NVIDIA GPUs into containers"))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold(OWN), roman(" PROGRAM [ARGUMENTS]")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman("One static executable with several programs. A program is chosen by the first argument, or by the name of a link.")]);
    roff.control("SH", ["PROGRAMS"]);
    for program in programs {
        roff.control("TP", []);
        roff.text([bold([&[program.name], program.nvidia_names].concat().join(", "))]);
        roff.text([roman(program.about)]);
    }
    roff.control("SH", ["OPTIONS"]);
    roff.text([roman("PROGRAM --help shows the options. "), bold("--version"), roman(" prints the version.")]);
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(
        "0 done, 1 not done (why: on standard error), 2 not understood. A runtime's is the low-level runtime's.",
    )]);
    see_also(&mut roff);
    roff.to_writer(&mut out)?;
    Ok(out)
}

fn see_also(roff: &mut Roff) {
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("mpu"), roman("(1), "), bold(OWN), roman("(1)")]);
}

/// The page of a program, with a section for each subcommand.
fn program_page(command: &Command) -> io::Result<Vec<u8>> {
    let mut out = title(command.get_name());
    let man = Man::new(command.clone());
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    verbs(command, &mut out)?;
    let mut roff = Roff::new();
    examples(command, &mut roff);
    see_also(&mut roff);
    roff.to_writer(&mut out)?;
    Ok(out)
}

fn verbs(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
        let name = verb.get_bin_name().unwrap_or_else(|| verb.get_name());
        if !verb.has_subcommands() {
            let mut roff = Roff::new();
            roff.control("SH", [name]);
            roff.to_writer(out)?;
            let mut body = Vec::new();
            let man = Man::new(verb.clone());
            man.render_synopsis_section(&mut body)?;
            man.render_description_section(&mut body)?;
            man.render_options_section(&mut body)?;
            // One level down.
            out.write_all(String::from_utf8_lossy(&body).replace(".SH ", ".SS ").as_bytes())?;
        }
        verbs(verb, out)?;
    }
    Ok(())
}

/// The examples at the end of a program's help, unchanged.
fn examples(command: &Command, roff: &mut Roff) {
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let block = help.split("\n\n").find(|block| block.starts_with("Example"));
    let Some((_, lines)) = block.and_then(|block| block.split_once('\n')) else { return };
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in lines.lines() {
        roff.text([roman(line.trim_start())]);
    }
    roff.control("fi", []);
}

/// Encodes the page in ASCII, which every `man` can read. Removes the empty line that `clap_mangen` puts between two breaks.
fn to_ascii(page: &str) -> String {
    let escaped = page.chars().map(|c| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", u32::from(c)) });
    escaped.collect::<String>().replace("\n.br\n\n.br\n", "\n.sp\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::PROGRAMS;

    #[test]
    fn each_nvidia_program_has_complete_manual_page() {
        let folder = tempfile::tempdir().expect("a folder");
        write_all(folder.path(), PROGRAMS).expect("written");
        let text = |name: &str| std::fs::read_to_string(folder.path().join(format!("{name}.1"))).expect("a page");
        for program in PROGRAMS {
            let own = program.name.replace('-', "\\-");
            assert!(text(OWN).contains(&format!("\n\\fB{own}")), "{own}");
            for name in program.nvidia_names {
                let command = command(name, PROGRAMS);
                let Some(command) = command.filter(|_| *name == program.nvidia_names[0]) else {
                    let to = if program.command.is_some() { program.nvidia_names[0] } else { OWN };
                    assert_eq!(text(name), format!(".so man1/{to}.1\n"));
                    continue;
                };
                let text = text(name);
                assert!(text.is_ascii() && text.starts_with(&format!(".TH \"{name}\" 1 ")), "{name}");
                for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && !verb.has_subcommands()) {
                    let called = verb.get_bin_name().expect("built");
                    assert!(text.contains(&format!(".SH \"{called}\"")), "{called}");
                }
            }
        }
        assert!(text("nvidia-ctk").contains("nvidia-ctk runtime configure"));
        assert!(text("nvidia-container-cli").contains(".SH EXAMPLES\n.nf\nnvidia\\-container\\-cli info"));
    }

    #[test]
    fn usage_has_name_of_executable_and_program() {
        for program in PROGRAMS.iter().filter(|program| program.nvidia_names.is_empty()) {
            let Some(command) = program.command else { continue };
            let error = command().try_get_matches_from([program.name, "--nonsense"]).expect_err("an unknown option");
            assert!(error.to_string().contains(&format!("Usage: mpu-container {}", program.name)), "{error}");
        }
    }

    #[test]
    fn bash_completions_know_every_subcommand() {
        for name in PROGRAMS.iter().flat_map(|program| program.nvidia_names) {
            let Some(command) = command(name, PROGRAMS) else { continue };
            let script = script(Shell::Bash, &command, name);
            // The loop over the typed words sets `cmd`, and a `case` has a branch for each value.
            let states = script.lines().filter_map(|line| line.trim().strip_prefix("cmd=\"")?.strip_suffix('"'));
            for state in states.filter(|state| !state.is_empty()) {
                let branch = format!("{state})");
                assert!(script.lines().any(|line| line.trim() == branch), "{name}: {state}");
            }
        }
    }

    #[test]
    fn completions_have_all_but_hidden_parts() {
        for (name, visible, hidden) in [
            ("nvidia-ctk", "generate-default", "library-search-path"),
            ("nvidia-cdi-hook", "create-symlinks", "noop"),
            ("nvidia-ctk-installer", "version", "toolkit-source-root"),
        ] {
            let command = command(name, PROGRAMS).expect(name);
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let script = script(shell, &command, name);
                assert!(script.contains(visible) && !script.contains(hidden), "{script}");
            }
        }
    }

    #[test]
    fn program_without_clap_command_has_no_completions() {
        for program in PROGRAMS {
            assert_eq!(command(program.name, PROGRAMS).is_some(), program.command.is_some());
            if let Some(command) = program.command {
                command().debug_assert();
            }
        }
        assert!(command("nonsense", PROGRAMS).is_none() && page("nonsense", PROGRAMS).is_none());
    }
}
