//! Each hook on a test root, with the arguments of NVIDIA's CDI files.

use super::*;
use crate::driver::fake;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use tempfile::TempDir;

struct Bundle {
    top: TempDir,
}

impl Bundle {
    fn new() -> Bundle {
        let bundle = Bundle { top: TempDir::new().unwrap() };
        fs::create_dir_all(bundle.path("etc")).unwrap();
        fs::create_dir_all(bundle.top.path().join("outside")).unwrap();
        let config = r#"{"ociVersion": "1.0.2", "root": {"path": "rootfs", "readonly": true}, "process": {}}"#;
        fs::write(bundle.top.path().join("config.json"), config).unwrap();
        let state = format!(r#"{{"ociVersion": "1.0.2", "id": "x", "pid": 1, "bundle": {:?}}}"#, bundle.top.path());
        fs::write(bundle.top.path().join("state"), state).unwrap();
        bundle
    }

    fn path(&self, below: &str) -> PathBuf {
        self.top.path().join("rootfs").join(below)
    }

    fn text(&self, below: &str) -> String {
        fs::read_to_string(self.path(below)).unwrap()
    }

    fn write(&self, below: &str, text: &[u8]) {
        fs::create_dir_all(self.path(below).parent().unwrap()).unwrap();
        fs::write(self.path(below), text).unwrap();
    }

    /// Runs the hook with these arguments twice. The second run must change nothing.
    fn hook(&self, words: &[&str]) -> Result<(), String> {
        let once = || {
            let words = [NAME].iter().chain(words).map(OsString::from);
            let spec = format!("--container-spec={}", self.top.path().join("state").display());
            let args = Args::try_parse_from(words.chain([spec.into()])).map_err(|error| error.to_string())?;
            run(args, &RootCache::default(), Log { debug: false, quiet: true }).map_err(|error| chain(&error))
        };
        once()?;
        let before = self.inodes();
        once()?;
        assert_eq!(before, self.inodes(), "{words:?}: the second run has changed something");
        Ok(())
    }

    fn inodes(&self) -> Vec<(PathBuf, u64, u32, i64)> {
        let inode = |(path, meta): (PathBuf, fs::Metadata)| (path, meta.ino(), meta.mode(), meta.mtime_nsec());
        crate::beneath::tests::walk(&self.path("")).into_iter().map(inode).collect()
    }
}

#[test]
fn newer_compatibility_libraries_come_first() {
    let bundle = Bundle::new();
    let conf = "etc/ld.so.conf.d/00-compat-mpu.conf";
    let with = |version: &str| bundle.hook(&["enable-cuda-compat", "--host-driver-version", version]);
    with("570.1").unwrap();
    assert!(!bundle.path("etc/ld.so.conf.d").exists(), "nothing there, nothing done");

    for name in ["libcuda.so.560.35.03", "libcuda.so.1", "libcuda.so.x.y", "other"] {
        bundle.write(&format!("usr/local/cuda-12/compat/{name}"), b"");
    }
    bundle.write("usr/local/cuda-12/compat/libcuda.so.575.57.08", b"");
    symlink("libcuda.so.575.57.08", bundle.path("usr/local/cuda-12/compat/libcuda.so.999.1")).unwrap();
    symlink("/usr/local/cuda-12", bundle.path("usr/local/cuda")).unwrap();
    with("570.211.01").unwrap();
    assert_eq!(bundle.text(conf), "/usr/local/cuda/compat\n");
    // The same image on a newer host: the file of the earlier start goes.
    with("575.1").unwrap();
    assert!(!bundle.path(conf).exists());
    let other =
        ["enable-cuda-compat", "--host-driver-version=99.1", "--cuda-compat-container-root=/usr/local/cuda-12/compat"];
    bundle.hook(&other).unwrap();
    assert_eq!(bundle.text(conf), "/usr/local/cuda-12/compat\n");
    bundle.hook(&["enable-cuda-compat", "--host-cuda-version=12.1"]).unwrap();
    assert!(!bundle.path(conf).exists(), "no note to compare with");
    // Without a version the container's state is not even read.
    fs::remove_file(bundle.top.path().join("state")).unwrap();
    bundle.hook(&["enable-cuda-compat"]).unwrap();
}

#[test]
fn modes_are_set_on_existing_paths() {
    let bundle = Bundle::new();
    bundle.write("dev/dri/card0", b"");
    symlink(bundle.top.path().join("outside"), bundle.path("dev/out")).unwrap();
    let before = fs::metadata(bundle.top.path().join("outside")).unwrap().mode();
    bundle
        .hook(&["chmod", "--mode", "711", "--path", "/dev/dri,/dev/dri/card0", "--path=/dev/out", "--path", "/none"])
        .unwrap();
    let mode = |path: &str| fs::metadata(bundle.path(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("dev/dri"), mode("dev/dri/card0")), (0o711, 0o711));
    assert_eq!(fs::metadata(bundle.top.path().join("outside")).unwrap().mode(), before);
    for wrong in ["", "9", "rwx", "17777", "+7", "-7"] {
        let error = bundle.hook(&["chmod", &format!("--mode={wrong}"), "--path", "/dev"]).unwrap_err();
        assert!(error.contains("is not an octal number"), "{error}");
    }
}

#[test]
fn profile_names_containers_gpus() {
    let bundle = Bundle::new();
    bundle.hook(&["update-application-profile"]).unwrap();
    let node = |name: &str, minor| fake::node(&bundle.path(name), 0o400, 195, minor);
    fs::create_dir(bundle.path("dev")).unwrap();
    bundle.write("dev/nvidia7", b"a file is no GPU");
    bundle.hook(&["update-application-profile"]).unwrap();
    assert!(!bundle.path("etc/nvidia").exists());
    if node("dev/nvidia0", 0).is_err() {
        return println!("skipped: making device nodes needs root");
    }
    for (name, minor) in [("dev/nvidia12", 12), ("dev/nvidiactl", 255), ("dev/nvidia-uvm", 3), ("dev/nvidia99", 99)] {
        node(name, minor).unwrap();
    }
    bundle.hook(&["update-application-profile"]).unwrap();
    let file = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf";
    let expected = concat!(
        r#"{"profiles":[{"name":"_container_","settings":["EGLVisibleDGPUDevices",0x1001]}],"#,
        r#""rules":[{"pattern":[],"profile":"_container_"}]}"#
    );
    assert_eq!(bundle.text(file), expected);
    assert_eq!(fs::metadata(bundle.path(file)).unwrap().mode() & 0o7777, 0o444);
    // Created folders must be writable for their owner: otherwise ldconfig could not create its cache in a new /etc.
    assert_eq!(fs::metadata(bundle.path("etc/nvidia")).unwrap().mode() & 0o7777, 0o755);
}

#[test]
fn parameters_are_hidden_by_mount() {
    if !rustix::process::geteuid().is_root() || crate::beneath::mount::unshare().is_err() {
        return println!("skipped: mounting needs root");
    }
    let bundle = Bundle::new();
    let host = bundle.top.path().join("params");
    let log = Log { debug: false, quiet: true };
    let disable =
        || params::disable(&host, || RootCache::default().of(bundle.top.path().join("state").as_os_str()), log);
    let mounts = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap().lines().count();
    let before = mounts();

    disable().unwrap();
    fs::write(&host, "A: 1\nModifyDeviceFiles: 1\nB: 2\n").unwrap();
    disable().unwrap();
    assert_eq!(mounts(), before, "a container without the file needs nothing");
    bundle.write("proc/driver/nvidia/params", b"A: 1\nModifyDeviceFiles: 1\nB: 2\n");
    disable().unwrap();
    assert_eq!(bundle.text("proc/driver/nvidia/params"), "A: 1\nModifyDeviceFiles: 0\nB: 2\n");
    assert!(fs::write(bundle.path("proc/driver/nvidia/params"), "").is_err());
    disable().unwrap();
    assert_eq!(mounts(), before + 1, "one mount, however often it is run");
    rustix::mount::unmount(bundle.path("proc/driver/nvidia/params"), rustix::mount::UnmountFlags::DETACH).unwrap();
    fs::write(&host, "ModifyDeviceFiles: 0\n").unwrap();
    disable().unwrap();
    assert_eq!(mounts(), before);

    // A directory in the file's place, and a link out of the container.
    fs::write(&host, "ModifyDeviceFiles: 1\n").unwrap();
    fs::remove_file(bundle.path("proc/driver/nvidia/params")).unwrap();
    symlink(&host, bundle.path("proc/driver/nvidia/params")).unwrap();
    disable().unwrap();
    assert_eq!((mounts(), fs::read_to_string(&host).unwrap().as_str()), (before, "ModifyDeviceFiles: 1\n"));
    fs::remove_file(bundle.path("proc/driver/nvidia/params")).unwrap();
    fs::create_dir(bundle.path("proc/driver/nvidia/params")).unwrap();
    assert!(chain(&disable().unwrap_err()).ends_with("is not a regular file"));
}

/// The last ldconfig counts, as with NVIDIA's.
#[test]
fn ldconfig_and_folders_may_be_given_twice() {
    let line = "update-ldcache --ldconfig-path /a --ldconfig-path /b --folder=x,y --folder z";
    let Hook::UpdateLdcache { ldconfig_path, folders } =
        Args::try_parse_from([NAME].into_iter().chain(line.split(' '))).unwrap().hook
    else {
        panic!("another hook")
    };
    assert_eq!((ldconfig_path.as_path(), folders.join(" ").as_str()), (Path::new("/b"), "x y z"));
}

/// The folder of all GPUs, here without a procfs.
#[test]
fn gpus_without_node_are_hidden() {
    // The mounts are in this thread's own namespace.
    if !rustix::process::geteuid().is_root() || crate::beneath::mount::unshare().is_err() {
        return println!("skipped: needs root");
    }
    let bundle = Bundle::new();
    let folder = "proc/driver/nvidia/gpus";
    bundle.hook(&["hide-other-gpus"]).unwrap();
    let shown = || {
        let names = fs::read_dir(bundle.path(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    for (name, text) in [("a", "Device Minor: \t 0\n"), ("b", "Device Minor: \t 1\n"), ("c", "Model: x\n")] {
        bundle.write(&format!("{folder}/{name}/information"), text.as_bytes());
    }
    // A FIFO or a link out of the container is not a GPU.
    fs::create_dir(bundle.path(folder).join("d")).unwrap();
    fake::fifo(&bundle.path(folder).join("d/information"));
    symlink("/etc/passwd", bundle.path(folder).join("e")).unwrap();
    fs::create_dir(bundle.path("dev")).unwrap();
    bundle.write("dev/nvidia0", b"no device");
    fake::node(&bundle.path("dev/nvidia1"), 0o666, 195, 1).unwrap();
    fake::node(&bundle.path("dev/nvidiactl"), 0o666, 195, 255).unwrap();
    bundle.hook(&["hide-other-gpus"]).unwrap();
    assert_eq!(shown(), ["b"]);
    assert_eq!(bundle.text(&format!("{folder}/b/information")), "Device Minor: \t 1\n");
    let written = fs::write(bundle.path(folder).join("b/information"), "");
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert!(fs::create_dir(bundle.path(folder).join("new")).is_err());
    rustix::mount::unmount(bundle.path(folder), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(shown(), ["a", "b", "c", "d", "e"]);
}
