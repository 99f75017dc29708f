//! A hook file: how Podman and CRI-O were told of the prestart hook before they knew CDI. Deprecated by all; kept for
//! those who configure by it.
//!
//! Source: `oci-hooks(5)`, schema 1.0.0.

use serde_json::json;
use std::path::Path;

const PATH: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

pub fn hook(program: &Path) -> String {
    let folder = program.parent().and_then(Path::to_str).filter(|folder| !PATH.contains(folder));
    let path = PATH.into_iter().chain(folder).collect::<Vec<_>>().join(":");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let hook = json!({
        "version": "1.0.0",
        "hook": {"path": program.display().to_string(), "args": [name, "prestart"], "env": [format!("PATH={path}")]},
        "when": {"always": true, "commands": [".*"]},
        "stages": ["prestart"],
    });
    format!("{hook:#}\n")
}
