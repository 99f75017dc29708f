//! Seccomp profiles of containers: none, one like those of engines, one that allows by default.

use serde_json::{Value, json};

/// A profile like those of engines: it allows the named calls, ioctl among them, and refuses all others.
pub fn usual_profile() -> Value {
    let names = "\
        accept access arch_prctl bind brk capget capset chdir clock_gettime clone clone3 close close_range connect dup dup2 dup3 \
        epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 execve execveat exit exit_group faccessat faccessat2 fchdir fchown fcntl \
        fstat fstatfs futex getcwd getdents64 getegid geteuid getgid getpgrp getpid getppid getrandom getsockopt gettid getuid ioctl lseek \
        madvise mmap mprotect mremap munmap nanosleep newfstatat open openat openat2 pause pidfd_open pipe pipe2 poll ppoll prctl pread64 \
        prlimit64 pselect6 read readlink readlinkat recvmsg recvfrom restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn \
        sched_getaffinity sched_yield select sendmsg sendto set_robust_list set_tid_address setgid setgroups setpgid setresgid setresuid \
        setsid setuid sigaltstack socket socketpair stat statfs statx sysinfo tgkill umask uname unlink wait4 waitid write writev";
    json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            {"names": names.split_whitespace().collect::<Vec<_>>(), "action": "SCMP_ACT_ALLOW"},
            {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}]}
        ]
    })
}

/// The profiles of containers that can have a listener.
pub fn profiles() -> [(&'static str, Value); 3] {
    let allows = json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
        "syscalls": [{"names": ["keyctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]});
    [("none", Value::Null), ("usual", usual_profile()), ("allows", allows)]
}
