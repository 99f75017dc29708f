//! Limits of a cgroup's GPU memory. The driver enforces them from release 615 on.
//!
//! Source: NVIDIA's open kernel modules 615: `ctrl0000unix.h`, `ctrl2080gpu.h`.

use crate::bytes::{read_u32, read_u64, write_u32};
use crate::client::Client;
use crate::error::RmError;
use crate::object::SUBDEVICE;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `NV2080_CTRL_CMD_GPU_GET_ID`: the number by which controls of the client name a GPU.
const GPU_ID: (u32, usize) = (0x2080_0142, 4);
/// `NV0000_CTRL_OS_UNIX_CMD_MEMACCT_SET_LIMITS`: a cgroup's descriptor, a GPU's number, two limits of 64 bits.
const SET_LIMITS: (u32, usize) = (0x3d0d, 24);
/// `NV0000_CTRL_OS_UNIX_CMD_MEMACCT_GET_LIMITS`: a cgroup's descriptor, a count, and for each of 32 GPUs its number,
/// padding, two limits and the memory in use.
const GET_LIMITS: (u32, usize) = (0x3d0e, 8 + 32 * ENTRY_SIZE);
const ENTRY_SIZE: usize = 32;
/// `NV0000_CTRL_OS_UNIX_CMD_MEMACCT_GET_IMPL`: which component counts memory.
const BACKEND: (u32, usize) = (0x3d0f, 4);

/// The component that counts a cgroup's GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBackend {
    None,
    Driver,
    /// The kernel's controller `dmem`.
    Dmem,
}

impl Client {
    /// None if the release does not have this control.
    pub fn memory_backend(&self) -> Option<MemoryBackend> {
        let mut params = vec![0u8; BACKEND.1];
        self.control("MEMACCT_GET_IMPL", BACKEND.0, self.client, &mut params).ok()?;
        match read_u32(&params, 0) {
            1 => Some(MemoryBackend::Driver),
            2 => Some(MemoryBackend::Dmem),
            _ => Some(MemoryBackend::None),
        }
    }

    /// Limits the memory of a cgroup, given by its open directory, on this client's GPU: soft and hard, in bytes.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn set_memory_limits(&self, cgroup: BorrowedFd<'_>, limits: [u64; 2]) -> Result<(), RmError> {
        let gpu = self.gpu_id()?;
        self.control("MEMACCT_SET_LIMITS", SET_LIMITS.0, self.client, &mut limit_params(cgroup, gpu, limits))
    }

    /// Limits of a cgroup, its own or those of its nearest limited ancestor: soft and hard, in bytes.
    pub fn memory_limits(&self, cgroup: BorrowedFd<'_>) -> Option<[u64; 2]> {
        let gpu = self.gpu_id().ok()?;
        let mut params = vec![0u8; GET_LIMITS.1];
        write_u32(&mut params, 0, cgroup.as_raw_fd() as u32);
        self.control("MEMACCT_GET_LIMITS", GET_LIMITS.0, self.client, &mut params).ok()?;
        limits_of(&params, gpu)
    }

    fn gpu_id(&self) -> Result<u32, RmError> {
        let mut params = vec![0u8; GPU_ID.1];
        self.control("GPU_GET_ID", GPU_ID.0, SUBDEVICE, &mut params)?;
        Ok(read_u32(&params, 0))
    }
}

fn limit_params(cgroup: BorrowedFd<'_>, gpu: u32, limits: [u64; 2]) -> Vec<u8> {
    let mut params = vec![0u8; SET_LIMITS.1];
    write_u32(&mut params, 0, cgroup.as_raw_fd() as u32);
    write_u32(&mut params, 4, gpu);
    for (at, limit) in [(8, limits[0]), (16, limits[1])] {
        params[at..at + 8].copy_from_slice(&limit.to_ne_bytes());
    }
    params
}

/// A GPU's limits in an answer. A count beyond the end of `params` is cut.
fn limits_of(params: &[u8], gpu: u32) -> Option<[u64; 2]> {
    let count = read_u32(params, 4) as usize;
    let mut entries = params[8..].chunks_exact(ENTRY_SIZE).take(count);
    let entry = entries.find(|entry| read_u32(entry, 0) == gpu)?;
    Some([read_u64(entry, 8), read_u64(entry, 16)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn limits_travel_as_driver_reads_them() {
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        let request = limit_params(file.as_fd(), 0x1b00, [1 << 32, u64::MAX]);
        assert_eq!((read_u32(&request, 0), read_u32(&request, 4)), (file.as_raw_fd() as u32, 0x1b00));
        assert_eq!((read_u64(&request, 8), read_u64(&request, 16)), (1 << 32, u64::MAX));
        let mut answer = vec![0u8; GET_LIMITS.1];
        for (number, gpu) in [0x4300u32, 0x1b00].into_iter().enumerate() {
            let at = 8 + number * ENTRY_SIZE;
            write_u32(&mut answer, at, gpu);
            answer[at + 8..at + 24].copy_from_slice(&request[8..]);
        }
        let limits_found = Some([1 << 32, u64::MAX]);
        for (count, found) in [(0, None), (1, None), (2, limits_found), (u32::MAX, limits_found)] {
            write_u32(&mut answer, 4, count);
            assert_eq!(limits_of(&answer, 0x1b00), found, "{count}");
        }
    }
}
