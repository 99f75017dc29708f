//! The exit codes, once: `--help`, `docs/exit-codes.md` and every error read this list.
//!
//! Owns the numbers and their meaning. Which failure maps to which number is each error's own business
//! ([`crate::explain::Explain`]). The list is small so that a script can act on it, and stable: a number never changes
//! its meaning.

/// How a run of `mpu` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// What was asked for is so.
    Ok = 0,
    /// Something that this host should have been able to do went wrong.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Something that must be there first is missing.
    NotReady = 3,
    /// The kernel, or its owner's settings, forbid it.
    Refused = 4,
    /// What was waited for did not come in time.
    Busy = 5,
    /// Only of `mpu doctor`, where 1 is "needs attention": something is broken. Shares its number with a wrong command
    /// line, which prints nothing on standard output.
    Broken = 255,
}

impl Exit {
    /// Every code that any command can end with, in order.
    pub const ALL: [Exit; 6] = [Exit::Ok, Exit::Failed, Exit::Usage, Exit::NotReady, Exit::Refused, Exit::Busy];

    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        match self {
            Exit::Broken => Exit::Usage as u8,
            other => other as u8,
        }
    }

    /// One word for tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Exit::Ok => "ok",
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::NotReady => "not_ready",
            Exit::Refused => "refused",
            Exit::Busy => "busy",
            Exit::Broken => "broken",
        }
    }

    /// What it means, for `--help` and the documentation.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "the command did what was asked for, or it was done already",
            Exit::Failed => "something failed that this host should be able to do, or a check found a wrong answer",
            Exit::Usage => "the command line is wrong",
            Exit::NotReady => {
                "something that the command needs is missing: a driver, kernel headers, a compiler, a known driver version, MPU itself"
            }
            Exit::Refused => "not allowed: not root, lockdown, module signatures, another owner of a hook",
            Exit::Busy => "the time to wait is over, and the driver or the GPU is still in use",
            Exit::Broken => "mpu doctor only: something is broken",
        }
    }

    /// The table that `--help` prints.
    pub fn table() -> String {
        let rows = Exit::ALL.iter().map(|e| format!("  {}  {}", e.code(), e.meaning()));
        format!("Exit codes:\n{}", rows.collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn numbers_are_stable() {
        let numbers: Vec<(u8, &str)> = Exit::ALL.iter().map(|e| (e.code(), e.name())).collect();
        let expected = [(0, "ok"), (1, "failed"), (2, "usage"), (3, "not_ready"), (4, "refused"), (5, "busy")];
        assert_eq!(numbers, expected);
    }
}
