//! The whole way to a loaded module on made-up hosts, and each place at which it ends early.

use super::fake::Setup;
use super::*;
use crate::module::load::fake::FakeKernel;
use crate::module::{foreign, prebuilt};
use crate::signing;
use mpu_host::config::Modules;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;

fn raised(host: &Host, kernel: &dyn Kernel, options: &ModuleOptions) -> Result<Raised, ModuleError> {
    let driver = Driver::loaded(host);
    raise(host, kernel, plan::preflight(host, options, driver.as_ref())?, options, driver.as_ref())
}

/// What became of it, and whether it was built.
fn up(host: &Host, kernel: &dyn Kernel, options: &ModuleOptions) -> Result<(How, bool), ModuleError> {
    let raised = raised(host, kernel, options)?;
    Ok((raised.how, raised.built_in.is_some()))
}

#[test]
fn another_version_that_is_up_is_left_alone() {
    let s = Setup::new();
    s.fake.write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
    let error = up(&s.fake.host(), &s.kernel(), &s.options()).expect_err("another version");
    assert_eq!((error.code(), error.exit()), ("other_version_up", Exit::Failed));
    assert!(error.fix().contains("mpu up --replace"));
}

#[test]
fn a_stuck_module_is_neither_up_nor_replaced() {
    let s = Setup::new();
    s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nabi=2\nstate=stuck\n");
    let kernel = s.kernel();
    for replace in [false, true] {
        let options = ModuleOptions { replace, ..s.options() };
        let error = up(&s.fake.host(), &kernel, &options).expect_err("stuck");
        assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("stuck", Exit::Failed, (0, 0)));
    }
}

#[test]
fn foreign_twin_stops_only_the_swap() {
    let s = Setup::new();
    foreign::fake::load(&s.fake, "mpu_next");
    let kernel = s.kernel();
    s.fake.write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
    let before = s.fake.snapshot();
    let error = up(&s.fake.host(), &kernel, &ModuleOptions { replace: true, ..s.options() }).expect_err("refused");
    assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("foreign_module", Exit::Refused, (0, 0)));
    assert_eq!(s.fake.snapshot(), before);
    s.fake.write("/sys/module/mpu/parameters/state", state::ARMED);
    assert_eq!(up(&s.fake.host(), &kernel, &s.options()).expect("up"), (How::AlreadyUp, false));
}

#[test]
fn a_module_that_was_refused_is_loaded_anew() {
    let s = Setup::new();
    s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=refused\nrefused=os_find_ns_pid:16\n");
    let kernel = s.kernel();
    let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
    assert_eq!((done, kernel.calls.get()), ((How::Loaded, true), (1, 1)));

    s.fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=waiting\n");
    let done = up(&s.fake.host(), &kernel, &s.options()).expect("up");
    assert_eq!((done, kernel.calls.get()), ((How::Loaded, false), (2, 2)), "it waited beside a driver");
}

#[test]
fn the_module_is_loaded_with_the_policy_and_the_way_to_redirect_that_are_wanted() {
    let s = Setup::new();
    let policy = "host /a".to_string();
    for (redirect, said) in [(Redirect::Auto, "auto"), (Redirect::Direct, "direct"), (Redirect::Ipmodify, "ipmodify")] {
        let options = ModuleOptions { redirect, policy: policy.clone(), ..s.options() };
        up(&s.fake.host(), &s.kernel(), &options).expect("up");
        let parameter = |name| s.fake.host().text(Instance::Mpu.parameter(name)).expect("written");
        assert_eq!((parameter("redirect").trim(), parameter("policy").trim()), (said, &*policy));
        s.kernel().remove(Instance::Mpu).expect("removed");
    }
    let plain = Parameters { policy: "", redirect: Redirect::Auto };
    assert_eq!(plain.words(), "", "an older module knows no such name");
}

#[test]
fn a_way_that_the_kernel_lacks_is_named_and_not_built_for_again() {
    let s = Setup::new();
    let kernel = s.kernel();
    up(&s.fake.host(), &kernel, &s.options()).expect("it is kept from now on");
    kernel.remove(Instance::Mpu).expect("removed");
    kernel.inserts.borrow_mut().push(libc::EOPNOTSUPP);
    let options = ModuleOptions { redirect: Redirect::Direct, ..s.options() };
    let error = up(&s.fake.host(), &kernel, &options).expect_err("no such way");
    assert_eq!((error.code(), error.exit(), kernel.calls.get().0), ("load_failed", Exit::Failed, 2));
    assert!(error.fix().contains("`redirect` in /etc/mpu/config.toml"), "{}", error.fix());
}

#[test]
fn a_driver_that_the_module_does_not_find_is_no_reason_to_wait() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n");
    let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("unattached");
    assert_eq!((error.code(), kernel.calls.get()), ("driver_not_found", (1, 1)));
    assert!(error.to_string().contains("550.163.01"), "{error}");
}

#[test]
fn a_kept_module_that_does_not_fit_is_built_anew_once() {
    let s = Setup::new();
    up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    s.fake.remove("/sys/module/mpu");
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::ENOEXEC);
    let done = up(&s.fake.host(), &kernel, &s.options()).expect("up at the second try");
    assert_eq!((done, kernel.calls.get()), ((How::Loaded, true), (2, 0)));

    s.fake.remove("/sys/module/mpu");
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().extend([libc::ENOEXEC, libc::ENOEXEC]);
    let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("no third try");
    assert_eq!((error.code(), kernel.calls.get()), ("load_failed", (2, 0)));
}

#[test]
fn what_dkms_built_is_taken_without_tools() {
    let s = Setup::new();
    s.fake.remove("/usr/bin/make");
    let path = format!("/lib/modules/{}/updates/dkms/mpu.ko", mpu_host::host::fake::RELEASE);
    s.fake.write(&path, "");
    let mut bytes = sources::fake::module(mpu_host::host::fake::RELEASE);
    bytes.extend_from_slice(format!("version={}\0", env!("CARGO_PKG_VERSION")).as_bytes());
    std::fs::write(s.fake.host().at(&path), bytes).expect("a module");
    let done = up(&s.fake.host(), &s.kernel(), &ModuleOptions::default()).expect("up");
    assert_eq!(done, (How::Loaded, false));
}

#[test]
fn what_a_locked_kernel_gets_is_signed_with_the_owners_key() {
    const BUILDS_BOTH: &str =
        r#"for a; do case $a in M=*) for m in mpu mpu_next; do echo $m >"${a#M=}/$m.ko"; done;; esac; done"#;
    let s = Setup::new();
    let host = s.fake.host();
    s.fake.tool("make", BUILDS_BOTH);
    let code = || up(&host, &s.kernel(), &s.options()).map_err(|error| error.code());
    s.fake.write("/sys/module/module/parameters/sig_enforce", "Y\n");
    assert_eq!(code(), Err("signatures_enforced"));
    s.fake.write("/var/lib/dkms/mok.key", "private");
    s.fake.write("/var/lib/dkms/mok.pub", "certificate");
    assert_eq!(code(), Err("signatures_enforced"), "nothing to sign with");
    s.fake.tool("kmodsign", "echo 'bad key' >&2; exit 1");
    assert_eq!(code(), Err("sign_failed"));
    assert_eq!(code(), Err("sign_failed"), "what is not signed is not kept");
    s.fake.tool("kmodsign", "printf '~Module signature appended~\\n' >>\"$4\"");
    assert_eq!(code(), Ok((How::Loaded, true)));
    let store = host.at("/var/lib/mpu").join(mpu_host::host::fake::RELEASE);
    assert!(["mpu.ko", "mpu_next.ko"].iter().all(|name| signing::is_signed(&store.join(name))));

    s.fake.remove("/sys/module/mpu");
    assert_eq!(code(), Ok((How::Loaded, false)));
    s.fake.remove("/sys/module/mpu");
    s.fake.write("/var/lib/dkms/mok.pub", "another");
    assert_eq!(code(), Ok((How::Loaded, true)), "another key asks for another module");
    s.fake.remove("/sys/module/mpu");
    s.fake.remove("/usr/bin/kmodsign");
    s.fake.remove("/usr/bin/make");
    assert_eq!(code(), Ok((How::Loaded, false)), "a signed one is kept");
}

#[test]
fn a_signature_that_the_kernel_does_not_know_is_told_with_its_cure() {
    let s = Setup::new();
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    s.fake.write("/var/lib/dkms/mok.key", "private");
    s.fake.write("/var/lib/dkms/mok.pub", "certificate");
    s.fake.tool("kmodsign", "printf '~Module signature appended~\\n' >>\"$4\"");
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::ENOKEY);
    let error = up(&s.fake.host(), &kernel, &s.options()).expect_err("no key");
    assert_eq!((error.code(), error.exit()), ("load_failed", Exit::Refused));
    assert!(error.fix().starts_with("mokutil --import /var/lib/dkms/mok.pub"), "{}", error.fix());
}

#[test]
fn a_kept_module_needs_no_tools() {
    let s = Setup::new();
    up(&s.fake.host(), &s.kernel(), &s.options()).expect("up");
    s.fake.remove("/sys/module/mpu");
    s.fake.remove("/usr/bin/gcc-12");
    s.fake.remove("/usr/bin/make");
    let done = up(&s.fake.host(), &s.kernel(), &s.options()).expect("up without a compiler");
    assert_eq!(done, (How::Loaded, false));
    s.fake.remove("/sys/module/mpu");
    let error =
        up(&s.fake.host(), &s.kernel(), &ModuleOptions { build_only: true, ..s.options() }).expect_err("cannot build");
    assert_eq!(error.code(), "no_compiler");
}

#[test]
fn the_slower_of_two_finds_it_up() {
    struct Raced<'a>(FakeKernel<'a>);
    impl Kernel for Raced<'_> {
        fn insert(&self, instance: Instance, module: &std::fs::File, with: &std::ffi::CStr) -> std::io::Result<()> {
            self.0.insert(instance, module, with)?;
            Err(std::io::Error::from_raw_os_error(libc::EEXIST))
        }
        fn remove(&self, instance: Instance) -> std::io::Result<()> {
            self.0.remove(instance)
        }
        fn mark_log(&self) -> Option<std::fs::File> {
            None
        }
        fn is_for(&self, _: &Host) -> bool {
            true
        }
    }
    let s = Setup::new();
    let done = up(&s.fake.host(), &Raced(s.kernel()), &s.options()).expect("up");
    assert_eq!(done, (How::AlreadyUp, false));
    assert!(s.fake.host().at("/sys/module/mpu").exists(), "the other's module stays");
}

/// What came of a raise with prebuilt modules: the origin, what was passed over, or the failure.
fn outcome(s: &Setup, kernel: &dyn Kernel, modules: Modules) -> Result<(Origin, Vec<String>), ModuleError> {
    let host = s.fake.host();
    let options = ModuleOptions { modules, ..ModuleOptions::default() };
    let raised = raised(&host, kernel, &options)?;
    let why = raised.passed_over.into_iter().map(|over| over.why).collect();
    Ok((raised.origin.expect("loaded"), why))
}

const THIS: &str = env!("CARGO_PKG_VERSION");

fn put_prebuilt(s: &Setup, version: &str) {
    let release = mpu_host::host::fake::RELEASE;
    prebuilt::fake::put(&s.fake, prebuilt::FOLDERS[0], release, release, version);
}

fn put_installed(s: &Setup) {
    let path = format!("/lib/modules/{}/updates/dkms/mpu.ko", mpu_host::host::fake::RELEASE);
    s.fake.write(&path, "");
    let mut bytes = sources::fake::module(mpu_host::host::fake::RELEASE);
    bytes.extend_from_slice(format!("version={THIS}\0").as_bytes());
    std::fs::write(s.fake.host().at(&path), bytes).expect("a module");
}

#[test]
fn what_was_built_elsewhere_comes_first_and_needs_no_headers() {
    let s = Setup::new();
    s.fake.remove(&format!("/lib/modules/{}/build", mpu_host::host::fake::RELEASE));
    s.fake.remove("/usr/bin/gcc-12");
    put_prebuilt(&s, THIS);
    put_installed(&s);
    for modules in [Modules::Any, Modules::Prebuilt] {
        assert_eq!(outcome(&s, &s.kernel(), modules).expect("up"), (Origin::Prebuilt, Vec::new()));
        s.fake.remove("/sys/module/mpu");
    }
}

#[test]
fn another_versions_is_passed_over_for_the_hosts_own_or_is_an_error_where_no_other_is_wanted() {
    let s = Setup::new();
    put_prebuilt(&s, "0.0.9");
    put_installed(&s);
    let (origin, why) = outcome(&s, &s.kernel(), Modules::Any).expect("up");
    assert!(origin == Origin::Installed && why[0].contains("is of MPU 0.0.9"), "{why:?}");
    s.fake.remove("/sys/module/mpu");
    let error = outcome(&s, &s.kernel(), Modules::Prebuilt).expect_err("no other");
    assert_eq!((error.code(), error.exit()), ("no_prebuilt", Exit::NotReady));
    assert!(error.to_string().contains("passed over: ") && error.to_string().contains("is of MPU 0.0.9"), "{error}");
    assert!(error.fix().contains("mpu build --for 6.1.0-28-amd64"), "{}", error.fix());
}

#[test]
fn a_packed_one_is_unpacked_only_to_be_loaded() {
    let s = Setup::new();
    put_prebuilt(&s, THIS);
    s.fake.tool("xz", "exec /bin/cat");
    let release = mpu_host::host::fake::RELEASE;
    let packed = s.fake.host().at(prebuilt::FOLDERS[0]).join(release);
    for name in ["mpu.ko", "mpu_next.ko"] {
        std::fs::rename(packed.join(name), packed.join(format!("{name}.xz"))).expect("moved");
    }
    let store = s.fake.host().at("/var/lib/mpu").join(release).join("prebuilt");
    let host = s.fake.host();
    let plan = plan::preflight(&host, &ModuleOptions::default(), Driver::loaded(&host).as_ref());
    assert!(matches!(plan, Ok(Plan::Load(_))), "{plan:?}");
    assert!(!store.exists(), "a question leaves no trace");
    assert_eq!(outcome(&s, &s.kernel(), Modules::Any).expect("up"), (Origin::Prebuilt, Vec::new()));
    assert!(store.join("mpu.ko").is_file() && store.join("mpu_next.ko").is_file());
}

#[test]
fn a_file_that_the_kernel_refuses_is_passed_over_too() {
    let s = Setup::new();
    put_prebuilt(&s, THIS);
    put_installed(&s);
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::ENOEXEC);
    let (origin, why) = outcome(&s, &kernel, Modules::Any).expect("up");
    assert!(origin == Origin::Installed && why[0].contains("is refused by the kernel: Exec format error"), "{why:?}");
    s.fake.remove("/sys/module/mpu");

    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::ENOEXEC);
    let error = outcome(&s, &kernel, Modules::Prebuilt).expect_err("no other");
    assert_eq!((error.code(), kernel.calls.get()), ("no_prebuilt", (1, 0)));
    s.fake.can_notify();
    let choice =
        crate::up::after_refusal(&s.fake.host(), mpu_host::config::Asked::Auto, &ModuleOptions::default(), &error);
    assert!(choice.expect("the other engine").why.contains("refused by the kernel"));
}

#[test]
fn a_locked_kernel_gets_signed_ones_only() {
    let s = Setup::new();
    s.fake.remove("/usr/bin/make");
    put_prebuilt(&s, THIS);
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    for modules in [Modules::Any, Modules::Prebuilt] {
        let kernel = s.kernel();
        let error = outcome(&s, &kernel, modules).expect_err("not signed");
        assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("locked_down", Exit::Refused, (0, 0)));
        assert!(error.to_string().contains("carries no signature"), "{error}");
        assert!(error.fix().contains("--sign-key KEY --sign-cert CERT"), "{}", error.fix());
    }
    let path = s.fake.host().at(prebuilt::FOLDERS[0]).join(mpu_host::host::fake::RELEASE).join("mpu.ko");
    let signed = [std::fs::read(&path).expect("a module").as_slice(), b"~Module signature appended~\n"].concat();
    std::fs::write(&path, signed).expect("written");
    // A stranger's: only the kernel can know, and nothing here can be built instead.
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::ENOKEY);
    let error = outcome(&s, &kernel, Modules::Any).expect_err("a stranger's");
    assert_eq!((error.code(), error.exit()), ("load_failed", Exit::Refused));
    assert_eq!(outcome(&s, &s.kernel(), Modules::Any).expect("up").0, Origin::Prebuilt);
}

/// DKMS packs a module as its kernel's are: Ubuntu 24.04 and RHEL have no other.
#[test]
fn one_that_is_named_is_unpacked_too() {
    let s = Setup::new();
    put_prebuilt(&s, THIS);
    s.fake.tool("zstd", "exec /bin/cat");
    let host = s.fake.host();
    let release = mpu_host::host::fake::RELEASE;
    let folder = host.at(prebuilt::FOLDERS[0]).join(release);
    let named = host.at("/root");
    std::fs::create_dir_all(&named).expect("a folder");
    for name in ["mpu.ko", "mpu_next.ko"] {
        std::fs::rename(folder.join(name), named.join(format!("{name}.zst"))).expect("moved");
    }
    let options = ModuleOptions { module: Some(named.join("mpu.ko.zst")), ..ModuleOptions::default() };
    let store = host.at("/var/lib/mpu").join(release).join("given");
    let raised = raised(&host, &s.kernel(), &options).expect("up");
    assert_eq!((raised.origin, raised.module), (Some(Origin::Given), Some(store.join("mpu.ko"))));
    assert!(store.join("mpu_next.ko").is_file(), "a later version takes over by it");
}

#[test]
fn what_is_wrong_with_one_that_is_named_is_said() {
    let s = Setup::new();
    let host = s.fake.host();
    let why = |name: &str| {
        let options = ModuleOptions { module: Some(host.at(name)), ..ModuleOptions::default() };
        let error = raised(&host, &s.kernel(), &options).expect_err(name);
        format!("{}: {}", error.code(), mpu_host::explain::chain(&error))
    };
    s.fake.write("/root/mpu.ko.zst", "packed");
    s.fake.tool("zstd", "exec /bin/cat");
    let no_module = why("/root/mpu.ko.zst");
    assert!(no_module.starts_with("not_our_module: "), "{no_module}");
    s.fake.remove("/usr/bin/zstd");
    let no_tool = why("/root/mpu.ko.zst");
    assert!(no_tool.starts_with("module_packed: ") && no_tool.contains("no zstd on this host"), "{no_tool}");
    let pipe = host.at("/root/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    let no_file = why("/root/pipe");
    assert!(no_file.starts_with("module_unreadable: ") && no_file.ends_with("it is not a plain file"), "{no_file}");
}

#[test]
fn an_installed_one_that_cannot_be_unpacked_is_told_of() {
    let s = Setup::new();
    put_installed(&s);
    let path = s.fake.host().at(format!("/lib/modules/{}/updates/dkms/mpu.ko", mpu_host::host::fake::RELEASE));
    std::fs::rename(&path, path.with_extension("ko.zst")).expect("moved");
    s.fake.remove("/usr/bin/make");
    let error = outcome(&s, &s.kernel(), Modules::Any).expect_err("nothing is left");
    assert!(error.to_string().contains("mpu.ko.zst cannot be unpacked: there is no zstd on this host"), "{error}");
    // The same where the kernel has refused another one before.
    put_prebuilt(&s, THIS);
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().push(libc::ENOEXEC);
    let error = outcome(&s, &kernel, Modules::Any).expect_err("nothing is left");
    assert!(error.to_string().contains("there is no zstd on this host"), "{error}");
}
