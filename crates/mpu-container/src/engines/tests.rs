//! Adding, reusing and removing runtimes in each engine's files. Other contents stay.

use super::effective::EffectiveConfig;
use super::files::{Files, Paths, Pending};
use super::plan::{Plan, plan_add, plan_remove, plan_restore, plan_unset_default, record_docker};
use super::*;
use crate::beneath::tests::walk;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use toml_edit::DocumentMut;

const WRAPPER: &str = "/usr/bin/nvidia-container-runtime";
const ENGINES: [Engine; 4] = [Engine::Docker, Engine::Containerd, Engine::Crio, Engine::Podman];

/// An administrator's file of each engine, in the order of [`ENGINES`].
const ADMIN_FILES: [&str; 4] = [
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

struct TestHost {
    dir: tempfile::TempDir,
    files: Files,
}

impl TestHost {
    fn new(engine: Engine) -> TestHost {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::of(engine);
        files.top = dir.path().join(engine.top().trim_start_matches('/'));
        files.paths = Paths { root: dir.path().into(), folders: Vec::new() };
        TestHost { dir, files }
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

    fn top(self, text: &str) -> TestHost {
        self.write(self.files.engine.top(), text);
        self
    }

    fn apply(&self, plan: Result<Plan, EngineError>) -> EffectiveConfig {
        let plan = plan.expect("a plan");
        plan.apply(&self.files, &["nvidia"]).expect("carried out")
    }

    fn add(&self, request: &RuntimeRequest) -> EffectiveConfig {
        self.apply(plan_add(&self.files, std::slice::from_ref(request), None))
    }

    fn remove(&self) -> EffectiveConfig {
        self.apply(plan_remove(&self.files, &["nvidia"]))
    }

    fn effective(&self) -> EffectiveConfig {
        EffectiveConfig::of(&self.files, &self.files.layers(&Pending::new()).expect("read")).expect("understood")
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
fn error_in_toml_is_one_line_with_its_place() {
    let error = "a = 1\n[[[".parse::<DocumentMut>().map(drop).expect_err("no TOML");
    let text = FormatError::from(error).to_string();
    assert!(text.starts_with("not TOML: line 2, column ") && text.lines().count() == 1, "{text}");
}

#[test]
fn adding_twice_changes_files_once() {
    for (engine, existing) in ENGINES.into_iter().zip(ADMIN_FILES) {
        for host in [TestHost::new(engine), TestHost::new(engine).top(existing)] {
            let effective = host.add(&all());
            assert_eq!(
                (effective.program("nvidia"), effective.is_default("nvidia")),
                (Some(WRAPPER), true),
                "{engine:?}"
            );
            let once = host.tree();
            assert!(plan_add(&host.files, &[all()], None).expect("a plan").changes.is_empty(), "{engine:?}");
            host.add(&all());
            assert_eq!(host.tree(), once, "{engine:?}");
        }
    }
}

#[test]
fn removing_restores_original_files() {
    for (engine, existing) in ENGINES.into_iter().zip(ADMIN_FILES) {
        for host in [TestHost::new(engine), TestHost::new(engine).top(existing)] {
            let before = host.tree();
            assert!(plan_remove(&host.files, &["nvidia"]).expect("nothing to do").changes.is_empty(), "{engine:?}");
            host.add(&RuntimeRequest { cdi: false, ..all() });
            assert_ne!(host.tree(), before, "{engine:?}");
            let effective = host.remove();
            let mut left = host.tree();
            // An empty Docker file stays: it may have existed before.
            left.retain(|(_, text)| !(before.is_empty() && engine == Engine::Docker && text == "{}\n"));
            assert_eq!(left, before, "{engine:?}");
            assert!(effective.program("nvidia").is_none() && effective.default.is_none(), "{engine:?}");
        }
    }
}

#[test]
fn foreign_default_runtime_stays() {
    let host = TestHost::new(Engine::Docker).top("{\"default-runtime\": \"kata\"}");
    assert!(host.add(&request()).is_default("kata"));
    assert!(host.remove().is_default("kata"));
}

#[test]
fn default_runtime_is_unset_only_on_request() {
    for (engine, existing) in ENGINES.into_iter().zip(ADMIN_FILES) {
        let host = TestHost::new(engine).top(existing);
        host.add(&all());
        assert!(host.add(&request()).is_default("nvidia"), "{engine:?}: a wish without a default leaves it");
        let effective = host.add(&RuntimeRequest { default: Some(false), ..request() });
        assert!(!effective.is_default("nvidia") && effective.program("nvidia") == Some(WRAPPER), "{engine:?}");
        host.add(&all());
        let effective = host.apply(plan_unset_default(&host.files, "nvidia"));
        assert!(!effective.is_default("nvidia") && effective.program("nvidia") == Some(WRAPPER), "{engine:?}");
    }
}

#[test]
fn leave_unsets_our_default_runtime() {
    let is_ours = |program: &str| program == WRAPPER;
    for (engine, existing) in ENGINES.into_iter().zip(ADMIN_FILES) {
        let host = TestHost::new(engine).top(existing);
        let left =
            || leave::unset_own_default(&host.files, is_ours).expect("left").map(|(name, _, now)| (name, now.default));
        host.add(&request());
        let before = fs::read_to_string(&host.files.top).expect("read");
        assert_eq!(left(), None, "{engine:?}: it is not the default one");
        assert_eq!(fs::read_to_string(&host.files.top).expect("read"), before);
        host.add(&all());
        assert!(
            leave::unset_own_default(&host.files, |_| false).expect("left").is_none(),
            "{engine:?}: another tool's program"
        );
        let (name, now) = left().expect("it was the default one");
        assert_eq!(name, "nvidia");
        let own = now.as_ref().map(|(default, _)| default.as_str());
        // Docker's reload ignores a removed default, so runc is written.
        assert_eq!(own, (engine == Engine::Docker).then_some("runc"), "{engine:?}");
        assert_eq!(left(), None, "{engine:?}: once is enough");
        let effective =
            EffectiveConfig::of(&host.files, &host.files.layers(&Pending::new()).expect("layers")).expect("read");
        assert_eq!(effective.program("nvidia"), Some(WRAPPER), "{engine:?}: who names it has it while it is there");
    }
    let host = TestHost::new(Engine::Docker)
        .top("{\"default-runtime\": \"kata\", \"runtimes\": {\"kata\": {\"path\": \"/opt/kata\"}}}");
    assert!(leave::unset_own_default(&host.files, is_ours).expect("left").is_none());
    let host = TestHost::new(Engine::Docker).top("{\"default-runtime\": ");
    assert!(
        leave::unset_own_default(&host.files, is_ours).is_err(),
        "a file that cannot be read is an error, and stays"
    );
}

#[test]
fn replaced_config_keeps_mode_and_link() {
    let mut host = TestHost::new(Engine::Docker);
    let real = host.write("kept.json", "{}");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).expect("mode");
    host.files.top = host.at("daemon.json");
    std::os::unix::fs::symlink(&real, &host.files.top).expect("a link");
    host.add(&request());
    assert!(fs::symlink_metadata(&host.files.top).expect("there").is_symlink());
    assert_eq!(fs::metadata(&real).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(host.dir.path()).expect("read").count(), 2);
}

#[test]
fn empty_docker_file_stays() {
    for text in ["{}", "{}\n", "{ }"] {
        let host = TestHost::new(Engine::Docker).top(text);
        host.add(&request());
        host.remove();
        let left = fs::read_to_string(&host.files.top).expect("the file is the operator's");
        assert_eq!(left.trim(), "{}", "{text:?}");
    }
}

#[test]
fn docker_features_are_restored_unless_changed_since() {
    let back = |before: &str, cdi: bool, now: &str| {
        let kept = docker::record(before, &["nvidia"], cdi).expect("JSON");
        let kept = docker::parse(&kept).expect("JSON");
        let text = docker::restore(now, &["nvidia"], &kept).expect("JSON").unwrap_or_default();
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

/// The files that NVIDIA's `nvidia-ctk runtime configure --runtime=containerd --set-as-default` writes.
fn with_nvidia_drop_in(merges: bool) -> TestHost {
    let mut host = TestHost::new(Engine::Containerd)
        .top(&format!("imports = [\"/etc/containerd/conf.d/*.toml\"]\n{}", ADMIN_FILES[1]));
    host.files.merges = merges;
    host.write(
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
    host
}

#[test]
fn nvidia_containerd_drop_in_is_reused() {
    for merges in [false, true] {
        let host = with_nvidia_drop_in(merges);
        let top = fs::read_to_string(&host.files.top).expect("read");
        assert_eq!(host.effective().program("nvidia"), Some("/opt/nvidias/nvidia-container-runtime"));
        assert_eq!(host.add(&request()).program("nvidia"), Some(WRAPPER), "{merges}");
        assert_eq!(
            fs::read_to_string(&host.files.top).expect("read"),
            top,
            "{merges}: the file that counts was changed"
        );
        let effective = host.remove();
        assert!(
            effective.program("nvidia").is_none() && effective.default.is_none(),
            "{merges}: {}",
            effective.describe("nvidia")
        );
        assert!(!host.at("/etc/containerd/conf.d/99-nvidia.toml").exists(), "it only repeats config.toml");
        assert_eq!(fs::read_to_string(&host.files.top).expect("read"), top);
        // Removal also works without adding our runtime first.
        let host = with_nvidia_drop_in(merges);
        let effective = host.remove();
        assert!(effective.program("nvidia").is_none() && effective.default.is_none(), "{merges}");
    }
}

#[test]
fn other_keys_of_nvidia_drop_in_stay() {
    let host = with_nvidia_drop_in(false);
    let drop_in = host.at("/etc/containerd/conf.d/99-nvidia.toml");
    let more = fs::read_to_string(&drop_in).expect("read").replace("\"pause\"", "\"registry.local/pause\"");
    fs::write(&drop_in, more).expect("written");
    host.remove();
    let left = fs::read_to_string(&drop_in).expect("still there");
    assert!(left.contains("registry.local/pause") && !left.contains("nvidia"), "{left}");
}

#[test]
fn overruling_file_is_named_without_writing() {
    let host = TestHost::new(Engine::Crio);
    host.write("/etc/crio/crio.conf.d/zz-site.conf", "[crio.runtime]\ndefault_runtime = \"crun\"\n");
    let before = host.tree();
    let error = plan_add(&host.files, &[all()], None).expect_err("overruled").to_string();
    assert!(error.contains("zz-site.conf") && error.contains("the default runtime is crun"), "{error}");
    assert_eq!(host.tree(), before);
    assert_eq!(host.add(&request()).program("nvidia"), Some(WRAPPER), "not as the default it can be had");

    let mut host = TestHost::new(Engine::Containerd).top("version = 2\nimports = [\"conf.d/*.toml\"]\n");
    host.files.drop_in = Some(host.at("/etc/containerd/conf.d/50-nvidia.toml"));
    host.write(
        "/etc/containerd/conf.d/60.toml",
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = 'x'\n",
    );
    let error = plan_add(&host.files, &[request()], None).expect_err("its section alone counts").to_string();
    assert!(error.contains("runtimes.nvidia is nothing"), "{error}");
    host.files.merges = true;
    assert_eq!(host.add(&request()).program("nvidia"), Some(WRAPPER), "from 2.1 on sections are merged");
}

#[test]
fn nvidia_crio_drop_in_is_reused() {
    let existing = "[crio.runtime]\ndefault_runtime = \"nvidia\"\n[crio.runtime.runtimes.nvidia]\n\
                  runtime_path = \"/opt/nvidias\"\nruntime_type = \"oci\"\n";
    for name in ["99-nvidia.toml", "99-nvidia.conf"] {
        let host = TestHost::new(Engine::Crio).top(ADMIN_FILES[2]);
        let before = host.tree();
        host.write(&format!("/etc/crio/crio.conf.d/{name}"), existing);
        let effective = host.add(&request());
        assert_eq!((effective.program("nvidia"), effective.is_default("nvidia")), (Some(WRAPPER), true), "{name}");
        assert_eq!(host.tree().len(), 2, "{name}: no second file");
        host.remove();
        assert_eq!(host.tree(), before, "{name}");
    }
}

#[test]
fn crio_drop_in_is_checked_against_directory() {
    let mut host = TestHost::new(Engine::Crio).top(ADMIN_FILES[2]);
    host.write("/etc/crio/crio.conf.d/zz.conf", "[crio.runtime]\ndefault_runtime = \"crun\"\n");
    host.write("/etc/crio/other", "no TOML, and none of CRI-O's files");
    // As with `--drop-in-config=`: the drop-in is the top file, and the directory still overrides it.
    host.files.drop_in = Some(host.files.top.clone());
    plan_add(&host.files, &[all()], None).expect_err("zz.conf overrules it");
    assert_eq!(host.add(&request()).program("nvidia"), Some(WRAPPER));
    assert!(fs::read_to_string(&host.files.top).expect("read").contains(WRAPPER) && host.files.reads_own());
    host.files.drop_in = Some(host.at("/etc/crio/50-ours.toml"));
    assert!(!host.files.reads_own(), "CRI-O does not know of it");
    assert!(host.add(&all()).is_default("nvidia"), "were it read, it would be the last one");
}

#[test]
fn crio_runtime_copies_default_keys_except_program() {
    let host = TestHost::new(Engine::Crio);
    host.write(
        "/etc/crio/crio.conf.d/10-crio.conf",
        "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/usr/libexec/crio/crun\"\n\
         runtime_root = \"/run/crun\"\nmonitor_path = \"/usr/libexec/crio/conmon\"\nmonitor_cgroup = \"pod\"\n\
         allowed_annotations = [\n  \"io.containers.trace-syscall\",\n]\nplatform_runtime_paths = { \"linux/arm64\" = \"/a\" }\n\
         inherit_default_runtime = true\n[crio.runtime.runtimes.runc]\nmonitor_path = \"/other\"\n",
    );
    host.add(&all());
    let read = toml(&host.files.own());
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
        for existing in [None, Some(ADMIN_FILES[1])] {
            let mut host = TestHost::new(Engine::Containerd);
            if let Some(text) = existing {
                host = host.top(text);
            }
            let own = host.at("/etc/containerd/conf.d/99-nvidia.toml");
            host.files.merges = merges;
            host.files.drop_in = Some(own.clone());
            // As in a container that has the host's directory at another path.
            host.files.paths.folders = vec![("/etc/containerd/conf.d".into(), host.at("/etc/containerd/conf.d"))];
            let request = RuntimeRequest { default: Some(true), ..request() };
            host.add(&request);
            let top = fs::read_to_string(&host.files.top).expect("read");
            assert!(
                top.contains("imports = [\"/etc/containerd/conf.d/*.toml\"]") && !top.contains("runtimes.nvidia"),
                "{top}"
            );
            let copied_section = fs::read_to_string(&own).expect("read").contains("sandbox_image");
            assert_eq!(copied_section, !merges && existing.is_some(), "{merges} {existing:?}");
            let options =
                &toml(&own)["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["nvidia"]["options"];
            assert_eq!(options.get("SystemdCgroup").is_some(), existing.is_some());
            let once = host.tree();
            host.add(&request);
            assert_eq!(host.tree(), once);
            host.remove();
            assert!(!own.exists());
            assert_eq!(host.files.top.exists(), existing.is_some(), "a file that was made to import it goes with it");
        }
    }
}

#[test]
fn drop_in_copy_follows_original() {
    let mut host = TestHost::new(Engine::Containerd).top(ADMIN_FILES[1]);
    let own = host.at("/etc/containerd/conf.d/99-nvidia.toml");
    host.files.drop_in = Some(own.clone());
    host.add(&RuntimeRequest {
        default: Some(true),
        ..RuntimeRequest::new("nvidia-cdi", "/usr/bin/nvidia-container-runtime.cdi")
    });
    let changed = fs::read_to_string(&host.files.top).expect("read").replace("'pause'", "'newer'");
    fs::write(&host.files.top, changed).expect("written");
    let effective = host.add(&request());
    assert!(fs::read_to_string(&own).expect("read").contains("'newer'"));
    assert!(effective.program("nvidia-cdi").is_some(), "the runtime from before is still known");
    assert!(!effective.is_default("nvidia"), "not requested");
}

#[test]
fn implicit_containerd_runc_becomes_explicit() {
    let host = TestHost::new(Engine::Containerd).top("version = 2\n");
    let effective = host.add(&request());
    assert!(effective.runtimes.contains_key("runc"), "containerd 1.7 refuses to load its CRI plug-in without");
    host.add(&RuntimeRequest { default: Some(true), ..RuntimeRequest::new("nvidia-cdi", "/x") });
    host.remove();
    assert!(host.effective().runtimes.contains_key("runc"), "as long as one of ours is there");
    host.apply(plan_remove(&host.files, &["nvidia-cdi"]));
    assert_eq!(fs::read_to_string(&host.files.top).expect("the administrator's"), "version = 2\n");

    let existing =
        "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.crun]\nruntime_type = \"io.containerd.runc.v2\"\n";
    let host = TestHost::new(Engine::Containerd).top(&format!("version = 2\n{existing}"));
    assert!(!host.add(&request()).runtimes.contains_key("runc"), "who names runtimes has named all that are wanted");
    let mut host = TestHost::new(Engine::Containerd).top("version = 3\n");
    host.files.merges = true;
    assert!(!host.add(&request()).runtimes.contains_key("runc"), "releases from 2.1 on keep their own");
}

#[test]
fn containerd_imports_are_read_breadth_first() {
    let host = TestHost::new(Engine::Containerd)
        .top("version = 2\nimports = [\"a.toml\", \"/etc/containerd/conf.d/*.toml\", \"/nowhere.toml\"]\n");
    let runtime = |program: &str, more: &str| {
        format!(
            "version = 2\n{more}[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.x.options]\nBinaryName = \"{program}\"\n"
        )
    };
    host.write("/etc/containerd/a.toml", &runtime("/a", "imports = [\"deep/last.toml\", \"config.toml\"]\n"));
    host.write("/etc/containerd/conf.d/2.toml", &runtime("/2", ""));
    host.write("/etc/containerd/conf.d/10.toml", &runtime("/10", ""));
    host.write("/etc/containerd/conf.d/9.conf", &runtime("/conf", ""));
    let layers = host.files.layers(&Pending::new()).expect("read");
    let names: Vec<_> = layers.iter().filter_map(|layer| layer.path.file_name()?.to_str()).collect();
    assert_eq!(names, ["config.toml", "a.toml", "10.toml", "2.toml"]);
    host.write("/etc/containerd/deep/last.toml", &runtime("/last", ""));
    assert_eq!(
        host.effective().program("x"),
        Some("/last"),
        "what an import imports comes after all of the first file's"
    );
}

/// containerd resolves `..` lexically.
#[test]
fn import_through_parent_directory_is_found() {
    for import in
        ["../there.d/*.toml", "../there.d/x.toml", "/etc/containerd/../../etc/there.d/*.toml", "/../etc/there.d/*.toml"]
    {
        let host = TestHost::new(Engine::Containerd).top(&format!("version = 2\nimports = [\"{import}\"]\n"));
        let runtime =
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"theirs\"\n";
        let existing = host.write("/etc/there.d/x.toml", runtime);
        let effective = host.effective();
        assert_eq!(effective.default, Some(("theirs".into(), existing)), "{import}");
    }
}

/// The shims of Kata and gVisor have other options and call no wrapper: a container would start without its GPU.
#[test]
fn kata_default_runtime_is_not_copied() {
    let of_kata = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"kata\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata]\nruntime_type = \"io.containerd.kata.v2\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.kata.options]\nConfigPath = \"/kata.toml\"\n";
    let host = TestHost::new(Engine::Containerd).top(&format!("{}{of_kata}", ADMIN_FILES[1]));
    let effective = host.add(&request());
    let keys = &effective.runtimes["nvidia"].0.keys;
    assert_eq!(keys["runtime_type"].as_str(), Some("io.containerd.runc.v2"), "{keys}");
    assert_eq!(keys["options"]["SystemdCgroup"].as_bool(), Some(true), "runc's: {keys}");
    assert!(keys["options"].get("ConfigPath").is_none(), "{keys}");
    let of_kata = "[crio.runtime]\ndefault_runtime = \"kata\"\n[crio.runtime.runtimes.kata]\n\
                   runtime_path = \"/usr/bin/containerd-shim-kata-v2\"\nruntime_type = \"vm\"\n";
    let host = TestHost::new(Engine::Crio).top(of_kata);
    assert!(host.effective().low_level_programs().is_empty(), "a shim is no runtime to hand containers on to");
}

/// A copy that stays would hide later changes of the original file.
#[test]
fn section_copy_with_list_comments_is_removed() {
    let list = "[plugins.\"io.containerd.grpc.v1.cri\".registry]\nheaders = [\n  \"a\", # the first\n  { b = [ # in it\n 1 ] },\n]\n";
    let text = format!("version = 2\n{list}");
    let mut host = TestHost::new(Engine::Containerd).top(&text);
    host.files.drop_in = Some(host.at("/etc/containerd/conf.d/99-nvidia.toml"));
    host.add(&RuntimeRequest { default: Some(true), ..request() });
    let copy = fs::read_to_string(host.files.own()).expect("written");
    assert!(copy.contains("headers") && !copy.contains("# the first") && !copy.contains("# in it"), "{copy}");
    host.remove();
    assert!(!host.files.own().exists(), "{copy}");
    assert_eq!(fs::read_to_string(&host.files.top).expect("there"), text);
    let text = ADMIN_FILES[1].replace("version = 2\n", "version = 2\nimports = []\n");
    let host = TestHost::new(Engine::Containerd).top(&text);
    host.add(&request());
    host.remove();
    assert_eq!(fs::read_to_string(&host.files.top).expect("there"), text, "an empty list of imports is theirs");
}

#[test]
fn our_runtime_is_no_low_level_runtime() {
    for engine in ENGINES {
        let host = TestHost::new(engine);
        let request = RuntimeRequest { name: "gpu".into(), default: Some(true), ..request() };
        let effective = plan_add(&host.files, &[request], None).expect("a plan").effective;
        assert!(
            effective.is_default("gpu") && effective.low_level_programs().is_empty(),
            "{engine:?}: {:?}",
            effective.low_level_programs()
        );
    }
}

/// Docker does not start with such a file: moby's `setupRuntimes`.
#[test]
fn docker_runtime_type_is_replaced_by_path() {
    let kind = "\"runtimeType\": \"io.containerd.runc.v2\", \"options\": {\"BinaryName\": \"/old\"}";
    let host = TestHost::new(Engine::Docker)
        .top(&format!("{{\"runtimes\": {{\"nvidia\": {{{kind}, \"runtimeArgs\": []}}}}}}"));
    assert_eq!(host.effective().program("nvidia"), Some("/old"));
    let before = record_docker(&host.files, &["nvidia"], false).expect("remembered");
    let before = host.write("before.json", &before);
    host.add(&request());
    let text = fs::read_to_string(&host.files.top).expect("there");
    let there: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(there["runtimes"]["nvidia"], serde_json::json!({"runtimeArgs": [], "path": WRAPPER}));
    host.apply(plan_restore(&host.files, &["nvidia"], &before));
    assert_eq!(host.effective().program("nvidia"), Some("/old"), "the installer puts back what was there");
    fs::write(&before, "{").expect("written");
    let error = plan_restore(&host.files, &["nvidia"], &before).expect_err("broken").to_string();
    assert!(error.contains("before.json is left as it is: not JSON"), "{error}");
    let host = TestHost::new(Engine::Docker);
    let error = plan_add(&host.files, &[RuntimeRequest::new("runc", WRAPPER)], None).expect_err("Docker's own");
    assert!(error.to_string().contains("is called runc"), "{error}");
}

#[test]
fn failed_write_restores_all_files() {
    let mut host = TestHost::new(Engine::Containerd).top(ADMIN_FILES[1]);
    host.files.drop_in = Some(host.at("/a/99-nvidia.toml"));
    let before = host.tree();
    let plan = plan_add(&host.files, &[request()], None).expect("a plan");
    assert_eq!(plan.changes.len(), 2, "the file and its import");
    // A directory replaces the second file, so its write fails.
    fs::remove_file(&host.files.top).expect("removed");
    fs::create_dir(&host.files.top).expect("in the way");
    plan.apply(&host.files, &["nvidia"]).expect_err("cannot be written");
    fs::remove_dir(&host.files.top).expect("out of the way");
    host.write(Engine::Containerd.top(), ADMIN_FILES[1]);
    assert_eq!(host.tree(), before);
}

#[test]
fn inline_tables_are_read_and_removed() {
    let host = TestHost::new(Engine::Crio)
        .top("crio.runtime = { default_runtime = \"nvidia\", runtimes = { nvidia = { runtime_path = \"/x\" } } }\n");
    assert_eq!(host.effective().program("nvidia"), Some("/x"));
    let effective = host.remove();
    assert!(effective.program("nvidia").is_none() && effective.default.is_none());
}

#[test]
fn only_crio_reads_subdirectories() {
    for (engine, file, expected) in [
        (Engine::Crio, "/etc/crio/crio.conf.d/old/10.conf", true),
        (Engine::Podman, "/etc/containers/containers.conf.d/old/10.conf", false),
    ] {
        let host = TestHost::new(engine);
        host.write(file, "");
        let layers = host.files.layers(&Pending::new()).expect("read");
        assert_eq!(layers.iter().any(|layer| layer.path == host.at(file)), expected, "{engine:?}");
    }
}

#[test]
fn files_without_runtime_stay() {
    for (engine, folder) in
        [(Engine::Crio, "/etc/crio/crio.conf.d"), (Engine::Podman, "/etc/containers/containers.conf.d")]
    {
        let host = TestHost::new(engine).top(ADMIN_FILES[if engine == Engine::Crio { 2 } else { 3 }]);
        host.write(&format!("{folder}/10-empty.conf"), "");
        host.write(&format!("{folder}/30-blank.conf"), "\n\n");
        std::os::unix::fs::symlink("/dev/null", host.at(&format!("{folder}/20-mask.conf"))).expect("a link");
        let before = host.tree();
        assert!(plan_remove(&host.files, &["nvidia"]).expect("nothing to do").changes.is_empty(), "{engine:?}");
        host.add(&request());
        host.remove();
        assert_eq!(host.tree(), before, "{engine:?}");
        assert!(host.at(&format!("{folder}/20-mask.conf")).is_symlink(), "{engine:?}");
    }
    let host = TestHost::new(Engine::Containerd).top("version = 2\n");
    let before = host.tree();
    assert!(plan_remove(&host.files, &["nvidia"]).expect("nothing to do").changes.is_empty());
    host.add(&request());
    host.remove();
    assert_eq!(host.tree(), before);
}

#[test]
fn import_is_removed_with_its_file() {
    for name in ["99-nvidia.toml", "99-nvidia.conf"] {
        for existing in
            ["version = 2\n", ADMIN_FILES[1], "version = 2\n# more\nimports = [\"/etc/containerd/more/*.toml\"]\n"]
        {
            let mut host = TestHost::new(Engine::Containerd).top(existing);
            host.files.drop_in = Some(host.at(&format!("/etc/containerd/conf.d/{name}")));
            let before = host.tree();
            let plan = plan_add(&host.files, &[request()], None).expect("a plan");
            assert_eq!(plan.changes.last().expect("two").0, host.files.top, "what is imported is there first");
            host.apply(Ok(plan));
            let plan = plan_remove(&host.files, &["nvidia"]).expect("a plan");
            assert_eq!(plan.changes[0].0, host.files.top, "an import goes before its file");
            host.apply(Ok(plan));
            assert_eq!(host.tree(), before, "{name}");
        }
    }
    // An import of the administrator that names the file is removed, too: containerd does not start if the file is missing.
    let top = "version = 2\nimports = [\"conf.d/nvidia.toml\", \"/etc/containerd/conf.d/*.toml\"]\n";
    let host = TestHost::new(Engine::Containerd).top(top);
    let only = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\nruntime_type = \"x\"\n";
    host.write("/etc/containerd/conf.d/nvidia.toml", &format!("version = 2\n{only}"));
    host.remove();
    let left = fs::read_to_string(&host.files.top).expect("there");
    assert_eq!(left, "version = 2\nimports = [ \"/etc/containerd/conf.d/*.toml\"]\n");
}

#[test]
fn import_with_other_files_stays() {
    let mut host = TestHost::new(Engine::Containerd).top("version = 2\n");
    host.files.drop_in = Some(host.at("/etc/containerd/conf.d/99-nvidia.toml"));
    host.add(&request());
    host.write("/etc/containerd/conf.d/10-site.toml", "version = 2\noom_score = 1\n");
    host.remove();
    assert!(fs::read_to_string(&host.files.top).expect("there").contains("conf.d/*.toml"));
    assert!(!host.at("/etc/containerd/conf.d/99-nvidia.toml").exists());
}

#[test]
fn comments_stay_when_value_changes() {
    let host = TestHost::new(Engine::Crio).top(
        "[crio.runtime]\n# the site's\ndefault_runtime = \"crun\" # ticket 11\n[crio.runtime.runtimes.nvidia]\n\
         # from the old place\nruntime_path = \"/old\" # ticket 12\n",
    );
    host.add(&all());
    let own = fs::read_to_string(&host.files.top).expect("read");
    for part in ["# from the old place\n", "# ticket 12\n"] {
        assert!(own.contains(part) && own.contains(WRAPPER), "{part}: {own}");
    }
    let host = TestHost::new(Engine::Podman).top("[engine.runtimes]\n# why\nnvidia = [\"/old\"] # ticket 12\n");
    host.add(&request());
    let text = fs::read_to_string(&host.files.top).expect("read");
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
    let host = TestHost::new(Engine::Containerd).top(&text);
    host.remove();
    let left = fs::read_to_string(&host.files.top).expect("read");
    let mut from = 0;
    for part in ["the site's file", "of the default", "ticket 1", "of the GPUs", "of runc", "the end"] {
        let found = left[from..].find(&format!("# {part}\n"));
        from += found.unwrap_or_else(|| panic!("{part} is lost, or in another place: {left}"));
    }
    assert!(!left.contains("nvidia"), "{left}");
    // A file with nothing but comments stays.
    let host = TestHost::new(Engine::Podman);
    let own = host.write(
        "/etc/containers/containers.conf.d/50.conf",
        "# ask Ann before you change this\n[engine.runtimes]\nnvidia = [\"/x\"]\n",
    );
    host.remove();
    assert_eq!(fs::read_to_string(own).expect("there"), "# ask Ann before you change this\n");
    let host = with_nvidia_drop_in(false);
    let own = host.at("/etc/containerd/conf.d/99-nvidia.toml");
    let text = fs::read_to_string(&own).expect("read").replace("version = 2\n", "# Ann's\nversion = 2\n");
    fs::write(&own, text).expect("written");
    host.remove();
    assert!(fs::read_to_string(own).expect("there").contains("# Ann's\n"));
}

#[test]
fn heading_with_comments_below_stays() {
    for text in [
        "[engine]\n[engine.runtimes]\n#crun = [\"/x\"]\n\n[engine.volume_plugins]\n",
        "[engine.runtimes]\n#crun = [\"/x\"]\n",
        "[engine.runtimes]\n\n# crun = [\"/x\"]\n",
        "[engine.runtimes]\n# Ann's\n#crun = [\"/x\"]\n[engine.volume_plugins]\n",
    ] {
        let host = TestHost::new(Engine::Podman).top(text);
        let mut files = host.files.clone();
        files.drop_in = Some(files.top.clone());
        host.apply(plan_add(&files, &[request()], None));
        assert_eq!(host.effective().program("nvidia"), Some(WRAPPER));
        host.apply(plan_remove(&files, &["nvidia"]));
        assert_eq!(fs::read_to_string(&files.top).expect("there"), text);
    }
    // A comment that belongs to the next heading, or a commented-out key of another table, does not keep our heading.
    for (engine, text, added) in [
        (Engine::Crio, "# of runc\n[crio.runtime.runtimes.runc]\nruntime_path = \"/usr/bin/runc\"\n", all()),
        (Engine::Podman, "[engine]\nnum_locks = 9\n\n# events_logger = \"file\"\n\n[network]\n", request()),
        (Engine::Podman, "[engine]\nnum_locks = 9\n\n# events_logger = \"file\"\n", request()),
    ] {
        let host = TestHost::new(engine).top(text);
        let mut files = host.files.clone();
        files.drop_in = Some(files.top.clone());
        host.apply(plan_add(&files, &[added], None));
        host.apply(plan_remove(&files, &["nvidia"]));
        assert_eq!(fs::read_to_string(&files.top).expect("there"), text);
    }
}

#[test]
fn line_endings_are_kept() {
    for (engine, existing) in ENGINES.into_iter().zip(ADMIN_FILES) {
        let host = TestHost::new(engine).top(&existing.replace('\n', "\r\n"));
        let before = host.tree();
        let mut files = host.files.clone();
        files.drop_in = (engine != Engine::Docker).then(|| files.top.clone());
        host.apply(plan_add(&files, &[request()], None));
        let text = fs::read_to_string(&files.top).expect("read");
        assert_eq!(text.matches('\n').count(), text.matches("\r\n").count(), "{engine:?}: {text:?}");
        host.apply(plan_remove(&files, &["nvidia"]));
        assert_eq!(host.tree(), before, "{engine:?}");
    }
}

#[test]
fn undo_restores_mode_and_link() {
    let mut host = TestHost::new(Engine::Containerd).top("version = 2\n");
    let own = host.at("/etc/containerd/conf.d/99-nvidia.toml");
    host.files.drop_in = Some(own.clone());
    host.add(&request());
    let real = host.at("/srv/nvidia.toml");
    fs::create_dir_all(real.parent().expect("a folder")).expect("made");
    fs::rename(&own, &real).expect("moved");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).expect("mode");
    std::os::unix::fs::symlink(&real, &own).expect("a link");
    let before = host.tree();
    let mut plan = plan_remove(&host.files, &["nvidia"]).expect("a plan");
    // The last change fails.
    plan.changes.push((host.at("/nowhere/at/all"), None));
    plan.apply(&host.files, &["nvidia"]).expect_err("cannot be removed");
    assert_eq!(host.tree(), before);
    assert_eq!(fs::read_link(&own).expect("still a link"), real);
    assert_eq!(fs::metadata(&own).expect("there").permissions().mode() & 0o777, 0o640);
    plan.changes.pop();
    host.apply(Ok(plan));
    assert!(!own.is_symlink() && real.exists(), "the name goes");
    assert!(fs::read_dir(own.parent().expect("a folder")).expect("read").next().is_none(), "and nothing is left there");
}

#[test]
fn import_patterns_match_like_go() {
    let host =
        TestHost::new(Engine::Containerd).top("version = 2\nimports = [\"conf.d/[6-8^]?-*[^x].toml\", \"a\\\\*\"]\n");
    for name in ["60-a.toml", "7a-b.toml", "90-a.toml", "60-x.toml", "^0-b.toml"] {
        host.write(&format!("/etc/containerd/conf.d/{name}"), "version = 2\n");
    }
    host.write("/etc/containerd/a*", "version = 2\n");
    host.write("/etc/containerd/ab", "version = 2\n");
    let layers = host.files.layers(&Pending::new()).expect("read");
    let names: Vec<_> = layers.iter().filter_map(|layer| layer.path.file_name()?.to_str()).collect();
    assert_eq!(names, ["config.toml", "60-a.toml", "7a-b.toml", "^0-b.toml", "a*"]);
    for bad in ["conf.d/[*.toml", "conf.d/*[a-]", "conf.d/*[]", "*\\\\"] {
        let host = TestHost::new(Engine::Containerd).top(&format!("version = 2\nimports = [\"{bad}\"]\n"));
        let error = plan_add(&host.files, &[request()], None).expect_err(bad).to_string();
        assert!(error.contains("config.toml") && error.contains("import"), "{error}");
    }
}

#[test]
fn unreadable_directory_is_error() {
    for engine in [Engine::Crio, Engine::Podman] {
        let host = TestHost::new(engine);
        let folder = host.files.own().parent().expect("a folder").to_path_buf();
        fs::create_dir_all(folder.parent().expect("its own")).expect("made");
        std::os::unix::fs::symlink(&folder, &folder).expect("a link to itself");
        plan_add(&host.files, &[request()], None).expect_err("cannot be read");
    }
}

#[test]
fn hanging_engine_program_times_out() {
    let host = TestHost::new(Engine::Containerd);
    let program = host.write("containerd", "#!/bin/sh\necho said\nexec sleep 600\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    let error =
        source::read_from_engine(Engine::Containerd, Path::new("/"), Some(&program)).expect_err("it hangs").to_string();
    assert!(error.contains("has not ended") && error.contains("--config-source=file"), "{error}");
}

#[test]
fn moved_comments_keep_their_column() {
    let text = "[crio.runtime]\n  # ticket 1\n  default_runtime = \"nvidia\"\n  log_level = \"info\"\n";
    let host = TestHost::new(Engine::Crio).top(text);
    host.remove();
    let left = fs::read_to_string(&host.files.top).expect("read");
    assert_eq!(left, "[crio.runtime]\n  # ticket 1\n  log_level = \"info\"\n");
}
