//! Facts of a client's GPU. The driver can refuse each control (old release, GPU off the bus, missing rights); the result is then
//! `None`.
//!
//! Source: NVIDIA's open kernel modules 515 to 595: `ctrl2080gpu.h`, `ctrl2080mc.h`, `ctrlc638.h`.

use crate::bytes::read_u32;
use crate::client::Client;
use crate::object::{GPU_INSTANCE, Object, SUBDEVICE};
use std::os::fd::BorrowedFd;

/// `NV2080_CTRL_CMD_GPU_GET_GID_INFO`: index, flags (0: text), length, 256 bytes.
const GPU_UUID: (u32, usize) = (0x2080_014a, 268);
/// `NV2080_CTRL_CMD_MC_GET_ARCH_INFO`: architecture, implementation, revisions.
const ARCHITECTURE: (u32, usize) = (0x2080_1701, 16);
/// `NVC638_CTRL_CMD_GET_UUID`: 16 bytes, and 41 bytes of text.
const COMPUTE_INSTANCE_UUID: (u32, usize) = (0xc638_0101, 57);

impl Client {
    /// The chip: architecture and implementation, as `ctrl2080mc.h` numbers them.
    pub fn chip(&self) -> Option<(u32, u32)> {
        let mut params = vec![0u8; ARCHITECTURE.1];
        self.control("MC_GET_ARCH_INFO", ARCHITECTURE.0, SUBDEVICE, &mut params).ok()?;
        Some((read_u32(&params, 0), read_u32(&params, 4)))
    }

    /// The UUID of a compute instance, as `MIG-…`. The descriptors are the open nodes of the two capabilities.
    pub fn mig_uuid(&self, instances: [u32; 2], access: [BorrowedFd<'_>; 2]) -> Option<String> {
        let uuid = self.alloc(Object::GpuInstance { number: instances[0], access: access[0] }).ok().and_then(|_| {
            let part = self.alloc(Object::ComputeInstance { number: instances[1], access: access[1] }).ok()?;
            let mut params = vec![0u8; COMPUTE_INSTANCE_UUID.1];
            self.control("a compute instance's UUID", COMPUTE_INSTANCE_UUID.0, part, &mut params).ok()?;
            text(&params[16..]).filter(|uuid| uuid.starts_with("MIG-"))
        });
        self.free(SUBDEVICE, GPU_INSTANCE);
        uuid
    }

    /// The GPU's UUID as text, `GPU-…`.
    pub(super) fn uuid(&self) -> Option<String> {
        let mut params = vec![0u8; GPU_UUID.1];
        self.control("GPU_GET_GID_INFO", GPU_UUID.0, SUBDEVICE, &mut params).ok()?;
        text(&params[12..])
    }
}

/// Text up to its 0.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_at_its_zero() {
        assert_eq!(text(b"MIG-1\0rest").as_deref(), Some("MIG-1"));
        assert_eq!(text(b"no end"), None);
        assert_eq!(text(b"\xff\0"), None);
    }
}
