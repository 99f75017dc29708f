//! Runs a case: creates its host and its container in a directory, runs the program, and collects the result.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::case::Case;
use crate::cases::merge;
use crate::{facts, host};

/// Time limit of a run.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Held while a file is written or a process is forked. A child forked during a write has the file open until its exec; until then, an
/// exec of that file fails with ETXTBSY.
static WRITE_OR_FORK: Mutex<()> = Mutex::new(());

/// A script that replaces runc. It records its arguments and config.json.
const RECORDER: &str = "#!/bin/sh\nfolder=${0%/bin/*}\necho \"low $*\" >> $folder/low.args\ncat config.json > $folder/low.json 2>/dev/null\nexit 0\n";

const NAMES: [&str; 10] = [
    "mpu-container",
    "nvidia-container-runtime",
    "nvidia-container-runtime.cdi",
    "nvidia-container-runtime.legacy",
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-container-cli",
    "nvidia-ctk",
    "nvidia-ctk-installer",
    "nvidia-cdi-hook",
];

/// The result of a run. Paths below the case's directory are shortened to `$W`, `$D` and `$L`.
#[derive(Debug)]
pub struct Outcome {
    /// The exit code; negative for a signal, `None` after the time limit.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    /// See `facts`.
    pub facts: Vec<String>,
    /// Whether config.json is unchanged, byte for byte.
    pub is_unchanged: bool,
    /// New files in the bundle.
    pub leftover_files: Vec<String>,
    pub sandbox: Sandbox,
}

/// A case's directory. It is removed on drop.
#[derive(Debug)]
pub struct Sandbox(tempfile::TempDir);

impl Sandbox {
    /// Fills in `$W`, `$D` and `$L`, and expands `$REPEAT(COUNT|TEXT)`. A `#` in TEXT is the number of the repetition.
    pub fn fill(&self, text: &str) -> String {
        let folder = self.0.path().to_str().expect("UTF-8");
        let mut text = text.to_owned();
        while let Some((before, rest)) = text.split_once("$REPEAT(") {
            let (count, rest) = rest.split_once('|').expect("COUNT|TEXT");
            let (part, after) = rest.split_once(')').expect("an end");
            let count: usize = count.parse().expect("a number");
            let parts: String = (0..count).map(|time| part.replace('#', &time.to_string())).collect();
            text = format!("{before}{parts}{after}");
        }
        text.replace("$D", "$W/driver").replace("$W", folder).replace("$L", &host::libraries())
    }

    fn shorten(&self, text: &str) -> String {
        let folder = self.0.path().to_str().expect("UTF-8");
        text.replace(folder, "$W").replace("$W/driver", "$D").replace(&host::libraries(), "$L")
    }

    /// A path of a case. A relative path is below the case's directory.
    pub fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(self.fill(path))
    }
}

/// Runs a case.
///
/// # Errors
/// The reason why this machine cannot run the case.
pub fn run(case: &Case) -> Result<Outcome, String> {
    let sandbox = Sandbox(tempfile::tempdir().expect("a folder"));
    host::make(&sandbox.at("driver"), &case.host)?;
    link_programs(&sandbox);
    write_bundle(&sandbox, case);
    fs::write(sandbox.at("config.toml"), sandbox.fill(&config_text(case))).expect("written");
    for (path, content) in &case.put {
        put_file(&sandbox.at(path), path, &sandbox.fill(content));
    }
    let before = fs::read(sandbox.at("bundle/config.json")).ok();
    let before_names = file_names(&sandbox.at("bundle"));

    let code = run_program(&sandbox, case);

    let low = fs::read_to_string(sandbox.at("low.args")).unwrap_or_default();
    let recorded = fs::read(sandbox.at("low.json")).unwrap_or_default();
    let out = String::from_utf8_lossy(&fs::read(sandbox.at("stdout")).expect("there")).into_owned();
    let mut facts: Vec<String> = low.lines().map(String::from).collect();
    if let Ok(spec) = serde_json::from_slice(&recorded) {
        facts.extend(facts::of_spec(&spec));
    } else if case.run == "nvidia-ctk" {
        let printed: Option<Value> = serde_saphyr::from_str(&out).ok();
        facts.extend(printed.filter(|spec| spec["cdiVersion"].is_string()).iter().flat_map(facts::of_cdi));
    }
    let err = String::from_utf8_lossy(&fs::read(sandbox.at("stderr")).expect("there")).into_owned();
    let after = fs::read(sandbox.at("bundle/config.json")).ok();
    Ok(Outcome {
        code,
        out: sandbox.shorten(&out),
        err: sandbox.shorten(&err),
        facts: facts.iter().map(|fact| sandbox.shorten(fact)).collect(),
        is_unchanged: before == after && (recorded.is_empty() || Some(recorded) == before),
        leftover_files: file_names(&sandbox.at("bundle"))
            .into_iter()
            .filter(|name| !before_names.contains(name))
            .collect(),
        sandbox,
    })
}

fn link_programs(sandbox: &Sandbox) {
    // The caller can name a static executable, as in a release.
    let program = std::env::var_os("MPU_CONTAINER").unwrap_or_else(|| env!("CARGO_BIN_EXE_mpu-container").into());
    fs::create_dir_all(sandbox.at("bin")).expect("a folder");
    for name in NAMES {
        symlink(&program, sandbox.at("bin").join(name)).expect("a link");
    }
    put_file(&sandbox.at("bin/low"), "bin/low", RECORDER);
}

/// Writes the usual specification with the changes of the case.
fn write_bundle(sandbox: &Sandbox, case: &Case) {
    fs::create_dir_all(sandbox.at("bundle/rootfs")).expect("a folder");
    let text = match (&case.text, &case.bytes) {
        (Some(text), _) => sandbox.fill(text).into_bytes(),
        (None, Some(digits)) => hexadecimal(digits),
        (None, None) => {
            let mut spec: Value = serde_json::from_str(include_str!("config.json")).expect("JSON");
            let patch = case.spec.as_deref().map(|patch| sandbox.fill(patch));
            if let Some(patch) = patch {
                merge(
                    &mut spec,
                    &serde_json::from_str(&patch).unwrap_or_else(|error| panic!("{}: {error}", case.name)),
                );
            }
            let env = spec["process"]["env"].as_array_mut();
            env.into_iter().for_each(|env| {
                env.extend(case.asks.iter().flat_map(|text| text.split("; ")).map(|text| json!(sandbox.fill(text))))
            });
            // With unusual whitespace, so that a rewrite is detected.
            format!(" {}\n\n", serde_json::to_string_pretty(&spec).expect("JSON")).into_bytes()
        }
    };
    fs::write(sandbox.at("bundle/config.json"), text).expect("written");
}

/// The case's config.toml, with default paths in this folder.
fn config_text(case: &Case) -> String {
    let usual = [
        ("nvidia-container-cli.root", "'$D'"),
        ("nvidia-container-cli.path", "'/bin/echo'"),
        ("nvidia-container-cli.ldconfig", "'@/sbin/l'"),
        ("nvidia-container-runtime.runtimes", "['$W/bin/low']"),
        ("nvidia-container-runtime.debug", "'$W/debug.log'"),
        ("nvidia-container-runtime.modes.cdi.spec-dirs", "['$W/cdi', '$W/run-cdi']"),
    ];
    let text = case.config.join("\n");
    let missing = usual.iter().filter(|(key, _)| !text.contains(&format!("{key} =")));
    missing.map(|(key, value)| format!("{key} = {value}\n")).collect::<String>() + &text
}

fn write_or_fork<T>(act: impl FnOnce() -> T) -> T {
    let _guard = WRITE_OR_FORK.lock().unwrap_or_else(PoisonError::into_inner);
    act()
}

fn put_file(path: &Path, named: &str, content: &str) {
    if named.ends_with('/') {
        return fs::create_dir_all(path).expect("a folder");
    }
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let _ = fs::remove_file(path);
    match (content.strip_prefix("-> "), content) {
        (Some(target), _) => symlink(target, path).expect("a link"),
        (None, "fifo") => {
            let made = write_or_fork(|| Command::new("mkfifo").arg(path).status());
            assert!(made.expect("mkfifo").success());
        }
        (None, text) => write_or_fork(|| fs::write(path, text)).expect("written"),
    }
    if named.starts_with("bin/") {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
}

fn run_program(sandbox: &Sandbox, case: &Case) -> Option<i32> {
    let state =
        json!({"ociVersion": "1.2.0", "id": "x", "pid": 4242, "status": "creating", "bundle": sandbox.at("bundle")});
    let input = case.input.as_deref().map_or_else(|| state.to_string(), |input| sandbox.fill(input));
    fs::write(sandbox.at("stdin"), input).expect("written");
    let file = |name: &str| Stdio::from(File::create(sandbox.at(name)).expect("a file"));
    let mut command = Command::new(sandbox.at("bin").join(&case.run));
    command.args(case.args.iter().map(|word| sandbox.fill(word))).current_dir(sandbox.at("bundle"));
    command.env_clear().env("PATH", sandbox.fill("$W/bin:/usr/sbin:/usr/bin:/sbin:/bin")).env("HOME", sandbox.at("."));
    command.env("NVIDIA_CTK_CONFIG_FILE_PATH", sandbox.at("config.toml"));
    command.envs(case.environment.iter().map(|(name, value)| (name, sandbox.fill(value))));
    command.stdin(File::open(sandbox.at("stdin")).expect("a file")).stdout(file("stdout")).stderr(file("stderr"));
    let spawned = write_or_fork(|| command.spawn());
    let mut child = spawned.unwrap_or_else(|error| panic!("{}: {}: {error}", case.name, case.run));
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code().or(status.signal().map(|signal| -signal));
        }
        if start.elapsed() > TIMEOUT {
            child.kill().expect("killed");
            child.wait().expect("gone");
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

fn hexadecimal(digits: &str) -> Vec<u8> {
    let digits: Vec<char> = digits.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hexadecimal digits");
    digits.chunks(2).map(byte).collect()
}
