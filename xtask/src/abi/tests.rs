//! Tests on small trees in the form of the driver's; and on real ones in MPU_DRIVER_SOURCE.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mpu_abi::{Control, ControlCmd, History, Inner, Layout, Release, Releases, Row, Rows};

use super::c::Headers;
use super::judge::{Finding, List, Sort, Verdict, judge, judge_by};
use super::names::{names_pid, words};
use super::tree::{Tree, below};

/// Source trees of the driver, with colons between them; without it the tests that need one are skipped, and say so.
const VARIABLE: &str = "MPU_DRIVER_SOURCE";

const LAYOUTS: &str = r"
#ifndef LAYOUTS_H
#define LAYOUTS_H
#define SLOTS 3 /* a comment, and \
                   another line of it */
#define TWICE(n) ((n) * 2U)
#ifdef __cplusplus
typedef struct NEVER { NvU8 x; } NEVER;
#endif
#if defined(NV_WINDOWS) || (SLOTS > 7)
typedef struct WIDE { NvU64 x[9]; } WIDE;
#elif SLOTS == 3
typedef struct WIDE { NvU16 x; } WIDE;
#else
typedef struct WIDE { NvU8 x; } WIDE;
#endif
typedef enum SORT { SORT_NONE, SORT_SOME = 4, SORT_MORE } SORT;
typedef NvU32 NUMBERS[SORT_MORE];
typedef struct INNER { NvU8 flag; NV_DECLARE_ALIGNED(NvU64 when, 8); char name[7]; NvU32 procId; } INNER;
typedef INNER INNER_BY_ANOTHER_NAME;
struct tagged { NvU16 a; struct tagged *next; };
typedef struct OUTER {
    NvU8  lead, second;
    SORT  sort;
    INNER inner[SLOTS][TWICE(1)];
    union { NvU64 whole; struct { NvU32 low; NvU32 pid; } half; NvU8 raw[12]; } data;
    NV_DECLARE_ALIGNED(union { NvU32 one; NvU16 two[5]; } aligned, 16);
    NvP64 address NV_ALIGN_BYTES(8);
    void (*call)(NvU32 count, void *argument);
    NUMBERS numbers;
    WIDE wide;
    struct tagged tail[(sizeof(WIDE) << 1) | 1];
    NvU32 low : 5, high : 27;
    INNER_BY_ANOTHER_NAME last[sizeof(INNER) > 8 ? 2 : 1];
    NvBool end;
} OUTER;
#endif
";

/// What the parser has built in, for the compiler.
pub const TYPES: &str = r"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
typedef uint8_t NvU8; typedef uint8_t NvBool; typedef uint16_t NvU16; typedef uint32_t NvU32; typedef uint64_t NvU64;
typedef void *NvP64;
#define NV_DECLARE_ALIGNED(declaration, bytes) declaration __attribute__((aligned(bytes)))
#define NV_ALIGN_BYTES(bytes) __attribute__((aligned(bytes)))
";

/// Runs a program of this text, and returns what it prints.
fn compiled(text: &str, include: &[PathBuf]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("layout.c");
    fs::write(&source, text).unwrap();
    let folders = include.iter().flat_map(|dir| ["-I".into(), dir.as_os_str().to_owned()]);
    let mut cc = Command::new("cc");
    cc.args(folders).args(["-w", "-o"]).arg(dir.path().join("layout")).arg(&source);
    let done = cc.output().expect("cc is what ./x builds with");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let ran = Command::new(dir.path().join("layout")).output().unwrap();
    String::from_utf8(ran.stdout).unwrap()
}

/// Writes a file with the folders above it.
pub fn write(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

#[test]
fn layouts_are_those_of_a_compiler() {
    let mut headers = Headers::default();
    headers.read("layouts.h", LAYOUTS);
    let fields = headers.fields("OUTER").unwrap();
    assert!(fields.len() > 15, "{fields:?}");
    // A bit-field has no offset in C.
    let pids: Vec<_> = fields.iter().filter(|field| !["low", "high"].contains(&field.path.as_str())).collect();
    let mut program = format!("{TYPES}{LAYOUTS}int main(void) {{ printf(\"%zu\\n\", sizeof(OUTER));\n");
    for field in &pids {
        // The first of each array on the way.
        let path = field.path.replace("inner", "inner[0][0]").replace("last", "last[0]").replace("tail", "tail[0]");
        program += &format!("printf(\"%zu\\n\", offsetof(OUTER, {path}));\n");
    }
    let printed = compiled(&(program + "return 0; }\n"), &[]);
    let mut numbers = printed.lines().map(|line| line.parse::<usize>().unwrap());
    assert_eq!(headers.layout("OUTER").unwrap().size, numbers.next().unwrap());
    for (field, offset) in pids.iter().zip(numbers) {
        assert_eq!(field.offset, offset, "{}", field.path);
    }
    // INNER: flag@0, when@8, name@16, procId@24, 32 bytes; the array begins at 8.
    let pid = fields.iter().find(|field| field.path == "inner.procId").unwrap();
    assert_eq!(pid.offsets(), [32, 64, 96, 128, 160, 192]);
}

#[test]
fn unreadable_type_is_named() {
    let mut headers = Headers::default();
    headers.read("a.h", "typedef struct A { MISSING m; } A; typedef struct B { NvU8 x[NO_SUCH]; } B;");
    headers.read("b.h", "typedef struct C { struct C c; } C;");
    assert_eq!(headers.layout("A").unwrap_err(), "MISSING is not declared");
    assert_eq!(headers.layout("B").unwrap_err(), "NO_SUCH has no value");
    assert!(headers.layout("C").unwrap_err().contains("holds itself"));
}

#[test]
fn pid_names_are_recognized() {
    assert_eq!(words("subProcessID"), ["sub", "process", "id"]);
    let pids = "pid procId processID ProcessID PROCESS_ID pidTbl vmPid subProcessId hostTgid threadId process procNum \
ownerProcess lwp hProcess creator pidLo pidHi pidTarget";
    let others = "pidTblCount bSkipIdleWarp groupId rapid logicalUprocId processor engineId pidInfoListCount guid \
processCount processorNum creatorFlags pidLoad";
    for (names, is_pid) in [(pids, true), (others, false)] {
        let wrong: Vec<&str> = names.split(' ').filter(|name| names_pid(name) != is_pid).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

pub const CTRL: &str = "src/common/sdk/nvidia/inc/ctrl/ctrl7e57.h";
pub const CLASS: &str = "src/common/sdk/nvidia/inc/class/cl7e57.h";
const FLAGS: &str = "src/nvidia/inc/kernel/rmapi/control.h";
const TABLE: &str = "src/nvidia/generated/g_test_nvoc.c";
const EVENT: &str = "src/nvidia/src/kernel/test.c";
const OS: &str = "kernel-open/common/inc/os-interface.h";

/// A driver of one class, 0x7e57.
pub struct Made {
    pub files: BTreeMap<&'static str, String>,
    /// A control's name, the flags of its method, its number, and whether an object's table names its function.
    pub methods: Vec<(&'static str, u32, u32, bool)>,
}

impl Made {
    pub fn new() -> Made {
        let ctrl = "
#define NV7E57_LIST_MAX 4
#define NV7E57_CTRL_CMD_LIST (0x7e570101)
typedef struct NV7E57_CTRL_LIST_PARAMS { NvU32 count; NvU32 pids[NV7E57_LIST_MAX]; } NV7E57_CTRL_LIST_PARAMS;
typedef struct NV7E57_SESSION { NvU32 processId; NvU32 subProcessId; NvU64 rate; } NV7E57_SESSION;
#define NV7E57_CTRL_CMD_SESSIONS (0x7e570102)
typedef struct NV7E57_CTRL_SESSIONS_PARAMS { NvU32 count; NV_DECLARE_ALIGNED(NvP64 table, 8); } NV7E57_CTRL_SESSIONS_PARAMS;
#define NV7E57_CTRL_CMD_CLOCK (0x7e570103)
typedef struct NV7E57_CTRL_CLOCK_PARAMS { NvU32 clock; } NV7E57_CTRL_CLOCK_PARAMS;
";
        let os = "
NV_STATUS NV_API_CALL os_memcpy_to_user (void *, const void *, NvU32);
NV_STATUS NV_API_CALL os_memcpy_from_user(void *to, const void *from, NvU32 bytes);
NV_STATUS NV_API_CALL rm_ioctl (nvidia_stack_t *, nv_state_t *, nv_file_private_t *, NvU32, void *, NvU32);
static long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long argument) { return 0; }
";
        let flags = "#define RMCTRL_FLAGS_PRIVILEGED 0x4\n#define RMCTRL_FLAGS_NON_PRIVILEGED 0x8 // who may
#define RMCTRL_FLAGS_INTERNAL 0x80\n";
        let files = [
            (CTRL, ctrl),
            (CLASS, "typedef struct NV7E57_PAGE { NvU64 seq; NvU32 heat; } NV7E57_PAGE;"),
            (FLAGS, flags),
            (EVENT, "void tell(void) { noteNotify(g, NV7E57_NOTIFIERS_HOT, NULL, 0, degrees, 0); }"),
            (OS, os),
        ];
        Made {
            files: files.map(|(file, text)| (file, text.to_owned())).into(),
            // The firmware answers the second: in an object its type is known by the pointer that the class has for it.
            methods: vec![
                ("LIST", 0x8, 0x7e57_0101, true),
                ("SESSIONS", 0x8, 0x7e57_0102, false),
                ("CLOCK", 0x8, 0x7e57_0103, true),
            ],
        }
    }

    /// Adds text to a file.
    pub fn add(&mut self, file: &'static str, text: &str) {
        *self.files.entry(file).or_default() += text;
    }

    pub fn replace(&mut self, file: &'static str, from: &str, to: &str) {
        let text = self.files.get_mut(file).unwrap();
        assert!(text.contains(from), "{from}");
        *text = text.replace(from, to);
    }

    /// Adds a control's number, parameters and method.
    pub fn control(&mut self, name: &'static str, flags: u32, cmd: u32, fields: &str) {
        let structure = format!("NV7E57_CTRL_{name}_PARAMS");
        self.add(CTRL, &format!("\n#define NV7E57_CTRL_CMD_{name} ({cmd:#x})\n"));
        self.add(CTRL, &format!("typedef struct {structure} {{ {fields} }} {structure};\n"));
        self.methods.push((name, flags, cmd, true));
    }

    /// Makes a change as it is written in the lists.
    fn change(&mut self, line: &'static str) {
        let (place, text) = line.split_once(": ").unwrap();
        if let ["control", name, flags, cmd] = place.split(' ').collect::<Vec<_>>()[..] {
            let number = |text: &str| u32::from_str_radix(&text[2..], 16).unwrap();
            return self.control(name, number(flags), number(cmd), text);
        }
        let file = match place {
            "ctrl" => CTRL,
            "class" => CLASS,
            "event" => EVENT,
            "os" => OS,
            path => path,
        };
        match text.split_once(" => ") {
            Some((from, to)) => self.replace(file, from, to),
            None => self.add(file, text),
        }
    }

    /// The generated table of its methods.
    fn table(&self) -> String {
        let mut out =
            "static const struct NVOC_EXPORTED_METHOD_DEF __nvoc_exported_method_def_Test[] = \n{\n".to_owned();
        for (name, flags, cmd, _) in &self.methods {
            out += &format!(
                "    {{               /*  [0] */
        /*pFunc=*/      (void (*)(void)) &test{name}_IMPL,
        /*flags=*/      {flags:#x}u,
        /*accessRight=*/0x0u,
        /*methodId=*/   {cmd:#x}u,
        /*paramSize=*/  sizeof(NV7E57_CTRL_{name}_PARAMS),
        /*func=*/       \"test{name}\"\n    }},\n"
            );
        }
        out + "\n};\n"
    }

    fn tree(&self) -> anyhow::Result<Tree> {
        let root = tempfile::tempdir().unwrap();
        write(&root.path().join(TABLE), &self.table());
        for (file, text) in &self.files {
            write(&root.path().join(file), text);
        }
        Tree::read(root.path())
    }
}

pub const ROWS: [Row; 2] = [
    Row {
        control: Control::GpuGetPids,
        cmd: ControlCmd(0x7e57_0101),
        params_size: 20,
        layout: Layout::List(Rows::new(0, 4, 4, 4, 0)),
    },
    Row {
        control: Control::NvencSessions,
        cmd: ControlCmd(0x7e57_0102),
        params_size: 16,
        layout: Layout::Embedded { pointer: 8, inner: Inner::Rows(Rows::new(0, 0, 16, 8, 0)) },
    },
];

/// By rows of which nothing is known but their bytes.
pub fn judged(tree: &Tree, list: &List, rows: &[Row]) -> Vec<Finding> {
    judge_by(tree, list, rows, &|_| None)
}

/// The functions as they are in our list, and nothing known.
pub fn known() -> List {
    let committed = include_str!("../../abi.toml");
    let functions = committed.find("[[function]]").unwrap();
    List::parse(&committed[functions..]).unwrap()
}

/// What each finding is, and why.
pub fn shown<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<(String, String)> {
    let line = |finding: &Finding| {
        let subject = finding.cmd.as_ref().unwrap_or(&finding.name);
        let mut words = vec![format!("{:?}", finding.verdict).to_lowercase(), subject.clone()];
        words.extend(finding.size.map(|size| size.to_string()));
        words.extend(finding.reach.map(|reach| format!("{reach:?}").to_lowercase()));
        words.extend(finding.fields.iter().cloned());
        (words.join(" "), finding.why.clone())
    };
    findings.into_iter().map(line).collect()
}

/// Holds the alarms among findings against those that there must be, each with a part of its reason: no more and no less.
pub fn check(case: &str, findings: &[Finding], expected: &[&str]) {
    let alarms = shown(findings.iter().filter(|finding| super::is_alarm(finding)));
    let is_right = |(alarm, expected): (&(String, String), &&str)| {
        expected.rsplit_once(": ").is_some_and(|(line, reason)| alarm.0 == line && alarm.1.contains(reason))
    };
    let are_right = alarms.len() == expected.len() && alarms.iter().zip(expected).all(is_right);
    assert!(are_right, "{case}: {alarms:#?}, wanted {expected:#?}");
}

/// What a new release may bring, each by itself, and below it the alarms that it raises. A change adds a control, replaces
/// text of a file, or adds text to it.
pub const CHANGES: &str = r"
control MORE 0x8 0x7e570106: NvU32 process;
! new 0x7e570106 4 anybody process@0: no row
control MORE 0x8 0x7e570106: NvU32 procNum;
! new 0x7e570106 4 anybody procNum@0: no row
control MORE 0x8 0x7e570106: NvU32 ownerProcess;
! new 0x7e570106 4 anybody ownerProcess@0: no row
control MORE 0x8 0x7e570106: NvU32 lwp;
! new 0x7e570106 4 anybody lwp@0: no row
control MORE 0x8 0x7e570106: NvHandle hProcess;
! new 0x7e570106 4 anybody hProcess@0: no row
control MORE 0x8 0x7e570106: NvU64 creator;
! new 0x7e570106 8 anybody creator@0: no row
control MORE 0x8 0x7e570106: NvU32 pidLo; NvU32 pidHi;
! new 0x7e570106 8 anybody pidLo@0 pidHi@4: no row
ctrl: typedef struct DEEP { NvU8 x; union { NvU32 procId; NvU8 raw[4]; } who; } DEEP;
control MORE 0x8 0x7e570106: NvU32 n; DEEP entries[3];
! new 0x7e570106 28 anybody entries.who.procId@8 ×3: no row
ctrl: typedef struct DEEP { NvU8 x; union { NvU32 procId; NvU8 raw[4]; } who; } DEEP;
control MORE 0x8 0x7e570106: NvU32 n; DEEP entries[3][2];
! new 0x7e570106 52 anybody entries.who.procId@8 ×6: no row
ctrl: LIST_MAX 4 => LIST_MAX 5
! changed 0x7e570101 24 anybody pids@4 ×5: 24 bytes; rows have 20
ctrl: NvU32 count; NvU32 pids[NV7E57_LIST_MAX]; => NvU32 pids[NV7E57_LIST_MAX]; NvU32 count;
! changed 0x7e570101 20 anybody pids@0 ×4: a PID at 0
ctrl: NvU32 processId; NvU32 subProcessId; => NvU32 id; NvU32 processId;
! changed 0x7e570102 16 anybody →NV7E57_SESSION.processId@4: behind the pointer
ctrl: NvU32 count; NV_DECLARE => NvU16 count; NV_DECLARE
! changed 0x7e570102 16 anybody →NV7E57_SESSION.processId@0 →NV7E57_SESSION.subProcessId@4: count
ctrl: NvU64 rate; } => NvU64 rate; NvU64 more; }
! changed 0x7e570102 16 anybody →NV7E57_SESSION.processId@0 →NV7E57_SESSION.subProcessId@4: an entry has 24 bytes
ctrl: NvU32 clock; => NvU32 clock; NvU32 rest; NvU64 pOsPidInfo;
! new 0x7e570103 16 anybody pOsPidInfo@8: no row
class: NvU32 heat; => NvU32 heat; struct { NvU32 procId; NvU32 util; } samples[5];
! new NV7E57_PAGE 56 samples.procId@12 ×5: by class/cl7e57.h
";

/// What only sources show.
const CHANGES_OF_SOURCES: &str = r"
control INNER 0x88 0x7e570107: NvU32 pid;
control ROOT 0x4 0x7e570108: NvU32 pid;
! new 0x7e570108 4 root pid@0: no row
ctrl: NV7E57_CTRL_CLOCK_PARAMS => NV7E57_CTRL_TIME_PARAMS
! new 0x7e570103 anybody: NV7E57_CTRL_CLOCK_PARAMS is not declared
ctrl: LIST_MAX 4 => LIST_MAX NONE
! changed 0x7e570101 anybody: NONE has no value
ctrl: NV7E57_LIST_MAX]; } => NO_SUCH]; }
! changed 0x7e570101 anybody: NO_SUCH has no value
event: void tell(void) { noteNotify(g(x), NV7E57_NOTIFIERS_FULL, NULL, 0, pClient->ProcID, 0); }
! new NV7E57_NOTIFIERS_FULL ProcID: puts ProcID into a notification
event: void tell(void) { NvU32 who; who = osGetCurrentProcess(); noteNotify(g, NV7E57_NOTIFIERS_FULL, NULL, 0, who, 0); }
! new NV7E57_NOTIFIERS_FULL who = osGetCurrentProcess: puts who = osGetCurrentProcess into a notification
os: user (void *, const void *, NvU32) => user (void *, const void *, NvU64)
! changed os_memcpy_to_user NV_STATUS (void *, const void *, NvU64): the redirect wants
os: user (void *, const void *, NvU32) => user (void *, const void *, NvU64)
os: nvidia_unlocked_ioctl => nvidia_ioctl_of_another_name
! changed nvidia_frontend_unlocked_ioctl: not in this tree
! changed os_memcpy_to_user NV_STATUS (void *, const void *, NvU64): the redirect wants
os: NvU32 NV_API_CALL os_pid_in_ns(void *, NvU32);
! new os_pid_in_ns: no redirect knows it
kernel-open/nvidia-uvm/uvm_ioctl.h: typedef struct { NvU32 pid; NvU32 rmStatus; } UVM_WHO_PARAMS;
! new UVM_WHO_PARAMS 8 pid@0: by kernel-open/nvidia-uvm/uvm_ioctl.h
kernel-open/nvidia-uvm/uvm_ioctl.h: typedef struct { NvProcessorUuid gpu; NvU32 pid; } UVM_WHO_PARAMS;
! new UVM_WHO_PARAMS pid: NvProcessorUuid is not declared
src/nvidia-modeset/interface/nvkms-api.h: struct NvKmsWhoParams { struct { NvU32 ownerPid; } reply; };
! new NvKmsWhoParams 4 reply.ownerPid@0: nvkms-api.h
kernel-open/nvidia-drm/nv_drm_common_ioctl.h: struct drm_nvidia_who_params { uint32_t flags; __u64 tgid; };
! new drm_nvidia_who_params 16 tgid@8: nv_drm_common_ioctl.h
kernel-open/common/inc/nv-caps.h: typedef struct nv_cap_owner_s { int minor; int pid; } nv_cap_owner_t;
! new nv_cap_owner_t 8 pid@4: nv-caps.h
kernel-open/nvidia/nv-caps.c: static int nv_procfs_read_users(struct seq_file *s, void *v)
kernel-open/nvidia/nv-caps.c: { int who; who = task_tgid_nr(v); seq_printf(s, '%d', who); return 0; }
! new nv_procfs_read_users who = task_tgid_nr: prints who = task_tgid_nr
src/nvidia/arch/nvalloc/unix/include/nv_escape.h: #define NV_ESC_RM_WHO 0x60
! new NV_ESC_RM_WHO: no handler
";

/// Each change of a list, made, with its lines and its alarms.
pub fn changed(list: &'static str) -> Vec<(Made, String, Vec<&'static str>)> {
    let mut out: Vec<(Made, String, Vec<&str>)> = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        if out.last().is_none_or(|(_, _, alarms)| !alarms.is_empty() && !line.starts_with('!')) {
            out.push((Made::new(), String::new(), Vec::new()));
        }
        let (made, case, alarms) = out.last_mut().unwrap();
        match line.strip_prefix("! ") {
            Some(alarm) => alarms.push(alarm),
            None => {
                made.change(line);
                *case += line;
            }
        }
    }
    out
}

#[test]
fn changed_sources_raise_their_alarms() {
    for (made, case, alarms) in changed(CHANGES).into_iter().chain(changed(CHANGES_OF_SOURCES)) {
        check(&case, &judged(&made.tree().unwrap(), &known(), &ROWS), &alarms);
    }
}

#[test]
fn unchanged_driver_fits_its_rows() {
    let findings = judged(&Made::new().tree().unwrap(), &known(), &ROWS);
    check("unchanged", &findings, &[]);
    let fits = shown(findings.iter().filter(|finding| finding.verdict == Verdict::Fits && finding.way == "control"));
    let lines: Vec<&str> = fits.iter().map(|(line, _)| line.as_str()).collect();
    let behind = "→NV7E57_SESSION.processId@0 →NV7E57_SESSION.subProcessId@4";
    let sessions = format!("fits 0x7e570102 16 anybody {behind}");
    assert_eq!(lines, ["fits 0x7e570101 20 anybody pids@4 ×4", &sessions]);
}

#[test]
fn row_of_another_release_is_changed() {
    const fn history(releases: &'static [Releases]) -> History {
        History { releases, entry: None, unused: None, seen: "a header" }
    }
    static OF_IT: History = history(&[Releases { since: Release::new(1, 0, 0), until: None }]);
    static BEFORE: History =
        history(&[Releases { since: Release::new(1, 0, 0), until: Some(Release::new(998, 0, 0)) }]);
    static AFTER: History = history(&[Releases { since: Release::new(1000, 0, 0), until: None }]);
    let verdict_of = |made: &Made, history: &'static History| {
        let mut tree = made.tree().unwrap();
        tree.release = Some("999.1".to_owned());
        let findings = judge_by(&tree, &known(), &ROWS[..1], &|_| Some(history));
        let list = findings.into_iter().find(|finding| finding.cmd.as_deref() == Some("0x7e570101")).unwrap();
        (list.verdict, list.why)
    };
    let made = Made::new();
    assert_eq!(verdict_of(&made, &OF_IT), (Verdict::Fits, "a row of a header".to_owned()));
    for wrong in [&BEFORE, &AFTER] {
        let (verdict, why) = verdict_of(&made, wrong);
        assert!(verdict == Verdict::Changed && why.contains("does not name 999.01"), "{why}");
    }
    let mut gone = Made::new();
    gone.replace(CTRL, "0x7e570101", "0x7e5701f1");
    gone.methods[0].2 = 0x7e57_01f1;
    assert_eq!(verdict_of(&gone, &BEFORE).0, Verdict::Gone);
    let (verdict, why) = verdict_of(&gone, &OF_IT);
    assert!(verdict == Verdict::Changed && why.contains("the row names 999.01"), "{why}");
}

/// As 610 has it: a second form of the accounting record, of which no row knows.
#[test]
fn second_accounting_record_is_found() {
    let mut made = Made::new();
    made.control("ACCT2", 0x10008, 0xb06, "NvU32 gpu; NvU32 pid; NvU32 subPid; NvU64 sum;");
    let define = "#define NV0000_CTRL_CMD_GPUACCT_GET_PROC_ACCOUNTING_INFO_V2 (0xb06) /* of \"(0xb << 8) | \
                  NV0000_CTRL_ACCT2_PARAMS_MESSAGE_ID\" */";
    made.replace(CTRL, "#define NV7E57_CTRL_CMD_ACCT2 (0xb06)", define);
    let rows: Vec<Row> = mpu_abi::ROWS.iter().filter(|row| row.cmd.0 != 0xb06).copied().collect();
    let findings = judged(&made.tree().unwrap(), &List::committed().unwrap(), &rows);
    let found = findings.iter().find(|finding| finding.cmd.as_deref() == Some("0x00000b06")).unwrap();
    assert_eq!(shown([found])[0].0, "new 0x00000b06 24 anybody pid@4 subPid@8");
    assert_eq!(found.name, "NV0000_CTRL_CMD_GPUACCT_GET_PROC_ACCOUNTING_INFO_V2");
}

/// `nvtypes.h` declares what the parser knows by itself, and a number in two halves that 535 has in a control.
#[test]
fn type_beside_built_in_ones_is_read() {
    let root = tempfile::tempdir().unwrap();
    let types = "typedef unsigned char NvU32; typedef struct NvU64_ALIGN32 { NvU32 lo; NvU32 hi; } NvU64_ALIGN32;";
    write(&root.path().join("nvtypes.h"), types);
    let control = "typedef struct NV7E57_CTRL_SUM_PARAMS { NvU32 pid; NvU64_ALIGN32 sum; } NV7E57_CTRL_SUM_PARAMS;";
    write(&root.path().join("ctrl/ctrl7e57.h"), control);
    let tree = Tree::read(root.path()).unwrap();
    assert_eq!(tree.headers.layout("NV7E57_CTRL_SUM_PARAMS").map(|layout| layout.size), Ok(12));
}

#[test]
fn translated_events_raise_no_alarm() {
    for (number, expected) in [(200, Verdict::Fits), (201, Verdict::Fits), (202, Verdict::New)] {
        let mut made = Made::new();
        made.add(CLASS, &format!("\n#define NV7E57_NOTIFIERS_FULL ({number})\n"));
        made.add(EVENT, "void tell(void) { noteNotify(g, NV7E57_NOTIFIERS_FULL, NULL, 0, pClient->ProcID, 0); }");
        let findings = judged(&made.tree().unwrap(), &known(), &ROWS);
        let found = findings.iter().find(|finding| finding.way == "event").unwrap();
        assert_eq!((found.verdict, found.name.as_str()), (expected, "NV7E57_NOTIFIERS_FULL"), "{number}");
    }
}

#[test]
fn table_in_another_form_is_error() {
    let mut made = Made::new();
    made.files.insert(TABLE, made.table().replacen("/*methodId=*/", "/*number=*/", 1));
    assert!(format!("{:#}", made.tree().err().unwrap()).contains("number of a method"));
    made.methods.clear();
    made.files.insert(TABLE, made.table());
    assert!(format!("{:#}", made.tree().err().unwrap()).contains("0 entries"));
}

#[test]
fn headers_alone_show_their_controls() {
    let root = tempfile::tempdir().unwrap();
    // One without CMD in its name: the comment says that it is a control, and what its parameters are.
    let more = "
typedef struct NV7E57_CTRL_ODD_PARAMS { NvU32 pid; } NV7E57_CTRL_ODD_PARAMS;
#define NV7E57_CTRL_ODD (0x7e570110U) /* made of \"(X << 8) | NV7E57_CTRL_ODD_PARAMS_MESSAGE_ID\" */
#define NV7E57_CTRL_ODD_PARAMS_MESSAGE_ID (0x10U)
";
    write(&root.path().join("ctrl/ctrl7e57.h"), &(Made::new().files[CTRL].clone() + more));
    let tree = Tree::read(root.path()).unwrap();
    assert!(!tree.has_tables);
    let alarms = [
        "new 0x7e570101 20 declared pids@4 ×4: no row",
        "new 0x7e570102 16 declared →NV7E57_SESSION.processId@0 →NV7E57_SESSION.subProcessId@4: no row",
        "new 0x7e570110 4 declared pid@0: no row",
    ];
    check("headers", &judged(&tree, &known(), &[]), &alarms);
}

#[test]
fn list_without_reason_is_rejected() {
    List::committed().unwrap();
    assert!(
        List::parse("[known.limit]\n\"control 0x1\" = \"because\"").err().unwrap().to_string().contains("no reason")
    );
}

/// The trees that the variable names; none, said aloud, without it.
fn real_trees() -> Vec<PathBuf> {
    let list = std::env::var(VARIABLE).unwrap_or_else(|_| {
        println!("skipped: {VARIABLE} names no source tree of the driver");
        String::new()
    });
    list.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// Controls that carry PIDs in every open release from 515.43.04 on, as the reference of this project's facts lists them by
/// release.
const ALWAYS: &str = "0x2080018d 0x2080018e 0x20802096 0x00000b01 0x00000b02 0x00000b03 0x00000b04 0x00000b05 \
0x2080016e 0x2080017c 0x90cc0103 0x00000607 0x00000901 0x20801349 0x00000485";

#[test]
fn real_driver_is_recalled_with_few_false_alarms() {
    for root in real_trees() {
        let findings = judge(&Tree::read(&root).unwrap(), &List::committed().unwrap());
        for cmd in ALWAYS.split(' ') {
            let found = findings.iter().find(|finding| finding.cmd.as_deref() == Some(cmd));
            assert!(found.is_some_and(|finding| !finding.fields.is_empty()), "{}: {cmd}", root.display());
        }
        let wrong = findings.iter().filter(|finding| finding.sort == Some(Sort::FalseAlarm)).count();
        assert!(wrong <= 5, "{}: {wrong} false alarms", root.display());
    }
}

#[test]
fn sizes_in_real_driver_are_those_of_compiler() {
    for root in real_trees() {
        let tree = Tree::read(&root).unwrap();
        let sdk = root.join("src/common/sdk/nvidia/inc");
        let parameters: Vec<&str> = tree.controls.iter().filter_map(|control| control.parameters.as_deref()).collect();
        assert!(parameters.len() > 900);
        let mut program = String::from("#include <stdio.h>\n#include \"nvtypes.h\"\n#include \"nvmisc.h\"\n");
        for header in below(&sdk.join("ctrl"), ".h").unwrap() {
            program += &format!("#include \"{}\"\n", header.display());
        }
        program += "int main(void) {\n";
        for name in &parameters {
            program += &format!("printf(\"%zu\\n\", sizeof({name}));\n");
        }
        let include = [sdk, root.join("src/nvidia/inc"), root.join("src/common/inc")];
        let printed = compiled(&(program + "return 0; }\n"), &include);
        for (name, size) in parameters.iter().zip(printed.lines()) {
            assert_eq!(tree.headers.layout(name).unwrap().size.to_string(), size, "{}: {name}", root.display());
        }
    }
}
