//! Runs promtool, Prometheus' checker.

use std::io::Write;
use std::process::{Command, Stdio};

/// Runs the program in `MPU_PROMTOOL`, which `./x test` fetches and sets, or else `promtool` from `PATH`. None if there
/// is none.
pub fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let named = std::env::var_os("MPU_PROMTOOL");
    let program = named.clone().unwrap_or_else(|| "promtool".into());
    let piped = || Stdio::piped();
    let spawned = Command::new(program).args(arguments).stdin(piped()).stdout(piped()).stderr(piped()).spawn();
    let Ok(mut child) = spawned else {
        assert!(named.is_none(), "MPU_PROMTOOL names no program");
        eprintln!("SKIP: no promtool here; `./x test` fetches it");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    Some((done.status.success() && !output.contains("error"), output))
}
