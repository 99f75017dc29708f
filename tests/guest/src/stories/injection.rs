//! Containers that get their GPU from mpu-container, and a right view of it from an engine.

use crate::injected::InjectedContainer;
use crate::injected::InstalledDriver;
use crate::stories::common::*;

pub const STORIES: &[Story] = &[story!(wrapper_injected_gpu_lists_own_processes, [1, 3];
        "A root without any file of NVIDIA's is started through `nvidia-container-runtime` by crun (CDI edits) and \
        runc (prestart hook): nvidia-smi is there, and lists own processes only.")
.real(Real::Client)
.eras(&[0, 4], "what a container is given does not follow the era: played in 0 and 4")
.wrong("the query shows")];

fn wrapper_injected_gpu_lists_own_processes(stage: &Stage) -> Result<(), Fault> {
    let _installed = InstalledDriver::new(&stage.client)?;
    let _foreign = Holder::on_host(&["--mem", "300"])?;
    let bare = InjectedContainer::start_without("crun", "bare")?;
    check!(bare.run(&["nvidia-smi", "-L"])?.status != 0, "nvidia-smi is there although nothing put it there");
    check!(bare.run(&["ls", "/dev/nvidiactl"])?.status != 0, "the device is there although nothing put it there");
    drop(bare);
    for (runtime, mode) in [("crun", "jit-cdi"), ("runc", "legacy")] {
        check_container_view(runtime, mode)?;
    }
    Ok(())
}

fn check_container_view(runtime: &'static str, mode: &str) -> Result<(), Fault> {
    let container = InjectedContainer::start(runtime, "injected", mode)?;
    let first = container.hold(&["--mem", "40", "--clients", "2"])?;
    let second = container.hold(&["--mem", "43"])?;
    check_pids(
        &format!("{mode} by {runtime}: the query shows"),
        &container.compute_apps()?,
        &sorted([first.view_pid, second.view_pid]),
    )?;
    let params = container.run(&["/bin/busybox", "cat", "/proc/driver/nvidia/params"])?;
    check!(
        params.out.contains("ModifyDeviceFiles: 0"),
        "{mode} by {runtime}: the container may make device nodes: {}",
        params.out.trim()
    );
    Ok(())
}
