//! Slurm (Debian's): the GPUs that slurmd detects in a container, and a job in a cgroup of Slurm's.
//!
//! Source: gres.conf(5), cgroup.conf(5); the programs themselves. slurmd also reads each GPU's nearby processors, from the driver's folder
//! below /sys/bus/pci, which is made up like the rest.

use super::{assert_has_second_gpu, enroot, set_up};
use crate::container::Container;
use crate::host::{Driver, Host};
use crate::wrapper::{WRAPPER, configure};

const PCI: &str = "mount -t tmpfs bus /sys/bus; for gpu in /proc/driver/nvidia/gpus/*; do
    mkdir -p /sys/bus/pci/drivers/nvidia/${gpu##*/}; echo 0-1 > /sys/bus/pci/drivers/nvidia/${gpu##*/}/local_cpulist; done";

/// A cluster with only this host. Its name is in its cgroups' names.
fn start() -> Option<Host> {
    let host = Host::start(Driver::Tools("hpc", 2))?;
    set_up(&host, 0);
    let node = format!("rig-{}-slurm", host.init());
    host.write("/etc/hosts", &format!("127.0.0.1 localhost {node}\n"));
    host.write("/etc/slurm/gres.conf", "AutoDetect=nvidia\n");
    host.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n");
    host.write(
        "/etc/slurm/slurm.conf",
        &format!(
            "ClusterName=rig\nSlurmctldHost={node}(127.0.0.1)\nSlurmUser=root\nAuthType=auth/slurm\nCredType=cred/slurm\nMpiDefault=none\n\
             ProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup\nSlurmctldPidFile=/run/slurmctld.pid\nSlurmdPidFile=/run/slurmd.pid\n\
             SlurmdSpoolDir=/var/lib/slurmd\nStateSaveLocation=/var/lib/slurmctld\nSlurmctldLogFile=/tmp/slurmctld.log\n\
             SlurmdLogFile=/tmp/slurmd.log\nReturnToService=2\nGresTypes=gpu\nSlurmdParameters=config_overrides\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             NodeName={node} NodeAddr=127.0.0.1 CPUs=2 Gres=gpu:2 State=UNKNOWN\nPartitionName=all Nodes=ALL Default=YES State=UP\n"
        ),
    );
    // An address besides the loopback's: without one, no service's port is looked up.
    host.ok(&format!(
        "head -c 1024 /dev/urandom > /etc/slurm/slurm.key; chmod 600 /etc/slurm/slurm.key; mkdir -p /var/lib/slurmd /var/lib/slurmctld
         busybox hostname {node}; ip addr add 10.9.9.9/32 dev lo; {PCI}"
    ));
    Some(host)
}

/// The nodes of the GPUs that slurmd detects, as `slurmd -G` prints them.
fn detected(output: &str) -> Vec<&str> {
    output.lines().filter_map(|line| line.split("File=").nth(1)?.split(' ').next()).collect()
}

#[test]
fn slurmd_in_container_detects_its_gpus() {
    let Some(host) = start() else { return };
    assert_eq!(detected(&host.ok("slurmd -G 2>&1")), ["/dev/nvidia0", "/dev/nvidia1"]);
    for mode in ["jit-cdi", "cdi", "legacy"] {
        configure(&host, mode, "runc");
        for (devices, expected) in [("1", &["/dev/nvidia1"][..]), ("all", &["/dev/nvidia0", "/dev/nvidia1"])] {
            let mut container = Container::new(&host, "glibc", &["/bin/sh", "-c", "slurmd -G 2>&1"]);
            container = container.env(&[&format!("NVIDIA_VISIBLE_DEVICES={devices}")]);
            // The container has a slurmd of its own: its tree is the host's.
            let root = format!("{}/rootfs", container.folder());
            host.ok(&format!("umount {root}; mkdir -p /rig/upper-{mode}-{devices} /rig/work-{mode}-{devices}; mount -t overlay -o \
                 lowerdir=/rig/trees/host-hpc:/rig/trees/root-glibc,upperdir=/rig/upper-{mode}-{devices},workdir=/rig/work-{mode}-{devices} \
                 image {root}; cp -a /etc/slurm {root}/etc/; mkdir -p {root}/var/lib/slurmd"));
            let pci = serde_json::json!({ "source": "/sys/bus", "destination": "/sys/bus", "type": "bind", "options": ["rbind"] });
            container.config["mounts"].as_array_mut().expect("a list").push(pci);
            container.config["hostname"] = format!("rig-{}-slurm", host.init()).into();
            let result = container.run(WRAPPER);
            assert_eq!(detected(&result.out), expected, "{mode}: {}{}", result.out, result.err);
        }
    }
}

#[test]
fn slurm_job_container_gets_job_gpu() {
    let Some(host) = start() else { return };
    if !host.ok("cat /proc/self/cgroup").contains(":devices:") {
        return println!("skipped: Slurm's cgroups of version 2 need systemd");
    }
    host.ok("slurmctld; slurmd; for i in $(seq 50); do sinfo | grep -q idle && exit; sleep 0.1; done; cat /tmp/slurm*.log; exit 1");
    // One job holds the first GPU, so that the other's is the second.
    host.ok("srun --gres=gpu:1 sleep 50 > /dev/null 2>&1 & for i in $(seq 50); do squeue -h -t R | grep -q . && exit; sleep 0.1; done; exit 1");
    let job = |script: &str| {
        host.write("/tmp/job", script);
        let done = host.sh("timeout 20 srun --gres=gpu:1 sh /tmp/job 2>&1");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let output = job("nvidia-container-cli list --device all | grep 'nvidia[0-9]'; cat /dev/nvidia0 2>&1; true");
    assert_eq!(output, "/dev/nvidia1\ncat: /dev/nvidia0: Operation not permitted\n");
    // By the GPU's index in the job, as NVML counts there, and `all`.
    for devices in ["0", "all"] {
        let output = job(&enroot::script(&[&format!("NVIDIA_VISIBLE_DEVICES={devices}")]));
        assert_has_second_gpu(&output, devices);
        assert!(output.contains("'/dev/nvidia0': Operation not permitted"), "{output}");
    }
    // Slurm removes a job's cgroups when the job has ended.
    host.ok("scancel -u root; for i in $(seq 50); do squeue -h | grep -q . || break; sleep 0.1; done
         kill $(cat /run/slurmd.pid /run/slurmctld.pid); sleep 0.5");
}
