//! Builds with a made-up make: what is kept, what is built again, and what an error says first.

use super::*;
use crate::module::checks;
use crate::module::sources;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::fake::{FakeHost, RELEASE};

/// A `make` that builds: it finds the directory after `M=` and puts a module there.
const BUILDS: &str =
    r#"echo run >>"$0.runs"; for a; do case $a in M=*) cat "${a#M=}"/*.c >"${a#M=}/mpu.ko";; esac; done"#;

fn tools(fake: &FakeHost) -> Toolchain {
    checks::toolchain(&fake.host(), RELEASE).expect("tools")
}

fn runs(fake: &FakeHost) -> usize {
    fake.host().text("/usr/bin/make.runs").map_or(0, |text| text.lines().count())
}

#[test]
fn a_module_is_built_once_and_kept() {
    let fake = FakeHost::in_order();
    fake.tool("make", BUILDS);
    let sources = Sources::in_directory(sources::fake::directory().path()).expect("sources");
    let store = Store::open(&fake.host(), RELEASE).expect("a store");
    let first = store.module(&sources, &tools(&fake)).expect("built");
    assert!(first.took.is_some());
    assert_eq!(fs::read_to_string(&first.path).expect("a module"), "int x;\n");
    let second = store.module(&sources, &tools(&fake)).expect("kept");
    assert_eq!((second.path, second.took, runs(&fake)), (first.path, None, 1));
    assert!(!fake.host().at(STORE).join(RELEASE).join("build").exists());
}

#[test]
fn changed_sources_or_headers_build_anew() {
    let fake = FakeHost::in_order();
    fake.tool("make", BUILDS);
    let mut sources = Sources::in_directory(sources::fake::directory().path()).expect("sources");
    let store = Store::open(&fake.host(), RELEASE).expect("a store");
    let mut expect = 0;
    let mut build = |sources: &Sources| {
        expect += 1;
        assert!(store.module(sources, &tools(&fake)).expect("built").took.is_some(), "build {expect}");
        assert_eq!(runs(&fake), expect);
    };
    build(&sources);
    sources.files[0].1.push(b'#');
    build(&sources);
    fake.write(&format!("/lib/modules/{RELEASE}/build/Module.symvers"), "0x1\tprintk\n");
    build(&sources);
    fake.tool("gcc-12", "exit 0");
    fake.write(&format!("/lib/modules/{RELEASE}/build/.config"), "CONFIG_CC_VERSION_TEXT=\"gcc-12 13\"\n");
    build(&sources);
    store.forget();
    build(&sources);
}

#[test]
fn a_failed_build_keeps_its_log_and_the_old_module() {
    let fake = FakeHost::in_order();
    fake.tool("make", BUILDS);
    let mut sources = Sources::in_directory(sources::fake::directory().path()).expect("sources");
    let store = Store::open(&fake.host(), RELEASE).expect("a store");
    let kept = store.module(&sources, &tools(&fake)).expect("built").path;
    fake.tool(
        "make",
        "echo '  CC [M] x.o'; echo 'x.c:1:5: error: expected ;' >&2; echo 'make: *** [all] Error 2' >&2; exit 2",
    );
    sources.files[0].1.push(b'#');
    let error = store.module(&sources, &tools(&fake)).expect_err("does not build");
    assert_eq!(
        error.to_string(),
        format!("the module cannot be built for kernel {RELEASE}: x.c:1:5: error: expected ;")
    );
    assert_eq!((error.code(), error.exit()), ("build_failed", Exit::Failed));
    let ModuleError::Build(BuildError::Failed { log, .. }) = &error else { panic!("{error:?}") };
    assert!(error.fix().contains("build.log") && fs::read_to_string(log).expect("a log").contains("CC [M]"));
    assert!(kept.is_file(), "the module of the last good build is still there");
    assert!(!kept.with_file_name("build").exists());
}

#[test]
fn what_the_probes_say_comes_before_the_compilers_words() {
    let log = "--- PROCESS is not TGID:\n<stdin>:9:1: error: 'PIDTYPE_TGID' undeclared\n\
               mpu_probes.sh: error: this kernel is too old: its headers lack PIDTYPE_TGID\nmake: *** [x] Error 1\n";
    assert_eq!(telling_line(log), "mpu_probes.sh: error: this kernel is too old: its headers lack PIDTYPE_TGID");
}

#[test]
fn a_kept_module_is_found_without_tools_as_long_as_the_sources_are_the_same() {
    let fake = FakeHost::in_order();
    fake.tool("make", BUILDS);
    let mut sources = Sources::in_directory(sources::fake::directory().path()).expect("sources");
    assert_eq!(Store::kept(&fake.host(), RELEASE, &sources), None);
    let built = Store::open(&fake.host(), RELEASE).and_then(|s| s.module(&sources, &tools(&fake))).expect("built");
    let kept = Store::kept(&fake.host(), RELEASE, &sources).expect("kept");
    assert_eq!((kept.path, kept.took), (built.path, None));
    assert_eq!(Store::kept(&fake.host(), "6.1.0-29-amd64", &sources), None);
    sources.files[0].1.push(b'#');
    assert_eq!(Store::kept(&fake.host(), RELEASE, &sources), None);
}

#[test]
fn a_make_that_builds_nothing_has_failed() {
    let fake = FakeHost::in_order();
    let sources = Sources::in_directory(sources::fake::directory().path()).expect("sources");
    let store = Store::open(&fake.host(), RELEASE).expect("a store");
    let error = store.module(&sources, &tools(&fake)).expect_err("nothing was built");
    assert!(error.to_string().ends_with("make said nothing"), "{error}");
}

#[test]
fn make_is_called_for_this_kernel_and_compiler_in_a_clean_environment() {
    let fake = FakeHost::in_order();
    fake.tool("make", &format!("env >\"$0.env\"; echo \"$@\" >\"$0.args\"; {BUILDS}"));
    let sources = Sources::in_directory(sources::fake::directory().path()).expect("sources");
    let store = Store::open(&fake.host(), RELEASE).expect("a store");
    store.module(&sources, &tools(&fake)).expect("built");
    let (args, env) = (fake.host().text("/usr/bin/make.args"), fake.host().text("/usr/bin/make.env"));
    let (args, env) = (args.expect("arguments"), env.expect("an environment"));
    assert!(args.contains(&format!("/lib/modules/{RELEASE}/build M=")) && args.contains("CC=gcc-12 "), "{args}");
    assert!(env.contains("LC_ALL=C") && !env.contains("CARGO"), "{env}");
}

#[test]
fn the_first_error_tells_most() {
    assert_eq!(telling_line("a\nb.c:1: error: x\nc.c:2: error: y\nmake: *** Error 2\n"), "b.c:1: error: x");
    assert_eq!(telling_line("ok\n/bin/sh: 1: gcc-12: not found\nmake: Error 127\n"), "/bin/sh: 1: gcc-12: not found");
    assert_eq!(telling_line("\nmake: *** No rule\n\n"), "make: *** No rule");
    assert_eq!(telling_line(""), "make said nothing");
}

#[test]
fn a_large_machine_builds_within_the_agents_memory() {
    assert_eq!([1, 2, 4, 224].map(jobs), [1, 2, 4, 4]);
}

#[test]
fn nobody_but_root_can_hold_the_store() {
    use std::os::unix::fs::PermissionsExt;
    let fake = FakeHost::in_order();
    let lock = fake.host().at(STORE).join(RELEASE).join("lock");
    let mode = || fs::metadata(&lock).expect("a lock").permissions().mode() & 0o777;
    drop(Store::open(&fake.host(), RELEASE).expect("a store"));
    assert_eq!(mode(), 0o600);
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).expect("as an older mpu made it");
    drop(Store::open(&fake.host(), RELEASE).expect("a store"));
    assert_eq!(mode(), 0o600);
}
