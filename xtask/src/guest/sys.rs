//! Reads the time-stamp counter of this machine, which is also that of its emulated x86 processors (QEMU, `cpu_get_host_ticks`).
#![allow(unsafe_code)]

/// The counter's value.
#[cfg(target_arch = "x86_64")]
pub fn tsc() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it unless they forbid it to themselves.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

/// Other processors have none.
#[cfg(not(target_arch = "x86_64"))]
pub fn tsc() -> Option<u64> {
    None
}
