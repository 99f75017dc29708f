//! Opens the `/proc` folders of processes and threads. All numbers are of the host's PID namespace.

use crate::kernel::Tid;
use mpu_core::HostPid;
pub(crate) use mpu_host::folder::{Folder, device, field, is_driver_device};
use std::io;

/// The folder of the thread that has this TID now.
pub(crate) fn of_thread(tid: Tid) -> io::Result<Folder> {
    Folder::at(format!("/proc/{}", tid.get()))
}

/// The folder of the process that has this PID now.
pub(crate) fn of_process(pid: HostPid) -> io::Result<Folder> {
    Folder::at(format!("/proc/{}", pid.get()))
}

/// `DVB_MAJOR` (linux/dvb/frontend.h's devices; Documentation/admin-guide/devices.txt).
const TUNER_MAJOR: u32 = 212;

/// Whether a character device is a TV tuner. Its `FE_SET_PROPERTY` is Linux's only other ioctl (include/uapi of 6.1) with the number and
/// size of `NV_ESC_RM_GET_EVENT_DATA`.
pub(crate) fn is_tuner_device(device: Option<(u32, u32)>) -> bool {
    device.is_some_and(|(major, _)| major == TUNER_MAJOR)
}
