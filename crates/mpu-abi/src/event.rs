//! The data of an event (`NvUnixEvent`, nvos.h), which `NV_ESC_RM_GET_EVENT_DATA` copies to its caller: no RM control, and the same from
//! 515.43.04 to 610.43.03. Which notifications carry a PID is known of 615.71.09 (memacct.c, cl2080_notification.h); up to 610.43.03 none has
//! their numbers (`NV2080_NOTIFIERS_MAXCOUNT` is at most 200 there, and no other class has so many).

/// Bytes of it.
pub const SIZE: usize = 16;
/// Byte offset of `NotifyIndex`, u32.
pub const INDEX: usize = 4;
/// Byte offset of `info32`, u32: in the notifications of [`CARRYING`] the PID of the client that is over its limit.
pub const PID: usize = 8;
/// The notifications whose `info32` is a PID.
pub const CARRYING: [u32; 2] = [200, 201];
