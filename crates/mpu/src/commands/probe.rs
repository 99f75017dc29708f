//! `mpu probe`: reports what a container sees, and whether that is right.

use crate::probe::compare::ProbeReport;
use crate::report::{Lines, Report, Style};
use mpu_engine::Engine;
use mpu_host::config::Visibility;
use mpu_host::driver::Numbering;
use mpu_host::exit::Exit;

impl Report for ProbeReport {
    fn exit(&self) -> Exit {
        match self.as_expected {
            Some(false) => Exit::Failed,
            _ => Exit::Ok,
        }
    }

    fn text(&self, style: Style) -> String {
        let seen = &self.evidence.child;
        let mut lines = Lines::new(style);
        lines.plain(match self.right {
            true if self.shows_host() => {
                style.good("a container on this host sees the host's processes, as configured")
            }
            true => style.good("a container on this host is seen right"),
            false => style.bad("a container on this host is not seen right:"),
        });
        for row in &self.faults {
            lines.plain(format!("  - {}", row.explanation));
        }
        let who = if self.evidence.in_init_namespace { "on the host" } else { "out here (which is a container, too)" };
        lines.put("driver", self.driver.line());
        let engine = match self.engine {
            Some(Engine::Notify) => "armed, by the notify engine: for containers that start with its listener",
            Some(Engine::Module) => "armed",
            None => "not translating",
        };
        lines.put("MPU", engine);
        let child = format!(
            "pid {} in its namespace, {} {who}; its second thread {}",
            seen.own_pid, seen.outer_pid, seen.thread_id
        );
        lines.put("the child", child);
        let word = |numbers: Option<Numbering>| numbers.map_or("not found".to_string(), |n| n.to_string());
        lines.put("list", format!("{:?}: {}", seen.list, word(self.found.list)));
        lines.put(
            "details",
            match (&seen.details, &seen.details_error) {
                (None, error) => format!("not measured: {}", error.as_deref().unwrap_or("the driver did not answer")),
                (Some(_), _) => format!("found by {}", word(self.found.details)),
            },
        );
        lines.put(
            "samples",
            match &seen.samples {
                None => "not measured: not in this release, or the driver did not answer".to_string(),
                Some(s) => format!("name {:?}, with {} kernel addresses", s.pids, s.kernel_pointers),
            },
        );
        lines.plain(self.conclusion(style));
        lines.text
    }
}

impl ProbeReport {
    /// Whether an engine shows every container the host's processes, so that nothing can be compared.
    pub fn shows_host(&self) -> bool {
        self.engine_up && self.visibility == Visibility::Host
    }

    fn conclusion(&self, style: Style) -> String {
        let symbols = match self.symbols_agree {
            Some(false) => ", although its symbols are not those of its release",
            _ => "",
        };
        let version = &self.driver.version;
        let report = "Please report it with the output of `mpu probe --json`.";
        match (self.engine_up, self.as_expected) {
            (true, Some(true)) if self.evidence.child.details.is_none() => {
                "MPU is up and does its work, as far as was measured.".to_string()
            }
            (true, Some(true)) => "MPU is up and does its work.".to_string(),
            (true, None) => "MPU is up. With visibility = \"host\" there is nothing to compare.".to_string(),
            (true, Some(false)) => format!("{} MPU is up and this is wrong. {report}", style.bad("fault:")),
            (false, Some(true)) => format!("This is what driver {version} does by itself{symbols}. fix: mpu up"),
            (false, Some(false)) => {
                let surprise = style.warn("surprise:");
                format!(
                    "{surprise} driver {version} should do otherwise by its release{symbols}. fix: mpu up. {report}"
                )
            }
            (false, None) => format!("Driver {version} is not in the table, so no result was expected."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::compare;
    use crate::probe::verdict::fake;
    use mpu_host::driver::{self, Driver};

    fn driver(version: &str) -> Driver {
        Driver { version: version.to_string(), release: version.parse().ok(), flavour: driver::Flavour::Open }
    }

    fn compare(
        evidence: crate::probe::Evidence,
        driver: &Driver,
        engine: Option<Engine>,
        symbols: Option<[bool; 2]>,
    ) -> ProbeReport {
        compare::compare(evidence, driver, engine, Visibility::Own, symbols)
    }

    const OF_ERAS: [&str; 5] = ["470.256.02", "550.163.01", "565.57.01", "570.86.15", "580.159.04"];

    #[test]
    fn without_engine_each_era_is_as_predicted() {
        for (era, version) in OF_ERAS.iter().enumerate() {
            let probed = compare(fake::era(era as u8), &driver(version), None, None);
            assert_eq!((probed.right, probed.as_expected, probed.exit()), (false, Some(true), Exit::Ok), "{version}");
            assert!(probed.text(Style::Plain).contains("fix: mpu up"), "{version}");
        }
    }

    #[test]
    fn unexpected_driver_answer_fails_probe() {
        let probed = compare(fake::era(4), &driver("550.163.01"), None, Some([true, true]));
        assert_eq!((probed.as_expected, probed.exit(), probed.symbols_agree), (Some(false), Exit::Failed, Some(false)));
        assert!(probed.text(Style::Plain).contains("surprise:"));
    }

    #[test]
    fn engine_up_requires_right_answers() {
        for (era, version) in OF_ERAS.iter().enumerate() {
            let probed = compare(fake::era(era as u8), &driver(version), Some(Engine::Module), None);
            assert_eq!((probed.as_expected, probed.exit()), (Some(false), Exit::Failed), "{version}");
            let probed = compare(fake::right(), &driver(version), Some(Engine::Module), None);
            assert_eq!((probed.right, probed.exit()), (true, Exit::Ok), "{version}");
        }
    }

    #[test]
    fn configured_view_is_no_fault() {
        let module = Some(Engine::Module);
        let mut evidence = fake::right();
        evidence.child.list.push(415);
        for (visibility, expected) in [
            (Visibility::Own, (false, Some(false), Exit::Failed)),
            (Visibility::Pod, (true, Some(true), Exit::Ok)),
            (Visibility::Host, (true, None, Exit::Ok)),
        ] {
            let probed = compare::compare(evidence.clone(), &driver("580.159.04"), module, visibility, None);
            assert_eq!((probed.right, probed.as_expected, probed.exit()), expected, "{visibility:?}");
        }
        // Not even the pod's view has the driver's own numbers.
        let probed = compare::compare(fake::era(4), &driver("580.159.04"), module, Visibility::Pod, None);
        assert_eq!((probed.right, probed.as_expected), (false, Some(false)));
        let bare = compare::compare(fake::era(4), &driver("580.159.04"), None, Visibility::Host, None);
        assert!(
            !bare.right && bare.text(Style::Plain).contains("fix: mpu up"),
            "without an engine, nothing is configured"
        );
    }

    #[test]
    fn unmeasured_details_keep_probe_as_expected() {
        let mut evidence = fake::era(1);
        evidence.child.details = None;
        evidence.child.details_error = Some("the driver answered a block of video memory with status 0x56".to_string());
        let probed = compare(evidence, &driver("550.163.01"), None, None);
        assert_eq!(probed.as_expected, Some(true));
        assert!(probed.text(Style::Plain).contains("not measured: the driver answered"));
    }

    #[test]
    fn unknown_driver_has_no_expectation() {
        let probed = compare(fake::era(4), &driver("700.1"), None, Some([true, true]));
        assert_eq!(
            (probed.as_expected, probed.predicted, probed.symbols_agree, probed.exit()),
            (None, None, None, Exit::Ok)
        );
    }

    #[test]
    fn json_names_faults_and_evidence() {
        let probed = compare(fake::era(4), &driver("580.159.04"), None, Some([true, true]));
        crate::report::documented::check(&crate::report::json_of("probe", &probed));
        let value: serde_json::Value = serde_json::from_str(&crate::report::json_of("probe", &probed)).expect("JSON");
        assert_eq!(value["faults"][0]["fault"], "list_repeats");
        assert_eq!(value["found"]["list"], "own");
        assert_eq!(value["evidence"]["child"]["list"], serde_json::json!([1, 1, 1]));
        assert_eq!(value["symbols_agree"], true);
    }
}
