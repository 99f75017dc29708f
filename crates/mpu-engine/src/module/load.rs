//! Into the kernel and out of it again.
//!
//! Owns the two system calls (behind [`Kernel`], so that tests need no kernel) and the rule that a module which could
//! not place its redirects does not stay.

use super::error::ModuleError;
use super::holders::{self, Held};
use super::load_error::{is_refusal, LoadError};
use super::state::{self, Instance, Phase, State};
use crate::signing;
use mpu_host::driver::Driver;
use mpu_host::host::Host;
use mpu_host::progress::Progress;
use rustix::fs::OFlags;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The kernel's side of loading.
pub trait Kernel {
    /// `finit_module`. The name is the file's; it is said for those who must not ask the file.
    fn insert(&self, instance: Instance, module: &File, parameters: &CStr) -> io::Result<()>;
    /// `delete_module`, without waiting for references to go.
    fn remove(&self, instance: Instance) -> io::Result<()>;
    /// Has the module let its callers go and take its redirects out, within that time: a write to its `retire`. A
    /// module without the file is one of format 1, and "not found".
    fn retire(&self, host: &Host, instance: Instance, patience: Duration) -> io::Result<()> {
        let mut file = File::options().write(true).open(host.at(instance.parameter("retire")))?;
        file.write_all(format!("{}\n", patience.as_millis()).as_bytes())
    }
    /// Marks the end of the kernel's log.
    fn mark_log(&self) -> Option<File>;
    /// Whether this is the kernel of that host. The running kernel belongs to no host that is seen through another
    /// root.
    fn is_for(&self, host: &Host) -> bool {
        host.is_this()
    }
}

/// The kernel that runs us.
pub struct Running;

impl Kernel for Running {
    fn insert(&self, _: Instance, module: &File, parameters: &CStr) -> io::Result<()> {
        Ok(rustix::system::finit_module(module, parameters, 0)?)
    }

    fn remove(&self, instance: Instance) -> io::Result<()> {
        let name = CString::new(instance.name())?;
        Ok(rustix::system::delete_module(&name, OFlags::NONBLOCK.bits() as i32)?)
    }

    fn mark_log(&self) -> Option<File> {
        let flags = OFlags::NONBLOCK.bits() as i32;
        let mut log = File::options().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
        log.seek(SeekFrom::End(0)).ok()?;
        Some(log)
    }
}

/// Whether what was found on the host is about the kernel that would be changed.
pub fn same_host(host: &Host, kernel: &dyn Kernel) -> Result<(), LoadError> {
    if kernel.is_for(host) {
        Ok(())
    } else {
        Err(LoadError::OtherRoot { root: host.at("/") })
    }
}

/// Loads a module with a policy and waits for its word. A module that was refused a redirect is taken out again.
pub fn insert(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    path: &Path,
    policy: &str,
) -> Result<State, ModuleError> {
    let at = |source| LoadError::Open { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(at)?;
    let parameters = if policy.is_empty() { String::new() } else { format!("policy=\"{policy}\"") };
    let parameters = CString::new(parameters).map_err(|error| at(error.into()))?;
    let log = kernel.mark_log();
    if let Err(source) = kernel.insert(instance, &file, &parameters) {
        if source.raw_os_error() == Some(libc::ETIMEDOUT) {
            let (inside, held) = inside(host, instance.other());
            return Err(LoadError::Drain { inside, held }.into());
        }
        let log = log.map(last_words).unwrap_or_default();
        let for_its_signature = is_refusal(&source) && signing::demanded(host);
        let release = host.release().unwrap_or_default();
        let advice = for_its_signature.then(|| signing::advice(host, &release, Some(path)));
        return Err(LoadError::Insert { path: path.to_path_buf(), log, advice, source }.into());
    }
    let state = match state::read_of(host, instance) {
        Ok(Some(state)) => state,
        Ok(None) => return Err(take_out(host, kernel, instance, LoadError::Mute.into())),
        Err(error) => return Err(take_out(host, kernel, instance, error.into())),
    };
    if let Phase::Refused { symbol, errno } = &state.phase {
        let error = LoadError::Redirect { symbol: symbol.clone(), errno: *errno };
        return Err(take_out(host, kernel, instance, error.into()));
    }
    Ok(state)
}

/// Sees that a module which waits has a reason to: a driver that is loaded but was not found is one that this module
/// does not fit.
pub fn attached(host: &Host, kernel: &dyn Kernel, state: State, driver: Option<&Driver>) -> Result<State, ModuleError> {
    let (Phase::Waiting, Some(driver)) = (&state.phase, driver) else { return Ok(state) };
    // It may have been loaded, or unloaded, while we were.
    thread::sleep(Duration::from_millis(100));
    let now = state::read(host)?.ok_or(LoadError::Mute)?;
    if now.phase == Phase::Waiting && Driver::loaded(host).is_some() {
        let error = LoadError::Unattached { version: driver.version.clone() };
        return Err(take_out(host, kernel, now.instance, error.into()));
    }
    Ok(now)
}

/// Undoes a load that came to nothing. The reason for it is what the caller must hear, whatever becomes of this.
fn take_out(host: &Host, kernel: &dyn Kernel, instance: Instance, reason: ModuleError) -> ModuleError {
    let _ = remove(host, kernel, instance, Duration::from_secs(5), "mpu up");
    reason
}

/// What the module takes for one wait: a longer one is several.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Unloading a retired module takes no longer, unless somebody holds it: readers of its files are gone in a moment.
const SHORTEST_TRY: Duration = Duration::from_secs(2);

/// Unloads the module, in two steps. It is told to retire first: new callers go to the bare driver at once, those
/// inside have the time to leave, and then the redirects are taken out; if somebody stays inside, all is as before, and
/// the error says who. Then the kernel is asked to let the retired module go, and asked again while something holds a
/// reference. `again` is the command that may be tried again.
///
/// A module of format 1 cannot be told: it waits for callers within the system call.
pub fn remove(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    patience: Duration,
    again: &'static str,
) -> Result<(), LoadError> {
    let began = Instant::now();
    let _progress = Progress::of("waiting for callers to leave the driver");
    let retired = retire(host, kernel, instance, patience, again)?;
    let patience =
        if retired { patience.saturating_sub(began.elapsed()).max(SHORTEST_TRY.min(patience)) } else { patience };
    let began_to_unload = Instant::now();
    loop {
        match kernel.remove(instance) {
            Ok(()) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(source) => return Err(LoadError::Remove { source }),
        }
        if began_to_unload.elapsed() >= patience {
            let (inside, held) = inside(host, instance);
            let waited = began.elapsed();
            let is_retired = matches!(state::read_of(host, instance), Ok(Some(state)) if state.phase == Phase::Retired);
            return Err(match is_retired {
                true => LoadError::Kept { inside, held, waited, again },
                false => LoadError::Busy { inside, held, waited, again },
            });
        }
        thread::sleep(Duration::from_millis(50).min(patience));
    }
}

/// Tells the module to retire, and waits for it; whether it is one that can be told.
fn retire(
    host: &Host,
    kernel: &dyn Kernel,
    instance: Instance,
    patience: Duration,
    again: &'static str,
) -> Result<bool, LoadError> {
    let began = Instant::now();
    loop {
        // Whole milliseconds are what can be told: a begun one counts.
        let left = patience.saturating_sub(began.elapsed()).as_micros().div_ceil(1000);
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX));
        let Err(source) = kernel.retire(host, instance, left.min(LONGEST_WAIT)) else { return Ok(true) };
        match source.raw_os_error() {
            // One of format 1, or none any more.
            Some(libc::ENOENT) => return Ok(false),
            Some(libc::EBUSY) if left > LONGEST_WAIT => {}
            Some(libc::EBUSY) => {
                let (inside, held) = inside(host, instance);
                return Err(LoadError::Busy { inside, held, waited: began.elapsed(), again });
            }
            Some(libc::EIO) => return Err(LoadError::Stuck),
            _ => return Err(LoadError::Retire { source }),
        }
    }
}

/// Who is inside an instance.
fn inside(host: &Host, instance: Instance) -> (u64, Vec<Held>) {
    match state::read_of(host, instance) {
        Ok(Some(state)) => (state.inside, holders::look(host, &state)),
        _ => (0, Vec::new()),
    }
}

/// The newest line that the kernel wrote about us since the mark.
fn last_words(mut log: File) -> String {
    let mut words = String::new();
    let mut record = [0u8; 8192];
    // Each read of /dev/kmsg gives one record, `priority,number,time,flags;text`.
    while let Ok(len @ 1..) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..len]).into_owned();
        let line = text.split_once(';').map_or("", |(_, rest)| rest).lines().next().unwrap_or("");
        if line.starts_with("mpu") || ["module", "ELF", "ockdown"].iter().any(|word| line.contains(word)) {
            words = line.trim().to_string();
        }
    }
    words
}

#[cfg(any(test, feature = "fake"))]
pub mod fake {
    //! A kernel for tests: what it does to a fake host is what the module would show.

    use super::*;
    use mpu_host::host::fake::FakeHost;
    use std::cell::{Cell, RefCell};

    /// Answers in order; an empty list means that all goes well.
    pub struct FakeKernel<'a> {
        /// The host whose sysfs it fills.
        pub host: &'a FakeHost,
        /// What a loaded module says in its state file.
        pub state: &'a str,
        /// Errnos of the next insertions, 0 for success.
        pub inserts: RefCell<Vec<i32>>,
        /// Errnos of the next removals.
        pub removes: RefCell<Vec<i32>>,
        /// Errnos of the next retirements; of none is left, a module with the file retires.
        pub retires: RefCell<Vec<i32>>,
        /// The milliseconds that it was told for each.
        pub told: RefCell<Vec<u128>>,
        /// How many times each was called.
        pub calls: Cell<(usize, usize)>,
    }

    impl<'a> FakeKernel<'a> {
        /// A kernel that takes everything and whose module says `state`.
        pub fn taking(host: &'a FakeHost, state: &'a str) -> FakeKernel<'a> {
            FakeKernel {
                host,
                state,
                inserts: RefCell::default(),
                removes: RefCell::default(),
                retires: RefCell::default(),
                told: RefCell::default(),
                calls: Cell::default(),
            }
        }
    }

    fn text(path: &Path) -> &str {
        path.to_str().expect("a path of ours")
    }

    fn next(list: &RefCell<Vec<i32>>) -> io::Result<()> {
        let mut list = list.borrow_mut();
        let errno = if list.is_empty() { 0 } else { list.remove(0) };
        if errno == 0 {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(errno))
        }
    }

    impl Kernel for FakeKernel<'_> {
        fn insert(&self, instance: Instance, _: &File, parameters: &CStr) -> io::Result<()> {
            let (inserted, removed) = self.calls.get();
            self.calls.set((inserted + 1, removed));
            next(&self.inserts)?;
            if instance.is_loaded(&self.host.host()) {
                return Err(io::Error::from_raw_os_error(libc::EEXIST));
            }
            let other = instance.other();
            if other.is_loaded(&self.host.host()) {
                self.host.write(text(&other.parameter("state")), "version=0\nstate=retired\n");
            }
            self.host.write(text(&instance.parameter("state")), self.state);
            let counters = "translated.GPU_GET_PIDS=0\npassed.no_memory=0\n";
            self.host.write(text(&instance.parameter("counters")), counters);
            let policy = parameters.to_string_lossy();
            let policy = policy.strip_prefix("policy=\"").and_then(|rest| rest.strip_suffix('"')).unwrap_or("");
            self.host.write(text(&instance.parameter("policy")), policy);
            Ok(())
        }

        fn remove(&self, instance: Instance) -> io::Result<()> {
            let (inserted, removed) = self.calls.get();
            self.calls.set((inserted, removed + 1));
            next(&self.removes)?;
            self.host.remove(&format!("/sys/module/{}", instance.name()));
            Ok(())
        }

        fn retire(&self, host: &Host, instance: Instance, patience: Duration) -> io::Result<()> {
            let path = instance.parameter("state");
            let state = host.text(&path).unwrap_or_default();
            if !state.contains("abi=2") {
                return Err(io::Error::from_raw_os_error(libc::ENOENT));
            }
            self.told.borrow_mut().push(patience.as_millis());
            let done = next(&self.retires);
            if done.is_ok() {
                self.host.write(text(&path), "version=0.1.0\nabi=2\nstate=retired\ninside=0\n");
            }
            done
        }

        fn mark_log(&self) -> Option<File> {
            None
        }

        fn is_for(&self, _: &Host) -> bool {
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::FakeKernel;
    use super::*;
    use crate::module::state::ARMED;
    use mpu_host::exit::Exit;
    use mpu_host::explain::Explain;
    use mpu_host::host::fake::FakeHost;
    use std::path::PathBuf;

    fn module(fake: &FakeHost) -> PathBuf {
        fake.write("/mpu.ko", "module");
        fake.host().at("/mpu.ko")
    }

    #[test]
    fn a_loaded_module_is_asked_for_its_state() {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, ARMED);
        let state = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), "").expect("loaded");
        assert_eq!((state.phase, kernel.calls.get()), (Phase::Armed, (1, 0)));
    }

    #[test]
    fn a_refused_module_does_not_stay() {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, "version=0.1.0\nstate=refused\nrefused=os_find_ns_pid:-16\n");
        let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), "").expect_err("refused");
        assert_eq!((error.code(), error.exit()), ("redirect_refused", Exit::Refused));
        assert!(error.to_string().contains("os_find_ns_pid: another module has redirected it already"), "{error}");
        assert_eq!(kernel.calls.get(), (1, 1));
        assert!(!state::is_loaded(&fake.host()));
    }

    #[test]
    fn a_module_that_says_nothing_does_not_stay() {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, "");
        let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), "").expect_err("mute");
        assert_eq!(error.code(), "state_malformed");
        assert!(!state::is_loaded(&fake.host()));
    }

    #[test]
    fn errnos_of_loading_become_exit_codes() {
        let fake = FakeHost::in_order();
        let check = |errno: i32, exit: Exit| {
            let kernel = FakeKernel::taking(&fake, ARMED);
            kernel.inserts.borrow_mut().push(errno);
            let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), "").expect_err("not taken");
            assert_eq!((error.code(), error.exit()), ("load_failed", exit), "errno {errno}");
            assert!(!state::is_loaded(&fake.host()));
        };
        check(libc::EPERM, Exit::Refused);
        check(libc::EKEYREJECTED, Exit::Refused);
        check(libc::ENOEXEC, Exit::Failed);
        check(libc::EINVAL, Exit::Failed);
    }

    #[test]
    fn unloading_waits_for_callers_but_not_for_ever() {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, ARMED);
        insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), "").expect("loaded");
        kernel.removes.borrow_mut().extend([libc::EAGAIN, libc::EAGAIN]);
        remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_secs(5), "mpu down")
            .expect("unloaded at the third try");
        assert_eq!(kernel.calls.get(), (1, 3));

        fake.write("/sys/module/mpu/parameters/state", "version=1\nstate=armed\ninside=3\n");
        kernel.removes.borrow_mut().extend([libc::EAGAIN; 100]);
        let error =
            remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_millis(20), "mpu down").expect_err("busy");
        assert!(matches!(error, LoadError::Busy { inside: 3, .. }), "{error:?}");
        assert!(state::is_loaded(&fake.host()));
    }

    /// A module of format 2 with callers inside.
    fn held(fake: &FakeHost) -> FakeKernel<'_> {
        fake.write("/sys/module/mpu/parameters/state", state::HELD);
        fake.write("/proc/4242/comm", "python3\n");
        FakeKernel::taking(fake, state::HELD)
    }

    #[test]
    fn whoever_stays_inside_is_named_and_the_module_goes_on_as_before() {
        let fake = FakeHost::in_order();
        let kernel = held(&fake);
        kernel.retires.borrow_mut().push(libc::EBUSY);
        let before = fake.snapshot();
        let try_it = || remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_secs(10), "mpu down");
        let error = try_it().expect_err("held");
        assert_eq!((error.code(), error.exit(), kernel.calls.get()), ("in_use", Exit::Failed, (0, 0)));
        let said = error.to_string();
        assert!(said.contains("nothing was changed") && said.contains("process 4242 (python3)"), "{said}");
        assert!(error.fix().contains("then run `mpu down` again"), "{}", error.fix());
        assert_eq!((fake.snapshot(), kernel.told.borrow().as_slice()), (before, &[10_000][..]));
        try_it().expect("they have left");
        assert_eq!((kernel.calls.get(), state::is_loaded(&fake.host())), ((0, 1), false));
    }

    #[test]
    fn a_module_takes_a_minute_at_most_and_a_longer_wait_is_several() {
        let fake = FakeHost::in_order();
        let kernel = held(&fake);
        kernel.retires.borrow_mut().extend([libc::EBUSY, libc::EBUSY]);
        let patience = Duration::from_secs(3600);
        remove(&fake.host(), &kernel, Instance::Mpu, patience, "mpu down").expect("unloaded at the third try");
        assert_eq!(*kernel.told.borrow(), [60_000; 3]);
    }

    #[test]
    fn a_retired_module_that_is_held_says_that_it_translates_nothing() {
        let fake = FakeHost::in_order();
        let kernel = held(&fake);
        kernel.removes.borrow_mut().extend([libc::EAGAIN; 100]);
        let error =
            remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_millis(20), "mpu down").expect_err("kept");
        assert!(matches!(error, LoadError::Kept { inside: 0, .. }), "{error:?}");
        kernel.removes.borrow_mut().clear();
        remove(&fake.host(), &kernel, Instance::Mpu, Duration::from_millis(20), "mpu down")
            .expect("it can be repeated");
    }

    #[test]
    fn a_redirect_that_the_kernel_keeps_leaves_a_module_until_the_next_boot() {
        let fake = FakeHost::in_order();
        let kernel = held(&fake);
        kernel.retires.borrow_mut().push(libc::EIO);
        let error = remove(&fake.host(), &kernel, Instance::Mpu, Duration::ZERO, "mpu down").expect_err("stuck");
        assert_eq!((error.code(), kernel.calls.get()), ("stuck", (0, 0)));
        assert!(error.fix().contains("reboot"));
    }

    #[test]
    fn function_tracing_that_is_off_is_not_a_function_of_the_driver() {
        let fake = FakeHost::in_order();
        let kernel =
            FakeKernel::taking(&fake, "version=0.1.0\nabi=2\nstate=refused\nrefused=kernel.ftrace_enabled:16\n");
        let error = insert(&fake.host(), &kernel, Instance::Mpu, &module(&fake), "").expect_err("refused");
        assert_eq!((error.code(), error.exit()), ("redirect_refused", Exit::Refused));
        assert!(
            error.to_string().contains("kernel.ftrace_enabled = 0") && error.fix().contains("ftrace_enabled=1"),
            "{error}"
        );
        assert!(!error.to_string().contains("driver"), "{error}");
    }

    #[test]
    fn a_module_that_is_gone_already_is_no_error() {
        let fake = FakeHost::in_order();
        let kernel = FakeKernel::taking(&fake, ARMED);
        kernel.removes.borrow_mut().push(libc::ENOENT);
        remove(&fake.host(), &kernel, Instance::Mpu, Duration::ZERO, "mpu down").expect("nothing to do");
        kernel.removes.borrow_mut().push(libc::EPERM);
        assert_eq!(
            remove(&fake.host(), &kernel, Instance::Mpu, Duration::ZERO, "mpu down").expect_err("not allowed").exit(),
            Exit::Refused
        );
    }

    #[test]
    fn the_kernels_words_about_us_are_kept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("kmsg");
        std::fs::write(&path, "4,1,2,-;mpu: version magic '6.1' should be '6.2'\n SUBSYSTEM=x\n").expect("a file");
        assert_eq!(last_words(File::open(path).expect("a file")), "mpu: version magic '6.1' should be '6.2'");
    }
}
