//! Writes the archive format that Linux unpacks as its first root file system (cpio, "newc").
//!
//! Source: Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

/// An archive in the making. Folders above a file come by themselves.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    pub fn folder(&mut self, name: &str) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(name, 0o040_755, b"");
    }

    pub fn text(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
        self.entry(name, 0o100_000 | mode, bytes);
    }

    pub fn file(&mut self, name: &str, mode: u32, from: &Path) -> Result<()> {
        let bytes = fs_err::read(from)?;
        self.text(name, mode, &bytes);
        Ok(())
    }

    pub fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.names.clear();
        self.entry("TRAILER!!!", 0, b"");
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, data: &[u8]) {
        if !self.names.insert(name.to_owned()) {
            return;
        }
        let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
        let fields =
            [self.names.len() as u32, mode, 0, 0, links, 0, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(data);
        self.align();
    }

    fn align(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }
}
