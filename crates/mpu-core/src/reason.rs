//! Reasons for calls that were not translated in the usual way. Counters, metric labels, `mpu status` and docs/reasons.md use this list.

/// Why PIDs in a call were left as the driver made them, or removed instead of translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// The size of parameters of a control with PIDs has no row.
    UnknownSize,
    /// The kernel had no memory for the PIDs of a query.
    NoMemory,
    /// The caller's argument, or another fact that an engine in user space needs, could not be read.
    Unreadable,
    /// The driver's answer counts more entries than its table holds.
    Malformed,
    /// The driver took the call without passing the probe that reads its argument.
    ArgumentNotSeen,
    /// The driver answered without passing its copy functions.
    CopyNotSeen,
    /// By policy, the caller sees the host's view.
    Exempt,
    /// A security module forbids the engine in user space to read the caller's memory.
    OutOfReach,
    /// The probe that reads the driver's copy of the argument was not armed yet.
    ProbePending,
}

impl Reason {
    /// Every reason, in the order of the discriminants.
    pub const ALL: [Reason; 9] = [
        Reason::UnknownSize,
        Reason::NoMemory,
        Reason::Unreadable,
        Reason::Malformed,
        Reason::ArgumentNotSeen,
        Reason::CopyNotSeen,
        Reason::Exempt,
        Reason::OutOfReach,
        Reason::ProbePending,
    ];

    /// Name for counters and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::UnknownSize => "unknown_size",
            Reason::NoMemory => "no_memory",
            Reason::Unreadable => "unreadable",
            Reason::Malformed => "malformed",
            Reason::ArgumentNotSeen => "argument_not_seen",
            Reason::CopyNotSeen => "copy_not_seen",
            Reason::Exempt => "exempt",
            Reason::OutOfReach => "out_of_reach",
            Reason::ProbePending => "probe_pending",
        }
    }

    /// One sentence for the administrator: what happened and what the caller got.
    pub const fn explanation(self) -> &'static str {
        match self {
            Reason::UnknownSize => {
                "a PID-bearing control came with a size that this version of MPU does not know; the caller got the driver's own \
                 answer, under the notify engine its refusal (a newer driver or client: update MPU)"
            }
            Reason::NoMemory => {
                "the kernel had no memory for MPU's record of a call, and the caller got the driver's own answer; or none for the path of \
                 a cgroup, and the caller got its own view"
            }
            Reason::Unreadable => {
                "the caller's argument, or other data that the call needs, could not be read; the call was refused"
            }
            Reason::Malformed => {
                "the driver's answer counted more entries than its table holds; the caller got no process at all"
            }
            Reason::ArgumentNotSeen => {
                "the driver took the call without passing MPU's probe in rm_ioctl (somebody switched the kernel's probes off); the \
                 caller got the driver's own answer, and MPU judges later calls by the caller's copy of the argument"
            }
            Reason::CopyNotSeen => {
                "the driver answered without passing its copy functions; the caller got the answer that the host would get"
            }
            Reason::Exempt => {
                "a rule of the policy shows this caller the host's view; it got what a caller on the host gets"
            }
            Reason::OutOfReach => {
                "a security module of the kernel keeps the caller's memory from the notify engine; the caller got the driver's own answer"
            }
            Reason::ProbePending => {
                "MPU's probe in rm_ioctl was not armed yet, which takes a moment after the first call from a container; the call was \
                 translated by the caller's copy of the argument"
            }
        }
    }
}

/// The result for one table of PIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The PIDs were translated: so many entries remain, and so many were removed.
    Rewritten {
        /// Entries that the caller sees.
        kept: u32,
        /// Entries of processes that the caller may not see.
        hidden: u32,
    },
    /// Nothing was changed, or all entries were removed, for this reason.
    Not(Reason),
}
