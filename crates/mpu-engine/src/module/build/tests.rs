//! Builds with a fake make: what is stored, what is built again, and which error is reported.

use super::*;
use crate::module::{checks, sources};
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::fake::{FakeHost, RELEASE};

/// A `make` that builds: it finds the directory after `M=` and puts a module there.
const BUILDS: &str =
    r#"echo run >>"$0.runs"; for a; do case $a in M=*) cat "${a#M=}"/*.c >"${a#M=}/mpu.ko";; esac; done"#;

struct Rig {
    fake: FakeHost,
    sources: Sources,
    store: Store,
}

impl Rig {
    fn new(make: &str) -> Rig {
        let fake = FakeHost::in_order();
        fake.tool("make", make);
        let sources = Sources::in_directory(sources::fake::directory().path()).expect("sources");
        let store = Store::open(&fake.host(), RELEASE).expect("a store");
        Rig { fake, sources, store }
    }

    fn build(&self) -> Result<StoredModule, ModuleError> {
        self.store.module(&self.sources, &checks::toolchain(&self.fake.host(), RELEASE).expect("tools"))
    }

    fn runs(&self) -> usize {
        self.fake.host().text("/usr/bin/make.runs").map_or(0, |text| text.lines().count())
    }
}

#[test]
fn module_is_built_once_and_found_without_tools() {
    let mut rig = Rig::new(BUILDS);
    let stored = |rig: &Rig, release| Store::stored(&rig.fake.host(), release, &rig.sources);
    assert_eq!(stored(&rig, RELEASE), None);
    let first = rig.build().expect("built");
    assert!(first.took.is_some());
    assert_eq!(fs::read_to_string(&first.path).expect("a module"), "int x;\n");
    let second = rig.build().expect("kept");
    assert_eq!((&second.path, second.took, rig.runs()), (&first.path, None, 1));
    assert!(!rig.fake.host().at(STORE).join(RELEASE).join("build").exists());
    assert_eq!(stored(&rig, RELEASE), Some(second));
    assert_eq!(stored(&rig, "6.1.0-29-amd64"), None);
    rig.sources.files[0].1.push(b'#');
    assert_eq!(stored(&rig, RELEASE), None, "of other sources");
}

#[test]
fn changed_sources_or_headers_build_anew() {
    let mut rig = Rig::new(BUILDS);
    let build = format!("/lib/modules/{RELEASE}/build");
    let changes: [&dyn Fn(&mut Rig); 5] = [
        &|_| (),
        &|rig| rig.sources.files[0].1.push(b'#'),
        &|rig| rig.fake.write(&format!("{build}/Module.symvers"), "0x1\tprintk\n"),
        &|rig| {
            rig.fake.tool("gcc-12", "exit 0");
            rig.fake.write(&format!("{build}/.config"), "CONFIG_CC_VERSION_TEXT=\"gcc-12 13\"\n");
        },
        &|rig| rig.store.invalidate(),
    ];
    for (before, change) in changes.iter().enumerate() {
        change(&mut rig);
        assert!(rig.build().expect("built").took.is_some(), "build {before}");
        assert_eq!(rig.runs(), before + 1);
    }
}

#[test]
fn failed_build_keeps_its_log_and_old_module() {
    let mut rig = Rig::new(BUILDS);
    let stored = rig.build().expect("built").path;
    rig.sources.files[0].1.push(b'#');
    let fails =
        "echo '  CC [M] x.o'; echo 'x.c:1:5: error: expected ;' >&2; echo 'make: *** [all] Error 2' >&2; exit 2";
    for (make, error_text) in [(fails, "x.c:1:5: error: expected ;"), ("exit 0", "make printed nothing")] {
        rig.fake.tool("make", make);
        let error = rig.build().expect_err("does not build");
        assert_eq!(error.to_string(), format!("the module cannot be built for kernel {RELEASE}: {error_text}"));
        assert_eq!((error.code(), error.exit()), ("build_failed", Exit::Failed));
        let ModuleError::Build(BuildError::Failed { log, .. }) = &error else { panic!("{error:?}") };
        let has_log = fs::read_to_string(log).expect("a log").contains("CC [M]");
        assert!(error.fix().contains("build.log") && has_log == (make == fails));
        assert!(stored.is_file(), "the module of the last good build is still there");
        assert!(!stored.with_file_name("build").exists());
    }
}

#[test]
fn make_gets_kernel_compiler_and_clean_environment() {
    let rig = Rig::new(&format!("env >\"$0.env\"; echo \"$@\" >\"$0.args\"; {BUILDS}"));
    rig.build().expect("built");
    let text = |name| rig.fake.host().text(name).expect("written");
    let (args, env) = (text("/usr/bin/make.args"), text("/usr/bin/make.env"));
    assert!(args.contains(&format!("/lib/modules/{RELEASE}/build M=")) && args.contains("CC=gcc-12 "), "{args}");
    assert!(env.contains("LC_ALL=C") && !env.contains("CARGO"), "{env}");
}

#[test]
fn log_line_is_first_error() {
    let probes = "--- PROCESS is not TGID:\n<stdin>:9:1: error: 'PIDTYPE_TGID' undeclared\n\
                  mpu_probes.sh: error: this kernel is too old: its headers lack PIDTYPE_TGID\nmake: *** [x] Error 1\n";
    for (log, line) in [
        (probes, "mpu_probes.sh: error: this kernel is too old: its headers lack PIDTYPE_TGID"),
        ("a\nb.c:1: error: x\nc.c:2: error: y\nmake: *** Error 2\n", "b.c:1: error: x"),
        ("ok\n/bin/sh: 1: gcc-12: not found\nmake: Error 127\n", "/bin/sh: 1: gcc-12: not found"),
        ("\nmake: *** No rule\n\n", "make: *** No rule"),
        ("", "make printed nothing"),
    ] {
        assert_eq!(error_line(log), line);
    }
}

#[test]
fn build_jobs_are_limited() {
    assert_eq!([1, 2, 4, 224].map(jobs), [1, 2, 4, 4]);
}

#[test]
fn store_is_locked_by_roots_own_file() {
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
