//! What this machine lacks to build and run everything. Changes nothing; a person reads it on a bad day.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::run::{is_root, output};
use crate::{kernels, nvidia, paths, setup};

pub fn doctor() -> Result<Outcome> {
    let mut out = Vec::new();
    let os = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name =
        os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown").trim_matches('"').to_owned();
    let _ = writeln!(out, "system    {name}, {}", std::env::consts::ARCH);
    if std::env::consts::ARCH != "x86_64" {
        let _ = writeln!(out, "          guests and the module are x86-64 only");
    }
    let _ = writeln!(
        out,
        "rust      {}",
        output(Command::new("rustc").arg("--version")).unwrap_or_else(|_| "missing: ./x installs one\n".into()).trim()
    );
    let missing: Vec<_> = setup::missing(setup::all());
    for need in &missing {
        let _ = writeln!(out, "missing   {} ({}); any verb that needs it installs it", need.package, need.why);
    }
    let cache = paths::cache("")?;
    let _ = writeln!(out, "cache     {}, {} free", cache.display(), free(&cache));
    for arch in Arch::ALL {
        for kernel in kernels::debian(arch)? {
            let _ = writeln!(out, "kernel    {kernel}: {}", state(&cache.join("kernels").join(&kernel).join("stamp")));
        }
        for client in nvidia::versions(arch)?.iter().map(|version| arch.named(version)) {
            let _ =
                writeln!(out, "client    {client}: {}", state(&cache.join("nvidia").join(&client).join("nvidia-smi")));
        }
    }
    let sudo = output(Command::new("sudo").args(["-n", "true"])).is_ok();
    let _ = writeln!(
        out,
        "rights    {}",
        if is_root() || sudo {
            "can install packages"
        } else {
            "cannot install packages: not root, and sudo wants a password"
        }
    );
    let _ = writeln!(
        out,
        "{}",
        if missing.is_empty() { "nothing is missing" } else { "run `./x setup` to install what is missing" }
    );
    // Whoever reads it may have had enough.
    let _ = std::io::stdout().write_all(&out);
    Ok(Outcome::Passed)
}

fn state(sign: &Path) -> &'static str {
    if sign.exists() {
        "ready"
    } else {
        "not fetched yet"
    }
}

fn free(dir: &Path) -> String {
    let table = output(Command::new("df").args(["-h", "--output=avail"]).arg(dir)).unwrap_or_default();
    table.lines().nth(1).unwrap_or("unknown").trim().to_owned()
}
