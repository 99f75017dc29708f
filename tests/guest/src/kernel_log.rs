//! The kernel's own complaints, so that a story under which the kernel warned is a failed one, by name.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};

/// The log from where it was opened on.
pub struct KernelLog {
    records: File,
}

/// What makes a line a complaint. A module that taints the kernel, or is not signed, says so at every load: that is the rig.
const COMPLAINTS: [&str; 13] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "kernel BUG",
    "general protection",
    "unable to handle",
    "soft lockup",
    "self-detected stall",
    "detected stalls",
    "blocked for more than",
    "scheduling while atomic",
    "sleeping function called",
    "refcount_t:",
];

impl KernelLog {
    /// Begins at the log's end.
    pub fn from_now() -> Result<Self> {
        let mut log = Self::open()?;
        log.lines()?;
        Ok(log)
    }

    /// Complaints since the last look.
    pub fn complaints(&mut self) -> Result<Vec<String>> {
        let lines = self.lines()?;
        Ok(lines.into_iter().filter(|line| COMPLAINTS.iter().any(|word| line.contains(word))).collect())
    }

    /// Everything since the last look.
    pub fn lines(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.records.read(&mut record) {
                Ok(0) => break,
                // "priority,sequence,time,flags;text\n key=value…"
                Ok(size) => {
                    let text = String::from_utf8_lossy(&record[..size]).into_owned();
                    lines.extend(text.split_once(';').and_then(|(_, rest)| rest.lines().next()).map(str::to_owned));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The ring overtook the reader: some lines are lost, reading goes on after them.
                Err(error) if error.raw_os_error() == Some(32) => {}
                Err(error) => return Err(error).context("cannot read /dev/kmsg"),
            }
        }
        Ok(lines)
    }

    fn open() -> Result<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let records =
            File::options().read(true).custom_flags(flags).open("/dev/kmsg").context("cannot open /dev/kmsg")?;
        Ok(Self { records })
    }
}
