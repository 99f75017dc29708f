//! The installer's messages.

pub fn note(line: String) {
    crate::output::eprint_line(format!("nvidia-ctk-installer: {line}"));
}
