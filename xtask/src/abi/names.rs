//! Recognizes PIDs and kernel addresses by a field's name: the driver's headers have no types for either.

use super::c::Field;

/// The words of a name: `subProcessID` is sub, process, id.
pub fn words(name: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut before = '_';
    for c in name.chars() {
        let begins = before == '_' || c.is_ascii_uppercase() && !before.is_ascii_uppercase();
        if c != '_' && begins {
            out.push(String::new());
        }
        if let Some(word) = out.last_mut().filter(|_| c != '_') {
            word.push(c.to_ascii_lowercase());
        }
        before = c;
    }
    out
}

/// Whether a name says that it holds a PID: its words end in one, in a table of them, or in half of one.
pub fn names_pid(name: &str) -> bool {
    // Of a table, of one half of a number, of whom a call is about, of a kernel's function.
    const BEHIND: [&str; 13] =
        ["tbl", "table", "list", "array", "arr", "s", "lo", "hi", "low", "high", "target", "nr", "vnr"];
    const PID: [&str; 12] =
        ["pid", "pids", "tgid", "tgids", "tid", "tids", "procid", "processid", "process", "lwp", "lwpid", "creator"];
    let mut words = words(name);
    while words.len() > 1 && words.pop_if(|last| BEHIND.contains(&last.as_str())).is_some() {}
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [.., "process" | "proc" | "thread" | "task", "id" | "ids" | "num" | "number"] => true,
        [.., last] => PID.contains(&last),
        [] => false,
    }
}

/// Whether a name says that it holds an address of the kernel's: the operating system's own structure, or one for processes.
pub fn names_kernel_pointer(field: &Field) -> bool {
    let words = words(&field.name);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    field.size == 8
        && matches!(
            words.as_slice(),
            ["p", "os", ..] | ["p", .., "pid", "info"] | ["p", "kernel", ..] | ["p", "task", ..]
        )
        && !words.contains(&"event")
}
