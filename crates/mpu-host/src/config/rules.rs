//! What the configuration becomes for an engine: lines of `own|group|host GLOB` over cgroup paths, as `mpu_core::policy`
//! reads them.
//!
//! Owns how container managers name cgroups, as far as a glob can say it. Sources: systemd's transient scopes
//! (`docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope`, `libpod-ID.scope`, `machine-NAME.scope`), the
//! managers' cgroupfs layouts (`/docker/ID`, `/libpod_parent/libpod-ID`, `/kubepods/…/podUID/ID`, `/lxc/NAME`,
//! `/lxc.payload.NAME`), and the kubelet's slices, which write the dashes of a pod's uid as underscores.
//!
//! Every place is anchored at the root: a tenant who may make cgroups can make them only beneath its own, where no place
//! lies, so it cannot name itself into a rule. Rootless containers are in their user's cgroups and in no place here.

use super::{Config, Selector, Visibility};
use mpu_core::policy::{LONGEST_GLOB, MOST_NAMES, Rules};

/// Where a container's id (or name) stands; `{}` is its place.
const CONTAINERS: [&str; 10] = [
    "/system.slice/*-{}.scope",
    "/docker/{}",
    "/kubepods.slice/kubepods-pod*.slice/*-{}.scope",
    "/kubepods.slice/kubepods-*.slice/kubepods-*-pod*.slice/*-{}.scope",
    "/kubepods/pod*/{}",
    "/kubepods/*/pod*/{}",
    "/machine.slice/*-{}.scope",
    "/machine.slice/machine-libpod_pod_*.slice/libpod-{}.scope",
    "/lxc/{}",
    "/lxc.payload.{}",
];

/// Where a pod's uid or id stands.
const PODS: [&str; 4] =
    ["/kubepods/pod{}", "/kubepods/*/pod{}", "/machine.slice/machine-libpod_pod_{}.slice", "/libpod_parent/{}"];
/// Where a pod's uid stands with underscores for dashes.
const POD_SLICES: [&str; 2] =
    ["/kubepods.slice/kubepods-pod{}.slice", "/kubepods.slice/kubepods-*.slice/kubepods-*-pod{}.slice"];

/// Why a selector fits no cgroup there can be, if it does not: the rule grants nothing, and what it takes from a wider
/// rule that one gives all the same.
pub fn futile(whom: &Selector) -> Option<String> {
    let Selector::Cgroup(glob) = whom else { return None };
    // `*` and `?` stand for no slash; what `**` stands for comes on top.
    let names = glob.matches('/').count();
    match () {
        () if glob.ends_with('/') => Some("no cgroup's path ends with /, and the root is no container's".to_string()),
        () if glob.contains("//") => Some("no cgroup's path has //".to_string()),
        () if names > MOST_NAMES => {
            Some(format!("it has {names} names, and engines look at the first {MOST_NAMES} of a cgroup's path"))
        }
        () => None,
    }
}

/// The rules of a configuration, one a line, without a newline at the end. Empty if everybody sees its own.
pub fn compile(config: &Config) -> String {
    let mut lines: Vec<String> = config.rules.iter().flat_map(|rule| lines(rule.sees, &rule.whom)).collect();
    lines.extend(match config.visibility {
        Visibility::Own => Vec::new(),
        Visibility::Pod => self::lines(Visibility::Pod, &Selector::Pod("*".to_string())),
        Visibility::Host => vec!["host **".to_string()],
    });
    lines.join("\n")
}

/// What is wrong with a selector's glob, if anything.
pub fn fault(sees: Visibility, whom: &Selector) -> Option<String> {
    let (Selector::Container(glob) | Selector::Pod(glob) | Selector::Cgroup(glob)) = whom;
    if glob.is_empty() || glob.chars().any(|c| c.is_control() || c == '"') {
        return Some("a glob is at least one character, none of them a control character or a quote".to_string());
    }
    match whom {
        Selector::Cgroup(_) if !(glob.starts_with('/') || glob.starts_with("**")) => {
            return Some("a cgroup's path begins with /".to_string());
        }
        Selector::Cgroup(_) if sees == Visibility::Host && glob.trim_end_matches("/**").contains("**") => {
            return Some(
                "** before the end of a path that shows the host's view: a tenant could make a cgroup that it fits"
                    .to_string(),
            );
        }
        Selector::Container(_) | Selector::Pod(_) if glob.contains('/') => {
            return Some("an id or name has no /; a path goes with `cgroup`".to_string());
        }
        // It would cross folders, and so reach beneath the cgroups of any tenant.
        Selector::Container(_) | Selector::Pod(_) if glob.contains("**") => {
            return Some(
                "** in an id or name: a tenant could make a cgroup that it fits; write *, which fits any part of a name"
                    .to_string(),
            );
        }
        _ => {}
    }
    let sound = lines(sees, whom).iter().all(|line| Rules::parse(line.as_bytes()).is_ok());
    (!sound).then(|| format!("a glob is at most {} characters", LONGEST_GLOB - 72))
}

/// A rule for pods shows each its own: the glob that fits the pod's cgroup says which cgroup the group is.
fn lines(sees: Visibility, whom: &Selector) -> Vec<String> {
    let word = match sees {
        Visibility::Own => "own",
        Visibility::Pod => "group",
        Visibility::Host => "host",
    };
    let fill = |places: &[&str], with: &str| -> Vec<String> {
        places.iter().map(|place| format!("{word} {}", place.replace("{}", with))).collect()
    };
    match whom {
        Selector::Cgroup(glob) => vec![format!("{word} {glob}")],
        Selector::Container(glob) => fill(&CONTAINERS, glob),
        Selector::Pod(glob) => [fill(&PODS, glob), fill(&POD_SLICES, &glob.replace('-', "_"))].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rule;
    use super::*;
    use mpu_core::policy::Sees;

    fn sees(sees: Visibility, whom: Selector, path: &str) -> Sees {
        let config = Config { rules: vec![Rule { sees, whom }], ..Config::default() };
        let text = compile(&config);
        Rules::parse(text.as_bytes()).expect("sound").of(path.as_bytes())
    }

    const UID: &str = "6b0f8a52-6f0b-4d0e-a9b3-2f1f3a0e7c11";

    #[test]
    fn container_is_found_by_its_id_in_every_layout() {
        for path in [
            "/system.slice/docker-3f2a81.scope",
            "/docker/3f2a81",
            "/docker/3f2a81/child",
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podaa_bb.slice/cri-containerd-3f2a81.scope",
            "/kubepods.slice/kubepods-podaa_bb.slice/crio-3f2a81.scope/container",
            "/kubepods/burstable/pod6b0f/3f2a81",
            "/machine.slice/libpod-3f2a81.scope",
            "/machine.slice/machine-libpod_pod_77.slice/libpod-3f2a81.scope/container",
            "/lxc/3f2a81",
            "/lxc.payload.3f2a81",
            "/machine.slice/machine-3f2a81.scope",
        ] {
            assert_eq!(sees(Visibility::Host, Selector::Container("3f2a*".into()), path), Sees::Host, "{path}");
            assert_eq!(sees(Visibility::Host, Selector::Container("3f2b*".into()), path), Sees::Own, "{path}");
        }
    }

    #[test]
    fn pods_group_is_its_own_cgroup() {
        let slice = UID.replace('-', "_");
        for (path, depth) in [
            (format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-ff.scope"), 2),
            (format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/crio-f.scope"), 3),
            (format!("/kubepods/besteffort/pod{UID}/ff"), 3),
            (format!("/machine.slice/machine-libpod_pod_{UID}.slice/libpod-ff.scope"), 2),
        ] {
            for whom in [UID, "*"] {
                let seen = sees(Visibility::Pod, Selector::Pod(whom.into()), &path);
                assert_eq!(seen, Sees::Group { depth }, "{path}");
            }
        }
        let all = Config { visibility: Visibility::Pod, ..Config::default() };
        let text = compile(&all);
        assert_eq!(Rules::parse(text.as_bytes()).expect("sound").of(b"/system.slice/docker-1.scope"), Sees::Own);
    }

    #[test]
    fn rules_come_before_default() {
        let rule = Rule { sees: Visibility::Own, whom: Selector::Cgroup("/a".into()) };
        let config = Config { visibility: Visibility::Host, rules: vec![rule], ..Config::default() };
        assert_eq!(compile(&config), "own /a\nhost **");
        assert_eq!(compile(&Config::default()), "");
    }

    #[test]
    fn invalid_selectors_have_fault() {
        for whom in [
            Selector::Container(String::new()),
            Selector::Container("a/b".into()),
            Selector::Pod("a\"b".into()),
            Selector::Cgroup("a".into()),
            Selector::Cgroup("/a\nb".into()),
            Selector::Container("a".repeat(300)),
            Selector::Container("**dcgm*".into()),
            Selector::Container("dcgm**".into()),
            Selector::Container("**".into()),
            Selector::Pod("**dcgm*".into()),
        ] {
            assert!(fault(Visibility::Own, &whom).is_some(), "{whom:?}");
        }
        assert_eq!(fault(Visibility::Own, &Selector::Cgroup("**/x".into())), None);
        assert_eq!(fault(Visibility::Host, &Selector::Cgroup("/monitors/**".into())), None);
        assert!(fault(Visibility::Host, &Selector::Cgroup("**/x".into())).is_some());
    }

    #[test]
    fn rule_matching_no_cgroup_is_futile() {
        let deep = |names: usize| "/a".repeat(names);
        for (glob, path, is_futile) in [
            (deep(MOST_NAMES), deep(MOST_NAMES), false),
            (deep(MOST_NAMES), deep(40), false),
            (deep(MOST_NAMES + 1), deep(MOST_NAMES + 1), true),
            (format!("/**{}", deep(MOST_NAMES)), deep(MOST_NAMES + 1), true),
            (format!("**{}", deep(MOST_NAMES)), deep(MOST_NAMES), false),
            ("/a/*".to_string(), "/a/b".to_string(), false),
            ("/a/".to_string(), "/a/b".to_string(), true),
            ("/a//b".to_string(), "/a/b".to_string(), true),
            ("/".to_string(), "/".to_string(), true),
        ] {
            let whom = Selector::Cgroup(glob.clone());
            assert_eq!(futile(&whom).is_some(), is_futile, "{glob}");
            assert_eq!(sees(Visibility::Pod, whom, &path) == Sees::Own, is_futile, "{glob} {path}");
        }
        assert_eq!(futile(&Selector::Container("a".into())), None);
    }

    /// With a wider rule behind it, a futile rule leaves the decision to the wider one.
    #[test]
    fn wider_rule_decides_beyond_name_limit() {
        let of = |names: usize| {
            let own = Rule { sees: Visibility::Own, whom: Selector::Cgroup("/a".repeat(names)) };
            let wide = Rule { sees: Visibility::Host, whom: Selector::Cgroup("/a/**".into()) };
            let text = compile(&Config { rules: vec![own, wide], ..Config::default() });
            Rules::parse(text.as_bytes()).expect("sound").of("/a".repeat(names + 1).as_bytes())
        };
        assert_eq!((of(MOST_NAMES), of(MOST_NAMES + 1)), (Sees::Own, Sees::Host));
    }

    /// Beneath its own cgroup a tenant can make any name.
    #[test]
    fn tenant_cannot_name_itself_into_rule() {
        let own = [
            "/system.slice/docker-ab.scope",
            "/docker/ab",
            "/kubepods.slice/kubepods-podaa.slice/cri-containerd-ab.scope",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podaa.slice/cri-containerd-ab.scope",
            "/kubepods/podaa/ab",
            "/kubepods/besteffort/podaa/ab",
            "/machine.slice/libpod-ab.scope",
            "/machine.slice/machine-libpod_pod_aa.slice/libpod-ab.scope",
            "/lxc/ab",
            "/lxc.payload.ab",
            "/user.slice/user-1000.slice/user@1000.service",
        ];
        let made = ["", "/docker-dcgm.scope", "/dcgm", "/poddcgm", "/kubepods-x-poddcgm.slice", "/libpod-dcgm.scope"];
        for path in own.iter().flat_map(|own| made.iter().map(move |made| format!("{own}{made}"))) {
            for deeper in made {
                let path = format!("{path}{deeper}");
                for whom in ["dcgm*", "**dcgm*", "**"].into_iter().flat_map(|glob| {
                    let sound = |whom: &Selector| fault(Visibility::Host, whom).is_none();
                    [Selector::Container(glob.into()), Selector::Pod(glob.into())].into_iter().filter(sound)
                }) {
                    assert_eq!(sees(Visibility::Host, whom.clone(), &path), Sees::Own, "{path} {whom:?}");
                }
            }
        }
    }
}
