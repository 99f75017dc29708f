//! Built drivers of our own making, compiled by the system's `cc` in the form that the driver's have; on a real one where
//! MPU_DRIVER_OBJECT names it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::super::judge::{judge, List, Verdict};
use super::super::tests::{alarms, judged_by, known, scratch, Made, ROWS, TYPES};
use super::super::tree::{Reach, Tree};
use super::super::{is_alarm, outcome};
use super::{functions_of_module, read, read_host, Expected};
use crate::outcome::Outcome;

/// Pairs of a built object and the source tree of the same release, `OBJECT=TREE` with colons between them.
const VARIABLE: &str = "MPU_DRIVER_OBJECT";

/// What is expected of a made driver.
fn made() -> Expected<'static> {
    Expected { rows: &ROWS, numbers: BTreeMap::new() }
}

fn real_pairs() -> Vec<(PathBuf, PathBuf)> {
    let Ok(list) = std::env::var(VARIABLE) else {
        println!("skipped: {VARIABLE} names no OBJECT=TREE");
        return Vec::new();
    };
    let pairs = list.split(':').filter_map(|pair| pair.split_once('='));
    pairs.map(|(object, tree)| (object.into(), tree.into())).collect()
}

/// The driver of `Made`, built. A method is a name, its flags, its number, and whether the table names its function.
struct Built {
    made: Made,
    methods: Vec<(&'static str, u32, u32, bool)>,
    /// The function that every call goes through.
    entry: &'static str,
    /// More of the core's C.
    core: String,
    interface: String,
    /// The form of a table's entries, from its last field on.
    form: &'static str,
    /// For `cc`.
    options: Vec<&'static str>,
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

/// What the interface has.
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
            // The firmware answers the second: its type is known by the pointer that the class has for it.
            methods: vec![("LIST", 0x8, 0x101, true), ("SESSIONS", 0x8, 0x102, false), ("CLOCK", 0x8, 0x103, true)],
            entry: "rm_ioctl",
            core: String::new(),
            interface: INTERFACE.into(),
            form: "const char *func; };",
            options: vec!["-g", "-fno-eliminate-unused-debug-types"],
        }
    }

    /// The object as a file of that folder; none, said aloud, without a compiler.
    fn object(&self, name: &str) -> Option<(PathBuf, PathBuf)> {
        let dir = scratch(name);
        let sdk = dir.join("sdk/nvidia/inc");
        fs::create_dir_all(sdk.join("ctrl")).unwrap();
        fs::create_dir_all(sdk.join("class")).unwrap();
        fs::write(sdk.join("ctrl/ctrl7e57.h"), &self.made.ctrl).unwrap();
        fs::write(sdk.join("class/cl7e57.h"), &self.made.class).unwrap();
        let (mut functions, mut members, mut table) = (String::new(), String::new(), String::new());
        for (name, flags, id, has_function) in &self.methods {
            let parameters = format!("NV7E57_CTRL_{name}_PARAMS");
            if *has_function {
                functions += &format!("NV_STATUS test{name}_IMPL(struct Test *t, {parameters} *p) {{ return 0; }}\n");
            } else {
                members += &format!("NV_STATUS (*__test{name}__)(struct Test *, {parameters} *);\n");
            }
            let function = if *has_function { format!("test{name}_IMPL") } else { "0".into() };
            table += &format!(
                "{{ (void (*)(void)) {function}, {flags:#x}, 0, 0x7e570000 | {id:#x}, sizeof({parameters}), \
                 &classInfo, \"test{name}\" }},\n"
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
        fs::write(dir.join("driver.c"), text).unwrap();
        let object = dir.join("nvidia.o");
        let mut cc = Command::new("cc");
        cc.args(["-c", "-w", "-I"]).arg(&sdk).args(&self.options).arg("-o").arg(&object).arg(dir.join("driver.c"));
        match cc.output() {
            Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
            Err(error) => {
                println!("skipped: no C compiler: {error}");
                return None;
            }
        }
        Some((dir, object))
    }

    fn tree(&self, name: &str) -> Option<Tree> {
        let (dir, object) = self.object(name)?;
        let tree = read(&object, &made()).unwrap();
        fs::remove_dir_all(dir).unwrap();
        Some(tree)
    }

    fn alarms(&self, name: &str) -> Option<Vec<(Verdict, String, String)>> {
        Some(alarms(&judged_by(&self.tree(name)?, &known(), &ROWS)))
    }
}

#[test]
fn an_object_that_has_nothing_new_raises_no_alarm() {
    let Some(tree) = Built::new().tree("built-quiet") else { return };
    let findings = judged_by(&tree, &known(), &ROWS);
    assert_eq!(alarms(&findings), []);
    let fits: Vec<_> = findings.iter().filter(|f| f.verdict == Verdict::Fits).map(|f| f.name.as_str()).collect();
    let wanted =
        ["testLIST", "testSESSIONS", "nvidia_unlocked_ioctl", "rm_ioctl", "os_memcpy_from_user", "os_memcpy_to_user"];
    assert_eq!(fits, wanted);
    // Each with what the tree of sources says of it.
    let list = findings.iter().find(|f| f.name == "testLIST").unwrap();
    assert_eq!((list.size, list.fields.as_slice()), (Some(20), &["pids@4 ×4".to_owned()][..]));
    let sessions = findings.iter().find(|f| f.name == "testSESSIONS").unwrap();
    let behind = ["→NV7E57_SESSION.processId@0", "→NV7E57_SESSION.subProcessId@4"].map(str::to_owned);
    assert_eq!((sessions.size, sessions.fields.as_slice()), (Some(16), &behind[..]));
    assert_eq!(outcome(&tree, &findings).unwrap(), Outcome::Passed);
}

#[test]
fn older_and_optimised_debug_information_is_read_and_compressed_is_named() {
    let mut built = Built::new();
    for options in [["-gdwarf-4", "-O2"], ["-gdwarf-5", "-O2"]] {
        built.options = [&options[..], &["-fno-eliminate-unused-debug-types"]].concat();
        let Some(tree) = built.tree("built-dwarf") else { return };
        let findings = judged_by(&tree, &known(), &ROWS);
        assert_eq!(alarms(&findings), [], "{options:?}");
        assert!(tree.has_fields);
    }
    built.options = vec!["-g", "-gsplit-dwarf"];
    let tree = built.tree("built-dwarf").unwrap();
    assert!(tree.cannot_tell.iter().any(|said| said.contains("in other files (.dwo")), "{:?}", tree.cannot_tell);
    assert!(outcome(&tree, &[]).is_err());
    built.options = vec!["-g", "-gz=zlib"];
    let (dir, object) = built.object("built-dwarf").unwrap();
    let said = format!("{:#}", read(&object, &made()).err().unwrap());
    fs::remove_dir_all(dir).unwrap();
    assert!(said.contains("is compressed: `objcopy --decompress-debug-sections`"), "{said}");
}

#[test]
fn an_object_shows_a_new_pid_deep_inside_a_control() {
    let mut built = Built::new();
    built.made.ctrl += "
typedef struct NV7E57_DEEP { NvU8 x; union { NvU32 procId; NvU8 raw[4]; } who; } NV7E57_DEEP;
typedef struct NV7E57_CTRL_DEEP_PARAMS { NvU32 n; NV7E57_DEEP entries[3][2]; } NV7E57_CTRL_DEEP_PARAMS;
";
    built.methods.push(("DEEP", 0x8, 0x106, true));
    let Some(tree) = built.tree("built-deep") else { return };
    let findings = judged_by(&tree, &known(), &ROWS);
    assert_eq!(alarms(&findings), [(Verdict::New, "0x7e570106".to_owned(), "no row".to_owned())]);
    let deep = findings.iter().find(|finding| finding.verdict == Verdict::New).unwrap();
    assert_eq!((deep.size, deep.fields.as_slice()), (Some(52), &["entries.who.procId@8 ×6".to_owned()][..]));
    assert_eq!(outcome(&tree, &findings).unwrap(), Outcome::Failed);
}

#[test]
fn an_object_shows_rows_that_no_longer_fit() {
    let alarm = |from: &str, to: &str| {
        let mut built = Built::new();
        built.made.ctrl = built.made.ctrl.replace(from, to);
        let found = built.alarms("built-fits")?;
        assert_eq!(found.len(), 1, "{found:?}");
        Some((found[0].0, found[0].2.clone()))
    };
    let Some(bigger) = alarm("LIST_MAX 4", "LIST_MAX 5") else { return };
    assert_eq!(bigger, (Verdict::Changed, "24 bytes; rows have 20".to_owned()));
    let moved =
        alarm("NvU32 count; NvU32 pids[NV7E57_LIST_MAX];", "NvU32 pids[NV7E57_LIST_MAX]; NvU32 count;").unwrap();
    assert!(moved.1.contains("a PID at 0"), "{moved:?}");
    let longer = alarm("NvU64 rate; }", "NvU64 rate; NvU64 more; }").unwrap();
    assert!(longer.1.contains("an entry has 24 bytes"), "{longer:?}");
    let pointer = alarm("NvU32 clock;", "NvU32 clock; NvU32 rest; NvU64 pOsPidInfo;").unwrap();
    assert_eq!(pointer, (Verdict::New, "no row".to_owned()));
}

#[test]
fn an_object_shows_a_shared_page_and_a_changed_function() {
    let mut built = Built::new();
    built.made.class =
        built.made.class.replace("NvU32 heat;", "NvU32 heat; struct { NvU32 procId; NvU32 util; } samples[5];");
    let Some(found) = built.alarms("built-page") else { return };
    assert_eq!((found[0].1.as_str(), found.len()), ("NV7E57_PAGE", 1), "{found:?}");
    let mut built = Built::new();
    built.interface =
        built.interface.replace("void *from, NvU32", "void *from, NvU64").replace("nvidia_unlocked", "nvidia_other");
    built.interface += "NvU32 os_pid_in_ns(void *process, NvU32 pid) { return 0; }";
    let found = built.alarms("built-function").unwrap();
    let names: Vec<&str> = found.iter().map(|(_, name, _)| name.as_str()).collect();
    assert_eq!(names, ["nvidia_frontend_unlocked_ioctl", "os_memcpy_from_user", "os_memcpy_to_user", "os_pid_in_ns"]);
}

/// A type that no code uses is not in an object: the method's name spells it, or its size is all that is known.
#[test]
fn a_type_is_found_by_the_methods_name_and_is_else_named_as_unknown() {
    let mut built = Built::new();
    built.methods.truncate(1);
    built.core = "
typedef struct NV7E57_CTRL_WHO_RAN_PARAMS { NvU32 pid; NvU32 more; } NV7E57_CTRL_WHO_RAN_PARAMS;
NV_STATUS odd(struct Test *t, NV7E57_CTRL_WHO_RAN_PARAMS *p) { return 0; }
__attribute__((used)) static const struct NVOC_EXPORTED_METHOD_DEF __nvoc_exported_method_def_More[] = {
{ 0, 8, 0, 0x7e570301, sizeof(NV7E57_CTRL_WHO_RAN_PARAMS), &classInfo, \"moreCtrlCmdWhoRan\" },
{ 0, 8, 0, 0x7e570302, 12, &classInfo, \"moreCtrlCmdWhoKnows\" },
{ (void (*)(void)) odd, 8, 0, 0x7e570303, 16, &classInfo, \"moreCtrlCmdOfAnotherSize\" },
};"
    .into();
    let Some(tree) = built.tree("built-spelled") else { return };
    let found = alarms(&judged_by(&tree, &known(), &ROWS));
    assert_eq!(found, [(Verdict::New, "0x7e570301".to_owned(), "no row".to_owned())]);
    let said = tree.cannot_tell.join("\n");
    assert!(said.contains("of 2 controls only the size of parameters is known: 0x7e570302 0x7e570303"), "{said}");
    // Of such a driver it is not said that nothing is new.
    built.core = built.core.replace("0x7e570301", "0x7e570301 + 2").replace("NvU32 pid;", "NvU32 some;");
    let tree = built.tree("built-spelled").unwrap();
    let findings = judged_by(&tree, &known(), &ROWS);
    assert_eq!(alarms(&findings), []);
    assert!(outcome(&tree, &findings).is_err());
}

#[test]
fn a_table_in_another_form_is_read_by_its_debug_information_and_is_else_an_error() {
    let mut built = Built::new();
    built.form = "const char *func; NvU64 since; };";
    let Some(found) = built.alarms("built-form") else { return };
    assert_eq!(found, []);
    built.made.ctrl = built.made.ctrl.replace("NvU32 clock;", "NvU32 pid;");
    assert_eq!(built.alarms("built-form").unwrap()[0].1, "0x7e570103");
    built.options.clear();
    let (dir, object) = built.object("built-form").unwrap();
    let said = format!("{:#}", read(&object, &made()).err().unwrap());
    fs::remove_dir_all(dir).unwrap();
    assert!(said.contains("of 144 bytes is in a form that this reader does not know"), "{said}");
}

#[test]
fn who_may_call_is_told_by_the_meaning_that_agrees_with_the_methods_names() {
    let mut built = Built::new();
    built.made.ctrl += "typedef struct NV7E57_CTRL_InternalWho_PARAMS { NvU32 pid; } NV7E57_CTRL_InternalWho_PARAMS;
typedef struct NV7E57_CTRL_ROOT_PARAMS { NvU32 pid; } NV7E57_CTRL_ROOT_PARAMS;";
    built.methods.extend([("InternalWho", 0x88, 0x107, true), ("ROOT", 0x4, 0x108, true)]);
    let Some(tree) = built.tree("built-reach") else { return };
    let reach = |cmd: u32| tree.controls.iter().find(|control| control.cmd == cmd).unwrap().reach;
    assert_eq!(
        (reach(0x7e57_0101), reach(0x7e57_0107), reach(0x7e57_0108)),
        (Reach::Anybody, Reach::Kernel, Reach::Root)
    );
    // As 515 to 550 have it.
    for method in &mut built.methods {
        method.1 = if method.0 == "InternalWho" {
            0x410
        } else if method.0 == "ROOT" {
            0x100
        } else {
            0x10
        };
    }
    let tree = built.tree("built-reach").unwrap();
    let reach = |cmd: u32| tree.controls.iter().find(|control| control.cmd == cmd).unwrap().reach;
    assert_eq!(
        (reach(0x7e57_0101), reach(0x7e57_0107), reach(0x7e57_0108)),
        (Reach::Anybody, Reach::Kernel, Reach::Root)
    );
}

/// A release that moves the bit for anybody, or for root, and leaves the bit for the driver's own where it was.
#[test]
fn a_moved_bit_of_the_flags_hides_no_new_control() {
    let mut built = Built::new();
    for name in ["InternalWho", "NEW", "ROOT"] {
        built.made.ctrl +=
            &format!("typedef struct NV7E57_CTRL_{name}_PARAMS {{ NvU32 pid; }} NV7E57_CTRL_{name}_PARAMS;\n");
    }
    built.methods.extend([("InternalWho", 0x80, 0x107, true), ("NEW", 0x8, 0x108, true), ("ROOT", 0x4, 0x109, true)]);
    // Without a row, and known as root's.
    let expected = Expected { numbers: BTreeMap::from([("ROOT".to_owned(), 0x7e57_0109)]), ..made() };
    let all = ["0x7e570108", "0x7e570109"];
    for (from, to, meaning) in [(0, 0, true), (0x8, 0x200, false), (0x4, 0x200, false)] {
        for method in built.methods.iter_mut().filter(|method| method.1 == from) {
            method.1 = to;
        }
        let Some((dir, object)) = built.object("built-moved") else { return };
        let tree = read(&object, &expected).unwrap();
        fs::remove_dir_all(dir).unwrap();
        let findings = judged_by(&tree, &known(), &ROWS);
        let names: Vec<String> = alarms(&findings).into_iter().map(|(_, name, _)| name).collect();
        assert_eq!(names, all, "{from:#x}");
        let is_said = tree.cannot_tell.iter().any(|said| said.contains("agree with no release"));
        assert_eq!(is_said, !meaning, "{from:#x}: {:?}", tree.cannot_tell);
        assert_eq!(outcome(&tree, &findings).unwrap(), Outcome::Failed);
        for method in built.methods.iter_mut().filter(|method| method.1 == to) {
            method.1 = from;
        }
    }
}

/// An object of one class, as the driver's build makes it, and one that has the way in and few controls.
#[test]
fn of_a_piece_of_the_driver_it_is_not_said_that_all_is_well() {
    let mut built = Built::new();
    built.interface = String::new();
    let said = |built: &Built, sentence: &str| {
        let Some(tree) = built.tree("built-piece") else { return };
        let findings = judged_by(&tree, &known(), &ROWS);
        assert_eq!(alarms(&findings), []);
        let error = outcome(&tree, &findings).unwrap_err().to_string();
        assert!(error.contains("whether something is new cannot be told"), "{error}");
        assert!(tree.cannot_tell.iter().any(|said| said.contains(sentence)), "{:?}", tree.cannot_tell);
    };
    built.entry = "rm_other";
    said(&built, "rm_ioctl is not in it: this is a piece of the driver's core");
    // With the interface it is no whole driver either.
    built.interface = INTERFACE.into();
    said(&built, "rm_ioctl is not in it");
    built.entry = "rm_ioctl";
    built.methods.retain(|(name, ..)| *name != "SESSIONS");
    said(&built, "of 2 controls that every driver has 1 are in it, too few for a whole driver");
}

#[test]
fn without_debug_information_sizes_and_names_are_told_and_nothing_else() {
    let mut built = Built::new();
    built.options.clear();
    let Some(tree) = built.tree("built-bare") else { return };
    let findings = judged_by(&tree, &known(), &ROWS);
    assert_eq!(alarms(&findings), []);
    assert!(
        tree.cannot_tell.iter().any(|said| said.contains("no debug information (DWARF)")),
        "{:?}",
        tree.cannot_tell
    );
    let said = outcome(&tree, &findings).unwrap_err().to_string();
    assert!(said.contains("whether something is new cannot be told"), "{said}");
    // What is wrong is found all the same.
    built.made.ctrl = built.made.ctrl.replace("LIST_MAX 4", "LIST_MAX 5");
    built.interface = built.interface.replace("os_memcpy_to_user", "os_memcpy_out");
    let tree = built.tree("built-bare").unwrap();
    let findings = judged_by(&tree, &known(), &ROWS);
    let names: Vec<String> = alarms(&findings).into_iter().map(|(_, name, _)| name).collect();
    // Without that function it is taken for the core alone.
    assert_eq!(names, ["0x7e570101"]);
    assert_eq!(outcome(&tree, &findings).unwrap(), Outcome::Failed);
}

#[test]
fn a_part_of_the_driver_is_no_alarm_for_what_the_other_part_has() {
    let mut built = Built::new();
    built.interface = "NV_STATUS os_memcpy_to_user(void *, const void *, NvU32);
NV_STATUS rm_calls(void *p) { return os_memcpy_to_user(p, p, 1); }"
        .into();
    built.options.push("-O1");
    let Some(tree) = built.tree("built-part") else { return };
    assert!(!tree.is_whole);
    let findings = judged_by(&tree, &known(), &ROWS);
    assert_eq!(alarms(&findings), []);
    let fits = findings.iter().filter(|f| f.way == "function" && f.verdict == Verdict::Fits);
    assert_eq!(fits.map(|f| f.name.as_str()).collect::<Vec<_>>(), ["rm_ioctl", "os_memcpy_to_user"]);
}

#[test]
fn what_is_no_object_of_the_driver_is_named() {
    let dir = scratch("built-strange");
    let said = |bytes: &[u8]| {
        let file = dir.join("file");
        fs::write(&file, bytes).unwrap();
        format!("{:#}", read(&file, &made()).err().unwrap())
    };
    assert!(said(b"").contains("neither an ELF object nor BTF"));
    assert!(said(b"#!/bin/sh").contains("neither an ELF object nor BTF"));
    assert!(said(b"\xfd7zXZ\0 and so on").contains("compressed"));
    assert!(said(b"\x7fELF").contains("damaged or cut short"));
    assert!(said(b"\x9f\xeb\x01\x00").contains("damaged, cut short"));
    let own = fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(said(&own).contains("none of the driver's functions is in it"));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_damaged_object_is_an_error_or_a_tree_and_never_a_panic() {
    let Some((dir, object)) = Built::new().object("built-damaged") else { return };
    let whole = fs::read(&object).unwrap();
    let file = dir.join("damaged.o");
    let mut errors = 0;
    let mut attempt = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        match read(&file, &made()) {
            Ok(tree) => drop(judged_by(&tree, &known(), &ROWS)),
            Err(_) => errors += 1,
        }
    };
    for cut in (0..whole.len()).step_by(whole.len() / 100 + 1) {
        attempt(&whole[..cut]);
    }
    // Section headers are at the end: each cut takes some of them away.
    assert!(errors >= 99, "{errors}");
    let mut errors = 0;
    for bytes in damaged(&whole, 400) {
        fs::write(&file, &bytes).unwrap();
        match read(&file, &made()) {
            Ok(tree) => drop(judged_by(&tree, &known(), &ROWS)),
            Err(_) => errors += 1,
        }
    }
    println!("of 400 damaged objects {errors} could not be read");
    fs::remove_dir_all(dir).unwrap();
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

/// What `cc -gbtf` makes of it, as a file of a kernel's own: no compiler makes a supplement to a kernel's.
fn types(built: &Built, name: &str) -> Option<(PathBuf, PathBuf)> {
    let (dir, object) = built.object(name)?;
    let types = dir.join("nvidia");
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["-O", "binary", "--only-section=.BTF", "--set-section-flags", ".BTF=alloc"]).arg(&object).arg(&types);
    if !objcopy.status().is_ok_and(|status| status.success()) {
        println!("skipped: no objcopy");
        return None;
    }
    Some((dir, types))
}

#[test]
fn types_say_that_all_is_well_only_with_most_structures_and_all_of_them_readable() {
    let mut built = Built::new();
    built.options = vec!["-gbtf"];
    let numbers = [("NV7E57_CTRL_LIST_PARAMS", 0x7e57_0101), ("NV7E57_CTRL_SESSIONS_PARAMS", 0x7e57_0102)]
        .map(|(name, cmd)| (name.to_owned(), cmd));
    let whole = Expected { numbers: BTreeMap::from(numbers.clone()), ..made() };
    let judged = |built: &Built, expected: &Expected| {
        let (dir, types) = types(built, "built-few")?;
        let tree = read(&types, expected).unwrap();
        fs::remove_dir_all(dir).unwrap();
        let findings = judged_by(&tree, &known(), &ROWS);
        let wrong = findings.iter().filter(|finding| is_alarm(finding) && finding.way != "function").count();
        assert_eq!(wrong, 0);
        Some((outcome(&tree, &[]).is_ok(), tree.cannot_tell.join("\n")))
    };
    let Some((is_well, said)) = judged(&built, &whole) else { return };
    assert!(is_well, "{said}");
    // One structure of two.
    built.methods.retain(|(name, ..)| *name != "SESSIONS");
    let (is_well, said) = judged(&built, &whole).unwrap();
    assert!(!is_well && said.contains("of 2 controls that every driver has 1 are in it"), "{said}");
    // A structure that no row has, and that is known without one, is not one of them.
    built.methods.retain(|(name, ..)| *name == "CLOCK");
    let known = Expected { numbers: BTreeMap::from([("NV7E57_CTRL_CLOCK_PARAMS".to_owned(), 0x7e57_0103)]), ..made() };
    let (is_well, said) = judged(&built, &known).unwrap();
    assert!(!is_well && said.contains("of 2 controls that every driver has 0 are in it"), "{said}");
    // A structure that cannot be read: of types in types more than the reader follows.
    let mut built = Built { options: vec!["-gbtf"], ..Built::new() };
    built.made.ctrl += "typedef struct { NvU32 procId; } NV7E57_DEEP0;\n";
    for depth in 1..40 {
        built.made.ctrl += &format!("typedef struct {{ NV7E57_DEEP{} x; }} NV7E57_DEEP{depth};\n", depth - 1);
    }
    built.made.ctrl += "typedef struct NV7E57_CTRL_FAR_PARAMS { NV7E57_DEEP39 x; } NV7E57_CTRL_FAR_PARAMS;\n";
    built.methods.push(("FAR", 0x8, 0x109, true));
    let (is_well, said) = judged(&built, &whole).unwrap();
    assert!(!is_well && said.contains("1 structures cannot be read: NV7E57_CTRL_FAR_PARAMS"), "{said}");
}

#[test]
fn a_hosts_types_are_judged_by_the_names_of_structures() {
    let mut built = Built::new();
    built.options = vec!["-gbtf"];
    let Some((dir, made_types)) = types(&built, "built-btf") else { return };
    let host = dir.join("sys/kernel/btf");
    fs::create_dir_all(&host).unwrap();
    fs::create_dir_all(dir.join("proc")).unwrap();
    let types = host.join("nvidia");
    fs::rename(made_types, &types).unwrap();
    let numbers = BTreeMap::from([("NV7E57_CTRL_LIST_PARAMS".to_owned(), 0x7e57_0101)]);
    let expected = Expected { numbers, ..made() };
    let symbols = ["rm_ioctl", "os_memcpy_to_user", "os_memcpy_from_user", "nvidia_unlocked_ioctl"];
    let symbols: String = symbols.iter().map(|name| format!("0000000000000000 t {name}\t[nvidia]\n")).collect();
    fs::write(dir.join("proc/kallsyms"), &symbols).unwrap();
    let tree = read_host(&dir, &expected).unwrap();
    let findings = judged_by(&tree, &known(), &ROWS);
    assert_eq!(alarms(&findings), []);
    let list = findings.iter().find(|finding| finding.cmd.as_deref() == Some("0x7e570101")).unwrap();
    assert_eq!(
        (list.verdict, list.size, list.fields.as_slice()),
        (Verdict::Fits, Some(20), &["pids@4 ×4".to_owned()][..])
    );
    assert!(
        tree.functions["os_memcpy_to_user"].contains("NV_STATUS (void *, const void *, NvU32)"),
        "{:?}",
        tree.functions
    );
    // A PID in a structure whose number nobody told: by its name.
    let tree = read_host(&dir, &made()).unwrap();
    let found = alarms(&judged_by(&tree, &known(), &[]));
    assert_eq!(found[0].1, "NV7E57_CTRL_LIST_PARAMS");
    // A function that is gone from the host's own list.
    fs::write(dir.join("proc/kallsyms"), symbols.replace("rm_ioctl", "rm_other")).unwrap();
    let mut tree = read_host(&dir, &expected).unwrap();
    tree.functions.remove("rm_ioctl");
    assert_eq!(alarms(&judged_by(&tree, &known(), &ROWS))[0].1, "rm_ioctl");
    // Damaged or cut short, it is an error or less, and no panic.
    let whole = fs::read(&types).unwrap();
    for cut in 0..whole.len() {
        fs::write(&types, &whole[..cut]).unwrap();
        let _ = read_host(&dir, &expected);
    }
    for bytes in damaged(&whole, 400) {
        fs::write(&types, &bytes).unwrap();
        let _ = read_host(&dir, &expected).map(|tree| judged_by(&tree, &known(), &ROWS));
    }
    fs::remove_file(&types).unwrap();
    let tree = read_host(&dir, &expected).unwrap();
    assert!(tree.cannot_tell.iter().any(|said| said.contains("/sys/kernel/btf/nvidia is not there")));
    assert!(outcome(&tree, &[]).is_err());
    fs::remove_file(dir.join("proc/kallsyms")).unwrap();
    assert!(read_host(&dir, &expected).err().unwrap().to_string().contains("no driver is loaded here"));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_modules_functions_are_told_from_others() {
    let symbols = "ffffffffc0a01000 t os_get_pid_info\t[nvidia]\nffffffffc0a02000 d os_table\t[nvidia]\n\
ffffffffc0b01000 T os_other\t[nvidia_uvm]\nffffffff81000000 T os_kernel\nffffffffc0a03000 T rm_ioctl\t[nvidia]\n";
    assert_eq!(functions_of_module(symbols, "[nvidia]").collect::<Vec<_>>(), ["os_get_pid_info", "rm_ioctl"]);
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
fn a_real_object_says_what_its_sources_say() {
    for (object, sources) in real_pairs() {
        let list = List::ours().unwrap();
        let expected = Expected { rows: mpu_abi::ROWS, numbers: list.numbers() };
        let (ours, theirs) = (read(&object, &expected).unwrap(), Tree::read(&sources).unwrap());
        assert_eq!(ours.release, theirs.release);
        // What carries a PID is judged alike, if both have it in a table.
        let said = |tree: &Tree| -> BTreeMap<_, _> {
            let findings = judge(tree, &list).into_iter();
            let tabled =
                findings.filter(|f| f.way == "control" && f.reach.is_some_and(|reach| reach != Reach::Declared));
            tabled.map(|f| (f.cmd, (format!("{:?}", f.verdict), f.size, f.reach, f.fields))).collect()
        };
        assert_eq!(said(&ours), said(&theirs));
        assert_eq!(judge(&ours, &list).iter().filter(|finding| is_alarm(finding)).count(), 0);
        let pids = said(&ours).len();
        let (ours, theirs) = (controls(&ours), controls(&theirs));
        let mut alike = 0;
        for (key, control) in &ours {
            match theirs.get(key) {
                Some(other) => assert_eq!(control, other, "{key:x?}"),
                None => assert_eq!(control.0, Reach::Kernel, "{key:x?} is in the object alone"),
            }
            alike += usize::from(theirs.contains_key(key));
        }
        // A class that release builds leave out.
        let missing = theirs.iter().filter(|(key, control)| control.0 != Reach::Kernel && !ours.contains_key(key));
        let missing: Vec<_> = missing.map(|(key, _)| key).collect();
        assert!(missing.len() <= 3, "{missing:x?}");
        println!(
            "{}: {} controls, {alike} alike, {pids} carry PIDs; not in it: {missing:x?}",
            object.display(),
            ours.len()
        );
    }
}
