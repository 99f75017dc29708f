//! The data of an event (`NvUnixEvent`, nvos.h), which `NV_ESC_RM_GET_EVENT_DATA` copies to its caller. It is no RM control, and the same
//! from 515.43.04 to 610.43.03. Source for the notifications with a PID: 615.71.09 (memacct.c, cl2080_notification.h). Up to 610.43.03
//! none has their numbers (`NV2080_NOTIFIERS_MAXCOUNT` is at most 200 there, and no other class has so many).

/// Its size in bytes.
pub const SIZE: usize = 16;
/// Byte offset of `NotifyIndex`, u32.
pub const INDEX: usize = 4;
/// Byte offset of `info32`, u32: for the notifications of [`CARRYING`] the PID of the client over its limit.
pub const PID: usize = 8;
/// The notifications whose `info32` is a PID.
pub const CARRYING: [u32; 2] = [200, 201];
