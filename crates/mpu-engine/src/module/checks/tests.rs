//! Hosts that lack one thing each, and the check that reports it.

use super::*;
use mpu_host::host::fake::{CONFIG, FakeHost, RELEASE};

#[test]
fn tools_of_host_in_order_are_found() {
    let fake = FakeHost::in_order();
    let host = fake.host();
    let found = toolchain(&host, &kernel(&host).expect("fit")).expect("everything is there");
    assert_eq!((found.release.as_str(), found.compiler.as_str()), (RELEASE, "CC=gcc-12"));
    assert!(found.make.ends_with("usr/bin/make"));
    // Neither a driver nor a configuration is needed.
    fake.remove("/sys/module/nvidia");
    fake.remove(&format!("/boot/config-{RELEASE}"));
    fake.remove(&format!("/lib/modules/{RELEASE}/build/.config"));
    fake.tool("gcc", "exit 0");
    let release = kernel(&host).and_then(|release| permission(&host, false, String::new).map(|()| release));
    assert_eq!(toolchain(&host, &release.expect("fit")).expect("there").compiler, "CC=gcc");
}

#[test]
fn signed_module_passes_lockdown() {
    let fake = FakeHost::in_order();
    fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    fake.write("/sys/module/module/parameters/sig_enforce", "Y");
    assert!(permission(&fake.host(), true, String::new).is_ok());
}

#[test]
fn kernels_own_compiler_comes_first() {
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
fn fixes_name_package() {
    let fake = FakeHost::in_order();
    fake.remove(&format!("/lib/modules/{RELEASE}/build"));
    let unfit = toolchain(&fake.host(), RELEASE).expect_err("no headers");
    assert_eq!(unfit.fix(), format!("apt-get install linux-headers-{RELEASE}"));
}

#[test]
fn pahole_is_required_if_kernel_build_runs_it() {
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
fn old_kernel_release_is_accepted() {
    for release in ["5.4.0-216-generic", "4.18.0-147.el8.x86_64"] {
        let fake = FakeHost::in_order();
        fake.write("/proc/sys/kernel/osrelease", release);
        assert_eq!(kernel(&fake.host()).map_err(|unfit| unfit.code()), Ok(release.to_string()));
    }
}
