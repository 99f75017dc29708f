//! The wrapper behaves like the runtime behind it. Each case runs with the bare runtime, through the wrapper for a container that
//! requests no GPU, and through the wrapper for one whose specification it edits.
//!
//! Needs root, a runtime (runc, crun) and a static busybox; skipped with a note otherwise. The cases are in `conformance/cases.toml`. Each
//! has a text that the output of the bare runtime must contain.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[path = "common/bundle.rs"]
mod bundle;
#[path = "common/cases.rs"]
mod cases;
use bundle::{base_spec, find_in_path, make_root};

/// The beginning of every script. `del` retries: a container cannot always be deleted right after its process has ended. On a host with
/// both cgroup versions, version 2 is unmounted: crun refuses the mixture.
const PRELUDE: &str = r#"
umount -l /sys/fs/cgroup/unified 2>/dev/null
r() { "$RUNTIME" --root "$STATE" "$@"; }
status() { r state $C | grep -o '"status": *"[a-z]*"' | grep -o '[a-z]*"$' | tr -d '"'; }
sees() { for i in $(seq 3000); do test "$(status)" = "$1" && return; sleep 0.02; done; echo "never $1"; return 1; }
waits() { for i in $(seq 3000); do test -e "$1" && return; sleep 0.02; done; echo "never $1"; return 1; }
del() { for i in $(seq 3000); do r delete $C 2>/dev/null && return; sleep 0.02; done; echo "never deleted"; return 1; }
go() { r create -b . $C && r start $C && sees stopped; del; }
trap 'r delete --force $C 2>/dev/null' EXIT
"#;

/// A case: a change of the base specification (a JSON merge patch), a script, and a part of the bare runtime's output.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    patch: String,
    script: String,
    shows: String,
}

/// A variant in which every case runs.
struct Variant<'a> {
    name: &'static str,
    program: &'a Path,
    /// The variable with the container's device request.
    env_variable: &'static str,
}

#[test]
fn wrapper_behaves_like_runc() {
    check_conformance("runc");
}

#[test]
fn wrapper_behaves_like_crun() {
    check_conformance("crun");
}

fn check_conformance(runtime: &str) {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: not root, who alone can make containers with every namespace");
    }
    let Some(runtime_path) = find_in_path(runtime) else { return eprintln!("skipped: no {runtime}") };
    let Some(busybox) = find_in_path("busybox") else { return eprintln!("skipped: no busybox for a container's root") };
    let dir = tempfile::tempdir().unwrap();
    let wrapper = dir.path().join("nvidia-container-runtime");
    symlink(env!("CARGO_BIN_EXE_mpu-container"), &wrapper).unwrap();
    let variants = [
        Variant { name: "bare", program: &runtime_path, env_variable: "NVIDIA_VISIBLE_DEVICES=void" },
        Variant { name: "no GPU", program: &wrapper, env_variable: "NVIDIA_VISIBLE_DEVICES=void" },
        Variant { name: "edited", program: &wrapper, env_variable: "NVIDIA_VISIBLE_DEVICES=example.com/nothing=x" },
    ];
    let fixture = Fixture::new(dir.path(), &runtime_path, &busybox, runtime);
    let cases = cases::read("conformance", include_str!("conformance/cases.toml"));
    let count = cases.len();
    assert!(count >= 60);
    let mut failures = Vec::new();
    for (name, case) in cases {
        let case: Case = serde_json::from_value(Value::Object(case)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let outputs = variants.each_ref().map(|variant| fixture.run(&name, &case, variant));
        if !outputs[0].contains(&case.shows) {
            failures.push(format!("{name}: bare {runtime} does not show {:?}:\n{}", case.shows, outputs[0]));
        }
        for (variant, output) in variants.iter().zip(&outputs).skip(1).filter(|(_, other)| **other != outputs[0]) {
            let variant = variant.name;
            failures
                .push(format!("{name}, {variant}: not as bare {runtime}:\n{output:?}\n--- bare:\n{:?}", outputs[0]));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), count, failures.join("\n"));
}

struct Fixture<'a> {
    dir: &'a Path,
    busybox: &'a Path,
    config: PathBuf,
    /// Part of the container's name, so that the cgroups of runc and crun differ.
    runtime: &'a str,
}

impl Fixture<'_> {
    fn new<'a>(dir: &'a Path, path: &Path, busybox: &'a Path, runtime: &'a str) -> Fixture<'a> {
        let (config, cdi) = (dir.join("config.toml"), dir.join("cdi"));
        let text = format!("[nvidia-container-runtime]\nruntimes = [{path:?}]\nmodes.cdi.spec-dirs = [{cdi:?}]\n");
        fs::write(&config, text).unwrap();
        fs::create_dir(&cdi).unwrap();
        // The edit changes nothing: every container has the variable.
        let device = json!({"cdiVersion": "0.5.0", "kind": "example.com/nothing",
            "devices": [{"name": "x", "containerEdits": {"env": ["EDITED=1"]}}]});
        fs::write(cdi.join("nothing.json"), device.to_string()).unwrap();
        Fixture { dir, busybox, config, runtime }
    }

    /// Runs a case; returns its output and exit status.
    fn run(&self, name: &str, case: &Case, variant: &Variant<'_>) -> String {
        // The same path for every variant, so that messages agree.
        let bundle = self.dir.join("bundle");
        make_root(&bundle.join("rootfs"), self.busybox);
        let mut spec = base_spec();
        let patch = serde_json::from_str(&case.patch).unwrap_or_else(|error| panic!("{name}: {error}"));
        cases::merge(&mut spec, &patch);
        let env = json!(["PATH=/bin", "TERM=dumb", "EDITED=1", variant.env_variable]);
        spec["process"]["env"] = env;
        let text = spec.to_string().replace("BUNDLE", bundle.to_str().unwrap());
        fs::write(bundle.join("config.json"), &text).unwrap();
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &format!("{PRELUDE}\n{}", case.script)])
            .current_dir(&bundle)
            .env("RUNTIME", variant.program)
            .env("NVIDIA_CTK_CONFIG_FILE_PATH", &self.config)
            .env("STATE", self.dir.join("state"))
            .env("C", format!("conformance-{}", self.runtime))
            .env("B", &bundle)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let after = fs::read_to_string(bundle.join("config.json")).unwrap();
        assert!(variant.name == "edited" || after == text, "{name}: {} touched the specification", variant.name);
        fs::remove_dir_all(&bundle).unwrap();
        let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let left = fs::read_dir(self.dir.join("state")).map(Iterator::count).unwrap_or(0);
        assert_eq!(left, 0, "{name}: {} left a container behind: {text}", variant.name);
        format!("{}\nstatus {}", without_time(&text).replace(variant.env_variable, "ASKS"), output.status)
    }
}

/// Removes the time from runtimes' messages.
fn without_time(text: &str) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| line.split(' ').filter(|word| !word.starts_with("time=\"")).collect::<Vec<_>>().join(" "))
        .collect();
    lines.retain(|line| !line.is_empty());
    lines.join("\n")
}
