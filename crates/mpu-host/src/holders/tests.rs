//! Fake hosts on which common Linux devices stand for the driver's, and one real process.

use super::modules::{is_free, modules};
use super::*;
use crate::host::fake::FakeHost;
use std::os::unix::fs::symlink;

/// `/dev/full` and others of its major are `/dev/nvidia-uvm-tools`; `/dev/tty` is a GPU's DRM node.
fn host() -> FakeHost {
    let fake = FakeHost::in_order();
    fake.write("/proc/devices", "Character devices:\n  1 nvidia-uvm\n195 nvidia\n\nBlock devices:\n  5 nvidia\n");
    fake.write("/proc/driver/nvidia/gpus/0000:65:00.0/information", "GPU UUID: \t GPU-b\nDevice Minor: \t 0\n");
    fake.write("/proc/driver/nvidia/gpus/0000:17:00.0/information", "GPU UUID: \t GPU-????\nDevice Minor: \t 1\n");
    fake.link("/sys/dev/char/5:0", "../../devices/pci0000:64/0000:64:00.0/0000:65:00.0/drm/card1");
    fake
}

/// A process with the file that each other one has.
fn process(fake: &FakeHost, pid: u32, state: char) {
    let rest = "1 1 1 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0";
    fake.write(&format!("/proc/{pid}/stat"), &format!("{pid} (evil\n) Z 1) {state} {rest} {} 1000 10\n", pid * 10));
    fake.write(&format!("/proc/{pid}/maps"), "");
    for folder in ["fd", "fdinfo", "task"] {
        std::fs::create_dir_all(fake.host().at(format!("/proc/{pid}/{folder}"))).expect("folders");
    }
}

fn looked(fake: &FakeHost) -> Scan {
    Scanner::default().scan(&fake.host()).expect("a folder /proc")
}

/// `PID: NODE DESCRIPTORS MAPPINGS`, one for each node.
fn lines_of(scan: &Scan) -> Vec<String> {
    let of = |holder: &Holder| {
        let one =
            |used: &Use| format!("{}: {} {} {}", holder.pid.get(), used.node.name, used.descriptors, used.mappings);
        holder.uses.iter().map(one).collect::<Vec<_>>()
    };
    scan.holders.iter().flat_map(of).collect()
}

#[test]
fn node_is_found_in_tables_and_mappings() {
    let fake = host();
    for (pid, state) in [(10, 'S'), (11, 'S'), (12, 'Z'), (13, 'S'), (14, 'S'), (15, 'S')] {
        process(&fake, pid, state);
    }
    fake.link("/proc/10/fd/3", "/dev/full");
    fake.link("/proc/10/fd/4", "/dev/full");
    fake.link("/proc/10/fd/5", "/dev/tty");
    fake.link("/proc/11/task/11/fd/9", "/dev/full");
    fake.link("/proc/11/task/19/fd/9", "/dev/full");
    fake.link("/proc/12/task/29/fd/9", "/dev/zero");
    let maps = "00400000-00401000 r-xp 00000000 fe:01 77 /bin/sh\n\
        7f00000000-7f00001000 rw-s 00000000 00:05 9 /dev/renamed here\n\
        7f00002000-7f00003000 rw-s 00001000 00:05 9 /dev/renamed here\n\
        7f00004000-7f00005000 rw-p 00000000 00:00 0 \n\
        not a line\n";
    fake.write("/proc/13/maps", maps);
    fake.link("/proc/13/map_files/400000-401000", "/bin/sh");
    fake.link("/proc/13/map_files/7f00000000-7f00001000", "/dev/full");
    // A file with a node's name, and a missing file.
    fake.write("/dev/nvidia0", "no device");
    fake.link("/proc/14/fd/3", fake.host().at("/dev/nvidia0"));
    fake.link("/proc/14/fd/4", "/nowhere");
    fake.link("/proc/14/fd/5", "pipe:[7]");
    fake.link("/proc/15/fd/3", "/dmabuf:shared");
    fake.write("/proc/15/fdinfo/3", "pos:\t0\nsize:\t4096\ncount:\t2\nexp_name:\tnvidia\n");
    fake.link("/proc/15/fd/4", "/dmabuf:");
    fake.write("/proc/15/fdinfo/4", "exp_name:\ti915\n");
    let scan = looked(&fake);
    assert_eq!(
        lines_of(&scan),
        [
            "10: card1 1 0",
            "10: nvidia-uvm-tools 2 0",
            "11: nvidia-uvm-tools 1 0",
            "12: nvidia-uvm-tools 1 0",
            "13: nvidia-uvm-tools 0 2",
            "15: dma-buf 1 0",
        ]
    );
    let first = &scan.holders[0];
    assert_eq!((first.start_ticks, first.uses[0].node.gpu, first.uses[0].node.module), (100, Some(1), "nvidia_drm"));
    assert_eq!((scan.in_flight, scan.not_read), (Vec::new(), Vec::new()));
}

#[test]
fn nodes_are_named_by_number() {
    let fake = host();
    fake.write("/proc/devices", "Character devices:\n510 nvidia-uvm\n511 nvidia-caps\n512 nvidia-nvswitch\n  1 mem\n");
    let host = fake.host();
    let nodes = Nodes::of(&host, nodes::describe_gpus(&host, nodes::read).0);
    for (device, expected) in [
        ((195, 0), Some(("nvidia0", Some(1), "nvidia"))),
        ((195, 1), Some(("nvidia1", Some(0), "nvidia"))),
        ((195, 7), Some(("nvidia7", None, "nvidia"))),
        ((195, 254), Some(("nvidia-modeset", None, "nvidia_modeset"))),
        ((195, 255), Some(("nvidiactl", None, "nvidia"))),
        ((510, 0), Some(("nvidia-uvm", None, "nvidia_uvm"))),
        ((510, 1), Some(("nvidia-uvm-tools", None, "nvidia_uvm"))),
        ((511, 2), Some(("nvidia-caps/nvidia-cap2", None, "nvidia"))),
        ((512, 255), Some(("nvidia-nvswitch255", None, "nvidia"))),
        ((5, 0), Some(("card1", Some(1), "nvidia_drm"))),
        ((1, 3), None),
        ((226, 9), None),
    ] {
        let node = nodes.node(device);
        let found = node.as_ref().map(|node| (node.name.as_str(), node.gpu, node.module));
        assert_eq!(found, expected, "{device:?}");
    }
    let mut scanner = Scanner::default();
    let gpus: Vec<_> = scanner.gpus(&host).iter().map(|gpu| (gpu.index, gpu.minor, gpu.uuid.as_deref())).collect();
    assert_eq!(gpus, [(0, Some(1), None), (1, Some(0), Some("GPU-b"))]);
}

#[test]
fn descriptors_in_flight_are_counted_once_per_socket() {
    let fake = host();
    process(&fake, 20, 'S');
    for (fd, socket, waiting) in [(3, 7, 2), (4, 7, 2), (5, 8, 0), (6, 9, 3)] {
        fake.link(&format!("/proc/20/fd/{fd}"), format!("socket:[{socket}]"));
        fake.write(&format!("/proc/20/fdinfo/{fd}"), &format!("pos:\t0\nflags:\t02\nscm_fds: {waiting}\n"));
    }
    // A socket of another kind, or a kernel without the count.
    fake.link("/proc/20/fd/7", "socket:[10]");
    let scan = looked(&fake);
    let expected = InFlight { pid: HostPid::new(20).expect("a PID"), start_ticks: 200, descriptors: 5 };
    assert_eq!((scan.in_flight.as_slice(), scan.holders.as_slice()), (&[expected][..], &[][..]));
}

#[test]
fn ended_or_unreadable_process_is_no_error() {
    let fake = host();
    // Its folder is there, and nothing in it; or it has a stat of no sense.
    std::fs::create_dir_all(fake.host().at("/proc/30")).expect("a folder");
    fake.write("/proc/31/stat", "31 (x");
    fake.write("/proc/32x/stat", "no process");
    process(&fake, 33, 'S');
    fake.remove("/proc/33/fd");
    fake.remove("/proc/33/maps");
    assert_eq!(looked(&fake), Scan::default());
    process(&fake, 34, 'S');
    let table = fake.host().at("/proc/34/fd");
    let set_mode = |mode| {
        std::fs::set_permissions(&table, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("changed");
    };
    set_mode(0o000);
    // Root may read it.
    let is_refused = std::fs::read_dir(&table).is_err();
    let not_read = looked(&fake).not_read;
    set_mode(0o700);
    assert_eq!(not_read, if is_refused { vec![HostPid::new(34).expect("a PID")] } else { Vec::new() });
}

#[test]
fn large_descriptor_table_is_read_whole() {
    // A disk takes its time for so many files.
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let fake = FakeHost { dir: memory.expect("a folder") };
    fake.write("/proc/devices", "Character devices:\n  1 nvidia-uvm\n195 nvidia\n");
    process(&fake, 40, 'S');
    let folder = fake.host().at("/proc/40/fd");
    for number in 0..100_000 {
        symlink("pipe:[7]", folder.join(number.to_string())).expect("a link");
    }
    symlink("/dev/full", folder.join("100000")).expect("a link");
    let scan = looked(&fake);
    assert_eq!((lines_of(&scan), scan.not_read.len()), (vec!["40: nvidia-uvm-tools 1 0".to_string()], 0));
}

#[test]
fn real_process_is_found_by_device_number() {
    let fake = host();
    // The running host's processes, and the made-up host's devices.
    fake.remove("/proc");
    fake.link("/proc", "/proc");
    let host = fake.host();
    let majors = BTreeMap::from([(1, "nvidia-uvm".to_string())]);
    let nodes = Nodes::with_majors(&host, majors);
    let full = std::fs::File::open("/dev/full").expect("a device");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = rustix::fs::open("/dev/full", flags, rustix::fs::Mode::empty()).expect("a device");
    // Access mode 3: for ioctl(2) alone.
    let flags = OFlags::WRONLY | OFlags::RDWR | OFlags::CLOEXEC;
    let control = rustix::fs::open("/dev/full", flags, rustix::fs::Mode::empty()).expect("a device");
    let own = HostPid::new(std::process::id()).expect("a PID");
    let mine = || {
        let reader = ProcessReader::open(&host, own).expect("it lives");
        let mut found = Found::until(Instant::now() + Duration::from_secs(60));
        reader.scan_fd_tables(&nodes, share_descriptors, &mut found);
        let number = |fd: i32| found.uses.iter().any(|(_, (numbers, _))| numbers.contains(&fd.to_string()));
        use std::os::fd::AsRawFd;
        [full.as_raw_fd(), control.as_raw_fd(), path.as_raw_fd()].map(number)
    };
    assert_eq!(mine(), [true, true, false], "a descriptor that only names a path holds nothing");
}

#[test]
fn refused_mappings_are_not_read() {
    let this = Host::this();
    // CAP_CHECKPOINT_RESTORE since Linux 5.9.
    let may = this.has_capability(crate::host::CAP_SYS_ADMIN) || this.has_capability(40);
    let reader = ProcessReader::open(&this, HostPid::new(std::process::id()).expect("a PID")).expect("it lives");
    let mut found = Found::until(Instant::now() + Duration::from_secs(60));
    reader.scan_mappings(&Nodes::of(&this, Vec::new()), &mut found).expect("its mappings");
    assert_eq!(found.is_partial, !may);
}

#[test]
fn moved_mapping_is_not_read() {
    let fake = host();
    process(&fake, 50, 'S');
    fake.write("/proc/50/maps", "7f00000000-7f00001000 rw-s 00000000 00:05 9 /dev/full\n");
    let scan = looked(&fake);
    assert_eq!((scan.holders.len(), scan.not_read), (0, vec![HostPid::new(50).expect("a PID")]));
}

#[test]
fn node_with_equal_inode_is_found() {
    let fake = host();
    process(&fake, 51, 'S');
    // The first file's path is longer than what is kept of a line.
    let long = "/x".repeat(MAX_LINE as usize);
    let maps = format!(
        "7f00000000-7f00001000 rw-s 00000000 00:05 9 {long}\n7f00002000-7f00003000 rw-s 00000000 00:05 9 /dev/full\n"
    );
    fake.write("/proc/51/maps", &maps);
    fake.link("/proc/51/map_files/7f00000000-7f00001000", "/bin/sh");
    fake.link("/proc/51/map_files/7f00002000-7f00003000", "/dev/full");
    let scan = looked(&fake);
    assert_eq!((lines_of(&scan), scan.not_read), (vec!["51: nvidia-uvm-tools 0 1".to_string()], Vec::new()));
}

/// Replaces a file by a pipe: a reader blocks until a writer opens it.
fn pipe(fake: &FakeHost, path: &str) {
    fake.remove(path);
    assert!(std::process::Command::new("mkfifo").arg(fake.host().at(path)).status().expect("mkfifo").success());
}

#[test]
fn blocked_process_does_not_stop_scan() {
    let fake = host();
    for pid in [60, 61, 62, 63] {
        process(&fake, pid, 'S');
        fake.link(&format!("/proc/{pid}/fd/3"), "/dev/full");
    }
    let line = |pid| format!("{pid}: nvidia-uvm-tools 1 0");
    pipe(&fake, "/proc/60/maps");
    pipe(&fake, "/proc/62/stat");
    let limits = TimeLimits { first: Duration::from_secs(1), ..TimeLimits::default() };
    let mut scanner = Scanner { limits, ..Scanner::default() };
    let pids = |numbers: &[u32]| numbers.iter().filter_map(|number| HostPid::new(*number)).collect::<Vec<_>>();
    for _ in 0..2 {
        let began = Instant::now();
        let scan = scanner.scan(&fake.host()).expect("a folder /proc");
        // The descriptors are read before the mappings block.
        assert_eq!((lines_of(&scan), scan.not_read), ([60, 61, 63].map(line).to_vec(), pids(&[60, 62])));
        assert_eq!(scanner.stuck.len(), 2, "they are not looked at again");
        assert!(began.elapsed() < Duration::from_secs(30));
    }
    std::fs::write(fake.host().at("/proc/60/maps"), "").expect("it is read");
    std::fs::write(fake.host().at("/proc/62/stat"), "").expect("it is read");
    while !scanner.stuck.values().all(|(_, thread)| thread.is_finished()) {
        thread::sleep(Duration::from_millis(5));
    }
    fake.remove("/proc/60/maps");
    fake.remove("/proc/62");
    let scan = scanner.scan(&fake.host()).expect("a folder /proc");
    assert_eq!((lines_of(&scan), scan.not_read), ([60, 61, 63].map(line).to_vec(), Vec::new()));
}

#[test]
fn gpu_without_description_is_found_by_address() {
    let fake = host();
    fake.write("/proc/driver/nvidia/gpus/0000:65:00.0/information", "");
    process(&fake, 65, 'S');
    fake.link("/proc/65/fd/3", "/dev/full");
    fake.link("/proc/65/fd/4", "/dev/tty");
    let scan = looked(&fake);
    assert_eq!(lines_of(&scan), ["65: card1 1 0", "65: nvidia-uvm-tools 1 0"]);
    assert_eq!((scan.holders[0].uses[0].node.gpu, scan.not_read.len()), (Some(1), 0));
}

#[test]
fn stuck_driver_is_left_after_timeout() {
    let began = Instant::now();
    let (gpus, waiting) = nodes::describe_gpus(&host().host(), |host, path| {
        while path.contains("0000:65:00.0") {
            thread::park();
        }
        host.text(path)
    });
    assert_eq!(gpus.iter().map(|gpu| gpu.minor).collect::<Vec<_>>(), [Some(1), None]);
    assert!(waiting.len() == 1 && began.elapsed() < Duration::from_secs(20));
}

#[test]
fn late_gpu_description_is_read() {
    let fake = host();
    process(&fake, 67, 'S');
    let (driver, answer) = mpsc::channel::<()>();
    let waiting = vec![thread::spawn(move || answer.recv().unwrap_or_default())];
    let gpus = vec![DriverGpu { index: 0, minor: None, uuid: None, address: "0000:17:00.0".to_string() }];
    let mut scanner = Scanner { gpus, waiting, ..Scanner::default() };
    let minors = |scanner: &mut Scanner| {
        scanner.scan(&fake.host()).expect("a folder /proc");
        scanner.gpus.iter().map(|gpu| gpu.minor).collect::<Vec<_>>()
    };
    assert_eq!(minors(&mut scanner), [None], "the driver is not asked again meanwhile");
    drop(driver);
    while !scanner.waiting[0].is_finished() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(minors(&mut scanner), [Some(1), Some(0)]);
}

#[test]
fn mapping_is_found_after_threads_ended() {
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let fake = FakeHost { dir: memory.expect("a folder") };
    fake.write("/proc/devices", "Character devices:\n  1 nvidia-uvm\n195 nvidia\n");
    process(&fake, 9, 'Z');
    // This file system lists the newest first.
    fake.write("/proc/9/task/10/stat", "1 (x) S 1");
    for thread in 100_000..140_000 {
        fake.write(&format!("/proc/9/task/{thread}/stat"), "1 (x) Z 1");
    }
    fake.write("/proc/10/maps", "7f00000000-7f00001000 rw-s 00000000 00:05 9 /dev/full\n");
    fake.link("/proc/10/map_files/7f00000000-7f00001000", "/dev/full");
    let scan = looked(&fake);
    assert_eq!(lines_of(&scan), ["9: nvidia-uvm-tools 0 1"]);
}

#[test]
fn unreadable_information_is_named() {
    let fake = host();
    process(&fake, 66, 'S');
    fake.link("/proc/66/fd/3", "socket:[7]");
    // An error like EMFILE. A real lack of descriptors would stop other tests.
    std::fs::create_dir_all(fake.host().at("/proc/66/fdinfo/3")).expect("a folder");
    assert_eq!(looked(&fake).not_read, [HostPid::new(66).expect("a PID")]);
    for error in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
        assert!(!is_gone(&error.into()), "{error}");
    }
}

#[test]
fn many_slow_processes_end_scan() {
    let fake = host();
    for pid in 70..90 {
        process(&fake, pid, 'S');
        pipe(&fake, &format!("/proc/{pid}/maps"));
    }
    let [first, slow_total, later, end] = [200, 600, 20, 900].map(Duration::from_millis);
    let mut scanner = Scanner { limits: TimeLimits { first, slow_total, later, end }, ..Scanner::default() };
    let scan = scanner.scan(&fake.host()).expect("a folder /proc");
    assert_eq!(scan.not_read.len(), 20);
    assert!((1..20).contains(&scanner.stuck.len()), "{}", scanner.stuck.len());
}

#[test]
fn process_started_during_scan_is_found() {
    let fake = host();
    process(&fake, 80, 'S');
    pipe(&fake, "/proc/80/maps");
    let host = fake.host();
    let scan = thread::scope(|scope| {
        let scan = scope.spawn(|| Scanner::default().scan(&host));
        let maps = std::fs::File::options().write(true).open(host.at("/proc/80/maps")).expect("a reader");
        process(&fake, 81, 'S');
        fake.link("/proc/81/fd/3", "/dev/full");
        drop(maps);
        scan.join().expect("it ends").expect("a folder /proc")
    });
    assert_eq!(lines_of(&scan), ["81: nvidia-uvm-tools 1 0"]);
}

#[test]
fn threads_of_one_process_share_descriptors() {
    use std::sync::mpsc;
    let (sender, receiver) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let own = std::fs::read_link("/proc/thread-self").expect("a link");
        let number = own.file_name().and_then(|name| name.to_str()?.parse().ok());
        sender.send(number.expect("a number")).expect("heard");
        let _ = ended.recv();
    });
    let other = receiver.recv().expect("a thread");
    // None on a kernel without kcmp(2), or where a sandbox forbids it.
    assert_ne!(share_descriptors(std::process::id(), other), Some(false));
    drop(end);
    thread.join().expect("it ends");
    assert_eq!(share_descriptors(std::process::id(), other), None, "it has ended");
}

#[test]
fn modules_are_listed_users_first_and_free_when_unused() {
    let fake = host();
    let module = |name: &str, references: &str, holders: &[&str]| {
        fake.write(&format!("/sys/module/{name}/refcnt"), references);
        for holder in holders {
            std::fs::create_dir_all(fake.host().at(format!("/sys/module/{name}/holders/{holder}"))).expect("folders");
        }
    };
    module("nvidia", "5\n", &["nvidia_drm", "nvidia_modeset", "nvidia_uvm"]);
    module("nvidia_modeset", "1\n", &["nvidia_drm"]);
    module("nvidia_drm", "0\n", &[]);
    module("nvidia_uvm", "-1\n", &[]);
    let host = fake.host();
    let found = modules(&host);
    let names: Vec<&str> = found.iter().map(|module| module.name.as_str()).collect();
    assert_eq!(names, ["nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"]);
    assert_eq!((found[3].used(), found[1].used(), is_free(&found)), (Some(2), Some(0), Some(false)));
    module("nvidia", "3\n", &[]);
    assert_eq!(is_free(&modules(&host)), Some(true));
    module("nvidia_drm", "1\n", &[]);
    assert_eq!(is_free(&modules(&host)), Some(false), "a console");
    module("nvidia_drm", "0\n", &[]);
    fake.remove("/sys/module/nvidia/refcnt");
    assert_eq!(is_free(&modules(&host)), None);
    // No kernel has a circle, and a made-up one ends.
    module("nvidia_drm", "1\n", &["nvidia"]);
    assert!(modules(&host).len() <= 4);
}
