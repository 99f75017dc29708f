//! What container engines can do about a container's seccomp profile, by their name and version.
//!
//! Owns the table. An engine that is not on it counts by what it sends.
//!
//! Outside truth: `internal/cri/nri/nri_api_linux.go` of containerd 2.2.0 to 2.4 (rules are sent from 2.3.0 on); `go.mod` of each, for NRI's
//! version (a profile can be set from NRI 0.10 on); `internal/nri/container_linux.go` of CRI-O 1.34 to 1.36 (neither kind nor rules are sent).

/// A release, as far as it counts here.
type Since = (u32, u32);

struct Row {
    name: &'static str,
    /// Sets the profile that a plugin gives.
    sets: Since,
    /// Tells a plugin the rules that a container has, so that a container without any has none.
    tells: Option<Since>,
}

const ENGINES: [Row; 2] =
    [Row { name: "containerd", sets: (2, 2), tells: Some((2, 3)) }, Row { name: "cri-o", sets: (1, 34), tells: None }];

/// An engine, as it names itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Its name and version, for people.
    pub called: String,
    /// Whether it sets the profile that a plugin gives.
    pub sets: bool,
    /// Whether a container of which it tells no rules has none.
    pub tells: bool,
}

impl Engine {
    pub fn of(name: &str, version: &str) -> Engine {
        let row = ENGINES.iter().find(|row| row.name == name);
        // A version that cannot be read is one of a private build.
        let since = |least: Since| release(version).is_some_and(|release| release >= least);
        Engine {
            called: format!("{} {}", name.escape_debug(), version.escape_debug()),
            sets: row.is_none_or(|row| release(version).is_none() || since(row.sets)),
            // A prerelease or a private build may lack what the release has.
            tells: row.and_then(|row| row.tells).is_some_and(since) && !version.contains(['-', '~']),
        }
    }
}

/// The first two numbers of `v2.3.1`, `2.1.9+ds1` or `1.34.0-dev`.
fn release(version: &str) -> Option<Since> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_capabilities_follow_its_release() {
        for (name, version, sets, tells) in [
            ("containerd", "v2.3.1", true, true),
            ("containerd", "2.10.0~rc.1", true, false),
            ("containerd", "v2.3.0-beta.0", true, false),
            ("containerd", "2.10.0+ds1", true, true),
            ("containerd", "v3.0.0", true, true),
            ("containerd", "v2.2.7", true, false),
            ("containerd", "2.1.9+ds1", false, false),
            ("containerd", "v1.7.24", false, false),
            ("containerd", "deadbeef", true, false),
            ("containerd", "", true, false),
            ("cri-o", "1.34.0", true, false),
            ("cri-o", "1.99.0", true, false),
            ("cri-o", "1.33.8", false, false),
            ("another", "0.1", true, false),
            ("containerd", "v99999999999.1", true, false),
        ] {
            let engine = Engine::of(name, version);
            assert_eq!((engine.sets, engine.tells), (sets, tells), "{name} {version}");
        }
        assert!(!Engine::of("a\u{1b}[2J", "1\n2").called.contains(['\u{1b}', '\n']));
    }
}
