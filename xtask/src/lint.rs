//! Formatting, lints and dependencies. A distribution's compiler may lack rustfmt or clippy, or be too old to build cargo-deny: then the
//! check is skipped with that reason.

use std::process::{Command, Stdio};

use anyhow::Result;
use serde::Deserialize;

use crate::outcome::Outcome;
use crate::paths;
use crate::run::{capture, output, print_progress, succeeds};

/// The newest Rust (1.N) whose lints these sources pass. A later one may find more, which is no fault of the product.
const NEWEST: u32 = 96;

pub fn fmt() -> Result<Outcome> {
    Ok(Outcome::of(succeeds(cargo().args(["fmt", "--all"]))?))
}

pub fn lint() -> Result<Outcome> {
    let mut result = Outcome::Passed;
    for (name, check, reason) in checks()? {
        match check {
            Some(Outcome::Passed) => {}
            Some(Outcome::Failed) => result = Outcome::Failed,
            None => print_progress(format!("{name} was skipped: {reason}")),
        }
    }
    Ok(result)
}

pub fn checks() -> Result<[(&'static str, Option<Outcome>, &'static str); 3]> {
    let rust = "this Rust came without it, or is newer than the lints were read with";
    Ok([
        ("formatting", formatting()?, rust),
        ("clippy", lints()?, rust),
        ("dependencies", dependencies()?, "cargo-deny cannot be built here"),
    ])
}

/// Whether all files are formatted; none without rustfmt.
fn formatting() -> Result<Option<Outcome>> {
    if output(cargo().args(["fmt", "--version"])).is_err() {
        return Ok(None);
    }
    Ok(Some(Outcome::of(succeeds(cargo().args(["fmt", "--all", "--check"]))?)))
}

/// Whether clippy is there, of the same compiler, and not newer than [`NEWEST`]. Another compiler's clippy cannot read this one's builds.
fn has_clippy() -> bool {
    let compiler = |arguments: &[&str], program| output(Command::new(program).args(arguments)).ok();
    if compiler(&["--rustc", "--version"], CLIPPY) != compiler(&["--version"], "rustc") {
        return false;
    }
    // "clippy 0.1.95 (59807616e1 2026-04-14)"
    let version = output(Command::new(CLIPPY).arg("--version")).unwrap_or_default();
    let minor = version.split([' ', '.']).nth(3).and_then(|minor| minor.parse().ok());
    minor.is_some_and(|minor: u32| minor <= NEWEST)
}

const CLIPPY: &str = "clippy-driver";

/// A cargo that compiles with clippy's driver, if there is one: one build then serves tests and lints. Plain cargo would compile the workspace
/// again, so every command that shares these builds uses this one.
pub fn linting_cargo() -> Command {
    let mut cargo = cargo();
    if has_clippy() {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", CLIPPY);
    }
    cargo
}

/// A line of cargo's JSON output. Lines of the compiler have a message.
#[derive(Deserialize)]
struct CargoLine {
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Diagnostic {
    rendered: String,
}

/// Whether compiler and clippy report nothing in any target; none without clippy.
fn lints() -> Result<Option<Outcome>> {
    if !has_clippy() {
        return Ok(None);
    }
    // The first build compiles a program without `tests/` with `cfg(test)` only, which hides code that only its tests use.
    let silent = is_silent(&["test", "--no-run"])? && is_silent(&["build", "--bins"])?;
    // A crate of the workspace, but no default member.
    let silent = silent && is_silent(&["test", "--no-run", "--package", "mpu-kmod"])?;
    Ok(Some(Outcome::of(silent)))
}

fn is_silent(build: &[&str]) -> Result<bool> {
    let mut cargo = linting_cargo();
    cargo.args(build).args(["--quiet", "--locked", "--message-format", "json"]).stderr(Stdio::inherit());
    let built = capture(&mut cargo)?;
    let printed = String::from_utf8_lossy(&built.stdout);
    let messages = printed.lines().filter_map(|line| serde_json::from_str::<CargoLine>(line).ok()?.message);
    let count = messages.inspect(|message| eprint!("{}", message.rendered)).count();
    Ok(built.status.success() && count == 0)
}

/// The version of cargo-deny for which deny.toml is written.
const DENY: &str = "0.20.2";

/// Whether deny.toml allows all dependencies; none if cargo-deny cannot be built. Without a network, advisories are not checked.
fn dependencies() -> Result<Option<Outcome>> {
    let root = paths::cache(&format!("cargo-deny-{DENY}"))?;
    let program = root.join("bin/cargo-deny");
    if !program.is_file() {
        print_progress("building cargo-deny: a minute, once");
        // Optimising would take 130 s of a processor, and save one second per run.
        let install = ["install", "cargo-deny", "--debug", "--locked", "--quiet", "--version", DENY, "--root"];
        let mut cargo = cargo();
        cargo.args(install).arg(&root).env_remove("CARGO_TARGET_DIR").env("CARGO_PROFILE_DEV_DEBUG", "0");
        if !succeeds(&mut cargo)? {
            return Ok(None);
        }
    }
    let deny = || {
        let mut deny = Command::new(&program);
        deny.args(["--locked"]).current_dir(paths::repo());
        deny
    };
    let mut checks = vec!["licenses", "bans", "sources"];
    match output(deny().arg("fetch").arg("db")) {
        Ok(_) => checks.push("advisories"),
        Err(error) => {
            // The last line is the cause.
            let why = error.to_string();
            let why = why.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            print_progress(format!("advisories are not checked: {why}"));
        }
    }
    Ok(Some(Outcome::of(succeeds(
        deny().args(["check", "--hide-inclusion-graph", "--allow", "unused-wrapper"]).args(checks),
    )?)))
}

pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths::repo());
    keep_profiles(&mut command);
    command
}

/// The user's environment must not change the profiles of Cargo.toml: with more codegen units, the module's object would not be one file.
pub fn keep_profiles(cargo: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PROFILE_") {
            cargo.env_remove(name);
        }
    }
}
