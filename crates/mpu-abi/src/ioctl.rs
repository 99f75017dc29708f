//! The driver's character device interface: request numbers, and the two argument structures that lead to an RM control.
//!
//! Source: `src/nvidia/arch/nvalloc/unix/include/nv_escape.h` and `kernel-open/common/inc/nv-ioctl-numbers.h`, `nv-ioctl.h`,
//! `src/common/sdk/nvidia/inc/nvos.h` (NVOS54_PARAMETERS), unchanged from 390.157 to 595.45.04. The driver checks only number and size of
//! a request, not its type or direction (measured on 580.159.04).

use crate::release::Release;

/// Number of `NV_ESC_RM_CONTROL`; its argument is [`RM_CONTROL_SIZE`] bytes.
pub const NV_ESC_RM_CONTROL: u8 = 0x2a;
/// Number of `NV_ESC_RM_GET_EVENT_DATA`, which copies [`crate::event`]; its argument is [`RM_EVENT_SIZE`] bytes.
pub const NV_ESC_RM_GET_EVENT_DATA: u8 = 0x52;
/// Number of `NV_ESC_IOCTL_XFER_CMD`, which wraps another request; its argument is [`XFER_SIZE`] bytes.
pub const NV_ESC_IOCTL_XFER_CMD: u8 = 211;

/// Bytes of `NVOS54_PARAMETERS`, the argument of `NV_ESC_RM_CONTROL`; the same for 32-bit callers.
pub const RM_CONTROL_SIZE: usize = 32;
/// Bytes of `NVOS41_PARAMETERS`, the argument of `NV_ESC_RM_GET_EVENT_DATA`; the same for 32-bit callers.
pub const RM_EVENT_SIZE: usize = 16;
/// Bytes of `nv_ioctl_xfer_t`, the argument of `NV_ESC_IOCTL_XFER_CMD`.
pub const XFER_SIZE: usize = 16;

/// The bits of a request that the driver checks: number and size.
pub const REQUEST_MASK: u32 = 0x3fff_00ff;
/// The request of an RM control, under [`REQUEST_MASK`] like the next two.
pub const CONTROL: u32 = (RM_CONTROL_SIZE as u32) << 16 | NV_ESC_RM_CONTROL as u32;
/// The request that fetches an event.
pub const EVENT: u32 = (RM_EVENT_SIZE as u32) << 16 | NV_ESC_RM_GET_EVENT_DATA as u32;
/// The request that wraps another.
pub const WRAPPED: u32 = (XFER_SIZE as u32) << 16 | NV_ESC_IOCTL_XFER_CMD as u32;
const _: () = assert!(CONTROL == 0x0020_002a && EVENT == 0x0010_0052 && WRAPPED == 0x0010_00d3);

/// Byte offsets in `NVOS54_PARAMETERS`.
pub mod nvos54 {
    /// `hClient`, u32.
    pub const CLIENT: usize = 0;
    /// `hObject`, u32.
    pub const OBJECT: usize = 4;
    /// `cmd`, u32: the control's number.
    pub const CMD: usize = 8;
    /// `flags`, u32.
    pub const FLAGS: usize = 12;
    /// `params`, u64: address of the control's parameters in the caller.
    pub const PARAMS: usize = 16;
    /// `paramsSize`, u32, bytes.
    pub const PARAMS_SIZE: usize = 24;
    /// `status`, u32, written by the driver; 0 is `NV_OK`.
    pub const STATUS: usize = 28;
}

/// Byte offsets in `NVOS41_PARAMETERS`.
pub mod nvos41 {
    /// `pEvent`, u64: the caller's address for the event.
    pub const EVENT: usize = 0;
    /// `status`, u32, written by the driver; 0 is `NV_OK`.
    pub const STATUS: usize = 12;
}

/// The offset of RM's status in the argument of `NV_ESC_RM_ALLOC`: the 32-byte block ended in a status and padding, and 535 put the
/// parameters' size before the status (`NVOS21_PARAMETERS`).
pub fn alloc_status(release: Release) -> usize {
    if release < Release::new(535, 0, 0) { 24 } else { 28 }
}

/// The head of a request for utilisation samples (`NV2080_CTRL_GPUMON_SAMPLES`, ctrl2080perf.h), in the parameters or behind a pointer.
pub mod gpumon {
    /// Byte offset of `type`, u8.
    pub const KIND: usize = 0;
    /// The kind of the performance monitor.
    pub const PERFORMANCE: u8 = 2;
    /// Byte offset of `bufSize`, u32: the size of the caller's buffer for samples.
    pub const ROOM: usize = 4;
}

/// Byte offsets in `nv_ioctl_xfer_t`.
pub mod xfer {
    /// `cmd`, u32: the wrapped request's bare number.
    pub const CMD: usize = 0;
    /// `size`, u32: bytes of the wrapped argument.
    pub const SIZE: usize = 4;
    /// `ptr`, u64: address of the wrapped argument.
    pub const PTR: usize = 8;
}
