//! Numbers in place of a PID that belong to no process.

/// A PID that no process has: PIDs end at 2^22 (`PID_MAX_LIMIT`, include/linux/threads.h). It replaces a PID that the caller may not
/// query. GET_PID_INFO answers 0 with an error and an assertion in the kernel log.
pub const PID_WITHOUT_PROCESS: u32 = 0x7fff_ffff;

/// The driver's value for "no process" in a utilisation sample (`NV2080_GPUMON_PID_INVALID`, ctrl2080perf.h).
pub const GPUMON_PID_INVALID: u32 = 0xffff_ffff;
