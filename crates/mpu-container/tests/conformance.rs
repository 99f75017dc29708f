//! The wrapper behaves like the runtime behind it. Each case runs with the bare runtime, through the wrapper for a container that
//! requests no GPU, and through the wrapper for one whose specification it edits.
//!
//! Needs root, a runtime (runc, crun) and a static busybox; without one of them it says which and checks nothing. Each
//! case has words that the bare runtime must show. The cases are data: `conformance/cases.toml`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[path = "common/bundle.rs"]
mod bundle;
#[path = "common/cases.rs"]
mod cases;
use bundle::{base, found, make_root};

/// What stands before every script. A container whose process has just ended cannot always be deleted at once. The list of
/// cgroups that a runtime sees is that of version 1 alone, where a host has both: crun refuses the mixture.
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

/// A case: a change of the base specification (a JSON merge patch), a script, and words that the bare runtime shows.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    patch: String,
    script: String,
    shows: String,
}

/// One way to run the cases.
struct Way<'a> {
    name: &'static str,
    program: &'a Path,
    /// What the container's environment asks for.
    asks: &'static str,
}

#[test]
fn wrapper_behaves_like_runc() {
    conform("runc");
}

#[test]
fn wrapper_behaves_like_crun() {
    conform("crun");
}

fn conform(runtime: &str) {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: not root, who alone can make containers with every namespace");
    }
    let Some(bare) = found(runtime) else { return eprintln!("skipped: no {runtime}") };
    let Some(busybox) = found("busybox") else { return eprintln!("skipped: no busybox for a container's root") };
    let dir = tempfile::tempdir().unwrap();
    let wrapper = dir.path().join("nvidia-container-runtime");
    symlink(env!("CARGO_BIN_EXE_mpu-container"), &wrapper).unwrap();
    let ways = [
        Way { name: "bare", program: &bare, asks: "NVIDIA_VISIBLE_DEVICES=void" },
        Way { name: "no GPU", program: &wrapper, asks: "NVIDIA_VISIBLE_DEVICES=void" },
        Way { name: "edited", program: &wrapper, asks: "NVIDIA_VISIBLE_DEVICES=example.com/nothing=x" },
    ];
    let world = World::new(dir.path(), &bare, &busybox, runtime);
    let cases = cases::read("conformance", include_str!("conformance/cases.toml"));
    let count = cases.len();
    assert!(count >= 60);
    let mut failures = Vec::new();
    for (name, case) in cases {
        let case: Case = serde_json::from_value(Value::Object(case)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let seen = ways.each_ref().map(|way| world.run(&name, &case, way));
        if !seen[0].contains(&case.shows) {
            failures.push(format!("{name}: bare {runtime} does not show {:?}:\n{}", case.shows, seen[0]));
        }
        for (way, seen_so) in ways.iter().zip(&seen).skip(1).filter(|(_, other)| **other != seen[0]) {
            let way = way.name;
            failures.push(format!("{name}, {way}: not as bare {runtime}:\n{seen_so:?}\n--- bare:\n{:?}", seen[0]));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), count, failures.join("\n"));
}

struct World<'a> {
    dir: &'a Path,
    busybox: &'a Path,
    config: PathBuf,
    /// Part of the container's name: its cgroup is the host's.
    runtime: &'a str,
}

impl World<'_> {
    fn new<'a>(dir: &'a Path, path: &Path, busybox: &'a Path, runtime: &'a str) -> World<'a> {
        let (config, cdi) = (dir.join("config.toml"), dir.join("cdi"));
        let text = format!("[nvidia-container-runtime]\nruntimes = [{path:?}]\nmodes.cdi.spec-dirs = [{cdi:?}]\n");
        fs::write(&config, text).unwrap();
        fs::create_dir(&cdi).unwrap();
        // The edit changes nothing: every container has the variable.
        let device = json!({"cdiVersion": "0.5.0", "kind": "example.com/nothing",
            "devices": [{"name": "x", "containerEdits": {"env": ["EDITED=1"]}}]});
        fs::write(cdi.join("nothing.json"), device.to_string()).unwrap();
        World { dir, busybox, config, runtime }
    }

    /// Runs a case; returns its output and exit status.
    fn run(&self, name: &str, case: &Case, way: &Way<'_>) -> String {
        // The same path for every way, so that no message differs by it.
        let bundle = self.dir.join("bundle");
        make_root(&bundle.join("rootfs"), self.busybox);
        let mut spec = base();
        let patch = serde_json::from_str(&case.patch).unwrap_or_else(|error| panic!("{name}: {error}"));
        cases::merge(&mut spec, &patch);
        let env = json!(["PATH=/bin", "TERM=dumb", "EDITED=1", way.asks]);
        spec["process"]["env"] = env;
        let text = spec.to_string().replace("BUNDLE", bundle.to_str().unwrap());
        fs::write(bundle.join("config.json"), &text).unwrap();
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &format!("{PRELUDE}\n{}", case.script)])
            .current_dir(&bundle)
            .env("RUNTIME", way.program)
            .env("NVIDIA_CTK_CONFIG_FILE_PATH", &self.config)
            .env("STATE", self.dir.join("state"))
            .env("C", format!("conformance-{}", self.runtime))
            .env("B", &bundle)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let after = fs::read_to_string(bundle.join("config.json")).unwrap();
        assert!(way.name == "edited" || after == text, "{name}: {} touched the specification", way.name);
        fs::remove_dir_all(&bundle).unwrap();
        let text = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let left = fs::read_dir(self.dir.join("state")).map(Iterator::count).unwrap_or(0);
        assert_eq!(left, 0, "{name}: {} left a container behind: {text}", way.name);
        format!("{}\nstatus {}", without_time(&text).replace(way.asks, "ASKS"), output.status)
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
