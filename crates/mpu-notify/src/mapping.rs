//! A stretch of a program's memory.
//!
//! Owns what may be done with it, as proc_pid_maps(5) has it. Asks nobody.

/// A stretch of memory and what may be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
}

impl Mapping {
    pub(super) fn covers(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// `7f5c1000-7f5c2000 rw-p …`
    pub(super) fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.split(' ');
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
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
    fn a_line_of_the_maps_is_read() {
        let line = "7f5c8c000000-7f5c8c021000 rw-p 00000000 00:00 0                          [stack]";
        let mapping = Mapping::parse(line).expect("a line");
        assert!(mapping.readable && mapping.writable && mapping.covers(0x7f5c_8c02_0fff));
        assert!(!mapping.covers(mapping.end));
        let sealed = Mapping::parse("00400000-00401000 ---p 00000000 08:01 12").expect("a line");
        assert!(!sealed.readable && !sealed.writable);
        assert_eq!(Mapping::parse("nonsense"), None);
    }
}
