//! The CDI file follows the driver; other tools' files stay.

use super::*;
use crate::driver::fake::{Host, RELEASE};
use std::fs;

/// A host with a driver, its libraries and one GPU.
fn host() -> Host {
    let host = Host::with_driver(RELEASE);
    host.gpu("0000:1b:00.0", 0, "GPU-00000000-0000-0000-0000-000000000001");
    host.libraries_of_driver(&["libnvidia-ml", "libcuda"]);
    host
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("a file")
}

#[test]
fn file_follows_driver() {
    let host = host();
    let (root, output) = (host.root(), host.path().join("run/cdi/nvidia.yaml"));
    let first = watch::fingerprint(&root, &output);
    assert_eq!(once(&root, &output).expect("written"), Done::Written);
    assert!(text(&output).contains("GPU-00000000-0000-0000-0000-000000000001"));
    assert_ne!(watch::fingerprint(&root, &output), first, "the file itself is looked at");
    assert_eq!(once(&root, &output).expect("the same"), Done::Nothing);

    let before = watch::fingerprint(&root, &output);
    host.gpu("0000:2c:00.0", 1, "GPU-00000000-0000-0000-0000-000000000002");
    assert_ne!(watch::fingerprint(&root, &output), before, "another GPU");
    assert_eq!(once(&root, &output).expect("written"), Done::Written);
    assert!(text(&output).contains("GPU-00000000-0000-0000-0000-000000000002"));

    let before = watch::fingerprint(&root, &output);
    host.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: 3\n");
    assert_ne!(watch::fingerprint(&root, &output), before, "a MIG device");

    let before = watch::fingerprint(&root, &output);
    fs::remove_dir_all(host.path().join("proc/driver/nvidia")).expect("unloaded");
    assert_ne!(watch::fingerprint(&root, &output), before, "no driver");
    assert_eq!(once(&root, &output).expect("removed"), Done::Removed);
    assert!(!output.exists(), "a file that names no device that is there");
    assert_eq!(once(&root, &output).expect("nothing"), Done::Nothing);
}

#[test]
fn another_tools_file_stays() {
    let host = host();
    host.write("run/cdi/nvidia.yaml", "cdiVersion: 0.5.0\n");
    let (root, output) = (host.root(), host.path().join("run/cdi/nvidia.yaml"));
    let error = once(&root, &output).expect_err("not ours");
    assert!(matches!(error, RefreshError::Foreign(_)), "{error}");
    assert_eq!(remove(&output).expect("nothing"), Done::Nothing);
    fs::remove_dir_all(host.path().join("proc/driver/nvidia")).expect("unloaded");
    assert!(once(&root, &output).is_err());
    assert_eq!(text(&output), "cdiVersion: 0.5.0\n");
}
