//! The command line on made-up hosts.

use super::*;
use crate::driver::fake::{Host, node};
use clap::CommandFactory;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

fn ctk(words: &[&str]) -> u8 {
    let code = main([&["nvidia-ctk", "--quiet"], words].concat().iter().map(OsString::from).collect());
    (0..=2).find(|number| code == ExitCode::from(*number)).expect("0, 1 or 2")
}

fn host() -> Host {
    Host::with_gpu(&["libcuda"])
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("a path of characters")
}

#[test]
fn the_command_line_is_well_formed() {
    Ctk::command().debug_assert();
}

#[test]
fn error_reason_is_printed_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("outer: inner")]
    struct RepeatedSource(#[source] std::io::Error);
    assert_eq!(chain_without_repeats(&RepeatedSource(std::io::Error::other("inner"))), "outer: inner");
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct SeparateSource(#[source] std::io::Error);
    assert_eq!(chain_without_repeats(&SeparateSource(std::io::Error::other("inner"))), "outer: inner");
}

/// Configuration management may set each key by a separate command.
#[test]
fn concurrent_config_changes_are_all_kept() {
    const SETS: [(&str, &str); 6] = [
        ("disable-require", "disable-require = true"),
        ("nvidia-container-cli.no-cgroups", "no-cgroups = true"),
        ("nvidia-container-runtime.mode=cdi", "mode = \"cdi\""),
        ("nvidia-container-runtime.log-level=debug", "log-level = \"debug\""),
        ("swarm-resource=DOCKER_RESOURCE_X", "swarm-resource = \"DOCKER_RESOURCE_X\""),
        ("accept-nvidia-visible-devices-as-volume-mounts", "accept-nvidia-visible-devices-as-volume-mounts = true"),
    ];
    for _ in 0..10 {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("config.toml"), folder.path().join("link.toml"));
        std::os::unix::fs::symlink("config.toml", &link).expect("a link");
        std::thread::scope(|scope| {
            for (at, (set, _)) in SETS.iter().enumerate() {
                let file = if at % 2 == 0 { &file } else { &link };
                scope
                    .spawn(move || assert_eq!(ctk(&["config", "-c", path_text(file), "-i", "--set", set]), 0, "{set}"));
            }
        });
        let all = fs::read_to_string(&file).expect("a file");
        let lost: Vec<_> = SETS.iter().filter(|(_, line)| !all.lines().any(|it| it.trim() == *line)).collect();
        assert!(lost.is_empty(), "{lost:?} of {all}");
        assert_eq!(fs::read_dir(folder.path()).expect("read").count(), 2, "no lock is left");
    }
}

#[test]
fn concurrent_runtime_configures_are_all_kept() {
    for (engine, name) in [("docker", "etc/daemon.json"), ("containerd", "etc/config.toml")] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(name);
        let configure = ["runtime", "configure", "--runtime", engine, "--config", path_text(&file)];
        std::thread::scope(|scope| {
            for name in ["one", "two", "three", "four", "five", "six"] {
                scope.spawn(move || {
                    let named = ["--nvidia-runtime-name", name, "--nvidia-runtime-path", "/bin/true"];
                    assert_eq!(ctk(&[&configure[..], &named].concat()), 0, "{name}");
                });
            }
        });
        let all = fs::read_to_string(&file).expect("a file");
        let lost: Vec<_> =
            ["one", "two", "three", "four", "five", "six"].into_iter().filter(|name| !all.contains(name)).collect();
        assert!(lost.is_empty(), "{lost:?} of {all}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("none/daemon.json");
    assert_eq!(ctk(&["runtime", "configure", "--runtime=docker", "--remove", "--config", path_text(&file)]), 0);
    assert!(!folder.path().join("none").exists(), "nothing was changed");
}

/// As `/dev/stdin` behind a `|`, and `<(…)` of a shell.
#[test]
fn spec_in_pipe_is_transformed() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = folder.path().join("x.yaml");
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let input = format!("/proc/self/fd/{}", reader.as_raw_fd());
    let transform = || {
        ctk(&["cdi", "transform", "root", "--from=/a", "--to=/b", "--input", &input, "--output", path_text(&output)])
    };
    let spec = r#"{"cdiVersion": "0.5.0", "kind": "example.com/x", "devices": [
        {"name": "a", "containerEdits": {"mounts": [{"hostPath": "/a/x", "containerPath": "/x"}]}}]}"#;
    let written = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        writer.write_all(spec.as_bytes())
    });
    assert_eq!(transform(), 0);
    written.join().expect("ended").expect("written");
    assert!(fs::read_to_string(&output).expect("a file").contains("hostPath: /b/x"));
    assert_eq!(transform(), 1, "nobody writes to it any more");
}

#[test]
fn control_nodes_are_made_and_linked() {
    let host = host();
    let root = path_text(host.path());
    if let Err(error) = node(&host.path().join("probe"), 0o600, 1, 3) {
        return eprintln!("skipped: device nodes cannot be made here: {error}");
    }
    let nodes = ["system", "create-device-nodes", "--root", root, "--control-devices"];
    assert_eq!(ctk(&nodes), 0);
    assert_eq!(ctk(&nodes), 0, "what is there is left");
    use std::os::unix::fs::MetadataExt;
    let uvm = fs::metadata(host.path().join("dev/nvidia-uvm-tools")).expect("a node");
    assert_eq!((uvm.rdev(), uvm.mode() & 0o777), (rustix::fs::makedev(510, 1), 0o666));

    let links = host.path().join("char");
    let make = ["system", "create-dev-char-symlinks", "--driver-root", root, "--dev-char-path", path_text(&links)];
    assert_eq!(ctk(&make), 0);
    let read = |name: &str| fs::read_link(links.join(name)).ok();
    assert_eq!(read("195:255"), Some(host.path().join("dev/nvidiactl")));
    // An existing link to the device is not changed.
    fs::remove_file(links.join("510:0")).expect("a link");
    std::os::unix::fs::symlink("../dev/nvidia-uvm", links.join("510:0")).expect("a link");
    assert_eq!(ctk(&make), 0);
    assert_eq!(read("510:0"), Some("../dev/nvidia-uvm".into()));
}
