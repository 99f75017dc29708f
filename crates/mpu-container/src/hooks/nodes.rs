//! Which GPUs a container has, by the nodes in its `/dev`.

use crate::beneath::{BeneathError, Root, MOST_NAMES};
use std::path::Path;

/// The numbers of the container's GPUs, by its device nodes.
pub fn minors(root: &Root) -> Result<Vec<u32>, BeneathError> {
    let entries = match root.read_dir(Path::new("/dev"), MOST_NAMES) {
        Err(error) if error.is_missing() => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut minors = Vec::new();
    for entry in entries {
        let is_gpu = entry
            .name
            .to_str()
            .and_then(|name| name.strip_prefix("nvidia"))
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
        if is_gpu {
            let node = root.find(&Path::new("/dev").join(&entry.name))?;
            minors.extend(node.map(|node| node.device()).transpose()?.flatten().map(|(_, minor)| minor));
        }
    }
    Ok(minors)
}
