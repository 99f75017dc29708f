//! Reads the engine of this node from its label. Without the label the chart's engine applies.

use clap::ValueEnum;
use mpu_host::config::EngineSetting;
use std::collections::BTreeMap;

/// The label of a node by which its operator chooses the engine. The chart's templates have the same name, for the pods' affinity.
pub const ENGINE: &str = "mpu-project.github.io/engine";

/// The longest value of a label, by Kubernetes.
const LONGEST: usize = 63;

/// The engine that the labels name, none if they name none. The error describes an invalid label.
pub fn engine(labels: &BTreeMap<String, String>) -> Result<Option<EngineSetting>, String> {
    let Some(word) = labels.get(ENGINE) else { return Ok(None) };
    let words = EngineSetting::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let words: Vec<String> = words.map(|value| value.get_name().to_string()).collect();
    EngineSetting::from_str(word, false).map(Some).map_err(|_| {
        let words = words.join(", ");
        let word = printable(word);
        format!("the node's label {ENGINE}={word} is none of {words} (fix: kubectl label node NODE {ENGINE}=auto --overwrite)")
    })
}

/// Makes a label's value printable, in at most the length that Kubernetes permits.
fn printable(word: &str) -> String {
    word.chars().take(LONGEST).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_label_value_is_sanitized() {
        let wrong = labelled(&format!("\u{1b}[2J\n\u{202e}{}", "x".repeat(1 << 20))).expect_err("refused");
        assert!(wrong.contains(&format!("{ENGINE}=?[2J??x")), "{}", &wrong[..100]);
        assert!(wrong.len() < 400 && wrong.is_ascii() && !wrong.contains(|c: char| c.is_control()), "{}", wrong.len());
    }

    fn labelled(word: &str) -> Result<Option<EngineSetting>, String> {
        engine(&BTreeMap::from([(ENGINE.to_string(), word.to_string())]))
    }

    #[test]
    fn unknown_engine_label_is_error() {
        assert_eq!(engine(&BTreeMap::new()), Ok(None));
        assert_eq!(labelled("auto"), Ok(Some(EngineSetting::Auto)));
        assert_eq!(labelled("module"), Ok(Some(EngineSetting::Module)));
        assert_eq!(labelled("notify"), Ok(Some(EngineSetting::Notify)));
        for word in ["", "Module", "modul", "true"] {
            let wrong = labelled(word).expect_err("refused");
            assert!(wrong.contains(&format!("{ENGINE}={word} ")) && wrong.contains("auto, module, notify"), "{wrong}");
        }
    }

    #[test]
    fn chart_has_the_same_label() {
        let helpers = include_str!("../../../../packaging/kubernetes/chart/mpu/templates/_helpers.tpl");
        assert!(helpers.lines().any(|line| line == ENGINE), "_helpers.tpl has another name");
    }
}
