//! Real processes, with a public device in the driver's place.

use super::*;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const PROC: &str = "/proc";

/// `/dev/full`.
fn is_full(device: Device) -> bool {
    device == Some((1, 7))
}

fn look() -> Look {
    Look::at_most(MAX_TOTAL, is_full)
}

/// A process of two threads. With argument `u` it has the device in its second one's own table; with `e` in its only table, and its first
/// thread has ended.
const THREADS: &str = r#"
    #define _GNU_SOURCE
    #include <fcntl.h>
    #include <pthread.h>
    #include <sched.h>
    #include <unistd.h>
    static char how;
    static void *work(void *first)
    {
        if (how == 'e')
            pthread_join(*(pthread_t *)first, 0);
        if (how == 'u' && unshare(CLONE_FILES))
            return 0;
        if (open("/dev/full", O_RDONLY) < 0)
            return 0;
        write(1, "\n", 1);
        pause();
        return 0;
    }
    int main(int argc, char **argv)
    {
        static pthread_t first, second;
        how = argv[1][0];
        first = pthread_self();
        pthread_create(&second, 0, work, &first);
        if (how == 'e')
            pthread_exit(0);
        pause();
    }
"#;

struct Running(Child, HostPid);

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "\n", "it could not open the device");
        let pid = HostPid::new(child.id()).expect("a PID");
        Running(child, pid)
    }

    fn has(&self, look: &Look) -> Has {
        find_driver_fd(Path::new(PROC), self.1, look)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn threads(folder: &Path, how: &str) -> Running {
    let program = folder.join("threads");
    if !program.exists() {
        let source = folder.join("threads.c");
        std::fs::write(&source, THREADS).expect("ours");
        let made = Command::new("cc").args(["-pthread", "-o"]).args([&program, &source]).status();
        assert!(made.expect("a compiler, which Rust links with").success());
    }
    let mut command = Command::new(program);
    command.arg(how);
    Running::start(command)
}

fn shell(script: &str) -> Running {
    let mut command = Command::new("bash");
    command.args(["-c", script]);
    Running::start(command)
}

#[test]
fn descriptor_in_thread_table_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let apart = threads(folder.path(), "u");
    let mut own = std::fs::read_dir(format!("/proc/{}/fd", apart.1.get())).expect("ours").flatten();
    let is_it =
        |link: std::fs::DirEntry| std::fs::read_link(link.path()).is_ok_and(|path| path == Path::new("/dev/full"));
    assert!(!own.any(is_it), "the process's own table does not have it");
    assert_eq!(apart.has(&look()), Has::Yes);

    let ended = threads(folder.path(), "e");
    assert_eq!(std::fs::read_dir(format!("/proc/{}/fd", ended.1.get())).expect("ours").count(), 0);
    assert_eq!(ended.has(&look()), Has::Yes);
    let thread = find_live_thread(Path::new(PROC), ended.1, &look()).expect("the second one");
    assert_ne!(thread, format!("task/{}", ended.1.get()), "not the first one, which has ended");
    assert_eq!(find_live_thread(Path::new(PROC), ended.1, &Look::at_most(0, is_full)), None);
}

#[test]
fn node_is_recognized_by_device_number() {
    let renamed = shell("exec 5</dev/full; echo; read");
    assert_eq!(renamed.has(&look()), Has::Yes);
    assert_eq!(renamed.has(&Look::default()), Has::No, "it is not the driver's");
    // A regular file with the name of a driver's node.
    let folder = tempfile::tempdir().expect("a folder");
    let named = folder.path().join("nvidia0");
    std::fs::write(&named, "").expect("ours");
    let named = shell(&format!("exec 5<{}; echo; read", named.display()));
    assert_eq!(named.has(&Look::default()), Has::No);
    // The driver's device number under another name; needs the right to make nodes.
    let node = folder.path().join("x");
    let made = Command::new("mknod").arg(&node).args(["c", "195", "255"]).stderr(Stdio::null()).status();
    if made.is_ok_and(|status| status.success()) {
        // Without a driver this is the only way to open it.
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let _open = rustix::fs::open(&node, flags, rustix::fs::Mode::empty()).expect("a node");
        let own = HostPid::new(std::process::id()).expect("a PID");
        assert_eq!(find_driver_fd(Path::new(PROC), own, &Look::default()), Has::Yes);
    }
}

/// As a container's root without capabilities is for a process of another container.
#[test]
fn unreadable_links_count_as_driver() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    let none = CapabilitySet::empty();
    let other = shell("echo; read");
    assert_eq!(other.has(&look()), Has::No);
    let without = || {
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).expect("less is free");
        other.has(&look())
    };
    let has_some = capabilities(None).expect("ours").permitted != none;
    let found = std::thread::scope(|scope| scope.spawn(without).join().expect("ended"));
    assert_eq!(found, if has_some { Has::Yes } else { Has::No });
}

#[test]
fn descriptor_limit_is_reported() {
    // The device is the last of many.
    let many = shell("for n in $(seq 100 160); do eval \"exec $n</dev/null\"; done; exec 200</dev/full; echo; read");
    assert_eq!(many.has(&look()), Has::Yes);
    let few = Look::at_most(50, is_full);
    assert_eq!(many.has(&few), Has::NoRoom);
    assert_eq!((few.left(), many.has(&few)), (0, Has::NoRoom), "not even that it is there is looked at");
    let folder = Folder::at(format!("/proc/{}", many.1.get())).expect("ours");
    let mut remaining = 1;
    assert!(!is_in_table(&folder, "fd", is_full, &mut remaining).expect("ours") && remaining == 0);
}

#[test]
fn descriptor_limit_of_one_process_leaves_room_for_others() {
    let most = MAX_DESCRIPTORS + 1;
    let limit = Command::new("bash").args(["-c", &format!("ulimit -n {}", most + 300)]).stderr(Stdio::null()).status();
    if !limit.is_ok_and(|status| status.success()) {
        return eprintln!("this user may not open so many descriptors");
    }
    let many = shell(&format!(
        "ulimit -n {}; for n in $(seq 256 {}); do eval \"exec $n</dev/null\"; done; eval \"exec {}</dev/full\"; echo; read",
        most + 300,
        most + 255,
        most + 256
    ));
    let look = look();
    assert_eq!(many.has(&look), Has::TooMany);
    assert_eq!(look.left(), MAX_TOTAL - MAX_DESCRIPTORS - 1, "there is room for others");
}

#[test]
fn missing_process_has_no_driver() {
    assert_eq!(find_driver_fd(Path::new("/nowhere"), HostPid::new(1).expect("a PID"), &Look::default()), Has::No);
    let socket = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
    let own = Folder::at("/proc/self").expect("ours");
    assert!(!own.is_path(&format!("fd/{}", std::os::fd::AsRawFd::as_raw_fd(&socket))).expect("ours"));
}
