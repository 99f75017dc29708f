//! Finds kernel warnings in the kernel's log: a story with a warning fails.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result};
use mpu_plan::{OOPS_EXPECTED, OOPS_OVER};

/// The log from where it was opened on.
pub struct KernelLog {
    records: File,
}

/// Parts of lines that are warnings. The kernel reports an unsigned or out-of-tree module at every load: that is expected here.
const COMPLAINTS: [&str; 21] = [
    // Also lockdep (possible circular locking, inconsistent lock state, suspicious RCU usage) and debugobjects.
    "WARNING:",
    // Also KASAN, KFENCE, the scheduler and the watchdog.
    "BUG:",
    "Oops",
    "kernel BUG",
    "general protection",
    "unable to handle",
    // arm64
    "Unable to handle kernel",
    "soft lockup",
    "self-detected stall",
    "detected stalls",
    "blocked for more than",
    "scheduling while atomic",
    "sleeping function called",
    "refcount_t:",
    "UBSAN:",
    "list_add corruption",
    "list_del corruption",
    "trying to register non-static key",
    // Lockdep is off from here on.
    "Disabling lock debugging",
    "Poison overwritten",
    "stack is corrupted",
];

/// The prefix of the slab allocator's reports: `BUG kmalloc-64 (Tainted: …): Redzone overwritten`.
const SLAB: &str = "BUG ";

/// Whether an oops panics the kernel. It does in guests, unless a story expects one.
const PANIC_ON_OOPS: &str = "/proc/sys/kernel/panic_on_oops";

/// From here to [`announce_end_of_oops`] the kernel survives an oops, and the host ignores it.
pub fn announce_oops() -> Result<()> {
    std::fs::write(PANIC_ON_OOPS, "0").context("cannot let the guest survive an oops")?;
    println!("{OOPS_EXPECTED}");
    // Drain the serial line before the kernel writes to it directly.
    std::thread::sleep(std::time::Duration::from_millis(50));
    Ok(())
}

pub fn announce_end_of_oops() -> Result<()> {
    println!("{OOPS_OVER}");
    std::fs::write(PANIC_ON_OOPS, "1").context("cannot make an oops deadly again")
}

/// The lines that are warnings.
pub fn complaints(lines: &[String]) -> Vec<String> {
    let is = |line: &&String| line.starts_with(SLAB) || COMPLAINTS.iter().any(|word| line.contains(word));
    lines.iter().filter(is).cloned().collect()
}

/// The prefix of an oops's line with the faulting function, on x86-64 and on arm64.
const PLACES: [&str; 2] = ["RIP: ", "pc : "];

/// The warnings beside one oops in that module's code. A missing oops, and any other one, is a warning, too.
pub fn complaints_beside_an_oops(lines: &[String], module: &str) -> Vec<String> {
    let place = format!("[{module}]");
    let Some((first, last)) = oops(lines).filter(|&(first, last)| {
        let at = lines[first..=last].iter().find(|line| PLACES.iter().any(|place| line.starts_with(place)));
        at.is_some_and(|line| line.ends_with(&place))
    }) else {
        let mut all = complaints(lines);
        all.push(format!("no oops came from {module}, and one was awaited"));
        return all;
    };
    let in_oops = |line: &&String| !is_of_an_oops(line);
    let within: Vec<String> = lines[first..=last].iter().filter(in_oops).cloned().collect();
    [complaints(&lines[..first]), complaints(&within), complaints(&lines[last + 1..])].concat()
}

/// The first oops: from its first line to the end of its trace.
fn oops(lines: &[String]) -> Option<(usize, usize)> {
    let first = lines.iter().position(|line| is_of_an_oops(line) && !line.starts_with("Disabling"))?;
    let last = lines[first..].iter().position(|line| line.starts_with("---[ end trace"))?;
    Some((first, first + last))
}

/// Whether a line belongs to an oops.
fn is_of_an_oops(line: &str) -> bool {
    let words = [
        "BUG: unable to handle",
        "BUG: kernel NULL pointer",
        "Oops: ",
        // arm64, both.
        "Unable to handle kernel",
        "Internal error: Oops: ",
        "kernel BUG at",
        "general protection fault",
        // Lockdep switches itself off after an oops.
        "Disabling lock debugging",
    ];
    words.iter().any(|word| line.starts_with(word))
}

/// Whether lockdep is built in and has switched itself off.
pub fn is_lockdep_off() -> bool {
    let stats = std::fs::read_to_string("/proc/lockdep_stats").unwrap_or_default();
    lockdep_state(&stats) == Some(false)
}

fn lockdep_state(stats: &str) -> Option<bool> {
    let value = stats.lines().find_map(|line| line.trim().strip_prefix("debug_locks:"))?;
    Some(value.trim() == "1")
}

impl KernelLog {
    /// Starts at the end of the log.
    pub fn from_now() -> Result<Self> {
        let mut log = Self::open()?;
        log.lines()?;
        Ok(log)
    }

    /// The new lines since the last call.
    pub fn lines(&mut self) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        let mut record = [0; 8192];
        loop {
            match self.records.read(&mut record) {
                Ok(0) => break,
                // "priority,sequence,time,flags;text\n key=value…"
                Ok(size) => {
                    let text = String::from_utf8_lossy(&record[..size]).into_owned();
                    lines.extend(text.split_once(';').and_then(|(_, rest)| rest.lines().next()).map(str::to_owned));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // EPIPE: the ring buffer overwrote unread lines. Reading goes on after them.
                Err(error) if error.raw_os_error() == Some(32) => {
                    println!("guest: lines of the kernel's log are lost: it overtook its reader");
                }
                Err(error) => return Err(error).context("cannot read /dev/kmsg"),
            }
        }
        Ok(lines)
    }

    fn open() -> Result<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let records =
            File::options().read(true).custom_flags(flags).open("/dev/kmsg").context("cannot open /dev/kmsg")?;
        Ok(Self { records })
    }
}

#[cfg(test)]
mod tests {
    use super::{complaints, complaints_beside_an_oops, lockdep_state};

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// One line of each report, as lib/, kernel/ and mm/ of Linux 6.12 print it.
    #[test]
    fn every_guards_report_is_complaint() {
        for line in [
            "BUG: KASAN: slab-use-after-free in mpu_leave+0x4c/0x90 [mpu]",
            "BUG: KASAN: null-ptr-deref in mpu_ioctl+0x4c/0x90 [mpu]",
            "BUG: KFENCE: use-after-free read in mpu_leave+0x4c/0x90 [mpu]",
            "BUG kmalloc-64 (Tainted: G           O      ): Poison overwritten",
            "BUG nv_clients (Not tainted): Object already free",
            "WARNING: possible recursive locking detected",
            "WARNING: possible circular locking dependency detected",
            "WARNING: inconsistent lock state",
            "WARNING: suspicious RCU usage",
            "WARNING: bad unlock balance detected!",
            "WARNING: nvctl/912 still has locks held!",
            "INFO: trying to register non-static key.",
            "BUG: MAX_LOCKDEP_CHAINS too low!",
            "Disabling lock debugging due to kernel taint",
            "BUG: sleeping function called from invalid context at include/linux/sched/mm.h:321",
            "BUG: scheduling while atomic: nvctl/912/0x00000002",
            "BUG: using smp_processor_id() in preemptible [00000000] code: nvctl/912",
            "INFO: task rmmod:733 blocked for more than 120 seconds.",
            "WARNING: CPU: 0 PID: 512 at kernel/rcu/tasks.h:1 mpu_hooks_remove+0x4c/0x90 [mpu]",
            "WARNING: CPU: 1 PID: 733 at lib/debugobjects.c:615 debug_check_no_obj_freed+0x3f0/0x530",
            "refcount_t: underflow; use-after-free.",
            "list_del corruption. prev->next should be ffff88800a4b0c10, but was dead000000000100. (prev=ffff888007a1d0c8)",
            "rcu: INFO: rcu_preempt self-detected stall on CPU",
            "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [nvctl:912]",
            "Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: mpu_ioctl+0x4c/0x90 [mpu]",
        ] {
            assert_eq!(complaints(&lines(line)).len(), 1, "{line}");
        }
    }

    #[test]
    fn rig_lines_are_no_complaint() {
        let text = "mpu: loading out-of-tree module taints kernel.
            mpu: module verification failed: signature and/or required key missing - tainting kernel
            FAULT_INJECTION: forcing a failure.
            name failslab, interval 1, probability 0, space 0, times 1";
        assert_eq!(complaints(&lines(text)), Vec::<String>::new());
    }

    const OOPS: &str = "BUG: kernel NULL pointer dereference, address: 0000000000000000
        #PF: supervisor write access in kernel mode
        Oops: Oops: 0002 [#1] PREEMPT SMP NOPTI
        CPU: 1 UID: 0 PID: 912 Comm: nvctl Tainted: G           O       6.12.95
        RIP: 0010:get_pids+0x12/0x30 [nvidia]
        RSP: 0018:ffffc900003efe50 EFLAGS: 00000246
        RIP: 0033:0x7f1c2a1b0f1b
        ---[ end trace 0000000000000000 ]---
        RIP: 0010:get_pids+0x12/0x30 [nvidia]";

    const ARM64_OOPS: &str = "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000000
        Mem abort info:
        Internal error: Oops: 0000000096000046 [#1] SMP
        CPU: 1 UID: 0 PID: 912 Comm: nvctl Tainted: G           O       6.12.95
        pc : get_pids+0x12/0x30 [nvidia]
        lr : rm_control+0x12/0x30 [nvidia]
        ---[ end trace 0000000000000000 ]---";

    #[test]
    fn awaited_oops_is_drivers_and_the_only_one() {
        for text in [OOPS, ARM64_OOPS] {
            let oops = lines(text);
            assert!(!complaints(&oops).is_empty(), "by itself it is a complaint");
            assert_eq!(complaints_beside_an_oops(&oops, "nvidia"), Vec::<String>::new());
            let in_engine = lines(&text.replace("[nvidia]", "[mpu]"));
            assert!(complaints_beside_an_oops(&in_engine, "nvidia").len() > 1, "an oops in the engine is a complaint");
        }
        let oops = lines(OOPS);
        assert!(
            !complaints_beside_an_oops(&[oops.clone(), oops.clone()].concat(), "nvidia").is_empty(),
            "one is enough"
        );
        assert_eq!(complaints_beside_an_oops(&[], "nvidia").len(), 1, "one that was awaited has to come");
        let mut freed = oops;
        freed.insert(3, "BUG: KASAN: slab-use-after-free in mpu_leave+0x4c/0x90 [mpu]".to_owned());
        assert_eq!(complaints_beside_an_oops(&freed, "nvidia").len(), 1, "other complaints count");
    }

    /// As kernels print the three ways to die, oldest first.
    #[test]
    fn every_kernel_death_is_recognized() {
        for text in [
            "kernel BUG at /root/sim/driver/rm.c:40!\ninvalid opcode: 0000 [#1] SMP NOPTI",
            "general protection fault, probably for non-canonical address 0xdffffc0000000000: 0000 [#1] PREEMPT SMP KASAN PTI",
            "Oops: general protection fault, probably for non-canonical address 0xdffffc0000000000: 0000 [#1] PREEMPT SMP KASAN PTI\n\
             KASAN: null-ptr-deref in range [0x0000000000000000-0x0000000000000007]",
            "BUG: unable to handle page fault for address: ffffc90000010000",
        ] {
            let whole = format!("{text}\nRIP: 0010:get_pids+0x12/0x30 [nvidia]\n---[ end trace 0000000000000000 ]---");
            assert_eq!(complaints_beside_an_oops(&lines(&whole), "nvidia"), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn disabled_lockdep_is_found() {
        assert_eq!(
            lockdep_state(" lock-classes:      1401 [max: 8192]\n debug_locks:                              1\n"),
            Some(true)
        );
        assert_eq!(lockdep_state(" debug_locks:                              0\n"), Some(false));
        assert_eq!(lockdep_state(""), None);
    }
}
