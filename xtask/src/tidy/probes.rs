//! What the module is built by, as tests: the kernel's headers decide and never its number, and a compiler that cannot tell stops the
//! build. Runs kmod/mpu_probes.sh with this machine's compiler on headers made up here; real ones are built with by `./x test`.

use std::process::Command;

use super::{read, repo, tracked};

#[test]
fn no_kernels_number_decides_anything_in_the_module() {
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

/// What the questions need of headers, beside the functions that they ask for.
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

/// Of a kernel up to 5.10.
const REGS: &str = "
#define CONFIG_DYNAMIC_FTRACE_WITH_REGS 1
typedef void (*ftrace_func_t)(unsigned long, unsigned long, struct ftrace_ops *, struct pt_regs *);
";

/// From 5.11 on.
const FREGS: &str = "
#define CONFIG_DYNAMIC_FTRACE_WITH_REGS 1
typedef void (*ftrace_func_t)(unsigned long, unsigned long, struct ftrace_ops *, struct ftrace_regs *);
struct pt_regs *ftrace_get_regs(struct ftrace_regs *);
";

/// Of 6.4, wherever it stands.
const LIST: &str = "
#define CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS 1
int register_ftrace_direct(struct ftrace_ops *, unsigned long);
int modify_ftrace_direct(struct ftrace_ops *, unsigned long);
int unregister_ftrace_direct(struct ftrace_ops *, unsigned long, bool);
";

/// Runs the probes on headers with this text; the answers, or what was complained of.
fn probe(ftrace: &str, compiler: &str) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("linux")).unwrap();
    for header in ["types", "kprobes", "ptrace"] {
        std::fs::write(dir.path().join(format!("linux/{header}.h")), "").unwrap();
    }
    std::fs::write(dir.path().join("linux/ftrace.h"), ftrace).unwrap();
    let made = dir.path().join("mpu_probes.h");
    let command = format!("{compiler} -I'{}'", dir.path().display());
    let script = repo().join("kmod/mpu_probes.sh");
    let done = Command::new("sh").arg(script).arg(&made).arg(command).env("LC_ALL", "C").output().unwrap();
    let header = std::fs::read_to_string(&made).ok();
    assert_eq!(header.is_some(), done.status.success(), "a header is there when all is answered, and only then");
    let answers = header.map(|text| text.lines().last().and_then(|line| line.split('"').nth(1)).unwrap().to_owned());
    answers.ok_or_else(|| String::from_utf8_lossy(&done.stderr).into_owned())
}

#[test]
fn headers_answer_whatever_their_number_is() {
    let of = |parts: &[&str]| probe(&format!("{FTRACE}{}", parts.concat()), "cc");
    assert_eq!(of(&[REGS]).unwrap(), "direct=none handler=regs permanent=no noendbr=no");
    // As RHEL 9 has it: ftrace of 6.4 in a 5.14.
    let permanent = "enum { FTRACE_OPS_FL_PERMANENT = 2 };\n#define ANNOTATE_NOENDBR\n";
    assert_eq!(of(&[FREGS, LIST, permanent]).unwrap(), "direct=list handler=fregs permanent=yes noendbr=yes");
    // The empty functions of a kernel that is configured without.
    let without = LIST.replace("#define CONFIG", "//");
    assert_eq!(of(&[FREGS, &without]).unwrap(), "direct=none handler=fregs permanent=no noendbr=no");
}

#[test]
fn a_kernel_of_another_kind_stops_the_build_instead_of_being_taken_for_one_without() {
    let changed = LIST.replace("unsigned long);", "unsigned long, unsigned long);");
    let error = probe(&format!("{FTRACE}{FREGS}{changed}"), "cc").unwrap_err();
    assert!(error.contains("answer DIRECT in no way that this version of MPU knows"), "{error}");
    assert!(error.contains("modify_ftrace_direct"), "the compiler's words are missing: {error}");
}

#[test]
fn a_compiler_that_cannot_tell_stops_the_build() {
    let whole = format!("{FTRACE}{REGS}");
    for (ftrace, compiler, said) in [
        (whole.as_str(), "/nowhere/gcc", "does not compile the kernel's own headers"),
        (whole.as_str(), "true", "accepts a function that does not exist"),
        (whole.as_str(), "cc -fno-such-option", "does not compile the kernel's own headers"),
        ("#error \"torn\"\n", "cc", "does not compile the kernel's own headers"),
    ] {
        let error = probe(ftrace, compiler).unwrap_err();
        assert!(error.contains(said), "{compiler}: {error}");
    }
}

/// Runs plain make on kmod/Kbuild for an x86-64 kernel, with what kbuild would have said before; what was made of `target`, or the complaint.
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
fn a_core_for_another_processor_is_not_built_in() {
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

/// kbuild asks again when the command has changed.
#[test]
fn headers_are_asked_anew_for_another_kernel() {
    let said = |release: &str| kbuild(b"", release, "said").unwrap();
    assert!(String::from_utf8(said("6.1-other")).unwrap().contains("6.1-other"));
}
