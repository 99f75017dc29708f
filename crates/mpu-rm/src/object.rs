//! The objects that a client allocates. Their parameters have no pointer.
//!
//! Source: `cl0080.h`, `cl2080.h`, `cl0040.h`, `clc637.h` and `clc638.h` of NVIDIA's open kernel modules, 515 to 595.

use crate::bytes::write_u32;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Handles of our own choice; they need to be unique in one client only.
pub(super) const DEVICE: u32 = 0x6d70_0080;
pub(super) const SUBDEVICE: u32 = 0x6d70_2080;
pub(super) const GPU_INSTANCE: u32 = 0x6d70_c637;
const MEMORY: u32 = 0x6d70_0040;
const COMPUTE_INSTANCE: u32 = 0x6d70_c638;
pub(super) const SUBDEVICE_CLASS: u32 = 0x2080;

#[derive(Debug, Clone, Copy)]
pub(super) enum Object<'a> {
    Client,
    Device {
        instance: u32,
    },
    Subdevice,
    VideoMemory {
        bytes: u64,
    },
    /// `access` is the open node of the capability.
    GpuInstance {
        number: u32,
        access: BorrowedFd<'a>,
    },
    ComputeInstance {
        number: u32,
        access: BorrowedFd<'a>,
    },
}

impl Object<'_> {
    /// Class, handle, and the name in errors. The driver chooses a client's handle.
    pub(super) fn class_handle_name(self) -> (u32, u32, &'static str) {
        match self {
            Object::Client => (0, 0, "a new client"),
            Object::Device { .. } => (0x80, DEVICE, "a device object"),
            Object::Subdevice => (SUBDEVICE_CLASS, SUBDEVICE, "a subdevice object"),
            Object::VideoMemory { .. } => (0x40, MEMORY, "a block of video memory"),
            Object::GpuInstance { .. } => (0xc637, GPU_INSTANCE, "a GPU instance"),
            Object::ComputeInstance { .. } => (0xc638, COMPUTE_INSTANCE, "a compute instance"),
        }
    }

    /// The handle of the object that it belongs to.
    pub(super) fn parent(self, client: u32) -> u32 {
        match self {
            Object::Client => 0,
            Object::Device { .. } => client,
            Object::Subdevice | Object::VideoMemory { .. } => DEVICE,
            Object::GpuInstance { .. } => SUBDEVICE,
            Object::ComputeInstance { .. } => GPU_INSTANCE,
        }
    }

    /// The parameters, in a block that is large enough for every release: each release copies only its own size.
    pub(super) fn params(self) -> [u8; 128] {
        let mut params = [0u8; 128];
        match self {
            Object::Client | Object::Subdevice => {}
            Object::Device { instance } => write_u32(&mut params, 0, instance),
            Object::VideoMemory { bytes } => {
                // NV_MEMORY_ALLOCATION_PARAMS: owner @0 (RM refuses 0, and takes any other word), size @64, alignment
                // @72. The attributes left at 0 mean video memory.
                write_u32(&mut params, 0, MEMORY);
                params[64..72].copy_from_slice(&bytes.to_ne_bytes());
                params[72..80].copy_from_slice(&4096u64.to_ne_bytes());
            }
            Object::GpuInstance { number, access } | Object::ComputeInstance { number, access } => {
                // The descriptor is a 64-bit word. It is never negative.
                write_u32(&mut params, 0, access.as_raw_fd() as u32);
                write_u32(&mut params, 8, number);
            }
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{read_u32, read_u64};
    use std::os::fd::AsFd;

    #[test]
    fn parameters_hold_no_pointer() {
        assert_eq!(Object::Client.params(), [0; 128]);
        assert_eq!(Object::Subdevice.params(), [0; 128]);
        assert_eq!(Object::Device { instance: 3 }.params()[4..], [0; 124]);
        let memory = Object::VideoMemory { bytes: 1 << 20 }.params();
        assert_eq!(read_u64(&memory, 64), 1 << 20);
        let rest = (memory[4..64].to_vec(), memory[80..].to_vec());
        assert_eq!(rest, (vec![0; 60], vec![0; 48]), "the CPU address stands at 96");

        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        let params = Object::GpuInstance { number: 5, access: file.as_fd() }.params();
        assert_eq!((read_u32(&params, 0), read_u32(&params, 4), read_u32(&params, 8)), (file.as_raw_fd() as u32, 0, 5));
        assert_eq!(params[12..], [0; 116]);
    }
}
