//! Builds for other kernels with a fake make: the results, and each reason to refuse.

use super::super::{elf, prebuilt};
use super::*;
use mpu_host::explain::Explain;
use mpu_host::host::fake::FakeHost;
use std::os::unix::fs::PermissionsExt;

const RELEASE: &str = "6.9.1-7-amd64";
const CONFIG: &str =
    "CONFIG_X86_64=y\nCONFIG_MODVERSIONS=y\nCONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n";

/// A machine that runs another kernel, a folder with headers, and sources.
struct Rig {
    fake: FakeHost,
    dir: tempfile::TempDir,
    sources: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        let rig = Rig {
            fake: FakeHost::in_order(),
            dir: tempfile::tempdir().expect("a folder"),
            sources: sources::fake::directory(),
        };
        rig.makes(RELEASE);
        rig.headers("headers");
        rig
    }

    fn makes(&self, release: &str) {
        for (name, ko) in [("mpu", "mpu.ko"), ("mpu_next", NEXT)] {
            fs::write(self.fake.host().at(ko), sources::fake::module_of(name, release, "0.0.9")).expect("a module");
        }
        let from = self.fake.host().at("/");
        let body = format!(
            r#"for a; do case $a in M=*) cp {}/mpu*.ko "${{a#M=}}";; esac; done; echo "$@" >"$0.args""#,
            from.display()
        );
        self.fake.tool("make", &body);
    }

    fn headers(&self, place: &str) {
        for (name, text) in [
            ("Makefile", "# a kernel's\n".to_string()),
            (".config", CONFIG.to_string()),
            ("Module.symvers", String::new()),
            ("scripts/mod/place", String::new()),
            ("include/generated/utsrelease.h", format!("#define UTS_RELEASE \"{RELEASE}\"\n")),
        ] {
            self.write(&format!("{place}/{name}"), &text);
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().expect("a parent")).expect("folders");
        fs::write(self.at(path), text).expect("a file");
    }

    fn options(&self) -> BuildOptions {
        BuildOptions {
            release: RELEASE.to_string(),
            headers: self.at("headers"),
            arch: None,
            out: self.at("out"),
            source: Some(self.sources.path().to_path_buf()),
            sign_key: None,
            sign_cert: None,
        }
    }

    fn build(&self, options: &BuildOptions) -> Result<OtherKernelModule, ModuleError> {
        build(&self.fake.host(), options)
    }

    /// Expects this message and no module. Returns the code of the failure.
    fn fails(&self, options: &BuildOptions, message: &str) -> &'static str {
        let error = self.build(options).expect_err(message);
        let text = mpu_host::explain::chain(&error);
        assert!(text.contains(message), "{text}");
        assert!(!error.fix().is_empty());
        assert!(!options.out.join(&options.release).join("mpu.ko").exists(), "{message}");
        error.code()
    }
}

#[test]
fn built_module_is_found_by_node() {
    let rig = Rig::new();
    let built = rig.build(&rig.options()).expect("built");
    assert_eq!(built.module, rig.at("out").join(RELEASE).join("mpu.ko"));
    assert_eq!((built.arch, built.signed), ("x86_64", false));
    assert!(built.vermagic.starts_with(&format!("{RELEASE} SMP")), "{}", built.vermagic);
    let mut names: Vec<String> = fs::read_dir(built.module.parent().expect("a folder"))
        .expect("readable")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["build.log", "mpu.ko", NEXT], "and nothing that was used on the way");

    let node = FakeHost::in_order();
    let place = node.host().at(prebuilt::FOLDERS[0]).join(RELEASE);
    fs::create_dir_all(&place).expect("a folder");
    for part in place.ancestors().take_while(|part| *part != node.host().at("/")) {
        fs::set_permissions(part, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    for name in ["mpu.ko", NEXT] {
        fs::copy(built.module.with_file_name(name), place.join(name)).expect("copied");
        fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o644)).expect("a mode");
    }
    let found = prebuilt::find(&node.host(), RELEASE, |_| Ok(()));
    assert!(
        found.passed_over[0].why.starts_with("is of MPU 0.0.9"),
        "found, and only the made-up version is wrong: {found:?}"
    );
}

#[test]
fn headers_are_found_where_packages_put_them() {
    for place in [
        format!("tree/usr/src/linux-headers-{RELEASE}"),
        format!("tree/linux-headers-{RELEASE}"),
        format!("tree/usr/src/kernels/{RELEASE}"),
        format!("tree/kernels/{RELEASE}"),
        format!("tree/usr/lib/modules/{RELEASE}/build"),
    ] {
        let rig = Rig::new();
        rig.headers(&place);
        rig.build(&BuildOptions { headers: rig.at("tree"), ..rig.options() })
            .unwrap_or_else(|e| panic!("{place}: {e}"));
    }
}

#[test]
fn unpacked_two_part_headers_build() {
    let rig = Rig::new();
    let place = format!("tree/usr/src/linux-headers-{RELEASE}");
    rig.headers(&place);
    rig.write(&format!("{place}/Makefile"), "include /usr/src/linux-headers-6.9.1-7-common/Makefile\n");
    let options = BuildOptions { headers: rig.at("tree"), ..rig.options() };
    assert_eq!(
        rig.fails(&options, "second part that is not there: linux-headers-6.9.1-7-common"),
        "headers_incomplete"
    );
    rig.write("tree/usr/src/linux-headers-6.9.1-7-common/Makefile", "# all of it\n");
    rig.build(&options).expect("built");
    let arguments = rig.fake.host().text("/usr/bin/make.args").expect("make was called");
    assert!(arguments.contains("-f ") && arguments.contains("linux-headers-6.9.1-7-common/Makefile"), "{arguments}");
}

#[test]
fn unusable_headers_are_refused_with_reason() {
    type Damage = fn(&Rig, &mut BuildOptions);
    let cases: [(&str, &str, Damage); 14] = [
        ("cannot read the folder", "headers_unreadable", |_, o| o.headers = "/nonexistent".into()),
        ("cannot read the folder", "headers_unreadable", |r, o| o.headers = r.at("headers/Makefile")),
        ("has no kernel headers", "not_headers", |r, o| {
            r.write("empty/file", "");
            o.headers = r.at("empty");
        }),
        ("headers of kernel 6.9.1-7-amd64, and a module for 6.9.2", "headers_of_another_kernel", |_, o| {
            o.release = "6.9.2".into()
        }),
        ("headers of kernel 6.9.1-7-amd64, and a module for 6.9.2", "headers_of_another_kernel", |r, o| {
            r.headers("tree/usr/src/linux-headers-6.9.1-7-amd64");
            (o.headers, o.release) = (r.at("tree"), "6.9.2".into());
        }),
        ("is not the release of a kernel", "bad_release", |_, o| o.release = "../6.9.1".into()),
        ("is not the release of a kernel", "bad_release", |_, o| o.release = String::new()),
        ("no include/generated/utsrelease.h", "headers_unprepared", |r, _| {
            fs::remove_file(r.at("headers/include/generated/utsrelease.h")).expect("removed");
        }),
        ("no .config", "headers_unprepared", |r, _| fs::remove_file(r.at("headers/.config")).expect("removed")),
        ("no Module.symvers", "headers_unprepared", |r, _| {
            fs::remove_file(r.at("headers/Module.symvers")).expect("removed")
        }),
        ("are for x86_64, and arm64 was requested", "headers_of_another_processor", |_, o| {
            o.arch = Some("arm64".into())
        }),
        ("do not run on this machine", "headers_tools", |r, _| {
            r.write("headers/scripts/mod/modpost", "\u{7f}ELF of another machine");
            fs::set_permissions(r.at("headers/scripts/mod/modpost"), fs::Permissions::from_mode(0o755))
                .expect("a mode");
        }),
        ("there is no gcc-12 on this host", "no_compiler", |r, _| r.fake.remove("/usr/bin/gcc-12")),
        ("a path with a space", "path_unusable", |r, o| {
            r.headers("with space");
            o.headers = r.at("with space");
        }),
    ];
    for (message, code, damage) in cases {
        let rig = Rig::new();
        let mut options = rig.options();
        damage(&rig, &mut options);
        assert_eq!(rig.fails(&options, message), code, "{message}");
    }
}

#[test]
fn foreign_headers_need_cross_compiler_and_core() {
    let rig = Rig::new();
    rig.write("headers/.config", &CONFIG.replace("CONFIG_X86_64", "CONFIG_ARM64"));
    assert_eq!(rig.fails(&rig.options(), "there is no aarch64-linux-gnu-gcc on this host"), "no_compiler");
    let fix = rig.build(&rig.options()).expect_err("no compiler").fix();
    assert_eq!(fix, "apt-get install make gcc-aarch64-linux-gnu");
    rig.fake.tool("aarch64-linux-gnu-gcc", "exit 0");
    fs::write(rig.sources.path().join("mpu_core.o_shipped"), elf::fake::object("x86_64", "")).expect("a core");
    assert_eq!(rig.fails(&rig.options(), "core is for x86_64"), "core_for_another_processor");
    fs::write(rig.sources.path().join("mpu_core.o_shipped"), elf::fake::object("aarch64", "")).expect("a core");
    assert_eq!(rig.fails(&rig.options(), "built for another processor than aarch64"), "built_wrong");
    let arguments = rig.fake.host().text("/usr/bin/make.args").expect("make was called");
    for word in ["ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-", "CC=aarch64-linux-gnu-gcc"] {
        assert!(arguments.contains(word), "{arguments}");
    }
}

#[test]
fn module_for_another_kernel_is_not_kept() {
    let rig = Rig::new();
    rig.makes("6.9.1-7-cloud-amd64");
    assert_eq!(rig.fails(&rig.options(), "built for kernel 6.9.1-7-cloud-amd64"), "built_wrong");
    assert!(rig.at("out").join(RELEASE).join("build.log").is_file(), "the log is");
}

#[test]
fn failed_build_names_log_and_retry_works() {
    let rig = Rig::new();
    rig.fake.tool("make", "echo 'mpu_main.c:1:1: error: no such thing' >&2; exit 2");
    assert_eq!(rig.fails(&rig.options(), "no such thing"), "build_failed");
    rig.makes(RELEASE);
    rig.build(&rig.options()).expect("built");
}

#[test]
fn existing_output_is_kept() {
    let rig = Rig::new();
    let path = rig.at("out").join(RELEASE).join("mpu.ko");
    rig.write(&format!("out/{RELEASE}/mpu.ko"), "another's");
    let error = rig.build(&rig.options()).expect_err("there is one");
    assert_eq!((error.code(), fs::read_to_string(path).expect("readable").as_str()), ("output_exists", "another's"));
    fs::create_dir_all(rig.at("file")).expect("a folder");
    let out = rig.at("headers/Makefile");
    let error = rig.build(&BuildOptions { out, ..rig.options() }).expect_err("a file in the way");
    assert_eq!(error.code(), "output_unwritable");
}

#[test]
fn output_created_during_build_is_kept() {
    for (name, other) in [("mpu.ko", NEXT), (NEXT, "mpu.ko")] {
        let rig = Rig::new();
        let place = rig.at("out").join(RELEASE);
        let from = rig.fake.host().at("/").display().to_string();
        let body = r#"for a; do case $a in M=*) cp FROM/mpu*.ko "${a#M=}";; esac; done; printf theirs >TO"#;
        let body = body.replace("FROM", &from).replace("TO", &place.join(name).display().to_string());
        rig.fake.tool("make", &body);
        let error = rig.build(&rig.options()).expect_err(name);
        assert_eq!(error.code(), "output_exists", "{error}");
        assert_eq!(fs::read_to_string(place.join(name)).expect("readable"), "theirs");
        assert!(!place.join(other).exists(), "half of ours stays beside theirs");
    }
}

#[test]
fn failed_signing_leaves_no_module() {
    let rig = Rig::new();
    let with = |key: &str, cert: &str| BuildOptions {
        sign_key: Some(key.to_string()),
        sign_cert: Some(cert.to_string()),
        ..rig.options()
    };
    let (key, cert) = (rig.at("key").display().to_string(), rig.at("cert").display().to_string());
    assert_eq!(rig.fails(&with(&key, &cert), "cannot read"), "sign_key_unreadable");
    rig.write("key", "private");
    assert_eq!(rig.fails(&with(&key, &cert), "cannot read"), "sign_key_unreadable");
    rig.write("cert", "certificate");
    assert_eq!(rig.fails(&with(&key, &cert), "no program here that signs"), "no_sign_tool");
    rig.fake.tool("kmodsign", "echo 'bad key' >&2; exit 1");
    assert_eq!(rig.fails(&with(&key, &cert), "bad key"), "sign_failed");
    let error = rig.build(&with("pkcs11:token=t;object=k", &cert)).expect_err("not signed");
    assert!(error.fix().contains("OPENSSL_CONF"), "{}", error.fix());
    rig.fake.tool("kmodsign", "printf '~Module signature appended~\\n' >>\"$4\"");
    let built = rig.build(&with(&key, &cert)).expect("built");
    assert!(built.signed && is_signed(&built.next_module));
}
