//! What must not leave a host in a report: PIDs, and the names of the host, its users, containers and pods.
//!
//! Owns how free text loses them. Names are found where tenants can put them: in cgroups, in what runtimes wrote about
//! their containers, in the notify engine's state, in our configuration. Beside them goes whatever looks like an id, the
//! number of a process or user, and any path that is not the system's or ours. [`free_text`] has the last three.
//!
//! A name that is a word of the report's own cannot go everywhere: a tenant who is called `failed` would take the findings
//! along. It goes where it stands as a name.

use super::free_text;
use crate::doctor;
use mpu_core::HostPid;
use mpu_engine::module::record::Record;
use mpu_host::config::{Config, Selector};
use mpu_host::containers::{self, Container};
use mpu_host::host::Host;
use mpu_notify::client;
use std::collections::BTreeSet;
use std::fs;

/// The names of this host; `None` hides nothing.
pub struct Names(Option<Known>);

/// What is to be hidden; the longest first, because one may hold another.
#[derive(Default)]
struct Known {
    /// Names that are hidden everywhere.
    names: Vec<String>,
    /// Those that are also words of the report's own, or so short that they stand for anything.
    words: Vec<String>,
    /// Paths that a person has chosen.
    paths: Vec<String>,
}

/// Words of the report's own, beside those of the checks' descriptions.
const OWN_WORDS: &str = "\
    ok attention broken skipped failed success active inactive running enabled disabled loaded exited dead none yes no \
    error warning note make build cut with without names report read engine engines version state refused callers orphans \
    containers restarts passed since claimed tracing translated armed placed root mpu nvidia gpu driver drivers docker \
    dockerd podman containerd crio k3s kubelet systemctl systemd dkms dmesg default host module kernel notify metrics nri \
    system container localhost localdomain local internal lan user users init machine session visibility rule pod cgroup \
    sees all era open proprietary unknown flavour signatures lockdown programs installed package debian ubuntu gnu linux \
    service unit units configuration findings counters messages last process control caller inside test prod dev";
/// Parts of cgroups' paths that systemd and kubelet make on every host.
const STRUCTURE: [&str; 6] = ["system", "user", "machine", "init", "kubepods", "docker"];
/// Our units.
pub const UNITS: [&str; 4] = ["mpu.service", "mpu-notify.service", "mpu-metrics.service", "mpu-nri.service"];
/// Units of a distribution, an engine or NVIDIA's, beside ours. Any other service may be a tenant's.
const SYSTEM_UNITS: &str = "\
    NetworkManager accounts-daemon auditd avahi-daemon chrony chronyd containerd cri-docker crio cron crond dbus \
    dbus-broker docker fwupd getty gdm irqbalance k3s k3s-agent kubelet libvirtd multipathd ntp ntpd nvidia-dcgm \
    nvidia-fabricmanager nvidia-imex nvidia-persistenced nvidia-powerd packagekit podman polkit rke2-agent rke2-server \
    rsyslog rtkit-daemon serial-getty slurmd snapd ssh sshd systemd-hostnamed systemd-journald systemd-localed \
    systemd-logind systemd-machined systemd-networkd systemd-oomd systemd-resolved systemd-timedated systemd-timesyncd \
    systemd-udevd systemd-userdbd udisks2 unattended-upgrades upower wpa_supplicant";
/// What stands before a name in our own text.
const BEFORE_NAMES: [&str; 4] = ["container", "pod", "namespace", "user"];
/// What a path of a cgroup has.
const OF_CGROUPS: [&str; 3] = ["/sys/fs/cgroup/", ".slice", ".scope"];
/// Less than this of a name may stand for anything.
const SHORTEST_NAME: usize = 3;
/// Users made by a person begin here (adduser(8)); 65534 is nobody.
const FIRST_PERSON: u32 = 1000;
const NOBODY: u32 = 65534;
/// How much of `/etc/passwd` is read.
const PASSWD_LIMIT: usize = 16 << 20;
/// How many processes are looked at.
const MOST: usize = 100_000;

impl Names {
    /// Those of a host.
    pub fn of(host: &Host) -> Names {
        let mut names = BTreeSet::new();
        for file in ["/proc/sys/kernel/hostname", "/etc/hostname"] {
            let name = host.text(file).unwrap_or_default();
            let (short, domain) = name.split_once('.').unwrap_or((&name, ""));
            names.extend([short, domain, &name].map(str::to_string));
        }
        names.extend(std::env::var("SUDO_USER"));
        let entries = fs::read_dir(host.at("/proc")).into_iter().flatten().flatten().take(MOST);
        let pids = entries.filter_map(|entry| HostPid::new(entry.file_name().to_str()?.parse().ok()?));
        // A container's processes share a cgroup.
        let cgroups: BTreeSet<String> = pids.filter_map(|pid| containers::cgroups_of(host, pid)).collect();
        let mut uids = BTreeSet::new();
        let look = containers::Look::with_homes(host);
        for cgroup in &cgroups {
            // Of each line the path: `hierarchy:controllers:path`. A service is the system's.
            let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
            for part in paths.flat_map(|path| path.split('/')).filter(|part| !is_of_the_system(part)) {
                names.insert(part.to_string());
                names.insert(plain(part).to_string());
                uids.extend(plain(part).strip_prefix("user-").and_then(|uid| uid.parse::<u32>().ok()));
            }
            let container = look.in_cgroups(cgroup);
            std::iter::successors(container.as_ref(), |one| one.outer.as_deref()).for_each(|one| of(one, &mut names));
        }
        users(host, &uids, &mut names);
        if let Ok(Some(state)) = client::state(host) {
            names.extend(state.containers);
            names.extend(state.costs.into_iter().map(|cost| cost.container));
        }
        for rule in Config::of(host).unwrap_or_default().rules {
            let (Selector::Container(pattern) | Selector::Pod(pattern) | Selector::Cgroup(pattern)) = rule.whom;
            names.extend(pattern.split(['*', '?', '/']).map(str::to_string));
            names.insert(pattern);
        }
        Names(Some(Known::of(names, chosen_paths(host))))
    }

    /// Hides nothing.
    pub fn none() -> Names {
        Names(None)
    }

    /// A text without them.
    pub fn hide(&self, text: &str) -> String {
        let Some(known) = &self.0 else { return text.to_string() };
        // A path may have blanks, so it goes before the text is looked at word by word.
        let text = known.paths.iter().fold(text.to_string(), |text, path| text.replace(path, free_text::PATH));
        let told: String = text.split_inclusive('\n').map(free_text::hide).collect();
        let told = known.names.iter().fold(told, |text, name| without(&text, name, |_, _| true));
        known.words.iter().fold(told, |text, name| without(&text, name, stands_as_a_name))
    }
}

impl Known {
    fn of(names: BTreeSet<String>, mut paths: Vec<String>) -> Known {
        let own: BTreeSet<String> = doctor::checks()
            .iter()
            .flat_map(|check| [check.id, check.about])
            .chain([OWN_WORDS])
            .flat_map(|text| text.split(|c: char| !c.is_alphanumeric()))
            .map(str::to_lowercase)
            .collect();
        let is_word = |name: &String| {
            name.chars().count() < SHORTEST_NAME
                || name.chars().all(|c| c.is_ascii_digit() || c == '.')
                || own.contains(&name.to_lowercase())
        };
        let (mut words, mut names): (Vec<String>, Vec<String>) =
            names.into_iter().filter(|name| !name.is_empty()).partition(is_word);
        for list in [&mut words, &mut names, &mut paths] {
            list.sort_by_key(|name| std::cmp::Reverse(name.len()));
        }
        Known { names, words, paths }
    }
}

/// The files of modules that somebody has named, or that lie where somebody has put them.
fn chosen_paths(host: &Host) -> Vec<String> {
    let Some(record) = Record::read(host) else { return Vec::new() };
    let all = std::iter::once(record.module).chain(record.passed_over.into_iter().map(|over| over.path));
    all.map(|path| path.display().to_string())
        .filter(|path| path.len() > 1 && !free_text::is_of_the_system(path))
        .collect()
}

/// A unit's name without its kind.
fn plain(part: &str) -> &str {
    part.trim_end_matches(".service").trim_end_matches(".scope").trim_end_matches(".slice")
}

/// Whether a part of a cgroup's path is there on any host.
fn is_of_the_system(part: &str) -> bool {
    let name = plain(part);
    let Some(unit) = part.strip_suffix(".service") else { return STRUCTURE.contains(&name) };
    let template = unit.split('@').next().unwrap_or(unit);
    UNITS.contains(&part) || SYSTEM_UNITS.split_whitespace().any(|known| known == template)
}

fn of(container: &Container, names: &mut BTreeSet<String>) {
    let pod = container.pod.iter().flat_map(|pod| [&pod.uid, &pod.name, &pod.namespace]);
    let all = [Some(&container.id), container.name.as_ref()].into_iter().chain(pod.map(Option::as_ref));
    names.extend(all.flatten().cloned());
    names.insert(container.short_id().to_string());
}

/// People's names, and what else their rows tell of them: of all who are no part of the system, and of those who have
/// processes. Rows beyond the limit, and people whom only a directory service knows, are not found.
fn users(host: &Host, uids: &BTreeSet<u32>, names: &mut BTreeSet<String>) {
    let passwd = host.beginning("/etc/passwd", PASSWD_LIMIT).unwrap_or_default();
    for row in String::from_utf8_lossy(&passwd).lines() {
        let fields: Vec<&str> = row.split(':').collect();
        let uid = fields.get(2).and_then(|uid| uid.parse::<u32>().ok());
        if uid.is_some_and(|uid| uid >= FIRST_PERSON && uid != NOBODY || uids.contains(&uid)) {
            names.extend([fields[0], fields.get(4).copied().unwrap_or_default()].map(str::to_string));
        }
    }
}

/// A text in which a name that stands alone is hidden, in capitals or not: DNS and the kernel write a host's name as they
/// like. `is_meant` is asked with what is before and after it.
fn without(text: &str, name: &str, is_meant: impl Fn(&str, &str) -> bool) -> String {
    let (lower, wanted) = (text.to_ascii_lowercase(), name.to_ascii_lowercase());
    let mut out = String::with_capacity(text.len());
    let mut done = 0;
    while let Some(at) = lower[done..].find(&wanted).map(|at| done + at) {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        let joins = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let is_alone = !joins(before.chars().next_back()) && !joins(after.chars().next());
        out += &text[done..at];
        done = at + name.len();
        out += if is_alone && is_meant(before, after) { "<name>" } else { &text[at..done] };
    }
    out + &text[done..]
}

/// Whether what is between two texts is a name and no word: part of a cgroup's path, or behind `container` and the like.
fn stands_as_a_name(before: &str, after: &str) -> bool {
    let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let end = after.find(char::is_whitespace).unwrap_or(after.len());
    let (head, tail) = (&before[start..], &after[..end]);
    let said = before.trim_end_matches(['\'', '"', '`']).strip_suffix(' ').unwrap_or_default();
    let last = said.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    BEFORE_NAMES.contains(&last) || OF_CGROUPS.iter().any(|sign| head.contains(sign) || tail.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Names {
        Names(Some(Known::of(all.iter().map(ToString::to_string).collect(), Vec::new())))
    }

    fn check(names: &Names, texts: &[(&str, &str)]) {
        for (text, told) in texts {
            assert_eq!(names.hide(text), *told);
            assert_eq!(Names::none().hide(text), *text);
        }
    }

    #[test]
    fn free_text_loses_names_and_keeps_the_rest() {
        check(
            &names(&["train-llama", "ada", "gpu-7", "secret.example"]),
            &[
                ("in container train-llama for 3 s", "in container <name> for 3 s"),
                ("trader and adapter of ada", "trader and adapter of <name>"),
                ("GPU-7 and gpu-7.secret.example: é Ada", "<name> and <name>.<name>: é <name>"),
                ("at secret.example.", "at <name>."),
            ],
        );
    }

    #[test]
    fn a_tenant_who_is_called_like_a_word_of_ours_blanks_nothing_but_his_name() {
        check(
            &names(&["failed", "ok", "mpu", "nvidia", "driver", "b", "580.159.04", "Engine"]),
            &[
                ("ok  driver  nvidia 580.159.04, mpu failed, b", "ok  driver  nvidia 580.159.04, mpu failed, b"),
                ("in container failed; pod ok", "in container <name>; pod <name>"),
                ("user 'mpu' of the engine", "user '<name>' of the engine"),
                ("/sys/fs/cgroup/nvidia/b/x", "/sys/fs/cgroup/<name>/<name>/x"),
                ("ok: driver.slice has nvidia", "ok: <name>.slice has nvidia"),
            ],
        );
    }

    #[test]
    fn people_are_found_however_long_the_list_is_and_services_unless_they_are_the_systems() {
        let fake = mpu_host::host::fake::FakeHost::in_order();
        let filler = "x:x:1:1::/:/bin/false\n".repeat((5 << 20) / 22);
        fake.write("/etc/passwd", &format!("ada:x:1000:1000:Ada L:/:/bin/sh\nzork:x:900:900::/:/bin/sh\n{filler}"));
        fake.write("/proc/sys/kernel/hostname", "Node7.acme.example\n");
        for (pid, cgroup) in [
            (5, "acme-train.service"),
            (6, "docker.service"),
            (7, "systemd-logind.service"),
            (8, "systemd-acme.service"),
            (9, "getty@tty1.service"),
        ] {
            fake.write(&format!("/proc/{pid}/cgroup"), &format!("0::/system.slice/{cgroup}\n"));
        }
        fake.write("/proc/10/cgroup", "0::/user.slice/user-900.slice/session-3.scope\n");
        check(
            &Names::of(&fake.host()),
            &[
                ("ada, Ada L, zork, NODE7, acme.example", "<name>, <name>, <name>, <name>, <name>"),
                ("acme-train.service and systemd-acme", "<name> and <name>"),
                ("docker.service, systemd-logind.service", "docker.service, systemd-logind.service"),
                ("/sys/fs/cgroup/system.slice/docker.service", "/sys/fs/cgroup/system.slice/docker.service"),
                ("getty@tty1.service", "getty@tty1.service"),
            ],
        );
    }

    #[test]
    fn a_modules_path_that_somebody_chose_is_hidden_whatever_is_in_it() {
        let fake = mpu_host::host::fake::FakeHost::in_order();
        for (path, told) in [
            ("/home/ada/My Own Models/llama/mpu.ko", "<path> (named)"),
            ("/var/lib/mpu/6.1.0/mpu.ko", "/var/lib/mpu/6.1.0/mpu.ko (named)"),
        ] {
            let record = Record { since: 1, ..Record::now(path.as_ref(), None, "0.1.0") };
            record.write(&fake.host());
            assert_eq!(Names::of(&fake.host()).hide(&format!("{path} (named)")), told);
        }
    }
}
