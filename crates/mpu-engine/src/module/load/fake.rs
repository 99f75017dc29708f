//! A fake kernel: it changes a fake host as the module would.

use super::*;
use mpu_host::host::fake::FakeHost;
use std::cell::{Cell, RefCell};

/// Answers in order; an empty list means success.
pub struct FakeKernel<'a> {
    pub host: &'a FakeHost,
    /// The state file of a loaded module.
    pub state: &'a str,
    /// The state files of the next modules, in order.
    pub states: RefCell<Vec<String>>,
    /// Errnos of the next insertions, 0 for success.
    pub inserts: RefCell<Vec<i32>>,
    pub removes: RefCell<Vec<i32>>,
    /// Errnos of the next retirements. When the list is empty, a module with the file retires.
    pub retires: RefCell<Vec<i32>>,
    pub retire_timeouts: RefCell<Vec<u128>>,
    pub calls: Cell<(usize, usize)>,
}

impl<'a> FakeKernel<'a> {
    /// A kernel that accepts everything, and a module with this `state`.
    pub fn taking(host: &'a FakeHost, state: &'a str) -> FakeKernel<'a> {
        FakeKernel {
            host,
            state,
            states: RefCell::default(),
            inserts: RefCell::default(),
            removes: RefCell::default(),
            retires: RefCell::default(),
            retire_timeouts: RefCell::default(),
            calls: Cell::default(),
        }
    }
}

impl FakeKernel<'_> {
    fn retire_other(&self, instance: Instance) {
        let other = instance.other();
        if other.is_loaded(&self.host.host()) {
            self.host.write(text(&other.parameter("state")), "version=0\nstate=retired\n");
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

fn next(list: &RefCell<Vec<i32>>) -> io::Result<()> {
    let mut list = list.borrow_mut();
    let errno = if list.is_empty() { 0 } else { list.remove(0) };
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

impl Kernel for FakeKernel<'_> {
    fn insert(&self, instance: Instance, _: &File, parameters: &CStr) -> io::Result<()> {
        let (inserted, removed) = self.calls.get();
        self.calls.set((inserted + 1, removed));
        next(&self.inserts)?;
        if instance.is_loaded(&self.host.host()) {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        let mut states = self.states.borrow_mut();
        let state = if states.is_empty() { self.state.to_string() } else { states.remove(0) };
        // A module that did not take over leaves the other one at work.
        if !state.contains("=retired") && !state.contains("=refused") {
            self.retire_other(instance);
        }
        self.host.write(text(&instance.parameter("state")), &state);
        let counters = "translated.GPU_GET_PIDS=0\npassed.no_memory=0\n";
        self.host.write(text(&instance.parameter("counters")), counters);
        let words = parameters.to_string_lossy();
        let (_, policy) = words.split_once("policy=\"").unwrap_or_default();
        let (policy, _) = policy.split_once('"').unwrap_or_default();
        self.host.write(text(&instance.parameter("policy")), policy);
        let (_, redirect) = words.split_once("redirect=").unwrap_or(("", "auto"));
        self.host.write(text(&instance.parameter("redirect")), redirect);
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
        self.retire_timeouts.borrow_mut().push(patience.as_millis());
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
