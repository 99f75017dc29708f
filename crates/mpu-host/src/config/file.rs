//! Reading the file.
//!
//! Owns what may have its name: a regular file, or `/dev/null` for an empty one; and of a file that a person names, a pipe.
//! Refuses to know what is in it.

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
    bounded(file, longest)
}

/// What a person who names no file calls standard input.
pub const STDIN: &str = "/dev/stdin";

/// The text in a file that a person names: standard input, and a pipe such as a shell's `<(…)`, are read to their end, too.
pub fn read_named(path: &Path, longest: u64) -> io::Result<String> {
    if path == Path::new(STDIN) {
        return bounded(io::stdin().lock(), longest);
    }
    match fs::metadata(path).is_ok_and(|of| of.file_type().is_fifo()) {
        true => bounded(File::open(path)?, longest),
        false => read(path, longest),
    }
}

fn bounded(from: impl Read, longest: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(longest + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > longest {
        return Err(io::Error::other(format!("it has more than {longest} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))
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
