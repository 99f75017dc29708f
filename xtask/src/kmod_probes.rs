//! Tests kmod/mpu_probes.sh with this machine's compiler on made-up headers: the headers decide, not the kernel's version, and an unsuitable
//! compiler stops the build. `./x test` builds with real headers.

use std::process::Command;

use crate::paths::repo;
use crate::tidy::{read, tracked};

#[test]
fn module_sources_do_not_test_kernel_version() {
    let mut seen = 0;
    for file in tracked().iter().filter(|file| file.starts_with("kmod")) {
        seen += 1;
        for word in ["LINUX_VERSION_CODE", "KERNEL_VERSION", "linux/version.h", "RHEL_RELEASE", "SUSE_VERSION"] {
            let line = read(file).lines().position(|line| line.contains(word));
            assert_eq!(line, None, "{}: {word}: ask the headers, in kmod/mpu_probes.sh", file.display());
        }
    }
    assert!(seen > 15, "{seen} files of the module found");
}

/// Declarations that the probes need, besides the probed functions.
const FTRACE: &str = "
#define __maybe_unused __attribute__((unused))
#define bool _Bool
struct pt_regs { unsigned long ip; };
struct ftrace_regs { struct pt_regs regs; };
struct ftrace_ops { unsigned long flags; };
enum { FTRACE_OPS_FL_IPMODIFY = 1 };
unsigned long regs_get_kernel_argument(struct pt_regs *, unsigned int);
void instruction_pointer_set(struct pt_regs *, unsigned long);
";

/// Declarations of a kernel up to 5.4, with RHEL 8's additions to its 4.18.
const OLD: &str = "
#define NULL ((void *)0)
typedef unsigned long long u64;
enum pid_type { PIDTYPE_PID, PIDTYPE_TGID, PIDTYPE_MAX };
struct hlist_node { int none; };
struct hlist_head { struct hlist_node *first; };
struct pid { struct hlist_head tasks[PIDTYPE_MAX]; };
struct task_struct { struct pid *thread_pid; struct hlist_node pid_links[PIDTYPE_MAX]; u64 real_start_time; };
struct cgroup { struct { struct { u64 id; } id; } *kn; };
struct radix_tree_root { void *head; };
struct idr { struct radix_tree_root idr_rt; };
struct pid_namespace { struct idr idr; };
void *idr_find(const struct idr *, unsigned long);
long probe_kernel_read(void *, const void *, unsigned long);
void synchronize_sched(void);
";

/// The same of a new kernel.
fn new() -> String {
    let renamed =
        OLD.replace("real_start_time", "start_boottime").replace("probe_kernel_read", "copy_from_kernel_nofault");
    let tree = renamed.replace("radix_tree_root", "xarray");
    tree.replace("void synchronize_sched(void);", "u64 cgroup_id(struct cgroup *);") + XARRAY
}

/// Declarations since 4.20.
const XARRAY: &str = "
#define radix_tree_root xarray
struct xa_node { unsigned char shift; };
void *xa_head(const struct xarray *);
void *xa_entry(const struct xarray *, const struct xa_node *, unsigned int);
struct xa_node *xa_to_node(const void *);
bool xa_is_node(const void *);
bool xa_is_internal(const void *);
";

/// Declarations up to 5.10.
const REGS: &str = "
#define CONFIG_DYNAMIC_FTRACE_WITH_REGS 1
typedef void (*ftrace_func_t)(unsigned long, unsigned long, struct ftrace_ops *, struct pt_regs *);
";

/// Declarations since 5.11.
const FREGS: &str = "
#define CONFIG_DYNAMIC_FTRACE_WITH_REGS 1
typedef void (*ftrace_func_t)(unsigned long, unsigned long, struct ftrace_ops *, struct ftrace_regs *);
struct pt_regs *ftrace_get_regs(struct ftrace_regs *);
";

/// Declarations of 6.4, which distributions backport.
const LIST: &str = "
#define CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS 1
int register_ftrace_direct(struct ftrace_ops *, unsigned long);
int modify_ftrace_direct(struct ftrace_ops *, unsigned long);
int unregister_ftrace_direct(struct ftrace_ops *, unsigned long, bool);
";

/// Runs the probes on headers with this text. Returns the answers, or the error output.
fn probe(ftrace: &str, compiler: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("linux")).unwrap();
    for header in ["types", "kprobes", "ptrace", "cgroup", "pid", "pid_namespace", "rcupdate", "sched", "uaccess"] {
        std::fs::write(dir.path().join(format!("linux/{header}.h")), "").unwrap();
    }
    // The compiler command has `-include` with a relative path of the kernel's tree, or with an absolute one.
    let wants_both = "#if GIVEN_ONE + GIVEN_OTHER != 2\n#error \"not included\"\n#endif\n";
    std::fs::write(dir.path().join("linux/ftrace.h"), format!("{wants_both}{ftrace}")).unwrap();
    std::fs::write(dir.path().join("one.h"), "#define GIVEN_ONE 1\n").unwrap();
    std::fs::write(dir.path().join("other.h"), "#define GIVEN_OTHER 1\n").unwrap();
    let made = dir.path().join("mpu_probes.h");
    let at = dir.path().display();
    let command = format!("{compiler} -I'{at}' -include ./one.h -include  {at}/other.h -DX");
    let script = repo().join("kmod/mpu_probes.sh");
    // kbuild runs bash, if there is one, up to 5.4, and sh since: both must parse the script.
    let parsed = Command::new("bash").arg("-n").arg(&script).status();
    assert!(parsed.map_or(true, |status| status.success()), "bash does not read {}", script.display());
    let done =
        Command::new("sh").arg(script).arg(&made).arg(command).env("LC_ALL", "C").current_dir(&dir).output().unwrap();
    let header = std::fs::read_to_string(&made).ok();
    assert_eq!(header.is_some(), done.status.success(), "a header is there when all is answered, and only then");
    let answers = header.map(|text| text.lines().last().and_then(|line| line.split('"').nth(1)).unwrap().to_owned());
    answers.ok_or_else(|| String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn headers_decide_independent_of_version() {
    let of = |parts: &[&str]| probe(&format!("{FTRACE}{}{}", new(), parts.concat()), "cc");
    let newer =
        "process=tgid tree=xarray born=start_boottime peek=nofault group=function preemption=rcu argument=function";
    assert_eq!(of(&[REGS]).unwrap(), format!("direct=none handler=regs permanent=no noendbr=no {newer}"));
    // As in RHEL 9: ftrace of 6.4 in a 5.14.
    let permanent = "enum { FTRACE_OPS_FL_PERMANENT = 2 };\n#define ANNOTATE_NOENDBR\n";
    let found = of(&[FREGS, LIST, permanent]).unwrap();
    assert_eq!(found, format!("direct=list handler=fregs permanent=yes noendbr=yes {newer}"));
    // The empty functions of a kernel without this option.
    let without = LIST.replace("#define CONFIG", "//");
    assert_eq!(of(&[FREGS, &without]).unwrap(), format!("direct=none handler=fregs permanent=no noendbr=no {newer}"));
}

/// As in RHEL 8 and Ubuntu 20.04. In the kernel, x86-64's registers have other names than in user space.
#[test]
fn older_headers_select_older_interfaces() {
    let without = FTRACE.replace("unsigned long regs_get_kernel_argument", "int regs_get_nothing");
    let registers = without.replace("unsigned long ip;", "unsigned long ip, di, si, dx, cx, r8, r9;");
    assert_eq!(
        probe(&format!("{registers}{OLD}{REGS}"), "cc").unwrap(),
        "direct=none handler=regs permanent=no noendbr=no process=tgid tree=any born=real_start_time peek=probe group=field \
         preemption=sched argument=register"
    );
    let error = probe(&format!("{registers}{}{REGS}", OLD.replace("PIDTYPE_TGID", "PIDTYPE_SID")), "cc").unwrap_err();
    assert!(error.contains("error: this kernel is too old: its headers lack PIDTYPE_TGID"), "{error}");
}

#[test]
fn wrong_kernel_kind_stops_build() {
    let changed = LIST.replace("unsigned long);", "unsigned long, unsigned long);");
    let error = probe(&format!("{FTRACE}{}{FREGS}{changed}", new()), "cc").unwrap_err();
    assert!(error.contains("answer DIRECT in no way that this version of MPU knows"), "{error}");
    assert!(error.contains("modify_ftrace_direct"), "the compiler's words are missing: {error}");
}

#[test]
fn unusable_compiler_stops_build() {
    let whole = format!("{FTRACE}{REGS}");
    for (ftrace, compiler, message) in [
        (whole.as_str(), "/nowhere/gcc", "does not compile the kernel's own headers"),
        (whole.as_str(), "true", "accepts a function that does not exist"),
        (whole.as_str(), "cc -fno-such-option", "does not compile the kernel's own headers"),
        ("#error \"torn\"\n", "cc", "does not compile the kernel's own headers"),
    ] {
        let error = probe(ftrace, compiler).unwrap_err();
        assert!(error.contains(message), "{compiler}: {error}");
    }
}

/// The script may precompile the probes' header. A compiler that cannot, or that writes a broken one, gives the same answers.
#[test]
fn compiler_without_precompiled_headers_answers_the_same() {
    let headers = format!("{FTRACE}{}{FREGS}{LIST}", new());
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("told");
    let with = |cached: &str, used: &str| {
        let path = dir.path().join("compiler");
        let script = format!(
            "#!/bin/sh\nfor word; do [ \"$last\" = -include ] && all=$word; [ \"$last\" = -o ] && out=$word; last=$word; done\n\
             case \"$*\" in *c-header*) {cached};; esac\n[ -e \"$all.gch\" ] && {{ echo kept >>{}; {used}; }}\nexec cc \"$@\"\n",
            log.display()
        );
        std::fs::write(&path, script).unwrap();
        let _ = std::fs::remove_file(&log);
        let answers = probe(&headers, &format!("sh {}", path.display())).unwrap();
        (answers, std::fs::read_to_string(&log).map_or(0, |text| text.lines().count()))
    };
    let (answers, cached) = with("", ":");
    assert!(answers.starts_with("direct=list handler=fregs") && cached > 10, "{cached}: {answers}");
    assert_eq!(with("exit 1", ":"), (answers.clone(), 0), "it cannot");
    assert_eq!(with("echo nonsense >\"$out\"; exit", ":"), (answers.clone(), cached), "nonsense");
    assert_eq!(with("", "exit 1"), (answers, 1), "tried once");
}

/// Runs plain make on kmod/Kbuild for an x86-64 kernel, with kbuild's variables. Returns the contents of `target`, or the error output.
fn kbuild(core: &[u8], release: &str, target: &str) -> Result<Vec<u8>, String> {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let makefile = format!(
        "src := {at}\nobj := {at}\nCONFIG_X86_64 := y\nUTS_MACHINE := x86_64\nKERNELRELEASE := {release}\nCONFIG_SHELL := sh\n\
         escsq = $(1)\nif_changed = $(cmd_$(1))\ninclude {}\n\
         $(obj)/said: FORCE\n\t$(file >$@,$(cmd_mpu_probes))\nFORCE:\n",
        repo().join("kmod/Kbuild").display()
    );
    std::fs::write(dir.path().join("Makefile"), makefile).unwrap();
    for (name, text) in [("VERSION", "0"), ("mpu_probes.sh", "")] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    std::fs::write(dir.path().join("mpu_core.o_shipped"), core).unwrap();
    let mut make = Command::new("make");
    make.arg("-f").arg(dir.path().join("Makefile")).arg(dir.path().join(target)).env_remove("MAKEFLAGS");
    let done = make.env("LC_ALL", "C").output().unwrap();
    let made = std::fs::read(dir.path().join(target));
    if done.status.success() {
        Ok(made.unwrap())
    } else {
        assert!(made.is_err(), "{target} was made all the same");
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    }
}

#[test]
fn core_for_another_processor_is_not_built_in() {
    let core = |machine: u8| [&b"\x7fELF"[..], &[0; 14], &[machine, 0]].concat();
    assert_eq!(kbuild(&core(62), "6.1", "mpu_core.o").unwrap(), core(62));
    for foreign in [core(183), Vec::new()] {
        let error = kbuild(&foreign, "6.1", "mpu_core.o").unwrap_err();
        assert!(
            error.contains("is for another processor than this kernel: take the MPU package for x86_64"),
            "{error}"
        );
    }
}

/// kbuild runs the probes again when their command has changed.
#[test]
fn other_kernel_probes_headers_again() {
    let message = |release: &str| kbuild(b"", release, "said").unwrap();
    assert!(String::from_utf8(message("6.1-other")).unwrap().contains("6.1-other"));
}
