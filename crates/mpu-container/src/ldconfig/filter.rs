//! The system calls that ldconfig may make.
//!
//! Allows the calls that ldconfig of any glibc needs: memory, files by name, exit. All others return ENOSYS, which programs handle as on an
//! old kernel. So sockets, mounts, new processes or namespaces, devices, keys and tracing are impossible.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use std::collections::BTreeMap;

const COMMON_CALLS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_chdir,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    // Starts ldconfig. The filter persists across this call.
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_prlimit64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync,
    libc::SYS_sysinfo,
    libc::SYS_tgkill,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Older calls, which newer architectures have only as `*at` calls.
#[cfg(target_arch = "x86_64")]
const ARCH_CALLS: &[i64] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_lstat,
    libc::SYS_open,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_symlink,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ARCH_CALLS: &[i64] = &[];

/// Calls that return 0 at once. The cache need not survive a crash of the host: the container's next start writes it again.
const SYNC_CALLS: &[i64] = &[libc::SYS_fdatasync, libc::SYS_fsync, libc::SYS_sync];

/// Filters in the order in which they are applied. The last one forbids further filters. It must allow [`SYNC_CALLS`], because its error would
/// take precedence.
pub fn programs() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let machine: TargetArch = std::env::consts::ARCH.try_into()?;
    let filter = |numbers: &mut dyn Iterator<Item = &i64>, others, these| {
        let rules: BTreeMap<i64, Vec<_>> = numbers.map(|number| (*number, Vec::new())).collect();
        SeccompFilter::new(rules, others, these, machine)?.try_into()
    };
    let refuse = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    Ok([
        filter(&mut SYNC_CALLS.iter(), SeccompAction::Allow, SeccompAction::Errno(0))?,
        filter(&mut COMMON_CALLS.iter().chain(ARCH_CALLS), refuse, SeccompAction::Allow)?,
    ])
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;
    use rustix::io::Errno;

    #[test]
    fn sync_under_the_filters_returns_at_once() {
        let (pipe, _other) = std::io::pipe().unwrap();
        // fsync fails on a pipe.
        assert_eq!(rustix::fs::fsync(&pipe), Err(Errno::INVAL));
        let filters = super::programs().unwrap();
        // Filters apply to one thread.
        let filtered = move || {
            filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter)).unwrap();
            (
                rustix::fs::fsync(&pipe),
                rustix::fs::fdatasync(&pipe),
                rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).map(drop),
            )
        };
        let ended = std::thread::spawn(filtered).join().unwrap();
        assert_eq!(ended, (Ok(()), Ok(()), Err(Errno::NOSYS)));
    }
}
