//! Opens the driver's device nodes. NVIDIA's tools create them at first use. For a missing node, a temporary one is
//! created, opened and removed at once.

use mpu_host::host::Host;
use mpu_rm::{Nodes, RmError};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MAJOR: u32 = 195;
const CONTROL_MINOR: u32 = 255;
/// More GPU nodes than any host has.
const MAX_GPU_MINORS: u32 = 64;

/// The nodes below one `/dev`.
pub struct DeviceNodes {
    dev: PathBuf,
}

impl DeviceNodes {
    pub fn of(host: &Host) -> DeviceNodes {
        DeviceNodes { dev: host.at("/dev") }
    }

    fn open_or_make(&self, name: &str, minor: u32) -> Result<File, RmError> {
        let path = self.dev.join(name);
        match open(&path) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                self.open_temporary(minor).map_err(|_| RmError::Open { path, source })
            }
            other => other.map_err(|source| RmError::Open { path, source }),
        }
    }

    fn open_temporary(&self, minor: u32) -> io::Result<File> {
        // A PID in the name would not be unique: the child is process 1 of its namespace, as the child of any other
        // probe.
        let made = tempfile::Builder::new().prefix(".mpu-probe-").make_in(&self.dev, |path| {
            let mode = Mode::RUSR | Mode::WUSR;
            Ok(mknodat(CWD, path, FileType::CharacterDevice, mode, makedev(MAJOR, minor))?)
        })?;
        open(made.path())
    }
}

impl Nodes for DeviceNodes {
    fn open_control(&self) -> Result<File, RmError> {
        self.open_or_make("nvidiactl", CONTROL_MINOR)
    }

    fn open_gpu(&self) -> Result<File, RmError> {
        let existing = (0..MAX_GPU_MINORS).find_map(|minor| open(&self.dev.join(format!("nvidia{minor}"))).ok());
        existing.map_or_else(|| self.open_or_make("nvidia0", 0), Ok)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn missing_device_leaves_dev_unchanged() {
        let fake = FakeHost::in_order();
        fake.write("/dev/null", "");
        let error = DeviceNodes::of(&fake.host()).open_control().expect_err("no driver behind it");
        assert!(matches!(&error, RmError::Open { path, .. } if path.ends_with("dev/nvidiactl")), "{error:?}");
        assert_eq!(std::fs::read_dir(fake.host().at("/dev")).expect("a directory").count(), 1);
    }

    #[test]
    fn any_gpu_will_do() {
        let fake = FakeHost::in_order();
        fake.write("/dev/nvidia3", "");
        assert!(DeviceNodes::of(&fake.host()).open_gpu().is_ok());
    }
}
