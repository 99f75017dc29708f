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
    let mut last = None;
    let mut check = || {
        watch::refresh_if_changed(&root, &output, &mut last, || refresh(&root, &output)).map(|done| done.expect("done"))
    };
    assert_eq!(check(), Some(Outcome::Written));
    assert!(text(&output).contains("GPU-00000000-0000-0000-0000-000000000001"));
    assert_eq!(check(), None, "nothing has changed");
    assert_eq!(refresh(&root, &output).expect("the same"), Outcome::Unchanged);

    host.gpu("0000:2c:00.0", 1, "GPU-00000000-0000-0000-0000-000000000002");
    assert_eq!(check(), Some(Outcome::Written));
    assert!(text(&output).contains("GPU-00000000-0000-0000-0000-000000000002"));
    fs::remove_file(&output).expect("removed");
    assert_eq!(check(), Some(Outcome::Written), "the file itself is looked at");
    host.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", "DeviceFileMinor: 3\n");
    assert!(check().is_some(), "a MIG device");
    let firmware = format!("lib/firmware/nvidia/{RELEASE}/gsp_ga10x.bin");
    let manifest = "usr/share/vulkan/icd.d/nvidia_icd.json";
    let debians = "usr/lib/nvidia/current/nvidia-imex-ctl";
    let [socket, program] = ["run/nvidia-persistenced/socket", "usr/bin/nvidia-imex"];
    for later in [socket, "dev/dri/renderD128", program, debians, manifest, &firmware] {
        host.write(later, "");
        assert!(check().is_some(), "{later}");
    }
    assert_eq!(check(), None, "nothing has changed");

    fs::remove_dir_all(host.path().join("proc/driver/nvidia")).expect("unloaded");
    assert_eq!(check(), Some(Outcome::Removed));
    assert!(!output.exists(), "a file that names no device that is there");
    assert_eq!(refresh(&root, &output).expect("nothing"), Outcome::Unchanged);
}

#[test]
fn gpu_added_during_refresh_is_written_in_next_round() {
    let host = host();
    let (root, output) = (host.root(), host.path().join("run/cdi/nvidia.yaml"));
    let mut last = None;
    let late = || {
        let done = refresh(&root, &output);
        host.gpu("0000:2c:00.0", 1, "GPU-00000000-0000-0000-0000-000000000002");
        done
    };
    assert!(matches!(watch::refresh_if_changed(&root, &output, &mut last, late), Some(Ok(Outcome::Written))));
    let next = watch::refresh_if_changed(&root, &output, &mut last, || refresh(&root, &output));
    assert!(matches!(next, Some(Ok(Outcome::Written))), "{next:?}");
    assert!(text(&output).contains("GPU-00000000-0000-0000-0000-000000000002"));
}

#[test]
fn file_of_other_tool_stays_unchanged() {
    let host = host();
    host.write("run/cdi/nvidia.yaml", "cdiVersion: 0.5.0\n");
    let (root, output) = (host.root(), host.path().join("run/cdi/nvidia.yaml"));
    let error = refresh(&root, &output).expect_err("not ours");
    assert!(matches!(error, RefreshError::Foreign(_)), "{error}");
    assert_eq!(remove(&output).expect("nothing"), Outcome::Unchanged);
    fs::remove_dir_all(host.path().join("proc/driver/nvidia")).expect("unloaded");
    assert!(refresh(&root, &output).is_err());
    assert_eq!(text(&output), "cdiVersion: 0.5.0\n");
}
