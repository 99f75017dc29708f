//! Raises the module on fake hosts, and ends early at each place.

use super::fake::{BUILDS_BOTH, Setup};
use super::*;
use crate::module::load::fake::FakeKernel;
use crate::module::prebuilt::FOLDERS;
use crate::module::{foreign, prebuilt};
use crate::signing;
use mpu_host::config::{EngineSetting, Modules};
use mpu_host::host::fake::RELEASE;
use std::fs;

const THIS: &str = env!("CARGO_PKG_VERSION");
const STATE: &str = "/sys/module/mpu/parameters/state";

fn unload(s: &Setup) {
    let _ = fs::remove_dir_all(s.fake.host().at("/sys/module/mpu"));
}

fn raised(s: &Setup, kernel: &dyn Kernel, options: &ModuleOptions) -> Result<Raised, ModuleError> {
    let (host, driver) = (s.fake.host(), Driver::loaded(&s.fake.host()));
    raise(&host, kernel, plan::preflight(&host, options, driver.as_ref())?, options, driver.as_ref())
}

/// The result of a raise with these options: how, and whether it was built.
fn up(s: &Setup, kernel: &dyn Kernel, options: &ModuleOptions) -> Result<(How, bool), ModuleError> {
    raised(s, kernel, options).map(|raised| (raised.how, raised.built_in.is_some()))
}

/// Expects this failure, after so many insertions and removals.
fn fails(
    s: &Setup,
    kernel: &FakeKernel<'_>,
    options: &ModuleOptions,
    expect: (&str, Exit, (usize, usize)),
) -> ModuleError {
    let error = raised(s, kernel, options).expect_err(expect.0);
    assert_eq!((error.code(), error.exit(), kernel.calls.get()), expect, "{error}");
    error
}

/// A kernel that answers insertions with these errnos.
fn answers<'a>(s: &'a Setup, errnos: &[i32]) -> FakeKernel<'a> {
    let kernel = s.kernel();
    kernel.inserts.borrow_mut().extend(errnos);
    kernel
}

#[test]
fn running_module_state_decides_action() {
    let s = Setup::new();
    s.fake.write(STATE, "version=0.0.9\nstate=armed\n");
    let error = fails(&s, &s.kernel(), &s.options(), ("other_version_up", Exit::Failed, (0, 0)));
    assert!(error.fix().contains("mpu up --replace"));
    s.fake.write(STATE, "version=0.1.0\nabi=2\nstate=stuck\n");
    for replace in [false, true] {
        fails(&s, &s.kernel(), &ModuleOptions { replace, ..s.options() }, ("stuck", Exit::Failed, (0, 0)));
    }
    // One that was refused, or waits beside a driver, is loaded anew.
    for (state, built) in [("refused\nrefused=os_find_ns_pid:16", true), ("waiting", false)] {
        s.fake.write(STATE, &format!("version=0.1.0\nstate={state}\n"));
        let kernel = s.kernel();
        assert_eq!(up(&s, &kernel, &s.options()).expect("up"), (How::Loaded, built), "{state}");
        assert_eq!(kernel.calls.get(), (1, 1));
    }
}

#[test]
fn foreign_twin_stops_only_swap() {
    let s = Setup::new();
    foreign::fake::load(&s.fake, "mpu_next");
    s.fake.write(STATE, "version=0.0.9\nstate=armed\n");
    let before = s.fake.snapshot();
    let replace = ModuleOptions { replace: true, ..s.options() };
    fails(&s, &s.kernel(), &replace, ("foreign_module", Exit::Refused, (0, 0)));
    assert_eq!(s.fake.snapshot(), before);
    s.fake.write(STATE, state::ARMED);
    assert_eq!(up(&s, &s.kernel(), &s.options()).expect("up"), (How::AlreadyUp, false));
}

#[test]
fn module_is_loaded_with_policy_and_redirect() {
    let s = Setup::new();
    let policy = "host /a".to_string();
    for (redirect, expected) in
        [(Redirect::Auto, "auto"), (Redirect::Direct, "direct"), (Redirect::Ipmodify, "ipmodify")]
    {
        let options = ModuleOptions { redirect, policy: policy.clone(), ..s.options() };
        up(&s, &s.kernel(), &options).expect("up");
        let parameter = |name| s.fake.host().text(Instance::Mpu.parameter(name)).expect("written");
        assert_eq!((parameter("redirect").trim(), parameter("policy").trim()), (expected, &*policy));
        unload(&s);
    }
    let plain = Parameters { policy: "", redirect: Redirect::Auto };
    assert_eq!(plain.module_arguments(), "", "an older module knows no such name");
    // A missing way is named; no build is tried.
    let options = ModuleOptions { redirect: Redirect::Direct, ..s.options() };
    let error = fails(&s, &answers(&s, &[libc::EOPNOTSUPP]), &options, ("load_failed", Exit::Failed, (1, 0)));
    assert!(error.fix().contains("`redirect` in /etc/mpu/config.toml"), "{}", error.fix());
}

#[test]
fn module_without_driver_functions_is_unloaded() {
    let s = Setup::new();
    let kernel = FakeKernel::taking(&s.fake, "version=0.1.0\nstate=waiting\nhooks=\ninside=0\n");
    let error = fails(&s, &kernel, &s.options(), ("driver_not_found", Exit::Failed, (1, 1)));
    assert!(error.to_string().contains("550.163.01"), "{error}");
}

#[test]
fn refused_stored_module_is_rebuilt_once() {
    let s = Setup::new();
    up(&s, &s.kernel(), &s.options()).expect("up");
    unload(&s);
    let kernel = answers(&s, &[libc::ENOEXEC]);
    assert_eq!(up(&s, &kernel, &s.options()).expect("up at the second try"), (How::Loaded, true));
    assert_eq!(kernel.calls.get(), (2, 0));
    unload(&s);
    let kernel = answers(&s, &[libc::ENOEXEC, libc::ENOEXEC]);
    fails(&s, &kernel, &s.options(), ("load_failed", Exit::Failed, (2, 0)));

    up(&s, &s.kernel(), &s.options()).expect("up");
    unload(&s);
    s.fake.remove("/usr/bin/gcc-12");
    s.fake.remove("/usr/bin/make");
    assert_eq!(up(&s, &s.kernel(), &s.options()).expect("up without a compiler"), (How::Loaded, false));
    unload(&s);
    let build_only = ModuleOptions { build_only: true, ..s.options() };
    fails(&s, &s.kernel(), &build_only, ("no_compiler", Exit::NotReady, (0, 0)));
}

#[test]
fn locked_kernel_gets_modules_signed_with_owners_key() {
    const SIGNS: &str = "printf '~Module signature appended~\\n' >>\"$4\"";
    let s = Setup::new();
    s.fake.tool("make", BUILDS_BOTH);
    let code = || {
        unload(&s);
        up(&s, &s.kernel(), &s.options()).map_err(|error| error.code())
    };
    s.fake.write("/sys/module/module/parameters/sig_enforce", "Y\n");
    assert_eq!(code(), Err("signatures_enforced"));
    s.fake.write("/var/lib/dkms/mok.key", "private");
    s.fake.write("/var/lib/dkms/mok.pub", "certificate");
    assert_eq!(code(), Err("signatures_enforced"), "nothing to sign with");
    s.fake.tool("kmodsign", "echo 'bad key' >&2; exit 1");
    assert_eq!(code(), Err("sign_failed"));
    assert_eq!(code(), Err("sign_failed"), "what is not signed is not kept");
    s.fake.tool("kmodsign", SIGNS);
    assert_eq!(code(), Ok((How::Loaded, true)));
    let store = s.fake.host().at("/var/lib/mpu").join(RELEASE);
    assert!(["mpu.ko", "mpu_next.ko"].iter().all(|name| signing::is_signed(&store.join(name))));
    assert_eq!(code(), Ok((How::Loaded, false)));
    s.fake.write("/var/lib/dkms/mok.pub", "another");
    assert_eq!(code(), Ok((How::Loaded, true)), "another key asks for another module");
    unload(&s);
    let error = fails(&s, &answers(&s, &[libc::ENOKEY]), &s.options(), ("load_failed", Exit::Refused, (1, 0)));
    assert!(error.fix().starts_with("mokutil --import /var/lib/dkms/mok.pub"), "{}", error.fix());
    s.fake.remove("/usr/bin/kmodsign");
    s.fake.remove("/usr/bin/make");
    assert_eq!(code(), Ok((How::Loaded, false)), "a signed one is kept");
}

#[test]
fn concurrent_load_is_reported_as_already_up() {
    struct Raced<'a>(FakeKernel<'a>);
    impl Kernel for Raced<'_> {
        fn insert(&self, instance: Instance, module: &fs::File, with: &std::ffi::CStr) -> std::io::Result<()> {
            self.0.insert(instance, module, with)?;
            Err(std::io::Error::from_raw_os_error(libc::EEXIST))
        }
        fn remove(&self, instance: Instance) -> std::io::Result<()> {
            self.0.remove(instance)
        }
        fn mark_log(&self) -> Option<fs::File> {
            None
        }
        fn is_for(&self, _: &Host) -> bool {
            true
        }
    }
    let s = Setup::new();
    assert_eq!(up(&s, &Raced(s.kernel()), &s.options()).expect("up"), (How::AlreadyUp, false));
    assert!(s.fake.host().at("/sys/module/mpu").exists(), "the other's module stays");
}

fn of(modules: Modules) -> ModuleOptions {
    ModuleOptions { modules, ..ModuleOptions::default() }
}

/// The result of a raise with nothing loaded: the origin, and the reasons to pass others over.
fn outcome(s: &Setup, kernel: &dyn Kernel, modules: Modules) -> Result<(Origin, Vec<String>), ModuleError> {
    unload(s);
    let raised = raised(s, kernel, &of(modules))?;
    let why = raised.passed_over.into_iter().map(|over| over.why).collect();
    Ok((raised.origin.expect("loaded"), why))
}

fn put_prebuilt(s: &Setup, version: &str) -> PathBuf {
    prebuilt::fake::put(&s.fake, FOLDERS[0], RELEASE, RELEASE, version);
    s.fake.host().at(FOLDERS[0]).join(RELEASE)
}

fn put_installed(s: &Setup) -> PathBuf {
    let path = format!("/lib/modules/{RELEASE}/updates/dkms/mpu.ko");
    s.fake.write(&path, "");
    let path = s.fake.host().at(&path);
    fs::write(&path, sources::fake::module_of("mpu", RELEASE, THIS)).expect("a module");
    path
}

/// Renames both modules as if they were packed.
fn pack(from: &Path, to: &Path, ending: &str) {
    for name in ["mpu.ko", "mpu_next.ko"] {
        fs::rename(from.join(name), to.join(format!("{name}{ending}"))).expect("moved");
    }
}

#[test]
fn prebuilt_comes_before_installed_and_needs_no_headers() {
    let s = Setup::new();
    s.fake.remove(&format!("/lib/modules/{RELEASE}/build"));
    s.fake.remove("/usr/bin/gcc-12");
    s.fake.remove("/usr/bin/make");
    put_installed(&s);
    assert_eq!(outcome(&s, &s.kernel(), Modules::Any).expect("up"), (Origin::Installed, Vec::new()));
    put_prebuilt(&s, THIS);
    for modules in [Modules::Any, Modules::Prebuilt] {
        assert_eq!(outcome(&s, &s.kernel(), modules).expect("up"), (Origin::Prebuilt, Vec::new()));
    }
}

#[test]
fn prebuilt_of_other_version_is_passed_over() {
    let s = Setup::new();
    put_prebuilt(&s, "0.0.9");
    put_installed(&s);
    let (origin, why) = outcome(&s, &s.kernel(), Modules::Any).expect("up");
    assert!(origin == Origin::Installed && why[0].contains("is of MPU 0.0.9"), "{why:?}");
    unload(&s);
    let error = fails(&s, &s.kernel(), &of(Modules::Prebuilt), ("no_prebuilt", Exit::NotReady, (0, 0)));
    assert!(error.to_string().contains("passed over: ") && error.to_string().contains("is of MPU 0.0.9"), "{error}");
    assert!(error.fix().contains("mpu build --for 6.1.0-28-amd64"), "{}", error.fix());
}

#[test]
fn packed_prebuilt_is_unpacked_only_to_be_loaded() {
    let s = Setup::new();
    s.fake.tool("xz", "exec /bin/cat");
    let folder = put_prebuilt(&s, THIS);
    pack(&folder, &folder, ".xz");
    let (host, store) = (s.fake.host(), s.fake.host().at("/var/lib/mpu").join(RELEASE).join("prebuilt"));
    let plan = plan::preflight(&host, &ModuleOptions::default(), Driver::loaded(&host).as_ref());
    assert!(matches!(plan, Ok(Plan::Load(_))), "{plan:?}");
    assert!(!store.exists(), "a question leaves no trace");
    assert_eq!(outcome(&s, &s.kernel(), Modules::Any).expect("up"), (Origin::Prebuilt, Vec::new()));
    assert!(store.join("mpu.ko").is_file() && store.join("mpu_next.ko").is_file());
}

#[test]
fn prebuilt_module_refused_by_kernel_is_passed_over() {
    let s = Setup::new();
    put_prebuilt(&s, THIS);
    put_installed(&s);
    let (origin, why) = outcome(&s, &answers(&s, &[libc::ENOEXEC]), Modules::Any).expect("up");
    assert!(origin == Origin::Installed && why[0].contains("is refused by the kernel: Exec format error"), "{why:?}");
    unload(&s);
    let kernel = answers(&s, &[libc::ENOEXEC]);
    let error = fails(&s, &kernel, &of(Modules::Prebuilt), ("no_prebuilt", Exit::NotReady, (1, 0)));
    s.fake.can_notify();
    let choice = crate::up::after_refusal(&s.fake.host(), EngineSetting::Auto, &ModuleOptions::default(), &error);
    assert!(choice.expect("the other engine").why.contains("refused by the kernel"));
}

#[test]
fn locked_kernel_gets_signed_prebuilt_only() {
    let s = Setup::new();
    s.fake.remove("/usr/bin/make");
    let path = put_prebuilt(&s, THIS).join("mpu.ko");
    s.fake.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    for modules in [Modules::Any, Modules::Prebuilt] {
        let error = fails(&s, &s.kernel(), &of(modules), ("locked_down", Exit::Refused, (0, 0)));
        assert!(error.to_string().contains("carries no signature"), "{error}");
        assert!(error.fix().contains("--sign-key KEY --sign-cert CERT"), "{}", error.fix());
    }
    let signed = [fs::read(&path).expect("a module").as_slice(), b"~Module signature appended~\n"].concat();
    fs::write(&path, signed).expect("written");
    // A foreign key: only the kernel can judge it, and nothing can be built here.
    fails(&s, &answers(&s, &[libc::ENOKEY]), &of(Modules::Any), ("load_failed", Exit::Refused, (1, 0)));
    assert_eq!(outcome(&s, &s.kernel(), Modules::Any).expect("up").0, Origin::Prebuilt);
}

/// DKMS packs a module like its kernel's modules; Ubuntu 24.04 and RHEL have no other form.
#[test]
fn named_module_is_unpacked() {
    let s = Setup::new();
    s.fake.tool("zstd", "exec /bin/cat");
    let (folder, named) = (put_prebuilt(&s, THIS), s.fake.host().at("/root"));
    fs::create_dir_all(&named).expect("a folder");
    pack(&folder, &named, ".zst");
    let options = ModuleOptions { module: Some(named.join("mpu.ko.zst")), ..ModuleOptions::default() };
    let store = s.fake.host().at("/var/lib/mpu").join(RELEASE).join("given");
    let raised = raised(&s, &s.kernel(), &options).expect("up");
    assert_eq!((raised.origin, raised.module), (Some(Origin::Given), Some(store.join("mpu.ko"))));
    assert!(store.join("mpu_next.ko").is_file(), "a later version takes over by it");
}

#[test]
fn named_file_without_module_is_refused() {
    let s = Setup::new();
    let host = s.fake.host();
    let check = |name: &str, code: &str, expected: &str| {
        let options = ModuleOptions { module: Some(host.at(name)), ..ModuleOptions::default() };
        let error = raised(&s, &s.kernel(), &options).expect_err(name);
        assert!(error.code() == code && mpu_host::explain::chain(&error).contains(expected), "{error:?}");
    };
    s.fake.write("/root/mpu.ko.zst", "packed");
    s.fake.tool("zstd", "exec /bin/cat");
    check("/root/mpu.ko.zst", "not_our_module", "");
    s.fake.remove("/usr/bin/zstd");
    check("/root/mpu.ko.zst", "module_packed", "no zstd on this host");
    let pipe = host.at("/root/pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a FIFO");
    check("/root/pipe", "module_unreadable", "it is not a file");
}

#[test]
fn installed_module_without_its_tool_is_passed_over() {
    let s = Setup::new();
    let path = put_installed(&s);
    fs::rename(&path, path.with_extension("ko.zst")).expect("moved");
    s.fake.remove("/usr/bin/make");
    let no_tool = "mpu.ko.zst cannot be unpacked: there is no zstd on this host";
    let error = outcome(&s, &s.kernel(), Modules::Any).expect_err("nothing is left");
    assert!(error.to_string().contains(no_tool), "{error}");
    // The same where the kernel has refused another one before.
    put_prebuilt(&s, THIS);
    let error = outcome(&s, &answers(&s, &[libc::ENOEXEC]), Modules::Any).expect_err("nothing is left");
    assert!(error.to_string().contains(no_tool), "{error}");
}
