//! Why the module is not in the kernel, or still is: the meaning of the kernel's errno, and the fix.

use super::holders::{self, HolderInfo};
use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the module is not in the kernel, or still is.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{} is not the root of the running host", root.display())]
    OtherRoot { root: PathBuf },
    #[error("cannot open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("the kernel refuses {}{}", path.display(), in_parentheses(log))]
    Insert { path: PathBuf, log: String, advice: Option<String>, source: io::Error },
    #[error("{}", not_placed(symbol, *errno))]
    Redirect { symbol: String, errno: i32 },
    #[error("the module is loaded, but its state cannot be read")]
    NoState,
    #[error("NVIDIA driver {version} is loaded, but the module does not find the function that receives its calls")]
    Unattached { version: String },
    #[error("MPU {loaded} is loaded, and this is mpu {this}")]
    OtherVersion { loaded: String, this: &'static str },
    #[error("the new module could not take over: {}", holders::in_words(*inside, holders))]
    Drain { inside: u64, holders: Vec<HolderInfo> },
    #[error("the new module could not take over")]
    TakeoverFailed,
    #[error("there is no {} to take over with", path.display())]
    NoNext { path: PathBuf },
    #[error("the module is in use after {} s, and nothing was changed: {}", waited.as_secs(), holders::in_words(*inside, holders))]
    Busy { inside: u64, holders: Vec<HolderInfo>, waited: Duration, again: &'static str },
    #[error("the module no longer translates, and something still keeps it in the kernel after {} s: {}",
        waited.as_secs(), holders::in_words(*inside, holders))]
    StillReferenced { inside: u64, holders: Vec<HolderInfo>, waited: Duration, again: &'static str },
    #[error("the kernel does not remove the module's redirects: the module stays, stuck, until the next boot")]
    Stuck,
    #[error(
        "the driver's calls do not reach the function that the module redirects ({hooks}): the driver's entry \
        is a different function"
    )]
    NotEntered { hooks: String },
    #[error("cannot make the module release its callers")]
    Retire { source: io::Error },
    #[error("the kernel does not unload the module")]
    Remove { source: io::Error },
}

fn in_parentheses(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(" ({log})") }
}

/// The module names this in place of a function if function tracing, which its redirects need, is off.
pub const TRACING: &str = "kernel.ftrace_enabled";

/// The module names this in place of a function if the kernel refused all of them together.
pub(super) const ALL_FUNCTIONS: &str = "functions";

/// A refused redirect, as a sentence.
pub fn not_placed(symbol: &str, errno: i32) -> String {
    match symbol {
        TRACING => {
            "function tracing is switched off (kernel.ftrace_enabled = 0), by which the module redirects".to_string()
        }
        ALL_FUNCTIONS => format!("the module cannot redirect the driver's functions: {}", redirect_errno_text(errno)),
        _ => format!("the module cannot redirect the driver's {symbol}: {}", redirect_errno_text(errno)),
    }
}

fn redirect_errno_text(errno: i32) -> String {
    match errno {
        libc::EBUSY => "another module has one already (a live patch, or another shim)".to_string(),
        libc::ENOENT => "this driver has no such function".to_string(),
        libc::EINVAL | libc::EOPNOTSUPP => "the kernel cannot trace it".to_string(),
        other => io::Error::from_raw_os_error(other).to_string(),
    }
}

impl Explain for LoadError {
    fn facts(&self) -> Facts {
        use Exit::{Failed, Refused};
        const UPDATE: &str = "update MPU, and report the driver's version; nothing is redirected";
        const DMESG: &str = "`dmesg | tail` shows the kernel's messages";
        const END_CALLER: &str = "stop or kill the process that is inside (thaw a frozen one first)";
        let by = |source: &io::Error| if is_refusal(source) { Refused } else { Failed };
        let (code, exit, fix) = match self {
            LoadError::OtherRoot { .. } => {
                ("other_root", Refused, "run it without --host-root to load into the running kernel")
            }
            LoadError::Open { .. } => ("module_unreadable", Failed, "check the file and its permissions"),
            LoadError::Insert { advice, source, .. } => {
                let fix = match (advice, source.raw_os_error()) {
                    (Some(advice), _) => advice.as_str(),
                    _ if is_refusal(source) => {
                        "sign the module with a key that this kernel trusts, or boot without lockdown and module signature enforcement"
                    }
                    (_, Some(libc::EOPNOTSUPP)) => {
                        "this kernel lacks the way that `redirect` in /etc/mpu/config.toml names: remove the line, then `mpu up` again"
                    }
                    _ => {
                        "`dmesg | tail` shows the kernel's messages; `mpu up` without --module builds one for this kernel"
                    }
                };
                ("load_failed", by(source), fix)
            }
            LoadError::Redirect { symbol, errno } => {
                let fix = match (symbol.as_str(), *errno) {
                    (TRACING, _) => "`sysctl kernel.ftrace_enabled=1`, then `mpu up` again",
                    (_, libc::EBUSY) => {
                        "find the other module (`ls /sys/kernel/livepatch; grep nvidia /sys/kernel/tracing/enabled_functions; lsmod`), \
                         unload it, then `mpu up` again"
                    }
                    _ => UPDATE,
                };
                ("redirect_refused", if *errno == libc::EBUSY { Refused } else { Failed }, fix)
            }
            LoadError::NoState => ("no_state", Failed, "`mpu down`, then `mpu up` again"),
            LoadError::Unattached { .. } => ("driver_not_found", Failed, UPDATE),
            LoadError::OtherVersion { .. } => {
                ("other_version_up", Failed, "`mpu up --replace` lets this version take over without a gap")
            }
            LoadError::Drain { .. } => {
                return ("callers_inside", Failed, format!("{END_CALLER}, then run `mpu up --replace` again"));
            }
            LoadError::TakeoverFailed => {
                ("not_taken_over", Failed, "`dmesg | tail` shows why; then run `mpu up --replace` again")
            }
            LoadError::NoNext { .. } => (
                "no_next_module",
                Failed,
                "build it together with mpu.ko, or run it without --module; `mpu down`, then `mpu up` leaves a gap",
            ),
            LoadError::Busy { again, .. } => {
                return ("in_use", Failed, format!("{END_CALLER}, then run `{again}` again"));
            }
            LoadError::StillReferenced { again, inside, .. } => {
                let fix = match inside {
                    0 => format!("run `{again}` again; `lsmod` counts the users of the module"),
                    _ => format!("stop or kill it, then run `{again}` again"),
                };
                return ("in_use", Failed, fix);
            }
            LoadError::Stuck => {
                ("stuck", Failed, "reboot this host; `dmesg` has what became of the kernel's function tracing")
            }
            LoadError::NotEntered { .. } => {
                ("driver_entry", Failed, "update MPU, and report the driver's version; nothing is translated")
            }
            LoadError::Retire { source } => ("retire_failed", by(source), DMESG),
            LoadError::Remove { source } => ("unload_failed", by(source), DMESG),
        };
        (code, exit, fix.to_string())
    }
}

/// Whether the kernel refuses on principle, not because of the file.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::ENOKEY | libc::EKEYREJECTED | libc::EKEYEXPIRED)
    )
}
