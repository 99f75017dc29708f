//! The CDI file for management containers, on a fake host.

use super::*;
use crate::cdi::file;
use crate::driver::fake;

fn options(words: &[&str]) -> Options {
    let words = ["nvidia-ctk-installer"].iter().chain(words).map(OsString::from).collect();
    Options::read(words, |_| None).expect("understood")
}

#[test]
fn management_cdi_file_has_host_paths() {
    let host = fake::Host::with_gpu(&["libcuda"]);
    let library = "usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04";
    let devices = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(devices.path().join("dev")).expect("made");
    for (name, minor) in [("nvidia0", 0), ("nvidiactl", 255)] {
        if let Err(error) = fake::node(&devices.path().join("dev").join(name), 0o600, 195, minor) {
            return eprintln!("skipped: device nodes cannot be made here: {error}");
        }
    }
    let here = host.path().display().to_string();
    let output = host.path().join("cdi");
    let flags = [
        format!("--driver-root-ctr-path={here}"),
        "--driver-root=/run/nvidia/driver".into(),
        "--dev-root=/".into(),
        format!("--dev-root-ctr-path={}", devices.path().display()),
        format!("--cdi-output-dir={}", output.display()),
        "--create-device-nodes=none".into(),
    ];
    let options = options(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    cdi::write(Path::new("/usr/local/nvidia/toolkit"), &options).expect("written");
    let spec = file::read(&output.join("management.nvidia.com-gpu.yaml")).expect("a spec");
    assert_eq!(spec.kind, "management.nvidia.com/gpu");
    let names: Vec<_> = spec.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["all"]);
    let nodes: Vec<_> = spec.devices[0].container_edits.device_nodes.iter().map(|node| node.path.as_str()).collect();
    assert!(nodes.contains(&"/dev/nvidia0") && nodes.contains(&"/dev/nvidiactl"), "{nodes:?}");
    for node in &spec.devices[0].container_edits.device_nodes {
        assert!(node.host_path.as_ref().is_none_or(|path| *path == node.path), "{node:?}");
    }
    let edits = &spec.container_edits;
    assert!(edits.mounts.iter().any(|mount| mount.host_path == format!("/run/nvidia/driver/{library}")), "{edits:?}");
    assert!(edits.mounts.iter().all(|mount| mount.host_path.starts_with("/run/nvidia/driver/")), "{edits:?}");
    assert!(edits.hooks.iter().all(|hook| hook.path == "/usr/local/nvidia/toolkit/nvidia-cdi-hook"), "{edits:?}");
}
