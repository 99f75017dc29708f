//! Reading, editing and storing specifications, and their errors.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::edits::{DeviceNode, Hook, Mount};

fn bundle(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), text).unwrap();
    dir
}

fn edited(text: &str, edits: &ContainerEdits) -> String {
    let dir = bundle(text);
    let mut spec = Spec::load(dir.path()).unwrap();
    spec.apply(edits).unwrap();
    spec.store().unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the file");
    fs::read_to_string(dir.path().join("config.json")).unwrap()
}

fn env(list: &[&str]) -> ContainerEdits {
    ContainerEdits { env: list.iter().map(|text| (*text).into()).collect(), ..Default::default() }
}

#[test]
fn unknown_json_fields_round_trip() {
    let text = concat!(
        r#"{"zz":1.10,"ociVersion":"1.9.0","process":{"b":1e+400,"env":["A=1"],"a":18446744073709551616},"#,
        r#""linux":null,"é":[0.1,-0,1e+2]}"#
    );
    let expected = text.replace(r#""A=1""#, r#""A=1","B=2""#);
    assert_eq!(edited(text, &env(&["B=2"])), expected);
}

#[test]
fn variable_replaces_the_last_of_its_name() {
    let text = r#"{"process":{"env":["A=1","B","A=2","AB=3"]}}"#;
    assert_eq!(edited(text, &env(&["A=x=y", "C="])), r#"{"process":{"env":["A=1","B","A=x=y","AB=3","C="]}}"#);
}

#[test]
fn device_gets_node_and_cgroup_rule() {
    let node = |path: &str, permissions: Option<&str>| DeviceNode {
        path: path.into(),
        host_path: Some("/dev/null".into()),
        permissions: permissions.map(String::from),
        ..Default::default()
    };
    let edits =
        ContainerEdits { device_nodes: vec![node("/dev/x", None), node("/dev/y", Some("none"))], ..Default::default() };
    let text = concat!(
        r#"{"process":{"user":{"uid":7,"gid":0}},"linux":{"devices":[{"path":"/dev/x","type":"b"},{"path":"/dev/z"}],"#,
        r#""resources":{"devices":[{"allow":false,"access":"rwm"}]}}}"#
    );
    let tree: Value = serde_json::from_str(&edited(text, &edits)).unwrap();
    let expected = json!([{"path":"/dev/z"},
        {"path":"/dev/x","type":"c","major":1,"minor":3,"fileMode":0o666,"uid":7},
        {"path":"/dev/y","type":"c","major":1,"minor":3,"fileMode":0o666,"uid":7}]);
    assert_eq!(tree.pointer("/linux/devices"), Some(&expected));
    let rules = json!([{"allow":false,"access":"rwm"},
        {"allow":true,"type":"c","major":1,"minor":3,"access":"rwm"}, {"allow":true,"type":"c","major":1,"minor":3,"access":""}]);
    assert_eq!(tree.pointer("/linux/resources/devices"), Some(&rules));
}

#[test]
fn fully_described_device_needs_no_host() {
    let node = DeviceNode {
        path: "/dev/nvidia0".into(),
        host_path: Some("/nowhere".into()),
        kind: Some("c".into()),
        major: Some(195),
        uid: Some(0),
        file_mode: Some(0o666),
        ..Default::default()
    };
    let text = edited("{}", &ContainerEdits { device_nodes: vec![node], ..Default::default() });
    assert_eq!(
        text,
        concat!(
            r#"{"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0,"fileMode":438,"uid":0}],"#,
            r#""resources":{"devices":[{"allow":true,"type":"c","major":195,"minor":0,"access":"rwm"}]}}}"#
        )
    );
}

#[test]
fn mounts_are_replaced_and_parents_come_first() {
    let one = |path: &str| Mount {
        host_path: "/h".into(),
        container_path: path.into(),
        options: vec!["ro".into()],
        ..Default::default()
    };
    let text = concat!(
        r#"{"mounts":[{"destination":"/a/b/c"},{"destination":"/proc"},{"destination":"/usr/lib/x","k":1},"#,
        r#"{"destination":"/"},{"destination":"/a//./b/"}]}"#
    );
    let edits = ContainerEdits { mounts: vec![one("/usr/lib/x"), one("/x")], ..Default::default() };
    let tree: Value = serde_json::from_str(&edited(text, &edits)).unwrap();
    let order: Vec<_> = tree["mounts"].as_array().unwrap().iter().map(|m| m["destination"].as_str().unwrap()).collect();
    assert_eq!(order, ["/proc", "/", "/x", "/a//./b/", "/a/b/c", "/usr/lib/x"]);
    assert_eq!(tree["mounts"][5], json!({"destination":"/usr/lib/x","source":"/h","options":["ro"]}));
}

#[test]
fn hooks_groups_and_rest_are_added() {
    let hook =
        |name: &str| Hook { hook_name: name.into(), path: format!("/{name}"), timeout: Some(3), ..Default::default() };
    let edits = ContainerEdits {
        hooks: ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"]
            .map(hook)
            .into(),
        additional_gids: vec![0, 44, 44, 5],
        intel_rdt: Some(json!({"closID": "g"})),
        net_devices: vec![json!({"hostInterfaceName": "eth9", "name": "eth0"})],
        ..Default::default()
    };
    let text = r#"{"hooks":{"prestart":[{"path":"/first"}]},"process":{"user":{"additionalGids":[5]}}}"#;
    let tree: Value = serde_json::from_str(&edited(text, &edits)).unwrap();
    assert_eq!(tree["hooks"]["prestart"], json!([{"path":"/first"},{"path":"/prestart","timeout":3}]));
    assert_eq!(tree["hooks"].as_object().unwrap().len(), 6);
    assert_eq!(tree["process"]["user"]["additionalGids"], json!([5, 44]));
    assert_eq!(tree["linux"], json!({"netDevices":{"eth9":{"name":"eth0"}},"intelRdt":{"closID":"g"}}));
}

#[test]
fn refused_edit_names_place_and_reason() {
    let device = |path: &str, host: &str, kind: Option<&str>| ContainerEdits {
        device_nodes: vec![DeviceNode {
            path: path.into(),
            host_path: Some(host.into()),
            kind: kind.map(String::from),
            ..Default::default()
        }],
        ..Default::default()
    };
    let hook = ContainerEdits {
        hooks: vec![Hook { hook_name: "preStart".into(), path: "/x".into(), ..Default::default() }],
        ..Default::default()
    };
    let cases = [
        (r#"{"process":{"env":{}}}"#, env(&["A=1"]), "process.env of the container's config.json is not a list"),
        (r#"{"process":[]}"#, env(&["A=1"]), "process of the container's config.json is not an object"),
        (
            r#"{"linux":7}"#,
            device("/dev/n", "/dev/null", None),
            "linux of the container's config.json is not an object",
        ),
        ("{}", env(&["=1"]), "containerEdits.env: '=1' is not NAME=value"),
        ("{}", device("/dev/n", "/dev/null", Some("b")), "/dev/null is a character device, not of type 'b'"),
        ("{}", device("/dev/n", "/dev", None), "/dev is a directory, not a device"),
        ("{}", device("/dev/n", "/dev/nope", None), "cannot look at the device /dev/nope"),
        (
            "{}",
            hook,
            "containerEdits.hooks: 'preStart' is no hook; prestart, createRuntime, createContainer, startContainer, \
             poststart, poststop are",
        ),
    ];
    for (text, edits, expected) in cases {
        let dir = bundle(text);
        assert_eq!(Spec::load(dir.path()).unwrap().apply(&edits).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn invalid_specification_is_left_alone() {
    let deep = "[".repeat(1000);
    for (text, expected) in
        [("", "is not JSON"), ("{\"a\":1", "is not JSON"), ("[1]", "is not a JSON object"), (&deep, "is not JSON")]
    {
        let dir = bundle(text);
        let error = Spec::load(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("config.json")).unwrap(), text);
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Spec::load(dir.path()), Err(SpecError::Read(..))));
    let file = fs::File::create(dir.path().join("config.json")).unwrap();
    file.set_len(MAX_BYTES + 1).unwrap();
    assert!(matches!(Spec::load(dir.path()), Err(SpecError::TooLarge(_))));
    fs::remove_file(dir.path().join("config.json")).unwrap();
    fs::create_dir(dir.path().join("config.json")).unwrap();
    assert!(Spec::load(dir.path()).unwrap_err().to_string().starts_with("cannot read"));
}

#[test]
fn lossy_specification_is_never_written() {
    let deep = format!("{{\"a\": 1, \"b\": {}{}}}", "[".repeat(1000), "]".repeat(1000));
    for text in ["{\"a\": 1}x", "{\"a\": 1, \"b\": \"\\ud800\"}", &deep] {
        let dir = bundle(text);
        let mut spec = Spec::load(dir.path()).unwrap();
        assert_eq!(spec.tree()["a"], json!(1), "{text}");
        spec.apply(&ContainerEdits { env: vec!["A=1".into()], ..ContainerEdits::default() }).unwrap();
        let error = spec.store().unwrap_err().to_string();
        assert!(error.ends_with("config.json cannot be written again as it was"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join("config.json")).unwrap(), text);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "and nothing is left beside it");
    }
}

#[test]
fn mode_owner_and_link_to_file_are_kept() {
    let dir = bundle("{}");
    let real = dir.path().join("real");
    let link = dir.path().join("config.json");
    fs::rename(&link, &real).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("real", &link).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(&real, Some(12), Some(34)).unwrap();
    }
    let inode = fs::metadata(&real).unwrap().ino();
    // A temporary file of an earlier process with the same PID does not matter.
    fs::write(dir.path().join(format!(".config.json.{}", std::process::id())), "old").unwrap();
    Spec::load(dir.path()).unwrap().store().unwrap();
    let meta = fs::metadata(&real).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_ne!(meta.ino(), inode, "the file was written anew, not in place");
    assert_eq!(meta.mode() & 0o7777, 0o640);
    if root {
        assert_eq!((meta.uid(), meta.gid()), (12, 34));
    }
}

#[test]
fn hooks_are_found_by_program_name() {
    let dir = bundle(
        r#"{"hooks":{"prestart":[{"path":"/usr/bin/nvidia-container-runtime-hook"},{"path":"/x/other"},{"path":7}]}}"#,
    );
    let mut spec = Spec::load(dir.path()).unwrap();
    let names = &["nvidia-container-runtime-hook", "nvidia-container-toolkit"];
    assert!(spec.has_prestart_hook(names));
    assert!(spec.remove_prestart_hooks(names));
    assert!(!spec.remove_prestart_hooks(names));
    assert_eq!(spec.tree()["hooks"]["prestart"], json!([{"path":"/x/other"},{"path":7}]));
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,6}".prop_map(Value::from)
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let key = prop_oneof!["[a-z]{1,3}", "process|env|linux|devices|mounts|hooks|user|resources"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..4).prop_map(|pairs| Value::Object(pairs.into_iter().collect()))
        ]
    })
}

proptest! {
    /// For any specification, edits succeed or return an error. Other fields stay unchanged.
    #[test]
    fn edit_of_any_tree_keeps_other_fields(tree in any_json(), pick in 0u8..64) {
        let bit = |n: u8| pick & (1 << n) != 0;
        let edits = ContainerEdits {
            env: if bit(0) { vec!["A=1".into()] } else { vec![] },
            device_nodes: if bit(1) { vec![DeviceNode { path: "/dev/null".into(), ..Default::default() }] } else { vec![] },
            mounts: if bit(2) { vec![Mount { host_path: "/a".into(), container_path: "/b".into(), ..Default::default() }] } else { vec![] },
            hooks: if bit(3) { vec![Hook { hook_name: "poststop".into(), path: "/a".into(), ..Default::default() }] } else { vec![] },
            additional_gids: if bit(4) { vec![5] } else { vec![] },
            ..Default::default()
        };
        let tree = json!({"process": tree.get("process"), "linux": tree.get("linux"), "other": tree, "hooks": tree.get("hooks")});
        let mut after = tree.clone();
        if apply::apply(&mut after, &edits).is_ok() {
            prop_assert_eq!(&after["other"], &tree["other"]);
            if edits.is_empty() {
                prop_assert_eq!(after, tree);
            }
        }
    }

    /// Reading and writing without an edit keeps every key, the order, and every number.
    #[test]
    fn unedited_tree_round_trips(tree in any_json()) {
        let text = json!({ "x": tree }).to_string();
        prop_assert_eq!(edited(&text, &ContainerEdits::default()), text);
    }

    /// Reading any bytes never panics.
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(Path::new(dir.path()).join("config.json"), bytes).unwrap();
        let _ = Spec::load(dir.path());
    }
}
