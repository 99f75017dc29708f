//! The host's ldconfig on small roots with libraries of this host, and on hostile roots.

use super::*;
use crate::beneath::tests::{walk, without_syscall};
use crate::driver::fake::fifo;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;
use tempfile::TempDir;

const LDCONFIG: &str = "/sbin/ldconfig";
const FOLDER: &str = "/opt/driver";

/// A root with a library in a folder outside the default ones.
struct TestRoot {
    top: TempDir,
}

impl TestRoot {
    fn new() -> TestRoot {
        let place = TestRoot { top: TempDir::new().unwrap() };
        fs::set_permissions(place.top.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for folder in ["root/etc", "root/opt/driver", "root/usr/lib", "root/proc", "root/sbin", "outside"] {
            fs::create_dir_all(place.top.path().join(folder)).unwrap();
        }
        fs::copy(host_library(), place.path("opt/driver/libmine.so.1.2.3")).unwrap();
        // The image's own ldconfig must never be started.
        fs::write(place.path("sbin/ldconfig"), "#!/bin/sh\ntouch /started\n").unwrap();
        fs::set_permissions(place.path("sbin/ldconfig"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(place.top.path().join("outside/secret"), "secret").unwrap();
        place
    }

    /// None where ldconfig cannot be isolated.
    fn new_if_isolatable() -> Option<TestRoot> {
        if rustix::process::geteuid().is_root() && Path::new(LDCONFIG).exists() {
            return Some(TestRoot::new());
        }
        println!("skipped: isolating ldconfig needs root and {LDCONFIG}");
        None
    }

    fn path(&self, below: &str) -> PathBuf {
        self.top.path().join("root").join(below)
    }

    fn root(&self) -> Root {
        Root::open(&self.path("")).unwrap()
    }

    fn update(&self) -> Result<(), LdconfigError> {
        run(&self.root(), Path::new(LDCONFIG), &[FOLDER])
    }

    /// The new cache, printed by the host's ldconfig.
    fn cache(&self) -> String {
        let listed = Command::new(LDCONFIG).args(["-p", "-C"]).arg(self.path("etc/ld.so.cache")).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    }
}

/// A library of this host with a soname: glibc's mathematics.
fn host_library() -> PathBuf {
    let listed = Command::new(LDCONFIG).arg("-p").output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("libm.so.6 ") && !line.contains("x32") && line.contains("64"));
    let line = line.unwrap();
    PathBuf::from(line.rsplit(" => ").next().unwrap())
}

/// Every name with its mode, size, link target and time of change.
fn snapshot(top: &Path) -> BTreeMap<String, String> {
    let about = |(path, about): (PathBuf, fs::Metadata)| {
        let text = match about.file_type() {
            kind if kind.is_dir() => format!("{:o}", about.mode()),
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            _ => format!("{:o} {} {}.{}", about.mode(), about.size(), about.mtime(), about.mtime_nsec()),
        };
        (path.strip_prefix(top).unwrap().display().to_string(), text)
    };
    walk(top).into_iter().map(about).collect()
}

#[test]
fn update_adds_folder_and_changes_cache_only() {
    let Some(place) = TestRoot::new_if_isolatable() else { return };
    let before = snapshot(place.top.path());
    place.update().unwrap();
    assert!(place.cache().contains("libm.so.6 (libc6,x86-64"), "{}", place.cache());
    assert!(place.cache().contains("=> /opt/driver/libm.so.6"), "{}", place.cache());
    let after = snapshot(place.top.path());
    let new: Vec<&str> = after.keys().filter(|name| !before.contains_key(*name)).map(String::as_str).collect();
    let expected = [
        "root/etc/ld.so.cache",
        "root/etc/ld.so.conf",
        "root/etc/ld.so.conf.d",
        "root/etc/ld.so.conf.d/00-nvcr-mpu.conf",
        "root/etc/ld.so.conf.d/zz-nvcr-mpu.conf",
        "root/opt/driver/libm.so.6",
    ];
    assert_eq!(new, expected);
    assert!(before.iter().all(|(name, text)| after[name] == *text), "something that was there has changed");
    assert_eq!(fs::read_link(place.path("opt/driver/libm.so.6")).unwrap(), Path::new("libmine.so.1.2.3"));

    // The second run writes only the cache.
    place.update().unwrap();
    let again = snapshot(place.top.path());
    let changed: Vec<&String> = again.keys().filter(|name| again[*name] != after[*name]).collect();
    assert!(changed.iter().all(|name| *name == "root/etc/ld.so.cache"), "{changed:?}");
    assert_eq!(again.len(), after.len());
}

#[test]
fn distribution_loader_config_is_unchanged() {
    let Some(place) = TestRoot::new_if_isolatable() else { return };
    fs::write(place.path("etc/debian_version"), "12\n").unwrap();
    fs::create_dir_all(place.path("etc/ld.so.conf.d")).unwrap();
    fs::write(place.path("etc/ld.so.conf"), "# no include\n/usr/local/lib\n").unwrap();
    fs::write(place.path("etc/ld.so.conf.d/x.conf"), "/ignored\n").unwrap();
    run(&place.root(), Path::new(LDCONFIG), &[FOLDER, "/usr/lib", "/usr/local/lib", FOLDER]).unwrap();
    // The drop-in files are not included, so ldconfig gets the folders as arguments.
    assert!(place.cache().contains("=> /opt/driver/libm.so.6"), "{}", place.cache());
    assert_eq!(fs::read_to_string(place.path("etc/ld.so.conf")).unwrap(), "# no include\n/usr/local/lib\n");
    let text = |name: &str| fs::read_to_string(place.path("etc/ld.so.conf.d").join(name)).unwrap();
    assert_eq!(text("00-nvcr-mpu.conf"), "/opt/driver\n");
    assert!(text("zz-nvcr-mpu.conf").starts_with("/lib/"), "Debian's own folders");
    assert_eq!(text("x.conf"), "/ignored\n");
}

#[test]
fn update_without_folders_uses_earlier_ones() {
    let Some(_) = TestRoot::new_if_isolatable() else { return };
    for conf in [None, Some("# no include\n/usr/local/lib\n")] {
        let place = TestRoot::new();
        if let Some(text) = conf {
            fs::write(place.path("etc/ld.so.conf"), text).unwrap();
        }
        place.update().unwrap();
        fs::remove_file(place.path("etc/ld.so.cache")).unwrap();
        let before = fs::read(place.path("etc/ld.so.conf.d/00-nvcr-mpu.conf")).unwrap();
        run(&place.root(), Path::new(LDCONFIG), &[] as &[&str]).unwrap();
        assert!(place.cache().contains("=> /opt/driver/libm.so.6"), "{conf:?}: {}", place.cache());
        assert_eq!(fs::read(place.path("etc/ld.so.conf.d/00-nvcr-mpu.conf")).unwrap(), before);
    }
}

#[test]
fn musl_path_file_gets_driver_folder() {
    let Some(place) = TestRoot::new_if_isolatable() else { return };
    let file = musl_path_file();
    fs::write(place.path(file), "/lib:/usr/lib").unwrap();
    place.update().unwrap();
    place.update().unwrap();
    assert_eq!(fs::read_to_string(place.path(file)).unwrap(), "/lib:/usr/lib\n/opt/driver\n");

    // Without the file, musl uses its default folders. A new file must contain them.
    fs::remove_file(place.path(file)).unwrap();
    fs::write(place.path("etc/alpine-release"), "3.20\n").unwrap();
    place.update().unwrap();
    assert_eq!(fs::read_to_string(place.path(file)).unwrap(), "/lib\n/usr/local/lib\n/usr/lib\n/opt/driver\n");
}

fn musl_path_file() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "etc/ld-musl-x86_64.path",
        _ => "etc/ld-musl-aarch64.path",
    }
}

const ESCAPING_CONF: &str = "/proc/1/root/usr/lib
/proc/self/cwd/usr/lib
include /proc/1/root/etc/ld.so.conf
include /etc/ld.so.conf.d/*.conf
";

/// Hostile roots: configuration that leads to the host, a cache that is a link to outside, a program with ldconfig's name.
/// The result is an error or a cache. Nothing outside the root changes, and no program of the image is started.
#[test]
fn hostile_root_is_harmless() {
    let Some(_) = TestRoot::new_if_isolatable() else { return };
    let host_cache = fs::metadata("/etc/ld.so.cache").unwrap().mtime_nsec();
    type Spoil = fn(&TestRoot);
    let cases: [(&str, Spoil, bool); 9] = [
        (
            "the cache is a link",
            |p| symlink(p.top.path().join("outside/secret"), p.path("etc/ld.so.cache")).unwrap(),
            true,
        ),
        (
            "its temporary name is one",
            |p| symlink(p.top.path().join("outside/new"), p.path("etc/ld.so.cache~")).unwrap(),
            false,
        ),
        ("folders of the host by /proc", |p| fs::write(p.path("etc/ld.so.conf"), ESCAPING_CONF).unwrap(), true),
        (
            "an include of itself",
            |p| fs::write(p.path("etc/ld.so.conf"), "include /etc/ld.so.conf\ninclude /etc/ld.so.conf.d/*\n").unwrap(),
            true,
        ),
        (
            "etc leads out",
            |p| {
                fs::remove_dir_all(p.path("etc")).unwrap();
                symlink(p.top.path().join("outside"), p.path("etc")).unwrap();
            },
            true,
        ),
        ("ld.so.conf.d leads out", |p| symlink("../../../outside", p.path("etc/ld.so.conf.d")).unwrap(), true),
        (
            "proc leads out",
            |p| {
                fs::remove_dir(p.path("proc")).unwrap();
                symlink("../outside", p.path("proc")).unwrap();
            },
            true,
        ),
        ("a FIFO as the configuration", |p| fifo(&p.path("etc/ld.so.conf")), false),
        (
            "a FIFO as a drop-in file",
            |p| {
                fs::create_dir_all(p.path("etc/ld.so.conf.d")).unwrap();
                fifo(&p.path("etc/ld.so.conf.d/00-wait.conf"));
            },
            false,
        ),
    ];
    for (what, spoil, works) in cases {
        let place = TestRoot::new();
        spoil(&place);
        let outside = snapshot(&place.top.path().join("outside"));
        let begin = Instant::now();
        let result = place.update();
        assert_eq!(result.is_ok(), works, "{what}: {result:?}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        assert_eq!(snapshot(&place.top.path().join("outside")), outside, "{what}");
        assert!(!place.path("started").exists(), "{what}");
    }
    assert_eq!(fs::metadata("/etc/ld.so.cache").unwrap().mtime_nsec(), host_cache, "the host's own cache");
}

/// Each of these images is small, but its configuration includes too many files, names, patterns or bytes.
#[test]
fn oversized_configuration_is_refused() {
    let includes = |count: usize| format!("include {}\n", "many/* ".repeat(count));
    let cases = [
        ("1000 patterns", 1, includes(1001), 10),
        ("10000 names", 300, includes(40), 10),
        ("10000 names", 10_001, includes(1), 0),
        ("1000 files", 1000, includes(1), 10),
        ("1048576 bytes", 3, includes(1), 512 << 10),
    ];
    for (what, files, conf, size) in cases {
        let place = TestRoot::new();
        fs::create_dir(place.path("etc/many")).unwrap();
        for number in 0..files {
            fs::write(place.path(&format!("etc/many/{number}.conf")), "#".repeat(size)).unwrap();
        }
        fs::write(place.path("etc/ld.so.conf"), conf).unwrap();
        let error = folders::write_config(&place.root(), &[FOLDER]).expect_err(what).to_string();
        assert!(error.contains(&format!("more than {what}")), "{what}: {error}");
        assert!(!place.path("etc/ld.so.conf.d/00-nvcr-mpu.conf").exists(), "{what}: nothing is written then");
    }
    // A drop-in file of an earlier run that comes from the image.
    let place = TestRoot::new();
    fs::create_dir(place.path("etc/ld.so.conf.d")).unwrap();
    let lines: String = (0..=1000).map(|number| format!("/{number}\n")).collect();
    fs::write(place.path("etc/ld.so.conf.d/00-nvcr-mpu.conf"), lines).unwrap();
    let error = folders::write_config(&place.root(), &[]).unwrap_err().to_string();
    assert!(error.contains("more than 1000 folders"), "{error}");
}

#[test]
fn file_included_by_two_names_is_read_once() {
    let spelt =
        ["/etc/../etc/ld.so.conf.d/*.conf", "elsewhere/*", "../etc/ld.so.conf.d/00-nvcr-mpu.conf", "self/etc/*"];
    for pattern in spelt {
        let place = TestRoot::new();
        symlink("ld.so.conf.d", place.path("etc/elsewhere")).unwrap();
        symlink("..", place.path("etc/self")).unwrap();
        fs::write(place.path("etc/ld.so.conf"), format!("include {pattern}\ninclude ld.so.conf.d/*.conf\n")).unwrap();
        for run in 1..=3 {
            assert_eq!(folders::write_config(&place.root(), &[FOLDER]).unwrap(), [""; 0], "{pattern}, run {run}");
            let drop_in = fs::read_to_string(place.path("etc/ld.so.conf.d/00-nvcr-mpu.conf"));
            assert_eq!(drop_in.ok().as_deref(), Some("/opt/driver\n"), "{pattern}, run {run}");
        }
    }
}

#[test]
fn only_static_program_of_host_is_run() {
    let place = TestRoot::new();
    let with = |program: &Path| run(&place.root(), program, &[FOLDER]);
    // A program with an interpreter would start the container's.
    assert!(matches!(with(Path::new("/bin/true")), Err(LdconfigError::Dynamic { .. })));
    assert!(matches!(with(&place.path("sbin/ldconfig")), Err(LdconfigError::Dynamic { .. })));
    assert!(matches!(with(Path::new("/no/ldconfig")), Err(LdconfigError::Program { .. })));
    assert!(matches!(
        run(&Root::open(Path::new("/")).unwrap(), Path::new(LDCONFIG), &[FOLDER]),
        Err(LdconfigError::Host { .. })
    ));
    for folder in ["relative", "", "/a\n/b", "/a#", "/a=b", " /a"] {
        assert!(
            matches!(run(&place.root(), Path::new(LDCONFIG), &[folder]), Err(LdconfigError::Folder { .. })),
            "{folder:?}"
        );
    }
    assert!(!place.path("etc/ld.so.cache").exists());

    let named = place.path("sbin/ldconfig");
    assert_eq!(host_path(&Path::new("@").join(&named)), Path::new("@").join(&named));
    assert_eq!(host_path(Path::new(&format!("@{}", named.display()))), named);
    fs::write(place.path("sbin/ldconfig.real"), "").unwrap();
    assert_eq!(host_path(Path::new(&format!("@{}", named.display()))), place.path("sbin/ldconfig.real"));
}

/// ldconfig blocks on a FIFO. The test inspects the process meanwhile, and the timeout kills it.
#[test]
fn hanging_ldconfig_is_isolated_and_stopped() {
    let Some(place) = TestRoot::new_if_isolatable() else { return };
    let name = format!("/etc/wait-{}", place.top.path().file_name().unwrap().display());
    fifo(&place.path(&name[1..]));
    let program = program::seal(&host_path(Path::new(LDCONFIG))).unwrap();
    // A descriptor that our caller left open.
    let forgotten = fs::File::open("/etc").unwrap();
    rustix::io::fcntl_setfd(&forgotten, rustix::io::FdFlags::empty()).unwrap();
    let begin = Instant::now();
    let process = std::thread::scope(|scope| {
        let inspected = scope.spawn(|| inspect_process(&name));
        let timeout = Duration::from_secs(5);
        let result = jail::run(&place.root(), &program, &["ldconfig", "-f", &name], timeout, true);
        assert!(matches!(result, Err(LdconfigError::TimedOut { .. })), "{result:?}");
        inspected.join().unwrap()
    });
    assert!(begin.elapsed() < Duration::from_secs(60));
    let status = |name: &str| {
        let line = process.status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name} in {}", process.status)).trim().to_string()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(set), "0000000000000000", "{set}");
    }
    assert_eq!((status("NoNewPrivs").as_str(), status("Seccomp").as_str()), ("1", "2"));
    assert!(status("NSpid").ends_with("\t1"), "the first process of its namespace: {}", status("NSpid"));
    assert_eq!(process.environment, b"");
    let of_its_own = process.limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
    assert!(of_its_own.split_whitespace().any(|word| word == "268435456"), "{of_its_own}");
    assert!(process.descriptors.iter().all(|open| open.contains("memfd:mpu") || open.contains(&name)), "{process:?}");
    assert_eq!(process.namespaces.len(), 3);
    for (own, drop_in) in &process.namespaces {
        assert_ne!(own, drop_in);
    }
    let points: Vec<&str> = process.mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    assert_eq!(points, ["/", "/proc"], "{}", process.mounts);
    assert_eq!(process.root_has, ["etc", "opt", "proc", "sbin", "usr"]);
    assert_eq!(process.proc_has, 0);
}

/// Linux 5.6 lacks these two calls, and has the others that the jail needs.
#[test]
fn cache_is_written_on_older_kernels() {
    let Some(_) = TestRoot::new_if_isolatable() else { return };
    for call in [libc::SYS_close_range, libc::SYS_mount_setattr] {
        let place = TestRoot::new();
        without_syscall(call, || place.update()).unwrap();
        assert!(place.cache().contains("=> /opt/driver/libm.so.6"), "{}", place.cache());
    }
    let open = fs::File::open("/etc").unwrap();
    rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
    sys::close_on_exec_one_by_one();
    assert!(rustix::io::fcntl_getfd(&open).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
}

/// pivot_root fails, as on an initial RAM file system: here, because the root is a chroot on a shared mount (as for an agent in
/// a container whose root is the host's).
#[test]
fn missing_pivot_root_falls_back_to_chroot() {
    let Some(place) = TestRoot::new_if_isolatable().filter(|_| crate::beneath::mount::unshare().is_ok()) else {
        return;
    };
    fs::create_dir_all(place.top.path().join("proc")).unwrap();
    fs::copy(host_path(Path::new(LDCONFIG)), place.top.path().join("ldconfig")).unwrap();
    rustix::mount::mount_change("/", rustix::mount::MountPropagationFlags::SHARED).unwrap();
    rustix::mount::mount_bind(place.top.path(), place.top.path()).unwrap();
    rustix::mount::mount_bind("/proc", place.top.path().join("proc")).unwrap();
    // After unshare, the root directory belongs to this thread alone.
    let back = fs::File::open("/").unwrap();
    rustix::process::chroot(place.top.path()).unwrap();
    rustix::process::chdir("/").unwrap();
    let result = run(&Root::open(Path::new("/root")).unwrap(), Path::new("/ldconfig"), &[FOLDER]);
    rustix::process::fchdir(&back).unwrap();
    rustix::process::chroot(".").unwrap();
    rustix::mount::unmount(place.top.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    result.unwrap();
    assert!(place.cache().contains("=> /opt/driver/libm.so.6"), "{}", place.cache());
}

#[derive(Debug)]
struct ProcessFacts {
    status: String,
    limits: String,
    environment: Vec<u8>,
    descriptors: Vec<String>,
    namespaces: Vec<(PathBuf, PathBuf)>,
    mounts: String,
    root_has: Vec<String>,
    proc_has: usize,
}

/// Finds the process with this argument, and reads its state from /proc.
fn inspect_process(word: &str) -> ProcessFacts {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "no process has {word}");
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let at = entry.path();
            let line = fs::read(at.join("cmdline")).unwrap_or_default();
            if !line.starts_with(b"ldconfig\0-f\0") || !line.ends_with(format!("{word}\0").as_bytes()) {
                continue;
            }
            let names = |path: &str| {
                let mut names: Vec<String> = fs::read_dir(at.join(path))
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                names
            };
            let link = |name: &str, of: &Path| fs::read_link(of.join("ns").join(name)).unwrap();
            return ProcessFacts {
                status: fs::read_to_string(at.join("status")).unwrap(),
                limits: fs::read_to_string(at.join("limits")).unwrap(),
                environment: fs::read(at.join("environ")).unwrap(),
                descriptors: names("fd")
                    .iter()
                    .map(|fd| fs::read_link(at.join("fd").join(fd)).unwrap().display().to_string())
                    .collect(),
                namespaces: ["mnt", "pid", "ipc"]
                    .map(|name| (link(name, &at), link(name, Path::new("/proc/thread-self"))))
                    .to_vec(),
                mounts: fs::read_to_string(at.join("mountinfo")).unwrap(),
                root_has: names("root"),
                proc_has: names("root/proc").len(),
            };
        }
    }
}

/// As in a createContainer hook: the container's mount namespace with the host's root as `/`, the container's root mounted on
/// itself, and libraries and /proc mounted in it.
#[test]
fn in_containers_mounts_mounted_libraries_are_found() {
    let Some(place) = TestRoot::new_if_isolatable().filter(|_| crate::beneath::mount::unshare().is_ok()) else {
        return;
    };
    let root = place.path("");
    rustix::mount::mount_bind_recursive(&root, &root).unwrap();
    fs::create_dir_all(place.path("mnt/lib")).unwrap();
    fs::write(place.path("mnt/lib/libmounted.so.1"), "").unwrap();
    rustix::mount::mount_bind(host_library(), place.path("mnt/lib/libmounted.so.1")).unwrap();
    rustix::mount::mount_bind("/proc", place.path("proc")).unwrap();
    fs::write(place.path("etc/ld.so.conf"), "/proc/1/root/usr/lib\ninclude /etc/ld.so.conf.d/*.conf\n").unwrap();
    run(&Root::open(&root).unwrap(), Path::new(LDCONFIG), &[FOLDER, "/mnt/lib"]).unwrap();
    let cache = place.cache();
    assert!(cache.contains("=> /mnt/lib/libm.so.6") && cache.contains("=> /opt/driver/libm.so.6"), "{cache}");
    assert!(!cache.contains("/proc"), "{cache}");
    // Only the earlier mounts remain.
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let here: Vec<&str> =
        mounts.lines().filter(|line| line.contains(root.to_str().unwrap().trim_end_matches('/'))).collect();
    assert_eq!(here.len(), 3, "{here:#?}");
    for path in ["proc", "mnt/lib/libmounted.so.1", ""] {
        rustix::mount::unmount(place.path(path), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// A container of a user namespace: its files belong to another user, and without capabilities only that user may
/// write them.
#[test]
fn user_namespace_cache_is_written_as_owner() {
    let Some(place) = TestRoot::new_if_isolatable() else { return };
    let all: Vec<String> = snapshot(&place.path("")).into_keys().collect();
    for name in all.iter().map(String::as_str).chain([""]) {
        std::os::unix::fs::lchown(place.path(name), Some(200_000), Some(200_000)).unwrap();
        if place.path(name).is_dir() {
            fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    place.update().unwrap();
    assert!(place.cache().contains("=> /opt/driver/libm.so.6"), "{}", place.cache());
    assert_eq!(fs::metadata(place.path("etc/ld.so.cache")).unwrap().uid(), 200_000);
}
