//! A thread and a memory mapping, as the kernel reports them.
//!
//! Source: seccomp_unotify(2), proc_pid_maps(5).

/// A thread, as the host's PID namespace numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tid(u32);

impl Tid {
    /// The caller of a notification. The kernel translates it to the supervisor's namespace.
    pub(crate) fn of(notification: &libc::seccomp_notif) -> Tid {
        Tid(notification.pid)
    }

    pub(crate) fn of_this_thread() -> Tid {
        Tid(rustix::thread::gettid().as_raw_nonzero().get() as u32)
    }

    pub(crate) fn get(self) -> u32 {
        self.0
    }
}

/// A memory mapping and its protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Mapping {
    pub(crate) fn covers(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Parses a line such as `7f5c1000-7f5c2000 rw-p …`.
    pub(crate) fn parse(line: &str) -> Option<Mapping> {
        let mut fields = line.split(' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let rights = fields.next()?;
        Some(Mapping {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            readable: rights.starts_with('r'),
            writable: rights.get(1..2) == Some("w"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Mapping;

    #[test]
    fn maps_line_is_parsed() {
        let line = "7f5c8c000000-7f5c8c021000 rw-p 00000000 00:00 0                          [stack]";
        let mapping = Mapping::parse(line).expect("a line");
        assert!(mapping.readable && mapping.writable && mapping.covers(0x7f5c_8c02_0fff));
        assert!(!mapping.covers(mapping.end));
        let sealed = Mapping::parse("00400000-00401000 ---p 00000000 08:01 12").expect("a line");
        assert!(!sealed.readable && !sealed.writable);
        assert_eq!(Mapping::parse("nonsense"), None);
    }
}
