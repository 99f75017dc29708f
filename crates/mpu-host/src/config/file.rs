//! Reading the file.
//!
//! Owns what may have its name: a regular file, or `/dev/null` for an empty one. Refuses to know what is in it.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Whether anything has the name, be it a link that leads nowhere: somebody wanted a file there.
pub fn is_there(path: &Path) -> bool {
    !fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The text in a regular file, or in `/dev/null`: reading a pipe could wait for ever, and a device do anything.
pub fn read(path: &Path, longest: u64) -> io::Result<String> {
    // Asked before it is opened: opening is already an act for some devices.
    regular(&fs::metadata(path).map_err(|error| led_nowhere(path, error))?)?;
    // And once more of what was opened: without waiting, should a pipe have taken the name meanwhile.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    regular(&file.metadata()?)?;
    let mut text = String::new();
    file.take(longest + 1).read_to_string(&mut text)?;
    match text.len() as u64 > longest {
        true => Err(io::Error::other(format!("it has more than {longest} bytes"))),
        false => Ok(text),
    }
}

fn regular(of: &Metadata) -> io::Result<()> {
    let null = of.file_type().is_char_device() && of.rdev() == rustix::fs::makedev(1, 3);
    match of.is_file() || null {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
    }
}

/// The same error, with where a link points to.
fn led_nowhere(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => {
            let to = target.display();
            io::Error::new(error.kind(), format!("it is a link to {to}, which is not there"))
        }
        _ => error,
    }
}
