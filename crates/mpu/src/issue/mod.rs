//! `mpu doctor --report`: writes the facts of a host for an issue into one file.
//!
//! An allow-list decides what goes in: numbers, MPU's own identifiers, versions and models. Free text needs
//! `--with-names`.

mod kernel_log;

use crate::doctor::{self, Finding};
use crate::install::{self, Package, Record};
use mpu_engine::module::build::STORE;
use mpu_engine::observe::{self, Observed};
use mpu_host::config::{Config, Selector};
use mpu_host::driver::{self, Driver};
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use mpu_host::host::Host;
use mpu_host::time;
use mpu_os::child;
use mpu_os::file::{Mode, create_file_atomically, replace_file_atomically};
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest section in bytes: the build's log keeps its end, any other section its beginning.
const SECTION_LIMIT: usize = 48 << 10;
/// How long a program may take.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(10);
const UNITS: [&str; 4] = ["mpu.service", "mpu-notify.service", "mpu-metrics.service", "mpu-nri.service"];
/// Properties of a unit whose values are systemd's keywords or numbers.
const PROPERTIES: &str = "LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts";

#[derive(Debug, thiserror::Error)]
#[error("cannot write {}", path.display())]
pub struct ReportError {
    path: PathBuf,
    source: io::Error,
}

impl Explain for ReportError {
    fn facts(&self) -> Facts {
        let folder = "name a file in a folder that you may write to: --report FILE".to_string();
        match self.source.kind() {
            io::ErrorKind::AlreadyExists => {
                ("file_exists", Exit::Refused, "name another file, or give --force to replace it".to_string())
            }
            io::ErrorKind::InvalidInput => ("no_file", Exit::Refused, "name another file: --report FILE".to_string()),
            io::ErrorKind::PermissionDenied => ("cannot_write", Exit::Refused, folder),
            _ => ("cannot_write", Exit::Failed, folder),
        }
    }
}

/// Writes the report, readable for its owner alone. Replaces a file only if `force`, and never a link or a folder.
pub fn write(path: &Path, report: &str, force: bool) -> Result<(), ReportError> {
    let written = match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is there and is not a regular file"))
        }
        _ if force => replace_file_atomically(path, report.as_bytes(), Mode::Of(0o600)),
        _ => create_file_atomically(path, report.as_bytes()),
    };
    written.map(drop).map_err(|source| ReportError { path: path.to_path_buf(), source })
}

/// The report; with names, also free text.
pub fn report(host: &Host, with_names: bool) -> String {
    let mut text = format!("mpu {}, {}\n", env!("CARGO_PKG_VERSION"), time::stamp(time::now()));
    text += match with_names {
        true => "This report HAS names of this host, its containers and its users: `--with-names` was given.\n",
        false => "Versions, states and numbers only: names, PIDs, paths and free text are left out.\n",
    };
    text += "Read it before you attach it.\n";
    let engines = observe::all(host).unwrap_or_default();
    for (title, section) in [
        ("host", self::host(host)),
        ("engines", engines.iter().map(engine).collect()),
        ("findings of mpu doctor", findings(&doctor::examine(host), with_names)),
        ("configuration", configuration(host, with_names)),
        ("units", units(host)),
        ("counters", engines.iter().map(counters).collect()),
        ("the kernel's messages about MPU", kernel_log::messages(host, with_names)),
        ("the last build of the module", build_log(host, with_names)),
    ] {
        let _ = write!(text, "\n## {title}\n{}", bounded(&section));
    }
    text
}

/// A bounded section that ends with a newline and has no control characters.
fn bounded(section: &str) -> String {
    let text = String::from_utf8_lossy(&section.as_bytes()[..section.len().min(SECTION_LIMIT)]);
    let text = text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
    let cut = if section.len() > SECTION_LIMIT { "\n(cut)" } else { "" };
    match text.trim_end() {
        "" => "none\n".to_string(),
        text => format!("{text}{cut}\n"),
    }
}

fn lines<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    rows.into_iter().map(|(name, value)| format!("{name:<14} {value}\n")).collect()
}

fn host(host: &Host) -> String {
    let of_system = host.text("/etc/os-release").unwrap_or_default();
    let pretty = of_system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default();
    let driver = Driver::loaded(host).map_or("none is loaded".to_string(), |driver| {
        let era = driver.known().map_or("unknown".to_string(), |known| driver::native(known).era.to_string());
        format!("{}, flavour {}, era {era}", version_or_placeholder(&driver.version), debug_name(&driver.flavour))
    });
    let installed = match (install::package(host), Record::read(host)) {
        (Some(Package { manager, .. }), _) => format!("as a package ({manager})"),
        (None, Some(_)) => "by mpu install".to_string(),
        (None, None) => "no".to_string(),
    };
    let tools = ["dockerd", "containerd", "crio", "podman", "k3s", "nvidia-container-runtime", "systemctl", "dkms"];
    let found_tools: Vec<&str> = tools.into_iter().filter(|tool| host.tool(tool).is_some()).collect();
    let mut rows = vec![
        ("system", name_or_placeholder(pretty.trim_matches('"')).to_string()),
        ("kernel", version_or_placeholder(&host.release().unwrap_or_default()).to_string()),
        ("machine", std::env::consts::ARCH.to_string()),
        ("lockdown", debug_name(&host.lockdown())),
        ("signatures", if host.enforces_signatures() { "demanded" } else { "not demanded" }.to_string()),
        ("driver", driver),
    ];
    rows.extend(
        models(host).into_iter().map(|(model, count)| ("GPU", format!("{count} × {}", name_or_placeholder(&model)))),
    );
    rows.extend([("installed", installed), ("programs", found_tools.join(", "))]);
    lines(rows)
}

/// The driver's model names, with the number of GPUs of each.
fn models(host: &Host) -> BTreeMap<String, usize> {
    let mut models = BTreeMap::new();
    for address in host.names("/proc/driver/nvidia/gpus").iter().take(64) {
        let information = format!("/proc/driver/nvidia/gpus/{address}/information");
        let text = String::from_utf8_lossy(&host.beginning(information, 4096).unwrap_or_default()).into_owned();
        if let Some(model) = text.lines().find_map(|line| line.strip_prefix("Model:")) {
            *models.entry(model.trim().to_string()).or_default() += 1;
        }
    }
    models
}

fn debug_name(value: &impl Debug) -> String {
    format!("{value:?}").to_lowercase()
}

fn engine(engine: &Observed) -> String {
    let refused =
        engine.refused.as_ref().map(|(symbol, errno)| format!("{}: error {errno}", version_or_placeholder(symbol)));
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let rows = [
        ("engine", Some(engine.engine.name().to_string())),
        ("  version", Some(version_or_placeholder(&engine.version).to_string())),
        ("  state", Some(version_or_placeholder(engine.state.word()).to_string())),
        ("  refused", refused),
        ("  callers", Some(engine.inside.to_string())),
        ("  orphans", number(engine.orphans)),
        ("  containers", number(engine.containers)),
        ("  restarts", number(engine.restarts)),
        ("  passed on", number(engine.forwarded)),
        ("  since", number(engine.since)),
        ("  claimed", number(engine.claimed.map(u64::from))),
        ("  tracing", number(engine.tracing.map(u64::from))),
    ];
    lines(rows.into_iter().filter_map(|(name, value)| Some((name, value?))))
}

/// The text, if it has only characters of versions and function names; otherwise a placeholder.
fn version_or_placeholder(text: &str) -> &str {
    or_placeholder(text, "._-+~")
}

/// The text, if it can be the name of a distribution or of a GPU model; otherwise a placeholder.
fn name_or_placeholder(text: &str) -> &str {
    or_placeholder(text, "._-+~()/ ")
}

fn or_placeholder<'a>(text: &'a str, others: &str) -> &'a str {
    let is_allowed = text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c));
    if is_allowed { text } else { "<not a word>" }
}

fn findings(findings: &[Finding], with_names: bool) -> String {
    let mut text = String::new();
    for finding in findings {
        let _ = writeln!(text, "{:<9} {}", debug_name(&finding.level), finding.check);
        let fix = finding.fix.iter().map(|fix| format!("fix: {fix}"));
        for output in [finding.seen.clone()].into_iter().chain(fix).filter(|_| with_names) {
            let _ = writeln!(text, "{:<10}{output}", "");
        }
    }
    text
}

/// The settings. The pattern of a rule is a name.
fn configuration(host: &Host, with_names: bool) -> String {
    let Ok(config) = Config::of(host) else { return "not valid: `mpu config check` says why\n".to_string() };
    let mut text = lines([
        ("engine", debug_name(&config.engine)),
        ("drivers", debug_name(&config.drivers)),
        ("modules", debug_name(&config.modules)),
        ("visibility", debug_name(&config.visibility)),
        ("redirect", config.redirect.word().to_string()),
        ("notify_cpu", format!("{} %", config.notify_cpu_percent)),
    ]);
    for rule in &config.rules {
        let (kind, pattern) = match &rule.selector {
            Selector::Container(pattern) => ("container", pattern),
            Selector::Pod(pattern) => ("pod", pattern),
            Selector::Cgroup(pattern) => ("cgroup", pattern),
            Selector::Label { label, .. } => ("label", label),
        };
        let pattern = if with_names { pattern.as_str() } else { "<name>" };
        text += &lines([("rule", format!("{kind} {pattern} sees {}", debug_name(&rule.sees)))]);
    }
    text
}

fn units(host: &Host) -> String {
    let Some(systemctl) = host.tool("systemctl") else { return "no systemd\n".to_string() };
    let mut text = String::new();
    for unit in UNITS {
        let mut show = Command::new(&systemctl);
        show.args(["show", "--property", PROPERTIES, unit]).stdin(Stdio::null());
        let output =
            child::run(&mut show, PROGRAM_TIMEOUT, SECTION_LIMIT as u64).map_or(Vec::new(), |done| done.stdout);
        let output = String::from_utf8_lossy(&output);
        let properties = output.lines().filter_map(|line| line.split_once('='));
        let properties = properties.filter(|(key, _)| PROPERTIES.split(',').any(|property| property == *key));
        let states = properties.map(|(key, value)| format!("{key}={}", version_or_placeholder(value)));
        let states: Vec<String> = states.take(PROPERTIES.split(',').count()).collect();
        let _ = writeln!(text, "{unit:<20} {}", states.join(" "));
    }
    text
}

fn counters(engine: &Observed) -> String {
    let kinds = [("translated", &engine.translated), ("passed", &engine.passed)].into_iter();
    let all = kinds.flat_map(|(kind, counts)| counts.iter().map(move |(name, count)| (kind, name, count)));
    all.filter(|(.., count)| **count > 0)
        .map(|(kind, name, count)| {
            format!("{} {kind} {} {count}\n", engine.engine.name(), version_or_placeholder(name))
        })
        .collect()
}

/// The end of the log of this kernel's last build. Without names, only the places of errors in MPU's own sources.
fn build_log(host: &Host, with_names: bool) -> String {
    let Ok(release) = host.release() else { return String::new() };
    let path = Path::new(STORE).join(release).join("build.log");
    let bytes = host.beginning(path, 4 << 20).unwrap_or_default();
    if with_names {
        return String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SECTION_LIMIT / 2)..]).into_owned();
    }
    let text = String::from_utf8_lossy(&bytes);
    let errors: String = text.lines().filter_map(own_source_error).map(|error| error + "\n").collect();
    format!("{} lines; errors in MPU's sources:\n{errors}", text.lines().count())
}

/// The place of an error in MPU's sources, such as `mpu_main.c:12:3: error`, from a compiler's line.
fn own_source_error(line: &str) -> Option<String> {
    let (place, _) = line.split_once(" error: ")?;
    let place = place.rsplit('/').next()?.trim_end_matches(" fatal").trim_end_matches(':');
    let (file, numbers) = place.split_once(':')?;
    let is_place = numbers.chars().all(|c| c.is_ascii_digit() || c == ':');
    (is_place && file.starts_with("mpu_") && version_or_placeholder(file) == file).then(|| format!("{place}: error"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;
    use std::os::unix::fs::symlink;

    #[test]
    fn build_errors_are_places_in_our_sources() {
        for (line, expected) in [
            ("/home/ada/mpu_main.c:12:3: error: secret", Some("mpu_main.c:12:3: error")),
            ("mpu_main.c:1:2: fatal error: /home/ada", Some("mpu_main.c:1:2: error")),
            ("/home/ada/secret.c:1:2: error: x", None),
            ("ada@node: error: x", None),
            ("mpu_a secret.c:1:2: error: x", None),
            ("mpu_x: 1: 2", None),
        ] {
            assert_eq!(own_source_error(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn early_build_error_is_reported() {
        let fake = FakeHost::in_order();
        let host = fake.host();
        let log = format!("/x/mpu_main.c:1:2: error: secret\n{}", "a warning\n".repeat(SECTION_LIMIT));
        fake.write(&format!("{STORE}/{}/build.log", host.release().expect("a release")), &log);
        let expected = format!("{} lines; errors in MPU's sources:\nmpu_main.c:1:2: error\n", SECTION_LIMIT + 1);
        assert_eq!(build_log(&host, false), expected);
    }

    #[test]
    fn section_is_bounded_and_plain() {
        assert_eq!(bounded(""), "none\n");
        assert_eq!(bounded("a\u{1b}[2J\n\n"), "a\u{fffd}[2J\n");
        let long = bounded(&"ä".repeat(SECTION_LIMIT));
        assert!(long.len() <= SECTION_LIMIT + 8 && long.ends_with("\n(cut)\n"), "{}", long.len());
    }

    #[test]
    fn report_replaces_only_files_with_force() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("target"), "theirs").expect("a file");
        symlink(at("target"), at("link")).expect("a link");
        for (name, force, code) in [
            ("new", false, None),
            ("new", false, Some("file_exists")),
            ("new", true, None),
            ("link", false, Some("no_file")),
            ("link", true, Some("no_file")),
            ("", true, Some("no_file")),
            ("no/such", false, Some("cannot_write")),
        ] {
            let written = write(&at(name), if force { "two" } else { "one" }, force);
            assert_eq!(written.as_ref().err().map(Explain::code), code, "{name} {force} {written:?}");
        }
        let texts = ["target", "new"].map(|name| fs::read_to_string(at(name)).expect("a file"));
        assert_eq!(texts, ["theirs", "two"]);
    }
}
