//! Whether an open file is the one that has a name now: whoever locks a file asks, since another may have it by then.
//!
//! Owns what "the same" means. Why somebody asks is the caller's business.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether this file is what has this name. A link has the name itself; where it leads does not count.
pub fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: &Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::symlink_metadata(path)), (Ok(open), Ok(named)) if id(&open) == id(&named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_until_it_goes_or_another_takes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, other, link] = ["a", "b", "c"].map(|name| folder.path().join(name));
        let file = File::create(&path).expect("made");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(is_at(&file, &path) && !is_at(&file, &link) && !is_at(&file, &other));
        File::create(&other).expect("made");
        fs::rename(&other, &path).expect("renamed");
        assert!(!is_at(&file, &path), "another has it");
        fs::remove_file(&path).expect("removed");
        assert!(!is_at(&file, &path), "nobody has it");
    }
}
