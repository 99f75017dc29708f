//! The exit codes. `--help`, `docs/exit-codes.md` and every error use this list. A number never changes its meaning.

/// The outcome of a run of `mpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[repr(u8)]
#[strum(serialize_all = "snake_case")]
pub enum Exit {
    /// The requested state is reached.
    Ok = 0,
    /// An operation failed that this host should support.
    Failed = 1,
    /// The command line is invalid.
    Usage = 2,
    /// A prerequisite is missing.
    NotReady = 3,
    /// The kernel or its settings forbid it.
    Refused = 4,
    /// The wait ended before its condition was met.
    Busy = 5,
    /// For `mpu doctor` alone, where 1 is "needs attention": something is broken. Shares its number with an invalid command line, which
    /// prints nothing on standard output.
    Broken = 255,
}

impl Exit {
    /// Every exit code, in order.
    pub const ALL: [Exit; 6] = [Exit::Ok, Exit::Failed, Exit::Usage, Exit::NotReady, Exit::Refused, Exit::Busy];

    /// The number for the shell.
    pub fn code(self) -> u8 {
        match self {
            Exit::Broken => Exit::Usage as u8,
            other => other as u8,
        }
    }

    /// One word for tables and JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Its meaning, for `--help` and the documentation.
    pub fn meaning(self) -> &'static str {
        match self {
            Exit::Ok => "the command did what was asked for, or it was already done",
            Exit::Failed => "an operation that should work on this host failed, or a check found a wrong answer",
            Exit::Usage => "the command line is wrong",
            Exit::NotReady => {
                "the command needs something that is missing: a driver, kernel headers, a compiler, a known driver version, MPU itself"
            }
            Exit::Refused => "not allowed: not root, lockdown, module signatures, another owner of a hook",
            Exit::Busy => "the time to wait is over, and the driver or the GPU is still in use",
            Exit::Broken => "mpu doctor only: something is broken",
        }
    }

    /// The table in `--help`.
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
