//! Reads a configuration file: a regular file, `/dev/null` as an empty one, or a pipe that a person names.

use mpu_os::file::{Links, read_all, read_bounded};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Whether the path exists, also as a dangling link: the administrator expects a file there.
pub fn exists_or_dangles(path: &Path) -> bool {
    !fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The text in a regular file.
pub fn read(path: &Path, limit: u64) -> io::Result<String> {
    let bytes = read_bounded(path, limit, Links::Followed);
    bytes.map_err(|error| name_link_target(path, error)).and_then(text)
}

/// Standard input, if a person names no file.
pub const STDIN: &str = "/dev/stdin";

/// The text in a file that a person names. Standard input, and a pipe such as a shell's `<(…)`, are read to their end.
pub fn read_named(path: &Path, limit: u64) -> io::Result<String> {
    if path == Path::new(STDIN) {
        return read_all(io::stdin().lock(), limit).and_then(text);
    }
    match fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        true => read_all(File::open(path)?, limit).and_then(text),
        false => read(path, limit),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Adds the target of a link to an error.
fn name_link_target(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => {
            let to = target.display();
            io::Error::new(error.kind(), format!("it is a link to {to}, which is not there"))
        }
        _ => error,
    }
}
