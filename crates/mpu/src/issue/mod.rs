//! `mpu doctor --report`: what an issue about MPU needs to say of a host, as one file that a person reads and attaches.
//!
//! An allow-list: numbers, words of ours, versions and models leave the host. Free text does so with `--with-names` only.

mod file;
mod kernel_log;

pub use file::{write, ReportError};

use crate::doctor::{self, Finding};
use crate::install::{self, Package, Record};
use mpu_engine::module::build::STORE;
use mpu_engine::observe::{self, Observed};
use mpu_host::config::{Config, Selector};
use mpu_host::driver::{self, Driver, Flavour};
use mpu_host::host::Host;
use mpu_host::time;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// The longest section in bytes: of a log its end, of anything else its beginning.
const LONGEST: usize = 48 << 10;
/// Our units.
const UNITS: [&str; 4] = ["mpu.service", "mpu-notify.service", "mpu-metrics.service", "mpu-nri.service"];
/// What is asked of a unit: words of systemd's and numbers.
const PROPERTIES: &str = "LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts";

/// The report. With names, it has free text, too.
pub fn report(host: &Host, with_names: bool) -> String {
    let mut text = format!("mpu {}, {}\n", env!("CARGO_PKG_VERSION"), time::stamp(time::now()));
    text += match with_names {
        true => "This report HAS names of this host, its containers and its users: `--with-names` was given.\n",
        false => "Versions, states and numbers only: names, PIDs, paths and free text are left out.\n",
    };
    text += "Read it before you attach it.\n";
    let sections: [(&str, String); 8] = [
        ("host", self::host(host)),
        ("engines", engines(host)),
        ("findings of mpu doctor", findings(&doctor::examine(host), with_names)),
        ("configuration", configuration(host, with_names)),
        ("units", units(host)),
        ("counters", counters(host)),
        ("the kernel's messages about MPU", kernel_log::ours(host, with_names)),
        ("the last build of the module", build_log(host, with_names)),
    ];
    for (title, section) in sections {
        let _ = write!(text, "\n## {title}\n{}", bounded(&section));
    }
    text
}

/// A section that is not too long, ends with a line's end, and has no control characters.
fn bounded(section: &str) -> String {
    let mut end = section.len().min(LONGEST);
    while !section.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < section.len() { "\n(cut)" } else { "" };
    let text = section[..end].replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
    match text.trim_end() {
        "" => "none\n".to_string(),
        text => format!("{text}{cut}\n"),
    }
}

fn line(text: &mut String, name: &str, value: impl AsRef<str>) {
    let _ = writeln!(text, "{name:<14} {}", value.as_ref());
}

fn host(host: &Host) -> String {
    let mut text = String::new();
    let of_system = host.text("/etc/os-release").unwrap_or_default();
    let pretty = of_system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
    line(&mut text, "system", words(pretty.trim_matches('"')));
    line(&mut text, "kernel", plain(&host.release().unwrap_or_default()));
    line(&mut text, "machine", std::env::consts::ARCH);
    line(&mut text, "lockdown", word(&host.lockdown()));
    line(&mut text, "signatures", if host.enforces_signatures() { "demanded" } else { "not demanded" });
    line(
        &mut text,
        "driver",
        Driver::loaded(host).map_or("none is loaded".to_string(), |driver| {
            let flavour = match driver.flavour {
                Flavour::Open => "open",
                Flavour::Proprietary => "proprietary",
                Flavour::Unknown => "of unknown flavour",
            };
            let era = driver
                .known()
                .map_or("an unknown release".to_string(), |known| format!("era {}", driver::native(known).era));
            format!("{}, {flavour}, {era}", plain(&driver.version))
        }),
    );
    for (model, count) in models(host) {
        line(&mut text, "GPU", format!("{count} × {}", words(&model)));
    }
    let installed = match (install::package(host), Record::read(host)) {
        (Some(Package { manager, .. }), _) => format!("as a package ({manager})"),
        (None, Some(_)) => "by mpu install".to_string(),
        (None, None) => "no".to_string(),
    };
    line(&mut text, "installed", installed);
    let tools = ["dockerd", "containerd", "crio", "podman", "k3s", "nvidia-container-runtime", "systemctl", "dkms"];
    let there: Vec<&str> = tools.into_iter().filter(|tool| host.tool(tool).is_some()).collect();
    line(&mut text, "programs", there.join(", "));
    text
}

/// The driver's own word for each GPU, and how many there are of it.
fn models(host: &Host) -> BTreeMap<String, usize> {
    let entries = std::fs::read_dir(host.at("/proc/driver/nvidia/gpus")).into_iter().flatten().flatten();
    let mut models = BTreeMap::new();
    for entry in entries.take(64) {
        let information = Path::new("/proc/driver/nvidia/gpus").join(entry.file_name()).join("information");
        let text = String::from_utf8_lossy(&host.beginning(information, 4096).unwrap_or_default()).into_owned();
        if let Some(model) = text.lines().find_map(|line| line.strip_prefix("Model:")) {
            *models.entry(model.trim().to_string()).or_default() += 1;
        }
    }
    models
}

fn word(value: &impl Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn observed(host: &Host) -> Vec<Observed> {
    observe::all(host).unwrap_or_default()
}

fn engines(host: &Host) -> String {
    let mut text = String::new();
    for engine in observed(host) {
        line(&mut text, "engine", engine.engine.name());
        line(&mut text, "  version", plain(&engine.version));
        line(&mut text, "  state", plain(engine.state.word()));
        if let Some((symbol, errno)) = &engine.refused {
            line(&mut text, "  refused", format!("{}: error {errno}", plain(symbol)));
        }
        line(&mut text, "  callers", engine.inside.to_string());
        let numbers = [
            ("  orphans", engine.orphans),
            ("  containers", engine.containers),
            ("  restarts", engine.restarts),
            ("  passed on", engine.forwarded),
            ("  since", engine.since),
            ("  claimed", engine.claimed.map(u64::from)),
            ("  tracing", engine.tracing.map(u64::from)),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                line(&mut text, name, number.to_string());
            }
        }
    }
    text
}

/// A word: letters, digits and what stands in versions and names of functions.
fn plain(text: &str) -> &str {
    made_of(text, "._-+~")
}

/// The name of a distribution or of a GPU's model.
fn words(text: &str) -> &str {
    made_of(text, "._-+~()/ ")
}

fn made_of<'a>(text: &'a str, others: &str) -> &'a str {
    let is_allowed = text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c));
    if is_allowed {
        text
    } else {
        "<not a word>"
    }
}

fn findings(findings: &[Finding], with_names: bool) -> String {
    let mut text = String::new();
    for finding in findings {
        let _ = writeln!(text, "{:<9} {}", word(&finding.level), finding.check);
        let fix = finding.fix.iter().map(|fix| format!("fix: {fix}"));
        for said in [finding.seen.clone()].into_iter().chain(fix).filter(|_| with_names) {
            let _ = writeln!(text, "{:<10}{said}", "");
        }
    }
    text
}

/// The settings. A rule's pattern is a name.
fn configuration(host: &Host, with_names: bool) -> String {
    let Ok(config) = Config::of(host) else { return "not valid: `mpu config check` says why\n".to_string() };
    let mut text = String::new();
    line(&mut text, "engine", word(&config.engine));
    line(&mut text, "drivers", word(&config.drivers));
    line(&mut text, "modules", word(&config.modules));
    line(&mut text, "visibility", word(&config.visibility));
    line(&mut text, "redirect", config.redirect.word());
    line(&mut text, "notify_cpu", format!("{} %", config.notify_cpu_percent));
    for rule in &config.rules {
        let (kind, pattern) = match &rule.whom {
            Selector::Container(pattern) => ("container", pattern),
            Selector::Pod(pattern) => ("pod", pattern),
            Selector::Cgroup(pattern) => ("cgroup", pattern),
        };
        let pattern = if with_names { pattern.as_str() } else { "<name>" };
        line(&mut text, "rule", format!("{kind} {pattern} sees {}", word(&rule.sees)));
    }
    text
}

fn units(host: &Host) -> String {
    let Some(systemctl) = host.tool("systemctl") else { return "no systemd\n".to_string() };
    let mut text = String::new();
    for unit in UNITS {
        let mut show = Command::new(&systemctl);
        show.args(["show", "--property", PROPERTIES, unit]).stdin(Stdio::null()).stderr(Stdio::null());
        let said = show.output().map(|done| String::from_utf8_lossy(&done.stdout).into_owned()).unwrap_or_default();
        let asked = |line: &&str| line.split_once('=').is_some_and(|(key, _)| PROPERTIES.split(',').any(|p| p == key));
        let states: Vec<String> = said
            .lines()
            .filter(asked)
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| format!("{key}={}", plain(value)))
            .take(PROPERTIES.split(',').count())
            .collect();
        let _ = writeln!(text, "{unit:<20} {}", states.join(" "));
    }
    text
}

fn counters(host: &Host) -> String {
    let mut text = String::new();
    for engine in observed(host) {
        for (kind, counts) in [("translated", &engine.translated), ("passed", &engine.passed)] {
            for (name, count) in counts.iter().filter(|(_, count)| *count > 0) {
                let _ = writeln!(text, "{} {kind} {} {count}", engine.engine.name(), plain(name));
            }
        }
    }
    text
}

/// The end of what the last build for this kernel printed. Without names, the places and first lines of errors in our own sources.
fn build_log(host: &Host, with_names: bool) -> String {
    let Ok(release) = host.release() else { return String::new() };
    let path = Path::new(STORE).join(release).join("build.log");
    let text = String::from_utf8_lossy(&host.beginning(path, 4 << 20).unwrap_or_default()).into_owned();
    let mut start = text.len().saturating_sub(LONGEST / 2);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let text = &text[start..];
    if with_names {
        return text.to_string();
    }
    let errors: String = text.lines().filter_map(error_of_ours).map(|error| error + "\n").collect();
    format!("{} lines; errors in MPU's sources:\n{errors}", text.lines().count())
}

/// `mpu_main.c:12:3: error` of a compiler's line.
fn error_of_ours(line: &str) -> Option<String> {
    let (place, _) = line.split_once(" error: ")?;
    let mut parts = place.trim_end_matches(" fatal").trim_end_matches(':').rsplitn(3, ':');
    let (column, number, path) = (parts.next()?, parts.next()?, parts.next()?);
    let file = path.rsplit('/').next()?;
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let is_ours = file.starts_with("mpu_") && plain(file) == file;
    (is_ours && is_number(number) && is_number(column)).then(|| format!("{file}:{number}:{column}: error"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_errors_are_places_in_our_sources() {
        let place = |line: &str| error_of_ours(line);
        assert_eq!(place("/home/ada/mpu_main.c:12:3: error: secret").as_deref(), Some("mpu_main.c:12:3: error"));
        assert_eq!(place("mpu_main.c:1:2: fatal error: /home/ada").as_deref(), Some("mpu_main.c:1:2: error"));
        for line in
            ["/home/ada/secret.c:1:2: error: x", "ada@node: error: x", "mpu_a secret.c:1:2: error: x", "mpu_x: 1: 2"]
        {
            assert_eq!(place(line), None, "{line}");
        }
    }

    #[test]
    fn a_section_is_bounded_and_plain() {
        assert_eq!(bounded(""), "none\n");
        assert_eq!(bounded("a\u{1b}[2J\n\n"), "a\u{fffd}[2J\n");
        let long = bounded(&"ä".repeat(LONGEST));
        assert!(long.len() <= LONGEST + 8 && long.ends_with("\n(cut)\n"), "{}", long.len());
    }
}
