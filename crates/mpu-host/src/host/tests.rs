//! Reads facts from fake hosts, with missing and odd files among them.

use super::fake::{FakeHost, RELEASE};
use super::{CAP_SYS_MODULE, Host, Lockdown};

#[test]
fn host_facts_come_from_its_files() {
    let fake = FakeHost::in_order();
    let host = fake.host();
    assert_eq!(host.release().expect("a release"), RELEASE);
    assert!(host.has_capability(CAP_SYS_MODULE));
    fake.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    assert!(!host.has_capability(CAP_SYS_MODULE));
    assert!(!host.is_this());
    fake.remove("/proc/self/status");
    let capabilities = |host: &Host| (0..41).map(|bit| host.has_capability(bit)).collect::<Vec<_>>();
    assert_eq!(capabilities(&host), capabilities(&Host::this()), "they are the process's own");
}

#[test]
fn lockdown_is_bracketed_word() {
    let fake = FakeHost::in_order();
    let check = |text: &str, expect| {
        fake.write("/sys/kernel/security/lockdown", text);
        assert_eq!(fake.host().lockdown(), expect, "{text}");
    };
    check("[none] integrity confidentiality\n", Lockdown::None);
    check("none [integrity] confidentiality\n", Lockdown::Integrity);
    check("none integrity [confidentiality]\n", Lockdown::Confidentiality);
    check("", Lockdown::None);
    fake.remove("/sys/kernel/security/lockdown");
    assert_eq!(fake.host().lockdown(), Lockdown::None);
}

#[test]
fn packed_configuration_is_read_with_hosts_gzip() {
    let fake = FakeHost::in_order();
    fake.remove(&format!("/boot/config-{RELEASE}"));
    fake.remove(&format!("/lib/modules/{RELEASE}/build/.config"));
    assert!(fake.host().kernel_config(RELEASE).is_none());
    fake.write("/proc/config.gz", "CONFIG_MODULES=y\n");
    assert!(fake.host().kernel_config(RELEASE).is_none(), "no gzip, no configuration");
    fake.tool("gzip", "/bin/cat");
    let (path, text) = fake.host().kernel_config(RELEASE).expect("a configuration");
    assert_eq!((path.to_str(), text.as_str()), (Some("/proc/config.gz"), "CONFIG_MODULES=y\n"));
}

#[test]
fn tool_must_be_executable() {
    let fake = FakeHost::in_order();
    assert!(fake.host().tool("gcc-12").is_some());
    fake.write("/usr/bin/clang", "not executable");
    assert!(fake.host().tool("clang").is_none());
    assert!(fake.host().tool("/usr/bin/make").is_some());
}

#[test]
fn hints_use_distribution_package_manager() {
    let fake = FakeHost::in_order();
    let check = |os_release: &str, hint: &str| {
        fake.write("/etc/os-release", os_release);
        assert!(fake.host().headers_hint(RELEASE).starts_with(hint), "{os_release}");
    };
    check("ID=debian\n", "apt-get install linux-headers-6.1.0-28-amd64");
    check("ID=pop\nID_LIKE=\"ubuntu debian\"\n", "apt-get");
    check("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install kernel-devel-6.1");
    check("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "zypper");
    check("ID=nixos\n", "install the package");
    fake.write("/etc/os-release", "ID=rhel\n");
    let hint = fake.host().headers_hint("5.14.0-503.el9.aarch64+64k");
    assert_eq!(hint, "dnf install kernel-64k-devel-5.14.0-503.el9.aarch64");
    for (id, install, remove) in [
        ("debian", "apt-get install ./mpu_*.deb", "apt-get purge mpu"),
        ("rhel", "dnf install --allowerasing ./mpu-[0-9]*.rpm", "dnf remove mpu"),
        ("suse", "zypper install ./mpu-[0-9]*.rpm", "zypper remove mpu"),
    ] {
        fake.write("/etc/os-release", &format!("ID={id}\n"));
        assert_eq!(fake.host().package_hints("mpu"), Some((install.to_string(), remove.to_string())));
    }
    fake.write("/etc/os-release", "ID=arch\n");
    assert_eq!(fake.host().package_hints("mpu"), None);
}
