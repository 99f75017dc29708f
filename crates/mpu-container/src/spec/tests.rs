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
