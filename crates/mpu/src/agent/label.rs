//! Reads the engine of this node from its label. Without the label the chart's engine applies.

use clap::ValueEnum;
use mpu_host::config::EngineSetting;
use std::collections::BTreeMap;

/// The node label with which the operator chooses the engine. The chart's templates use the same name for the pods'
/// affinity.
pub const ENGINE_LABEL: &str = "mpu-project.github.io/engine";

/// Kubernetes' limit for a label's value.
const MAX_VALUE_LENGTH: usize = 63;

/// The engine in the node's label; none without the label. The error describes an invalid value.
pub fn parse_engine(labels: &BTreeMap<String, String>) -> Result<Option<EngineSetting>, String> {
    let Some(value) = labels.get(ENGINE_LABEL) else { return Ok(None) };
    let names = EngineSetting::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let names: Vec<String> = names.map(|value| value.get_name().to_string()).collect();
    EngineSetting::from_str(value, false).map(Some).map_err(|_| {
        let names = names.join(", ");
        let value = printable(value);
        format!("the node's label {ENGINE_LABEL}={value} is none of {names} (fix: kubectl label node NODE {ENGINE_LABEL}=auto --overwrite)")
    })
}

/// Makes a label's value printable, in at most the length that Kubernetes permits.
fn printable(value: &str) -> String {
    value.chars().take(MAX_VALUE_LENGTH).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_label_value_is_sanitized() {
        let wrong = labelled(&format!("\u{1b}[2J\n\u{202e}{}", "x".repeat(1 << 20))).expect_err("refused");
        assert!(wrong.contains(&format!("{ENGINE_LABEL}=?[2J??x")), "{}", &wrong[..100]);
        assert!(wrong.len() < 400 && wrong.is_ascii() && !wrong.contains(|c: char| c.is_control()), "{}", wrong.len());
    }

    fn labelled(value: &str) -> Result<Option<EngineSetting>, String> {
        parse_engine(&BTreeMap::from([(ENGINE_LABEL.to_string(), value.to_string())]))
    }

    #[test]
    fn unknown_engine_label_is_error() {
        assert_eq!(parse_engine(&BTreeMap::new()), Ok(None));
        assert_eq!(labelled("auto"), Ok(Some(EngineSetting::Auto)));
        assert_eq!(labelled("module"), Ok(Some(EngineSetting::Module)));
        assert_eq!(labelled("notify"), Ok(Some(EngineSetting::Notify)));
        for value in ["", "Module", "modul", "true"] {
            let wrong = labelled(value).expect_err("refused");
            assert!(
                wrong.contains(&format!("{ENGINE_LABEL}={value} ")) && wrong.contains("auto, module, notify"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn chart_has_the_same_label() {
        let helpers = include_str!("../../../../packaging/kubernetes/chart/mpu/templates/_helpers.tpl");
        assert!(helpers.lines().any(|line| line == ENGINE_LABEL), "_helpers.tpl has another name");
    }
}
