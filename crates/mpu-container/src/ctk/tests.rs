//! The command line on made-up hosts.

use super::*;
use crate::cdi::file;
use crate::driver::fake::{Host, RELEASE, fifo, node};
use clap::CommandFactory;
use std::fs;
use std::path::Path;

fn ctk(words: &[&str]) -> u8 {
    let code = main([&["nvidia-ctk", "--quiet"], words].concat().iter().map(OsString::from).collect());
    (0..=2).find(|number| code == ExitCode::from(*number)).expect("0, 1 or 2")
}

fn host() -> Host {
    Host::with_gpu(&["libcuda"])
}

fn text(path: &Path) -> &str {
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
    struct Told(#[source] std::io::Error);
    assert_eq!(chain_without_repeats(&Told(std::io::Error::other("inner"))), "outer: inner");
    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Untold(#[source] std::io::Error);
    assert_eq!(chain_without_repeats(&Untold(std::io::Error::other("inner"))), "outer: inner");
}

#[test]
fn generated_spec_is_listed_and_transformed() {
    let host = host();
    let folder = host.path().join("cdi");
    let output = folder.join("nvidia.json");
    let root = text(host.path());
    let generate = ["cdi", "generate", "--driver-root", root, "--output", text(&output)];
    assert_eq!(ctk(&generate), 0);
    let written = fs::read_to_string(&output).expect("a file");
    assert!(written.starts_with('{'), "the name says JSON");
    assert_eq!(ctk(&["cdi", "list", "--spec-dir", text(&folder)]), 0);
    assert_eq!(ctk(&generate), 0);
    assert_eq!(fs::read_to_string(&output).expect("a file"), written, "the same bytes");
    let moved = folder.join("moved");
    let transform = ["cdi", "transform", "root", "--from", root, "--to=/", "--input", text(&output), "--output"];
    assert_eq!(ctk(&[&transform[..], &[text(&moved)]].concat()), 0);
    let spec = file::read(&folder.join("moved.yaml")).expect("a name without an ending gets one");
    let edits = &spec.container_edits;
    assert!(edits.mounts.iter().all(|mount| mount.host_path == mount.container_path));
    assert!(edits.device_nodes.iter().all(|node| node.host_path.is_none()));
}

#[test]
fn failed_generate_leaves_no_file() {
    let host = host();
    let output = host.path().join("nvidia.yaml");
    for (code, flag) in [
        (1, "--device-id=7"),
        (1, "--mode=nvswitch"),
        (1, "--class=-x"),
        (1, "--enable-hook=all"),
        (2, "--mode=wsl"),
        (2, "--format=xml"),
        (2, "--device-name-strategy=colour"),
    ] {
        let generate = ["cdi", "generate", "--driver-root", text(host.path()), "--output", text(&output), flag];
        assert_eq!(ctk(&generate), code, "{flag}");
        assert!(!output.exists(), "{flag}");
    }
}

#[test]
fn flags_decide_spec_contents() {
    let host = host();
    let output = host.path().join("nvidia.yaml");
    let code = ctk(&[
        "cdi",
        "generate",
        "--driver-root",
        text(host.path()),
        "--output",
        text(&output),
        "--format=JSON",
        "--vendor=example.com",
        "--class=accelerator",
        "--device-name-strategy=type-index",
        "--no-all-device",
        "--nvidia-cdi-hook-path=/opt/nvidia-ctk",
        "--ldconfig-path=/sbin/ldconfig.real",
        "--disable-hook=disable-device-node-modification",
        "--disable-hook=enable-cuda-compat",
    ]);
    assert_eq!(code, 0);
    // The flag says more than the name.
    let spec = file::parse(&fs::read(&output).expect("a file"), file::Format::Json).expect("a spec");
    assert_eq!(spec.kind, "example.com/accelerator");
    assert_eq!(spec.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["gpu0"]);
    let hooks: Vec<_> = spec.container_edits.hooks.iter().map(|hook| hook.args[..3].join(" ")).collect();
    assert_eq!(
        hooks,
        [
            "nvidia-ctk hook create-symlinks",
            "nvidia-ctk hook update-ldcache",
            "nvidia-ctk hook hide-other-gpus",
            "nvidia-ctk hook update-application-profile"
        ]
    );
    assert!(spec.container_edits.hooks[1].args.contains(&"/sbin/ldconfig.real".into()));
}

#[test]
fn config_is_shown_and_changed() {
    let there = tempfile::tempdir().expect("a folder");
    let file = there.path().join("config.toml");
    assert_eq!(ctk(&["config", "default", "--output", text(&file)]), 0);
    let set = ["config", "--config-file", text(&file), "--in-place", "--set"];
    assert_eq!(ctk(&[&set[..], &["nvidia-container-runtime.mode=cdi"]].concat()), 0);
    let changed = fs::read_to_string(&file).expect("a file");
    assert!(changed.contains("mode = \"cdi\""));
    assert_eq!(ctk(&[&set[..], &["no.such.key=1"]].concat()), 1);
    assert_eq!(fs::read_to_string(&file).expect("a file"), changed);
}

/// As configuration management does that sets each key by a command of its own.
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
        let there = tempfile::tempdir().expect("a folder");
        let (file, link) = (there.path().join("config.toml"), there.path().join("link.toml"));
        std::os::unix::fs::symlink("config.toml", &link).expect("a link");
        std::thread::scope(|scope| {
            for (at, (set, _)) in SETS.iter().enumerate() {
                let file = if at % 2 == 0 { &file } else { &link };
                scope.spawn(move || assert_eq!(ctk(&["config", "-c", text(file), "-i", "--set", set]), 0, "{set}"));
            }
        });
        let all = fs::read_to_string(&file).expect("a file");
        let lost: Vec<_> = SETS.iter().filter(|(_, line)| !all.lines().any(|it| it.trim() == *line)).collect();
        assert!(lost.is_empty(), "{lost:?} of {all}");
        assert_eq!(fs::read_dir(there.path()).expect("read").count(), 2, "no lock is left");
    }
}

#[test]
fn concurrent_runtime_configures_are_all_kept() {
    for (engine, name) in [("docker", "etc/daemon.json"), ("containerd", "etc/config.toml")] {
        let there = tempfile::tempdir().expect("a folder");
        let file = there.path().join(name);
        let configure = ["runtime", "configure", "--runtime", engine, "--config", text(&file)];
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
    let there = tempfile::tempdir().expect("a folder");
    let file = there.path().join("none/daemon.json");
    assert_eq!(ctk(&["runtime", "configure", "--runtime=docker", "--remove", "--config", text(&file)]), 0);
    assert!(!there.path().join("none").exists(), "nothing was changed");
}

#[test]
fn flags_of_program_may_stand_behind_verb() {
    let there = tempfile::tempdir().expect("a folder");
    let file = there.path().join("config.toml");
    for words in [&["config", "default", "--debug", "--output"][..], &["config", "-d", "--quiet", "-c"]] {
        assert_eq!(ctk(&[words, &[text(&file)]].concat()), 0, "{words:?}");
    }
    assert_eq!(ctk(&["cdi", "list", "--debug", "--spec-dir", text(there.path())]), 0);
    let host = host();
    let broken = there.path().join("broken.toml");
    fs::write(&broken, "x = [").expect("written");
    let output = host.path().join("x.yaml");
    assert_eq!(ctk(&["cdi", "generate", "--output", text(&output), "--config", text(&broken)]), 1);
    let root = ["cdi", "generate", "--driver-root", text(host.path()), "--output", text(&output)];
    assert_eq!(ctk(&[&root[..], &["--debug", "--config", text(&file)]].concat()), 0);
}

#[test]
fn pipe_as_config_is_refused_at_once() {
    let there = tempfile::tempdir().expect("a folder");
    let pipe = there.path().join("config");
    fifo(&pipe);
    assert_eq!(ctk(&["config", "--config-file", text(&pipe)]), 1);
    for engine in ["docker", "containerd", "crio", "podman"] {
        let configure = ["runtime", "configure", "--runtime", engine, "--config", text(&pipe)];
        assert_eq!(ctk(&configure), 1, "{engine}");
        assert_eq!(ctk(&[&configure[..], &["--remove"]].concat()), 1, "{engine}");
    }
}

/// Its first file can be named, too, and what is read after it is beside it.
#[test]
fn podman_first_file_is_judged_with_later_ones() {
    let there = tempfile::tempdir().expect("a folder");
    let file = |name: &str| there.path().join(name);
    fs::create_dir(file("containers.conf.d")).expect("made");
    fs::write(file("containers.conf.d/50-site.conf"), "[engine]\nruntime = \"crun\"\n").expect("written");
    let configure = |config: &Path| {
        let config = text(config).to_string();
        let program = "--nvidia-runtime-path=/bin/true";
        ctk(&["runtime", "configure", "--runtime=podman", "--set-as-default", program, "--config", &config])
    };
    assert_eq!(configure(&file("containers.conf")), 1, "the other file overrules it");
    assert!(!file("containers.conf").exists());
    assert_eq!(configure(&file("containers.conf.d/99-nvidia.conf")), 0);
    fs::remove_file(file("containers.conf.d/50-site.conf")).expect("removed");
    fs::remove_file(file("containers.conf.d/99-nvidia.conf")).expect("removed");
    assert_eq!(configure(&file("containers.conf")), 0);
    assert!(fs::read_to_string(file("containers.conf")).expect("written").contains("runtime = \"nvidia\""));
}

#[test]
fn control_nodes_are_made_and_linked() {
    let host = host();
    let root = text(host.path());
    if let Err(error) = node(&host.path().join("probe"), 0o600, 1, 3) {
        return eprintln!("skipped: device nodes cannot be made here: {error}");
    }
    let nodes = ["system", "create-device-nodes", "--root", root, "--control-devices"];
    assert_eq!(ctk(&[&nodes[..], &["--dry-run"]].concat()), 0);
    assert!(!host.path().join("dev").exists(), "a dry run makes nothing");
    assert_eq!(ctk(&nodes), 0);
    assert_eq!(ctk(&nodes), 0, "what is there is left");
    use std::os::unix::fs::MetadataExt;
    let uvm = fs::metadata(host.path().join("dev/nvidia-uvm-tools")).expect("a node");
    assert_eq!((uvm.rdev(), uvm.mode() & 0o777), (rustix::fs::makedev(510, 1), 0o666));

    let other = Host::with_driver(RELEASE);
    other.write("proc/devices", "Character devices:\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n");
    assert_eq!(ctk(&["system", "create-device-nodes", "--root", text(other.path()), "--control-devices"]), 0);
    let modeset = fs::metadata(other.path().join("dev/nvidia-modeset")).expect("a node");
    assert_eq!(modeset.rdev(), rustix::fs::makedev(195, 254), "without its module, as on hosts without displays");

    let links = host.path().join("char");
    let make = ["system", "create-dev-char-symlinks", "--driver-root", root, "--dev-char-path", text(&links)];
    assert_eq!(ctk(&make), 0);
    let read = |name: &str| fs::read_link(links.join(name)).ok();
    assert_eq!(read("195:255"), Some(host.path().join("dev/nvidiactl")));
    assert_eq!(read("195:0"), None, "the GPU's node is not there");
    // One that leads nowhere is put right, one that leads to the device is left.
    fs::remove_file(links.join("195:255")).expect("a link");
    std::os::unix::fs::symlink("/nowhere", links.join("195:255")).expect("a link");
    fs::remove_file(links.join("510:0")).expect("a link");
    std::os::unix::fs::symlink("../dev/nvidia-uvm", links.join("510:0")).expect("a link");
    host.write(
        "proc/driver/nvidia-caps/mig-minors",
        "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu1/gi0/access 138\n",
    );
    assert_eq!(ctk(&[&make[..], &["--create-all"]].concat()), 0);
    assert_eq!(read("195:255"), Some(host.path().join("dev/nvidiactl")));
    assert_eq!(read("510:0"), Some("../dev/nvidia-uvm".into()));
    assert_eq!(read("195:0"), Some(host.path().join("dev/nvidia0")), "it can come to be");
    assert_eq!(read("234:4"), Some(host.path().join("dev/nvidia-caps/nvidia-cap4")));
    assert_eq!(read("234:138"), None, "there is no such GPU");
}

#[test]
fn unloaded_module_creates_no_nodes() {
    let host = Host::with_driver(RELEASE);
    host.write("proc/devices", "Character devices:\n195 nvidia\n\nBlock devices:\n");
    assert_eq!(ctk(&["system", "create-device-nodes", "--root", text(host.path()), "--control-devices"]), 1);
    assert!(!host.path().join("dev").exists(), "no half of the nodes");
    assert_eq!(ctk(&["system", "create-device-nodes", "--root=/nowhere", "--load-kernel-modules", "--dry-run"]), 0);
}
