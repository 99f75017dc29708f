//! The kernel log's messages about MPU: the module's own, a few of the kernel's about the module, and stack trace
//! entries in the module's code. Without `--with-names`, other lines with the word mpu are only counted, because
//! another program may print them.

use mpu_engine::module::sources::Sources;
use mpu_host::host::Host;
use mpu_os::child;
use std::process::{Command, Stdio};

/// Messages of the kernel about a module (kernel/module).
const KERNEL_MESSAGES: [&str; 3] = [
    "mpu: loading out-of-tree module taints kernel.",
    "mpu: module verification failed: signature and/or required key missing - tainting kernel",
    "mpu_next: module verification failed: signature and/or required key missing - tainting kernel",
];
/// The kernel log is read up to this many bytes. Its own limit is usually 2 MiB.
const LOG_LIMIT: u64 = 16 << 20;
/// The number of lines in the report: the latest.
const LINE_LIMIT: usize = 200;

pub fn messages(host: &Host, with_names: bool) -> String {
    let dmesg = |tool| child::run(Command::new(tool).stdin(Stdio::null()), super::PROGRAM_TIMEOUT, LOG_LIMIT);
    let dmesg = host.tool("dmesg").and_then(|tool| dmesg(tool).ok());
    // A dmesg that exceeded the limit has no status, but its output is used.
    let Some(dmesg) = dmesg.filter(|done| done.status.is_none_or(|status| status.success())) else {
        return "dmesg cannot be read\n".to_string();
    };
    let log = String::from_utf8_lossy(&dmesg.stdout);
    let formats = formats(&Sources::embedded().map(|sources| sources.files).unwrap_or_default());
    let mentions = log.lines().filter(|line| line.contains("mpu"));
    let (messages, others): (Vec<&str>, Vec<&str>) =
        mentions.partition(|line| with_names || is_ours(message(line), &formats));
    let mut text: String =
        messages[messages.len().saturating_sub(LINE_LIMIT)..].iter().flat_map(|line| [*line, "\n"]).collect();
    if !others.is_empty() {
        text += &format!("({} more lines have the word mpu; `--with-names` shows them)\n", others.len());
    }
    text
}

/// A line without its time: `[   12.345678] `.
fn message(line: &str) -> &str {
    let is_time = |text: &str| text.chars().all(|c| c.is_ascii_digit() || " .".contains(c));
    match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((time, message)) if is_time(time) => message,
        _ => line,
    }
}

/// The formats of the module's messages, from its sources; none if the executable carries no sources.
fn formats(files: &[(String, Vec<u8>)]) -> Vec<String> {
    let mut formats: Vec<String> = KERNEL_MESSAGES.map(str::to_string).to_vec();
    for (_, bytes) in files.iter().filter(|(name, _)| name.ends_with(".c")) {
        let text = String::from_utf8_lossy(bytes);
        let quoted = text.split("pr_").skip(1).filter_map(|rest| rest.split_once("(\"mpu: ")?.1.split('"').next());
        formats.extend(quoted.map(|rest| format!("mpu: {}", rest.trim_end_matches("\\n"))));
    }
    formats
}

fn is_ours(message: &str, formats: &[String]) -> bool {
    formats.iter().any(|format| matches_format(message, format)) || is_code_location(message)
}

/// Whether a message matches a format: numbers for `%d`, `%u`, `%x`, `%ld` and the like, the name of a function or setting for
/// `%s`.
fn matches_format(message: &str, format: &str) -> bool {
    let Some((before, rest)) = format.split_once('%') else { return message == format };
    let Some(message) = message.strip_prefix(before) else { return false };
    let length = rest.find(|c: char| c.is_ascii_alphabetic() && c != 'l' && c != 'z').map_or(rest.len(), |at| at + 1);
    let (kind, rest) = rest.split_at(length);
    let allowed = |c: char| match kind.ends_with('s') {
        true => c.is_ascii_alphanumeric() || "._".contains(c),
        false => c.is_ascii_hexdigit() || "-x".contains(c),
    };
    let longest = message.find(|c| !allowed(c)).unwrap_or(message.len());
    longest > 0 && (1..=longest).rev().any(|end| matches_format(&message[end..], rest))
}

/// Whether it is a location in the module's code: ` ? mpu_enter+0x12/0x80 [mpu]`, or the same after `RIP: 0010:`.
fn is_code_location(message: &str) -> bool {
    let message = message.trim();
    let message = message.strip_prefix("RIP: 0010:").or(message.strip_prefix("? ")).unwrap_or(message);
    let Some(place) = message.strip_suffix(" [mpu]") else { return false };
    let Some((function, offset)) = place.split_once("+0x") else { return false };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
    // Bounded like the kernel's names, so that no other program's message matches.
    !function.is_empty()
        && function.len() <= 128
        && function.chars().all(is_name)
        && offset.chars().all(|c| c.is_ascii_hexdigit() || "x/".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_own_messages_are_known_by_its_sources() {
        let kmod = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kmod");
        let entries = std::fs::read_dir(kmod).expect("the module's sources").flatten();
        let text =
            |entry: std::fs::DirEntry| Some((entry.file_name().into_string().ok()?, std::fs::read(entry.path()).ok()?));
        let formats = formats(&entries.filter_map(text).collect::<Vec<_>>());
        assert!(formats.len() >= KERNEL_MESSAGES.len() + 6, "{formats:?}");
        for (line, expected) in [
            ("[   12.345678] mpu: placed", true),
            ("mpu: nothing is redirected: os_find_ns_pid: error -16", true),
            ("mpu: not taken over: mpu_peer: error -71; the other instance continues", true),
            ("[1.0] mpu: the probe in rm_ioctl cannot be armed: error -22", true),
            ("[    9.1]  ? mpu_enter+0x12/0x80 [mpu]", true),
            ("[    9.1] RIP: 0010:mpu_enter+0x12/0x80 [mpu]", true),
            ("mpu: secret[4242]: segfault at 0 ip 0000 sp 0000 error 4 in train[55]", false),
            ("mpu: placed by secret", false),
            ("mpu: nothing is redirected: a secret: error -16", false),
            ("mpu: nothing is redirected: x: error secret", false),
            ("oom-kill: task_memcg=/docker/secret,task=mpu,pid=4242,uid=0", false),
            (" secret one+0x1/0x2 [mpu]", false),
            (" secret+0xsecret [mpu]", false),
        ] {
            assert_eq!(is_ours(message(line), &formats), expected, "{line}");
        }
    }
}
