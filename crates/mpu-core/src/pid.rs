//! A process's number, with whose number it is in the type.

use mpu_abi::pid::PID_OF_NOBODY;

/// A process (thread group) as the init PID namespace numbers it: what the driver works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPid(u32);

/// A process (thread group) as the caller's PID namespace numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewPid(u32);

macro_rules! numbered {
    ($name:ident) => {
        impl $name {
            /// The PID, unless the number cannot be one: 0, or from [`PID_OF_NOBODY`] up.
            pub const fn new(number: u32) -> Option<$name> {
                if number == 0 || number >= PID_OF_NOBODY { None } else { Some($name(number)) }
            }
            /// The number.
            pub const fn get(self) -> u32 {
                self.0
            }
        }
    };
}
numbered!(HostPid);
numbered!(ViewPid);

/// What the caller may see, and how the caller numbers it.
pub trait PidMap {
    /// The caller's number for this process; `None` if the process is gone or not visible from the caller's namespace.
    fn view_of(&self, pid: HostPid) -> Option<ViewPid>;
    /// The driver's number for this process; `None` if the caller's namespace has no such process.
    fn host_of(&self, pid: ViewPid) -> Option<HostPid>;
    /// When this process started, in microseconds since the Unix epoch; `None` where it is not known. A record that is older
    /// is that of an earlier process with the same number.
    fn started(&self, pid: HostPid) -> Option<u64> {
        let _ = pid;
        None
    }
}
