//! Each engine: added, added again, removed; what else is in the file stays.

use super::*;
use std::os::unix::fs::PermissionsExt;

fn wish() -> Wish {
    let path = "/usr/bin/nvidia-container-runtime".to_string();
    Wish { name: "nvidia".into(), path, default: false, cdi: false, containerd_version: 2 }
}

fn all() -> Wish {
    Wish { default: true, cdi: true, ..wish() }
}

const ENGINES: [Engine; 4] = [Engine::Docker, Engine::Containerd, Engine::Crio, Engine::Podman];

/// What an administrator may have in each engine's file.
const THEIRS: [&str; 4] = [
    "{\n  \"log-driver\": \"local\",\n  \
     \"runtimes\": {\n    \"kata\": {\n      \"path\": \"/opt/kata\"\n    }\n  },\n  \"zzz\": [\n    1.5\n  ]\n}\n",
    "# ours\nversion = 2\n\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    sandbox_image = 'pause' # pinned\n    \
     [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n      runtime_type = \"io.containerd.runc.v2\"\n      \
     [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n        SystemdCgroup = true\n",
    "# ours\n[crio.runtime]\nlog_level = \"info\"\n[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n",
    "# ours\n[engine]\nnum_locks = 9 # few\n[engine.runtimes]\nkata = [\"/opt/kata\"]\n",
];

#[test]
fn what_is_added_twice_is_there_once() {
    for engine in ENGINES {
        for text in THEIRS.iter().filter(|text| engine.with(text, &all()).is_ok()).chain(&[""]) {
            let once = engine.with(text, &all()).expect("added");
            assert!(once.contains("nvidia-container-runtime"), "{engine:?}: {once}");
            assert_eq!(engine.with(&once, &all()).expect("added again"), once, "{engine:?}");
        }
    }
}

#[test]
fn what_is_removed_leaves_what_was_there() {
    for (engine, theirs) in ENGINES.into_iter().zip(THEIRS) {
        let with = engine.with(theirs, &Wish { cdi: false, ..all() }).expect("added");
        assert_ne!(with, theirs);
        let without = engine.without(&with, "nvidia").expect("removed");
        assert_eq!(without.as_deref(), Some(theirs), "{engine:?}");
        assert_eq!(engine.without(theirs, "nvidia").expect("nothing to do").as_deref(), Some(theirs), "{engine:?}");
    }
}

#[test]
fn a_file_of_ours_alone_goes() {
    for engine in ENGINES {
        let made = engine.with("", &wish()).expect("made");
        assert_eq!(engine.without(&made, "nvidia").expect("removed"), None, "{engine:?}: {made}");
    }
}

#[test]
fn another_default_than_ours_stays() {
    let theirs = "{\"default-runtime\": \"kata\"}";
    let with = Engine::Docker.with(theirs, &wish()).expect("added");
    assert!(with.contains("\"default-runtime\": \"kata\""), "{with}");
    let without = Engine::Docker.without(&with, "nvidia").expect("removed");
    assert!(without.expect("something is left").contains("kata"));
}

#[test]
fn containerds_runtime_has_the_default_ones_options() {
    let with = Engine::Containerd.with(THEIRS[1], &all()).expect("added");
    let read: toml_edit::DocumentMut = with.parse().expect("TOML");
    let cri = &read["plugins"]["io.containerd.grpc.v1.cri"];
    let nvidia = &cri["containerd"]["runtimes"]["nvidia"];
    assert_eq!(nvidia["runtime_type"].as_str(), Some("io.containerd.runc.v2"));
    assert_eq!(nvidia["options"]["SystemdCgroup"].as_bool(), Some(true));
    assert_eq!(nvidia["options"]["BinaryName"].as_str(), Some("/usr/bin/nvidia-container-runtime"));
    assert_eq!(cri["containerd"]["default_runtime_name"].as_str(), Some("nvidia"));
    assert_eq!(cri["enable_cdi"].as_bool(), Some(true));
    assert!(with.starts_with("# ours\n") && with.contains("# pinned"), "comments stay: {with}");
}

#[test]
fn each_version_of_containerd_has_its_place() {
    for (text, plugin) in [
        ("oom_score = 0\n", "cri"),
        ("version = 2\n", "io.containerd.grpc.v1.cri"),
        ("version = 3\n", "io.containerd.cri.v1.runtime"),
    ] {
        let with = Engine::Containerd.with(text, &wish()).expect("added");
        let read: toml_edit::DocumentMut = with.parse().expect("TOML");
        let options = &read["plugins"][plugin]["containerd"]["runtimes"]["nvidia"]["options"];
        assert_eq!(options["BinaryName"].as_str(), Some("/usr/bin/nvidia-container-runtime"), "{with}");
    }
    let error = Engine::Containerd.with("version = 9\n", &wish()).expect_err("unknown");
    assert!(error.to_string().contains("version 9"), "{error}");
}

#[test]
fn what_is_not_understood_is_not_touched() {
    for (engine, text) in [
        (Engine::Docker, "{\"runtimes\": 7}"),
        (Engine::Docker, "{\"runtimes\": {}"),
        (Engine::Docker, "[]"),
        (Engine::Containerd, "version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\" = 4\n"),
        (Engine::Crio, "[crio.runtime\n"),
        (Engine::Podman, "engine = \"x\"\n"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, text).expect("written");
        let error = adding(engine, &path, &wish()).expect_err(text);
        assert!(error.to_string().contains("is left as it is"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("read"), text);
    }
}

#[test]
fn a_file_is_replaced_with_its_mode_and_behind_its_link() {
    let dir = tempfile::tempdir().expect("a directory");
    let (real, link) = (dir.path().join("kept.json"), dir.path().join("daemon.json"));
    fs::write(&real, "{}").expect("written");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).expect("mode");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    let change = adding(Engine::Docker, &link, &wish()).expect("understood");
    make(&change, &link).expect("made");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(fs::metadata(&real).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(adding(Engine::Docker, &link, &wish()).expect("understood"), Change::None);
    let left: Vec<_> = fs::read_dir(dir.path()).expect("read").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    make(&removing(Engine::Docker, &link, "nvidia").expect("understood"), &link).expect("removed");
}

#[test]
fn nothing_is_removed_where_nothing_is() {
    let dir = tempfile::tempdir().expect("a directory");
    for engine in ENGINES {
        assert_eq!(removing(engine, &dir.path().join("none"), "nvidia").expect("nothing"), Change::None);
    }
}
