//! Parses container ids, runtimes and pods in cgroup paths.
//!
//! [`UNITS`] has the names of units and directories by runtime, for the systemd and the cgroupfs driver; other directories are named
//! by their parent. Source: the runtimes that name these cgroups (runc's and crun's systemd drivers, containerd's and CRI-O's CRI
//! services, kubelet's cgroup manager, libpod, LXC, systemd-nspawn).

use super::names::{Runtime, is_long_id};

/// Size limit of a cgroup file. Version 1 has some fifteen lines, and a path is shorter than 4096 bytes.
pub const LIMIT: usize = 64 * 1024;

/// One container in a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Layer {
    pub id: String,
    /// The software that runs it, if the path names it.
    pub runtime: Runtime,
    /// The uid of the pod around it.
    pub pod: Option<String>,
    /// The user whose service manager runs it, for rootless runtimes.
    pub user: Option<u32>,
}

/// The form of an id.
#[derive(Clone, Copy)]
enum Shape {
    /// 64 hexadecimal digits.
    Long,
    /// Anything that is a file name and starts with a letter, a digit or an underscore.
    Name,
    /// The same, as systemd escapes it.
    Escaped,
}

/// Names of units and directories: prefix, suffix, form of the id between them, runtime. The first match counts.
const UNITS: &[(&str, &str, Shape, Runtime)] = &[
    ("docker-", ".scope", Shape::Long, Runtime::Docker),
    ("cri-containerd-", ".scope", Shape::Long, Runtime::Containerd),
    ("nerdctl-", ".scope", Shape::Long, Runtime::Containerd),
    ("crio-", ".scope", Shape::Long, Runtime::Crio),
    ("crio-", "", Shape::Long, Runtime::Crio),
    ("libpod-", ".scope", Shape::Long, Runtime::Podman),
    ("libpod-payload-", "", Shape::Long, Runtime::Podman),
    ("libpod-", "", Shape::Long, Runtime::Podman),
    ("lxc.payload.", "", Shape::Name, Runtime::Lxc),
    ("systemd-nspawn@", ".service", Shape::Escaped, Runtime::Nspawn),
    ("runc-", ".scope", Shape::Name, Runtime::Runc),
    ("crun-", ".scope", Shape::Name, Runtime::Crun),
];

/// Directories with one directory for each container, by its bare id.
const PARENTS: &[(&str, Shape, Runtime)] = &[
    ("docker", Shape::Long, Runtime::Docker),
    ("libpod_parent", Shape::Long, Runtime::Podman),
    ("lxc", Shape::Name, Runtime::Lxc),
    ("lxc.payload", Shape::Name, Runtime::Lxc),
    ("actions_job", Shape::Long, Runtime::Docker),
];

/// Whether this can be one file name, and stays inside a directory.
pub fn is_name(text: &str) -> bool {
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    first && text.len() <= 255 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-+:@".contains(&b))
}

/// The containers in a cgroup file's text, outermost first. Of several hierarchies the one with most layers counts; among equals the
/// unified one, then the first.
pub fn layers(text: &str) -> Vec<Layer> {
    let mut best: Vec<Layer> = Vec::new();
    for path in paths(text) {
        let layers = in_path(path);
        let better = |new: &[Layer], old: &[Layer]| (new.len(), count_named(new)) > (old.len(), count_named(old));
        if better(&layers, &best) {
            best = layers;
        }
    }
    best
}

fn count_named(layers: &[Layer]) -> usize {
    layers.iter().filter(|layer| layer.runtime != Runtime::Unknown).count()
}

/// The paths of a cgroup file, that of the unified hierarchy first.
pub fn paths(text: &str) -> impl Iterator<Item = &str> {
    let line = |line: &'_ str| -> Option<(bool, usize)> {
        let first = line.find(':')?;
        let second = first + 1 + line[first + 1..].find(':')?;
        Some((line.starts_with("0::"), second + 1))
    };
    let paths_of = move |unified: bool| {
        text.lines()
            .filter_map(move |l| line(l).filter(|(is_unified, _)| *is_unified == unified).map(|(_, at)| &l[at..]))
    };
    paths_of(true).chain(paths_of(false))
}

/// The containers in one path, outermost first.
pub fn in_path(path: &str) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut pod = None;
    let mut in_kubepods = false;
    let mut user = None;
    let mut parent = "";
    // In a cgroup namespace an outside path starts with `..`; an ended process may leave ` (deleted)`.
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    for segment in path.split('/').filter(|s| !s.is_empty() && *s != "..") {
        in_kubepods |= segment.contains("kubepods");
        user = user_of(segment).or(user);
        let found = unit(segment).or_else(|| id_below_parent(parent, segment)).or_else(|| {
            // Kubernetes with the cgroupfs driver, and Amazon ECS: an id by itself.
            is_long_id(segment).then(|| (segment.to_string(), Runtime::Unknown))
        });
        if let Some((id, runtime)) = found {
            // The systemd name of a pod under the cgroupfs driver is one directory: slice, prefix and id.
            let own_pod = segment.split_once(':').and_then(|(slice, _)| pod_slice(slice));
            let pod = own_pod.or_else(|| pod.take());
            layers.push(Layer { id, runtime, pod, user });
            in_kubepods = false;
        } else if let Some(uid) = pod_slice(segment) {
            pod = Some(uid);
        } else if let Some(uid) = segment.strip_prefix("pod").filter(|uid| in_kubepods && is_pod_uid(uid)) {
            pod = Some(uid.to_string());
        }
        parent = segment;
    }
    layers
}

fn unit(segment: &str) -> Option<(String, Runtime)> {
    if let Some((_, rest)) = segment.split_once(".slice:") {
        let (prefix, id) = rest.split_once(':')?;
        let runtime = match prefix {
            "cri-containerd" => Runtime::Containerd,
            "docker" => Runtime::Docker,
            "crio" => Runtime::Crio,
            "nerdctl" => Runtime::Containerd,
            "libpod" => Runtime::Podman,
            _ => return None,
        };
        return is_long_id(id).then(|| (id.to_string(), runtime));
    }
    if let Some(machine) = segment.strip_prefix("machine-").and_then(|s| s.strip_suffix(".scope")) {
        return nspawn_machine(machine);
    }
    UNITS.iter().find_map(|(prefix, suffix, shape, runtime)| {
        let id = segment.strip_prefix(prefix)?.strip_suffix(suffix)?;
        Some((checked_id(*shape, id)?, *runtime))
    })
}

/// systemd-machined also registers virtual machines and libvirt's containers; their names are a driver and a number.
fn nspawn_machine(escaped: &str) -> Option<(String, Runtime)> {
    let name = unescape(escaped)?;
    let numbered = |driver: &str| {
        let number = name.strip_prefix(driver).and_then(|rest| rest.split('-').next());
        number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    match () {
        () if numbered("qemu-") || numbered("xen-") || numbered("ch-") => None,
        () if numbered("lxc-") => Some((name, Runtime::Lxc)),
        () => is_name(&name).then_some((name, Runtime::Nspawn)),
    }
}

fn id_below_parent(parent: &str, segment: &str) -> Option<(String, Runtime)> {
    let (_, shape, runtime) = PARENTS.iter().find(|(name, ..)| *name == parent)?;
    Some((checked_id(*shape, segment)?, *runtime))
}

fn checked_id(shape: Shape, text: &str) -> Option<String> {
    match shape {
        Shape::Long => is_long_id(text).then(|| text.to_string()),
        Shape::Name => is_name(text).then(|| text.to_string()),
        Shape::Escaped => unescape(text).filter(|name| is_name(name)),
    }
}

/// Decodes systemd's `\x2d`, a dash in a unit's name.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\\x") {
        bytes.extend_from_slice(before.as_bytes());
        let digits = after.get(..2).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}

/// Parses `kubepods-burstable-podUID.slice`, possibly after the name of kubelet's cgroup root. The uid has underscores instead of dashes.
fn pod_slice(segment: &str) -> Option<String> {
    let unit = segment.strip_suffix(".slice").unwrap_or(segment);
    let (before, uid) = unit.rsplit_once("-pod")?;
    let uid = uid.replace('_', "-");
    (before.contains("kubepods") && is_pod_uid(&uid)).then_some(uid)
}

/// A UUID, or the 32 digits of a static pod's hash.
pub fn is_pod_uid(uid: &str) -> bool {
    let digits = uid.bytes().filter(|b| b.is_ascii_hexdigit()).count();
    let dashes = uid.bytes().filter(|b| *b == b'-').count();
    digits == 32 && uid.len() == 32 + dashes && (dashes == 0 || dashes == 4)
}

/// The user of a service manager's part of a path.
pub fn user_of(segment: &str) -> Option<u32> {
    segment.strip_prefix("user@")?.strip_suffix(".service")?.parse().ok()
}
