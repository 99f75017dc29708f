//! Numbers that stand where a PID stands, and are none.

/// A process id that no process has: pids end at 2^22 (`PID_MAX_LIMIT`, include/linux/threads.h). Stands in for a PID that
/// the caller may not ask about. 0 would not do: GET_PID_INFO answers it with an error and an assertion in the kernel log.
pub const PID_OF_NOBODY: u32 = 0x7fff_ffff;

/// What the driver writes for "no process" into a utilisation sample (`NV2080_GPUMON_PID_INVALID`, ctrl2080perf.h).
pub const GPUMON_PID_INVALID: u32 = 0xffff_ffff;
