//! What container engines can do with a container's seccomp profile, by name and version. For an unknown engine, its
//! messages decide.
//!
//! Source: `internal/cri/nri/nri_api_linux.go` of containerd 2.2.0 to 2.4 (rules are sent from 2.3.0 on); `go.mod` of each, for
//! NRI's version (a profile can be set from NRI 0.10 on); `internal/nri/container_linux.go` of CRI-O 1.34 to 1.36 (neither kind
//! nor rules are sent).

/// Major and minor version.
type Version = (u32, u32);

struct Capabilities {
    name: &'static str,
    /// Applies a profile from a plugin.
    sets_profile: Version,
    /// Sends the rules of a container's profile to plugins, so that no rules means no profile.
    sends_rules: Option<Version>,
}

const ENGINES: [Capabilities; 2] = [
    Capabilities { name: "containerd", sets_profile: (2, 2), sends_rules: Some((2, 3)) },
    Capabilities { name: "cri-o", sets_profile: (1, 34), sends_rules: None },
];

/// The container engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Engine {
    /// Name and version as text.
    pub name_and_version: String,
    /// Whether it applies a profile from a plugin.
    pub sets_profile: bool,
    /// Whether a container without rules in its message has no profile.
    pub sends_rules: bool,
}

impl Engine {
    pub fn of(name: &str, version: &str) -> Engine {
        let row = ENGINES.iter().find(|row| row.name == name);
        // A private build has an unreadable version.
        let at_least = |minimum: Version| release(version).is_some_and(|release| release >= minimum);
        Engine {
            name_and_version: format!("{} {}", name.escape_debug(), version.escape_debug()),
            sets_profile: row.is_none_or(|row| release(version).is_none() || at_least(row.sets_profile)),
            // A prerelease or a private build may lack the feature.
            sends_rules: row.and_then(|row| row.sends_rules).is_some_and(at_least) && !version.contains(['-', '~']),
        }
    }
}

/// The first two numbers of `v2.3.1`, `2.1.9+ds1` or `1.34.0-dev`.
fn release(version: &str) -> Option<Version> {
    let mut numbers = version.strip_prefix('v').unwrap_or(version).split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engine_capabilities_follow_its_release() {
        for (name, version, sets_profile, sends_rules) in [
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
            assert_eq!((engine.sets_profile, engine.sends_rules), (sets_profile, sends_rules), "{name} {version}");
        }
        assert!(!Engine::of("a\u{1b}[2J", "1\n2").name_and_version.contains(['\u{1b}', '\n']));
    }
}
