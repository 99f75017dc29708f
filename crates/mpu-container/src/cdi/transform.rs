//! Changes the paths of a spec from one root to another.
//!
//! Source: `nvidia-ctk cdi transform root --help`.

use super::version;
use crate::edits::{ContainerEdits, Hook, Spec};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Relative {
    Host,
    Container,
}

pub fn change_root(spec: &mut Spec, from: &Path, to: &Path, relative: Relative) {
    // An empty path means `/`.
    let [from, to] = [from, to].map(|path| if path.as_os_str().is_empty() { Path::new("/") } else { path });
    let moved = |path: &str| move_path(path, from, to);
    edits(&mut spec.container_edits, relative, &moved);
    spec.devices.iter_mut().for_each(|device| edits(&mut device.container_edits, relative, &moved));
    let needed = version::lowest(spec);
    if version::position(needed) > version::position(&spec.cdi_version) {
        spec.cdi_version = needed.into();
    }
}

fn edits(edits: &mut ContainerEdits, relative: Relative, moved: &dyn Fn(&str) -> String) {
    for node in &mut edits.device_nodes {
        match relative {
            Relative::Host => {
                let host = moved(node.host_path.as_deref().filter(|path| !path.is_empty()).unwrap_or(&node.path));
                node.host_path = (host != node.path).then_some(host);
            }
            Relative::Container => {
                // Without a host_path, `path` is the path on both sides. Keep the host's.
                let inside = moved(&node.path);
                if inside != node.path && node.host_path.as_deref().unwrap_or_default().is_empty() {
                    node.host_path = Some(node.path.clone());
                }
                node.path = inside;
            }
        }
    }
    for mount in &mut edits.mounts {
        match relative {
            Relative::Host => mount.host_path = moved(&mount.host_path),
            Relative::Container => mount.container_path = moved(&mount.container_path),
        }
    }
    edits.hooks.iter_mut().for_each(|hook| move_hook(hook, relative, moved));
}

/// A `startContainer` hook's program is in the container; other programs are on the host. `createContainer` and `startContainer` hooks have
/// container paths as arguments; others have host paths.
fn move_hook(hook: &mut Hook, relative: Relative, moved: &dyn Fn(&str) -> String) {
    let program = if hook.hook_name == "startContainer" { Relative::Container } else { Relative::Host };
    if program == relative {
        hook.path = moved(&hook.path);
    }
    let side = match hook.hook_name.as_str() {
        "createContainer" | "startContainer" => Relative::Container,
        _ => Relative::Host,
    };
    if side == relative {
        let argument = |text: &String| match text.split_once("::") {
            Some((target, link)) => format!("{}::{}", moved(target), moved(link)),
            None => moved(text),
        };
        hook.args = hook.args.iter().map(argument).collect();
    }
}

fn move_path(path: &str, from: &Path, to: &Path) -> String {
    match Path::new(path).strip_prefix(from) {
        Ok(rest) if rest.as_os_str().is_empty() => to.display().to_string(),
        Ok(rest) => to.join(rest).display().to_string(),
        Err(_) => path.into(),
    }
}
