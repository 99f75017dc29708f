//! Hosts that lack one thing each, and the check that says so.

use super::*;
use mpu_host::explain::Explain;
use mpu_host::host::fake::{FakeHost, CONFIG, RELEASE};

/// Every check in the order in which `mpu up` makes them; the code of the first that fails.
fn verdict(fake: &FakeHost) -> Result<Toolchain, (&'static str, Exit)> {
    let host = fake.host();
    let run = || {
        let release = kernel(&host)?;
        permission(&host, false, String::new)?;
        toolchain(&host, &release)
    };
    run().map_err(|unfit| (unfit.code(), unfit.exit()))
}

#[test]
fn a_host_in_order_passes() {
    let fake = FakeHost::in_order();
    let found = verdict(&fake).expect("everything is there");
    assert_eq!((found.release.as_str(), found.compiler.as_str()), (RELEASE, "CC=gcc-12"));
    assert!(found.make.ends_with("usr/bin/make"));
}

#[test]
fn each_broken_host_has_its_own_answer() {
    let check = |breakage: &dyn Fn(&FakeHost), expect: (&'static str, Exit)| {
        let fake = FakeHost::in_order();
        breakage(&fake);
        assert_eq!(verdict(&fake), Err(expect));
    };
    use Exit::{NotReady, Refused};
    let build = format!("/lib/modules/{RELEASE}/build");
    check(&|f| f.write("/proc/self/status", "CapEff:\t0000000000000000\n"), ("not_root", Refused));
    check(&|f| f.remove("/proc/sys/kernel/osrelease"), ("no_release", NotReady));
    check(&|f| f.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality"), ("locked_down", Refused));
    check(&|f| f.write("/sys/kernel/security/lockdown", "none integrity [confidentiality]"), ("locked_down", Refused));
    check(&|f| f.write("/sys/module/module/parameters/sig_enforce", "Y\n"), ("signatures_enforced", Refused));
    check(&|f| f.write("/proc/sys/kernel/modules_disabled", "1\n"), ("modules_disabled", Refused));
    check(&|f| f.write("/proc/sys/kernel/ftrace_enabled", "0\n"), ("ftrace_disabled", Refused));
    check(
        &|f| {
            f.write(
                &format!("/boot/config-{RELEASE}"),
                &CONFIG.replace("CONFIG_KPROBES=y\n", "# CONFIG_KPROBES is not set\n"),
            )
        },
        ("missing_kernel_option", NotReady),
    );
    check(&|f| f.remove(&build), ("no_headers", NotReady));
    check(
        &|f| f.write(&format!("{build}/include/generated/utsrelease.h"), "#define UTS_RELEASE \"6.1.0-27-amd64\"\n"),
        ("other_headers", NotReady),
    );
    check(&|f| f.remove("/usr/bin/make"), ("no_make", NotReady));
    check(&|f| f.remove("/usr/bin/gcc-12"), ("no_compiler", NotReady));
}

#[test]
fn a_signed_module_passes_lockdown() {
    let fake = FakeHost::in_order();
    fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    fake.write("/sys/module/module/parameters/sig_enforce", "Y");
    assert!(permission(&fake.host(), true, String::new).is_ok());
}

#[test]
fn a_host_without_a_driver_or_configuration_passes() {
    let fake = FakeHost::in_order();
    fake.remove("/sys/module/nvidia");
    fake.remove(&format!("/boot/config-{RELEASE}"));
    fake.remove(&format!("/lib/modules/{RELEASE}/build/.config"));
    fake.tool("gcc", "exit 0");
    assert_eq!(verdict(&fake).map(|t| t.compiler), Ok("CC=gcc".to_string()));
}

#[test]
fn the_kernels_own_compiler_comes_first() {
    let fake = FakeHost::in_order();
    fake.tool("gcc", "exit 0");
    let host = fake.host();
    assert_eq!(compiler(&host, CONFIG, "").0.as_deref(), Some("CC=gcc-12"));
    let other = "CONFIG_CC_VERSION_TEXT=\"x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0\"\n";
    assert_eq!(
        compiler(&host, other, ""),
        (
            Some("CC=gcc".to_string()),
            "gcc-13".to_string(),
            "x86_64-linux-gnu-gcc-13 (Ubuntu 13.3.0) 13.3.0".to_string()
        )
    );
    fake.tool("gcc-13", "exit 0");
    assert_eq!(compiler(&host, other, "").0.as_deref(), Some("CC=gcc-13"));
    let clang = "CONFIG_CC_VERSION_TEXT=\"clang version 19\"\nCONFIG_CC_IS_CLANG=y\n";
    assert_eq!(compiler(&host, clang, ""), (None, "clang lld".to_string(), "clang version 19".to_string()));
    fake.tool("clang", "exit 0");
    fake.tool("ld.lld", "exit 0");
    assert_eq!(compiler(&host, clang, "").0.as_deref(), Some("LLVM=1"));
}

#[test]
fn fixes_name_the_package() {
    let fake = FakeHost::in_order();
    fake.remove(&format!("/lib/modules/{RELEASE}/build"));
    let unfit = toolchain(&fake.host(), RELEASE).expect_err("no headers");
    assert_eq!(unfit.fix(), format!("apt-get install linux-headers-{RELEASE}"));
}

#[test]
fn pahole_is_wanted_where_the_kernel_would_run_it() {
    let fake = FakeHost::in_order();
    let build = format!("/lib/modules/{RELEASE}/build");
    fake.write(&format!("{build}/.config"), &format!("{CONFIG}CONFIG_DEBUG_INFO_BTF_MODULES=y\n"));
    assert!(toolchain(&fake.host(), RELEASE).is_ok(), "without a vmlinux it is not run");
    fake.write(&format!("{build}/vmlinux"), "ELF");
    let unfit = toolchain(&fake.host(), RELEASE).expect_err("no pahole");
    assert_eq!(
        (unfit.code(), unfit.exit(), unfit.fix().as_str()),
        ("no_pahole", Exit::NotReady, "apt-get install pahole")
    );
    fake.tool("pahole", "exit 0");
    assert!(toolchain(&fake.host(), RELEASE).is_ok());
    fake.remove("/usr/bin/pahole");
    fake.write(&format!("{build}/.config"), &format!("{CONFIG}# CONFIG_DEBUG_INFO_BTF_MODULES is not set\n"));
    assert!(toolchain(&fake.host(), RELEASE).is_ok());
}

#[test]
fn a_kernels_number_is_no_reason() {
    for release in ["5.4.0-216-generic", "4.18.0-147.el8.x86_64"] {
        let fake = FakeHost::in_order();
        fake.write("/proc/sys/kernel/osrelease", release);
        assert_eq!(kernel(&fake.host()).map_err(|unfit| unfit.code()), Ok(release.to_string()));
    }
}
