//! Hostile roots: nothing outside them is changed or read, and nothing blocks.

use super::mount::unshare;
use super::*;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

/// A root with a neighbour that must never change.
struct TestRoot {
    top: TempDir,
    before: BTreeMap<PathBuf, String>,
}

impl TestRoot {
    fn new() -> TestRoot {
        let top = TempDir::new().unwrap();
        for folder in ["root/etc", "root/usr/lib", "outside/etc", "outside/empty"] {
            fs::create_dir_all(top.path().join(folder)).unwrap();
        }
        fs::write(top.path().join("outside/etc/passwd"), "secret").unwrap();
        fs::write(top.path().join("root/etc/passwd"), "theirs").unwrap();
        let before = snapshot(&top.path().join("outside"));
        TestRoot { top, before }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.top.path().join("root").join(below)
    }

    fn outside(&self) -> PathBuf {
        self.top.path().join("outside")
    }

    fn root(&self) -> Root {
        Root::open(&self.top.path().join("root")).unwrap()
    }

    fn text(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap()
    }
}

impl Drop for TestRoot {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(snapshot(&self.outside()), self.before, "something outside the root has changed");
        }
    }
}

/// Everything below a folder, sorted.
pub(crate) fn walk(top: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let (mut found, mut folders) = (Vec::new(), vec![top.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            folders.extend(about.is_dir().then(|| path.clone()));
            found.push((path, about));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

/// Every name, kind, mode, size and content of a directory tree.
fn snapshot(top: &Path) -> BTreeMap<PathBuf, String> {
    let about = |(path, about): (PathBuf, fs::Metadata)| {
        let content = match about.file_type() {
            kind if kind.is_file() => fs::read_to_string(&path).unwrap(),
            kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
            _ => String::new(),
        };
        let owner = (about.mode(), about.uid(), about.gid(), about.nlink(), about.mtime_nsec());
        (path, format!("{owner:?} {content}"))
    };
    walk(top).into_iter().map(about).collect()
}

fn p(path: &str) -> &Path {
    Path::new(path)
}

#[test]
fn links_out_of_root_resolve_inside() {
    let place = TestRoot::new();
    let root = place.root();
    let outside = place.outside();
    symlink(&outside, place.path("absolute")).unwrap();
    symlink("../outside", place.path("above")).unwrap();
    symlink("../../../../../../../../../../etc", place.path("far")).unwrap();
    symlink("/", place.path("top")).unwrap();

    assert_eq!(root.read_file(p("/far/passwd"), 100).unwrap(), b"theirs");
    assert_eq!(root.read_file(p("/top/../etc/passwd"), 100).unwrap(), b"theirs");
    assert_eq!(root.read_file(p("/../../etc/passwd"), 100).unwrap(), b"theirs");
    assert!(root.resolve(p("/absolute/etc/passwd")).unwrap_err().is_missing());
    assert!(root.find(p("/above/etc/passwd")).unwrap().is_none());

    // Writing creates the links' targets below the root.
    root.create_dir_all(p("/absolute/new"), 0o755).unwrap();
    assert!(place.path(outside.join("new").strip_prefix("/").unwrap().to_str().unwrap()).is_dir());
    root.create_dir_all(p("/above"), 0o750).unwrap();
    assert_eq!(fs::metadata(place.path("outside")).unwrap().mode() & 0o7777, 0o750);
    root.create_file(p("/above/file"), b"x", 0o600).unwrap();
    assert_eq!(place.text("outside/file"), "x");
    root.touch_file(p("/above/../far/point")).unwrap();
    assert_eq!(place.text("etc/point"), "");
    root.symlink(&outside.join("etc/passwd"), p("/above/link")).unwrap();
    assert!(root.read_file(p("/above/link"), 100).unwrap_err().is_missing());
    assert!(root.remove_file(p("/far/passwd")).unwrap());
    assert!(!place.path("etc/passwd").exists());
}

#[test]
fn final_link_is_replaced_not_followed() {
    let place = TestRoot::new();
    let root = place.root();
    let target = place.outside().join("etc/passwd");
    for name in ["etc/a", "etc/b", "etc/c"] {
        symlink(&target, place.path(name)).unwrap();
    }
    root.create_file(p("/etc/a"), b"new", 0o644).unwrap();
    assert!(fs::symlink_metadata(place.path("etc/a")).unwrap().is_file());
    root.symlink(p("other"), p("/etc/b")).unwrap();
    assert_eq!(fs::read_link(place.path("etc/b")).unwrap(), p("other"));
    assert!(!root.symlink(p("other"), p("/etc/b")).unwrap(), "it was there");
    assert!(root.remove_file(p("/etc/c")).unwrap());
    assert!(!root.remove_file(p("/etc/c")).unwrap());
    assert!(!root.remove_file(p("/nowhere/c")).unwrap());
}

#[test]
fn dangling_link_mount_point_stays_in_root() {
    let place = TestRoot::new();
    let root = place.root();
    symlink(place.outside().join("etc/new"), place.path("etc/out")).unwrap();
    symlink("../var/run/socket", place.path("etc/in")).unwrap();
    symlink("/run", place.path("var")).unwrap();
    let kind = |found: Handle| found.kind().unwrap();
    assert_eq!(kind(root.touch_file(p("/etc/out")).unwrap()), FileType::RegularFile);
    assert!(place.path(place.outside().join("etc/new").strip_prefix("/").unwrap().to_str().unwrap()).is_file());
    root.touch_file(p("/etc/in")).unwrap();
    assert!(place.path("run/run/socket").is_file());
    // Existing files stay unchanged.
    root.touch_file(p("/etc/passwd")).unwrap();
    assert_eq!(place.text("etc/passwd"), "theirs");
    assert!(matches!(root.touch_file(p("/etc")), Err(BeneathError::WrongKind { .. })));
}

#[test]
fn link_loops_and_invalid_names_are_errors() {
    let place = TestRoot::new();
    let root = place.root();
    symlink("loop", place.path("loop")).unwrap();
    symlink("b/x", place.path("a")).unwrap();
    symlink("a/x", place.path("b")).unwrap();
    for path in ["/loop", "/loop/x", "/a", "/b/y"] {
        assert!(root.resolve(p(path)).is_err());
        assert!(root.create_dir_all(p(path), 0o755).is_err(), "{path}");
        assert!(root.touch_file(p(path)).is_err(), "{path}");
    }
    // A dangling link that leads to itself.
    symlink("missing/../round", place.path("round")).unwrap();
    assert!(root.touch_file(p("/round")).is_err());
    for path in ["/", "", "..", "/etc/..", "."] {
        assert!(matches!(root.create_file(p(path), b"", 0o644), Err(BeneathError::NoFileName { .. })), "{path:?}");
        assert!(matches!(root.symlink(p("x"), p(path)), Err(BeneathError::NoFileName { .. })), "{path:?}");
        assert!(matches!(root.remove_file(p(path)), Err(BeneathError::NoFileName { .. })), "{path:?}");
    }
    assert!(root.create_file(p("/etc/nul\0l"), b"", 0o644).is_err());
    assert!(root.create_file(p("/etc/passwd/x"), b"", 0o644).is_err());
    assert!(root.create_file(p("/etc"), b"", 0o644).is_err(), "a directory is not replaced");
    assert!(root.symlink(p("x"), p("/etc")).is_err(), "a directory is not replaced");
    let leftovers = fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(leftovers.into_iter().all(|name| !name.to_string_lossy().starts_with(".mpu-")));
}

/// Each link of the image leads through hundreds of missing folders to the next link.
#[test]
fn dangling_links_create_bounded_folders() {
    let place = TestRoot::new();
    // No more: another test renames all the time, so the kernel restarts walks over `..`.
    for number in 0..30 {
        let down: String = (0..100).map(|_| format!("{number}/")).collect();
        let target = format!("/{down}{}link{}", "../".repeat(100), number + 1);
        symlink(target, place.path(&format!("link{number}"))).unwrap();
    }
    let check = |error: BeneathError, most: usize| {
        let loops = matches!(&error, BeneathError::Path { source, .. } if source.raw_os_error() == Some(libc::ELOOP));
        let made = (0..30).filter(|number| place.path(&number.to_string()).exists()).count();
        assert!(loops && made <= most, "{error:?}, {made} chains of 100 folders");
    };
    check(place.root().create_dir_all(p("/link0/x"), 0o755).unwrap_err(), 11);
    check(place.root().touch_file(p("/link10")).unwrap_err(), 22);
}

#[test]
fn opening_never_waits_and_reads_only_files() {
    let place = TestRoot::new();
    let root = place.root();
    crate::driver::fake::fifo(&place.path("etc/fifo"));
    assert!(fs::symlink_metadata(place.path("etc/fifo")).unwrap().file_type().is_fifo());
    symlink("fifo", place.path("etc/to-fifo")).unwrap();
    for path in ["/etc/fifo", "/etc/to-fifo", "/etc"] {
        assert!(matches!(root.open_file(p(path)), Err(BeneathError::WrongKind { .. })), "{path}");
    }
    assert!(root.read_dir(p("/etc/fifo"), MAX_NAMES).is_err());
    root.create_file(p("/etc/fifo"), b"now a file", 0o644).unwrap();
    assert_eq!(root.read_file(p("/etc/to-fifo"), 100).unwrap(), b"now a file");
    assert!(matches!(root.read_file(p("/etc/fifo"), 9), Err(BeneathError::TooLarge { .. })));
    let names: Vec<_> =
        root.read_dir(p("/etc"), MAX_NAMES).unwrap().into_iter().map(|entry| (entry.name, entry.is_file)).collect();
    assert_eq!(names, [("fifo".into(), true), ("passwd".into(), true), ("to-fifo".into(), false)]);
}

#[test]
fn magic_links_are_refused() {
    // The real /proc: /proc/self/root would lead out of any root.
    let root = Root::open(p("/proc")).unwrap();
    for path in ["/self/root/etc/passwd", "/self/cwd", "/self/exe", "/self/fd/0"] {
        assert!(root.open_file(p(path)).is_err(), "{path}");
    }
    assert!(root.read_file(p("/self/status"), 100_000).is_ok());
}

#[test]
fn modes_do_not_depend_on_umask() {
    let place = TestRoot::new();
    let root = place.root();
    root.create_dir_all(p("/x/y"), 0o775).unwrap();
    root.create_file(p("/x/y/z"), b"", 0o666).unwrap();
    let mode = |path: &str| fs::metadata(place.path(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("x"), mode("x/y"), mode("x/y/z")), (0o775, 0o775, 0o666));
}

#[test]
fn write_to_readonly_folder_leaves_file_whole() {
    let place = TestRoot::new();
    let root = place.root();
    fs::set_permissions(place.path("etc"), fs::Permissions::from_mode(0o555)).unwrap();
    let result = root.create_file(p("/etc/passwd"), b"new", 0o644);
    // Root may write nevertheless.
    match rustix::process::geteuid().is_root() {
        true => result.unwrap(),
        false => {
            assert!(result.unwrap_err().is_denied());
            assert_eq!(place.text("etc/passwd"), "theirs");
        }
    }
    fs::set_permissions(place.path("etc"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// As in CVE-2024-0132 and CVE-2025-23359: a directory becomes a link between check and use.
#[test]
fn concurrently_swapped_link_stays_in_root() {
    let place = TestRoot::new();
    let root = place.root();
    fs::create_dir(place.path("swapped")).unwrap();
    symlink("../outside/etc", place.path("link")).unwrap();
    let (stop, turns) = (AtomicBool::new(false), std::sync::atomic::AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (swapped, link) = (place.path("swapped"), place.path("link"));
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(CWD, &swapped, CWD, &link, rustix::fs::RenameFlags::EXCHANGE).unwrap();
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut inside = 0;
        for _ in 0..2000 {
            // Each call may fail while the names change, but none may change anything outside.
            let _ = root.create_dir_all(p("/swapped/new/deep"), 0o755);
            let _ = root.create_file(p("/swapped/passwd"), b"overwritten", 0o644);
            let _ = root.symlink(p("/x"), p("/swapped/empty"));
            let _ = root.touch_file(p("/swapped/point"));
            let _ = root.remove_file(p("/swapped/new/deep"));
            match root.read_file(p("/swapped/passwd"), 100) {
                Ok(text) => {
                    inside += 1;
                    assert_ne!(text, b"secret");
                }
                Err(_) => continue,
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(inside > 0 && turns.load(Ordering::Relaxed) > 100, "{inside} reads, {turns:?} turns");
    });
}

#[test]
fn mount_lands_where_descriptor_is() {
    if !rustix::process::geteuid().is_root() || unshare().is_err() {
        return println!("skipped: mounting needs root");
    }
    let place = TestRoot::new();
    let root = place.root();
    symlink(place.outside().join("etc"), place.path("escape")).unwrap();
    let source = fs::File::open(place.outside().join("etc/passwd")).unwrap();
    let tree = || Tree::of(&source, false).unwrap();
    let all = Restrictions { read_only: true, no_exec: true, no_devices: true };

    let target = root.touch_file(p("/escape/passwd")).unwrap();
    // After the target is resolved, its name leads elsewhere. The mount goes to the resolved file.
    fs::remove_file(place.path("escape")).unwrap();
    symlink(place.path("etc"), place.path("escape")).unwrap();
    tree().mount_restricted(&target, all).unwrap();
    assert_eq!(place.text("etc/passwd"), "theirs");
    let made = place.path(place.outside().strip_prefix("/").unwrap().to_str().unwrap()).join("etc/passwd");
    assert_eq!(fs::read_to_string(&made).unwrap(), "secret");
    let refused = fs::write(&made, "changed").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    // The restrictions apply to the copy only.
    fs::write(place.outside().join("etc/passwd"), "secret").unwrap();
    let wrong = tree().mount_onto(&root.resolve(p("/etc")).unwrap());
    assert!(matches!(wrong, Err(BeneathError::Path { act: "mount onto", .. })), "a file on a directory");

    // As before Linux 5.12.
    tree().mount_then_restrict(&root.touch_file(p("/etc/later")).unwrap(), all).unwrap();
    assert_eq!(place.text("etc/later"), "secret");
    let refused = fs::write(place.path("etc/later"), "changed").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    fs::write(place.outside().join("etc/passwd"), "secret").unwrap();

    let memory = Tree::memory(4096).unwrap();
    memory.mount_onto(&root.resolve(p("/usr/lib")).unwrap()).unwrap();
    fs::write(place.path("usr/lib/x"), "y").unwrap();
    assert!(fs::write(place.path("usr/lib/large"), vec![0; 100_000]).is_err());
    for mounted in [made, place.path("usr/lib"), place.path("etc/later")] {
        rustix::mount::unmount(mounted, UnmountFlags::DETACH).unwrap();
    }
    let mut place = place;
    place.before = snapshot(&place.outside());
}

/// Runs something on a thread for which a system call fails with ENOSYS.
pub(crate) fn without_syscall<T: Send>(call: i64, run: impl FnOnce() -> T + Send) -> T {
    use seccompiler::{SeccompAction, SeccompFilter};
    let filter = SeccompFilter::new(
        [(call, Vec::new())].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.unsigned_abs()),
        std::env::consts::ARCH.try_into().unwrap(),
    );
    let program: seccompiler::BpfProgram = filter.unwrap().try_into().unwrap();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            seccompiler::apply_filter(&program).unwrap();
            run()
        });
        thread.join().unwrap()
    })
}

#[test]
fn missing_openat2_is_kernel_error() {
    let place = TestRoot::new();
    let result = without_syscall(libc::SYS_openat2, || Root::open(&place.path("")));
    assert!(matches!(result, Err(BeneathError::NoOpenat2)), "{result:?}");
}

#[test]
fn without_mount_setattr_attached_mount_is_restricted() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: mounting needs root");
    }
    let place = TestRoot::new();
    without_syscall(libc::SYS_mount_setattr, || {
        unshare().unwrap();
        let source = fs::File::open(place.outside().join("etc/passwd")).unwrap();
        let target = place.root().resolve(p("/etc/passwd")).unwrap();
        let all = Restrictions { read_only: true, no_exec: true, no_devices: true };
        let whole = Tree::of(fs::File::open(place.outside()).unwrap(), true).unwrap();
        let refused = whole.mount_restricted(&place.root().resolve(p("/usr")).unwrap(), all);
        assert!(matches!(refused, Err(BeneathError::Path { .. })), "a tree of many mounts needs the new call");
        Tree::of(&source, false).unwrap().mount_restricted(&target, all).unwrap();
        assert_eq!(place.text("etc/passwd"), "secret");
        let written = fs::write(place.path("etc/passwd"), "changed").unwrap_err();
        assert_eq!(written.kind(), io::ErrorKind::ReadOnlyFilesystem);
        rustix::mount::unmount(place.path("etc/passwd"), UnmountFlags::DETACH).unwrap();
    });
}

#[test]
fn restricted_mount_keeps_its_older_restrictions() {
    if !rustix::process::geteuid().is_root() || unshare().is_err() {
        return println!("skipped: mounting needs root");
    }
    let place = TestRoot::new();
    let folder = place.path("usr/lib");
    rustix::mount::mount("none", &folder, "tmpfs", MountFlags::NOEXEC | MountFlags::NOATIME, None).unwrap();
    fs::write(folder.join("x"), "y").unwrap();
    let tree = Tree::of(fs::File::open(folder.join("x")).unwrap(), false).unwrap();
    let read_only = Restrictions { read_only: true, ..Restrictions::default() };
    tree.mount_then_restrict(&place.root().resolve(p("/etc/passwd")).unwrap(), read_only).unwrap();
    let has = rustix::fs::statvfs(place.path("etc/passwd")).unwrap().f_flag;
    let kept = StatVfsMountFlags::NOEXEC | StatVfsMountFlags::NOATIME;
    assert!(has.contains(kept | StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOSUID), "{has:?}");
    for mounted in [place.path("etc/passwd"), folder] {
        rustix::mount::unmount(mounted, UnmountFlags::DETACH).unwrap();
    }
}

/// Runs the tests of this file again as another user.
#[test]
fn ordinary_user_gets_the_same() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(&program);
    command.args(["beneath::tests", "--test-threads=1"]).env("TMPDIR", "/tmp").current_dir("/").uid(65534).gid(65534);
    match command.output() {
        Ok(done) => {
            let [output, error] = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            assert!(output.contains("test result: ok") && !output.contains(" 0 passed"), "{output}{error}");
        }
        Err(_) => println!("skipped: uid 65534 cannot run {}", program.display()),
    }
}
