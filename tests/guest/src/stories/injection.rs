//! Containers that get their GPU from our own stack, and their right view of it from an engine.

use crate::injected::{Injected, Installed};
use crate::right;
use crate::scene::sorted;
use crate::stories::common::{exactly, once};
use crate::story::{Engines, Fault, Story, Without};

/// nvidia-smi and its library, put in by the wrapper with the devices, list the container's own processes and no other.
pub const OWN_STACK: Story = Story {
    name: "gpu_put_in_by_our_wrapper_is_seen_right",
    engines: Engines::Every,
    without: |stage| match stage.era {
        0 | 4 => once(stage, Without::Wrong("the query shows")),
        _ => Without::Moot("what a container is given does not follow the era: played in 0 and 4"),
    },
    run: |stage| {
        let _installed = Installed::new(&stage.client)?;
        let _foreign = stage.hold(&["--mem", "300"])?;
        let bare = Injected::start_without("crun", "bare")?;
        right!(bare.run(&["nvidia-smi", "-L"])?.status != 0, "nvidia-smi is there although nothing put it there");
        right!(bare.run(&["ls", "/dev/nvidiactl"])?.status != 0, "the device is there although nothing put it there");
        drop(bare);
        for (runtime, mode) in [("crun", "jit-cdi"), ("runc", "legacy")] {
            seen_right(runtime, mode)?;
        }
        Ok(())
    },
};

fn seen_right(runtime: &'static str, mode: &str) -> Result<(), Fault> {
    let container = Injected::start(runtime, "injected", mode)?;
    let first = container.hold(&["--mem", "40", "--clients", "2"])?;
    let second = container.hold(&["--mem", "43"])?;
    exactly(
        &format!("{mode} by {runtime}: the query shows"),
        &container.compute_apps()?,
        &sorted([first.inside, second.inside]),
    )?;
    let params = container.run(&["/bin/busybox", "cat", "/proc/driver/nvidia/params"])?;
    right!(
        params.out.contains("ModifyDeviceFiles: 0"),
        "{mode} by {runtime}: the container may make device nodes: {}",
        params.out.trim()
    );
    Ok(())
}
