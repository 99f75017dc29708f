//! Lists what this machine lacks to build and run everything. Changes nothing.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::arch::Arch;
use crate::outcome::Outcome;
use crate::run::{is_root, output};
use crate::{kernels, nvidia, paths, setup};

pub fn doctor() -> Result<Outcome> {
    let os = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown").trim_matches('"');
    let mut out = vec![format!("system    {name}, {}", std::env::consts::ARCH)];
    if std::env::consts::ARCH != "x86_64" {
        out.push("          only x86-64 machines build guests and the module, also those for arm64".to_owned());
    }
    let rust = output(Command::new("rustc").arg("--version"));
    out.push(format!("rust      {}", rust.as_deref().unwrap_or("missing: ./x installs one").trim()));
    let missing: Vec<_> = setup::missing(setup::all());
    for need in &missing {
        out.push(format!("missing   {} ({}); any verb that needs it installs it", need.package, need.reason));
    }
    let cache = paths::cache("")?;
    out.push(format!("cache     {}, {} free", cache.display(), free(&cache)));
    for arch in Arch::ALL {
        for kernel in kernels::debian(arch)? {
            out.push(format!("kernel    {kernel}: {}", state(&cache.join("kernels").join(&kernel).join("stamp"))));
        }
        for client in nvidia::versions(arch).map(|version| arch.named(version)) {
            out.push(format!("client    {client}: {}", state(&cache.join("nvidia").join(&client).join("nvidia-smi"))));
        }
    }
    let sudo = output(Command::new("sudo").args(["-n", "true"])).is_ok();
    out.push(match is_root() || sudo {
        true => "rights    can install packages".to_owned(),
        false => "rights    cannot install packages: not root, and sudo wants a password".to_owned(),
    });
    out.push(match missing.is_empty() {
        true => "nothing is missing\n".to_owned(),
        false => "run `./x setup` to install what is missing\n".to_owned(),
    });
    // A closed pipe is no failure.
    let _ = std::io::stdout().write_all(out.join("\n").as_bytes());
    Ok(Outcome::Passed)
}

fn state(sign: &Path) -> &'static str {
    if sign.exists() { "ready" } else { "not fetched yet" }
}

fn free(dir: &Path) -> String {
    let table = output(Command::new("df").args(["-h", "--output=avail"]).arg(dir)).unwrap_or_default();
    table.lines().nth(1).unwrap_or("unknown").trim().to_owned()
}
