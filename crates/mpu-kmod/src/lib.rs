//! The core as the kernel module's C glue calls it: a few functions over plain bytes, and two questions back to the kernel.
//!
//! Owns the C types of that boundary (kmod/mpu_core.h says the same in C; sizes are asserted on both sides). Knows nothing
//! of what the bytes mean: each entry sheds its raw pointers and calls mpu-core. Never allocates, never panics, never sleeps
//! by itself.
//!
//! Pointers: every function requires what its `# Safety` says of the C caller, kmod/mpu_calls.c being the only one.
#![no_std]

use core::ffi::{c_char, c_void};
use core::slice;
use mpu_abi::{Control, ControlCmd};
use mpu_core::policy::{Rules, Sees};
use mpu_core::{Call, HostPid, Native, Outcome, PidMap, Reason, ViewPid};

const COUNTERS: usize = Control::ALL.len() + Reason::ALL.len();

/// `MPU_CALL_BYTES` of kmod/mpu_core.h: the storage that C provides for a [`Call`].
const _: () = assert!(size_of::<Call>() <= 96 && align_of::<Call>() <= 8);
/// `MPU_COUNTERS` of kmod/mpu_core.h.
const _: () = assert!(COUNTERS == 20);

/// `MPU_TRANSLATES` of kmod/mpu_core.h: MPU translates this call, so the driver's helpers must not.
const TRANSLATES: u32 = 1;
/// `MPU_SMALL` of kmod/mpu_core.h: the call's copies are not all told by their size.
const SMALL: u32 = 2;
/// `MPU_TELLING_SIZE` of kmod/mpu_core.h.
const _: () = assert!(mpu_abi::SMALLEST_TELLING_SIZE == 2436);
/// `MPU_NOT_COUNTED` of kmod/mpu_core.h.
const NOT_COUNTED: u32 = u32::MAX;

extern "C" {
    /// The number by which the caller knows process `host` (init namespace), 0 if it may not see it.
    fn mpu_c_view_of(view: *const c_void, host: u32) -> u32;
    /// The number in the init namespace of the process that the caller knows as `pid`, 0 if there is none.
    fn mpu_c_host_of(view: *const c_void, pid: u32) -> u32;
}

/// The caller's `struct mpu_view` of kmod/mpu.h.
struct View(*const c_void);

impl PidMap for View {
    fn view_of(&self, pid: HostPid) -> Option<ViewPid> {
        // SAFETY: the entry's caller vouches that the view outlives the call, and holds the RCU lock that the look-up needs.
        ViewPid::new(unsafe { mpu_c_view_of(self.0, pid.get()) })
    }
    fn host_of(&self, pid: ViewPid) -> Option<HostPid> {
        // SAFETY: as in `view_of`: the view outlives the call, and the entry's caller holds RCU.
        HostPid::new(unsafe { mpu_c_host_of(self.0, pid.get()) })
    }
}

/// Whether a control of this number can carry PIDs: false for nearly every other number.
#[no_mangle]
pub extern "C" fn mpu_rs_may_claim(cmd: u32) -> bool {
    mpu_abi::may_carry_pids(ControlCmd(cmd))
}

/// Begins a call: returns `MPU_TRANSLATES` and `MPU_SMALL` bits, and fills `call` if there are any. `*counter` is the
/// counter to raise now, or `MPU_NOT_COUNTED`.
///
/// # Safety
/// `call` is `MPU_CALL_BYTES` of 8-byte aligned memory and `counter` a u32, both the caller's alone.
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_begin(call: *mut Call, cmd: u32, params_size: u32, counter: *mut u32) -> u32 {
    let (begun, raised) = match Call::begin(ControlCmd(cmd), params_size, Native::default()) {
        Ok(begun) => (begun, NOT_COUNTED),
        Err(reason) => (Call::unclaimed(), reason_counter(reason)),
    };
    // SAFETY: the caller gives a writable u32.
    unsafe { counter.write(raised) };
    if !begun.translates() {
        return 0;
    }
    let bits = if begun.is_small() { TRANSLATES | SMALL } else { TRANSLATES };
    // SAFETY: the caller gives writable memory of that size and alignment.
    unsafe { call.write(begun) };
    bits
}

/// Makes `call` one that goes by untouched, for want of memory. Returns the counter to raise.
///
/// # Safety
/// As for [`mpu_rs_begin`].
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_pass(call: *mut Call) -> u32 {
    // SAFETY: the caller gives writable memory of that size and alignment.
    unsafe { call.write(Call::passed()) };
    reason_counter(Reason::NoMemory)
}

/// How many PIDs the caller asks about in the `len` bytes at `bytes`, which the driver has copied from it: so many u32 must
/// be at `asked` of [`mpu_rs_copied_in`].
///
/// # Safety
/// `call` was filled by [`mpu_rs_begin`] or [`mpu_rs_pass`]; `bytes` is `len` bytes of kernel memory that nobody changes now.
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_questions(call: *const Call, bytes: *const u8, len: u32) -> u32 {
    // SAFETY: `call` is initialised.
    let call = unsafe { &*call };
    // SAFETY: `bytes` is `len` bytes.
    let bytes = unsafe { slice::from_raw_parts(bytes, len as usize) };
    call.questions(bytes) as u32
}

/// The driver has copied `len` bytes at `bytes` from its caller.
///
/// # Safety
/// `call` is null or was filled by [`mpu_rs_begin`] or [`mpu_rs_pass`]; `bytes` is `len` bytes of kernel memory that nobody
/// else uses now; `asked` is `questions` u32 of the caller's alone, or null; `view` is a `struct mpu_view` that lives through the
/// call; the caller holds RCU, as the callbacks need it.
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_copied_in(
    call: *mut Call,
    bytes: *mut u8,
    len: u32,
    asked: *mut u32,
    questions: u32,
    view: *const c_void,
) {
    let mut unclaimed = Call::unclaimed();
    // SAFETY: `call` is null or initialised, and not shared.
    let call = unsafe { call.as_mut() }.unwrap_or(&mut unclaimed);
    // SAFETY: `bytes` is `len` bytes, not shared.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes, len as usize) };
    let asked = if asked.is_null() {
        &mut []
    } else {
        // SAFETY: `asked` is `questions` u32, not shared.
        unsafe { slice::from_raw_parts_mut(asked, questions as usize) }
    };
    call.copied_in(bytes, &View(view), asked);
}

/// The driver is about to copy `len` bytes at `bytes` to `address` of its caller. Returns the counter to raise, or
/// `MPU_NOT_COUNTED`.
///
/// # Safety
/// As for [`mpu_rs_copied_in`].
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_copying_out(
    call: *mut Call,
    address: u64,
    bytes: *mut u8,
    len: u32,
    asked: *const u32,
    questions: u32,
    view: *const c_void,
) -> u32 {
    let mut unclaimed = Call::unclaimed();
    // SAFETY: `call` is null or initialised, and not shared.
    let call = unsafe { call.as_mut() }.unwrap_or(&mut unclaimed);
    // SAFETY: `bytes` is `len` bytes, not shared.
    let bytes = unsafe { slice::from_raw_parts_mut(bytes, len as usize) };
    let asked = if asked.is_null() {
        &[]
    } else {
        // SAFETY: `asked` is `questions` u32 that nobody changes.
        unsafe { slice::from_raw_parts(asked, questions as usize) }
    };
    match call.copying_out(address, bytes, &View(view), asked) {
        None => NOT_COUNTED,
        Some((control, Outcome::Rewritten { .. })) => control as u32,
        Some((_, Outcome::Not(reason))) => reason_counter(reason),
    }
}

/// Whether a translated call's parameters never passed the driver's copy functions.
///
/// # Safety
/// `call` was filled by [`mpu_rs_begin`] or [`mpu_rs_pass`].
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_copy_missing(call: *const Call) -> bool {
    // SAFETY: `call` is initialised.
    let call = unsafe { &*call };
    call.translates() && !call.answered()
}

/// The counter of "the driver answered without passing its copy functions".
#[no_mangle]
pub extern "C" fn mpu_rs_copy_not_seen() -> u32 {
    reason_counter(Reason::CopyNotSeen)
}

/// The counter of "the caller's argument could not be read".
#[no_mangle]
pub extern "C" fn mpu_rs_unreadable() -> u32 {
    reason_counter(Reason::Unreadable)
}

/// The counter of "the policy shows this caller the host's view".
#[no_mangle]
pub extern "C" fn mpu_rs_exempt() -> u32 {
    reason_counter(Reason::Exempt)
}

/// The counter of "the kernel had no memory".
#[no_mangle]
pub extern "C" fn mpu_rs_no_memory() -> u32 {
    reason_counter(Reason::NoMemory)
}

/// Looks at a policy's rules: the number of the first bad line, or 0.
///
/// # Safety
/// `rules` is `len` bytes that nobody changes now.
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_policy_check(rules: *const u8, len: u32) -> u32 {
    // SAFETY: `rules` is `len` bytes.
    let rules = unsafe { slice::from_raw_parts(rules, len as usize) };
    Rules::parse(rules).err().map_or(0, |bad| bad.line)
}

/// What a caller whose cgroup has this path sees: `MPU_SEES_*` of kmod/mpu_core.h, and in `*depth` how many names lead to the
/// group, if it sees one.
///
/// # Safety
/// `rules` is `len` bytes and `path` `path_len` bytes that nobody changes now; `depth` is a u32 of the caller's alone.
#[no_mangle]
pub unsafe extern "C" fn mpu_rs_policy(
    rules: *const u8,
    len: u32,
    path: *const u8,
    path_len: u32,
    depth: *mut u32,
) -> u32 {
    // SAFETY: `rules` is `len` bytes.
    let rules = unsafe { slice::from_raw_parts(rules, len as usize) };
    // SAFETY: `path` is `path_len` bytes.
    let path = unsafe { slice::from_raw_parts(path, path_len as usize) };
    let sees = Rules::parse(rules).map_or(Sees::Own, |rules| rules.of(path));
    let (word, group) = match sees {
        Sees::Own => (1, 0),
        Sees::Group { depth } => (2, depth),
        Sees::Host => (3, 0),
    };
    // SAFETY: the caller gives a writable u32.
    unsafe { depth.write(group) };
    word
}

/// A counter's name, `len` bytes without a terminator, and in `*passed` whether it counts a reason rather than a control.
/// Null beyond the last counter.
///
/// # Safety
/// `len` is a u32 and `passed` a bool, both the caller's alone.
#[no_mangle]
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

const fn reason_counter(reason: Reason) -> u32 {
    Control::ALL.len() as u32 + reason as u32
}

/// mpu-core has no panic path, so nothing refers to this: `cargo xtask kmod` refuses an object in which it is left.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
