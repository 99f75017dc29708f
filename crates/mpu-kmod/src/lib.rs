//! The C interface of mpu-core for the kernel module: a few functions over plain bytes, and three callbacks into the kernel.
//!
//! kmod/mpu_core.h declares the same in C; the test `header` compares the two. Each function turns raw pointers into slices and references,
//! and calls mpu-core. It never allocates, panics or sleeps. The callers in kmod/ must keep to each function's `# Safety`.
#![cfg_attr(not(test), no_std)]

#[cfg(test)]
mod header;

use core::ffi::{c_char, c_void};
use core::slice;
use mpu_abi::{Control, ControlCmd};
use mpu_core::policy::{Sees, Table};
use mpu_core::{Argument, Call, Copied, HostPid, Outcome, PidMap, Reason, ViewPid};

/// `MPU_CALL_BYTES` of kmod/mpu_core.h: the storage that C provides for a [`Call`].
const CALL_BYTES: usize = 96;
const _: () = assert!(size_of::<Call>() <= CALL_BYTES && align_of::<Call>() <= 8);
/// `MPU_POLICY_BYTES` of kmod/mpu_core.h: the storage that C provides for a [`Table`].
const POLICY_BYTES: usize = 516;
const _: () = assert!(size_of::<Table>() <= POLICY_BYTES && align_of::<Table>() <= 4);
/// `MPU_COUNTERS` of kmod/mpu_core.h: the most counters; first those of controls, then those of reasons.
const COUNTERS: usize = 32;
const _: () = assert!(Control::ALL.len() + Reason::ALL.len() <= COUNTERS);

/// `MPU_TRANSLATES` of kmod/mpu_core.h: MPU translates this call, so the driver's helpers must not.
const TRANSLATES: u32 = 1;
/// `MPU_SAMPLES` of kmod/mpu_core.h: the driver would look up processes by references that it may have dropped.
const SAMPLES: u32 = 2;
/// `MPU_HIDES_DEAD` of kmod/mpu_core.h: the driver hides records of ended processes outside the init namespace, and must
/// continue to.
const HIDES_DEAD: u32 = 4;
/// `MPU_NOT_COUNTED` of kmod/mpu_core.h.
const NOT_COUNTED: u32 = u32::MAX;
/// `MPU_SEES_OWN` of kmod/mpu_core.h, where 0 is "not evaluated yet".
const SEES_OWN: u32 = 1;
/// `MPU_SEES_GROUP` of kmod/mpu_core.h.
const SEES_GROUP: u32 = 2;
/// `MPU_SEES_HOST` of kmod/mpu_core.h.
const SEES_HOST: u32 = 3;

unsafe extern "C" {
    /// The caller's PID for the process with this PID in the init namespace; 0 if the caller may not see it.
    fn mpu_c_view_of(view: *const c_void, host: u32) -> u32;
    /// The PID in the init namespace of the process with this PID in the caller's view; 0 if there is none.
    fn mpu_c_host_of(view: *const c_void, pid: u32) -> u32;
    /// The start of the process with this PID in the init namespace, in microseconds since the Unix epoch; 0 if there is none.
    fn mpu_c_started(host: u32) -> u64;
}

/// `struct mpu_argument` of kmod/mpu_core.h: the driver's copy of an RM control's argument.
#[repr(C)]
pub struct CArgument {
    cmd: u32,
    _flags: u32,
    params: u64,
    params_size: u32,
    _status: u32,
}

/// `struct mpu_copy` of kmod/mpu_core.h: how many bytes are copied to the caller.
#[repr(C)]
pub struct CCopy {
    bytes: u32,
    refused: bool,
}

/// The caller's `struct mpu_view` of kmod/mpu.h.
struct View(*const c_void);

impl PidMap for View {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        // SAFETY: by the entry's `# Safety`, the view outlives the call, and the C caller holds RCU for the look-up.
        ViewPid::new(unsafe { mpu_c_view_of(self.0, pid.get()) })
    }
    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        // SAFETY: as in `view_of`: the view outlives the call, and the entry's caller holds RCU.
        HostPid::new(unsafe { mpu_c_host_of(self.0, pid.get()) })
    }
    fn started(&self, pid: HostPid) -> Option<u64> {
        // SAFETY: as in `view_of`: the entry's caller holds RCU.
        Some(unsafe { mpu_c_started(pid.get()) }).filter(|started| *started != 0)
    }
}

/// Whether a control with this number can carry PIDs.
#[unsafe(no_mangle)]
pub extern "C" fn mpu_rs_may_carry_pids(cmd: u32) -> bool {
    mpu_abi::may_carry_pids(ControlCmd(cmd))
}

/// Begins a call: returns `MPU_TRANSLATES` and further bits, and then fills `call`; or 0. Sets `*counter` to the counter to raise now, or to
/// `MPU_NOT_COUNTED`.
///
/// # Safety
/// `call` is `MPU_CALL_BYTES` of 8-byte aligned memory and `counter` a u32, both the caller's alone; `argument` is a `struct mpu_argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_begin(call: *mut Call, argument: *const CArgument, counter: *mut u32) -> u32 {
    // SAFETY: the caller gives an initialised argument.
    let argument = unsafe { &*argument };
    let argument = Argument { cmd: ControlCmd(argument.cmd), params: argument.params, size: argument.params_size };
    let (begun, raised) = match Call::begin(argument) {
        Ok(begun) => (begun, NOT_COUNTED),
        Err(reason) => (Call::untranslated(), reason_counter(reason)),
    };
    // SAFETY: the caller gives a writable u32.
    unsafe { counter.write(raised) };
    let Some(control) = begun.control() else { return 0 };
    let samples = if begun.samples() { SAMPLES } else { 0 };
    let hides_dead = if control == Control::AccountingPids { HIDES_DEAD } else { 0 };
    // SAFETY: the caller gives writable memory of that size and alignment.
    unsafe { call.write(begun) };
    TRANSLATES | samples | hides_dead
}

/// The number of PIDs in a query in the `len` bytes at `bytes`, which the driver has copied from `address` of its caller.
/// [`mpu_rs_copied_in`] needs memory for that many u32.
///
/// # Safety
/// `call` was filled by [`mpu_rs_begin`]; `bytes` is `len` bytes of kernel memory that does not change during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_requested_count(call: *const Call, address: u64, bytes: *const u8, len: u32) -> u32 {
    // SAFETY: `call` is initialised.
    let call = unsafe { &*call };
    // SAFETY: `bytes` is `len` bytes.
    let bytes = unsafe { slice::from_raw_parts(bytes, len as usize) };
    call.requested_count(address, bytes) as u32
}

/// The driver has copied `len` bytes at `bytes` from `address` of its caller.
///
/// # Safety
/// `call` was filled by [`mpu_rs_begin`]; `bytes` is `len` bytes of kernel memory that no other code uses now; `requested` is `requested_count`
/// u32 of the caller's alone, or null; `view` is a `struct mpu_view` that lives through the call; the caller holds RCU, as the
/// callbacks need it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_copied_in(
    call: *mut Call,
    address: u64,
    bytes: *mut u8,
    len: u32,
    requested: *mut u32,
    requested_count: u32,
    view: *const c_void,
) {
    // SAFETY: `call` is initialised, and not shared.
    let call = unsafe { &mut *call };
    // SAFETY: `bytes` is `len` bytes, not shared.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes, len as usize) };
    let requested = if requested.is_null() {
        &mut []
    } else {
        // SAFETY: `requested` is `requested_count` u32, not shared.
        unsafe { slice::from_raw_parts_mut(requested, requested_count as usize) }
    };
    call.copied_in(address, bytes, &View(view), requested);
}

/// The driver is about to copy `len` bytes at `bytes` to `address` of its caller. Fills `copy`; returns the counter to raise, or
/// `MPU_NOT_COUNTED`.
///
/// # Safety
/// As for [`mpu_rs_copied_in`]; `copy` is a `struct mpu_copy` of the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_copying_out(
    call: *mut Call,
    address: u64,
    bytes: *mut u8,
    len: u32,
    requested: *const u32,
    requested_count: u32,
    view: *const c_void,
    copy: *mut CCopy,
) -> u32 {
    // SAFETY: `call` is initialised, and not shared.
    let call = unsafe { &mut *call };
    // SAFETY: `bytes` is `len` bytes, not shared.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes, len as usize) };
    let requested = if requested.is_null() {
        &[]
    } else {
        // SAFETY: `requested` is `requested_count` u32 that do not change during the call.
        unsafe { slice::from_raw_parts(requested, requested_count as usize) }
    };
    let answer = call.copying_out(address, bytes, &View(view), requested);
    let going_on = match answer.copied {
        Copied::All => CCopy { bytes: len, refused: false },
        Copied::First(first) => CCopy { bytes: first.min(len), refused: false },
        Copied::NoSuchProcess => CCopy { bytes: 0, refused: true },
    };
    // SAFETY: the caller gives a writable struct.
    unsafe { copy.write(going_on) };
    counter_of(answer.outcome)
}

/// The driver is about to copy `len` bytes of an event's data to its caller; returns the counter to raise, or `MPU_NOT_COUNTED`.
///
/// # Safety
/// `bytes` is `len` bytes of kernel memory that no other code uses now; `view` as for [`mpu_rs_copied_in`], and RCU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_event(bytes: *mut u8, len: u32, view: *const c_void) -> u32 {
    // SAFETY: `bytes` is `len` bytes, not shared.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes, len as usize) };
    counter_of(mpu_core::translate_event(bytes, &View(view)))
}

/// Whether a translated call's parameters never passed the driver's copy functions.
///
/// # Safety
/// `call` was filled by [`mpu_rs_begin`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_copy_missing(call: *const Call) -> bool {
    // SAFETY: `call` is initialised.
    let call = unsafe { &*call };
    call.translates() && !call.answered()
}

/// The counter of a reason: `MPU_REASON_*` of kmod/mpu_core.h. All counters below that of reason 0 are translations.
#[unsafe(no_mangle)]
pub extern "C" fn mpu_rs_reason(reason: u32) -> u32 {
    (Control::ALL.len() as u32).wrapping_add(reason)
}

/// Parses a policy's rules, and stores their places in `table`. Returns the number of the first bad line, or 0.
///
/// # Safety
/// `table` is `MPU_POLICY_BYTES` of 4-byte aligned memory, the caller's alone; `rules` is `len` bytes that stay the same during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_policy_read(table: *mut Table, rules: *const u8, len: u32) -> u32 {
    // SAFETY: the caller gives writable memory of that size and alignment.
    unsafe { table.write(Table::EMPTY) };
    // SAFETY: it is initialised now, and not shared.
    let table = unsafe { &mut *table };
    // SAFETY: `rules` is `len` bytes.
    let rules = unsafe { slice::from_raw_parts(rules, len as usize) };
    table.read(rules).err().map_or(0, |bad| bad.line)
}

/// The view of a caller in the cgroup with this path: `MPU_SEES_*` of kmod/mpu_core.h. For a group, sets `*depth` to its number of path
/// components.
///
/// # Safety
/// `table` was filled by [`mpu_rs_policy_read`] with these `rules`, which are `len` bytes; `path` is `path_len` bytes; none
/// of them changes during the call. `depth` is a u32 of the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_policy(
    table: *const Table,
    rules: *const u8,
    len: u32,
    path: *const u8,
    path_len: u32,
    depth: *mut u32,
) -> u32 {
    // SAFETY: `table` is initialised.
    let table = unsafe { &*table };
    // SAFETY: `rules` is `len` bytes.
    let rules = unsafe { slice::from_raw_parts(rules, len as usize) };
    // SAFETY: `path` is `path_len` bytes.
    let path = unsafe { slice::from_raw_parts(path, path_len as usize) };
    let (sees, group_depth) = match table.of(rules, path) {
        Sees::Own => (SEES_OWN, 0),
        Sees::Group { depth } => (SEES_GROUP, depth),
        Sees::Host => (SEES_HOST, 0),
    };
    // SAFETY: the caller gives a writable u32.
    unsafe { depth.write(group_depth) };
    sees
}

/// A counter's name, `len` bytes without a terminator; null beyond the last counter. Sets `*passed` if it counts a reason, not a control.
///
/// # Safety
/// `len` is a u32 and `passed` a bool, both the caller's alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mpu_rs_counter_name(counter: u32, len: *mut u32, passed: *mut bool) -> *const c_char {
    let index = counter as usize;
    let control = Control::ALL.get(index).map(|control| control.name());
    let reason = index.checked_sub(Control::ALL.len()).and_then(|at| Reason::ALL.get(at)).map(|reason| reason.name());
    let Some(name) = control.or(reason) else { return core::ptr::null() };
    // SAFETY: the caller gives a writable u32.
    unsafe { len.write(name.len() as u32) };
    // SAFETY: the caller gives a writable bool.
    unsafe { passed.write(reason.is_some()) };
    name.as_ptr().cast()
}

fn counter_of(outcome: Option<(Control, Outcome)>) -> u32 {
    match outcome {
        None => NOT_COUNTED,
        Some((control, Outcome::Rewritten { .. })) => control as u32,
        Some((_, Outcome::Not(reason))) => reason_counter(reason),
    }
}

fn reason_counter(reason: Reason) -> u32 {
    mpu_rs_reason(reason as u32)
}

/// Required by rustc, but never called: mpu-core has no panic path. `cargo xtask kmod` refuses an object that contains it.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
