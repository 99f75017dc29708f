//! NVML calls without a safe wrapper: the first version of three lists and of the memory figures, and the instance
//! numbers of a MIG device. Releases before 450 (lists) and 510 (memory) have only the first versions.
#![allow(unsafe_code)]

use super::snapshot::Mig;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try, nvml_try_count};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlMemory_t, nvmlProcessInfo_v1_t};

#[derive(Clone, Copy)]
pub enum List {
    Compute,
    Graphics,
    /// Processes that compute through the Multi-Process Service.
    Mps,
}

/// Room for processes that start between the two calls for a list.
const HEADROOM: u32 = 8;

/// A process list by version 1 of its function: PIDs and memory.
pub fn processes_v1(nvml: &Nvml, device: &Device, list: List) -> Result<Vec<ProcessInfo>, NvmlError> {
    let lib = nvml.lib();
    let function = nvml_sym(
        match list {
            List::Compute => &lib.nvmlDeviceGetComputeRunningProcesses,
            List::Graphics => &lib.nvmlDeviceGetGraphicsRunningProcesses,
            List::Mps => &lib.nvmlDeviceGetMPSComputeRunningProcesses,
        }
        .as_ref(),
    )?;
    // SAFETY: the handle is used while `device`, and with it the library, is borrowed.
    let handle = unsafe { device.handle() };
    let mut count = 0;
    // SAFETY: NVML writes the length to `count`; a null list is allowed when the length given is 0.
    nvml_try_count(unsafe { function(handle, &mut count, std::ptr::null_mut()) })?;
    if count == 0 {
        return Ok(Vec::new());
    }
    count = count.saturating_add(HEADROOM);
    let mut rows = vec![nvmlProcessInfo_v1_t { pid: 0, usedGpuMemory: 0 }; count as usize];
    // SAFETY: `rows` has as many rows as `count` says, and NVML fills no more.
    nvml_try(unsafe { function(handle, &mut count, rows.as_mut_ptr()) })?;
    rows.truncate(count as usize);
    let info = |row: nvmlProcessInfo_v1_t| ProcessInfo {
        pid: row.pid,
        used_gpu_memory: UsedGpuMemory::from(row.usedGpuMemory),
        gpu_instance_id: None,
        compute_instance_id: None,
    };
    Ok(rows.into_iter().map(info).collect())
}

/// Total and used bytes by version 1 of the function.
pub fn memory_v1(nvml: &Nvml, device: &Device) -> Result<(u64, u64), NvmlError> {
    let function = nvml_sym(nvml.lib().nvmlDeviceGetMemoryInfo.as_ref())?;
    // SAFETY: the handle is used while `device` is borrowed.
    let handle = unsafe { device.handle() };
    let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
    // SAFETY: NVML fills the one structure that this version of the function is declared with.
    nvml_try(unsafe { function(handle, &mut memory) })?;
    Ok((memory.total, memory.used))
}

/// The numbers of a MIG device.
pub fn instance(nvml: &Nvml, device: &Device) -> Result<Mig, NvmlError> {
    let of_gpu = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
    let of_compute = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
    // SAFETY: the handle is used while `device` is borrowed.
    let handle = unsafe { device.handle() };
    let (mut gpu_instance, mut compute_instance) = (0, 0);
    // SAFETY: NVML writes one number.
    nvml_try(unsafe { of_gpu(handle, &mut gpu_instance) })?;
    // SAFETY: NVML writes one number.
    let result = nvml_try(unsafe { of_compute(handle, &mut compute_instance) });
    Ok(Mig { gpu_instance, compute_instance: result.is_ok().then_some(compute_instance) })
}
