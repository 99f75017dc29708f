//! Runs a case: makes its host and its container in a folder, calls the program, and collects the result.

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

/// A call that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// Held to write a file and to start a process. A child that is forked meanwhile would have the file open until its exec, and nobody could
/// execute the file (ETXTBSY).
static WRITE_OR_FORK: Mutex<()> = Mutex::new(());

/// Replaces runc and records its arguments.
const LOW: &str = "#!/bin/sh\nfolder=${0%/bin/*}\necho \"low $*\" >> $folder/low.args\ncat config.json > $folder/low.json 2>/dev/null\nexit 0\n";

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

/// What happened. Paths of the case's folder are written as cases write them.
#[derive(Debug)]
pub struct Outcome {
    /// Its exit code; a signal is a negative number, and none is a call that did not end.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    /// See `facts`.
    pub facts: Vec<String>,
    /// Whether config.json is what it was, byte for byte.
    pub same: bool,
    /// What else is in the bundle than before.
    pub litter: Vec<String>,
    pub world: World,
}

/// A case's folder; it goes with the value.
#[derive(Debug)]
pub struct World(tempfile::TempDir);

impl World {
    /// A text with `$W`, `$D` and `$L` filled in, and `$REPEAT(COUNT|TEXT)` written out; `#` in it is the number of the time.
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

    /// A path of a case, which begins in the folder if it does not say otherwise.
    pub fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(self.fill(path))
    }
}

/// Runs it.
///
/// # Errors
/// Why this machine cannot.
pub fn run(case: &Case) -> Result<Outcome, String> {
    let world = World(tempfile::tempdir().expect("a folder"));
    host::make(&world.at("driver"), &case.host)?;
    programs(&world);
    container(&world, case);
    fs::write(world.at("config.toml"), world.fill(&config(case))).expect("written");
    for (path, what) in &case.put {
        put(&world.at(path), path, &world.fill(what));
    }
    let before = fs::read(world.at("bundle/config.json")).ok();
    let there = names(&world.at("bundle"));

    let code = call(&world, case);

    let low = fs::read_to_string(world.at("low.args")).unwrap_or_default();
    let recorded = fs::read(world.at("low.json")).unwrap_or_default();
    let out = String::from_utf8_lossy(&fs::read(world.at("stdout")).expect("there")).into_owned();
    let mut facts: Vec<String> = low.lines().map(String::from).collect();
    if let Ok(spec) = serde_json::from_slice(&recorded) {
        facts.extend(facts::of_spec(&spec));
    } else if case.run == "nvidia-ctk" {
        let printed: Option<Value> = serde_saphyr::from_str(&out).ok();
        facts.extend(printed.filter(|spec| spec["cdiVersion"].is_string()).iter().flat_map(facts::of_cdi));
    }
    let err = String::from_utf8_lossy(&fs::read(world.at("stderr")).expect("there")).into_owned();
    let after = fs::read(world.at("bundle/config.json")).ok();
    Ok(Outcome {
        code,
        out: world.shorten(&out),
        err: world.shorten(&err),
        facts: facts.iter().map(|fact| world.shorten(fact)).collect(),
        same: before == after && (recorded.is_empty() || Some(recorded) == before),
        litter: names(&world.at("bundle")).into_iter().filter(|name| !there.contains(name)).collect(),
        world,
    })
}

fn programs(world: &World) {
    // As a release has it, if the caller built that: static.
    let program = std::env::var_os("MPU_CONTAINER").unwrap_or_else(|| env!("CARGO_BIN_EXE_mpu-container").into());
    fs::create_dir_all(world.at("bin")).expect("a folder");
    for name in NAMES {
        symlink(&program, world.at("bin").join(name)).expect("a link");
    }
    put(&world.at("bin/low"), "bin/low", LOW);
}

/// The usual specification, with what the case says.
fn container(world: &World, case: &Case) {
    fs::create_dir_all(world.at("bundle/rootfs")).expect("a folder");
    let text = match (&case.text, &case.bytes) {
        (Some(text), _) => world.fill(text).into_bytes(),
        (None, Some(digits)) => hexadecimal(digits),
        (None, None) => {
            let mut spec: Value = serde_json::from_str(include_str!("config.json")).expect("JSON");
            let patch = case.spec.as_deref().map(|patch| world.fill(patch));
            if let Some(patch) = patch {
                merge(
                    &mut spec,
                    &serde_json::from_str(&patch).unwrap_or_else(|error| panic!("{}: {error}", case.name)),
                );
            }
            let env = spec["process"]["env"].as_array_mut();
            env.into_iter().for_each(|env| {
                env.extend(case.asks.iter().flat_map(|text| text.split("; ")).map(|text| json!(world.fill(text))))
            });
            // Written oddly, so that writing it again shows.
            format!(" {}\n\n", serde_json::to_string_pretty(&spec).expect("JSON")).into_bytes()
        }
    };
    fs::write(world.at("bundle/config.json"), text).expect("written");
}

/// The case's config.toml, with default paths in this folder.
fn config(case: &Case) -> String {
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

fn put(path: &Path, named: &str, what: &str) {
    if named.ends_with('/') {
        return fs::create_dir_all(path).expect("a folder");
    }
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let _ = fs::remove_file(path);
    match (what.strip_prefix("-> "), what) {
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

fn call(world: &World, case: &Case) -> Option<i32> {
    let state =
        json!({"ociVersion": "1.2.0", "id": "x", "pid": 4242, "status": "creating", "bundle": world.at("bundle")});
    let input = case.input.as_deref().map_or_else(|| state.to_string(), |input| world.fill(input));
    fs::write(world.at("stdin"), input).expect("written");
    let file = |name: &str| Stdio::from(File::create(world.at(name)).expect("a file"));
    let mut command = Command::new(world.at("bin").join(&case.run));
    command.args(case.args.iter().map(|word| world.fill(word))).current_dir(world.at("bundle"));
    command.env_clear().env("PATH", world.fill("$W/bin:/usr/sbin:/usr/bin:/sbin:/bin")).env("HOME", world.at("."));
    command.env("NVIDIA_CTK_CONFIG_FILE_PATH", world.at("config.toml"));
    command.envs(case.environment.iter().map(|(name, value)| (name, world.fill(value))));
    command.stdin(File::open(world.at("stdin")).expect("a file")).stdout(file("stdout")).stderr(file("stderr"));
    let spawned = write_or_fork(|| command.spawn());
    let mut child = spawned.unwrap_or_else(|error| panic!("{}: {}: {error}", case.name, case.run));
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.code().or(status.signal().map(|signal| -signal));
        }
        if start.elapsed() > PATIENCE {
            child.kill().expect("killed");
            child.wait().expect("gone");
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

fn hexadecimal(digits: &str) -> Vec<u8> {
    let digits: Vec<char> = digits.chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hexadecimal digits");
    digits.chunks(2).map(byte).collect()
}
