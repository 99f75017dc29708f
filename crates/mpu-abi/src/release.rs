//! A driver release such as `535.104.05`. Releases are ordered part by part, as numbers.

use core::fmt;
use core::str::FromStr;

/// A driver release. A missing part counts as 0, so `470` orders before `470.256.02`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Release {
    major: u16,
    minor: u16,
    patch: u16,
}

impl Release {
    /// The release with these parts.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Release {
        Release { major, minor, patch }
    }
    /// The branch: 535 of 535.104.05.
    pub const fn branch(self) -> u16 {
        self.major
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.major, self.minor)?;
        if self.patch != 0 {
            write!(f, ".{:02}", self.patch)?;
        }
        Ok(())
    }
}

/// The text is not one to three numbers with dots between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseReleaseError;

impl fmt::Display for ParseReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a driver release: expected one to three numbers with dots between them, as in 535.104.05")
    }
}

impl core::error::Error for ParseReleaseError {}

impl FromStr for Release {
    type Err = ParseReleaseError;

    fn from_str(text: &str) -> Result<Release, ParseReleaseError> {
        let mut parts = [0u16; 3];
        for (place, word) in text.trim().split('.').enumerate() {
            let slot = parts.get_mut(place).ok_or(ParseReleaseError)?;
            if !word.bytes().all(|b| b.is_ascii_digit()) {
                return Err(ParseReleaseError);
            }
            *slot = word.parse().map_err(|_| ParseReleaseError)?;
        }
        Ok(Release { major: parts[0], minor: parts[1], patch: parts[2] })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    #[test]
    fn orders_by_number_not_by_text() {
        let order = ["390.157", "470.256.02", "535.54.03", "535.104.05", "535.113.01", "550.54.14", "1000.1"];
        for pair in order.windows(2) {
            assert!(pair[0].parse::<Release>().unwrap() < pair[1].parse::<Release>().unwrap(), "{pair:?}");
        }
    }

    #[test]
    fn release_is_written_as_it_was_read() {
        for text in ["390.157", "470.256.02", "535.104.05"] {
            let release: Release = text.parse().unwrap();
            assert_eq!((std::format!("{release}").as_str(), release.branch()), (text, text[..3].parse().unwrap()));
        }
        assert!(std::format!("{ParseReleaseError}").contains("535.104.05"));
    }

    #[test]
    fn malformed_release_is_refused() {
        for text in ["", "535.", ".535", "535.x", "1.2.3.4", "-1", "+1.2", "99999999"] {
            assert_eq!(text.parse::<Release>(), Err(ParseReleaseError), "{text:?}");
        }
        assert_eq!(" 535.104.05\n".parse(), Ok(Release::new(535, 104, 5)));
    }
}
