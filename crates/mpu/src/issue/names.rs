//! What must not leave a host in a report: PIDs, and the names of the host, its users, containers and pods.
//!
//! Owns how free text loses them. Names are found where tenants can put them: in cgroups, in what runtimes wrote about
//! their containers, in the notify engine's state, in our configuration. Beside them goes whatever looks like an id, the
//! number of a process or user, and any path that is not the system's or ours.

use mpu_core::HostPid;
use mpu_host::config::{Config, Selector};
use mpu_host::containers::{self, Container};
use mpu_host::host::Host;
use mpu_notify::client;
use std::collections::BTreeSet;
use std::fs;

/// The names of this host; `None` hides nothing.
pub struct Names(Option<Vec<String>>);

/// Words of our own text. Whoever is called like this cannot be told from it, and so is not told of.
const OWN_WORDS: [&str; 20] = [
    "root",
    "mpu",
    "nvidia",
    "docker",
    "podman",
    "containerd",
    "default",
    "host",
    "module",
    "kernel",
    "driver",
    "engine",
    "notify",
    "system",
    "container",
    "localhost",
    "user",
    "init",
    "machine",
    "none",
];
/// Folders whose files belong to the system or to us.
const FOLDERS: [&str; 25] = [
    "/lib/modules/",
    "/usr/bin/",
    "/usr/sbin/",
    "/usr/src/",
    "/usr/lib",
    "/boot/",
    "/sys/",
    "/proc/sys/",
    "/proc/driver/",
    "/proc/version",
    "/proc/config.gz",
    "/etc/mpu",
    "/etc/dkms",
    "/etc/docker/daemon.json",
    "/etc/containerd/",
    "/etc/crio/",
    "/etc/containers/",
    "/etc/ld.so.preload",
    "/etc/modprobe.d",
    "/var/lib/mpu",
    "/var/lib/dkms",
    "/var/lib/shim-signed",
    "/run/mpu",
    "/dev/nvidia",
    "/dev/null",
];
/// Users made by a person begin here (adduser(8)); 65534 is nobody.
const FIRST_PERSON: u32 = 1000;
const NOBODY: u32 = 65534;
/// An id of a container, cut as short as tools print it.
const SHORTEST_ID: usize = 12;
/// How many processes are looked at.
const MOST: usize = 100_000;

impl Names {
    /// Those of a host.
    pub fn of(host: &Host) -> Names {
        let mut names = BTreeSet::new();
        for file in ["/proc/sys/kernel/hostname", "/etc/hostname"] {
            let name = host.text(file).unwrap_or_default();
            names.extend(name.split('.').next().map(str::to_string));
            names.insert(name);
        }
        names.extend(std::env::var("SUDO_USER"));
        users(host, &mut names);
        let entries = fs::read_dir(host.at("/proc")).into_iter().flatten().flatten().take(MOST);
        let pids = entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?));
        // A container's processes share a cgroup.
        let cgroups: BTreeSet<String> = pids.filter_map(|pid| containers::cgroups_of(host, pid)).collect();
        for cgroup in &cgroups {
            // Of each line the path: `hierarchy:controllers:path`. A service is the system's.
            let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
            for part in paths.flat_map(|path| path.split('/')).filter(|part| !part.ends_with(".service")) {
                names.insert(part.trim_end_matches(".scope").trim_end_matches(".slice").to_string());
            }
            let container = containers::in_cgroups(host, cgroup);
            std::iter::successors(container.as_ref(), |one| one.outer.as_deref()).for_each(|one| of(one, &mut names));
        }
        if let Ok(Some(state)) = client::state(host) {
            names.extend(state.containers);
            names.extend(state.costs.into_iter().map(|cost| cost.container));
        }
        for rule in Config::of(host).unwrap_or_default().rules {
            let (Selector::Container(pattern) | Selector::Pod(pattern) | Selector::Cgroup(pattern)) = rule.whom;
            names.extend(pattern.split(['*', '?', '/']).map(str::to_string));
            names.insert(pattern);
        }
        let hidden = |name: &String| name.len() > 1 && !OWN_WORDS.contains(&name.as_str());
        let mut names: Vec<String> = names.into_iter().filter(hidden).collect();
        // The longest first: one may hold another.
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        Names(Some(names))
    }

    /// Hides nothing.
    pub fn none() -> Names {
        Names(None)
    }

    /// A text without them.
    pub fn hide(&self, text: &str) -> String {
        let Some(names) = &self.0 else { return text.to_string() };
        let told = text.split_inclusive('\n').map(|line| words(&without_holders(line))).collect();
        names.iter().fold(told, |text: String, name| without(&text, name))
    }
}

fn of(container: &Container, names: &mut BTreeSet<String>) {
    let pod = container.pod.iter().flat_map(|pod| [&pod.uid, &pod.name, &pod.namespace]);
    let all = [Some(&container.id), container.name.as_ref()].into_iter().chain(pod.map(Option::as_ref));
    names.extend(all.flatten().cloned());
    names.insert(container.short_id().to_string());
}

/// People's names, and what else their rows tell of them.
fn users(host: &Host, names: &mut BTreeSet<String>) {
    let passwd = host.bounded("/etc/passwd", 4 << 20).unwrap_or_default();
    for row in String::from_utf8_lossy(&passwd).lines() {
        let fields: Vec<&str> = row.split(':').collect();
        let uid = fields.get(2).and_then(|uid| uid.parse::<u32>().ok());
        if uid.is_some_and(|uid| uid >= FIRST_PERSON && uid != NOBODY) {
            names.extend([fields[0], fields.get(4).copied().unwrap_or_default()].map(str::to_string));
        }
    }
}

/// A text in which a name that stands alone is hidden.
fn without(text: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let after = &rest[at + name.len()..];
        let joins = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        out += &rest[..at];
        let alone = !joins(out.chars().next_back()) && !joins(after.chars().next());
        out += if alone { "<name>" } else { name };
        rest = after;
    }
    out + rest
}

/// `process 4242 (python3, in container x)` without what is between the brackets.
fn without_holders(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("process ") {
        out += before;
        out += "process ";
        let digits = after.chars().take_while(char::is_ascii_digit).count();
        rest = match after[digits..].strip_prefix(" (") {
            Some(inner) if digits > 0 => {
                out += "<number> (<names>)";
                inner.split_once(')').map_or("", |(_, rest)| rest)
            }
            _ => after,
        };
    }
    out + rest
}

/// Word by word: numbers of processes and users, ids, paths.
fn words(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut last = String::new();
    let mut rest = line;
    while !rest.is_empty() {
        let in_word = |c: char| c.is_alphanumeric() || "/._-+~".contains(c);
        let end = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        out += match word {
            "" => "",
            _ if is_number_of_somebody(&last, word) => "<number>",
            _ if is_path(word) && !FOLDERS.iter().any(|folder| word.starts_with(folder)) => "<path>",
            _ if is_id(word) => "<id>",
            _ => word,
        };
        if !word.is_empty() {
            last = word.to_lowercase();
        }
        let between = after.chars().next().map_or(0, char::len_utf8);
        out += &after[..between];
        rest = &after[between..];
    }
    out
}

fn is_number_of_somebody(before: &str, word: &str) -> bool {
    let counted = ["process", "pid", "ppid", "tgid", "tid", "task", "thread", "uid", "gid", "user"].contains(&before);
    counted && word.chars().all(|c| c.is_ascii_digit())
}

fn is_path(word: &str) -> bool {
    word.len() > 1 && word.starts_with('/') || word.starts_with("~/")
}

/// As runtimes and Kubernetes write ids: many hexadecimal digits, perhaps in groups, perhaps after a word.
fn is_id(word: &str) -> bool {
    let is_hex = |part: &str| {
        let digits = part.chars().filter(|c| *c != '-').count();
        digits >= SHORTEST_ID
            && part.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
            && part.chars().any(|c| c.is_ascii_digit())
    };
    word.split(['.', '/', '_']).any(is_hex) || word.split(['.', '/', '_', '-']).any(is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_text_loses_names_numbers_ids_and_paths_and_keeps_the_rest() {
        let names = Names(Some(["train-llama", "ada", "gpu-7"].map(str::to_string).to_vec()));
        for (text, told) in [
            ("in container train-llama for 3 s", "in container <name> for 3 s"),
            ("trader and adapter of ada", "trader and adapter of <name>"),
            (
                "process 4242 (python3, in container x) in control GPU_GET_PIDS (0x2080018d)",
                "process <number> (<names>) in control GPU_GET_PIDS (0x2080018d)",
            ),
            ("pid 4242, uid=1000, 22 processes, PID: 7", "pid <number>, uid=<number>, 22 processes, PID: <number>"),
            ("docker-3f2a81bc9d0e44aa.scope", "<id>"),
            ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "<id>"),
            ("kernel 6.1.0-28-amd64, driver 550.163.01", "kernel 6.1.0-28-amd64, driver 550.163.01"),
            ("CC [M] /home/ada/mpu.o", "CC [M] <path>"),
            (
                "cat /sys/kernel/livepatch and /lib/modules/6.1.0/build",
                "cat /sys/kernel/livepatch and /lib/modules/6.1.0/build",
            ),
        ] {
            assert_eq!(names.hide(text), told);
            assert_eq!(Names::none().hide(text), text);
        }
    }
}
