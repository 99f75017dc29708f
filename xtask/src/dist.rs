//! What a release hands out: one static executable that carries the module's sources and the prebuilt Rust object, those sources by
//! themselves for DKMS, and checksums. A node needs gcc and headers, not Rust.

use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::guest::image;
use crate::run::{run, say};
use crate::{lint, paths, setup, Outcome};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The verb.
pub fn dist() -> Result<Outcome> {
    setup::require(setup::OBJECTS)?;
    let version = env!("CARGO_PKG_VERSION");
    let out = paths::target("dist")?.join(format!("mpu-{version}"));
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(out.join("kmod"))?;

    say("building the module's object, checked");
    let sources = image::mpu_sources()?;
    for entry in std::fs::read_dir(&sources)? {
        let entry = entry?;
        std::fs::copy(entry.path(), out.join("kmod").join(entry.file_name()))?;
    }
    say("building mpu, static, with the module's sources inside");
    let built = paths::target("dist/cargo")?;
    let mut cargo = lint::cargo();
    cargo.args(["build", "--quiet", "--locked", "--release", "--package", "mpu", "--target", TARGET, "--target-dir"]);
    // Paths of this machine would make two machines' builds differ.
    let flags =
        ["-Ctarget-feature=+crt-static".to_owned(), format!("--remap-path-prefix={}=.", paths::repo().display())];
    cargo.arg(&built).env("MPU_KMOD_DIR", &sources).env_remove("RUSTFLAGS");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    run(&mut cargo).context("cannot build mpu")?;
    std::fs::copy(built.join(TARGET).join("release/mpu"), out.join("mpu")).context("cargo made no mpu")?;
    for text in ["LICENSE", "LICENSES/MIT.txt", "LICENSES/GPL-2.0-only.txt", "README.md"] {
        let from = paths::repo().join(text);
        std::fs::copy(&from, out.join(from.file_name().unwrap_or_default()))
            .with_context(|| format!("cannot copy {text}"))?;
    }
    std::fs::write(out.join("SHA256SUMS"), sums(&out)?)?;
    println!("{}", out.display());
    Ok(Outcome::Passed)
}

/// As `sha256sum -c` reads them.
fn sums(dir: &Path) -> Result<String> {
    let mut left = vec![dir.to_owned()];
    let mut lines = Vec::new();
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let digest = Sha256::digest(std::fs::read(&path)?);
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            lines.push(format!("{hex}  {}\n", path.strip_prefix(dir)?.display()));
        }
    }
    lines.sort();
    Ok(lines.concat())
}
