//! Specs of fake hosts.

use super::extra::Mode;
use super::generate::{self, Naming, generate_for_driver};
use super::*;
use crate::capability::Capabilities;
use crate::driver::fake::{self, Host, LIBRARIES, RELEASE as VERSION};
use crate::driver::{Driver, DriverRoot, Mig};
use crate::edits::{ContainerEdits, Device, Spec};
use serde_json::json;

fn uuid(letter: char) -> String {
    format!("GPU-{0}{0}{0}{0}{0}{0}{0}{0}-0000-0000-0000-000000000000", letter)
}

/// A host with two GPUs, a few files and a display node.
fn host() -> Host {
    let host = Host::with_driver(VERSION);
    host.gpu("0000:1b:00.0", 1, &uuid('a'));
    host.gpu("0000:9b:00.0", 0, &uuid('b'));
    host.libraries_of_driver(&["libcuda", "libnvidia-ml"]);
    host.write("usr/bin/nvidia-smi", "");
    host.write("run/nvidia-persistenced/socket", "");
    host.write("sys/bus/pci/devices/0000:1b:00.0/drm/card0/dev", "226:0\n");
    host.write("dev/dri/by-path/unrelated", "");
    host.link("../card0", "dev/dri/by-path/pci-0000:1b:00.0-card");
    host.link("../renderD128", "dev/dri/by-path/pci-0000:1b:00.0-render");
    host
}

/// The same with the second GPU divided into two MIG devices.
fn divided(host: &Host) -> Driver {
    let mut driver = Driver::find(&host.root()).expect("a driver");
    for (minor, file) in [(30, "gi1/access"), (31, "gi1/ci0/access"), (39, "gi2/access"), (40, "gi2/ci0/access")] {
        let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        host.write(&format!("proc/driver/nvidia/capabilities/gpu0/mig/{file}"), &text);
    }
    driver.gpus[1].mig_enabled = true;
    driver.gpus[1].mig = [1, 2]
        .map(|instance| Mig {
            index: instance - 1,
            uuid: format!("MIG-0000000{instance}-0000-5000-8000-000000000000"),
            gpu_instance: instance,
            compute_instance: 0,
        })
        .into();
    driver
}

fn request() -> Request {
    Request {
        kind: "nvidia.com/gpu".parse().expect("a kind"),
        mode: Mode::Nvml,
        names: vec![Naming::Index, Naming::Uuid],
        devices: vec!["all".into()],
        all: true,
        edits: Options::new("/usr/bin/mpu-container".into()),
    }
}

fn names(spec: &Spec) -> Vec<&str> {
    spec.devices.iter().map(|device| device.name.as_str()).collect()
}

fn device<'a>(spec: &'a Spec, name: &str) -> &'a Device {
    spec.devices.iter().find(|device| device.name == name).expect("a device of that name")
}

fn hook<'a>(edits: &'a ContainerEdits, word: &str) -> Option<&'a [String]> {
    edits.hooks.iter().find(|hook| hook.args[1] == word).map(|hook| &hook.args[2..])
}

#[test]
fn node_is_described_in_full() {
    let host = host();
    let spec = generate(&host.root(), &request()).expect("a spec");
    let node = &device(&spec, "1").container_edits.device_nodes[0];
    assert_eq!((node.major, node.minor, node.permissions.as_deref()), (Some(195), Some(0), Some("rwm")));
    assert_eq!(node.host_path.as_deref(), host.path().join("dev/nvidia0").to_str());
    assert_eq!((node.kind.as_deref(), node.file_mode), (Some("c"), Some(0o666)), "it has not been made yet");
    let card = device(&spec, "0").container_edits.device_nodes.iter().find(|node| node.path == "/dev/dri/card0");
    assert_eq!(card.and_then(|card| card.file_mode), Some(0o660), "no driver opens it to all users");
}

#[test]
fn existing_nodes_keep_their_mode_and_group() {
    let host = host();
    let node = |path: &str, mode, major, minor| {
        fake::node(&host.path().join(path), mode, major, minor)?;
        std::os::unix::fs::chown(host.path().join(path), None, Some(44))
    };
    if let Err(error) = node("dev/nvidia1", 0o666, 195, 1).and_then(|()| node("dev/dri/card0", 0o640, 226, 0)) {
        return eprintln!("skipped: device nodes cannot be made here: {error}");
    }
    let spec = generate(&host.root(), &request()).expect("a spec");
    let edits = &device(&spec, "0").container_edits;
    let [open, closed] = &edits.device_nodes[..] else { panic!("two nodes") };
    assert_eq!((&open.kind, open.gid), (&None, Some(44)), "as NVIDIA writes it");
    assert_eq!((closed.file_mode, closed.gid), (Some(0o640), Some(44)));
    assert_eq!(edits.additional_gids, [44], "only for the node that needs it");
    assert_eq!(spec.cdi_version, "0.7.0");
    let mut without = request();
    assert!(without.edits.apply_user_options(&[], &[], &["no-additional-gids-for-device-nodes".into()]).is_empty());
    assert_eq!(generate(&host.root(), &without).expect("a spec").cdi_version, "0.5.0");
}

#[test]
fn display_node_missing_in_driver_container_is_hosts() {
    let (host, driver) = (host(), tempfile::tempdir().expect("a folder"));
    let card = host.path().join("dev/dri/card0");
    if fake::node(&card, 0o640, 226, 0).is_err() {
        return eprintln!("skipped: not root, who alone can make device nodes");
    }
    std::os::unix::fs::chown(&card, None, Some(44)).expect("a group");
    let root = DriverRoot { devices: driver.path().into(), ..host.root() };
    let spec = generate(&root, &request()).expect("a spec");
    let edits = &self::device(&spec, "0").container_edits;
    let node = edits.device_nodes.iter().find(|node| node.path == "/dev/dri/card0").expect("the node");
    assert_eq!((node.file_mode, node.gid, node.host_path.as_deref()), (Some(0o640), Some(44), card.to_str()));
    assert_eq!(edits.additional_gids, [44]);
}

#[test]
fn managers_get_driver_without_desktop_files() {
    let host = host();
    let files = ["libnvidia-egl-gbm.so.1.1.2", &format!("libnvidia-allocator.so.{VERSION}")];
    for file in files {
        let soname = format!("{}.so.1", file.split(".so").next().unwrap_or_default());
        host.library(&format!("{LIBRARIES}/{file}"), &soname, true);
    }
    host.write("etc/vulkan/icd.d/nvidia_icd.json", "");
    let driver = Driver::find(&host.root()).expect("a driver");
    let edits = inject::management_edits(&driver, Capabilities::ALL, &request().edits).expect("edits");
    let mounts: Vec<_> = edits.mounts.iter().map(|mount| mount.container_path.as_str()).collect();
    for (part, there) in [
        ("libcuda.so", true),
        ("nvidia-smi", true),
        ("persistenced", true),
        ("allocator", true),
        ("egl-gbm", false),
        ("vulkan", false),
    ] {
        assert_eq!(mounts.iter().any(|path| path.contains(part)), there, "{part}: {mounts:?}");
    }
    let hooks: Vec<_> = edits.hooks.iter().map(|hook| hook.args[1].as_str()).collect();
    assert_eq!(hooks, ["create-symlinks", "enable-cuda-compat", "update-ldcache"], "they may make device nodes");
    let links = hook(&edits, "create-symlinks").expect("links").join(" ");
    assert!(links.contains("libcuda.so.1::") && !links.contains("nvidia-drm_gbm.so"), "{links}");
    assert!(edits.device_nodes.is_empty() && edits.env.contains(&"NVIDIA_VISIBLE_DEVICES=void".into()));
}

#[test]
fn devices_can_be_picked() {
    let host = host();
    let driver = divided(&host);
    let pick = |words: &[&str], all| {
        let devices = words.iter().map(ToString::to_string).collect();
        generate_for_driver(&driver, &Request { devices, all, names: vec![Naming::Index], ..request() })
    };
    assert_eq!(names(&pick(&["0"], true).expect("a spec")), ["0", "all"]);
    assert_eq!(names(&pick(&["1:1", &uuid('A'), "0"], false).expect("a spec")), ["0", "1:1"], "nothing twice");
    assert_eq!(pick(&["7"], true).expect_err("no such GPU").to_string(), "7: unknown device");
    let none = pick(&["none"], true).expect("a spec");
    assert_eq!(names(&none), ["none"]);
    assert_eq!(none.devices[0].container_edits.env, ["NVCT_EMPTY_DEVICE="]);
}

#[test]
fn generated_spec_is_deterministic_and_readable() {
    let host = host();
    let driver = divided(&host);
    let spec = generate_for_driver(&driver, &request()).expect("a spec");
    for (format, name) in [(file::Format::Json, "nvidia.json"), (file::Format::Yaml, "nvidia.yaml")] {
        let text = file::serialize(&spec, format);
        assert_eq!(text, file::serialize(&generate_for_driver(&driver, &request()).expect("a spec"), format));
        let folder = tempfile::tempdir().expect("a folder");
        file::write(&folder.path().join(name), text.as_bytes()).expect("a file");
        let registry = Registry::read(&[folder.path().into()]);
        assert!(registry.failures().is_empty(), "{:?}", registry.failures());
        assert_eq!(registry.devices().cloned().collect::<Vec<_>>(), {
            let mut names = generate::qualified_names(&spec);
            names.sort();
            names
        });
        let edits = registry.edits(&["nvidia.com/gpu=1:0".parse().expect("a name")]).expect("edits");
        assert_eq!(edits.device_nodes.len(), 4 + 3);
    }
}

#[test]
fn device_without_nodes_is_left_out() {
    let spec = |paths: &[&[&str]]| -> Spec {
        let nodes = |paths: &&[&str]| paths.iter().map(|path| json!({"path": "/dev/gpu", "hostPath": path})).collect();
        let devices = paths.iter().enumerate().map(|(index, paths)| {
            let nodes: Vec<_> = nodes(paths);
            json!({"name": index.to_string(), "containerEdits": {"deviceNodes": nodes}})
        });
        let devices: Vec<_> = devices.collect();
        serde_json::from_value(json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})).unwrap()
    };
    let (here, gone) = ("/dev/null", "/no/such/node");
    for (paths, left) in [
        (&[&[here][..], &[here]][..], Some(vec!["0", "1"])),
        (&[&[here], &[gone]], Some(vec!["0"])),
        (&[&[here, gone], &[gone, gone]], Some(vec!["0"])),
        (&[&[here], &[]], Some(vec!["0", "1"])),
        (&[&[gone], &[gone]], None),
    ] {
        let mut spec = spec(paths);
        let taken = generate::remove_missing_device_nodes(&mut spec);
        let names: Vec<_> = spec.devices.iter().map(|device| &*device.name).collect();
        assert_eq!(taken.is_ok().then_some(names), left, "{paths:?}");
        assert!(spec.devices.iter().all(|device| {
            device.container_edits.device_nodes.iter().all(|node| node.host_path.as_deref() == Some(here))
        }));
    }
}
