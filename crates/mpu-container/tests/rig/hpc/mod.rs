//! Tools that call nvidia-container-cli: Apptainer, LXC, Incus, enroot's hook, jobs of Slurm. The tools are Debian's, the GPUs made up.
//!
//! Each starts a container first without a GPU, then with one. Then come failures of real clusters.

mod apptainer;
mod enroot;
mod incus;
mod lxc;
mod slurm;

use crate::facts::bus;
use crate::host::Host;

/// Prints a container's nodes, nvidia-smi, procfs, libraries by ld.so.cache, and the cgroup's decisions.
const LOOK: &str = "cd /; busybox ls /dev | busybox grep nvidia; nvidia-smi 2>&1
for gpu in $(busybox ls /proc/driver/nvidia/gpus); do echo gpu $gpu; done; busybox grep Modify /proc/driver/nvidia/params
LD_TRACE_LOADED_OBJECTS=1 LD_PRELOAD='libcuda.so.1 libnvidia-ml.so.1' /bin/sh 2>&1 | busybox grep -E 'cuda|nvidia-ml'
for gpu in 0 1; do busybox cat /dev/nvidia$gpu 2>&1; done; true
";

/// Puts [`LOOK`] and an image's root where the tools find them: `/tmp/look`, and `/tmp/img`, which belongs to `owner`.
fn set_up(host: &Host, owner: u32) {
    host.write("/tmp/look", LOOK);
    host.ok(&format!(
        "cp -a /rig/trees/root-glibc /tmp/img; cp /tmp/look /tmp/img/look; chown -R {owner}:{owner} /tmp/img"
    ));
}

/// Asserts that a container has the second of two GPUs, and a driver that works as far as possible without hardware.
fn assert_has_second_gpu(output: &str, what: &str) {
    let proofs = [
        "nvidia-uvm\n",
        "nvidia1\n",
        "nvidiactl\n",
        "communicate with the NVIDIA driver",
        &format!("gpu {}\n", bus(1)),
        "ModifyDeviceFiles: 0\n",
        "libcuda.so.1 => /",
        "libnvidia-ml.so.1 => /",
        "'/dev/nvidia1': No such device or address",
    ];
    for proof in proofs {
        assert!(output.contains(proof), "{what}: no {proof} in {output}");
    }
    assert!(!output.contains(&bus(0)), "{what}: {output}");
}

/// Asserts that a container has nothing of a driver, and sees all GPUs in the kernel's procfs.
fn assert_no_driver(output: &str, what: &str) {
    assert!(
        output.contains("nvidia-smi: not found") && output.contains(&bus(0)) && output.contains(&bus(1)),
        "{what}: {output}"
    );
    assert!(!output.contains("=> /"), "{what}: {output}");
}
