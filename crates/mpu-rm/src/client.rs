//! A client of the resource manager with the objects of one GPU.

use crate::bytes::write_u32;
use crate::error::RmError;
use crate::object::{DEVICE, Object};
use crate::sys;
use mpu_abi::Release;
use mpu_abi::ioctl::alloc_status;
use std::fs::File;
use std::os::fd::AsFd;

/// Opens device nodes.
pub trait Nodes {
    /// Opens the control node.
    ///
    /// # Errors
    /// [`RmError::Open`] if it is missing or cannot be opened.
    fn open_control(&self) -> Result<File, RmError>;
    /// Opens the node of a GPU.
    ///
    /// # Errors
    /// [`RmError::Open`] if it is missing or cannot be opened.
    fn open_gpu(&self) -> Result<File, RmError>;
}

/// `NV0000_CTRL_CMD_GPU_ATTACH_IDS`: 32 ids and the one that failed.
const ATTACH_GPUS: (u32, usize) = (0x215, 132);
const ALL_GPUS: u32 = 0xffff;
/// The driver's limit of GPUs.
pub(super) const MAX_GPUS: u32 = 32;

/// One client of the resource manager, with one GPU's device and subdevice.
pub struct Client {
    control: File,
    // Stays open: the first open of the node starts the GPU, and without persistence mode the last close stops it.
    _gpu: Option<File>,
    /// Selects the layouts of the parameters.
    pub(super) release: Release,
    pub(super) client: u32,
}

impl Client {
    /// Opens the driver and creates a client on the first GPU that answers. RM records the calling thread.
    ///
    /// # Errors
    /// If the control node cannot be opened, or the driver creates no client, or no GPU answers.
    pub fn of_first_gpu(nodes: &dyn Nodes, release: Release) -> Result<Client, RmError> {
        let gpu = nodes.open_gpu().ok();
        let client = Client::new(nodes.open_control()?, gpu, release)?;
        client.alloc_first_device()?;
        client.alloc(Object::Subdevice)?;
        Ok(client)
    }

    /// Opens the driver and creates a client on the GPU with this UUID. `nodes` opens that GPU's node.
    pub fn of_gpu(nodes: &dyn Nodes, release: Release, uuid: &str) -> Option<Client> {
        let gpu = nodes.open_gpu().ok()?;
        let client = Client::new(nodes.open_control().ok()?, Some(gpu), release).ok()?;
        (0..MAX_GPUS).any(|instance| client.alloc_device_with_uuid(instance, uuid)).then_some(client)
    }

    pub(super) fn new(control: File, gpu: Option<File>, release: Release) -> Result<Client, RmError> {
        let mut client = Client { control, _gpu: gpu, release, client: 0 };
        client.client = client.alloc(Object::Client)?;
        // If this fails, creating a device fails with a better error.
        let mut all = vec![0u8; ATTACH_GPUS.1];
        write_u32(&mut all, 0, ALL_GPUS);
        write_u32(&mut all, 4, u32::MAX);
        let _ = client.control("GPU_ATTACH_IDS", ATTACH_GPUS.0, client.client, &mut all);
        Ok(client)
    }

    /// Allocates the device object of the first GPU that answers. Instances have gaps where a GPU fell off the bus or
    /// belongs to another user.
    fn alloc_first_device(&self) -> Result<(), RmError> {
        let alloc = |instance| self.alloc(Object::Device { instance });
        let first = alloc(0);
        if matches!(first, Err(RmError::Status { .. })) && (1..MAX_GPUS).any(|instance| alloc(instance).is_ok()) {
            return Ok(());
        }
        first.map(|_| ())
    }

    /// Allocates an instance's objects. Frees them again unless the GPU has this UUID.
    fn alloc_device_with_uuid(&self, instance: u32, uuid: &str) -> bool {
        if self.alloc(Object::Device { instance }).is_err() {
            return false;
        }
        let found = self.alloc(Object::Subdevice).ok().and_then(|_| self.uuid());
        if found.is_some_and(|found| found.eq_ignore_ascii_case(uuid)) {
            return true;
        }
        self.free(self.client, DEVICE);
        false
    }

    pub(super) fn control(&self, what: &'static str, cmd: u32, object: u32, params: &mut [u8]) -> Result<(), RmError> {
        let status = sys::control(self.control.as_fd(), [self.client, object, cmd], params);
        match status.map_err(|source| RmError::Ioctl { what, source })? {
            0 => Ok(()),
            status => Err(RmError::Status { what, status }),
        }
    }

    /// Allocates an object and returns its handle.
    pub(super) fn alloc(&self, object: Object<'_>) -> Result<u32, RmError> {
        let (class, handle, what) = object.class_handle_name();
        let header = [self.client, object.parent(self.client), handle, class];
        let answer = sys::alloc(self.control.as_fd(), header, &mut object.params(), alloc_status(self.release));
        match answer.map_err(|source| RmError::Ioctl { what, source })? {
            (0, handle) => Ok(handle),
            (status, _) => Err(RmError::Status { what, status }),
        }
    }

    /// Frees an object. If that fails, the object is freed with its client.
    pub(super) fn free(&self, parent: u32, handle: u32) {
        let _ = sys::free(self.control.as_fd(), [self.client, parent, handle]);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Closing the node frees the client, too, but a lookup right after it may still find the client.
        self.free(0, self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn open(&self, name: &str) -> Result<File, RmError> {
            let path = self.0.path().join(name);
            File::options().read(true).write(true).open(&path).map_err(|source| RmError::Open { path, source })
        }
    }

    impl Nodes for Folder {
        fn open_control(&self) -> Result<File, RmError> {
            self.open("nvidiactl")
        }
        fn open_gpu(&self) -> Result<File, RmError> {
            self.open("nvidia0")
        }
    }

    #[test]
    fn plain_file_as_device_node_has_no_client() {
        let release = Release::new(580, 159, 4);
        let nodes = Folder(tempfile::tempdir().expect("a folder"));
        assert!(matches!(Client::of_first_gpu(&nodes, release), Err(RmError::Open { .. })));
        assert!(Client::of_gpu(&nodes, release, "GPU-").is_none());
        for name in ["nvidia0", "nvidiactl"] {
            std::fs::write(nodes.0.path().join(name), "").expect("a file");
        }
        let error = Client::of_first_gpu(&nodes, release).err().expect("no driver");
        assert!(matches!(error, RmError::Ioctl { what: "a new client", .. }), "{error:?}");
        assert!(Client::of_gpu(&nodes, release, "GPU-").is_none());
        assert!(Client::samples_of_gpus(nodes.open_control().expect("a file"), release).is_err());
    }
}
