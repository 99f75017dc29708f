//! The kernel's messages about MPU.
//!
//! Owns which lines those are: the ones that the module's own sources print, a few of the kernel's about a module of our
//! name, and places in our code in a crash's trace. Anything else may be somebody's program that is called like us, so
//! without names the rest is counted only.

use mpu_engine::module::sources::Sources;
use mpu_host::host::Host;
use std::io::Read;
use std::process::{Command, Stdio};

/// What the kernel itself says about a module (kernel/module).
const OF_THE_KERNEL: [&str; 3] = [
    "mpu: loading out-of-tree module taints kernel.",
    "mpu: module verification failed: signature and/or required key missing - tainting kernel",
    "mpu_next: module verification failed: signature and/or required key missing - tainting kernel",
];
/// More of the kernel's log is not read: its own limit is 2 MiB as a rule.
const LONGEST: u64 = 16 << 20;
/// The latest lines are kept.
const MOST: usize = 200;

/// They, oldest first.
pub fn ours(host: &Host, with_names: bool) -> String {
    let Some(log) = dmesg(host) else { return "dmesg cannot be read\n".to_string() };
    let carried = Sources::carried().map(|sources| sources.files).unwrap_or_default();
    let formats = formats(carried.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
    let mentions: Vec<&str> = log.lines().filter(|line| line.contains("mpu")).collect();
    let (ours, others): (Vec<&str>, Vec<&str>) =
        mentions.into_iter().partition(|line| with_names || is_ours(message(line), &formats));
    let mut text: String = ours[ours.len().saturating_sub(MOST)..].iter().flat_map(|line| [*line, "\n"]).collect();
    if !others.is_empty() {
        text += &format!("({} more lines have the word mpu; `--with-names` shows them)\n", others.len());
    }
    text
}

fn dmesg(host: &Host) -> Option<String> {
    let mut child = Command::new(host.tool("dmesg")?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut bytes = Vec::new();
    let read = child.stdout.take()?.take(LONGEST).read_to_end(&mut bytes);
    // One that has more to say is not waited for.
    let _ = child.kill();
    let _ = child.wait();
    read.ok().map(|_| String::from_utf8_lossy(&bytes).into_owned())
}

/// A line without its time: `[   12.345678] `.
fn message(line: &str) -> &str {
    let in_brackets = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    in_brackets
        .filter(|(time, _)| time.chars().all(|c| c.is_ascii_digit() || " .".contains(c)))
        .map_or(line, |(_, m)| m)
}

/// The formats of the module's messages, from its sources. An executable that carries none loads no module.
fn formats<'a>(files: impl Iterator<Item = (&'a str, &'a [u8])>) -> Vec<String> {
    let mut formats: Vec<String> = OF_THE_KERNEL.map(str::to_string).to_vec();
    for (_, bytes) in files.filter(|(name, _)| name.ends_with(".c")) {
        let text = String::from_utf8_lossy(bytes);
        let quoted = text.split("pr_").skip(1).filter_map(|rest| rest.split_once("(\"mpu: ")?.1.split('"').next());
        formats.extend(quoted.map(|rest| format!("mpu: {}", rest.trim_end_matches("\\n"))));
    }
    formats
}

fn is_ours(message: &str, formats: &[String]) -> bool {
    formats.iter().any(|format| fits(message, format)) || is_place(message)
}

/// Whether a message is of a format: numbers for `%d`, `%u`, `%x`, `%ld` and the like, the name of a function or
/// setting for `%s`.
fn fits(message: &str, format: &str) -> bool {
    let Some((before, rest)) = format.split_once('%') else { return message == format };
    let Some(message) = message.strip_prefix(before) else { return false };
    let length = rest.find(|c: char| c.is_ascii_alphabetic() && c != 'l' && c != 'z').map_or(rest.len(), |at| at + 1);
    let (kind, rest) = rest.split_at(length);
    let allowed = |c: char| match kind.ends_with('s') {
        true => c.is_ascii_alphanumeric() || "._".contains(c),
        false => c.is_ascii_hexdigit() || "-x".contains(c),
    };
    let longest = message.find(|c| !allowed(c)).unwrap_or(message.len());
    longest > 0 && (1..=longest).rev().any(|end| fits(&message[end..], rest))
}

/// Whether it is a place in our code: ` ? mpu_enter+0x12/0x80 [mpu]`, or the same after `RIP: 0010:`.
fn is_place(message: &str) -> bool {
    let message = message.trim();
    let message = message.strip_prefix("RIP: 0010:").or(message.strip_prefix("? ")).unwrap_or(message);
    let Some(place) = message.strip_suffix(" [mpu]") else { return false };
    let Some((function, offset)) = place.split_once("+0x") else { return false };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
    // Longer than the kernel's own names are not: nobody's message hides here.
    !function.is_empty()
        && function.len() <= 128
        && function.chars().all(is_name)
        && offset.chars().all(|c| c.is_ascii_hexdigit() || "x/".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_own_messages_are_known_by_its_sources() {
        let kmod = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kmod");
        let files: Vec<(String, Vec<u8>)> = std::fs::read_dir(kmod)
            .expect("the module's sources")
            .flatten()
            .filter(|entry| entry.path().is_file())
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).expect("read")))
            .collect();
        let formats = formats(files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
        assert!(formats.len() >= OF_THE_KERNEL.len() + 6, "{formats:?}");
        for line in [
            "[   12.345678] mpu: placed",
            "mpu: nothing is redirected: os_find_ns_pid: error -16",
            "[1.0] mpu: the probe in rm_ioctl cannot be armed: error -22",
            "[    9.1]  ? mpu_enter+0x12/0x80 [mpu]",
            "[    9.1] RIP: 0010:mpu_enter+0x12/0x80 [mpu]",
        ] {
            assert!(is_ours(message(line), &formats), "{line}");
        }
        for line in [
            "mpu: secret[4242]: segfault at 0 ip 0000 sp 0000 error 4 in train[55]",
            "mpu: placed by secret",
            "mpu: nothing is redirected: a secret: error -16",
            "mpu: nothing is redirected: x: error secret",
            "oom-kill: task_memcg=/docker/secret,task=mpu,pid=4242,uid=0",
            " secret one+0x1/0x2 [mpu]",
            " secret+0xsecret [mpu]",
        ] {
            assert!(!is_ours(message(line), &formats), "{line}");
        }
    }
}
