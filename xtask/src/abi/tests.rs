//! The checker on small trees of our own making, in the form that the driver's have; on real ones where MPU_DRIVER_SOURCE
//! names some.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mpu_abi::{Control, ControlCmd, History, Inner, Layout, Release, Releases, Row, Rows};

use super::c::Headers;
use super::judge::{judge, judge_by, Finding, List, Sort, Verdict};
use super::names::{names_pid, words};
use super::tree::{Reach, Tree};

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
fn compiled(name: &str, text: &str, include: &[PathBuf]) -> String {
    let dir = scratch(name);
    let source = dir.join("layout.c");
    fs::write(&source, text).unwrap();
    let folders = include.iter().flat_map(|dir| ["-I".into(), dir.as_os_str().to_owned()]);
    let mut cc = Command::new("cc");
    cc.args(folders).args(["-w", "-o"]).arg(dir.join("layout")).arg(&source);
    let done = cc.output().expect("cc is what ./x builds with");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let ran = Command::new(dir.join("layout")).output().unwrap();
    fs::remove_dir_all(dir).unwrap();
    String::from_utf8(ran.stdout).unwrap()
}

pub fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("mpu-abi-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn layouts_are_those_of_a_compiler() {
    let mut headers = Headers::default();
    headers.read("layouts.h", LAYOUTS);
    let fields = headers.fields("OUTER").unwrap();
    assert!(fields.len() > 15, "{fields:?}");
    // A bit-field has no offset in C.
    let asked: Vec<_> = fields.iter().filter(|field| !["low", "high"].contains(&field.path.as_str())).collect();
    let mut program = format!("{TYPES}{LAYOUTS}int main(void) {{ printf(\"%zu\\n\", sizeof(OUTER));\n");
    for field in &asked {
        // The first of each array on the way.
        let path = field.path.replace("inner", "inner[0][0]").replace("last", "last[0]").replace("tail", "tail[0]");
        program += &format!("printf(\"%zu\\n\", offsetof(OUTER, {path}));\n");
    }
    let printed = compiled("layouts", &(program + "return 0; }\n"), &[]);
    let mut numbers = printed.lines().map(|line| line.parse::<usize>().unwrap());
    assert_eq!(headers.layout("OUTER").unwrap().size, numbers.next().unwrap());
    for (field, offset) in asked.iter().zip(numbers) {
        assert_eq!(field.offset, offset, "{}", field.path);
    }
}

#[test]
fn repeated_fields_stand_where_the_arrays_put_them() {
    let mut headers = Headers::default();
    headers.read("layouts.h", LAYOUTS);
    let fields = headers.fields("OUTER").unwrap();
    let pid = fields.iter().find(|field| field.path == "inner.procId").unwrap();
    // INNER: flag@0, when@8, name@16, procId@24, 32 bytes; the array begins at 8.
    assert_eq!(pid.offsets(), [32, 64, 96, 128, 160, 192]);
}

#[test]
fn what_cannot_be_read_is_named() {
    let mut headers = Headers::default();
    headers.read("a.h", "typedef struct A { MISSING m; } A; typedef struct B { NvU8 x[NO_SUCH]; } B;");
    headers.read("b.h", "typedef struct C { struct C c; } C;");
    assert_eq!(headers.layout("A").unwrap_err(), "MISSING is not declared");
    assert_eq!(headers.layout("B").unwrap_err(), "NO_SUCH has no value");
    assert!(headers.layout("C").unwrap_err().contains("holds itself"));
}

#[test]
fn names_of_pids_are_told_from_others() {
    assert_eq!(words("subProcessID"), ["sub", "process", "id"]);
    for name in [
        "pid",
        "procId",
        "processID",
        "ProcessID",
        "PROCESS_ID",
        "pidTbl",
        "vmPid",
        "subProcessId",
        "hostTgid",
        "threadId",
        "process",
        "procNum",
        "ownerProcess",
        "lwp",
        "hProcess",
        "creator",
        "pidLo",
        "pidHi",
        "pidTarget",
    ] {
        assert!(names_pid(name), "{name}");
    }
    let others = [
        "pidTblCount",
        "bSkipIdleWarp",
        "groupId",
        "rapid",
        "logicalUprocId",
        "processor",
        "engineId",
        "pidInfoListCount",
        "guid",
        "processCount",
        "processorNum",
        "creatorFlags",
        "pidLoad",
    ];
    for name in others {
        assert!(!names_pid(name), "{name}");
    }
}

/// A driver of one class, 0x7e57. `{…}` stand for what a test changes.
pub struct Made {
    pub ctrl: String,
    table: String,
    event: String,
    os: String,
    pub class: String,
    /// Other files: where each lies, and its text.
    more: Vec<(&'static str, String)>,
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
        let table = [(0x8, 0x101, "LIST"), (0x8, 0x102, "SESSIONS"), (0x8, 0x103, "CLOCK")]
            .map(|(f, id, name)| entry(f, id, name));
        let os = "
NV_STATUS NV_API_CALL os_memcpy_to_user (void *, const void *, NvU32);
NV_STATUS NV_API_CALL os_memcpy_from_user(void *to, const void *from, NvU32 bytes);
NV_STATUS NV_API_CALL rm_ioctl (nvidia_stack_t *, nv_state_t *, nv_file_private_t *, NvU32, void *, NvU32);
static long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long argument) { return 0; }
";
        Made {
            ctrl: ctrl.into(),
            table: table.concat(),
            event: "void tell(void) { noteNotify(g, NV7E57_NOTIFIERS_HOT, NULL, 0, degrees, 0); }".into(),
            os: os.into(),
            class: "typedef struct NV7E57_PAGE { NvU64 seq; NvU32 heat; } NV7E57_PAGE;".into(),
            more: Vec::new(),
        }
    }

    fn judged(&self, name: &str) -> Vec<Finding> {
        judged_by(&self.tree(name).unwrap(), &known(), &ROWS)
    }

    fn tree(&self, name: &str) -> anyhow::Result<Tree> {
        let root = scratch(name);
        let flags = "#define RMCTRL_FLAGS_PRIVILEGED 0x4\n#define RMCTRL_FLAGS_NON_PRIVILEGED 0x8 // who may
#define RMCTRL_FLAGS_INTERNAL 0x80\n";
        let head = "static const struct NVOC_EXPORTED_METHOD_DEF __nvoc_exported_method_def_Test[] = \n{\n";
        let table = format!("{head}{}\n}};\n", self.table);
        for (file, text) in [
            ("src/common/sdk/nvidia/inc/ctrl/ctrl7e57.h", self.ctrl.as_str()),
            ("src/common/sdk/nvidia/inc/class/cl7e57.h", &self.class),
            ("src/nvidia/inc/kernel/rmapi/control.h", flags),
            ("src/nvidia/generated/g_test_nvoc.c", &table),
            ("src/nvidia/src/kernel/test.c", &self.event),
            ("kernel-open/common/inc/os-interface.h", &self.os),
        ]
        .into_iter()
        .chain(self.more.iter().map(|(file, text)| (*file, text.as_str())))
        {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            fs::write(root.join(file), text).unwrap();
        }
        let tree = Tree::read(&root);
        fs::remove_dir_all(root).unwrap();
        tree
    }
}

fn entry(flags: u32, id: u32, name: &str) -> String {
    let id = 0x7e57_0000 | id;
    let lines = [
        "    {               /*  [0] */".to_owned(),
        format!("        /*pFunc=*/      (void (*)(void)) &test{name}_IMPL,"),
        format!("        /*flags=*/      {flags:#x}u,"),
        "        /*accessRight=*/0x0u,".to_owned(),
        format!("        /*methodId=*/   {id:#x}u,"),
        format!("        /*paramSize=*/  sizeof(NV7E57_CTRL_{name}_PARAMS),"),
        format!("        /*func=*/       \"test{name}\"\n    }},\n"),
    ];
    lines.join("\n")
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
pub fn judged_by(tree: &Tree, list: &List, rows: &[Row]) -> Vec<Finding> {
    judge_by(tree, list, rows, &|_| None)
}

/// Adds a control, 0x7e570106, with these parameters.
fn with_control(made: &mut Made, fields: &str) {
    made.ctrl += &format!(
        "#define NV7E57_CTRL_CMD_MORE (0x7e570106)\ntypedef struct NV7E57_CTRL_MORE_PARAMS {{ {fields} }} NV7E57_CTRL_MORE_PARAMS;\n"
    );
    made.table += &entry(0x8, 0x106, "MORE");
}

/// What a new release may bring, each by itself: one line for each, and none beside it.
#[test]
fn mutated_driver_raises_one_alarm() {
    type Mutation = fn(&mut Made);
    const UVM: &str = "kernel-open/nvidia-uvm/uvm_ioctl.h";
    const NVKMS: &str = "src/nvidia-modeset/interface/nvkms-api.h";
    const DRM: &str = "kernel-open/nvidia-drm/nv_drm_common_ioctl.h";
    const ESCAPES: &str = "src/nvidia/arch/nvalloc/unix/include/nv_escape.h";
    let cases: [(&str, &str, Mutation); 16] = [
        ("process", "0x7e570106", |made| with_control(made, "NvU32 process;")),
        ("procNum", "0x7e570106", |made| with_control(made, "NvU32 procNum;")),
        ("ownerProcess", "0x7e570106", |made| with_control(made, "NvU32 ownerProcess;")),
        ("lwp", "0x7e570106", |made| with_control(made, "NvU32 lwp;")),
        ("hProcess", "0x7e570106", |made| with_control(made, "NvHandle hProcess;")),
        ("creator", "0x7e570106", |made| with_control(made, "NvU64 creator;")),
        ("two halves", "0x7e570106", |made| with_control(made, "NvU32 pidLo; NvU32 pidHi;")),
        ("size of a row", "0x7e570101", |made| made.ctrl = made.ctrl.replace("LIST_MAX 4", "LIST_MAX 5")),
        ("unknown size of a row", "0x7e570101", |made| made.ctrl = made.ctrl.replace("LIST_MAX 4", "LIST_MAX NONE")),
        ("UVM ioctl", "UVM_WHO_PARAMS", |made| {
            made.more.push((UVM, "typedef struct { NvU32 pid; NvU32 rmStatus; } UVM_WHO_PARAMS;".into()));
        }),
        ("UVM ioctl with a type of another header", "UVM_WHO_PARAMS", |made| {
            made.more.push((UVM, "typedef struct { NvProcessorUuid gpu; NvU32 pid; } UVM_WHO_PARAMS;".into()));
        }),
        ("modeset ioctl", "NvKmsWhoParams", |made| {
            made.more.push((NVKMS, "struct NvKmsWhoParams { struct { NvU32 ownerPid; } reply; };".into()));
        }),
        ("DRM ioctl", "drm_nvidia_who_params", |made| {
            made.more.push((DRM, "struct drm_nvidia_who_params { uint32_t flags; __u64 tgid; };".into()));
        }),
        ("caps", "nv_cap_owner_t", |made| {
            let text = "typedef struct nv_cap_owner_s { int minor; int pid; } nv_cap_owner_t;";
            made.more.push(("kernel-open/common/inc/nv-caps.h", text.into()));
        }),
        ("file of /proc", "nv_procfs_read_users", |made| {
            let text = "static int nv_procfs_read_users(struct seq_file *s, void *v)
                { int who; who = task_tgid_nr(v); seq_printf(s, \"%d\", who); return 0; }";
            made.more.push(("kernel-open/nvidia/nv-caps.c", text.into()));
        }),
        ("escape without a handler", "NV_ESC_RM_WHO", |made| {
            made.more.push((ESCAPES, "#define NV_ESC_RM_WHO 0x60".into()));
        }),
    ];
    let missed = cases.iter().filter_map(|(name, subject, mutate)| {
        let mut made = Made::new();
        mutate(&mut made);
        let found: Vec<String> = alarms(&made.judged("mutated")).into_iter().map(|(_, subject, _)| subject).collect();
        (found != [*subject]).then_some((*name, found))
    });
    assert_eq!(missed.collect::<Vec<_>>(), []);
}

/// The functions as they are in our list, and nothing known.
pub fn known() -> List {
    let ours = include_str!("../../abi.toml");
    let functions = ours.find("[[function]]").unwrap();
    List::parse(&format!("known = []\n{}", &ours[functions..])).unwrap()
}

pub fn alarms(findings: &[Finding]) -> Vec<(Verdict, String, String)> {
    let some = findings.iter().filter(|finding| super::is_alarm(finding));
    some.map(|finding| (finding.verdict, finding.cmd.clone().unwrap_or(finding.name.clone()), finding.why.clone()))
        .collect()
}

#[test]
fn a_driver_that_has_nothing_new_raises_no_alarm() {
    let findings = Made::new().judged("quiet");
    assert_eq!(alarms(&findings), []);
    let fits: Vec<_> =
        findings.iter().filter(|finding| finding.verdict == Verdict::Fits).map(|f| f.name.as_str()).collect();
    assert!(fits.contains(&"NV7E57_CTRL_CMD_LIST") && fits.contains(&"NV7E57_CTRL_CMD_SESSIONS"), "{fits:?}");
}

#[test]
fn releases_of_a_row_are_held_against_the_release_that_was_read() {
    const fn history(releases: &'static [Releases]) -> History {
        History { releases, entry: None, unused: None, seen: "a header" }
    }
    static OF_IT: History = history(&[Releases { since: Release::new(1, 0, 0), until: None }]);
    static BEFORE: History =
        history(&[Releases { since: Release::new(1, 0, 0), until: Some(Release::new(998, 0, 0)) }]);
    static AFTER: History = history(&[Releases { since: Release::new(1000, 0, 0), until: None }]);
    let told = |made: &Made, history: &'static History| {
        let mut tree = made.tree("releases").unwrap();
        tree.release = Some("999.1".to_owned());
        let findings = judge_by(&tree, &known(), &ROWS[..1], &|_| Some(history));
        let list = findings.into_iter().find(|finding| finding.cmd.as_deref() == Some("0x7e570101")).unwrap();
        (list.verdict, list.why)
    };
    let made = Made::new();
    assert_eq!(told(&made, &OF_IT), (Verdict::Fits, "a row of a header".to_owned()));
    for wrong in [&BEFORE, &AFTER] {
        let (verdict, why) = told(&made, wrong);
        assert!(verdict == Verdict::Changed && why.contains("does not name 999.01"), "{why}");
    }
    let gone = Made {
        ctrl: made.ctrl.replace("0x7e570101", "0x7e5701f1"),
        table: made.table.replace("0x7e570101", "0x7e5701f1"),
        ..Made::new()
    };
    assert_eq!(told(&gone, &BEFORE).0, Verdict::Gone);
    let (verdict, why) = told(&gone, &OF_IT);
    assert!(verdict == Verdict::Changed && why.contains("the row names 999.01"), "{why}");
}

#[test]
fn a_new_control_with_a_pid_deep_inside_is_found() {
    let mut made = Made::new();
    made.ctrl += "
typedef struct NV7E57_DEEP { NvU8 x; union { NvU32 procId; NvU8 raw[4]; } who; } NV7E57_DEEP;
#define NV7E57_CTRL_CMD_DEEP (0x7e570106)
typedef struct NV7E57_CTRL_DEEP_PARAMS { NvU32 n; NV7E57_DEEP entries[3]; } NV7E57_CTRL_DEEP_PARAMS;
";
    made.table += &entry(0x8, 0x106, "DEEP");
    let findings = made.judged("deep");
    assert_eq!(alarms(&findings), [(Verdict::New, "0x7e570106".to_owned(), "no row".to_owned())]);
    let deep = findings.iter().find(|finding| finding.verdict == Verdict::New).unwrap();
    assert_eq!((deep.size, deep.fields.as_slice()), (Some(28), &["entries.who.procId@8 ×3".to_owned()][..]));
}

/// As 610 has it: a second form of the accounting record, which nobody told the checker of.
#[test]
fn the_second_accounting_record_is_found_untold() {
    let mut made = Made::new();
    made.ctrl += "
#define NV0000_CTRL_CMD_GPUACCT_GET_PROC_ACCOUNTING_INFO_V2 (0xb06) /* of \"(0xb << 8) | NV0000_CTRL_ACCT2_PARAMS_MESSAGE_ID\" */
typedef struct NV7E57_CTRL_ACCT2_PARAMS { NvU32 gpu; NvU32 pid; NvU32 subPid; NvU64 sum; } NV7E57_CTRL_ACCT2_PARAMS;
";
    made.table += &entry(0x10008, 0, "ACCT2").replace("0x7e570000u", "0xb06u");
    let rows: Vec<Row> = mpu_abi::ROWS.iter().filter(|row| row.cmd.0 != 0xb06).copied().collect();
    let findings = judged_by(&made.tree("acct2").unwrap(), &List::ours().unwrap(), &rows);
    let found = findings.iter().find(|finding| finding.cmd.as_deref() == Some("0x00000b06")).unwrap();
    assert_eq!((found.verdict, found.size, found.reach), (Verdict::New, Some(24), Some(Reach::Anybody)));
    assert_eq!(found.name, "NV0000_CTRL_CMD_GPUACCT_GET_PROC_ACCOUNTING_INFO_V2");
    assert_eq!(found.fields, ["pid@4", "subPid@8"]);
}

#[test]
fn a_control_whose_parameters_are_not_there_is_no_silence() {
    let mut made = Made::new();
    made.table += &entry(0x8, 0x109, "NOWHERE");
    let found = alarms(&made.judged("nowhere"));
    assert_eq!((found[0].0, found[0].1.as_str()), (Verdict::New, "0x7e570109"));
    assert!(found[0].2.contains("NV7E57_CTRL_NOWHERE_PARAMS is not declared"), "{found:?}");
}

/// `nvtypes.h` declares what the parser knows by itself, and a number in two halves that 535 has in a control.
#[test]
fn a_type_beside_the_built_in_ones_is_read() {
    let root = scratch("types");
    fs::create_dir_all(root.join("ctrl")).unwrap();
    let types = "typedef unsigned char NvU32; typedef struct NvU64_ALIGN32 { NvU32 lo; NvU32 hi; } NvU64_ALIGN32;";
    fs::write(root.join("nvtypes.h"), types).unwrap();
    let control = "typedef struct NV7E57_CTRL_SUM_PARAMS { NvU32 pid; NvU64_ALIGN32 sum; } NV7E57_CTRL_SUM_PARAMS;";
    fs::write(root.join("ctrl/ctrl7e57.h"), control).unwrap();
    let tree = Tree::read(&root).unwrap();
    fs::remove_dir_all(root).unwrap();
    assert_eq!(tree.headers.layout("NV7E57_CTRL_SUM_PARAMS").map(|layout| layout.size), Ok(12));
}

#[test]
fn who_may_call_is_read_from_the_trees_own_flags() {
    let mut made = Made::new();
    made.ctrl += "
#define NV7E57_CTRL_CMD_INNER (0x7e570107)
typedef struct NV7E57_CTRL_INNER_PARAMS { NvU32 pid; } NV7E57_CTRL_INNER_PARAMS;
#define NV7E57_CTRL_CMD_ROOT (0x7e570108)
typedef struct NV7E57_CTRL_ROOT_PARAMS { NvU32 pid; } NV7E57_CTRL_ROOT_PARAMS;
";
    made.table += &(entry(0x88, 0x107, "INNER") + &entry(0x4, 0x108, "ROOT"));
    let findings = made.judged("reach");
    assert_eq!(alarms(&findings).len(), 1, "what only the driver itself may call is no alarm");
    assert_eq!(findings.iter().find(|f| f.verdict == Verdict::New).unwrap().reach, Some(Reach::Root));
}

#[test]
fn a_row_that_no_longer_fits_is_found() {
    let alarm = |from: &str, to: &str| {
        let mut made = Made::new();
        made.ctrl = made.ctrl.replace(from, to);
        let found = alarms(&made.judged("fits"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, Verdict::Changed);
        found[0].2.clone()
    };
    assert_eq!(alarm("LIST_MAX 4", "LIST_MAX 5"), "24 bytes; rows have 20");
    assert!(alarm("NvU32 count; NvU32 pids[NV7E57_LIST_MAX];", "NvU32 pids[NV7E57_LIST_MAX]; NvU32 count;")
        .contains("a PID at 0"));
    assert!(alarm("NvU32 processId; NvU32 subProcessId;", "NvU32 id; NvU32 processId;").contains("behind the pointer"));
    assert!(alarm(
        "NvU32 count; NV_DECLARE_ALIGNED(NvP64 table, 8);",
        "NvU16 count; NV_DECLARE_ALIGNED(NvP64 table, 8);"
    )
    .contains("count"));
    assert!(alarm("NvU64 rate; }", "NvU64 rate; NvU64 more; }").contains("an entry has 24 bytes"));
    assert!(alarm("NV7E57_LIST_MAX]; }", "NO_SUCH]; }").contains("cannot be read: NO_SUCH has no value"));
}

#[test]
fn a_kernel_pointer_in_a_known_control_is_found() {
    let mut made = Made::new();
    made.ctrl = made.ctrl.replace("NvU32 clock;", "NvU32 clock; NvU32 rest; NvU64 pOsPidInfo;");
    assert_eq!(alarms(&made.judged("pointer")), [(Verdict::New, "0x7e570103".to_owned(), "no row".to_owned())]);
}

#[test]
fn an_event_that_carries_a_pid_is_found_also_by_way_of_a_variable() {
    for event in [
        "void tell(void) { noteNotify(g(x), NV7E57_NOTIFIERS_FULL,\n    NULL, 0, pClient->ProcID, 0); }",
        "void tell(void) { NvU32 who; who = osGetCurrentProcess(); noteNotify(g, NV7E57_NOTIFIERS_FULL, NULL, 0, who, 0); }",
    ] {
        let made = Made { event: event.into(), ..Made::new() };
        let found = alarms(&made.judged("event"));
        assert_eq!(found.len(), 1, "{event}: {found:?}");
        assert_eq!(found[0].1, "NV7E57_NOTIFIERS_FULL");
    }
}

#[test]
fn translated_events_raise_no_alarm() {
    for (number, expected) in [(200, Verdict::Fits), (201, Verdict::Fits), (202, Verdict::New)] {
        let mut made = Made::new();
        made.class += &format!("\n#define NV7E57_NOTIFIERS_FULL ({number})\n");
        made.event = "void tell(void) { noteNotify(g, NV7E57_NOTIFIERS_FULL, NULL, 0, pClient->ProcID, 0); }".into();
        let findings = made.judged("translated");
        let found = findings.iter().find(|finding| finding.way == "event").unwrap();
        assert_eq!((found.verdict, found.name.as_str()), (expected, "NV7E57_NOTIFIERS_FULL"), "{number}");
    }
}

#[test]
fn a_shared_page_with_a_pid_is_found() {
    let mut made = Made::new();
    made.class = made.class.replace("NvU32 heat;", "NvU32 heat; struct { NvU32 procId; NvU32 util; } samples[5];");
    let found = alarms(&made.judged("page"));
    assert_eq!(found[0].1, "NV7E57_PAGE");
}

#[test]
fn a_function_that_the_redirects_cannot_take_is_found() {
    let mut made = Made::new();
    made.os = made
        .os
        .replace("os_memcpy_to_user (void *, const void *, NvU32)", "os_memcpy_to_user (void *, const void *, NvU64)");
    let found = alarms(&made.judged("function"));
    assert_eq!((found[0].0, found[0].1.as_str()), (Verdict::Changed, "os_memcpy_to_user"));
    made.os = made.os.replace("nvidia_unlocked_ioctl", "nvidia_ioctl_of_another_name");
    assert_eq!(alarms(&made.judged("function")).len(), 2);
    // A helper that translates, under a name that no redirect knows.
    let made = Made { os: Made::new().os + "NvU32 NV_API_CALL os_pid_in_ns(void *, NvU32);\n", ..Made::new() };
    let found = alarms(&made.judged("function"));
    assert_eq!((found[0].0, found[0].1.as_str(), found.len()), (Verdict::New, "os_pid_in_ns", 1));
}

#[test]
fn a_table_in_another_form_is_an_error_and_no_silence() {
    let mut made = Made::new();
    made.table = made.table.replacen("/*methodId=*/", "/*number=*/", 1);
    assert!(format!("{:#}", made.tree("form").err().unwrap()).contains("number of a method"));
    made.table = String::new();
    assert!(format!("{:#}", made.tree("form").err().unwrap()).contains("0 entries"));
}

#[test]
fn headers_alone_are_enough_to_find_a_control() {
    let root = scratch("headers");
    fs::create_dir_all(root.join("ctrl")).unwrap();
    // One without CMD in its name: the comment says that it is a control, and what its parameters are.
    let more = "
typedef struct NV7E57_CTRL_ODD_PARAMS { NvU32 pid; } NV7E57_CTRL_ODD_PARAMS;
#define NV7E57_CTRL_ODD (0x7e570110U) /* made of \"(X << 8) | NV7E57_CTRL_ODD_PARAMS_MESSAGE_ID\" */
#define NV7E57_CTRL_ODD_PARAMS_MESSAGE_ID (0x10U)
";
    fs::write(root.join("ctrl/ctrl7e57.h"), Made::new().ctrl + more).unwrap();
    let tree = Tree::read(&root).unwrap();
    fs::remove_dir_all(root).unwrap();
    assert!(!tree.has_tables);
    let findings = judged_by(&tree, &known(), &[]);
    let found: Vec<_> = alarms(&findings).into_iter().map(|(_, cmd, _)| cmd).collect();
    assert_eq!(found, ["0x7e570101", "0x7e570102", "0x7e570110"]);
}

#[test]
fn the_list_tells_the_reason_of_each_entry() {
    List::ours().unwrap();
    let without = "function = []\n[[known]]\nway = \"control\"\nfor = \"0x1\"\nsort = \"limit\"\nreason = \"because\"";
    assert!(List::parse(without).err().unwrap().to_string().contains("no reason"));
}

/// The trees that the variable names; none, said aloud, without it.
fn real_trees() -> Vec<PathBuf> {
    match std::env::var(VARIABLE) {
        Ok(list) => list.split(':').map(PathBuf::from).collect(),
        Err(_) => {
            println!("skipped: {VARIABLE} names no source tree of the driver");
            Vec::new()
        }
    }
}

/// Controls that carry PIDs in every open release from 515.43.04 on, as the reference of this project's facts lists them by
/// release.
const ALWAYS: [u32; 15] = [
    0x2080_018d,
    0x2080_018e,
    0x2080_2096,
    0xb01,
    0xb02,
    0xb03,
    0xb04,
    0xb05,
    0x2080_016e,
    0x2080_017c,
    0x90cc_0103,
    0x607,
    0x901,
    0x2080_1349,
    0x485,
];

#[test]
fn a_real_driver_is_recalled_with_few_false_alarms() {
    for root in real_trees() {
        let findings = judge(&Tree::read(&root).unwrap(), &List::ours().unwrap());
        for cmd in ALWAYS {
            let cmd = format!("{cmd:#010x}");
            let found = findings.iter().find(|finding| finding.cmd.as_ref() == Some(&cmd));
            assert!(found.is_some_and(|finding| !finding.fields.is_empty()), "{}: {cmd}", root.display());
        }
        let wrong = findings.iter().filter(|finding| finding.sort == Some(Sort::FalseAlarm)).count();
        assert!(wrong <= 5, "{}: {wrong} false alarms", root.display());
    }
}

#[test]
fn sizes_in_a_real_driver_are_those_of_a_compiler() {
    for root in real_trees() {
        let tree = Tree::read(&root).unwrap();
        let sdk = root.join("src/common/sdk/nvidia/inc");
        let parameters: Vec<&str> = tree.controls.iter().filter_map(|control| control.parameters.as_deref()).collect();
        assert!(parameters.len() > 900);
        let mut program = String::from("#include <stdio.h>\n#include \"nvtypes.h\"\n#include \"nvmisc.h\"\n");
        for header in headers_of(&sdk.join("ctrl")) {
            program += &format!("#include \"{}\"\n", header.display());
        }
        program += "int main(void) {\n";
        for name in &parameters {
            program += &format!("printf(\"%zu\\n\", sizeof({name}));\n");
        }
        let include = [sdk, root.join("src/nvidia/inc"), root.join("src/common/inc")];
        let printed = compiled("real", &(program + "return 0; }\n"), &include);
        for (name, size) in parameters.iter().zip(printed.lines()) {
            assert_eq!(tree.headers.layout(name).unwrap().size.to_string(), size, "{}: {name}", root.display());
        }
    }
}

fn headers_of(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => out.extend(headers_of(&entry)),
            false if entry.extension().is_some_and(|ending| ending == "h") => out.push(entry),
            false => {}
        }
    }
    out.sort();
    out
}
