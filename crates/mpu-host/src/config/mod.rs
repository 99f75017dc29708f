//! Parses `/etc/mpu/config.toml`: the engine, and the containers that see more than their own PID namespace. Errors name the line.
//! Without a file the defaults apply.

mod file;
pub mod pods;
pub mod rules;
mod settings;

pub use settings::{Drivers, EngineSetting, Modules, Redirect, UnknownDriver};

use crate::exit::Exit;
use crate::explain::{Explain, Facts};
use crate::host::Host;
use mpu_core::policy;
use pods::Pods;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_spanned::Spanned;
use std::io;
use std::path::{Path, PathBuf};

pub const FILE: &str = "/etc/mpu/config.toml";

/// The file as it is shipped: every key with its default, as comments.
pub const DEFAULT: &str = include_str!("default.toml");

/// A longer file is refused: no engine accepts that many rules.
const MAX_SIZE: u64 = 1 << 20;

/// The view of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// The processes of its own PID namespace.
    #[default]
    Own,
    /// Those of its pod's other containers too, by their host PIDs.
    Pod,
    /// The host's processes.
    Host,
}

/// Selects containers by a glob over one property, or by their pod's label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Selector {
    /// A container's id, or its name if its cgroup has that (LXC, systemd-nspawn).
    Container(String),
    /// A pod's uid (Kubernetes) or id (Podman).
    Pod(String),
    /// A cgroup's path in the unified hierarchy.
    Cgroup(String),
    /// A Kubernetes pod's namespace and one or more labels; no glob.
    Label {
        /// The pod's namespace.
        namespace: String,
        /// One or more labels, `KEY=VALUE,…`.
        label: String,
    },
}

/// One rule. The first that matches decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Rule {
    /// The view of the selected containers.
    pub sees: Visibility,
    /// The selected containers.
    #[serde(rename = "for")]
    pub selector: Selector,
}

/// The configuration, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Config {
    /// The engine.
    pub engine: EngineSetting,
    /// The accepted releases of the driver.
    pub drivers: Drivers,
    /// The accepted module files.
    pub modules: Modules,
    /// How the module redirects.
    pub redirect: Redirect,
    /// The view of containers without a rule.
    pub visibility: Visibility,
    /// Processor time that the notify engine spends on one container, in percent of one processor; 0 is no limit.
    pub notify_cpu_percent: u32,
    /// Whether `mpu up` starts the container engine's plugin with the notify engine.
    pub nri: bool,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

const NOTIFY_CPU_PERCENT: u32 = 100;

impl Default for Config {
    fn default() -> Config {
        Raw::default().with_rules(Vec::new())
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Raw {
    engine: EngineSetting,
    drivers: Drivers,
    modules: Modules,
    redirect: Redirect,
    visibility: Visibility,
    notify_cpu_percent: Option<u32>,
    nri: bool,
    #[serde(rename = "rule")]
    rules: Vec<Spanned<RawRule>>,
}

impl Raw {
    fn with_rules(self, rules: Vec<Rule>) -> Config {
        let Raw { engine, drivers, modules, redirect, visibility, nri, .. } = self;
        let notify_cpu_percent = self.notify_cpu_percent.unwrap_or(NOTIFY_CPU_PERCENT);
        Config { engine, drivers, modules, redirect, visibility, notify_cpu_percent, nri, rules }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    sees: Visibility,
    container: Option<Spanned<String>>,
    pod: Option<Spanned<String>>,
    cgroup: Option<Spanned<String>>,
    namespace: Option<Spanned<String>>,
    label: Option<Spanned<String>>,
}

/// Why a file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// It is malformed.
    #[error("{}, line {line}: {what}", path.display())]
    Malformed {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        what: String,
    },
}

impl Explain for ConfigError {
    fn facts(&self) -> Facts {
        match self {
            ConfigError::Unreadable { source, .. } => {
                let exit = if source.kind() == io::ErrorKind::PermissionDenied { Exit::Refused } else { Exit::Failed };
                ("config_unreadable", exit, "check the file and its permissions, or run it as root".to_string())
            }
            ConfigError::Malformed { path, .. } => {
                let path = path.display();
                let fix =
                    format!("correct the line, then `mpu config check {path}`; `mpu config default` shows every key");
                ("config_malformed", Exit::Failed, fix)
            }
        }
    }
}

impl Config {
    /// The host's configuration; the defaults if it has no file.
    ///
    /// # Errors
    /// If the file cannot be used: a policy is never half applied.
    pub fn of(host: &Host) -> Result<Config, ConfigError> {
        let path = host.at(FILE);
        match Config::read(&path, file::read(&path, MAX_SIZE)) {
            Err(ConfigError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound && !file::exists_or_dangles(&path) =>
            {
                Ok(Config::default())
            }
            other => other,
        }
    }

    /// The configuration in a file that a person names, a pipe, or standard input (`-`).
    ///
    /// # Errors
    /// If it does not exist, cannot be read, is too long, or is malformed.
    pub fn named(path: &Path) -> Result<Config, ConfigError> {
        let path = if path == Path::new("-") { Path::new(file::STDIN) } else { path };
        Config::read(path, file::read_named(path, MAX_SIZE))
    }

    fn read(path: &Path, text: io::Result<String>) -> Result<Config, ConfigError> {
        let text = text.map_err(|source| ConfigError::Unreadable { path: path.to_path_buf(), source })?;
        Config::parse(&text).map_err(|(line, what)| ConfigError::Malformed { path: path.to_path_buf(), line, what })
    }

    /// Valid rules that match nothing on this host, as sentences.
    pub fn warnings(&self, host: &Host) -> Vec<String> {
        let warning = |(at, rule): (usize, &Rule)| {
            let why = rules::never_matches(&rule.selector)?;
            let Selector::Cgroup(glob) = &rule.selector else { return None };
            Some(format!("rule {} of {} (\"{glob}\") never matches: {why}", at + 1, self.rules.len()))
        };
        self.rules.iter().enumerate().filter_map(warning).chain(rules::without_pods(host, self)).collect()
    }

    /// Parses a text. The error has the line and the fault.
    fn parse(text: &str) -> Result<Config, (usize, String)> {
        let mut raw: Raw = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(text.len(), |span| span.start);
            (line_of(text, at), error.message().to_string())
        })?;
        let mut rules = Vec::new();
        for rule in std::mem::take(&mut raw.rules) {
            let start = rule.span().start;
            rules.push(rule.into_inner().check().map_err(|(at, what)| (line_of(text, at.unwrap_or(start)), what))?);
        }
        let config = raw.with_rules(rules);
        let compiled = rules::compile(&config, &Pods::default());
        if !rules::fits(&compiled) {
            let limit = format!("{} lines, {} bytes", policy::MOST_RULES, policy::LONGEST_RULES);
            let size = format!("{} lines, {} bytes", compiled.lines().count(), compiled.len());
            let what = format!("the rules are more than an engine takes: {size}; at most {limit}");
            return Err((line_of(text, text.len()), what));
        }
        Ok(config)
    }
}

impl RawRule {
    /// The rule; or its fault, and the line if it differs from the rule's first.
    fn check(self) -> Result<Rule, (Option<usize>, String)> {
        type Make = fn(String) -> Selector;
        let named_by = [
            (self.container, Selector::Container as Make),
            (self.pod, Selector::Pod as Make),
            (self.cgroup, Selector::Cgroup as Make),
        ];
        let globs = named_by.into_iter().filter_map(|(glob, make)| Some((glob?, make)));
        let mut named_by: Vec<_> = globs.map(|(glob, make)| (glob.span().start, make(glob.into_inner()))).collect();
        match (self.namespace, self.label) {
            (Some(namespace), Some(label)) => {
                let at = label.span().start;
                let (namespace, label) = (namespace.into_inner(), label.into_inner());
                named_by.push((at, Selector::Label { namespace, label }));
            }
            (Some(half), None) | (None, Some(half)) => {
                return Err((Some(half.span().start), "namespace and label select pods together".to_string()));
            }
            (None, None) => {}
        }
        let requirement = "a rule names one of container, pod, cgroup, and namespace with label";
        let last = named_by.iter().map(|(at, _)| *at).max();
        let (at, selector) = named_by.pop().ok_or((None, format!("{requirement}; this one names none")))?;
        if !named_by.is_empty() {
            return Err((last, format!("{requirement}; this one names several")));
        }
        match rules::selector_fault(self.sees, &selector) {
            Some(what) => Err((Some(at), what)),
            None => Ok(Rule { sees: self.sees, selector }),
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    let last = before.last() == Some(&b'\n') && at >= text.len() && !text.is_empty();
    before.iter().filter(|&&byte| byte == b'\n').count() + 1 - usize::from(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;

    fn wrong(text: &str) -> (usize, String) {
        Config::parse(text).expect_err("malformed")
    }

    #[test]
    fn missing_and_shipped_file_give_defaults() {
        let fake = FakeHost::in_order();
        assert_eq!(Config::of(&fake.host()).expect("defaults"), Config::default());
        assert_eq!(Config::parse(DEFAULT).expect("sound"), Config::default());
    }

    #[test]
    fn shipped_file_has_every_key_and_valid_examples() {
        for key in [
            "engine",
            "drivers",
            "modules",
            "redirect",
            "visibility",
            "notify_cpu_percent",
            "nri",
            "[[rule]]",
            "sees",
            "container",
            "pod",
            "cgroup",
            "namespace",
            "label",
        ] {
            assert!(DEFAULT.contains(&format!("#{key}")), "{key}");
        }
        let uncommented: String = DEFAULT
            .lines()
            .map(|line| line.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(line).to_string() + "\n")
            .collect();
        let config = Config::parse(&uncommented).expect("sound");
        assert_eq!(config.rules.len(), 4);
    }

    #[test]
    fn whole_file_is_read() {
        let config = Config::parse(
            "engine = \"module\"\nvisibility = \"pod\"\n[[rule]]\nsees = \"host\"\ncgroup = \"/system.slice/dcgm.service\"\n",
        )
        .expect("sound");
        assert_eq!(
            (config.engine, config.visibility, config.drivers),
            (EngineSetting::Module, Visibility::Pod, Drivers::Any)
        );
        assert_eq!(Config::parse("drivers = \"known\"\n").expect("sound").drivers, Drivers::Known);
        assert_eq!(wrong("drivers = \"580\"\n").0, 1);
        assert_eq!(Config::parse("redirect = \"ipmodify\"\n").expect("sound").redirect, Redirect::Ipmodify);
        assert_eq!(wrong("redirect = \"jump\"\n").0, 1);
        assert_eq!(Config::parse("notify_cpu_percent = 0\n").expect("sound").notify_cpu_percent, 0);
        assert_eq!(Config::parse("").expect("sound").notify_cpu_percent, 100);
        assert_eq!(wrong("\nnotify_cpu_percent = -1\n").0, 2);
        assert_eq!(
            (Config::parse("nri = true\n").expect("sound").nri, Config::parse("").expect("sound").nri),
            (true, false)
        );
        assert_eq!(wrong("nri = \"on\"\n").0, 1);
        assert_eq!(config.rules[0].selector, Selector::Cgroup("/system.slice/dcgm.service".to_string()));
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(wrong("engine = \"auto\"\nvisibilty = \"own\"\n").0, 2);
        assert!(wrong("visibilty = 1").1.contains("visibilty"));
        assert_eq!(wrong("\n\nvisibility = \"all\"\n").0, 3);
        assert_eq!(wrong("[[rule]]\nsees = \"own\"\npod = 3\n").0, 3);
        let (line, what) = wrong("engine = \"auto\"\n\n[[rule]]\nsees = \"host\"\n");
        assert!(line == 3 && what.ends_with("this one names none"), "{line}: {what}");
        let (line, what) = wrong("[[rule]]\nsees = \"host\"\npod = \"a\"\ncgroup = \"/b\"\n");
        assert!(line == 4 && what.ends_with("this one names several"), "{line}: {what}");
        let half = |key: &str| wrong(&format!("[[rule]]\nsees = \"host\"\n{key} = \"a\"\n"));
        for (line, what) in [half("namespace"), half("label")] {
            assert!(line == 3 && what.contains("together"), "{line}: {what}");
        }
        let labelled = "[[rule]]\nsees = \"host\"\nnamespace = \"a\"\nlabel = \"b=c\"\n";
        assert!(matches!(&Config::parse(labelled).expect("sound").rules[0].selector, Selector::Label { .. }));
        let (line, what) = wrong(&format!("{labelled}pod = \"d\"\n"));
        assert!(line == 5 && what.ends_with("this one names several"), "{line}: {what}");
        let (line, what) = wrong("[[rule]]\nsees = \"host\"\nnamespace = \"a\"\nlabel = \"b\"\n");
        assert!(line == 4 && what.contains("KEY=VALUE"), "{line}: {what}");
        let (line, what) = wrong("[[rule]]\nsees = \"host\"\ncgroup = \"relative\"\n");
        assert!(line == 3 && what.contains('/'), "{line}: {what}");
        assert_eq!(wrong("visibility = \"own\"\nx").0, 2);
    }

    #[test]
    fn config_with_too_many_rules_is_refused() {
        let many = "[[rule]]\nsees = \"host\"\ncontainer = \"abcdef\"\n".repeat(40);
        let (line, what) = wrong(&many);
        assert!(line == 120 && what.contains("more than an engine takes"), "{line}: {what}");
    }

    #[test]
    fn special_config_file_is_error() {
        let fake = FakeHost::in_order();
        let path = fake.host().at(FILE);
        let error = || match Config::of(&fake.host()) {
            Err(error @ ConfigError::Unreadable { .. }) => crate::explain::chain(&error).to_string(),
            other => panic!("{other:?}"),
        };
        fake.link(FILE, "/nowhere/config.toml");
        assert!(error().contains("a link to /nowhere/config.toml, which is not there"), "{}", error());
        std::fs::remove_file(&path).expect("removed");
        // No process writes into it: reading would block for ever.
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
        assert!(error().contains("not a file"), "{}", error());
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", &path).expect("a link");
        assert!(error().contains("not a file"), "{}", error());
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/dev/null", &path).expect("a link");
        assert_eq!(Config::of(&fake.host()).expect("empty"), Config::default());
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, [b'#'].repeat(MAX_SIZE as usize + 1)).expect("written");
        assert!(error().contains("more than"), "{}", error());
    }

    #[test]
    fn config_errors_have_code_and_fix() {
        let fake = FakeHost::in_order();
        fake.write(FILE, "x = 1\n");
        let error = Config::of(&fake.host()).expect_err("malformed");
        assert_eq!((error.code(), error.exit()), ("config_malformed", Exit::Failed));
        assert!(error.to_string().contains("config.toml, line 1: ") && error.fix().contains("mpu config check"));
    }
}
