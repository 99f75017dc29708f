//! Adding, reusing and removing runtimes in each engine's files. Other contents stay.

use super::files::{Files, Paths, Pending};
use super::force::Force;
use super::plan::{Plan, adding, removing, undefaulting};
use super::*;
use crate::beneath::tests::walk;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use toml_edit::DocumentMut;

const WRAPPER: &str = "/usr/bin/nvidia-container-runtime";
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

fn request() -> RuntimeRequest {
    RuntimeRequest::new("nvidia", WRAPPER)
}

fn all() -> RuntimeRequest {
    RuntimeRequest { default: Some(true), cdi: true, ..request() }
}

struct Place {
    dir: tempfile::TempDir,
    files: Files,
}

impl Place {
    fn new(engine: Engine) -> Place {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::of(engine);
        files.top = dir.path().join(engine.top().trim_start_matches('/'));
        files.paths = Paths { root: dir.path().into(), folders: Vec::new() };
        Place { dir, files }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, text).expect("written");
        path
    }

    fn top(self, text: &str) -> Place {
        self.write(self.files.engine.top(), text);
        self
    }

    fn done(&self, plan: Result<Plan, EngineError>) -> Force {
        let plan = plan.expect("a plan");
        plan.carry_out(&self.files, &["nvidia"]).expect("carried out")
    }

    fn add(&self, request: &RuntimeRequest) -> Force {
        self.done(adding(&self.files, std::slice::from_ref(request), None))
    }

    fn remove(&self) -> Force {
        self.done(removing(&self.files, &["nvidia"]))
    }

    fn force(&self) -> Force {
        Force::of(&self.files, &self.files.layers(&Pending::new()).expect("read")).expect("understood")
    }

    fn tree(&self) -> Vec<(PathBuf, String)> {
        let files = walk(self.dir.path()).into_iter().filter(|(_, about)| !about.is_dir());
        files.map(|(path, _)| (path.clone(), fs::read_to_string(path).expect("text"))).collect()
    }
}

fn toml(path: &Path) -> DocumentMut {
    fs::read_to_string(path).expect("read").parse().expect("TOML")
}

#[test]
fn adding_twice_changes_files_once() {
    for (engine, existing) in ENGINES.into_iter().zip(THEIRS) {
        for place in [Place::new(engine), Place::new(engine).top(existing)] {
            let force = place.add(&all());
            assert_eq!((force.program("nvidia"), force.is_default("nvidia")), (Some(WRAPPER), true), "{engine:?}");
            let once = place.tree();
            assert!(adding(&place.files, &[all()], None).expect("a plan").changes.is_empty(), "{engine:?}");
            place.add(&all());
            assert_eq!(place.tree(), once, "{engine:?}");
        }
    }
}

#[test]
fn removing_restores_original_files() {
    for (engine, existing) in ENGINES.into_iter().zip(THEIRS) {
        for place in [Place::new(engine), Place::new(engine).top(existing)] {
            let before = place.tree();
            assert!(removing(&place.files, &["nvidia"]).expect("nothing to do").changes.is_empty(), "{engine:?}");
            place.add(&RuntimeRequest { cdi: false, ..all() });
            assert_ne!(place.tree(), before, "{engine:?}");
            let force = place.remove();
            let mut left = place.tree();
            // Of Docker's file it is not known whether it was there.
            left.retain(|(_, text)| !(before.is_empty() && engine == Engine::Docker && text == "{}\n"));
            assert_eq!(left, before, "{engine:?}");
            assert!(force.program("nvidia").is_none() && force.default.is_none(), "{engine:?}");
        }
    }
}

#[test]
fn another_default_than_ours_stays() {
    let place = Place::new(Engine::Docker).top("{\"default-runtime\": \"kata\"}");
    assert!(place.add(&request()).is_default("kata"));
    assert!(place.remove().is_default("kata"));
}

#[test]
fn default_is_withdrawn_only_on_request() {
    for (engine, existing) in ENGINES.into_iter().zip(THEIRS) {
        let place = Place::new(engine).top(existing);
        place.add(&all());
        assert!(place.add(&request()).is_default("nvidia"), "{engine:?}: a wish without a default leaves it");
        let force = place.add(&RuntimeRequest { default: Some(false), ..request() });
        assert!(!force.is_default("nvidia") && force.program("nvidia") == Some(WRAPPER), "{engine:?}");
        place.add(&all());
        let force = place.done(undefaulting(&place.files, "nvidia"));
        assert!(!force.is_default("nvidia") && force.program("nvidia") == Some(WRAPPER), "{engine:?}");
    }
}

#[test]
fn leave_withdraws_our_default_runtime() {
    let is_ours = |program: &str| program == WRAPPER;
    for (engine, existing) in ENGINES.into_iter().zip(THEIRS) {
        let place = Place::new(engine).top(existing);
        let left = || leave::leave(&place.files, is_ours).expect("left").map(|(name, _, now)| (name, now.default));
        place.add(&request());
        let before = fs::read_to_string(&place.files.top).expect("read");
        assert_eq!(left(), None, "{engine:?}: it is not the default one");
        assert_eq!(fs::read_to_string(&place.files.top).expect("read"), before);
        place.add(&all());
        assert!(leave::leave(&place.files, |_| false).expect("left").is_none(), "{engine:?}: another tool's program");
        let (name, now) = left().expect("it was the default one");
        assert_eq!(name, "nvidia");
        let own = now.as_ref().map(|(default, _)| default.as_str());
        // A reload of Docker exchanges a default, and takes none away.
        assert_eq!(own, (engine == Engine::Docker).then_some("runc"), "{engine:?}");
        assert_eq!(left(), None, "{engine:?}: once is enough");
        let force = Force::of(&place.files, &place.files.layers(&Pending::new()).expect("layers")).expect("read");
        assert_eq!(force.program("nvidia"), Some(WRAPPER), "{engine:?}: who names it has it while it is there");
    }
    let place = Place::new(Engine::Docker)
        .top("{\"default-runtime\": \"kata\", \"runtimes\": {\"kata\": {\"path\": \"/opt/kata\"}}}");
    assert!(leave::leave(&place.files, is_ours).expect("left").is_none());
    let place = Place::new(Engine::Docker).top("{\"default-runtime\": ");
    assert!(leave::leave(&place.files, is_ours).is_err(), "a file that cannot be read is an error, and stays");
}

#[test]
fn malformed_files_are_left_alone() {
    for (engine, text) in [
        (Engine::Containerd, "version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\" = 4\n"),
        (Engine::Crio, "[crio.runtime\n"),
    ] {
        let place = Place::new(engine).top(text);
        let error = adding(&place.files, &[request()], None).expect_err(text);
        assert!(error.to_string().contains("is left as it is"), "{error}");
        assert_eq!(fs::read_to_string(&place.files.top).expect("read"), text);
        assert_eq!(place.tree().len(), 1, "{text}");
    }
}

#[test]
fn replaced_config_keeps_mode_and_link() {
    let mut place = Place::new(Engine::Docker);
    let real = place.write("kept.json", "{}");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).expect("mode");
    place.files.top = place.at("daemon.json");
    std::os::unix::fs::symlink(&real, &place.files.top).expect("a link");
    place.add(&request());
    assert!(fs::symlink_metadata(&place.files.top).expect("there").is_symlink());
    assert_eq!(fs::metadata(&real).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(place.dir.path()).expect("read").count(), 2);
}

#[test]
fn empty_file_of_dockers_stays() {
    for text in ["{}", "{}\n", "{ }"] {
        let place = Place::new(Engine::Docker).top(text);
        place.add(&request());
        place.remove();
        let left = fs::read_to_string(&place.files.top).expect("the file is the operator's");
        assert_eq!(left.trim(), "{}", "{text:?}");
    }
}

#[test]
fn docker_features_are_restored_unless_changed_since() {
    let back = |before: &str, cdi: bool, now: &str| {
        let kept = docker::before(before, &["nvidia"], cdi).expect("JSON");
        let text = docker::restored(now, &["nvidia"], &kept).expect("JSON").unwrap_or_default();
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default()
    };
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let on = r#"{"a": 1, "features": {"cdi": true}}"#;
    for before in [r#"{"a": 1}"#, r#"{"a": 1, "features": {}}"#, r#"{"a": 1, "features": {"cdi": false}}"#, on] {
        assert_eq!(back(before, true, on), json(before));
        assert_eq!(back(before, false, on), json(on), "we have not set it");
    }
    let off = r#"{"features": {"cdi": false, "new": true}}"#;
    assert_eq!(back("{}", true, off), json(off), "it has been turned off since");
    assert_eq!(
        back(r#"{"features": {"x": true}}"#, true, r#"{"features": {"x": true, "cdi": true}}"#),
        json(r#"{"features": {"x": true}}"#)
    );
    assert_eq!(back("{}", true, r#"{"features": 7}"#), json(r#"{"features": 7}"#));
}

/// What `nvidia-ctk runtime configure --runtime=containerd --set-as-default` of NVIDIA leaves, by containerd's release.
fn after_nvidias(merges: bool) -> Place {
    let mut place =
        Place::new(Engine::Containerd).top(&format!("imports = [\"/etc/containerd/conf.d/*.toml\"]\n{}", THEIRS[1]));
    place.files.merges = merges;
    place.write(
        "/etc/containerd/conf.d/99-nvidia.toml",
        "version = 2\n\n[plugins]\n\n  [plugins.\"io.containerd.grpc.v1.cri\"]\n    sandbox_image = \"pause\"\n\n    \
         [plugins.\"io.containerd.grpc.v1.cri\".containerd]\n      default_runtime_name = \"nvidia\"\n\n      \
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes]\n\n        \
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n          runtime_type = \"io.containerd.runc.v2\"\n\n          \
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n            \
         BinaryName = \"/opt/nvidias/nvidia-container-runtime\"\n            SystemdCgroup = true\n\n        \
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n          runtime_type = \"io.containerd.runc.v2\"\n\n          \
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n            SystemdCgroup = true\n",
    );
    place
}

#[test]
fn nvidia_containerd_drop_in_is_taken_over() {
    for merges in [false, true] {
        let place = after_nvidias(merges);
        let top = fs::read_to_string(&place.files.top).expect("read");
        assert_eq!(place.force().program("nvidia"), Some("/opt/nvidias/nvidia-container-runtime"));
        assert_eq!(place.add(&request()).program("nvidia"), Some(WRAPPER), "{merges}");
        assert_eq!(
            fs::read_to_string(&place.files.top).expect("read"),
            top,
            "{merges}: the file that counts was changed"
        );
        let force = place.remove();
        assert!(force.program("nvidia").is_none() && force.default.is_none(), "{merges}: {}", force.describe("nvidia"));
        assert!(!place.at("/etc/containerd/conf.d/99-nvidia.toml").exists(), "it only repeats config.toml");
        assert_eq!(fs::read_to_string(&place.files.top).expect("read"), top);
        // And at once, without having been taken over.
        let place = after_nvidias(merges);
        let force = place.remove();
        assert!(force.program("nvidia").is_none() && force.default.is_none(), "{merges}");
    }
}

#[test]
fn other_keys_of_nvidia_drop_in_stay() {
    let place = after_nvidias(false);
    let drop_in = place.at("/etc/containerd/conf.d/99-nvidia.toml");
    let more = fs::read_to_string(&drop_in).expect("read").replace("\"pause\"", "\"registry.local/pause\"");
    fs::write(&drop_in, more).expect("written");
    place.remove();
    let left = fs::read_to_string(&drop_in).expect("still there");
    assert!(left.contains("registry.local/pause") && !left.contains("nvidia"), "{left}");
}

#[test]
fn overruling_file_is_named_without_writing() {
    let place = Place::new(Engine::Crio);
    place.write("/etc/crio/crio.conf.d/zz-site.conf", "[crio.runtime]\ndefault_runtime = \"crun\"\n");
    let before = place.tree();
    let error = adding(&place.files, &[all()], None).expect_err("overruled").to_string();
    assert!(error.contains("zz-site.conf") && error.contains("the default runtime is crun"), "{error}");
    assert_eq!(place.tree(), before);
    assert_eq!(place.add(&request()).program("nvidia"), Some(WRAPPER), "not as the default it can be had");

    let mut place = Place::new(Engine::Containerd).top("version = 2\nimports = [\"conf.d/*.toml\"]\n");
    place.files.drop_in = Some(place.at("/etc/containerd/conf.d/50-nvidia.toml"));
    place.write(
        "/etc/containerd/conf.d/60.toml",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = 'x'\n",
    );
    let error = adding(&place.files, &[request()], None).expect_err("its section alone counts").to_string();
    assert!(error.contains("runtimes.nvidia is nothing"), "{error}");
    place.files.merges = true;
    assert_eq!(place.add(&request()).program("nvidia"), Some(WRAPPER), "from 2.1 on sections are merged");
}

#[test]
fn nvidia_crio_drop_in_is_taken_over() {
    let existing = "[crio.runtime]\ndefault_runtime = \"nvidia\"\n[crio.runtime.runtimes.nvidia]\n\
                  runtime_path = \"/opt/nvidias\"\nruntime_type = \"oci\"\n";
    for name in ["99-nvidia.toml", "99-nvidia.conf"] {
        let place = Place::new(Engine::Crio).top(THEIRS[2]);
        let before = place.tree();
        place.write(&format!("/etc/crio/crio.conf.d/{name}"), existing);
        let force = place.add(&request());
        assert_eq!((force.program("nvidia"), force.is_default("nvidia")), (Some(WRAPPER), true), "{name}");
        assert_eq!(place.tree().len(), 2, "{name}: no second file");
        place.remove();
        assert_eq!(place.tree(), before, "{name}");
    }
}

#[test]
fn crio_drop_in_elsewhere_counts_with_directory() {
    let mut place = Place::new(Engine::Crio).top(THEIRS[2]);
    place.write("/etc/crio/crio.conf.d/zz.conf", "[crio.runtime]\ndefault_runtime = \"crun\"\n");
    place.write("/etc/crio/other", "no TOML, and none of CRI-O's files");
    // As `--drop-in-config=` has it: the first file itself, over which the directory still has its say.
    place.files.drop_in = Some(place.files.top.clone());
    adding(&place.files, &[all()], None).expect_err("zz.conf overrules it");
    assert_eq!(place.add(&request()).program("nvidia"), Some(WRAPPER));
    assert!(fs::read_to_string(&place.files.top).expect("read").contains(WRAPPER) && place.files.reads_own());
    place.files.drop_in = Some(place.at("/etc/crio/50-ours.toml"));
    assert!(!place.files.reads_own(), "CRI-O does not know of it");
    assert!(place.add(&all()).is_default("nvidia"), "were it read, it would be the last one");
}

#[test]
fn crio_runtime_copies_default_keys_except_program() {
    let place = Place::new(Engine::Crio);
    place.write(
        "/etc/crio/crio.conf.d/10-crio.conf",
        "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/usr/libexec/crio/crun\"\n\
         runtime_root = \"/run/crun\"\nmonitor_path = \"/usr/libexec/crio/conmon\"\nmonitor_cgroup = \"pod\"\n\
         allowed_annotations = [\n  \"io.containers.trace-syscall\",\n]\nplatform_runtime_paths = { \"linux/arm64\" = \"/a\" }\n\
         inherit_default_runtime = true\n[crio.runtime.runtimes.runc]\nmonitor_path = \"/other\"\n",
    );
    place.add(&all());
    let read = toml(&place.files.own());
    let nvidia = &read["crio"]["runtime"]["runtimes"]["nvidia"];
    assert_eq!(nvidia["runtime_path"].as_str(), Some(WRAPPER));
    assert_eq!(nvidia["monitor_path"].as_str(), Some("/usr/libexec/crio/conmon"));
    assert_eq!(nvidia["monitor_cgroup"].as_str(), Some("pod"));
    assert_eq!(nvidia["runtime_root"].as_str(), Some("/run/crun"));
    let annotations = nvidia["allowed_annotations"].as_array().expect("a list");
    assert_eq!(annotations.get(0).and_then(|word| word.as_str()), Some("io.containers.trace-syscall"));
    for key in ["platform_runtime_paths", "inherit_default_runtime"] {
        assert!(nvidia.get(key).is_none(), "{key} would have CRI-O call another program: {read}");
    }
}

#[test]
fn requested_drop_in_is_imported_and_removed() {
    for merges in [false, true] {
        for existing in [None, Some(THEIRS[1])] {
            let mut place = Place::new(Engine::Containerd);
            if let Some(text) = existing {
                place = place.top(text);
            }
            let own = place.at("/etc/containerd/conf.d/99-nvidia.toml");
            place.files.merges = merges;
            place.files.drop_in = Some(own.clone());
            // As in a container that sees the host's directory elsewhere.
            place.files.paths.folders = vec![("/etc/containerd/conf.d".into(), place.at("/etc/containerd/conf.d"))];
            let request = RuntimeRequest { default: Some(true), ..request() };
            place.add(&request);
            let top = fs::read_to_string(&place.files.top).expect("read");
            assert!(
                top.contains("imports = [\"/etc/containerd/conf.d/*.toml\"]") && !top.contains("runtimes.nvidia"),
                "{top}"
            );
            let copied = fs::read_to_string(&own).expect("read").contains("sandbox_image");
            assert_eq!(copied, !merges && existing.is_some(), "{merges} {existing:?}");
            let options =
                &toml(&own)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["nvidia"]["options"];
            assert_eq!(options.get("SystemdCgroup").is_some(), existing.is_some());
            let once = place.tree();
            place.add(&request);
            assert_eq!(place.tree(), once);
            place.remove();
            assert!(!own.exists());
            assert_eq!(place.files.top.exists(), existing.is_some(), "a file that was made to import it goes with it");
        }
    }
}

#[test]
fn drop_in_copy_follows_original() {
    let mut place = Place::new(Engine::Containerd).top(THEIRS[1]);
    let own = place.at("/etc/containerd/conf.d/99-nvidia.toml");
    place.files.drop_in = Some(own.clone());
    place.add(&RuntimeRequest {
        default: Some(true),
        ..RuntimeRequest::new("nvidia-cdi", "/usr/bin/nvidia-container-runtime.cdi")
    });
    let changed = fs::read_to_string(&place.files.top).expect("read").replace("'pause'", "'newer'");
    fs::write(&place.files.top, changed).expect("written");
    let force = place.add(&request());
    assert!(fs::read_to_string(&own).expect("read").contains("'newer'"));
    assert!(force.program("nvidia-cdi").is_some(), "the runtime from before is still known");
    assert!(!force.is_default("nvidia"), "not requested");
}

#[test]
fn implicit_containerd_runc_becomes_explicit() {
    let place = Place::new(Engine::Containerd).top("version = 2\n");
    let force = place.add(&request());
    assert!(force.runtimes.contains_key("runc"), "containerd 1.7 refuses to load its CRI plug-in without");
    place.add(&RuntimeRequest { default: Some(true), ..RuntimeRequest::new("nvidia-cdi", "/x") });
    place.remove();
    assert!(place.force().runtimes.contains_key("runc"), "as long as one of ours is there");
    place.done(removing(&place.files, &["nvidia-cdi"]));
    assert_eq!(fs::read_to_string(&place.files.top).expect("the administrator's"), "version = 2\n");

    let existing =
        "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crun]\nruntime_type = \"io.containerd.runc.v2\"\n";
    let place = Place::new(Engine::Containerd).top(&format!("version = 2\n{existing}"));
    assert!(!place.add(&request()).runtimes.contains_key("runc"), "who names runtimes has named all that are wanted");
    let mut place = Place::new(Engine::Containerd).top("version = 3\n");
    place.files.merges = true;
    assert!(!place.add(&request()).runtimes.contains_key("runc"), "releases from 2.1 on keep their own");
}

#[test]
fn imports_are_followed_as_containerd_follows_them() {
    let place = Place::new(Engine::Containerd)
        .top("version = 2\nimports = [\"a.toml\", \"/etc/containerd/conf.d/*.toml\", \"/nowhere.toml\"]\n");
    let runtime = |program: &str, more: &str| {
        format!(
            "version = 2\n{more}[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.x.options]\nBinaryName = \"{program}\"\n"
        )
    };
    place.write("/etc/containerd/a.toml", &runtime("/a", "imports = [\"deep/last.toml\", \"config.toml\"]\n"));
    place.write("/etc/containerd/conf.d/2.toml", &runtime("/2", ""));
    place.write("/etc/containerd/conf.d/10.toml", &runtime("/10", ""));
    place.write("/etc/containerd/conf.d/9.conf", &runtime("/conf", ""));
    let layers = place.files.layers(&Pending::new()).expect("read");
    let names: Vec<_> = layers.iter().filter_map(|layer| layer.path.file_name()?.to_str()).collect();
    assert_eq!(names, ["config.toml", "a.toml", "10.toml", "2.toml"]);
    place.write("/etc/containerd/deep/last.toml", &runtime("/last", ""));
    assert_eq!(place.force().program("x"), Some("/last"), "what an import imports comes after all of the first file's");
}

/// containerd cleans a path before it looks: `..` is the folder above by name.
#[test]
fn import_through_folder_above_is_found() {
    for import in
        ["../there.d/*.toml", "../there.d/x.toml", "/etc/containerd/../../etc/there.d/*.toml", "/../etc/there.d/*.toml"]
    {
        let place = Place::new(Engine::Containerd).top(&format!("version = 2\nimports = [\"{import}\"]\n"));
        let runtime =
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"theirs\"\n";
        let existing = place.write("/etc/there.d/x.toml", runtime);
        let force = place.force();
        assert_eq!(force.default, Some(("theirs".into(), existing)), "{import}");
    }
}

/// Kata's shim or gVisor's has other options, and calls no wrapper: a container would start without its GPU.
#[test]
fn default_runtime_of_another_kind_is_no_pattern() {
    let of_kata = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"kata\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata.options]\nConfigPath = \"/kata.toml\"\n";
    let place = Place::new(Engine::Containerd).top(&format!("{}{of_kata}", THEIRS[1]));
    let force = place.add(&request());
    let keys = &force.runtimes["nvidia"].0.keys;
    assert_eq!(keys["runtime_type"].as_str(), Some("io.containerd.runc.v2"), "{keys}");
    assert_eq!(keys["options"]["SystemdCgroup"].as_bool(), Some(true), "runc's: {keys}");
    assert!(keys["options"].get("ConfigPath").is_none(), "{keys}");
    let of_kata = "[crio.runtime]\ndefault_runtime = \"kata\"\n[crio.runtime.runtimes.kata]\n\
                   runtime_path = \"/usr/bin/containerd-shim-kata-v2\"\nruntime_type = \"vm\"\n";
    let place = Place::new(Engine::Crio).top(of_kata);
    assert!(place.force().low_programs().is_empty(), "a shim is no runtime to hand containers on to");
}

/// A copy that stays would go on deciding, whatever is changed in the file that it is a copy of.
#[test]
fn copy_goes_though_section_has_lists_with_comments() {
    let list = "[plugins.\"io.containerd.grpc.v1.cri\".registry]\nheaders = [\n  \"a\", # the first\n  { b = [ # in it\n 1 ] },\n]\n";
    let text = format!("version = 2\n{list}");
    let mut place = Place::new(Engine::Containerd).top(&text);
    place.files.drop_in = Some(place.at("/etc/containerd/conf.d/99-nvidia.toml"));
    place.add(&RuntimeRequest { default: Some(true), ..request() });
    let copy = fs::read_to_string(place.files.own()).expect("written");
    assert!(copy.contains("headers") && !copy.contains("# the first") && !copy.contains("# in it"), "{copy}");
    place.remove();
    assert!(!place.files.own().exists(), "{copy}");
    assert_eq!(fs::read_to_string(&place.files.top).expect("there"), text);
    let text = THEIRS[1].replace("version = 2\n", "version = 2\nimports = []\n");
    let place = Place::new(Engine::Containerd).top(&text);
    place.add(&request());
    place.remove();
    assert_eq!(fs::read_to_string(&place.files.top).expect("there"), text, "an empty list of imports is theirs");
}

#[test]
fn our_own_runtime_is_no_low_runtime() {
    for engine in ENGINES {
        let place = Place::new(engine);
        let request = RuntimeRequest { name: "gpu".into(), default: Some(true), ..request() };
        let force = adding(&place.files, &[request], None).expect("a plan").force;
        assert!(force.is_default("gpu") && force.low_programs().is_empty(), "{engine:?}: {:?}", force.low_programs());
    }
}

/// Docker does not start with such a file: moby's `setupRuntimes`.
#[test]
fn dockers_runtime_has_path_or_kind() {
    let kind = "\"runtimeType\": \"io.containerd.runc.v2\", \"options\": {\"BinaryName\": \"/old\"}";
    let place =
        Place::new(Engine::Docker).top(&format!("{{\"runtimes\": {{\"nvidia\": {{{kind}, \"runtimeArgs\": []}}}}}}"));
    assert_eq!(place.force().program("nvidia"), Some("/old"));
    let before = super::plan::before(&place.files, &["nvidia"], false).expect("remembered");
    place.add(&request());
    let text = fs::read_to_string(&place.files.top).expect("there");
    let there: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(there["runtimes"]["nvidia"], serde_json::json!({"runtimeArgs": [], "path": WRAPPER}));
    place.done(super::plan::restoring(&place.files, &["nvidia"], &before));
    assert_eq!(place.force().program("nvidia"), Some("/old"), "the installer puts back what was there");
    let place = Place::new(Engine::Docker);
    let error = adding(&place.files, &[RuntimeRequest::new("runc", WRAPPER)], None).expect_err("Docker's own");
    assert!(error.to_string().contains("is called runc"), "{error}");
}

#[test]
fn either_all_files_are_written_or_none() {
    let mut place = Place::new(Engine::Containerd).top(THEIRS[1]);
    place.files.drop_in = Some(place.at("/a/99-nvidia.toml"));
    let before = place.tree();
    let plan = adding(&place.files, &[request()], None).expect("a plan");
    assert_eq!(plan.changes.len(), 2, "the file and its import");
    // A directory in the place of the second one.
    fs::remove_file(&place.files.top).expect("removed");
    fs::create_dir(&place.files.top).expect("in the way");
    plan.carry_out(&place.files, &["nvidia"]).expect_err("cannot be written");
    fs::remove_dir(&place.files.top).expect("out of the way");
    place.write(Engine::Containerd.top(), THEIRS[1]);
    assert_eq!(place.tree(), before);
}

#[test]
fn keys_in_either_notation_are_understood() {
    let place = Place::new(Engine::Crio)
        .top("crio.runtime = { default_runtime = \"nvidia\", runtimes = { nvidia = { runtime_path = \"/x\" } } }\n");
    assert_eq!(place.force().program("nvidia"), Some("/x"));
    let force = place.remove();
    assert!(force.program("nvidia").is_none() && force.default.is_none());
}

#[test]
fn podman_passes_over_subfolders_and_crio_does_not() {
    for (engine, file, expected) in [
        (Engine::Crio, "/etc/crio/crio.conf.d/old/10.conf", true),
        (Engine::Podman, "/etc/containers/containers.conf.d/old/10.conf", false),
    ] {
        let place = Place::new(engine);
        place.write(file, "");
        let layers = place.files.layers(&Pending::new()).expect("read");
        assert_eq!(layers.iter().any(|layer| layer.path == place.at(file)), expected, "{engine:?}");
    }
}

#[test]
fn hook_file_names_hook() {
    let text = hook(Path::new("/opt/bin/nvidia-container-runtime-hook"));
    let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(read["hook"]["path"], "/opt/bin/nvidia-container-runtime-hook");
    assert_eq!(read["hook"]["args"], serde_json::json!(["nvidia-container-runtime-hook", "prestart"]));
    assert!(read["hook"]["env"][0].as_str().expect("PATH").ends_with(":/opt/bin"));
    assert_eq!((read["stages"][0].as_str(), read["when"]["always"].as_bool()), (Some("prestart"), Some(true)));
}

#[test]
fn files_without_runtime_stay() {
    for (engine, folder) in
        [(Engine::Crio, "/etc/crio/crio.conf.d"), (Engine::Podman, "/etc/containers/containers.conf.d")]
    {
        let place = Place::new(engine).top(THEIRS[if engine == Engine::Crio { 2 } else { 3 }]);
        place.write(&format!("{folder}/10-empty.conf"), "");
        place.write(&format!("{folder}/30-blank.conf"), "\n\n");
        std::os::unix::fs::symlink("/dev/null", place.at(&format!("{folder}/20-mask.conf"))).expect("a link");
        let before = place.tree();
        assert!(removing(&place.files, &["nvidia"]).expect("nothing to do").changes.is_empty(), "{engine:?}");
        place.add(&request());
        place.remove();
        assert_eq!(place.tree(), before, "{engine:?}");
        assert!(place.at(&format!("{folder}/20-mask.conf")).is_symlink(), "{engine:?}");
    }
    let place = Place::new(Engine::Containerd).top("version = 2\n");
    let before = place.tree();
    assert!(removing(&place.files, &["nvidia"]).expect("nothing to do").changes.is_empty());
    place.add(&request());
    place.remove();
    assert_eq!(place.tree(), before);
}

#[test]
fn import_is_removed_with_its_file() {
    for name in ["99-nvidia.toml", "99-nvidia.conf"] {
        for existing in
            ["version = 2\n", THEIRS[1], "version = 2\n# more\nimports = [\"/etc/containerd/more/*.toml\"]\n"]
        {
            let mut place = Place::new(Engine::Containerd).top(existing);
            place.files.drop_in = Some(place.at(&format!("/etc/containerd/conf.d/{name}")));
            let before = place.tree();
            let plan = adding(&place.files, &[request()], None).expect("a plan");
            assert_eq!(plan.changes.last().expect("two").0, place.files.top, "what is imported is there first");
            place.done(Ok(plan));
            let plan = removing(&place.files, &["nvidia"]).expect("a plan");
            assert_eq!(plan.changes[0].0, place.files.top, "an import goes before its file");
            place.done(Ok(plan));
            assert_eq!(place.tree(), before, "{name}");
        }
    }
    // An import of the administrator's own that names the file itself stops containerd without it.
    let top = "version = 2\nimports = [\"conf.d/nvidia.toml\", \"/etc/containerd/conf.d/*.toml\"]\n";
    let place = Place::new(Engine::Containerd).top(top);
    let only = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\nruntime_type = \"x\"\n";
    place.write("/etc/containerd/conf.d/nvidia.toml", &format!("version = 2\n{only}"));
    place.remove();
    let left = fs::read_to_string(&place.files.top).expect("there");
    assert_eq!(left, "version = 2\nimports = [ \"/etc/containerd/conf.d/*.toml\"]\n");
}

#[test]
fn import_with_other_files_stays() {
    let mut place = Place::new(Engine::Containerd).top("version = 2\n");
    place.files.drop_in = Some(place.at("/etc/containerd/conf.d/99-nvidia.toml"));
    place.add(&request());
    place.write("/etc/containerd/conf.d/10-site.toml", "version = 2\noom_score = 1\n");
    place.remove();
    assert!(fs::read_to_string(&place.files.top).expect("there").contains("conf.d/*.toml"));
    assert!(!place.at("/etc/containerd/conf.d/99-nvidia.toml").exists());
}

#[test]
fn comments_stay_where_value_changes() {
    let place = Place::new(Engine::Crio).top(
        "[crio.runtime]\n# the site's\ndefault_runtime = \"crun\" # ticket 11\n[crio.runtime.runtimes.nvidia]\n\
         # from the old place\nruntime_path = \"/old\" # ticket 12\n",
    );
    place.add(&all());
    let own = fs::read_to_string(&place.files.top).expect("read");
    for part in ["# from the old place\n", "# ticket 12\n"] {
        assert!(own.contains(part) && own.contains(WRAPPER), "{part}: {own}");
    }
    let place = Place::new(Engine::Podman).top("[engine.runtimes]\n# why\nnvidia = [\"/old\"] # ticket 12\n");
    place.add(&request());
    let text = fs::read_to_string(&place.files.top).expect("read");
    assert!(text.contains("# why\n") && text.contains("# ticket 12\n") && text.contains(WRAPPER), "{text}");
}

#[test]
fn comments_above_removed_keys_stay() {
    let at = "plugins.\"io.containerd.grpc.v1.cri\".containerd";
    let text = format!(
        "# the site's file\nversion = 2\n# of the default\n[{at}]\n# ticket 1\ndefault_runtime_name = \"nvidia\"\n\
         # of the GPUs\n[{at}.runtimes.nvidia]\nruntime_type = \"x\"\n# of runc\n[{at}.runtimes.runc]\n\
         runtime_type = \"io.containerd.runc.v2\"\n# the end\n"
    );
    let place = Place::new(Engine::Containerd).top(&text);
    place.remove();
    let left = fs::read_to_string(&place.files.top).expect("read");
    let mut from = 0;
    for part in ["the site's file", "of the default", "ticket 1", "of the GPUs", "of runc", "the end"] {
        let found = left[from..].find(&format!("# {part}\n"));
        from += found.unwrap_or_else(|| panic!("{part} is lost, or in another place: {left}"));
    }
    assert!(!left.contains("nvidia"), "{left}");
    // A file stays for its comments' sake alone.
    let place = Place::new(Engine::Podman);
    let own = place.write(
        "/etc/containers/containers.conf.d/50.conf",
        "# ask Ann before you change this\n[engine.runtimes]\nnvidia = [\"/x\"]\n",
    );
    place.remove();
    assert_eq!(fs::read_to_string(own).expect("there"), "# ask Ann before you change this\n");
    let place = after_nvidias(false);
    let own = place.at("/etc/containerd/conf.d/99-nvidia.toml");
    let text = fs::read_to_string(&own).expect("read").replace("version = 2\n", "# Ann's\nversion = 2\n");
    fs::write(&own, text).expect("written");
    place.remove();
    assert!(fs::read_to_string(own).expect("there").contains("# Ann's\n"));
}

#[test]
fn heading_with_comments_below_stays() {
    for text in [
        "[engine]\n[engine.runtimes]\n#crun = [\"/x\"]\n\n[engine.volume_plugins]\n",
        "[engine.runtimes]\n#crun = [\"/x\"]\n",
    ] {
        let place = Place::new(Engine::Podman).top(text);
        let mut files = place.files.clone();
        files.drop_in = Some(files.top.clone());
        place.done(adding(&files, &[request()], None));
        assert_eq!(place.force().program("nvidia"), Some(WRAPPER));
        place.done(removing(&files, &["nvidia"]));
        assert_eq!(fs::read_to_string(&files.top).expect("there"), text);
    }
    // A comment of the next heading keeps no heading of ours.
    let text = "# of runc\n[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n";
    let place = Place::new(Engine::Crio).top(text);
    let mut files = place.files.clone();
    files.drop_in = Some(files.top.clone());
    place.done(adding(&files, &[all()], None));
    place.done(removing(&files, &["nvidia"]));
    assert_eq!(fs::read_to_string(&files.top).expect("there"), text);
}

#[test]
fn lines_end_as_they_did() {
    for (engine, existing) in ENGINES.into_iter().zip(THEIRS) {
        let place = Place::new(engine).top(&existing.replace('\n', "\r\n"));
        let before = place.tree();
        let mut files = place.files.clone();
        files.drop_in = (engine != Engine::Docker).then(|| files.top.clone());
        place.done(adding(&files, &[request()], None));
        let text = fs::read_to_string(&files.top).expect("read");
        assert_eq!(text.matches('\n').count(), text.matches("\r\n").count(), "{engine:?}: {text:?}");
        place.done(removing(&files, &["nvidia"]));
        assert_eq!(place.tree(), before, "{engine:?}");
    }
}

#[test]
fn undo_restores_mode_and_link() {
    let mut place = Place::new(Engine::Containerd).top("version = 2\n");
    let own = place.at("/etc/containerd/conf.d/99-nvidia.toml");
    place.files.drop_in = Some(own.clone());
    place.add(&request());
    let real = place.at("/srv/nvidia.toml");
    fs::create_dir_all(real.parent().expect("a folder")).expect("made");
    fs::rename(&own, &real).expect("moved");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).expect("mode");
    std::os::unix::fs::symlink(&real, &own).expect("a link");
    let before = place.tree();
    let mut plan = removing(&place.files, &["nvidia"]).expect("a plan");
    // The last one cannot be done.
    plan.changes.push((place.at("/nowhere/at/all"), Change::Delete));
    plan.carry_out(&place.files, &["nvidia"]).expect_err("cannot be removed");
    assert_eq!(place.tree(), before);
    assert_eq!(fs::read_link(&own).expect("still a link"), real);
    assert_eq!(fs::metadata(&own).expect("there").permissions().mode() & 0o777, 0o640);
    plan.changes.pop();
    place.done(Ok(plan));
    assert!(!own.is_symlink() && real.exists(), "the name goes");
    assert!(fs::read_dir(own.parent().expect("a folder")).expect("read").next().is_none(), "and nothing is left there");
}

#[test]
fn patterns_are_gos() {
    let place =
        Place::new(Engine::Containerd).top("version = 2\nimports = [\"conf.d/[6-8^]?-*[^x].toml\", \"a\\\\*\"]\n");
    for name in ["60-a.toml", "7a-b.toml", "90-a.toml", "60-x.toml", "^0-b.toml"] {
        place.write(&format!("/etc/containerd/conf.d/{name}"), "version = 2\n");
    }
    place.write("/etc/containerd/a*", "version = 2\n");
    place.write("/etc/containerd/ab", "version = 2\n");
    let layers = place.files.layers(&Pending::new()).expect("read");
    let names: Vec<_> = layers.iter().filter_map(|layer| layer.path.file_name()?.to_str()).collect();
    assert_eq!(names, ["config.toml", "60-a.toml", "7a-b.toml", "^0-b.toml", "a*"]);
    for bad in ["conf.d/[*.toml", "conf.d/*[a-]", "conf.d/*[]", "*\\\\"] {
        let place = Place::new(Engine::Containerd).top(&format!("version = 2\nimports = [\"{bad}\"]\n"));
        let error = adding(&place.files, &[request()], None).expect_err(bad).to_string();
        assert!(error.contains("config.toml") && error.contains("import"), "{error}");
    }
}

#[test]
fn unreadable_directory_is_error() {
    for engine in [Engine::Crio, Engine::Podman] {
        let place = Place::new(engine);
        let folder = place.files.own().parent().expect("a folder").to_path_buf();
        fs::create_dir_all(folder.parent().expect("its own")).expect("made");
        std::os::unix::fs::symlink(&folder, &folder).expect("a link to itself");
        adding(&place.files, &[request()], None).expect_err("cannot be read");
    }
}

#[test]
fn duplicate_key_is_refused() {
    let place =
        Place::new(Engine::Docker).top("{\"runtimes\": {\"a\": {\"path\": \"/a\"}}, \"x\": 1, \"x\": {\"y\": 2}}");
    let error = adding(&place.files, &[request()], None).expect_err("one of them would be lost").to_string();
    assert!(error.contains("'x'") && error.contains("twice"), "{error}");
    let place = Place::new(Engine::Docker).top("{\"x\": [{\"y\": 1, \"y\": 1}]}");
    adding(&place.files, &[request()], None).expect_err("one of them would be lost");
}

#[test]
fn hanging_program_is_given_up() {
    let place = Place::new(Engine::Containerd);
    let program = place.write("containerd", "#!/bin/sh\necho said\nexec sleep 600\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    let error = source::ask(Engine::Containerd, Path::new("/"), Some(&program)).expect_err("it hangs").to_string();
    assert!(error.contains("has not ended") && error.contains("--config-source=file"), "{error}");
}

#[test]
fn moved_comments_keep_their_column() {
    let text = "[crio.runtime]\n  # ticket 1\n  default_runtime = \"nvidia\"\n  log_level = \"info\"\n";
    let place = Place::new(Engine::Crio).top(text);
    place.remove();
    let left = fs::read_to_string(&place.files.top).expect("read");
    assert_eq!(left, "[crio.runtime]\n  # ticket 1\n  log_level = \"info\"\n");
}
