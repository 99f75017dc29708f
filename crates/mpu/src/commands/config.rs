//! `mpu config`: checks the file, shows it, and applies its rules to a running engine.

use crate::report::{Lines, Report, Style};
use mpu_engine::apply::{Applied, How, holds};
use mpu_host::config::{Config, Drivers, Modules, Visibility, rules};
use mpu_host::exit::Exit;
use mpu_host::explain::Explained;
use mpu_host::host::Host;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A sound file.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sound")]
pub struct ConfigCheck {
    /// The file; null if the host has none, and everything is a default.
    pub file: Option<PathBuf>,
    /// How many rules it has.
    pub rules: usize,
    /// Valid rules that never match, as sentences.
    pub warnings: Vec<String>,
}

/// The configuration in force.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Shown")]
pub struct ConfigView {
    /// Whether there is a file; without one, everything is a default.
    pub file: Option<PathBuf>,
    /// What it says.
    pub config: Config,
    /// Its rules as an engine gets them, one per line.
    pub compiled: Vec<String>,
    /// Whether every engine that is up has these rules, and the notify engine this budget; null if none is up.
    pub applied: Option<bool>,
}

/// Checks a file: the host's, which may be absent, or the named one.
pub fn check(host: &Host, file: Option<&Path>) -> Result<ConfigCheck, Explained> {
    let (file, config) = match file {
        Some(file) => (Some(file.to_path_buf()), Config::named(file)?),
        None => {
            let at = host.at(mpu_host::config::FILE);
            let config = Config::of(host)?;
            (Some(at).filter(|at| at.exists()), config)
        }
    };
    Ok(ConfigCheck { file, rules: config.rules.len(), warnings: config.warnings(host) })
}

pub fn show(host: &Host) -> Result<ConfigView, Explained> {
    let config = Config::of(host)?;
    let file = Some(PathBuf::from(mpu_host::config::FILE)).filter(|file| host.at(file).exists());
    let compiled: Vec<String> = rules::of_host(host, &config).lines().map(str::to_string).collect();
    let applied = holds(host, &config, &compiled);
    Ok(ConfigView { file, config, compiled, applied })
}

impl Report for ConfigCheck {
    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        match &self.file {
            Some(file) => lines.plain(format!("{}: {} rules, {}", file.display(), self.rules, style.good("sound"))),
            None => lines.plain(format!("no {}: every default, {}", mpu_host::config::FILE, style.good("sound"))),
        };
        for warning in &self.warnings {
            lines.plain(format!("{}: {warning}", style.warn("warning")));
        }
        lines.text
    }
}

impl Report for ConfigView {
    fn text(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        let none = || format!("no {}: every default", mpu_host::config::FILE);
        lines.put("file", self.file.as_ref().map_or_else(none, |file| file.display().to_string()));
        lines.put("engine", format!("{:?}", self.config.engine).to_lowercase());
        let drivers = match self.config.drivers {
            Drivers::Any => "any",
            Drivers::Known => "known: `mpu up` refuses a release that this MPU was not checked against",
        };
        lines.put("drivers", drivers);
        let modules = match self.config.modules {
            Modules::Any => "any",
            Modules::Prebuilt => "prebuilt: those that were built elsewhere, and no other",
        };
        lines.put("modules", modules);
        lines.put("redirect", self.config.redirect.word());
        let sees = match self.config.visibility {
            Visibility::Own => "own: the processes of its own PID namespace",
            Visibility::Pod => "pod: its own, and its pod's by the host's numbers",
            Visibility::Host => "host: everything, by the host's numbers",
        };
        lines.put("visibility", sees);
        let budget = match self.config.notify_cpu_percent {
            0 => "no limit".to_string(),
            percent => format!("{percent} % of a processor for one container, on average over a second"),
        };
        lines.put("notify cpu", budget);
        let nri = match self.config.nri {
            false => "no: `mpu up` does not start mpu-nri.service",
            true => "yes: `mpu up` starts mpu-nri.service with the notify engine",
        };
        lines.put("nri", nri);
        for (at, rule) in self.compiled.iter().enumerate() {
            lines.put(if at == 0 { "rules" } else { "" }, rule);
        }
        lines.put(
            "applied",
            match self.applied {
                Some(true) => style.good("yes: the engine has this"),
                Some(false) => style.warn("no: `sudo mpu config apply` gives it to the running engine"),
                None => "no engine is up, or only root can read its rules".to_string(),
            },
        );
        lines.text
    }
}

impl Report for Applied {
    fn exit(&self) -> Exit {
        match self.result {
            How::Applied => Exit::Ok,
            How::NotUp => Exit::NotReady,
        }
    }

    fn text(&self, style: Style) -> String {
        match self.result {
            How::Applied => format!("the running engine has {} rules, for every call from now on\n", self.rules),
            How::NotUp => format!("{}: `mpu up` applies the rules when it starts one\n", style.warn("no engine is up")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_engine::apply::apply;
    use mpu_engine::module::state::{self, ARMED};
    use mpu_host::host::fake::FakeHost;
    use mpu_notify::fake::{self, FakeSupervisor};

    const RULE: &str = "[[rule]]\nsees = \"host\"\ncgroup = \"/monitors\"\n";

    fn up() -> FakeHost {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", ARMED);
        fake.write("/sys/module/mpu/parameters/policy", "");
        fake.write(mpu_host::config::FILE, RULE);
        fake
    }

    #[test]
    fn rules_are_shown_and_applied() {
        let fake = up();
        let shown = show(&fake.host()).expect("sound");
        crate::report::documented::check(&crate::report::json_of("config", &shown));
        assert_eq!((shown.compiled.as_slice(), shown.applied), (&["host /monitors".to_string()][..], Some(false)));
        let applied = apply(&fake.host()).expect("applied");
        crate::report::documented::check(&crate::report::json_of("config", &applied));
        assert_eq!((applied.result, applied.exit()), (How::Applied, Exit::Ok));
        assert_eq!(show(&fake.host()).expect("sound").applied, Some(true));
        std::fs::remove_file(fake.host().at(mpu_host::config::FILE)).expect("removed");
        apply(&fake.host()).expect("applied");
        assert_eq!(state::read_policy(&fake.host()).expect("readable"), Some(Vec::new()));
    }

    #[test]
    fn apply_sends_budget_to_supervisor() {
        let fake = FakeHost::in_order();
        let supervisor = FakeSupervisor::on(&fake, fake::state(&["a"]));
        assert_eq!(show(&fake.host()).expect("defaults").applied, Some(true));
        fake.write(mpu_host::config::FILE, "notify_cpu_percent = 25\n");
        let shown = show(&fake.host()).expect("sound");
        assert_eq!(shown.applied, Some(false));
        assert!(shown.text(Style::Plain).contains("25 % of a processor"), "{}", shown.text(Style::Plain));
        assert_eq!(apply(&fake.host()).expect("applied").result, How::Applied);
        assert_eq!(*supervisor.commands.lock().expect("ours"), ["policy\n", "budget\n25"]);
        assert_eq!(show(&fake.host()).expect("sound").applied, Some(true));
    }

    #[test]
    fn every_key_of_file_is_shown() {
        let fake = FakeHost::in_order();
        let text = || show(&fake.host()).expect("sound").text(Style::Plain);
        assert!(text().contains("nri          no"), "{}", text());
        fake.write(mpu_host::config::FILE, "nri = true\n");
        assert!(text().contains("nri          yes"), "{}", text());
        // One line per key, in the file's order. Rules have their own lines.
        let keys = ["engine", "drivers", "modules", "redirect", "visibility", "notify cpu", "nri"];
        let all = text();
        let at: Vec<_> =
            keys.iter().map(|key| all.find(&format!("\n{key} ")).unwrap_or_else(|| panic!("{key}: {all}"))).collect();
        assert!(at.is_sorted(), "{all}");
        let config = serde_json::to_value(Config::default()).expect("JSON");
        assert_eq!(config.as_object().expect("keys").len(), keys.len() + 1, "a new key has a line, too");
    }

    #[test]
    fn apply_without_engine_is_not_up() {
        let fake = FakeHost::in_order();
        let applied = apply(&fake.host()).expect("nothing to do");
        assert_eq!((applied.result, applied.exit()), (How::NotUp, Exit::NotReady));
        assert_eq!(show(&fake.host()).expect("defaults").applied, None);
    }

    #[test]
    fn module_without_policy_is_reported_older() {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", ARMED);
        // As in sysfs, writing cannot create this file: it is a folder here.
        fake.write("/sys/module/mpu/parameters/policy/x", "");
        let error = apply(&fake.host()).expect_err("no policy");
        assert_eq!(error.code(), "policy_unwritable");
        assert!(error.fix().contains("older than this mpu"));
    }

    #[test]
    fn check_names_line_of_invalid_file() {
        let fake = up();
        let sound = check(&fake.host(), None).expect("sound");
        crate::report::documented::check(&crate::report::json_of("config", &sound));
        assert_eq!((sound.rules, sound.warnings.len()), (1, 0));
        let deep = format!("{RULE}[[rule]]\nsees = \"own\"\ncgroup = \"{}\"\n", "/a".repeat(17));
        fake.write("/deep.toml", &deep);
        let warned = check(&fake.host(), Some(&fake.host().at("/deep.toml"))).expect("sound");
        let text = warned.text(Style::Plain);
        assert_eq!(warned.exit(), Exit::Ok);
        assert!(text.contains("warning: rule 2 of 2 (\"/a/a") && text.contains("17 names"), "{text}");
        fake.write("/elsewhere.toml", "visibility = \"own\"\nrule = 3\n");
        let error = check(&fake.host(), Some(&fake.host().at("/elsewhere.toml"))).expect_err("malformed");
        assert!(error.to_string().contains("elsewhere.toml, line 2: "), "{error}");
        fake.remove(mpu_host::config::FILE);
        let none = check(&fake.host(), None).expect("no file is sound");
        assert_eq!((&none.file, none.rules, none.exit()), (&None, 0, Exit::Ok));
        assert!(none.text(Style::Plain).contains("every default"));
        let error = check(&fake.host(), Some(Path::new("/nonexistent.toml"))).expect_err("named, and not there");
        assert_eq!(error.code(), "config_unreadable");
    }
}
