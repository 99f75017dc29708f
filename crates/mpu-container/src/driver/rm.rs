//! A small client of NVIDIA's resource manager: the few questions that no file answers.
//!
//! Owns the classes, commands and layouts of those questions. Refuses to know what an answer means to a container. Every
//! question can be refused (an old release, a GPU that fell off, no rights); then there is no answer, and no error.
//!
//! Outside truth: NVIDIA's open kernel modules 515 to 595: `nvos.h`, `cl0080.h`, `cl2080.h`, `clc637.h`, `clc638.h`,
//! `ctrl0000gpu.h`, `ctrl2080gpu.h`, `ctrl2080mc.h`, `ctrlc638.h`; 615: `ctrl0000unix.h` (memory limits).

use super::sys;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// `NV0000_CTRL_CMD_GPU_ATTACH_IDS`: 32 ids and the one that failed.
const ATTACH_GPUS: (u32, usize) = (0x215, 132);
const ALL_GPUS: u32 = 0xffff;
/// `NV2080_CTRL_CMD_GPU_GET_GID_INFO`: index, flags (0: text), length, 256 bytes.
const GPU_UUID: (u32, usize) = (0x2080_014a, 268);
/// `NV2080_CTRL_CMD_MC_GET_ARCH_INFO`: architecture, implementation, revisions.
const ARCHITECTURE: (u32, usize) = (0x2080_1701, 16);
/// `NV2080_CTRL_CMD_GPU_GET_INFO_V2`: a count and pairs of index and value. Its length is the release's own: these are
/// those of 515, 535, 550 and 580.
const GPU_INFO: (u32, [usize; 4]) = (0x2080_0102, [564, 524, 516, 500]);
/// `NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE`, and its value for "enabled".
const MIG_MODE: (u32, u32) = (0x2a, 1);
/// `NV2080_CTRL_CMD_GPU_GET_ID`: the number by which controls of the client name a GPU.
const GPU_ID: (u32, usize) = (0x2080_0142, 4);
/// `NV0000_CTRL_OS_UNIX_CMD_MEMACCT_SET_LIMITS`: a cgroup's descriptor, a GPU's number, two limits of 64 bits.
const SET_MEMORY: (u32, usize) = (0x3d0d, 24);
/// `NV0000_CTRL_OS_UNIX_CMD_MEMACCT_GET_LIMITS`: a cgroup's descriptor, a count, and for each of 32 GPUs its number,
/// padding, two limits and what is used.
const GET_MEMORY: (u32, usize) = (0x3d0e, 8 + 32 * ONE_LIMIT);
const ONE_LIMIT: usize = 32;
/// `NV0000_CTRL_OS_UNIX_CMD_MEMACCT_GET_IMPL`: who counts memory.
const MEMORY_BACKEND: (u32, usize) = (0x3d0f, 4);
/// The status of a control that got no answer: no status of the resource manager's.
const NO_ANSWER: u32 = u32::MAX;
/// `NVC638_CTRL_CMD_GET_UUID`: 16 bytes, and 41 bytes of text.
const COMPUTE_INSTANCE_UUID: (u32, usize) = (0xc638_0101, 57);
/// As many GPUs as one driver has.
const MOST_GPUS: u32 = 32;

/// Handles of our own choice; they need to be unique in one client only.
const DEVICE: u32 = 0x6d70_0080;
const SUBDEVICE: u32 = 0x6d70_2080;
const GPU_INSTANCE: u32 = 0x6d70_c637;
const COMPUTE_INSTANCE: u32 = 0x6d70_c638;

/// Who counts the memory that a cgroup uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    /// Nobody.
    None,
    /// The driver.
    Driver,
    /// The kernel's controller `dmem`.
    Dmem,
}

/// What this client makes. Its parameters hold no pointer.
enum Object<'a> {
    Client,
    Device {
        instance: u32,
    },
    Subdevice,
    /// `access` is the open node of the capability.
    GpuInstance {
        number: u32,
        access: &'a File,
    },
    ComputeInstance {
        number: u32,
        access: &'a File,
    },
}

impl Object<'_> {
    fn class(&self) -> u32 {
        match self {
            Object::Client => 0x0,
            Object::Device { .. } => 0x80,
            Object::Subdevice => 0x2080,
            Object::GpuInstance { .. } => 0xc637,
            Object::ComputeInstance { .. } => 0xc638,
        }
    }

    fn handle(&self) -> u32 {
        match self {
            Object::Client => 0,
            Object::Device { .. } => DEVICE,
            Object::Subdevice => SUBDEVICE,
            Object::GpuInstance { .. } => GPU_INSTANCE,
            Object::ComputeInstance { .. } => COMPUTE_INSTANCE,
        }
    }

    /// The parameters, in a block that is long enough for every release: a release copies as much as it knows.
    fn params(&self) -> [u8; 128] {
        let mut params = [0u8; 128];
        match self {
            Object::Client | Object::Subdevice => {}
            Object::Device { instance } => set(&mut params, 0, *instance),
            Object::GpuInstance { number, access } | Object::ComputeInstance { number, access } => {
                // The descriptor is a 64-bit word. It is never negative.
                set(&mut params, 0, access.as_raw_fd() as u32);
                set(&mut params, 8, *number);
            }
        }
        params
    }
}

/// A client with one GPU's objects.
pub(super) struct Client {
    control: File,
    // Held open: the first opener of a GPU's node starts the GPU, and a driver without persistence stops it with the
    // last.
    _gpu: File,
    status_at: usize,
    client: u32,
}

impl Client {
    /// Opens the driver and finds the GPU by its UUID. `devices` is the folder that has `dev`.
    pub(super) fn open(devices: &Path, version: &str, minor: u32, uuid: &str) -> Option<Client> {
        let open = |name: &str| File::options().read(true).write(true).open(devices.join("dev").join(name)).ok();
        let gpu = open(&format!("nvidia{minor}"))?;
        let control = open("nvidiactl")?;
        // The 32-byte block ended in a status and padding; 535 put the parameters' size before the status.
        let branch: u32 = version.split('.').next()?.parse().ok()?;
        let status_at = if branch >= 535 { 28 } else { 24 };
        let mut client = Client { control, _gpu: gpu, status_at, client: 0 };
        client.client = client.make(Object::Client, 0)?;
        let mut all = vec![0u8; ATTACH_GPUS.1];
        set(&mut all, 0, ALL_GPUS);
        set(&mut all, 4, u32::MAX);
        client.ask(ATTACH_GPUS.0, client.client, &mut all);
        // Instances have gaps where a GPU fell off or belongs to somebody else.
        (0..MOST_GPUS).any(|instance| client.is_gpu(instance, uuid)).then_some(client)
    }

    /// Makes an instance's objects, and keeps them if it is the GPU with the UUID.
    fn is_gpu(&self, instance: u32, uuid: &str) -> bool {
        if self.make(Object::Device { instance }, self.client).is_none() {
            return false;
        }
        let found = self.make(Object::Subdevice, DEVICE).and_then(|_| {
            let mut params = vec![0u8; GPU_UUID.1];
            self.ask(GPU_UUID.0, SUBDEVICE, &mut params)?;
            text(&params[12..])
        });
        if found.is_some_and(|found| found.eq_ignore_ascii_case(uuid)) {
            return true;
        }
        // What cannot be freed now goes with the client.
        let _ = sys::free(self.control.as_fd(), [self.client, self.client, DEVICE]);
        false
    }

    /// The chip: architecture and implementation, as `ctrl2080mc.h` numbers them.
    pub(super) fn chip(&self) -> Option<(u32, u32)> {
        let mut params = vec![0u8; ARCHITECTURE.1];
        self.ask(ARCHITECTURE.0, SUBDEVICE, &mut params)?;
        Some((get(&params, 0), get(&params, 4)))
    }

    /// Whether the GPU is in MIG mode.
    pub(super) fn mig_mode(&self) -> Option<bool> {
        GPU_INFO.1.into_iter().find_map(|size| {
            let mut params = vec![0u8; size];
            set(&mut params, 0, 1);
            set(&mut params, 4, MIG_MODE.0);
            self.ask(GPU_INFO.0, SUBDEVICE, &mut params)?;
            Some(get(&params, 8) == MIG_MODE.1)
        })
    }

    /// The UUID of a compute instance, as `MIG-…`. The files are the open nodes of the two capabilities.
    pub(super) fn mig_uuid(&self, instances: [u32; 2], access: [&File; 2]) -> Option<String> {
        let uuid =
            self.make(Object::GpuInstance { number: instances[0], access: access[0] }, SUBDEVICE).and_then(|_| {
                let object = Object::ComputeInstance { number: instances[1], access: access[1] };
                self.make(object, GPU_INSTANCE)?;
                let mut params = vec![0u8; COMPUTE_INSTANCE_UUID.1];
                self.ask(COMPUTE_INSTANCE_UUID.0, COMPUTE_INSTANCE, &mut params)?;
                text(&params[16..]).filter(|uuid| uuid.starts_with("MIG-"))
            });
        let _ = sys::free(self.control.as_fd(), [self.client, SUBDEVICE, GPU_INSTANCE]);
        uuid
    }

    /// Who counts memory; none from a release that does not know the question.
    pub(super) fn memory_backend(&self) -> Option<Backend> {
        let mut params = vec![0u8; MEMORY_BACKEND.1];
        self.ask(MEMORY_BACKEND.0, self.client, &mut params)?;
        match get(&params, 0) {
            1 => Some(Backend::Driver),
            2 => Some(Backend::Dmem),
            _ => Some(Backend::None),
        }
    }

    /// Limits the memory of a cgroup, given by its open directory, on this client's GPU. The error is a status.
    pub(super) fn set_memory_limits(&self, cgroup: &File, soft: u64, hard: u64) -> Result<(), u32> {
        let gpu = self.gpu_id().ok_or(NO_ANSWER)?;
        self.tell(SET_MEMORY.0, self.client, &mut memory_params(cgroup, gpu, [soft, hard]))
    }

    /// The limits that hold for a cgroup, its own or those of the nearest above it: soft and hard.
    pub(super) fn memory_limits(&self, cgroup: &File) -> Option<[u64; 2]> {
        let gpu = self.gpu_id()?;
        let mut params = vec![0u8; GET_MEMORY.1];
        set(&mut params, 0, cgroup.as_raw_fd() as u32);
        self.ask(GET_MEMORY.0, self.client, &mut params)?;
        limits_of(&params, gpu)
    }

    fn gpu_id(&self) -> Option<u32> {
        let mut params = vec![0u8; GPU_ID.1];
        self.ask(GPU_ID.0, SUBDEVICE, &mut params)?;
        Some(get(&params, 0))
    }

    fn ask(&self, command: u32, object: u32, params: &mut [u8]) -> Option<()> {
        self.tell(command, object, params).ok()
    }

    fn tell(&self, command: u32, object: u32, params: &mut [u8]) -> Result<(), u32> {
        let status = sys::control(self.control.as_fd(), [self.client, object, command], params);
        match answered(status).unwrap_or(NO_ANSWER) {
            0 => Ok(()),
            status => Err(status),
        }
    }

    fn make(&self, object: Object<'_>, parent: u32) -> Option<u32> {
        let words = [self.client, parent, object.handle(), object.class()];
        let answer = sys::alloc(self.control.as_fd(), words, &mut object.params(), self.status_at);
        answered(answer).filter(|(status, _)| *status == 0).map(|(_, handle)| handle)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Closing the node frees the client, too; asking first means that a later look-up cannot still find it.
        let _ = sys::free(self.control.as_fd(), [self.client, 0, self.client]);
    }
}

/// An ioctl that failed has no answer: the driver does not know the request, or does not let us.
fn answered<T>(answer: io::Result<T>) -> Option<T> {
    answer.ok()
}

fn memory_params(cgroup: &File, gpu: u32, limits: [u64; 2]) -> Vec<u8> {
    let mut params = vec![0u8; SET_MEMORY.1];
    set(&mut params, 0, cgroup.as_raw_fd() as u32);
    set(&mut params, 4, gpu);
    for (at, limit) in [(8, limits[0]), (16, limits[1])] {
        params[at..at + 8].copy_from_slice(&limit.to_ne_bytes());
    }
    params
}

/// A GPU's limits in an answer. The count is the driver's, and no more than there is room for is looked at.
fn limits_of(params: &[u8], gpu: u32) -> Option<[u64; 2]> {
    let count = get(params, 4) as usize;
    let mut all = params[8..].chunks_exact(ONE_LIMIT).take(count);
    let one = all.find(|one| get(one, 0) == gpu)?;
    let wide = |at: usize| u64::from(get(one, at)) | u64::from(get(one, at + 4)) << 32;
    Some([wide(8), wide(16)])
}

fn set(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
}

fn get(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0u8; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(word)
}

/// Text up to its 0.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_not_the_drivers_has_no_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("dev")).expect("a folder");
        assert!(Client::open(folder.path(), "580.159.04", 0, "GPU-").is_none());
        for name in ["nvidia0", "nvidiactl"] {
            std::fs::write(folder.path().join("dev").join(name), "").expect("a file");
        }
        assert!(Client::open(folder.path(), "580.159.04", 0, "GPU-").is_none());
        assert!(Client::open(folder.path(), "nonsense", 0, "GPU-").is_none());
    }

    #[test]
    fn object_parameters_hold_a_descriptor_and_a_number_and_no_pointer() {
        let file = File::open("/dev/null").expect("/dev/null");
        let params = Object::GpuInstance { number: 5, access: &file }.params();
        assert_eq!((get(&params, 0), get(&params, 4), get(&params, 8)), (file.as_raw_fd() as u32, 0, 5));
        assert_eq!(params[12..], [0; 116]);
        assert_eq!(Object::Device { instance: 3 }.params()[4..], [0; 124]);
    }

    #[test]
    fn limits_travel_as_the_driver_reads_them() {
        let file = File::open("/dev/null").expect("/dev/null");
        let sent = memory_params(&file, 0x1b00, [1 << 32, u64::MAX]);
        assert_eq!((get(&sent, 0), get(&sent, 4)), (file.as_raw_fd() as u32, 0x1b00));
        assert_eq!((get(&sent, 8), get(&sent, 12), get(&sent, 16), get(&sent, 20)), (0, 1, u32::MAX, u32::MAX));
        let mut answer = vec![0u8; GET_MEMORY.1];
        for (number, gpu) in [0x4300u32, 0x1b00].into_iter().enumerate() {
            let at = 8 + number * ONE_LIMIT;
            set(&mut answer, at, gpu);
            answer[at + 8..at + 24].copy_from_slice(&sent[8..]);
        }
        for (count, found) in
            [(0, None), (1, None), (2, Some([1 << 32, u64::MAX])), (u32::MAX, Some([1 << 32, u64::MAX]))]
        {
            set(&mut answer, 4, count);
            assert_eq!(limits_of(&answer, 0x1b00), found, "{count}");
        }
    }

    #[test]
    fn text_ends_at_its_zero() {
        assert_eq!(text(b"MIG-1\0rest").as_deref(), Some("MIG-1"));
        assert_eq!(text(b"no end"), None);
        assert_eq!(text(b"\xff\0"), None);
    }
}
