//! The manual pages of `mpu`, of each command and of each subcommand, rendered by `clap_mangen` from the command line's definition
//! and the exit codes. They have no date, so equal sources give equal pages. See `man 7 man`.

use crate::cli::{self, Cli};
use crate::install::layout::Documents;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use mpu_host::exit::Exit;
use std::io;

/// The page of a command (`config check`), or of `mpu` without words; none if there is no such command.
pub fn page(words: &[String]) -> Option<io::Result<Vec<u8>>> {
    let root = root();
    let found =
        words.iter().try_fold(&root, |command, word| command.find_subcommand(word).filter(|c| !c.is_hide_set()));
    found.map(render)
}

/// Every page, with its name: `mpu`, `mpu-up`, `mpu-config-check`.
pub fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut pages = Vec::new();
    collect(&root(), &mut pages)?;
    Ok(pages)
}

/// All documents that are made from the command line's definition.
pub fn documents() -> io::Result<Documents> {
    Ok(Documents { completions: [Shell::Bash, Shell::Zsh, Shell::Fish].map(cli::completions), pages: pages()? })
}

fn collect(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    pages.push((name(command), render(command)?));
    command.get_subcommands().filter(|c| !c.is_hide_set()).try_for_each(|verb| collect(verb, pages))
}

fn root() -> Command {
    // `mpu help` needs no page beside `mpu --help`.
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    root
}

fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_string()
}

fn render(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    // The library's line leaves an empty date out, which shifts the fields after it.
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(".TH \"{}\" 1 \"\" \"MPU {version}\" \"MPU\"\n", name(command)).into_bytes();
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut out)?;
    }
    let mut rest = Roff::new();
    examples(command, &mut rest);
    match command.get_name() {
        "mpu" => exit_status(&mut rest),
        _ => {
            rest.control("SH", ["SEE ALSO"]);
            rest.text([bold("mpu"), roman("(1), which lists the exit codes")]);
        }
    }
    rest.to_writer(&mut out)?;
    Ok(plain(&String::from_utf8_lossy(&out)).into_bytes())
}

/// The examples at the end of a command's help, line by line.
fn examples(command: &Command, out: &mut Roff) {
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let block = help.split("\n\n").find_map(|block| block.strip_prefix("Example").map(|b| b.trim_start_matches("s:")));
    let Some(block) = block else { return };
    out.control("SH", ["EXAMPLES"]);
    out.control("nf", []);
    for line in block.lines().filter_map(|line| line.strip_prefix("  ")) {
        out.text([roman(line)]);
    }
    out.control("fi", []);
}

fn exit_status(out: &mut Roff) {
    out.control("SH", ["EXIT STATUS"]);
    for exit in Exit::ALL {
        out.control("TP", []);
        out.text([bold(exit.code().to_string())]);
        out.text([roman(exit.meaning())]);
    }
}

/// The page in ASCII, without the empty line that `clap_mangen` puts between two breaks.
fn plain(page: &str) -> String {
    let escaped = page.chars().map(|c| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", u32::from(c)) });
    escaped.collect::<String>().replace("\n.br\n\n.br\n", "\n.sp\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: &[&str]) -> String {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        String::from_utf8(page(&words).expect("a page").expect("rendered")).expect("ASCII")
    }

    #[test]
    fn every_command_has_linked_page() {
        let pages = pages().expect("rendered");
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"mpu") && names.contains(&"mpu-up") && names.contains(&"mpu-agent-run"), "{names:?}");
        for (name, page) in &pages {
            assert!(
                page.is_ascii() && String::from_utf8_lossy(page).starts_with(&format!(".TH \"{name}\" 1 ")),
                "{name}"
            );
        }
        // Pages that another page refers to exist.
        for (name, page) in &pages {
            let page = String::from_utf8_lossy(page).replace("\\-", "-");
            let lines = page.lines().filter_map(|line| line.strip_suffix("(1)"));
            lines.for_each(|other| assert!(names.contains(&other), "{name} refers to {other}"));
        }
        assert!(page(&["probe-child".to_string()]).is_none() && page(&["nonsense".to_string()]).is_none());
    }

    #[test]
    fn installation_has_all_pages_and_completions() {
        let documents = documents().expect("rendered");
        assert_eq!(documents.pages, pages().expect("rendered"));
        for script in documents.completions {
            assert!(String::from_utf8_lossy(&script).contains("completions"));
        }
    }

    #[test]
    fn page_has_examples_and_exit_codes() {
        let page = text(&[]);
        assert!(
            page.contains(".SH EXAMPLES\n.nf\nsudo mpu up ") && page.contains("sudo mpu status \\-\\-json | jq"),
            "{page}"
        );
        for exit in Exit::ALL {
            assert!(page.contains(exit.meaning()), "{exit:?}");
        }
        assert!(text(&["man"]).contains(".nf\nmpu man | man \\-l \\-\n"), "{}", text(&["man"]));
        assert!(text(&["config", "check"]).contains("/etc/mpu/config.toml"));
    }
}
