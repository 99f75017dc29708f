//! Tests on small drivers compiled by the system's `cc`, in the form of real ones; and on a real one in MPU_DRIVER_OBJECT.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::super::judge::{List, Verdict, judge};
use super::super::tests::{CHANGES, CLASS, CTRL, Made, ROWS, TYPES, changed, check, judged, known, shown, write};
use super::super::tree::{Reach, Tree};
use super::super::{is_alarm, outcome};
use super::{Expected, functions_of_module, read, read_host};
use crate::outcome::Outcome;

/// Pairs of a built object and the source tree of the same release, `OBJECT=TREE` with colons between them.
const VARIABLE: &str = "MPU_DRIVER_OBJECT";

/// What is expected of a made driver, with numbers of structures.
fn made<const N: usize>(numbers: [(&str, u32); N]) -> Expected<'static> {
    Expected { rows: &ROWS, numbers: numbers.map(|(name, cmd)| (name.to_owned(), cmd)).into() }
}

fn real_pairs() -> Vec<(PathBuf, PathBuf)> {
    let Ok(list) = std::env::var(VARIABLE) else {
        println!("skipped: {VARIABLE} names no OBJECT=TREE");
        return Vec::new();
    };
    let pairs = list.split(':').filter_map(|pair| pair.split_once('='));
    pairs.map(|(object, tree)| (object.into(), tree.into())).collect()
}

/// The driver of `Made`, built.
struct Built {
    made: Made,
    /// The function that every call goes through.
    entry: &'static str,
    /// More of the core's C.
    core: String,
    interface: String,
    /// The form of a table's entries, from its last field on.
    form: &'static str,
    /// For `cc`.
    options: &'static [&'static str],
    expected: Expected<'static>,
}

/// What the core has beside its methods.
const CORE: &str = r"
typedef uint32_t NV_STATUS; typedef uint32_t NvHandle;
typedef struct nvidia_stack nvidia_stack_t; typedef struct nv_state nv_state_t; typedef struct nv_file_private nv_file_private_t;
typedef struct NVOC_CLASS_INFO { NvU32 id; } NVOC_CLASS_INFO;
struct NVOC_EXPORTED_METHOD_DEF {
    void (*pFunc)(void); NvU32 flags; NvU32 accessRight; NvU32 methodId; NvU32 paramSize;
    const NVOC_CLASS_INFO *pClassInfo; FORM
const NVOC_CLASS_INFO classInfo = { 1 };
struct Test;
NV_STATUS rm_ioctl(nvidia_stack_t *a, nv_state_t *b, nv_file_private_t *c, NvU32 d, void *e, NvU32 f) { return 0; }
";

const INTERFACE: &str = r"
struct file;
NV_STATUS os_memcpy_to_user(void *to, const void *from, NvU32 bytes) { return 0; }
NV_STATUS os_memcpy_from_user(void *to, const void *from, NvU32 bytes) { return 0; }
__attribute__((used)) static long nvidia_unlocked_ioctl(struct file *f, unsigned int c, unsigned long a) { return 0; }
";

impl Built {
    fn new() -> Built {
        Built {
            made: Made::new(),
            entry: "rm_ioctl",
            core: String::new(),
            interface: INTERFACE.into(),
            form: "const char *func; };",
            options: &["-g", "-fno-eliminate-unused-debug-types"],
            expected: made([]),
        }
    }

    /// The object as a file of that folder.
    fn object(&self) -> (TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        for file in [CTRL, CLASS] {
            write(&dir.path().join(file), &self.made.files[file]);
        }
        let (mut functions, mut members, mut table) = (String::new(), String::new(), String::new());
        for (name, flags, cmd, has_function) in &self.made.methods {
            let parameters = format!("NV7E57_CTRL_{name}_PARAMS");
            let function = if *has_function {
                functions += &format!("NV_STATUS test{name}_IMPL(struct Test *t, {parameters} *p) {{ return 0; }}\n");
                format!("test{name}_IMPL")
            } else {
                members += &format!("NV_STATUS (*__test{name}__)(struct Test *, {parameters} *);\n");
                "0".to_owned()
            };
            table += &format!(
                "{{ (void (*)(void)) {function}, {flags:#x}, 0, {cmd:#x}, sizeof({parameters}), &classInfo, \
                 \"test{name}\" }},\n"
            );
        }
        let (core, interface) = (&self.core, &self.interface);
        let known = CORE.replace("FORM", self.form).replace("rm_ioctl", self.entry);
        let text = format!(
            "{TYPES}{known}#include \"ctrl/ctrl7e57.h\"\n#include \"class/cl7e57.h\"\n{functions}
struct Test {{ NvU32 x; {members} }};
__attribute__((used)) static const struct NVOC_EXPORTED_METHOD_DEF __nvoc_exported_method_def_Test[] = {{
{table} }};\n__attribute__((used)) struct Test test;\n{core}\n{interface}"
        );
        let (source, object) = (dir.path().join("driver.c"), dir.path().join("nvidia.o"));
        fs::write(&source, text).unwrap();
        let sdk = dir.path().join("src/common/sdk/nvidia/inc");
        let mut cc = Command::new("cc");
        cc.args(["-c", "-w", "-I"]).arg(sdk).args(self.options).arg("-o").arg(&object).arg(source);
        let done = cc.output().expect("cc is what ./x builds with");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        (dir, object)
    }

    fn tree(&self) -> anyhow::Result<Tree> {
        let (_dir, object) = self.object();
        read(&object, &self.expected)
    }

    /// What `cc -gbtf` makes of it, as a file of a kernel's own: no compiler makes a supplement to a kernel's.
    fn types(&self) -> Option<(TempDir, PathBuf)> {
        let (dir, object) = self.object();
        let types = dir.path().join("sys/kernel/btf/nvidia");
        fs::create_dir_all(types.parent().unwrap()).unwrap();
        let mut objcopy = Command::new("objcopy");
        objcopy.args(["-O", "binary", "--only-section=.BTF", "--set-section-flags", ".BTF=alloc"]);
        if !objcopy.arg(&object).arg(&types).status().is_ok_and(|status| status.success()) {
            println!("skipped: no objcopy");
            return None;
        }
        Some((dir, types))
    }

    /// Holds the alarms of a built driver against these, its exit against this one, and its report against a part.
    fn check(&self, expected: &[&str], exit: Option<Outcome>, expected_text: &str) -> Tree {
        let tree = self.tree().unwrap();
        let findings = judged(&tree, &known(), &ROWS);
        check(expected_text, &findings, expected);
        let is_unreadable =
            |error: anyhow::Error| error.to_string().contains("whether something is new cannot be determined");
        match (outcome(&tree, &findings), exit) {
            (Ok(found), exit) => assert_eq!(Some(found), exit, "{expected_text}"),
            (Err(error), exit) => assert!(exit.is_none() && is_unreadable(error), "{expected_text}"),
        }
        let sentences = tree.cannot_tell.join("\n");
        assert!(sentences.contains(expected_text), "{expected_text}: {sentences}");
        tree
    }
}

#[test]
fn unchanged_object_fits_its_rows() {
    for options in [&["-g"][..], &["-gdwarf-4", "-O2"], &["-gdwarf-5", "-O2"]] {
        let options = [options, &["-fno-eliminate-unused-debug-types"]].concat().leak();
        let tree = Built { options, ..Built::new() }.check(&[], Some(Outcome::Passed), "");
        let findings = judged(&tree, &known(), &ROWS);
        let fits = shown(findings.iter().filter(|finding| finding.verdict == Verdict::Fits));
        let lines: Vec<&str> = fits.iter().map(|(line, _)| line.as_str()).collect();
        let copy = "NV_STATUS (void *, const void *, NvU32)";
        let entry = "NV_STATUS (nvidia_stack_t *, nv_state_t *, nv_file_private_t *, NvU32, void *, NvU32)";
        let expected = [
            "fits 0x7e570101 20 anybody pids@4 ×4",
            "fits 0x7e570102 16 anybody →NV7E57_SESSION.processId@0 →NV7E57_SESSION.subProcessId@4",
            "fits nvidia_unlocked_ioctl long (struct file *, unsigned int, unsigned long)",
            &format!("fits rm_ioctl {entry}"),
            &format!("fits os_memcpy_from_user {copy}"),
            &format!("fits os_memcpy_to_user {copy}"),
        ];
        assert_eq!(lines, expected);
        assert_eq!(findings[0].name, "testLIST");
    }
}

#[test]
fn changed_object_raises_its_alarms() {
    for (made, case, alarms) in changed(CHANGES) {
        let built = Built { made, ..Built::new() };
        let findings = judged(&built.tree().unwrap(), &known(), &ROWS);
        check(&case, &findings, &alarms);
        assert_eq!(outcome(&built.tree().unwrap(), &findings).unwrap(), Outcome::Failed);
    }
    let mut built = Built::new();
    built.interface =
        built.interface.replace("void *from, NvU32", "void *from, NvU64").replace("nvidia_unlocked", "nvidia_other");
    built.interface += "NvU32 os_pid_in_ns(void *process, NvU32 pid) { return 0; }";
    let alarms = [
        "changed nvidia_frontend_unlocked_ioctl: not in this tree",
        "changed os_memcpy_from_user NV_STATUS (void *, const void *, NvU64): the redirect wants",
        "changed os_memcpy_to_user NV_STATUS (void *, const void *, NvU64): the redirect wants",
        "new os_pid_in_ns: no redirect knows it",
    ];
    built.check(&alarms, Some(Outcome::Failed), "");
}

#[test]
fn debug_information_elsewhere_is_named() {
    let built = Built { options: &["-g", "-gsplit-dwarf"], ..Built::new() };
    let tree = built.tree().unwrap();
    assert!(tree.cannot_tell.join("\n").contains("in other files (.dwo"), "{:?}", tree.cannot_tell);
    assert!(outcome(&tree, &[]).is_err());
    let built = Built { options: &["-g", "-gz=zlib"], ..Built::new() };
    let error = format!("{:#}", built.tree().err().unwrap());
    assert!(error.contains("is compressed: `objcopy --decompress-debug-sections`"), "{error}");
}

/// A type that no code uses is not in an object: the method's name spells it, or its size is all that is known.
#[test]
fn unused_type_is_found_by_name_or_named() {
    let mut built = Built::new();
    built.made.methods.truncate(1);
    built.core = "
typedef struct NV7E57_CTRL_WHO_RAN_PARAMS { NvU32 pid; NvU32 more; } NV7E57_CTRL_WHO_RAN_PARAMS;
NV_STATUS odd(struct Test *t, NV7E57_CTRL_WHO_RAN_PARAMS *p) { return 0; }
__attribute__((used)) static const struct NVOC_EXPORTED_METHOD_DEF __nvoc_exported_method_def_More[] = {
{ 0, 8, 0, 0x7e570301, sizeof(NV7E57_CTRL_WHO_RAN_PARAMS), &classInfo, \"moreCtrlCmdWhoRan\" },
{ 0, 8, 0, 0x7e570302, 12, &classInfo, \"moreCtrlCmdWhoKnows\" },
{ (void (*)(void)) odd, 8, 0, 0x7e570303, 16, &classInfo, \"moreCtrlCmdOfAnotherSize\" },
};"
    .into();
    let expected_text = "of 2 controls only the size of parameters is known: 0x7e570302 0x7e570303";
    built.check(&["new 0x7e570301 8 anybody pid@0: no row"], Some(Outcome::Failed), expected_text);
    // Of such a driver it is not said that nothing is new.
    built.core = built.core.replace("0x7e570301", "0x7e570301 + 2").replace("NvU32 pid;", "NvU32 some;");
    built.check(&[], None, "");
}

#[test]
fn table_in_another_form_needs_debug_information() {
    let mut built = Built { form: "const char *func; NvU64 since; };", ..Built::new() };
    built.check(&[], Some(Outcome::Passed), "");
    built.made.replace(CTRL, "NvU32 clock;", "NvU32 pid;");
    built.check(&["new 0x7e570103 4 anybody pid@0: no row"], Some(Outcome::Failed), "");
    built.options = &[];
    let error = format!("{:#}", built.tree().err().unwrap());
    assert!(error.contains("of 144 bytes is in a form that this reader does not know"), "{error}");
}

/// The flags of anybody, of the driver's own and of root, in the two meanings that they had.
#[test]
fn flags_decide_control_reach() {
    for flags in [[0x8, 0x88, 0x4], [0x10, 0x410, 0x100]] {
        let mut built = Built::new();
        built.made.control("InternalWho", 0, 0x7e57_0107, "NvU32 pid;");
        built.made.control("ROOT", 0, 0x7e57_0108, "NvU32 pid;");
        for (method, flags) in built.made.methods.iter_mut().zip([flags[0], flags[0], flags[0], flags[1], flags[2]]) {
            method.1 = flags;
        }
        let tree = built.tree().unwrap();
        let reach = [0x7e57_0101, 0x7e57_0107, 0x7e57_0108]
            .map(|cmd| tree.controls.iter().find(|control| control.cmd == cmd).unwrap().reach);
        assert_eq!(reach, [Reach::Anybody, Reach::Kernel, Reach::Root]);
    }
}

/// A release that moves the bit for anybody, or for root, and leaves the bit for the driver's own where it was.
#[test]
fn moved_bit_of_flags_hides_no_control() {
    let meaningless = "agree with no release";
    for (from, to) in [(0, 0), (0x8, 0x200), (0x4, 0x200)] {
        // The last is without a row, and known as root's.
        let mut built = Built { expected: made([("ROOT", 0x7e57_0109)]), ..Built::new() };
        for (name, flags, cmd) in [("InternalWho", 0x80, 7), ("NEW", 0x8, 8), ("ROOT", 0x4, 9)] {
            built.made.control(name, flags, 0x7e57_0100 + cmd, "NvU32 pid;");
        }
        built.made.methods.iter_mut().filter(|method| method.1 == from).for_each(|method| method.1 = to);
        let (root, expected_text) = if from == 0 { ("root", "") } else { ("anybody", meaningless) };
        let alarms = ["new 0x7e570108 4 anybody pid@0: no row", &format!("new 0x7e570109 4 {root} pid@0: no row")];
        let tree = built.check(&alarms, Some(Outcome::Failed), expected_text);
        assert_eq!(tree.cannot_tell.join("\n").contains(meaningless), from != 0);
    }
}

/// An object of one class, as the driver's build makes it, and one that has the way in and few controls.
#[test]
fn piece_of_driver_is_reported_incomplete() {
    let mut built = Built { entry: "rm_other", interface: String::new(), ..Built::new() };
    built.check(&[], None, "rm_ioctl is not in it: this is a piece of the driver's core");
    // With the interface it is no whole driver either.
    built.interface = INTERFACE.into();
    built.check(&[], None, "rm_ioctl is not in it");
    built.entry = "rm_ioctl";
    built.made.methods.retain(|(name, ..)| *name != "SESSIONS");
    built.check(&[], None, "of 2 controls that every driver has 1 are in it, too few for a whole driver");
}

#[test]
fn object_without_debug_information_shows_sizes() {
    let mut built = Built { options: &[], ..Built::new() };
    built.check(&[], None, "no debug information (DWARF)");
    // What is wrong is found all the same. Without that function it is taken for the core alone.
    built.made.replace(CTRL, "LIST_MAX 4", "LIST_MAX 5");
    built.interface = built.interface.replace("os_memcpy_to_user", "os_memcpy_out");
    built.check(&["changed 0x7e570101 24 anybody: 24 bytes; rows have 20"], Some(Outcome::Failed), "");
}

#[test]
fn partial_driver_misses_no_function() {
    let interface = "NV_STATUS os_memcpy_to_user(void *, const void *, NvU32);
NV_STATUS rm_calls(void *p) { return os_memcpy_to_user(p, p, 1); }"
        .into();
    let options = &["-g", "-fno-eliminate-unused-debug-types", "-O1"];
    let tree = Built { interface, options, ..Built::new() }.check(&[], Some(Outcome::Passed), "");
    assert!(!tree.is_whole);
    let findings = judged(&tree, &known(), &ROWS);
    let fits = findings.iter().filter(|f| f.way == "function" && f.verdict == Verdict::Fits);
    assert_eq!(fits.map(|f| f.name.as_str()).collect::<Vec<_>>(), ["rm_ioctl", "os_memcpy_to_user"]);
}

#[test]
fn file_without_driver_object_is_refused() {
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    let cases: [(&[u8], &str); 6] = [
        (b"", "neither an ELF object nor BTF"),
        (b"#!/bin/sh", "neither an ELF object nor BTF"),
        (b"\xfd7zXZ\0 and so on", "compressed"),
        (b"\x7fELF", "damaged or cut short"),
        (b"\x9f\xeb\x01\x00", "damaged, cut short"),
        (&own, "none of the driver's functions is in it"),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    for (bytes, part) in cases {
        fs::write(&file, bytes).unwrap();
        let error = format!("{:#}", read(file.path(), &made([])).err().unwrap());
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn damaged_object_does_not_panic() {
    let (_dir, object) = Built::new().object();
    let whole = fs::read(&object).unwrap();
    let list = known();
    let attempt = |bytes: &[u8]| {
        fs::write(&object, bytes).unwrap();
        let tree = read(&object, &made([]));
        tree.map(|tree| judged(&tree, &list, &ROWS)).is_err()
    };
    let cuts = (0..whole.len()).step_by(whole.len() / 100 + 1);
    // Section headers are at the end: each cut takes some of them away.
    let errors = cuts.filter(|cut| attempt(&whole[..*cut])).count();
    assert!(errors >= 99, "{errors}");
    let errors = damaged(&whole, 400).filter(|bytes| attempt(bytes)).count();
    println!("of 400 damaged objects {errors} could not be read");
}

/// So many copies with eight wrong bytes each, always the same ones.
fn damaged(whole: &[u8], copies: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    let mut random = 1_u64;
    (0..copies).map(move |_| {
        let mut bytes = whole.to_vec();
        for _ in 0..8 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % bytes.len();
            bytes[at] = (random >> 24) as u8;
        }
        bytes
    })
}

#[test]
fn few_or_unreadable_types_are_reported_incomplete() {
    let list = ("NV7E57_CTRL_LIST_PARAMS", 0x7e57_0101);
    let sessions = ("NV7E57_CTRL_SESSIONS_PARAMS", 0x7e57_0102);
    let check = |built: &Built, is_well: bool, part: &str| {
        let Some((_dir, types)) = built.types() else { return };
        let tree = read(&types, &built.expected).unwrap();
        let findings = judged(&tree, &known(), &ROWS);
        assert!(findings.iter().all(|finding| !is_alarm(finding) || finding.way == "function"));
        let expected_text = tree.cannot_tell.join("\n");
        assert!(outcome(&tree, &[]).is_ok() == is_well && expected_text.contains(part), "{expected_text}");
    };
    let new = || Built { options: &["-gbtf"], expected: made([list, sessions]), ..Built::new() };
    let mut built = new();
    check(&built, true, "");
    // One structure of two.
    built.made.methods.retain(|(name, ..)| *name != "SESSIONS");
    check(&built, false, "of 2 controls that every driver has 1 are in it");
    // A structure that no row has, and that is known without one, is not one of them.
    built.made.methods.retain(|(name, ..)| *name == "CLOCK");
    built.expected = made([("NV7E57_CTRL_CLOCK_PARAMS", 0x7e57_0103)]);
    check(&built, false, "of 2 controls that every driver has 0 are in it");
    // A structure that cannot be read: of types in types more than the reader follows.
    let mut built = new();
    built.made.add(CTRL, "typedef struct { NvU32 procId; } NV7E57_DEEP0;\n");
    for depth in 1..40 {
        let text = format!("typedef struct {{ NV7E57_DEEP{} x; }} NV7E57_DEEP{depth};\n", depth - 1);
        built.made.add(CTRL, &text);
    }
    built.made.control("FAR", 0x8, 0x7e57_0109, "NV7E57_DEEP39 x;");
    check(&built, false, "1 structures cannot be read: NV7E57_CTRL_FAR_PARAMS");
}

#[test]
fn types_of_host_are_judged_by_names() {
    let built =
        Built { options: &["-gbtf"], expected: made([("NV7E57_CTRL_LIST_PARAMS", 0x7e57_0101)]), ..Built::new() };
    let Some((dir, types)) = built.types() else { return };
    let symbols = dir.path().join("proc/kallsyms");
    let names = ["rm_ioctl", "os_memcpy_to_user", "os_memcpy_from_user", "nvidia_unlocked_ioctl"];
    let lines: String = names.iter().map(|name| format!("0000000000000000 t {name}\t[nvidia]\n")).collect();
    write(&symbols, &lines);
    let host = || read_host(dir.path(), &built.expected);
    let tree = host().unwrap();
    let findings = judged(&tree, &known(), &ROWS);
    check("host", &findings, &[]);
    let list = findings.iter().find(|finding| finding.cmd.as_deref() == Some("0x7e570101")).unwrap();
    assert_eq!(shown([list])[0].0, "fits 0x7e570101 20 declared pids@4 ×4");
    let prototypes = &tree.functions["os_memcpy_to_user"];
    assert!(prototypes.contains("NV_STATUS (void *, const void *, NvU32)"), "{prototypes:?}");
    // A PID in a structure whose number is not known: by its name.
    let tree = read_host(dir.path(), &made([])).unwrap();
    let alarms = ["new NV7E57_CTRL_LIST_PARAMS 20 pids@4 ×4: by its name"];
    check("without numbers", &judged(&tree, &known(), &[]), &alarms);
    // A function that is gone from the host's own list.
    write(&symbols, &lines.replace("rm_ioctl", "rm_other"));
    let mut tree = host().unwrap();
    tree.functions.remove("rm_ioctl");
    check("without rm_ioctl", &judged(&tree, &known(), &ROWS), &["changed rm_ioctl: not in this tree"]);
    // Damaged or cut short, it is an error or less, and no panic.
    let whole = fs::read(&types).unwrap();
    let cuts = (0..whole.len()).map(|cut| whole[..cut].to_vec());
    let list = known();
    for bytes in cuts.chain(damaged(&whole, 400)) {
        fs::write(&types, &bytes).unwrap();
        let _ = host().map(|tree| judged(&tree, &list, &ROWS));
    }
    fs::remove_file(&types).unwrap();
    let tree = host().unwrap();
    assert!(tree.cannot_tell.join("\n").contains("/sys/kernel/btf/nvidia is not there"));
    assert!(outcome(&tree, &[]).is_err());
    fs::remove_file(&symbols).unwrap();
    assert!(host().err().unwrap().to_string().contains("no driver is loaded here"));
}

#[test]
fn module_functions_are_separated() {
    let symbols = "ffffffffc0a01000 t os_get_pid_info\t[nvidia]\nffffffffc0a02000 d os_table\t[nvidia]\n\
ffffffffc0b01000 T os_other\t[nvidia_uvm]\nffffffff81000000 T os_kernel\nffffffffc0a03000 T rm_ioctl\t[nvidia]\n";
    assert_eq!(functions_of_module(symbols, "[nvidia]").collect::<Vec<_>>(), ["os_get_pid_info", "rm_ioctl"]);
}

fn too_few(found: &[u32]) -> bool {
    let expected = Expected { rows: mpu_abi::ROWS, numbers: BTreeMap::new() };
    expected.too_few(|cmd| found.contains(&cmd)).is_some()
}

/// Numbers out of the tables of released drivers.
#[test]
fn largest_piece_has_too_few_controls() {
    let subdevice = [0x2080_018d, 0x2080_018e, 0x2080_2096, 0x2080_a083, 0x2080_016e, 0x2080_01af, 0x2080_017c];
    let client = [0xb03, 0xb04, 0x607];
    let of_515 = [&subdevice[..5], &subdevice[6..], &client, &[0x90cc_0103]].concat();
    let of_550 = [&subdevice[..], &client, &[0x90cc_0103]].concat();
    let of_595: Vec<u32> = of_550.iter().copied().filter(|cmd| *cmd != 0x2080_a083).collect();
    for release in [of_515, of_550, of_595] {
        assert!(!too_few(&release), "{release:x?}");
        assert!(!too_few(&release[1..]), "{release:x?} without one");
    }
    assert!(too_few(&subdevice));
    assert!(too_few(&client));
    assert!(too_few(&[]));
}

/// Of each control that a table has: by number and size, who may call it, and every field with its place.
type Controls = BTreeMap<(u32, usize), (Reach, BTreeSet<(String, usize, usize)>)>;

fn controls(tree: &Tree) -> Controls {
    let mut out = Controls::new();
    for control in tree.controls.iter().filter(|control| control.reach != Reach::Declared) {
        let Some(name) = control.parameters.as_deref() else {
            out.insert((control.cmd, 0), (control.reach, BTreeSet::new()));
            continue;
        };
        // A few of the driver's own use a type that only its compiler's headers have.
        let Ok(fields) = tree.headers.fields(name) else { continue };
        let fields = fields.into_iter().map(|field| (field.path, field.offset, field.size)).collect();
        out.insert((control.cmd, tree.headers.layout(name).unwrap().size), (control.reach, fields));
    }
    out
}

#[test]
fn real_object_agrees_with_its_sources() {
    for (object, sources) in real_pairs() {
        let list = List::committed().unwrap();
        let expected = Expected { rows: mpu_abi::ROWS, numbers: list.numbers() };
        let (committed, from_sources) = (read(&object, &expected).unwrap(), Tree::read(&sources).unwrap());
        assert_eq!(committed.release, from_sources.release);
        // What carries a PID is judged alike, if both have it in a table.
        let expected_text = |tree: &Tree| -> BTreeMap<_, _> {
            let findings = judge(tree, &list).into_iter();
            let tabled =
                findings.filter(|f| f.way == "control" && f.reach.is_some_and(|reach| reach != Reach::Declared));
            tabled.map(|f| (f.cmd, (format!("{:?}", f.verdict), f.size, f.reach, f.fields))).collect()
        };
        assert_eq!(expected_text(&committed), expected_text(&from_sources));
        assert_eq!(judge(&committed, &list).iter().filter(|finding| is_alarm(finding)).count(), 0);
        let pids = expected_text(&committed).len();
        let (committed, from_sources) = (controls(&committed), controls(&from_sources));
        let mut alike = 0;
        for (key, control) in &committed {
            match from_sources.get(key) {
                Some(other) => assert_eq!(control, other, "{key:x?}"),
                None => assert_eq!(control.0, Reach::Kernel, "{key:x?} is in the object alone"),
            }
            alike += usize::from(from_sources.contains_key(key));
        }
        // A class that release builds leave out.
        let missing =
            from_sources.iter().filter(|(key, control)| control.0 != Reach::Kernel && !committed.contains_key(key));
        let missing: Vec<_> = missing.map(|(key, _)| key).collect();
        assert!(missing.len() <= 3, "{missing:x?}");
        println!(
            "{}: {} controls, {alike} alike, {pids} carry PIDs; not in it: {missing:x?}",
            object.display(),
            committed.len()
        );
    }
}
