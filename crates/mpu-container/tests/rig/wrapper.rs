//! The wrapper with runc and crun in each of its modes. A container that requests a GPU gets it with the driver's files; others stay
//! unchanged.

use crate::container::{Container, RunResult};
use crate::facts;
use crate::host::{Driver, Host, R535, R550};

/// The wrapper by NVIDIA's name in PATH.
pub const WRAPPER: &str = "nvidia-container-runtime";

/// The modes in which a host without Tegra injects.
pub const MODES: [&str; 3] = ["jit-cdi", "cdi", "legacy"];

/// Facts of a container's GPU, a line each: nodes with numbers and modes, whether they open, libraries by ld.so.cache, nvidia-smi,
/// procfs's setting for device files.
const LOOK: &str = "for node in /dev/nvidia*; do [ -c $node ] && busybox stat -c '%n %t:%T %a' $node; done
busybox mknod /dev/other c 195 1 && busybox cat /dev/other 2>&1; busybox cat /dev/nvidia0 2>&1; busybox cat /dev/nvidiactl 2>&1
LD_TRACE_LOADED_OBJECTS=1 LD_PRELOAD='libcuda.so.1 libnvidia-ml.so.1' /bin/sh 2>&1 | busybox grep nvidia-ml
LD_TRACE_LOADED_OBJECTS=1 LD_PRELOAD='libcuda.so.1 libnvidia-ml.so.1' /bin/sh 2>&1 | busybox grep libcuda
nvidia-smi 2>&1; busybox grep Modify /proc/driver/nvidia/params; busybox ls /proc/driver/nvidia/gpus";

/// Writes the wrapper's configuration with this mode and low-level runtime.
pub fn configure(host: &Host, mode: &str, low: &str) {
    let text = format!("[nvidia-container-runtime]\nmode = \"{mode}\"\nruntimes = [\"{low}\"]\n");
    host.write("/etc/nvidia-container-runtime/config.toml", &text);
    if mode == "cdi" {
        host.ok("mkdir -p /run/cdi; nvidia-ctk cdi generate --output /run/cdi/nvidia.yaml");
    }
}

/// A container that prints these facts and requests these GPUs.
pub fn look<'a>(host: &'a Host, image: &str, devices: &str) -> Container<'a> {
    Container::new(host, image, &["/bin/sh", "-c", LOOK]).env(&[&format!("NVIDIA_VISIBLE_DEVICES={devices}")])
}

/// The GPUs whose nodes a container has.
pub fn gpus(result: &RunResult) -> Vec<&str> {
    let nodes = result.out.lines().filter_map(|line| line.strip_prefix("/dev/nvidia")?.split(' ').next());
    nodes.filter(|name| name.parse::<u32>().is_ok()).collect()
}

/// Whether docs/container/left-in-images.md lists a change of an image's root.
fn is_documented_change(change: &str) -> bool {
    let (path, kind) = match change.split_once(" -> ") {
        Some((path, target)) if !target.starts_with('/') && !target.trim_start_matches("../").contains('/') => {
            (path, "link")
        }
        Some(_) => return false,
        None if change.ends_with('/') => (change, "folder"),
        None => match change.rsplit_once(' ') {
            Some((path, "0")) => (path, "empty"),
            Some((_, "removed")) => return false,
            Some((path, _)) => (path, "file"),
            None => return false,
        },
    };
    let rows = include_str!("../../../../docs/container/left-in-images.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let mut rows = rows.filter_map(|row| row.split_once("` | ")).map(|(what, rest)| (what, rest.split(' ').next()));
    rows.any(|(what, of)| of == Some(kind) && matches(what, path))
}

/// Whether a path matches a pattern in which `*` matches anything.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == path,
        Some((start, rest)) => path.strip_prefix(start).is_some_and(|left| {
            (0..=left.len()).filter(|at| left.is_char_boundary(*at)).any(|at| matches(rest, &left[at..]))
        }),
    }
}

#[test]
fn left_files_table_rejects_other_changes() {
    for change in [
        "etc/passwd 12",
        "usr/bin/sh 0",
        "usr/lib/libc.so.6 -> /etc/shadow",
        "root/.profile 5",
        "usr/lib/libcuda.so.1 400",
    ] {
        assert!(!is_documented_change(change), "{change}");
    }
    for change in
        ["usr/lib64/libcuda.so.1 -> libcuda.so.550.163.01", "usr/bin/nvidia-smi 0", "etc/ld.so.cache 12", "proc/"]
    {
        assert!(is_documented_change(change), "{change}");
    }
}

#[test]
fn container_gets_requested_gpu() {
    for (release, gpus_there) in [(R550, 2), (R535, 1)] {
        let Some(host) = Host::start(Driver::Release(release, gpus_there)) else { return };
        for (mode, low, image) in MODES.iter().flat_map(|mode| {
            let images = ["runc", "crun"].into_iter().flat_map(|low| ["glibc", "split"].map(|image| (low, image)));
            images.map(move |(low, image)| (*mode, low, image))
        }) {
            let what = format!("{release} {mode} {low} {image}");
            configure(&host, mode, low);
            let before = host.changes();
            let container = look(&host, image, "0");
            let result = container.run(WRAPPER);
            let all = format!("{what}: {}{}", result.out, result.err);
            assert!(result.ok, "{all}");
            for line in [
                "/dev/nvidia0 c3:0 666",
                "/dev/nvidiactl c3:ff 666",
                "/dev/nvidia-uvm eb:0 666",
                "/dev/nvidia-uvm-tools eb:1 666",
            ] {
                assert!(result.out.lines().any(|found| found == line), "no {line} in {all}");
            }
            assert_eq!(gpus(&result), ["0"], "{all}");
            // The device cgroup permits the requested node, which has no driver behind it, and denies the other GPU's number.
            for node in ["nvidia0", "nvidiactl"] {
                assert!(result.out.contains(&format!("'/dev/{node}': No such device or address")), "{all}");
            }
            assert!(result.out.contains("'/dev/other': Operation not permitted"), "{all}");
            for library in ["libnvidia-ml.so.1 => /", "libcuda.so.1 => /"] {
                assert!(result.out.contains(library), "no {library} in {all}");
            }
            assert!(result.out.contains("communicate with the NVIDIA driver"), "{all}");
            assert!(result.out.contains("ModifyDeviceFiles: 0"), "{all}");
            let left = container.changes();
            assert!(left.iter().all(|change| is_documented_change(change)), "{what}: {left:#?}");
            assert_eq!(host.changes(), before, "{what}");
        }
    }
}

#[test]
fn visible_devices_values_select_gpus() {
    let Some(host) = Host::start(Driver::Release(R550, 8)) else { return };
    let third = facts::uuid(3);
    let words: [(&str, &[&str]); 6] = [
        ("all", &["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("5,2", &["2", "5"]),
        (&third, &["3"]),
        ("none", &[]),
        ("void", &[]),
        ("", &[]),
    ];
    for mode in MODES {
        configure(&host, mode, "runc");
        for (word, expected) in words {
            // A CDI file has no device of that name, as with NVIDIA's toolkit.
            if (mode, word) == ("cdi", "none") {
                continue;
            }
            let container = look(&host, "glibc", word);
            let result = container.run(WRAPPER);
            let all = format!("{mode} '{word}': {}{}", result.out, result.err);
            assert!(result.ok, "{all}");
            assert_eq!(gpus(&result), expected, "{all}");
            // `none` brings the driver without a GPU; `void` and an empty value request nothing.
            let is_requested = !["void", ""].contains(&word);
            assert_eq!(result.out.contains("libcuda.so.1 => /"), is_requested, "{all}");
            if !is_requested {
                assert_eq!(result.config, container.config, "{all}");
                assert_eq!(container.changes(), [""; 0], "{all}");
            }
        }
        let result = look(&host, "glibc", "8").run(WRAPPER);
        assert!(
            !result.ok && result.out.is_empty() && result.err.contains('8'),
            "{mode}: {}{}",
            result.out,
            result.err
        );
    }
}

#[test]
fn device_rules_are_in_specification() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    for mode in ["jit-cdi", "cdi"] {
        configure(&host, mode, "runc");
        let result = look(&host, "glibc", "1").run(WRAPPER);
        assert!(result.ok, "{}", result.err);
        // The specification has the rules, so that a reload of systemd's units keeps them.
        let rules = result.config["linux"]["resources"]["devices"].as_array().expect("rules");
        let allows = |major: u32, minor: u32| {
            rules.iter().any(|rule| {
                rule["allow"] == true && rule["major"] == major && rule["minor"] == minor && rule["access"] == "rwm"
            })
        };
        assert!(
            allows(195, 1) && allows(195, 255) && allows(facts::UVM_MAJOR, 0) && !allows(195, 0),
            "{mode}: {rules:?}"
        );
    }
}

#[test]
fn image_needs_no_glibc_and_no_shell() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    for mode in MODES {
        configure(&host, mode, "runc");
        let before = host.changes();
        for (image, busybox) in [("musl", "/usr/bin/busybox"), ("static", "/busybox")] {
            let ls = [busybox, "ls", "-1", "/dev", "/usr/bin", "/usr/lib64", "/usr/lib/x86_64-linux-gnu"];
            let plain = Container::new(&host, image, &ls).run(WRAPPER);
            assert!(!plain.out.contains("nvidia"), "{mode} {image}: {}", plain.out);
            let container = Container::new(&host, image, &ls).env(&["NVIDIA_VISIBLE_DEVICES=all"]);
            let result = container.run(WRAPPER);
            for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-smi", "libcuda.so.550.163.01", "libnvidia-ml.so.1"]
            {
                let found = result.out.lines().any(|line| line == name);
                assert!(found, "no {name}: {mode} {image}: {}{}", result.out, result.err);
            }
            let left = container.changes();
            assert!(left.iter().all(|change| is_documented_change(change)), "{mode} {image}: {left:#?}");
            assert_eq!(host.changes(), before, "{mode} {image}");
        }
    }
}
