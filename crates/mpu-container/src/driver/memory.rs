//! Limits of the GPU memory that a cgroup may use.
//!
//! | the driver counts | a limit is |
//! |---|---|
//! | by the kernel's controller `dmem` (Linux 6.14) | in the cgroup's own files, `dmem.max` and `dmem.min` |
//! | by itself, in the cgroups of the controller `misc` | in the driver, asked by a control |
//!
//! Source: NVIDIA, "MPS v3 Memory Partitioning" (what limits mean, sums in ancestors); open kernel modules 615:
//! `ctrl0000unix.h`, `memacct.c`, `os.c` (the region's name), `os-interface.c` (which cgroup of a process counts);
//! Linux, `Documentation/admin-guide/cgroup-v2.rst`, "DMEM".

use super::dmem;
use super::limit::{Above, LimitError, MemoryLimits};
use super::{Driver, Gpu};
use mpu_rm::MemoryBackend;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

impl Driver {
    pub fn limit_memory(&self, gpu: &Gpu, cgroup: &Path, limits: MemoryLimits, above: Above) -> Result<(), LimitError> {
        if gpu.mig_enabled {
            return Err(LimitError::Mig(gpu.uuid.clone()));
        }
        let client = self.client(gpu).ok_or_else(|| LimitError::Silent(gpu.uuid.clone()))?;
        match client.memory_backend() {
            None => Err(LimitError::Release(self.version.clone())),
            Some(MemoryBackend::None) => Err(LimitError::Off),
            Some(MemoryBackend::Dmem) => {
                has(cgroup, "dmem")?;
                let records = (above == Above::Raise).then(|| Path::new(dmem::RECORDS));
                dmem::limit(&region(gpu), cgroup, limits, records)
            }
            Some(MemoryBackend::Driver) => {
                // The driver counts a process in the nearest cgroup that has the controller: a limit below has no effect.
                has(cgroup, "misc")?;
                let unusable = |source| LimitError::File { path: cgroup.to_path_buf(), source };
                let folder = fs::File::open(cgroup).map_err(unusable)?;
                client.set_memory_limits(folder.as_fd(), [limits.soft, limits.hard]).map_err(LimitError::Refused)?;
                match client.memory_limits(folder.as_fd()) {
                    Some(held) if held == [limits.soft, limits.hard] => Ok(()),
                    _ => Err(LimitError::NotHeld),
                }
            }
        }
    }
}

/// The name by which the kernel knows the GPU's memory.
fn region(gpu: &Gpu) -> String {
    format!("nvidia/{}/vidmem", gpu.bus)
}

fn has(cgroup: &Path, controller: &'static str) -> Result<(), LimitError> {
    match cgroup.join(format!("{controller}.max")).exists() {
        true => Ok(()),
        false => Err(LimitError::Controller { cgroup: cgroup.to_path_buf(), controller }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::made_up::Host;

    const REGION: &str = "nvidia/00000000:1B:00.0/vidmem";

    #[test]
    fn a_driver_that_cannot_is_not_believed_to() {
        let host = Host::with_driver("580.159.04");
        host.gpu("0000:1b:00.0", 0, "GPU-aaaaaaaa-0000-0000-0000-000000000000");
        let mut driver = Driver::find(&host.root()).unwrap();
        let limits = MemoryLimits { soft: 1, hard: 2 };
        let refused = |driver: &Driver| {
            driver.limit_memory(&driver.gpus[0], host.path(), limits, Above::Stay).unwrap_err().to_string()
        };
        assert!(refused(&driver).contains("the driver does not answer for GPU GPU-aaaa"), "{}", refused(&driver));
        assert_eq!(region(&driver.gpus[0]), REGION);
        driver.gpus[0].mig_enabled = true;
        assert!(refused(&driver).contains("is divided by MIG"));
    }
}
