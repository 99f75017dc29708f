//! The executable with closed or full outputs: no panic, and the documented exit code.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The program's name and its arguments.
const PAGES: [(&str, &[&str]); 12] = [
    ("mpu-container", &["--help"]),
    ("mpu-container", &["--version"]),
    ("mpu-container", &["links", "--help"]),
    ("mpu-container", &["runtime", "--help"]),
    ("mpu-container", &["man"]),
    ("mpu-container", &["completions", "bash", "nvidia-ctk"]),
    ("mpu-container", &["refresh", "--help"]),
    ("nvidia-ctk", &["--help"]),
    ("nvidia-cdi-hook", &["--help"]),
    ("nvidia-container-cli", &["--version"]),
    ("nvidia-container-runtime-hook", &["--help"]),
    ("nvidia-container-runtime-hook", &["--version"]),
];

const WRONG: [(&str, &[&str]); 8] = [
    ("mpu-container", &["foo"]),
    ("mpu-container", &[]),
    ("mpu-container", &["links"]),
    ("mpu-container", &["man", "foo"]),
    ("nvidia-container-runtime-hook", &["foo"]),
    ("nvidia-cdi-hook", &["chmod", "--mode"]),
    ("nvidia-cdi-hook", &["in-turn", "chmod", "--help"]),
    ("mpu-container", &["refresh", "--nonsense"]),
];

fn code(name: &str, words: &[&str], out: impl Into<Stdio>, err: impl Into<Stdio>) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
    command.arg0(name).args(words).stdin(Stdio::null()).stdout(out).stderr(err).status().expect("ended").code()
}

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("the device")
}

fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn full_stdout_fails_closed_stdout_succeeds() {
    for (name, words) in PAGES {
        assert_eq!(code(name, words, full(), Stdio::null()), Some(1), "{name} {words:?}");
        assert_eq!(code(name, words, full(), full()), Some(1), "{name} {words:?}");
        assert_eq!(code(name, words, closed(), Stdio::null()), Some(0), "{name} {words:?}");
    }
}

#[test]
fn error_names_full_stdout() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
    let output = command.arg0("nvidia-ctk").args(["config", "default"]).stdin(Stdio::null()).stdout(full()).output();
    let error = String::from_utf8(output.expect("ended").stderr).expect("text");
    assert!(error.contains("standard output"), "{error}");
}

/// A container starts although the hook's messages cannot be written: crun can redirect them to any file (`run.oci.hooks.stderr`).
#[test]
fn hook_works_with_unwritable_stderr() {
    let bundle = tempfile::tempdir().expect("a folder");
    let config = r#"{"ociVersion": "1.0.2", "root": {"path": "r"}, "process": {"env": ["no value"]}}"#;
    std::fs::write(bundle.path().join("config.json"), config).expect("written");
    let state = bundle.path().join("state");
    std::fs::write(&state, format!(r#"{{"bundle": {:?}, "pid": 1}}"#, bundle.path())).expect("written");
    let hook = |name: &str, words: &[&str], err: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
        let stdin = File::open(&state).expect("there");
        command.arg0(name).args(words).stdin(stdin).stdout(Stdio::null()).stderr(err).status().expect("ended").code()
    };
    let unwritable: [fn() -> Stdio; 2] = [|| full().into(), closed];
    for err in unwritable {
        assert_eq!(hook("nvidia-container-runtime-hook", &["prestart"], err()), Some(0));
        assert_eq!(hook("nvidia-cdi-hook", &["of-tomorrow"], err()), Some(0));
    }
}

#[test]
fn usage_error_keeps_code_without_stderr() {
    for (name, words) in WRONG {
        assert_eq!(code(name, words, Stdio::null(), full()), Some(2), "{name} {words:?}");
        assert_eq!(code(name, words, Stdio::null(), closed()), Some(2), "{name} {words:?}");
    }
}

/// A panic would fail the container with an undocumented exit code.
#[test]
fn progress_without_stderr_keeps_exit_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("a path of characters").to_string();
    let (root, output) = (at("root"), at("x.yaml"));
    for (words, expected) in [
        (&["refresh", "--driver-root", &root, "--output", &output][..], 0),
        (&["refresh", "--driver-root", &root, "--output", &output, "--remove"], 0),
        (&["cdi-hook", "chmod", "--container-spec", "/nonexistent", "--path", "/x", "--mode", "755"], 1),
    ] {
        for err in [Stdio::from(full()), closed()] {
            assert_eq!(code("mpu-container", words, Stdio::null(), err), Some(expected), "{words:?}");
        }
    }
}
