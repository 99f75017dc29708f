//! PIDs, with their namespace in the type.

use mpu_abi::pid::PID_WITHOUT_PROCESS;

/// A process (thread group) by its number in the init PID namespace, which the driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(try_from = "u32", into = "u32"), schemars(inline))]
pub struct HostPid(u32);

/// A process (thread group) by its number in the caller's PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(try_from = "u32", into = "u32"), schemars(inline))]
pub struct ViewPid(u32);

macro_rules! numbered {
    ($name:ident) => {
        impl $name {
            /// The PID, unless the number cannot be one: 0, or from [`PID_WITHOUT_PROCESS`] up.
            pub const fn new(number: u32) -> Option<$name> {
                if number == 0 || number >= PID_WITHOUT_PROCESS { None } else { Some($name(number)) }
            }
            /// The number.
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl From<$name> for u32 {
            fn from(pid: $name) -> u32 {
                pid.get()
            }
        }

        impl TryFrom<u32> for $name {
            type Error = &'static str;

            fn try_from(number: u32) -> Result<$name, Self::Error> {
                $name::new(number).ok_or("no process has this PID")
            }
        }
    };
}
numbered!(HostPid);
numbered!(ViewPid);

/// The processes that the caller may see, and their numbers in its namespace.
pub trait PidMap {
    /// The caller's number for this process; `None` if the process is gone or not visible to the caller.
    fn view_of(&self, pid: HostPid) -> Option<ViewPid>;
    /// The driver's number for this process; `None` if the caller's namespace has no such process.
    fn host_of(&self, pid: ViewPid) -> Option<HostPid>;
    /// The start of this process, in microseconds since the Unix epoch; `None` if the process is gone. An older record belongs to an
    /// earlier process with the same number.
    fn started(&self, pid: HostPid) -> Option<u64>;
}
