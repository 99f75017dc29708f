//! Where a verb's CDI file goes.

use super::context::Failure;
use crate::cdi::file::{self, Format};
use crate::edits::Spec;
use std::path::{Path, PathBuf};

/// Writes a spec to a file, or to standard output. A file's name gets the format's ending if it has none of a CDI file,
/// for engines would not look at it.
pub(super) fn put(spec: &Spec, output: Option<&Path>, format: Format) -> Result<Option<PathBuf>, Failure> {
    let text = file::text(spec, format);
    let Some(path) = output else {
        crate::output::print(&text)?;
        return Ok(None);
    };
    let mut path = path.as_os_str().to_owned();
    match (Path::new(&path).extension().and_then(|end| end.to_str()), format) {
        (Some("json" | "yaml"), _) => {}
        (_, Format::Json) => path.push(".json"),
        (_, Format::Yaml) => path.push(".yaml"),
    }
    let path = PathBuf::from(path);
    file::write(&path, text.as_bytes())?;
    Ok(Some(path))
}
