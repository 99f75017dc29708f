//! Requests and their results: our own cases, by the behaviour of NVIDIA's toolkit.

use super::*;
use proptest::prelude::*;
use serde_json::json;

/// A specification, written as words between semicolons: `NAME=value` of the environment, `+CAPABILITY` of the bounding
/// set, `~SOURCE>DESTINATION` of the mounts, `@NAME: value` of the annotations.
fn spec(words: &str) -> Value {
    let (mut env, mut bounding, mut mounts, mut annotations) = (vec![], vec![], vec![], serde_json::Map::new());
    for word in words.split(';').map(str::trim_start).filter(|word| !word.is_empty()) {
        if let Some(capability) = word.strip_prefix('+') {
            bounding.push(capability);
        } else if let Some((source, destination)) = word.strip_prefix('~').and_then(|mount| mount.split_once('>')) {
            mounts.push(json!({"source": source, "destination": destination}));
        } else if let Some((name, value)) = word.strip_prefix('@').and_then(|annotation| annotation.split_once(": ")) {
            annotations.insert(name.into(), value.into());
        } else {
            env.push(word);
        }
    }
    let process = json!({"env": env, "capabilities": {"bounding": bounding, "effective": ["CAP_SYS_ADMIN"]}});
    json!({"ociVersion": "1.2.0", "process": process, "mounts": mounts, "annotations": annotations})
}

/// The result on one line, without fields that have their default values.
fn summary(parsed: Result<ParsedRequest, RequestError>) -> String {
    let ParsedRequest { request, notes } = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return format!("error: {error}"),
    };
    let noted = if notes.is_empty() { "" } else { " noted" };
    let Some(request) = request else { return format!("no{noted}") };
    let mut line = request.devices.join(" ");
    let mut add = |name: &str, value: String, usual: &str| {
        if value != usual {
            line.push_str(&format!(" {name}={value}"));
        }
    };
    add("by", format!("{:?}", request.source), "Environment");
    add("for", request.capabilities.to_string(), "compute,utility");
    add("if", request.requirements.join("&"), "");
    add("config", request.mig_config.unwrap_or_default(), "");
    add("monitor", request.mig_monitor.unwrap_or_default(), "");
    add("imex", request.imex.join(" "), "");
    add("extra", request.extras.iter().map(|extra| extra.name()).collect::<Vec<_>>().join(" "), "");
    line + noted
}

fn summary_of(words: &str, config: &str) -> String {
    let config = Config::parse(config, Config::default()).expect("sound").0;
    summary(parse(&spec(words), &config, Annotations::Read, Strictness::Strict))
}

#[track_caller]
fn table(config: &str, cases: &[(&str, &str)]) {
    for (words, expected) in cases {
        assert_eq!(summary_of(words, config), *expected, "{words}   with {config:?}");
    }
}

#[test]
fn annotations_request_cdi_devices() {
    table(
        "",
        &[
            (
                "@cdi.k8s.io/b: nvidia.com/gpu=1; @cdi.k8s.io/a: nvidia.com/gpu=0",
                "nvidia.com/gpu=0 nvidia.com/gpu=1 by=Annotations",
            ),
            ("@cdi.k8s.io/a: x.com/nic=0, nvidia.com/gpu=0,x.com/nic=0", "x.com/nic=0 nvidia.com/gpu=0 by=Annotations"),
            ("@cdi.k8s.io/a: nvidia.com/gpu=0; NVIDIA_VISIBLE_DEVICES=1", "nvidia.com/gpu=0 by=Annotations"),
            ("@cdi.k8s.io/a: x.com/nic=0; NVIDIA_VISIBLE_DEVICES=1", "x.com/nic=0 by=Annotations noted"),
            ("@cdi.k8s.io/a: x.com/nic=0; NVIDIA_VISIBLE_DEVICES=void", "x.com/nic=0 by=Annotations"),
            ("@cdi.k8s.io/a: x.com/nic=0; NVIDIA_VISIBLE_DEVICES=none", "x.com/nic=0 by=Annotations"),
            (
                "@cdi.k8s.io/a: x.com/nic=0,nvidia.com/gpu=0; NVIDIA_VISIBLE_DEVICES=1",
                "x.com/nic=0 nvidia.com/gpu=0 by=Annotations",
            ),
            ("@cdi.k8s.io/a: ,; NVIDIA_VISIBLE_DEVICES=1", "1"),
            ("@other/a: nvidia.com/gpu=0", "no"),
        ],
    );
    let other = "nvidia-container-runtime.modes.cdi.annotation-prefixes = ['mine/', 'x']";
    table(other, &[("@xyz: a.b/c=d", "a.b/c=d by=Annotations"), ("@cdi.k8s.io/a: nvidia.com/gpu=0", "no")]);
    let none = "nvidia-container-runtime.modes.cdi.annotation-prefixes = ['']";
    table(none, &[("@io.kubernetes.cri.container-type: container", "no"), ("@a: b; NVIDIA_VISIBLE_DEVICES=1", "1")]);
    let spec = spec("@cdi.k8s.io/a: nvidia.com/gpu=0; NVIDIA_VISIBLE_DEVICES=1");
    assert_eq!(summary(parse(&spec, &Config::default(), Annotations::Skip, Strictness::Strict)), "1");
}

#[test]
fn annotations_request_devices_in_cdi_modes() {
    let strict = Config { strict_requests: true, ..Config::default() };
    let devices = |words: &str, mode| summary(parse_for_mode(&spec(words), &strict, mode));
    let both = "@cdi.k8s.io/a: nvidia.com/gpu=0; NVIDIA_VISIBLE_DEVICES=1";
    for (mode, expected) in [
        (Mode::Cdi, "nvidia.com/gpu=0 by=Annotations"),
        (Mode::Auto, "nvidia.com/gpu=0 by=Annotations"),
        (Mode::JitCdi, "1"),
        (Mode::Legacy, "1"),
        (Mode::Csv, "1"),
    ] {
        assert_eq!(devices(both, mode), expected, "{mode:?}");
    }
    let mixed = "@cdi.k8s.io/a: nvidia.com/gpu=0,1; NVIDIA_VISIBLE_DEVICES=2";
    assert_eq!((devices(mixed, Mode::Auto), devices("@cdi.k8s.io/a: 1", Mode::Auto)), ("2".into(), "no".into()));
    assert_eq!(devices(mixed, Mode::Cdi), "nvidia.com/gpu=0 1 by=Annotations");
}

#[test]
fn loose_requests_refuse_no_image() {
    let summary_of = |words: &str, mode, config: &str| {
        let config = Config::parse(config, Config::default()).expect("sound").0;
        summary(parse_for_mode(&spec(&format!("NVIDIA_VISIBLE_DEVICES=0; {words}")), &config, mode))
    };
    let whole = "0 for=compute,display,graphics,ngx,utility,video";
    for mode in [Mode::Auto, Mode::JitCdi, Mode::Cdi] {
        for (words, expected) in [
            ("", whole.to_string()),
            ("NVIDIA_DRIVER_CAPABILITIES=utility", whole.to_string()),
            ("NVIDIA_DRIVER_CAPABILITIES=flying", format!("{whole} noted")),
            ("NVIDIA_DRIVER_CAPABILITIES=all", whole.replace("for=", "for=compat32,")),
            ("NVIDIA_DRIVER_CAPABILITIES=compat32", whole.replace("for=", "for=compat32,")),
            ("NVIDIA_MIG_MONITOR_DEVICES=all", format!("{whole} noted")),
            ("NVIDIA_MIG_MONITOR_DEVICES=all; +CAP_SYS_ADMIN", format!("{whole} monitor=all")),
            ("NVIDIA_REQUIRE_A=cuda>=99", format!("{whole} if=cuda>=99")),
        ] {
            assert_eq!(summary_of(words, mode, ""), expected, "{words}");
        }
        let limited = summary_of("NVIDIA_DRIVER_CAPABILITIES=all", mode, "supported-driver-capabilities = 'utility'");
        assert_eq!(limited, "0 for=utility");
        let strict = summary_of("NVIDIA_DRIVER_CAPABILITIES=flying", mode, "mpu.strict-requests = true");
        assert!(strict.starts_with("error: unsupported capabilities"), "{strict}");
    }
    assert!(summary_of("NVIDIA_DRIVER_CAPABILITIES=flying", Mode::Legacy, "").starts_with("error: "));
    assert_eq!(summary_of("NVIDIA_DRIVER_CAPABILITIES=utility", Mode::Legacy, ""), "0 for=utility");
}

fn any_word() -> impl Strategy<Value = String> {
    let names =
        "(NVIDIA_VISIBLE_DEVICES|CUDA_VERSION|NVIDIA_REQUIRE_CUDA|NVIDIA_DRIVER_CAPABILITIES|NVIDIA_IMEX_CHANNELS|X)";
    let env = format!("{names}=(all|none|void|0|,| |[0-9a-zA-Z.:=/-]{{0,8}}){{0,4}}");
    let mount = "~(/dev/null|/dev/./null|x)>(/var/run/nvidia-container-devices)?/(cdi/|imex/|\\.\\./)?[a-z0-9=/.]{0,9}";
    proptest::string::string_regex(&format!(
        "({env}|{mount}|@cdi.k8s.io/[a-z]: [a-z.,/= ]{{0,9}}|\\+CAP_SYS_ADMIN|\\PC{{0,6}})"
    ))
    .expect("an expression")
}

proptest! {
    #[test]
    fn any_request_has_unique_nonblank_devices(words in proptest::collection::vec(any_word(), 0..9), mounts: bool) {
        let spec = spec(&words.join(";"));
        let config = Config { devices_as_volume_mounts: mounts, ..Config::default() };
        let parsed = parse(&spec, &config, Annotations::Read, Strictness::Strict);
        if let Ok(ParsedRequest { request: Some(request), .. }) = parsed {
            prop_assert!(!request.devices.is_empty());
            let mut words: Vec<&str> = request.devices.iter().map(String::as_str).collect();
            prop_assert!(words.iter().all(|word| !word.trim().is_empty()), "{:?}", words);
            words.sort_unstable();
            words.dedup();
            prop_assert_eq!(words.len(), request.devices.len());
            prop_assert!(request.privileged || request.mig_config.is_none());
        }
    }
}

/// An image's environment is untrusted, and each start logs each note.
#[test]
fn only_first_notes_are_logged() {
    let words: String = (0..1000).map(|number| format!("word{number};")).collect();
    let ParsedRequest { notes, .. } =
        parse(&spec(&words), &Config::default(), Annotations::Skip, Strictness::Strict).unwrap();
    assert_eq!(notes.len(), 11);
    assert!(notes[9].contains("\"word9\"") && notes[10] == "990 more are left out", "{notes:?}");
}
