//! A program of this machine, taken along into an archive: what its loader will look for.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cpio::Archive;
use crate::run::output;

/// Adds the libraries that a program of this machine needs, and the loader, where it looks for them.
pub fn libraries(archive: &mut Archive, program: &Path) -> Result<()> {
    // A static program makes ldd fail: it needs none.
    let listed = output(Command::new("ldd").arg(program)).unwrap_or_default();
    for word in listed.split_whitespace().filter(|word| word.starts_with('/')) {
        let name = word.trim_start_matches('/');
        // /lib is a link to /usr/lib on the machine; in the guest both are folders, and a file lies where it is looked for.
        if !archive.has(name) {
            archive.file(name, 0o755, Path::new(word))?;
        }
    }
    Ok(())
}
