//! Checks the scripts that a package manager runs, for either family.

use std::process::Command;

/// Checks the script's syntax, and that it calls no undefined function of ours.
pub fn check(text: &str, name: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("script");
    std::fs::write(&path, text).expect("written");
    let sound = Command::new("sh").arg("-n").arg(&path).status().expect("a shell");
    assert!(sound.success(), "{name} is no shell");
    // No file name contains one of our functions' names, so every such word is a call.
    let defined: Vec<&str> =
        text.lines().filter_map(|line| Some(line.split_once("() {")?.0)).filter(|name| !name.contains(' ')).collect();
    assert!(defined.len() > 5, "{name} has its family's words");
    let prefixes =
        "unit_ units_ engine_ engines_ service_ module_ policy_ nothing_ variant_ is_variant kernel_is systemd_runs";
    for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
        if prefixes.split(' ').any(|prefix| word.starts_with(prefix)) {
            assert!(defined.contains(&word), "{name} calls {word}, which is not defined");
        }
    }
    assert!(!text.contains("@VERSION@") && !text.contains("@NAME@"), "{name} is not filled");
}
