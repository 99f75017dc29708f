//! Writes Prometheus' text exposition format, version 0.0.4.
//!
//! The client crates write OpenMetrics only, which node_exporter's textfile collector and `promtool check metrics` do not read.
//! Source: `promtool check metrics`, which the tests run.

use super::families::Family;
use std::fmt::{Display, Write as _};

/// The content type of this format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The longest label value in bytes. Longer ones are cut at a character, which bounds the page. Kubernetes' names have
/// at most 253.
pub const LONGEST_VALUE: usize = 256;

#[derive(Debug, Default)]
pub struct Text {
    out: String,
}

#[derive(Debug)]
pub struct Rows<'a> {
    out: &'a mut String,
    family: &'static Family,
    begun: bool,
}

/// Labels with their values, rendered once for all metrics that have the same ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(String);

impl Labels {
    /// Labels in the order in which they are written.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'static str, &'a str)>) -> Labels {
        let mut text = String::new();
        for (label, value) in pairs {
            text.push(if text.is_empty() { '{' } else { ',' });
            text.push_str(label);
            text.push_str("=\"");
            escape(value, &mut text);
            text.push('"');
        }
        if !text.is_empty() {
            text.push('}');
        }
        Labels(text)
    }
}

impl Text {
    /// An empty page with room for so many bytes.
    pub fn with_capacity(bytes: usize) -> Text {
        Text { out: String::with_capacity(bytes) }
    }

    /// Begins a metric. Nothing is written until its first row.
    pub fn family(&mut self, family: &'static Family) -> Rows<'_> {
        Rows { out: &mut self.out, family, begun: false }
    }

    pub fn finish(self) -> String {
        self.out
    }
}

impl Rows<'_> {
    /// Adds a row; one value per label.
    ///
    /// # Panics
    /// If there are not as many values as labels: a mistake in this crate.
    pub fn put(&mut self, values: &[&str], number: impl Display) -> &mut Self {
        let Family { name, labels, .. } = self.family;
        assert_eq!(values.len(), labels.len(), "the labels of {name}");
        let labels = Labels::new(labels.iter().copied().zip(values.iter().copied()));
        self.put_labelled(&labels, number)
    }

    /// Adds a row whose labels are written already: the metric's own, and perhaps more after them.
    pub fn put_labelled(&mut self, labels: &Labels, number: impl Display) -> &mut Self {
        let Family { name, kind, help, .. } = self.family;
        if !self.begun {
            self.begun = true;
            let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        self.out.push_str(name);
        self.out.push_str(&labels.0);
        let _ = writeln!(self.out, " {number}");
        self
    }
}

/// A label's value, cut to [`LONGEST_VALUE`], without control characters: the format permits them, a terminal may not.
pub fn clean(value: &str) -> String {
    let mut end = value.len().min(LONGEST_VALUE);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].replace(char::is_control, "\u{fffd}")
}

/// Writes a label's value with the three escapes of the format.
fn escape(value: &str, out: &mut String) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        out.push_str(match special.as_bytes()[0] {
            b'\\' => "\\\\",
            b'"' => "\\\"",
            _ => "\\n",
        });
        rest = &special[1..];
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::super::families::{BUILD, STARTED};
    use super::*;

    fn one(value: &str) -> String {
        let mut text = Text::default();
        text.family(&BUILD).put(&[value], 1);
        text.finish().lines().last().expect("a row").to_string()
    }

    #[test]
    fn metric_has_its_head_once() {
        let mut text = Text::default();
        text.family(&BUILD).put(&["a"], 1).put_labelled(&Labels::new([("version", "b"), ("more", "c")]), 2.5);
        text.family(&STARTED).put(&[], 7);
        let page = text.finish();
        assert_eq!(page.matches("# HELP mpu_build_info ").count(), 1);
        assert!(page.contains("# TYPE mpu_build_info gauge\nmpu_build_info{version=\"a\"} 1\n"), "{page}");
        assert!(page.contains("mpu_build_info{version=\"b\",more=\"c\"} 2.5\n"), "{page}");
        assert!(page.ends_with("mpu_exporter_start_time_seconds 7\n"), "{page}");
    }

    #[test]
    fn metric_without_rows_is_not_mentioned() {
        let mut text = Text::default();
        text.family(&BUILD);
        assert_eq!(text.finish(), "");
    }

    #[test]
    fn hostile_values_stay_in_their_quotes() {
        assert_eq!(one("a\"} 1\nevil 2\\"), "mpu_build_info{version=\"a\\\"} 1\\nevil 2\\\\\"} 1");
        assert_eq!(clean("\u{1b}[31m\r\0\n"), "\u{fffd}[31m\u{fffd}\u{fffd}\u{fffd}");
    }

    #[test]
    fn long_values_are_cut_at_character() {
        assert_eq!(clean(&"ä".repeat(1000)), "ä".repeat(LONGEST_VALUE / 2));
        assert_eq!(clean(&format!("x{}", "ä".repeat(1000))).len(), LONGEST_VALUE - 1);
    }

    #[test]
    #[should_panic(expected = "the labels of")]
    fn too_few_values_panic() {
        Text::default().family(&BUILD).put(&[], 1);
    }
}
