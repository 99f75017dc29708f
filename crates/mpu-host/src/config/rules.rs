//! Compiles the configuration for an engine: lines of `own|group|host GLOB` over cgroup paths, as `mpu_core::policy` parses them.
//!
//! Source for the names of cgroups: systemd's transient scopes (`docker-ID.scope`, `cri-containerd-ID.scope`, `crio-ID.scope`,
//! `libpod-ID.scope`, `machine-NAME.scope`), the managers' cgroupfs layouts (`/docker/ID`, `/libpod_parent/libpod-ID`,
//! `/kubepods/…/podUID/ID`, `/lxc/NAME`, `/lxc.payload.NAME`), and the kubelet's slices, which write the dashes of a pod's uid as
//! underscores.
//!
//! Every pattern is anchored at the root. A tenant can make cgroups only below its own, which no pattern matches, so it cannot name
//! itself into a rule. Rootless containers are in their user's cgroups, which no pattern matches either.

use super::pods::Pods;
use super::{Config, Selector, Visibility};
use crate::host::Host;
use mpu_core::policy::{LONGEST_GLOB, MOST_NAMES, Rules};

/// Cgroups of containers; `{}` is the id or name.
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

/// Cgroups of Podman's pods; `{}` is the id.
const PODMAN: [&str; 2] = ["/machine.slice/machine-libpod_pod_{}.slice", "/libpod_parent/{}"];
/// Cgroups of Kubernetes' pods; `{}` is the uid.
const PODS: [&str; 2] = ["/kubepods/pod{}", "/kubepods/*/pod{}"];
/// The same with underscores for the dashes of the uid.
const POD_SLICES: [&str; 2] =
    ["/kubepods.slice/kubepods-pod{}.slice", "/kubepods.slice/kubepods-*.slice/kubepods-*-pod{}.slice"];

/// Why a selector matches no possible cgroup, if so: the rule then has no effect, and a wider rule decides.
pub fn never_matches(selector: &Selector) -> Option<String> {
    let Selector::Cgroup(glob) = selector else { return None };
    // `*` and `?` match no slash; `**` may match more.
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

/// The rules of a host's configuration, one per line, without a newline at the end. Empty if every container sees its own.
pub fn of_host(host: &Host, config: &Config) -> String {
    let pods = if labels(config).next().is_some() { Pods::of(host) } else { None };
    let all = compile(config, &pods.unwrap_or_default());
    // If there are more pods than an engine accepts, none of them is exempt. The rules of the file itself fit.
    if fits(&all) { all } else { compile(config, &Pods::default()) }
}

/// Whether an engine takes these lines.
pub fn fits(lines: &str) -> bool {
    Rules::parse(lines.as_bytes()).is_ok()
}

/// The namespace and the label of each rule that has them.
pub fn labels(config: &Config) -> impl Iterator<Item = (&str, &str)> {
    config.rules.iter().filter_map(|rule| match &rule.selector {
        Selector::Label { namespace, label } => Some((namespace.as_str(), label.as_str())),
        _ => None,
    })
}

/// Why rules with a label exempt no pod on this host, if so.
pub fn without_pods(host: &Host, config: &Config) -> Option<String> {
    let (namespace, label) = labels(config).next()?;
    let rules = format!("rules with a label ({label} in {namespace}) match no pod");
    if Pods::are_missing(host) {
        let why = "only an agent finds their pods (`mpu agent run --cluster`), and none did on this node";
        return Some(format!("{rules}: {why}"));
    }
    let all = compile(config, &Pods::of(host).unwrap_or_default());
    (!fits(&all))
        .then(|| format!("{rules}: together with the pods that an agent found the rules are more than an engine takes"))
}

/// The rules of a configuration as [`of_host`] has them, with these pods.
pub fn compile(config: &Config, pods: &Pods) -> String {
    let compiled = config.rules.iter().flat_map(|rule| match &rule.selector {
        Selector::Label { namespace, label } => {
            let of_pod =
                |uid| [fill_globs(rule.sees, &PODS, uid), fill_globs(rule.sees, &POD_SLICES, &uid.replace('-', "_"))];
            pods.get(namespace, label).flat_map(of_pod).flatten().collect()
        }
        selector => compile_selector(rule.sees, selector),
    });
    let mut lines: Vec<String> = compiled.collect();
    lines.extend(match config.visibility {
        Visibility::Own => Vec::new(),
        Visibility::Pod => compile_selector(Visibility::Pod, &Selector::Pod("*".to_string())),
        Visibility::Host => vec!["host **".to_string()],
    });
    lines.join("\n")
}

/// The fault of a selector's glob, if any.
pub fn selector_fault(sees: Visibility, selector: &Selector) -> Option<String> {
    let glob = match selector {
        Selector::Container(glob) | Selector::Pod(glob) | Selector::Cgroup(glob) => glob,
        Selector::Label { namespace, label } => return label_fault(sees, namespace, label),
    };
    if glob.is_empty() || glob.chars().any(|c| c.is_control() || c == '"') {
        return Some("a glob is at least one character, none of them a control character or a quote".to_string());
    }
    match selector {
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
        // It would cross folders, and so match below the cgroups of any tenant.
        Selector::Container(_) | Selector::Pod(_) if glob.contains("**") => {
            return Some(
                "** in an id or name: a tenant could make a cgroup that it fits; write *, which fits any part of a name"
                    .to_string(),
            );
        }
        _ => {}
    }
    // In a compiled glob, more text surrounds an id or name.
    let compiled = compile_selector(sees, selector);
    let longest = compiled.iter().filter_map(|line| line.split_once(' ')).map(|(_, glob)| glob.len()).max();
    let excess = longest.unwrap_or(0).saturating_sub(LONGEST_GLOB);
    (excess > 0).then(|| format!("a glob is at most {} characters", glob.len() - excess))
}

/// The fault of a rule with a label, if any. Source: Kubernetes, "Labels and Selectors" and "Object Names and IDs".
fn label_fault(sees: Visibility, namespace: &str, label: &str) -> Option<String> {
    if sees != Visibility::Host {
        let why = "its pods have the usual view until an agent finds them, which must not be the wider one";
        return Some(format!("a rule with a label has sees = \"host\": {why}"));
    }
    let is_plain = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
    let is_namespace = !namespace.is_empty() && namespace.len() <= 63 && is_plain(namespace, "-");
    if !is_namespace || namespace.contains(|c: char| c.is_ascii_uppercase()) {
        return Some("a namespace is its name, of a-z, 0-9 and -".to_string());
    }
    let is_sound = |term: &str| {
        term.split_once('=').is_some_and(|(key, value)| {
            let is_key = !key.is_empty() && key.len() <= 317 && is_plain(key, "-_./");
            is_key && value.len() <= 63 && is_plain(value, "-_.")
        })
    };
    (!label.split(',').all(is_sound)).then(|| "a label is KEY=VALUE; several are separated by commas".to_string())
}

/// Compiles one rule. In a rule for pods, the glob that matches a pod's cgroup also defines its group.
fn compile_selector(sees: Visibility, selector: &Selector) -> Vec<String> {
    match selector {
        Selector::Cgroup(glob) => fill_globs(sees, &["{}"], glob),
        Selector::Container(glob) => fill_globs(sees, &CONTAINERS, glob),
        Selector::Pod(glob) => [
            fill_globs(sees, &PODS, glob),
            fill_globs(sees, &PODMAN, glob),
            fill_globs(sees, &POD_SLICES, &glob.replace('-', "_")),
        ]
        .concat(),
        Selector::Label { .. } => Vec::new(),
    }
}

fn fill_globs(sees: Visibility, places: &[&str], with: &str) -> Vec<String> {
    let word = match sees {
        Visibility::Own => "own",
        Visibility::Pod => "group",
        Visibility::Host => "host",
    };
    places.iter().map(|place| format!("{word} {}", place.replace("{}", with))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Rule;
    use super::*;
    use crate::host::fake::FakeHost;
    use mpu_core::policy::Sees;

    fn sees(sees: Visibility, selector: Selector, path: &str) -> Sees {
        let config = Config { rules: vec![Rule { sees, selector }], ..Config::default() };
        let text = compile(&config, &Pods::default());
        Rules::parse(text.as_bytes()).expect("sound").of(path.as_bytes())
    }

    const UID: &str = "6b0f8a52-6f0b-4d0e-a9b3-2f1f3a0e7c11";

    #[test]
    fn container_id_matches_in_every_layout() {
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
            for selector in [UID, "*"] {
                let seen = sees(Visibility::Pod, Selector::Pod(selector.into()), &path);
                assert_eq!(seen, Sees::Group { depth }, "{path}");
            }
        }
        let all = Config { visibility: Visibility::Pod, ..Config::default() };
        let text = compile(&all, &Pods::default());
        assert_eq!(Rules::parse(text.as_bytes()).expect("sound").of(b"/system.slice/docker-1.scope"), Sees::Own);
    }

    #[test]
    fn long_glob_is_refused_with_limit() {
        for (selector, expected) in [
            (Selector::Cgroup(format!("/{}", "a".repeat(254))), None),
            (Selector::Cgroup(format!("/{}", "a".repeat(255))), Some("a glob is at most 255 characters")),
            (Selector::Container("a".repeat(192)), None),
            (Selector::Container("a".repeat(193)), Some("a glob is at most 192 characters")),
            (Selector::Pod("a".repeat(202)), None),
            (Selector::Pod("a".repeat(203)), Some("a glob is at most 202 characters")),
        ] {
            assert_eq!(selector_fault(Visibility::Host, &selector).as_deref(), expected);
        }
    }

    #[test]
    fn label_exempts_found_pods_only() {
        let fake = FakeHost::in_order();
        let (namespace, label) = ("monitoring".to_string(), "app=dcgm".to_string());
        let rule = Rule { sees: Visibility::Host, selector: Selector::Label { namespace, label } };
        let config = Config { rules: vec![rule], ..Config::default() };
        let slice = UID.replace('-', "_");
        let paths = [
            format!("/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-ff.scope"),
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/crio-f.scope"),
            format!("/kubepods/pod{UID}/ff"),
            format!("/kubepods/besteffort/pod{UID}/ff"),
        ];
        let seen = || {
            let text = of_host(&fake.host(), &config);
            paths.clone().map(|path| Rules::parse(text.as_bytes()).expect("sound").of(path.as_bytes()))
        };
        assert_eq!(seen(), [Sees::Own; 4]);
        assert!(without_pods(&fake.host(), &config).is_some_and(|why| why.contains("mpu agent run --cluster")));
        let other = UID.replace('6', "7");
        let write = |uids: &[&str]| {
            let mut pods = Pods::default();
            pods.set("monitoring", "app=dcgm", uids.iter().map(|uid| (*uid).to_string()).collect());
            pods.set("tenant", "app=dcgm", vec![other.clone()]);
            fake.write(crate::config::pods::FILE, &serde_json::to_string(&pods).expect("JSON"));
        };
        write(&[UID]);
        assert_eq!((seen(), without_pods(&fake.host(), &config)), ([Sees::Host; 4], None));
        assert!(!of_host(&fake.host(), &config).contains(&other), "a pod of another namespace");
        // 14 pods fit.
        let many: Vec<String> = (0..15).map(|number| format!("{number:08x}{}", &UID[8..])).collect();
        let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
        many[0] = UID;
        write(&many[..14]);
        assert_eq!(seen(), [Sees::Host; 4]);
        write(&many);
        assert_eq!(seen(), [Sees::Own; 4]);
        assert!(without_pods(&fake.host(), &config).is_some_and(|why| why.contains("more than an engine takes")));
    }

    #[test]
    fn rules_come_before_default() {
        let rule = Rule { sees: Visibility::Own, selector: Selector::Cgroup("/a".into()) };
        let config = Config { visibility: Visibility::Host, rules: vec![rule], ..Config::default() };
        assert_eq!(compile(&config, &Pods::default()), "own /a\nhost **");
        assert_eq!(compile(&Config::default(), &Pods::default()), "");
    }

    #[test]
    fn invalid_selectors_have_fault() {
        for selector in [
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
            assert!(selector_fault(Visibility::Own, &selector).is_some(), "{selector:?}");
        }
        assert_eq!(selector_fault(Visibility::Own, &Selector::Cgroup("**/x".into())), None);
        assert_eq!(selector_fault(Visibility::Host, &Selector::Cgroup("/monitors/**".into())), None);
        assert!(selector_fault(Visibility::Host, &Selector::Cgroup("**/x".into())).is_some());
    }

    #[test]
    fn invalid_label_rules_have_label_fault() {
        let host = Visibility::Host;
        for label in ["app=dcgm", "app.kubernetes.io/name=dcgm-exporter,tier=a_b.c", "monitor="] {
            assert_eq!(label_fault(host, "gpu-monitoring", label), None, "{label}");
        }
        for label in ["", "app", "app=a,", "=a", "app!=a", "app in (a)", "app==a", "a=b&watch=1", "a=b%26", "a=*"] {
            assert!(label_fault(host, "monitoring", label).is_some(), "{label}");
        }
        for namespace in ["", "Monitoring", "a/b", "*", "..", &"a".repeat(64)] {
            assert!(label_fault(host, namespace, "app=dcgm").is_some(), "{namespace}");
        }
        for narrow in [Visibility::Own, Visibility::Pod] {
            assert!(label_fault(narrow, "monitoring", "app=dcgm").is_some_and(|why| why.contains("sees = \"host\"")));
        }
    }

    #[test]
    fn rule_matching_no_cgroup_is_reported() {
        let deep = |names: usize| "/a".repeat(names);
        for (glob, path, matches_nothing) in [
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
            let selector = Selector::Cgroup(glob.clone());
            assert_eq!(never_matches(&selector).is_some(), matches_nothing, "{glob}");
            assert_eq!(sees(Visibility::Pod, selector, &path) == Sees::Own, matches_nothing, "{glob} {path}");
        }
        assert_eq!(never_matches(&Selector::Container("a".into())), None);
    }

    /// Behind a rule that never matches, the wider one decides.
    #[test]
    fn wider_rule_decides_beyond_name_limit() {
        let of = |names: usize| {
            let own = Rule { sees: Visibility::Own, selector: Selector::Cgroup("/a".repeat(names)) };
            let wide = Rule { sees: Visibility::Host, selector: Selector::Cgroup("/a/**".into()) };
            let text = compile(&Config { rules: vec![own, wide], ..Config::default() }, &Pods::default());
            Rules::parse(text.as_bytes()).expect("sound").of("/a".repeat(names + 1).as_bytes())
        };
        assert_eq!((of(MOST_NAMES), of(MOST_NAMES + 1)), (Sees::Own, Sees::Host));
    }

    /// Below its own cgroup a tenant can make any name.
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
                for selector in ["dcgm*", "**dcgm*", "**"].into_iter().flat_map(|glob| {
                    let sound = |selector: &Selector| selector_fault(Visibility::Host, selector).is_none();
                    [Selector::Container(glob.into()), Selector::Pod(glob.into())].into_iter().filter(sound)
                }) {
                    assert_eq!(sees(Visibility::Host, selector.clone(), &path), Sees::Own, "{path} {selector:?}");
                }
            }
        }
    }
}
