//! Containers with a GPU, made by the wrapper with real runc and real crun, tell an engine of the calls that it wants to hear of,
//! and of no other: with no profile, with a profile as engines have, with several that rule an engine out.
//!
//! The GPU is a CDI file that gives /dev/null the driver's name: who answers a call is seen by the error, before any file is looked at. The
//! engine is a socket in this test (`listener.rs`). Needs root, runc or crun, busybox and cc; says which is missing and checks nothing then.

#[path = "../conformance/bundle.rs"]
mod bundle;
mod listener;
mod sys;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bundle::{base, found, make_root};
use listener::{build_caller, Engine, ANSWER};
use serde_json::{json, Value};

/// RM control in its usual form, as another type and direction, and the wrapped form.
const TOLD: [u64; 3] = [0xc020_462a, 0x0020_ff2a, 0xc010_46d3];

struct Host {
    dir: tempfile::TempDir,
    runtime: &'static str,
}

/// How a container's life went.
struct Ran {
    said: String,
    ok: bool,
    spec: Value,
    log: String,
}

impl Ran {
    /// That the container lived and said exactly this, and the wrapper's log has these words.
    fn said(&self, lines: &[String], log: &str) {
        assert!(self.ok, "{}", self.said);
        let said: Vec<&str> = self.said.lines().filter(|line| !line.contains("level=")).collect();
        assert_eq!(said, lines, "{}", self.said);
        assert!(self.log.contains(log), "{log}: {}", self.log);
    }
}

impl Host {
    /// With each runtime that is there.
    fn each(mut claim: impl FnMut(&Host)) {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: not root, who alone can make containers with every namespace");
        }
        let Some(busybox) = found("busybox") else { return println!("skipped: no busybox for a container's root") };
        if found("cc").is_none() {
            return println!("skipped: no cc for the program that calls");
        }
        for runtime in ["runc", "crun"] {
            let Some(low) = found(runtime) else {
                println!("skipped: no {runtime}");
                continue;
            };
            let host = Host { dir: tempfile::tempdir().unwrap(), runtime };
            make_root(&host.at("bundle/rootfs"), &busybox);
            build_caller(&host.at("bundle/rootfs/bin/caller"));
            symlink(env!("CARGO_BIN_EXE_mpu-container"), host.at("nvidia-container-runtime")).unwrap();
            host.configure(&low, "");
            let device = json!({"path": "/dev/nvidiactl", "hostPath": "/dev/null"});
            let file = json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
                "devices": [{"name": "0", "containerEdits": {"deviceNodes": [device]}}]});
            fs::create_dir(host.at("cdi")).unwrap();
            fs::write(host.at("cdi/nvidia.json"), file.to_string()).unwrap();
            claim(&host);
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn configure(&self, low: &std::path::Path, policy: &str) {
        let (cdi, log, socket) = (self.at("cdi"), self.at("debug.log"), self.at("run/listener.sock"));
        let text = format!(
            "[nvidia-container-runtime]\nruntimes = [{low:?}]\nmode = \"cdi\"\nlog-level = \"debug\"\ndebug = {log:?}\n\
             modes.cdi.spec-dirs = [{cdi:?}]\n[mpu]\nnotify-socket = {socket:?}\n{policy}\n"
        );
        fs::write(self.at("config.toml"), text).unwrap();
    }

    fn engine(&self) -> Engine {
        Engine::at(&self.at("run/listener.sock"))
    }

    /// A container whose program is the caller with these words, as an engine describes it.
    fn spec(&self, words: &[&str]) -> Value {
        let mut spec = base();
        spec["process"]["args"] = [&["caller"], words].concat().into();
        spec["process"]["env"] = json!(["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=0"]);
        spec["x-unknown"] = json!({"z": 1.50});
        spec
    }

    /// Creates, starts, does what the script says, waits for the end, deletes.
    fn live(&self, spec: &Value, script: &str) -> Ran {
        fs::write(self.at("bundle/config.json"), spec.to_string()).unwrap();
        let _ = fs::remove_file(self.at("debug.log"));
        let script = format!(
            r#"umount -l /sys/fs/cgroup/unified 2>/dev/null
            r() {{ "$RUNTIME" --root "$STATE" "$@"; }}
            trap 'r delete --force $C 2>/dev/null' EXIT
            r create -b . $C && r start $C || exit 1
            {script}
            for i in $(seq 500); do r state $C | grep -q '"stopped"' && break; sleep 0.02; done
            for i in $(seq 50); do r delete $C 2>/dev/null && break; sleep 0.02; done"#
        );
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .current_dir(self.at("bundle"))
            .env("RUNTIME", self.at("nvidia-container-runtime"))
            .env("NVIDIA_CTK_CONFIG_FILE_PATH", self.at("config.toml"))
            .env("STATE", self.at("state"))
            .env("C", self.name())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        Ran {
            said: String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
            ok: output.status.success(),
            spec: serde_json::from_slice(&fs::read(self.at("bundle/config.json")).unwrap()).unwrap(),
            log: fs::read_to_string(self.at("debug.log")).unwrap_or_default(),
        }
    }

    fn name(&self) -> String {
        let folder = self.dir.path().file_name().unwrap_or_default().to_string_lossy();
        format!("notify-{}-{}", self.runtime, folder.trim_start_matches('.'))
    }
}

/// What `caller call` says of these requests: who is told answers, all else ends at the file.
fn told() -> Vec<String> {
    let of = |request: &u64| if request & 0xff == 0x2a { ANSWER } else { libc::EBADF };
    TOLD.iter().map(|request| format!("{request:x} {}", of(request))).collect()
}

fn untold() -> Vec<String> {
    TOLD.iter().map(|request| format!("{request:x} {}", libc::EBADF)).collect()
}

fn call() -> Vec<String> {
    [vec!["call".to_owned()], TOLD.iter().map(|request| format!("{request:x}")).collect()].concat()
}

fn words(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

/// A profile of the kind that engines have: names that are allowed, ioctl among them, and all else an error.
fn usual_profile() -> Value {
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
fn profiles() -> [(&'static str, Value); 3] {
    let allows = json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
        "syscalls": [{"names": ["keyctl"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]});
    [("none", Value::Null), ("usual", usual_profile()), ("allows", allows)]
}

#[test]
fn an_engine_is_told_of_its_requests_under_every_profile() {
    Host::each(|host| {
        for (name, profile) in profiles() {
            for no_new_privileges in [true, false] {
                let engine = host.engine();
                let call = call();
                let mut spec = host.spec(&words(&call));
                spec["linux"]["seccomp"] = profile.clone();
                spec["process"]["noNewPrivileges"] = json!(no_new_privileges);
                let ran = host.live(&spec, "");
                ran.said(&told(), "the notify engine is told of the container's calls");
                assert_eq!(engine.calls(), TOLD.map(|request| (host.name(), request)), "{} {name}", host.runtime);
                assert_eq!(ran.spec["x-unknown"], spec["x-unknown"]);
                let states = engine.containers();
                assert_eq!(states.len(), 1, "{states:?}");
                assert_eq!(states[0]["metadata"], "mpu");
                assert_eq!(states[0]["fds"], json!(["seccompFd"]));
                assert!(engine.probes() == 1, "the wrapper's");
            }
        }
    });
}

#[test]
fn every_other_request_is_what_it_was() {
    Host::each(|host| {
        for (name, profile) in profiles() {
            let engine = host.engine();
            let mut spec = host.spec(&["usual"]);
            spec["linux"]["seccomp"] = profile.clone();
            let with = host.live(&spec, "");
            assert!(
                with.ok && with.said.contains("FIONREAD 0 4\nTIOCGWINSZ -1 Inappropriate ioctl"),
                "{name}: {}",
                with.said
            );
            assert_eq!(with.said.contains("keyctl refused"), name != "none", "{}", with.said);
            spec["process"]["env"].as_array_mut().unwrap().push(json!("MPU_NOTIFY=off"));
            assert_eq!(host.live(&spec, "").said, with.said, "{} {name}", host.runtime);
            assert_eq!(engine.calls(), []);
            // All 2²² numbers and sizes, as libseccomp has put them into a program: one of them is answered, one passed on.
            spec = host.spec(&["sweep"]);
            spec["linux"]["seccomp"] = profile;
            let swept = host.live(&spec, "");
            swept.said(&[format!("{}: {}", libc::EBADF, (1 << 22) - 1), format!("{ANSWER}: 1")], "is told");
            let calls: Vec<u64> = engine.calls().iter().map(|(_, request)| request & 0x3fff_00ff).collect();
            assert_eq!(calls, [0x0010_00d3, 0x0020_002a], "{} {name}", host.runtime);
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_32_bit_program_is_no_way_round() {
    Host::each(|host| {
        for (name, profile) in profiles() {
            let engine = host.engine();
            let mut spec = host.spec(&["call32", "c020462a", "5413"]);
            spec["linux"]["seccomp"] = profile;
            let ran = host.live(&spec, "");
            if ran.said.is_empty() {
                return println!("skipped: this kernel runs no 32-bit programs");
            }
            ran.said(&[format!("c020462a {ANSWER}"), format!("5413 {}", libc::EBADF)], "is told");
            assert_eq!(engine.calls(), [(host.name(), 0xc020_462a)], "{} {name}", host.runtime);
        }
    });
}

#[test]
fn who_is_left_out_starts_as_ever_and_the_log_says_why() {
    Host::each(|host| {
        let call = call();
        let plain = |seccomp: Value| {
            let mut spec = host.spec(&words(&call));
            spec["linux"]["seccomp"] = seccomp;
            spec
        };
        let with_env = |variable: &str| {
            let mut spec = plain(Value::Null);
            spec["process"]["env"].as_array_mut().unwrap().push(json!(variable));
            spec
        };
        let mut host_pids = plain(Value::Null);
        host_pids["linux"]["namespaces"].as_array_mut().unwrap().retain(|one| one["type"] != "pid");
        let by_argument = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["ioctl"], "action": "SCMP_ACT_ERRNO",
            "args": [{"index": 1, "value": 0x5412, "op": "SCMP_CMP_EQ"}]}]});
        for (spec, why) in [
            (with_env("MPU_NOTIFY=off"), "its environment has MPU_NOTIFY=off"),
            (host_pids, "it has no PID namespace of its own"),
            (plain(by_argument), "its seccomp profile decides about ioctl by argument"),
        ] {
            let engine = host.engine();
            let ran = host.live(&spec, "");
            ran.said(&untold(), &format!("the container starts without the notify engine: {why}"));
            assert_eq!(ran.spec["linux"]["seccomp"], spec["linux"]["seccomp"], "{why}");
            assert!(engine.containers().is_empty() && engine.calls().is_empty());
        }
        // Nobody listens: neither before there was an engine, nor after.
        for _ in 0..2 {
            let ran = host.live(&plain(usual_profile()), "");
            ran.said(
                &untold(),
                "level=debug msg=\"the container starts without the notify engine: no engine listens at ",
            );
            assert_eq!(ran.spec["linux"]["seccomp"], usual_profile());
            drop(host.engine());
        }
        // Somebody else's listener keeps what is its own.
        let theirs = Engine::at(&host.at("theirs.sock"));
        let ours = host.engine();
        let mut profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": host.at("theirs.sock")});
        profile["syscalls"] = json!([{"names": ["ioctl"], "action": "SCMP_ACT_NOTIFY"}]);
        let ran = host.live(&plain(profile), "");
        ran.said(&told(), "its seccomp profile has a listener of its own");
        assert_eq!((theirs.calls().len(), ours.calls().len()), (TOLD.len(), 0));
    });
}

#[test]
fn the_administrators_policy_counts() {
    Host::each(|host| {
        let low = found(host.runtime).unwrap();
        for (policy, variable, listens) in [
            ("notify = \"off\"", "MPU_NOTIFY=on", false),
            ("notify = \"opt-in\"", "MPU_NOTIFY=", false),
            ("notify = \"opt-in\"", "MPU_NOTIFY=on", true),
            ("notify = \"always\"", "MPU_NOTIFY=off", true),
        ] {
            host.configure(&low, policy);
            let engine = host.engine();
            let mut spec = host.spec(&["call", "c020462a"]);
            spec["process"]["env"].as_array_mut().unwrap().push(json!(variable));
            let ran = host.live(&spec, "");
            let error = if listens { ANSWER } else { libc::EBADF };
            ran.said(&[format!("c020462a {error}")], "the notify engine");
            assert_eq!(engine.calls().len(), usize::from(listens), "{policy} {variable}");
        }
        host.configure(&low, "notify = \"sometimes\"");
        let ran = host.live(&host.spec(&["usual"]), "");
        let says = "config.toml, line 9: mpu.notify: \"sometimes\" is none of on, opt-in, off, always";
        assert!(!ran.ok && ran.said.contains(says), "{}", ran.said);
    });
}

/// Who comes in later has a filter and a listener of their own, under the same container's name.
#[test]
fn programs_that_are_executed_in_a_container_are_heard_too() {
    Host::each(|host| {
        for no_new_privileges in [true, false] {
            let engine = host.engine();
            let mut spec = host.spec(&["hold"]);
            spec["linux"]["seccomp"] = usual_profile();
            spec["process"]["noNewPrivileges"] = json!(no_new_privileges);
            let ran = host.live(&spec, "r exec $C caller call c020462a; r exec $C caller call 5413; r kill $C KILL");
            assert!(ran.ok, "{}", ran.said);
            assert!(ran.said.contains(&format!("c020462a {ANSWER}\n5413 {}\n", libc::EBADF)), "{}", ran.said);
            assert_eq!(engine.calls(), [(host.name(), 0xc020_462a)]);
            let states = engine.containers();
            assert_eq!(states.len(), 3, "{states:?}");
            assert!(
                states.iter().all(|state| state["state"]["id"] == host.name() && state["metadata"] == "mpu"),
                "{states:?}"
            );
            if std::env::var_os("MPU_SHOW").is_some() {
                println!("{} noNewPrivileges={no_new_privileges}: {states:#?}", host.runtime);
            }
        }
    });
}

/// What a running container needs the socket for; docs/container/notify.md tells it.
#[test]
fn a_socket_that_is_gone_keeps_programs_from_being_executed_and_nothing_else() {
    Host::each(|host| {
        let engine = host.engine();
        let gone = format!(
            "rm {:?}; r exec $C caller call 5413 && echo executed; r kill $C KILL",
            host.at("run/listener.sock")
        );
        let ran = host.live(&host.spec(&["hold"]), &gone);
        assert!(ran.ok && !ran.said.contains("executed"), "{}", ran.said);
        assert!(
            ran.said.contains("No such file or directory") || ran.said.contains("no such file or directory"),
            "{}",
            ran.said
        );
        assert_eq!(engine.containers().len(), 1);
        // An engine on the way out still takes who comes in later, and no container that is made now.
        let engine = host.engine();
        let script = "touch ../run/retired; r exec $C caller call c020462a; r kill $C KILL";
        let ran = host.live(&host.spec(&["hold"]), script);
        assert!(ran.said.contains(&format!("c020462a {ANSWER}")), "{}", ran.said);
        assert_eq!(engine.containers().len(), 2);
        host.live(&host.spec(&["call", "c020462a"]), "")
            .said(&[format!("c020462a {}", libc::EBADF)], "takes no new container");
        assert_eq!(engine.containers().len(), 2);
    });
}
