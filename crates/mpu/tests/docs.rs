//! Holds the reference in `docs/cli.md` to the command line's definitions. `MPU_BLESS=1` writes it anew. Manual
//! pages, which are made from the same definitions, are read by programs that know their language.

use clap::{Arg, Command, CommandFactory};
use std::fmt::Write as _;
use std::fs;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
const BEGIN: &str = "<!-- generated from the definitions: MPU_BLESS=1 cargo test -p mpu --test docs -->\n";
const END: &str = "<!-- end of the generated part -->\n";

#[test]
fn reference_is_the_definitions() {
    let page = std::fs::read_to_string(PAGE).expect("docs/cli.md");
    let (before, rest) = page.split_once(BEGIN).expect("the mark of the generated part's beginning");
    let (generated, after) = rest.split_once(END).expect("the mark of its end");
    let expected = reference();
    if std::env::var_os("MPU_BLESS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{expected}{END}{after}")).expect("docs/cli.md written");
    } else {
        assert_eq!(generated, expected, "docs/cli.md is behind: MPU_BLESS=1 cargo test -p mpu --test docs");
    }
}

/// mandoc's own check (mandoc(1), "Diagnostics") and groff's warnings, each where it is installed.
#[test]
fn manual_pages_are_sound() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut files = Vec::new();
    for (name, page) in mpu::manual::pages().expect("rendered") {
        files.push(dir.path().join(name + ".1"));
        fs::write(&files[files.len() - 1], page).expect("written");
    }
    assert!(files.len() > 15, "{files:?}");
    for (tool, arguments) in [("mandoc", &["-T", "lint", "-W", "warning"][..]), ("groff", &["-ww", "-man", "-z"])] {
        match std::process::Command::new(tool).args(arguments).args(&files).output() {
            Err(_) => println!("skipped: no {tool}"),
            Ok(found) => {
                let output =
                    String::from_utf8_lossy(&found.stdout).into_owned() + &String::from_utf8_lossy(&found.stderr);
                // The pages have no date on purpose: the same sources give the same pages.
                let wrong: Vec<&str> = output.lines().filter(|line| !line.contains("missing date")).collect();
                assert!(wrong.is_empty(), "{tool}:\n{}", wrong.join("\n"));
            }
        }
    }
}

fn reference() -> String {
    let mut root = mpu::cli::Cli::command();
    root.build();
    let mut out = String::new();
    for command in root.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        describe(command, &mut out);
    }
    out + "\n"
}

fn describe(command: &Command, out: &mut String) {
    let usage = command.clone().render_usage().to_string().replace("Usage: ", "");
    let _ = writeln!(out, "\n### `{}`\n", usage.trim());
    let about = command.get_long_about().or(command.get_about()).map(|about| about.to_string()).unwrap_or_default();
    let _ = writeln!(out, "{}", wrapped(about.trim()));
    let arguments: Vec<&Arg> = command.get_arguments().filter(|a| !a.is_hide_set() && !common(a)).collect();
    if !arguments.is_empty() {
        let _ = writeln!(out, "\n| option | meaning |\n|---|---|");
    }
    for argument in arguments {
        let is_flag = argument.get_num_args().is_some_and(|n| !n.takes_values());
        let default: Vec<_> = argument.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        let default = match default.as_slice() {
            [] => String::new(),
            _ if is_flag => String::new(),
            values => format!(" (default: {})", values.join(", ")),
        };
        let values: Vec<String> =
            argument.get_possible_values().iter().map(|v| format!("`{}`", v.get_name())).collect();
        let values = if values.is_empty() || is_flag { String::new() } else { format!(": {}", values.join(", ")) };
        let help = argument.get_help().map(|help| help.to_string()).unwrap_or_default();
        let _ = writeln!(out, "| `{argument}` | {help}{values}{default} |");
    }
    if let Some(examples) = command.get_after_long_help().or(command.get_after_help()) {
        let examples = examples.to_string();
        let _ = writeln!(
            out,
            "\n```\n{}\n```",
            examples.trim_start_matches("Examples:\n").trim_start_matches("Example:\n")
        );
    }
    for verb in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        let usage = verb.clone().render_usage().to_string().replace("Usage: ", "");
        let about = verb.get_about().map(|about| about.to_string()).unwrap_or_default();
        let _ = writeln!(out, "\n{}", wrapped(&format!("- `{}`: {about}", usage.trim())));
    }
}

/// Paragraphs in lines of 120 columns.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut width = 0;
        for word in line.split(' ') {
            let needed = word.chars().count();
            if width > 0 {
                let fits = width + 1 + needed <= 120;
                out.push(if fits { ' ' } else { '\n' });
                width = if fits { width + 1 } else { 0 };
            }
            out.push_str(word);
            width += needed;
        }
        out.push('\n');
    }
    out.trim_end().to_string()
}

/// Options that every command has, and that the page tells of once.
fn common(argument: &Arg) -> bool {
    matches!(argument.get_id().as_str(), "help" | "version" | "json")
}
