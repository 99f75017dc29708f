//! Versions in conditions, compared number by number.

use std::cmp::Ordering;
use std::fmt;

/// Numbers with dots between them: `12.4`, `580.159.04`.
#[derive(Debug, Clone)]
pub struct Version(String);

impl Version {
    pub fn parse(text: &str) -> Option<Version> {
        let is_version =
            text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        is_version.then(|| Version(text.to_string()))
    }

    /// The numbers without leading zeros. Several dots count as one.
    fn numbers(&self) -> impl Iterator<Item = &str> {
        self.0.split('.').filter(|part| !part.is_empty()).map(|part| part.trim_start_matches('0'))
    }
}

impl From<(u32, u32)> for Version {
    fn from((major, minor): (u32, u32)) -> Version {
        Version(format!("{major}.{minor}"))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Version) -> Ordering {
        let (mut left, mut right) = (self.numbers(), other.numbers());
        loop {
            let (a, b) = match (left.next(), right.next()) {
                (None, None) => return Ordering::Equal,
                (a, b) => (a.unwrap_or(""), b.unwrap_or("")),
            };
            // Without leading zeros, the longer number is the larger. 0 is the empty text.
            let order = a.len().cmp(&b.len()).then_with(|| a.cmp(b));
            if order.is_ne() {
                return order;
            }
        }
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Version) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Version {}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
