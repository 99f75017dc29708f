//! Processes of the host, each held by a descriptor, with the numbers that it has in PID namespaces.
//!
//! Owns that what was read once counts while the process lives and not a moment longer: a process's numbers never change while it
//! lives, and its descriptor tells when it does not. So a number that went to somebody else is never taken for the old one's,
//! and a list that is asked for again costs one poll a row. Also owns who can have made a client of the driver's, which the driver
//! does not tell: it lists a process that has ended by its number for as long as anybody keeps its descriptors. Knows nothing of who
//! may see which number.
//!
//! Outside truth: pidfd_open(2) (readable once the process has ended), proc_pid_status(5) (`NSpid`), pid_namespaces(7).

use super::folder::{field, is_drivers, Folder};
use super::namespace::{Id, Namespace};
use mpu_core::{HostPid, ViewPid};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::process::{getrlimit, pidfd_open, Pid, PidfdFlags, Resource};
use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Processes held for one container at a time; when there are more, all of its are let go. The driver lists 950 of a GPU.
const MOST: usize = 4096;
/// One container has at most this part of the descriptors that all may have.
const PART: usize = 4;

/// Descriptors of one process that are looked at for one of the driver's, in the tables of all its threads; a thread counts as one itself.
const MOST_DESCRIPTORS: usize = 1 << 14;

/// The same for all processes that one call makes us look at: a quarter of a second.
const MOST_OF_A_CALL: usize = 1 << 16;

/// A process's numbers, from its own namespace up to the host's.
type Numbers = Vec<(Id, ViewPid)>;

#[derive(Debug)]
pub(super) struct Process {
    pidfd: OwnedFd,
    numbers: Numbers,
    uses: Mutex<Uses>,
    _counted: Counted,
}

/// Those of all containers: who is held for one of them is known to the others, too, and is one descriptor of this process. Asked only about a
/// process that a container does not hold yet.
#[derive(Debug, Default, Clone)]
pub(super) struct Everybody(Arc<All>);

#[derive(Debug, Default)]
struct All {
    count: AtomicUsize,
    known: Mutex<HashMap<HostPid, Weak<Process>>>,
}

#[derive(Debug)]
struct Counted(Everybody);

impl Everybody {
    fn one_more(&self) -> Counted {
        self.0.count.fetch_add(1, Relaxed);
        Counted(self.clone())
    }

    fn count(&self) -> usize {
        self.0.count.load(Relaxed)
    }

    /// One that lives, so that its number is still its own.
    fn living(&self, pid: HostPid) -> Option<Arc<Process>> {
        let known = self.lock().get(&pid).and_then(Weak::upgrade);
        known.filter(|process| process.lives())
    }

    fn tell(&self, pid: HostPid, process: &Arc<Process>) {
        let mut known = self.lock();
        if known.len() > 2 * self.count() + 64 {
            known.retain(|_, process| process.strong_count() != 0);
        }
        known.insert(pid, Arc::downgrade(process));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<HostPid, Weak<Process>>> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0 .0.count.fetch_sub(1, Relaxed);
    }
}

/// How much one call may still make us look at. A process that there is no room for counts as one without the driver in that call; it is
/// looked at in the next one, since what was found out about others stays.
#[derive(Debug)]
pub(super) struct Look(Cell<usize>);

impl Look {
    pub(super) fn of_a_call() -> Look {
        Look(Cell::new(MOST_OF_A_CALL))
    }
}

/// Whether a process has been seen with a descriptor of the driver's.
#[derive(Debug, Clone, Copy)]
enum Uses {
    /// Once is enough: what it made then may be there yet.
    Yes,
    /// Not so far; looked at again from then on.
    NotBefore(Instant),
    Unknown,
}

impl Process {
    fn new(pidfd: OwnedFd, numbers: Numbers, all: &Everybody) -> Process {
        Process { pidfd, numbers, uses: Mutex::new(Uses::Unknown), _counted: all.one_more() }
    }

    fn lives(&self) -> bool {
        lives(&self.pidfd)
    }

    /// Its number in a namespace.
    pub(super) fn number_in(&self, namespace: Id) -> Option<ViewPid> {
        number_in(namespace, &self.numbers)
    }

    /// Whether it can have made a client of the driver's, as [`Held::uses_the_driver`]; `pid` is its number.
    pub(super) fn uses_the_driver(&self, pid: HostPid, look: &Look) -> bool {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        match *uses {
            Uses::Yes => true,
            Uses::NotBefore(then) if Instant::now() < then => false,
            _ => {
                let began = Instant::now();
                let Some(has) = has_the_driver(pid, look) else { return false };
                // A process with very many descriptors costs us a tenth of a processor at most.
                *uses = if has { Uses::Yes } else { Uses::NotBefore(Instant::now() + 10 * began.elapsed()) };
                has
            }
        }
    }
}

/// All that are held for one container. Each has its own: what one asks about makes nobody be let go who is held for another.
#[derive(Debug, Default)]
pub(super) struct Held {
    known: Mutex<Known>,
    all: Everybody,
}

#[derive(Debug, Default)]
struct Known {
    processes: HashMap<HostPid, Arc<Process>>,
    /// Whose a number was when it was read; what `processes` says of that one counts.
    whose: HashMap<(Id, ViewPid), HostPid>,
}

impl Held {
    /// Nobody yet.
    pub(super) fn among(all: &Everybody) -> Held {
        Held { known: Mutex::default(), all: all.clone() }
    }

    /// A process that is held already, and lives: what is known of it counts, and its number is nobody else's.
    pub(super) fn living(&self, pid: HostPid) -> Option<Arc<Process>> {
        let known = self.lock().processes.get(&pid).cloned();
        known.filter(|process| process.lives())
    }

    /// A process's number in a namespace; none for one that is not in there, and for a thread.
    pub(super) fn view_of(&self, namespace: Id, pid: HostPid) -> Option<ViewPid> {
        match self.living(pid) {
            Some(process) => process.number_in(namespace),
            None => number_in(namespace, &self.look_up(pid)?),
        }
    }

    /// The host's number of a process of a namespace, if it is held.
    pub(super) fn host_of(&self, namespace: Id, view: ViewPid) -> Option<HostPid> {
        let host = self.lock().whose.get(&(namespace, view)).copied()?;
        (self.view_of(namespace, host) == Some(view)).then_some(host)
    }

    /// Whether a process can have made a client of the driver's: it has a descriptor of it, or had one when it was looked at before. A
    /// number that a client's maker left behind, and that a process without got, means nobody.
    pub(super) fn uses_the_driver(&self, pid: HostPid, look: &Look) -> bool {
        let known = self.living(pid).or_else(|| {
            self.look_up(pid);
            self.lock().processes.get(&pid).cloned()
        });
        // One that cannot be held has ended, or there are too many.
        known.map_or_else(|| has_the_driver(pid, look) == Some(true), |process| process.uses_the_driver(pid, look))
    }

    fn look_up(&self, pid: HostPid) -> Option<Numbers> {
        if let Some(process) = self.all.living(pid) {
            let numbers = process.numbers.clone();
            self.lock().keep(pid, process, &self.all);
            return Some(numbers);
        }
        // First, so that what is read by the number is of the process that is held, if that lives even then.
        let pidfd = Pid::from_raw(pid.get() as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let numbers = numbers_of(pid);
        let mut known = self.lock();
        known.processes.remove(&pid);
        let process = pidfd.zip(numbers.clone()).map(|(pidfd, numbers)| Process::new(pidfd, numbers, &self.all));
        if let Some(process) = process.filter(Process::lives).map(Arc::new) {
            self.all.tell(pid, &process);
            known.keep(pid, process, &self.all);
        }
        numbers
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// What there is no room for is not kept, and read anew for each call.
    fn keep(&mut self, pid: HostPid, process: Arc<Process>, all: &Everybody) {
        // Half of the descriptors that this process may have are for other things.
        let most = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize / 2);
        let is_full = self.processes.len() >= MOST.min(most / PART) || self.whose.len() >= 4 * MOST;
        if is_full || all.count() > most {
            *self = Known::default();
        }
        if all.count() <= most {
            self.whose.extend(process.numbers.iter().map(|number| (*number, pid)));
            self.processes.insert(pid, process);
        }
    }
}

/// Whether a process has a descriptor of the driver's, in the table of any of its threads; none if the call may not look so far. A zombie has
/// none any more, whatever it had: it is believed, as is one that may not be looked at.
fn has_the_driver(pid: HostPid, look: &Look) -> Option<bool> {
    let most = MOST_DESCRIPTORS.min(look.0.get());
    let mut left = most;
    let has = most != 0 && is_among(pid, &mut left);
    // A process is a look, too.
    look.0.set(look.0.get().saturating_sub(1 + most - left));
    let is_cut = left == 0 && most < MOST_DESCRIPTORS;
    (has || !is_cut).then_some(has)
}

fn is_among(pid: HostPid, left: &mut usize) -> bool {
    let Ok(folder) = Folder::of_process(pid) else { return false };
    if folder.read("stat").is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))) {
        return true;
    }
    match any_of_the_driver(&folder, "fd", left) {
        Ok(false) => {}
        other => return other.unwrap_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied),
    }
    let own = pid.get().to_string();
    let threads = folder.names("task", *left).unwrap_or_default();
    let mut others = threads.iter().filter(|thread| **thread != own);
    others.any(|thread| {
        *left = left.saturating_sub(1);
        any_of_the_driver(&folder, &format!("task/{thread}/fd"), left).unwrap_or(false)
    })
}

fn any_of_the_driver(folder: &Folder, table: &str, left: &mut usize) -> io::Result<bool> {
    if *left == 0 {
        return Ok(false);
    }
    for name in folder.names(table, *left)? {
        *left -= 1;
        let name = format!("{table}/{name}");
        if folder.is_path(&name) && is_drivers(folder.device(&name).ok().flatten()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a process or thread lives, by a descriptor of it.
pub(super) fn lives(pidfd: &OwnedFd) -> bool {
    let mut readable = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut readable, Some(&Timespec::default())) == Ok(0)
}

fn number_in(namespace: Id, numbers: &Numbers) -> Option<ViewPid> {
    numbers.iter().find(|(id, _)| *id == namespace).map(|(_, number)| *number)
}

/// As `/proc/PID/status` lists them from the host's namespace down to the process's own. All is read through one folder, which does
/// not follow the number to the next who gets it.
fn numbers_of(pid: HostPid) -> Option<Numbers> {
    let folder = Folder::of_process(pid).ok()?;
    let status = folder.read("status").ok()?;
    // A number may be a thread's only.
    if field(&status, "Tgid")?.parse() != Ok(pid.get()) {
        return None;
    }
    let numbers: Vec<u32> = field(&status, "NSpid")?.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let mut at = folder.pid_namespace().and_then(Namespace::new).ok();
    let mut all = Numbers::new();
    for number in numbers.iter().rev() {
        let namespace = at.take()?;
        all.push((namespace.id(), ViewPid::new(*number)?));
        at = namespace.parent().ok();
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleep() -> (Child, HostPid) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = HostPid::new(child.id()).expect("a PID");
        (child, pid)
    }

    #[test]
    fn what_is_known_counts_while_the_process_lives() {
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        let (held, same) = (Held::default(), ViewPid::new(pid.get()).expect("a PID"));
        assert_eq!(held.host_of(own, same), None, "not held yet");
        for _ in 0..2 {
            assert_eq!(held.view_of(own, pid), Some(same));
            assert_eq!(held.host_of(own, same), Some(pid));
            assert_eq!(held.view_of((1, 1), pid), None);
        }
        assert_eq!(held.lock().processes.len(), 1);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert_eq!(held.host_of(own, same), None);
        assert_eq!(held.view_of(own, pid), None);
        assert_eq!(held.lock().processes.len(), 0, "it is let go");
    }

    #[test]
    fn a_number_that_was_given_away_is_not_the_old_ones() {
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        let (mut other, others) = sleep();
        let held = Held::default();
        held.view_of(own, pid).expect("it lives");
        // As if the number of the one had gone to the other.
        let process = held.lock().processes.remove(&pid).expect("held");
        held.lock().processes.insert(others, process);
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert_eq!(held.view_of(own, others), ViewPid::new(others.get()), "the new one's own");
        assert_eq!(held.host_of(own, ViewPid::new(pid.get()).expect("a PID")), None);
        other.kill().expect("ours");
        other.wait().expect("ours");
    }

    #[test]
    fn a_process_without_the_driver_made_none_of_its_clients() {
        let (mut child, pid) = sleep();
        let held = Held::default();
        assert!(!held.uses_the_driver(pid, &Look::of_a_call()), "it has no descriptor of the driver's");
        // As if it had been seen with one.
        let process = held.lock().processes.get(&pid).cloned().expect("held");
        *process.uses.lock().expect("ours") = Uses::Yes;
        assert!(held.uses_the_driver(pid, &Look::of_a_call()), "what it made then may be there yet");
        child.kill().expect("ours");
        let ended = Instant::now();
        while process.lives() && ended.elapsed().as_secs() < 5 {}
        assert!(held.uses_the_driver(pid, &Look::of_a_call()), "nobody can look at a zombie's descriptors");
        child.wait().expect("ours");
        assert!(!held.uses_the_driver(pid, &Look::of_a_call()), "it is gone");
    }

    #[test]
    fn a_call_looks_at_so_many_descriptors_and_the_next_goes_on() {
        let (mut children, pids): (Vec<Child>, Vec<HostPid>) = (0..3).map(|_| sleep()).unzip();
        let held = Held::default();
        let is_known = |pid: &HostPid| {
            let process = held.lock().processes.get(pid).cloned().expect("held");
            let uses = *process.uses.lock().expect("ours");
            !matches!(uses, Uses::Unknown)
        };
        // Each has three descriptors or more, and no driver's.
        let look = Look(Cell::new(6));
        assert!(pids.iter().all(|pid| !held.uses_the_driver(*pid, &look)));
        assert_eq!(look.0.get(), 0);
        let known = |held: &Held| {
            assert!(held.lock().processes.len() == 3, "they are held all the same");
            pids.iter().filter(|pid| is_known(pid)).count()
        };
        assert_eq!(known(&held), 1, "what is looked at in part is not known");
        assert!(pids.iter().all(|pid| !held.uses_the_driver(*pid, &Look::of_a_call())));
        assert_eq!(known(&held), 3);
        for child in &mut children {
            child.kill().expect("ours");
            child.wait().expect("ours");
        }
    }

    #[test]
    fn what_one_container_found_out_another_knows() {
        let all = Everybody::default();
        let (one, other) = (Held::among(&all), Held::among(&all));
        let own = Namespace::own().expect("ours").id();
        let (mut child, pid) = sleep();
        one.view_of(own, pid).expect("it lives");
        // As if it had been seen with a descriptor of the driver's, and had closed it.
        *one.living(pid).expect("held").uses.lock().expect("ours") = Uses::Yes;
        assert!(other.living(pid).is_none(), "nobody has asked");
        assert!(other.uses_the_driver(pid, &Look::of_a_call()), "seen once is seen");
        assert_eq!(all.count(), 1, "one descriptor for both");
        child.kill().expect("ours");
        child.wait().expect("ours");
        assert!(!other.uses_the_driver(pid, &Look::of_a_call()), "it is gone");
        drop((one, other));
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn a_thread_may_have_descriptors_of_its_own() {
        let own = HostPid::new(std::process::id()).expect("a PID");
        let folder = Folder::of_process(own).expect("our own");
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        let name = format!("fd/{}", std::os::fd::AsRawFd::as_raw_fd(&null));
        assert!(folder.is_path(&name) && folder.names("fd", 3).expect("ours").len() == 3);
        assert!(folder.names("task", MOST_DESCRIPTORS).expect("ours").contains(&own.get().to_string()));
        let socket = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
        assert!(!folder.is_path(&format!("fd/{}", std::os::fd::AsRawFd::as_raw_fd(&socket))));
        let mut left = 1;
        assert!(
            !any_of_the_driver(&folder, "fd", &mut left).expect("ours") && left == 0,
            "no more than that are looked at"
        );
    }

    fn nobody(all: &Everybody) -> Arc<Process> {
        Arc::new(Process::new(std::fs::File::open("/dev/null").expect("/dev/null").into(), Numbers::new(), all))
    }

    fn most() -> usize {
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |files| files as usize / 2)
    }

    #[test]
    fn no_more_are_held_than_descriptors_allow() {
        let (mut known, all) = (Known::default(), Everybody::default());
        let pid = |number| HostPid::new(number).expect("not 0");
        let most = MOST.min(most() / PART) as u32;
        for number in 1..=most {
            known.keep(pid(number), nobody(&all), &all);
        }
        assert_eq!((known.processes.len(), all.count()), (most as usize, most as usize));
        known.keep(pid(most + 1), nobody(&all), &all);
        assert_eq!((known.processes.len(), all.count()), (1, 1));
    }

    #[test]
    fn one_container_lets_go_its_own_and_nobody_elses() {
        let all = Everybody::default();
        let (quiet, busy) = (Held::among(&all), Held::among(&all));
        let own = Namespace::own().expect("ours").id();
        let pid = |number| HostPid::new(number).expect("not 0");
        let (mut child, held) = sleep();
        quiet.view_of(own, held).expect("it lives");
        for number in 1..=MOST as u32 + 1 {
            busy.lock().keep(pid(number), nobody(&all), &all);
        }
        assert!(quiet.living(held).is_some(), "the neighbour's is still known");
        // As if others had all descriptors that there are.
        all.0.count.fetch_add(most(), Relaxed);
        quiet.lock().keep(pid(7), nobody(&all), &all);
        assert_eq!(quiet.lock().processes.len(), 0, "there is no room");
        assert_eq!(quiet.view_of(own, held), ViewPid::new(held.get()), "what is not kept is right all the same");
        all.0.count.fetch_sub(most(), Relaxed);
        assert!(busy.lock().processes.len() < MOST);
        child.kill().expect("ours");
        child.wait().expect("ours");
    }
}
