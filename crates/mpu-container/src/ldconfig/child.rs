//! Isolates the new process, from its start to `execveat` of ldconfig. All data is prepared before clone: the process allocates nothing and
//! takes no lock.

use super::error::LdconfigError;
use super::{filter, sys};
use crate::beneath::{Root, Tree};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid};
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet, CapabilitySets};
use std::ffi::CString;
use std::io;
use std::path::Path;

/// Folders hidden by empty file systems: the container's `/proc`, and ldconfig's auxiliary cache, which is untrusted and not needed.
const HIDDEN_FOLDERS: [&std::ffi::CStr; 2] = [c"proc", c"var/cache/ldconfig"];

/// Resource limits. ldconfig maps whole libraries, up to some GiB, and allocates a hundred bytes for each. If it cannot map a library, it
/// leaves it out and succeeds.
const LIMITS: [(Resource, u64); 6] = [
    (Resource::Nofile, 64),
    (Resource::As, 64 << 30),
    (Resource::Data, 256 << 20),
    (Resource::Fsize, 64 << 20),
    (Resource::Cpu, 10),
    (Resource::Core, 0),
];

/// Everything that the new process needs, allocated before it starts.
pub(super) struct Jail<'a> {
    tree: Tree,
    empty: [Tree; HIDDEN_FOLDERS.len()],
    owner: Option<(Uid, Gid)>,
    filters: [seccompiler::BpfProgram; 2],
    program: BorrowedFd<'a>,
    arguments: Vec<CString>,
    /// Whether to use `pivot_root` instead of chroot.
    pivot: bool,
    pub(super) output: OwnedFd,
    pub(super) report: OwnedFd,
}

/// Names of the new process's steps, for errors.
pub(super) const STEPS: [&str; 9] = [
    "separate its mounts",
    "enter the container's root",
    "leave the host's root",
    "empty /proc",
    "redirect its output",
    "limit what it may use",
    "become the owner of the container's files",
    "give up capabilities",
    "start it",
];

impl Jail<'_> {
    pub(super) fn prepare<'a>(
        root: &Root,
        program: &'a OwnedFd,
        arguments: &[&str],
        pivot: bool,
    ) -> Result<Jail<'a>, LdconfigError> {
        let wrap = |step| move |source| LdconfigError::Jail { step, source };
        let memory = || rustix::fs::memfd_create("mpu", MemfdFlags::CLOEXEC).map_err(io::Error::from);
        let tree = Tree::of(root, true).map_err(wrap(
            "copy the container's mounts (root's rights are needed, or those of a user namespace's root)",
        ))?;
        let empty = || Tree::memory(1 << 20).map_err(wrap("make an empty file system"));
        let filters = filter::programs()
            .map_err(|error| LdconfigError::Jail { step: "list its system calls", source: io::Error::other(error) })?;
        let arguments = arguments.iter().map(|word| CString::new(*word).map_err(io::Error::from));
        Ok(Jail {
            tree,
            empty: [empty()?, empty()?],
            owner: owner(root)?,
            filters,
            program: program.as_fd(),
            arguments: arguments.collect::<Result<_, _>>().map_err(wrap("write its arguments"))?,
            pivot,
            output: memory().map_err(wrap("make a place for its output"))?,
            report: memory().map_err(wrap("make a place for its output"))?,
        })
    }

    /// Runs in the new process and executes the program. Returns only after an error.
    pub(super) fn enter(&self) {
        let (step, error) = match self.run_steps() {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        let [a, b, c, d] = error.raw_os_error().to_ne_bytes();
        // If this fails, too, the caller gets only the exit status.
        let _ = rustix::io::write(&self.report, &[step, a, b, c, d]);
    }

    fn run_steps(&self) -> Result<std::convert::Infallible, (u8, Errno)> {
        let at = |step: u8| move |error: Errno| (step, error);
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(0))?;
        rustix::mount::mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(at(0))?;
        self.change_root().map_err(at(1))?;
        rustix::process::chdir(c"/").map_err(at(2))?;
        for (path, tree) in HIDDEN_FOLDERS.iter().zip(&self.empty) {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(&self.tree, *path, flags, Mode::empty(), resolve) {
                Ok(found) => tree.attach(found.as_fd()).map_err(at(3))?,
                // Missing, or a link: not followed.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err((3, error)),
            }
        }
        rustix::stdio::dup2_stdin(&self.output).map_err(at(4))?;
        rustix::stdio::dup2_stdout(&self.output).map_err(at(4))?;
        rustix::stdio::dup2_stderr(&self.output).map_err(at(4))?;
        sys::close_on_exec().map_err(at(4))?;
        for (resource, most) in LIMITS {
            // Do not raise an existing lower limit.
            let now = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
            let most = Some(most.min(now));
            rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most }).map_err(at(5))?;
        }
        self.drop_privileges(at)?;
        // The change of user has reset it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(at(0))?;
        self.filters
            .iter()
            .try_for_each(|filter| seccompiler::apply_filter(filter))
            .map_err(|error| (7, errno(&error)))?;
        Err((8, sys::execute(self.program, &self.arguments)))
    }

    /// Makes the container's root this process's root, and unmounts the host's.
    fn change_root(&self) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let host = rustix::fs::openat(CWD, c"/", flags, Mode::empty())?;
        self.tree.attach(host.as_fd())?;
        rustix::process::fchdir(&self.tree)?;
        // The copies may still be peers of the original mounts.
        rustix::mount::mount_change(c".", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let pivot = || rustix::process::pivot_root(c".", c".");
        match self.pivot.then(pivot) {
            Some(Ok(())) => {
                rustix::process::fchdir(&host)?;
                rustix::mount::unmount(c".", UnmountFlags::DETACH)
            }
            // pivot_root fails on an initial RAM file system. chroot is enough: the program has no capabilities, no
            // descriptors from outside, and cannot start processes.
            None | Some(Err(Errno::INVAL)) => rustix::process::chroot(c"."),
            Some(Err(error)) => Err(error),
        }
    }

    fn drop_privileges<At: Fn(Errno) -> (u8, Errno)>(&self, at: impl Fn(u8) -> At) -> Result<(), (u8, Errno)> {
        // Root's user ID gives a program no capabilities then.
        let fixed = CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
        rustix::thread::set_capabilities_secure_bits(fixed).map_err(at(7))?;
        for bit in 0..64 {
            match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
                Ok(()) => {}
                // No further capability exists.
                Err(Errno::INVAL) => break,
                Err(error) => return Err(at(7)(error)),
            }
        }
        if let Some((user, group)) = self.owner {
            match rustix::thread::set_thread_groups(&[]) {
                // An ordinary user's user namespace cannot change groups. They are harmless there.
                Ok(()) | Err(Errno::PERM) => {}
                Err(error) => return Err(at(6)(error)),
            }
            rustix::thread::set_thread_res_gid(group, group, group).map_err(at(6))?;
            rustix::thread::set_thread_res_uid(user, user, user).map_err(at(6))?;
        }
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, none).map_err(at(7))?;
        rustix::thread::set_no_new_privs(true).map_err(at(7))
    }
}

fn errno(error: &seccompiler::Error) -> Errno {
    match error {
        seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => Errno::from_io_error(error),
        _ => None,
    }
    .unwrap_or(Errno::INVAL)
}

/// The owner of `/etc`, if it is another user: files of a container in a user namespace belong to that namespace's root.
fn owner(root: &Root) -> Result<Option<(Uid, Gid)>, LdconfigError> {
    let folder = root.resolve(Path::new("/etc"))?;
    let about = rustix::fs::fstat(&folder)
        .map_err(|error| LdconfigError::Jail { step: "look at the container's /etc", source: error.into() })?;
    let own_uid = rustix::process::geteuid().as_raw();
    // The kernel shows a user that is not mapped in this namespace as overflowuid (/proc/sys/kernel/overflowuid).
    const OVERFLOW_UID: u32 = 65534;
    let other = about.st_uid != own_uid && about.st_uid != OVERFLOW_UID;
    Ok(other.then(|| (Uid::from_raw(about.st_uid), Gid::from_raw(about.st_gid))))
}
