//! The baseline of the other tests: without our programs, no container has a GPU.

use crate::container::Container;
use crate::host::{Driver, Host, R535, R550};

/// Prints a container's nodes, libraries by ld.so.cache, and nvidia-smi.
pub const LOOK: &str = "busybox ls /dev | busybox grep nvidia; command -v nvidia-smi && nvidia-smi; \
    LD_TRACE_LOADED_OBJECTS=1 LD_PRELOAD='libcuda.so.1 libnvidia-ml.so.1' /bin/sh; busybox ls /proc/driver";

#[test]
fn fake_host_has_driver_without_gpu() {
    for (release, gpus) in [(R550, 8), (R535, 1)] {
        let Some(host) = Host::start(Driver::Release(release, gpus)) else { return };
        let cached = host.ok("ldconfig -p");
        assert!(cached.contains("libcuda.so.1 "), "{cached}");
        assert_eq!(host.ok("ls /proc/driver/nvidia/gpus | wc -l").trim(), gpus.to_string());
        assert!(host.ok("cat /proc/driver/nvidia/version").contains(release));
        assert!(host.ok("grep nvidia-uvm /proc/devices").starts_with("235"));
        // The library is found and opens the node, but there is no driver behind it.
        let smi = host.sh("nvidia-smi");
        let output = String::from_utf8_lossy(&smi.stdout).into_owned();
        assert!(!smi.status.success() && output.contains("communicate with the NVIDIA driver"), "{output}");
        let changes = host.changes();
        assert!(changes.iter().all(|change| change.contains("usr/bin/") || change.ends_with('/')), "{changes:?}");
    }
}

#[test]
fn host_without_driver_has_none() {
    let Some(host) = Host::start(Driver::None) else { return };
    assert_eq!(host.ok("ls -d /dev/nvidia* /proc/driver/nvidia /usr/bin/nvidia-smi 2>/dev/null || true"), "");
    assert!(!host.ok("ldconfig -p").contains("libcuda"));
}

#[test]
fn container_has_no_gpu_by_itself() {
    let Some(host) = Host::start(Driver::Release(R550, 2)) else { return };
    for runtime in ["runc", "crun"] {
        for image in ["glibc", "split", "musl"] {
            let container = Container::new(&host, image, &["/bin/sh", "-c", LOOK]).env(&["NVIDIA_VISIBLE_DEVICES=all"]);
            let result = container.run(runtime);
            assert!(result.ok, "{runtime} {image}: {}{}", result.out, result.err);
            // The last line is the procfs folder, which every container of a host with a driver sees.
            let output =
                result.out.strip_suffix("nvidia\n").unwrap_or_else(|| panic!("{runtime} {image}: {}", result.out));
            assert!(!output.contains("nvidia") && !output.contains("cuda"), "{runtime} {image}: {output}");
            assert_eq!(result.config, container.config, "{runtime} {image}");
            assert_eq!(container.changes(), [""; 0], "{runtime} {image}");
        }
    }
}

/// A development tool: runs the shell script `$RIG_SCRIPT` in a host with two GPUs. `$RIG_TOOLS` can select a tree of tools.
#[test]
#[ignore = "no claim, a tool"]
fn script() {
    let tools = std::env::var("RIG_TOOLS").ok().map(|tools| Driver::Tools(tools.leak(), 2));
    let Some(host) = Host::start(tools.unwrap_or(Driver::Release(R550, 2))) else { return };
    let done = host.sh(&std::env::var("RIG_SCRIPT").expect("RIG_SCRIPT"));
    println!("{}{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr), done.status);
    println!("{:#?}", host.changes());
}
