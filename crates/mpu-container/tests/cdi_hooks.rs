//! The hooks in containers that runc makes, under NVIDIA's name and with the arguments of NVIDIA's CDI files. Also replays known attacks
//! on NVIDIA's hooks.
//!
//! Most tests need root and runc. `MPU_CONTAINER` can name the executable to test; attacks that only a static one withstands are
//! skipped for another.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

fn executable() -> PathBuf {
    std::env::var_os("MPU_CONTAINER").map_or(env!("CARGO_BIN_EXE_mpu-container").into(), PathBuf::from)
}

/// Whether an executable is dynamically linked, so that its environment can add libraries.
fn is_dynamic(program: &Path) -> bool {
    let headers = Command::new("readelf").arg("--program-headers").arg(program).output().expect("readelf");
    String::from_utf8_lossy(&headers.stdout).contains("INTERP")
}

/// A bundle whose container runs a program of this host. Its libraries are mounted from the host, as a driver's are, in a
/// folder that no loader searches.
struct Bundle {
    top: TempDir,
    spec: Value,
}

impl Bundle {
    /// None where runc cannot make containers.
    fn new() -> Option<Bundle> {
        let runc = Command::new("runc").arg("--version").output().is_ok_and(|output| output.status.success());
        if !rustix::process::geteuid().is_root() || !runc || !Path::new("/usr/bin/mawk").exists() {
            println!("skipped: needs root, runc and mawk");
            return None;
        }
        let top = TempDir::new().unwrap();
        let root = top.path().join("rootfs");
        for folder in ["bin", "etc", "proc", "dev", "opt/driver", "../outside/etc", "../hooks"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        symlink(executable(), top.path().join("hooks/nvidia-cdi-hook")).unwrap();
        fs::write(top.path().join("outside/etc/passwd"), "secret").unwrap();
        fs::copy("/usr/bin/mawk", root.join("bin/mawk")).unwrap();
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}),
        ];
        let output = Command::new("ldd").arg("/usr/bin/mawk").output().unwrap();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [name, "=>", path, ..] => {
                    let destination = format!("/opt/driver/{name}.99");
                    mounts.push(json!({"destination": destination, "source": path, "options": ["rbind", "ro"]}));
                }
                [loader, _] if loader.starts_with('/') => {
                    fs::create_dir_all(root.join(&loader[1..]).parent().unwrap()).unwrap();
                    fs::copy(loader, root.join(&loader[1..])).unwrap();
                }
                _ => {}
            }
        }
        let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|name| json!({"type": name}));
        let spec = json!({
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs", "readonly": true},
            "process": {
                "user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/bin"],
                "args": ["/bin/mawk", "BEGIN { print \"it runs\" }"],
            },
            "mounts": mounts,
            "hooks": {"createContainer": []},
            "linux": {"namespaces": namespaces},
        });
        Some(Bundle { top, spec })
    }

    fn path(&self, below: &str) -> PathBuf {
        self.top.path().join(below)
    }

    /// Adds a hook as NVIDIA's CDI files have it.
    fn hook(&mut self, words: &[&str]) {
        let args: Vec<&str> = ["nvidia-cdi-hook"].iter().chain(words).copied().collect();
        let path = self.path("hooks/nvidia-cdi-hook");
        let hooks = self.spec["hooks"]["createContainer"].as_array_mut().unwrap();
        hooks.push(json!({"path": path, "args": args}));
    }

    fn run(&self) -> Output {
        fs::write(self.path("config.json"), self.spec.to_string()).unwrap();
        let name = self.top.path().file_name().unwrap().to_string_lossy().replace('.', "hook");
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.path("runc")).args(["run", "--bundle"]).arg(self.top.path()).arg(&name);
        let output = runc.stdin(Stdio::null()).output().unwrap();
        let _ = Command::new("runc").arg("--root").arg(self.path("runc")).args(["delete", "--force", &name]).output();
        output
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Every name with its content and owner.
fn snapshot(top: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![top.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            if about.is_dir() {
                folders.push(path.clone());
            }
            let content = if about.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.insert(path, format!("{:o} {} {} {content:?}", about.mode(), about.uid(), about.ino()));
        }
    }
    found
}

const UPDATE: [&str; 5] = ["update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder", "/opt/driver"];

#[test]
fn container_finds_mounted_libraries() {
    let Some(mut bundle) = Bundle::new() else { return };
    let output = bundle.run();
    assert!(!output.status.success() && text(&output).contains("cannot open shared object file"), "{}", text(&output));

    bundle.hook(&["create-symlinks", "--link", "libm.so.6::/opt/driver/libm.so"]);
    bundle.hook(&["enable-cuda-compat", "--host-driver-version=570.86.15"]);
    bundle.hook(&["disable-device-node-modification"]);
    bundle.hook(&["update-application-profile"]);
    bundle.hook(&["a-hook-of-the-future", "--with", "flags"]);
    bundle.hook(&UPDATE);
    for _ in 0..2 {
        let output = bundle.run();
        assert_eq!((output.status.code(), text(&output).as_str()), (Some(0), "it runs\n"));
    }
    assert_eq!(fs::read_link(bundle.path("rootfs/opt/driver/libm.so")).unwrap(), Path::new("libm.so.6"));
    assert_eq!(fs::read_link(bundle.path("rootfs/opt/driver/libm.so.6")).unwrap(), Path::new("libm.so.6.99"));
}

#[test]
fn failing_hook_stops_container_start() {
    let Some(mut bundle) = Bundle::new() else { return };
    let conf = bundle.path("rootfs/etc/ld.so.conf");
    rustix::fs::mkfifoat(rustix::fs::CWD, &conf, rustix::fs::Mode::RUSR).unwrap();
    bundle.hook(&UPDATE);
    let output = bundle.run();
    assert!(!output.status.success(), "{}", text(&output));
    let message = "nvidia-cdi-hook: update-ldcache: /etc/ld.so.conf in the container is not a regular file";
    assert!(text(&output).contains(message), "{}", text(&output));

    let mut bundle = Bundle::new().unwrap();
    bundle.hook(&["update-ldcache", "--folder", "/opt/driver", "--flag-of-the-future"]);
    let output = bundle.run();
    assert!(!output.status.success() && text(&output).contains("'--flag-of-the-future'"), "{}", text(&output));
}

/// CVE-2024-0132 and CVE-2025-23359: names that an image, or another container on the same volume, turns into links to
/// the host between a check and a use.
#[test]
fn cve_2024_0132_links_stay_in_root() {
    let Some(mut bundle) = Bundle::new() else { return };
    // Where the hooks write, the image has links to the host, absolute and upwards.
    let (outside, root) = (bundle.path("outside"), bundle.path("rootfs"));
    symlink(&outside, root.join("usr")).unwrap();
    symlink("../../../../../../../../../../../../etc", root.join("etc/nvidia")).unwrap();
    symlink(outside.join("etc"), root.join("etc/ld.so.conf.d")).unwrap();
    symlink(outside.join("etc/passwd"), root.join("etc/ld.so.conf")).unwrap();
    symlink(outside.join("etc/passwd"), root.join("etc/ld.so.cache")).unwrap();
    symlink("/proc/1/root/etc", root.join("host")).unwrap();
    let before = (snapshot(&outside), fs::metadata("/etc").unwrap().mtime_nsec());
    bundle.hook(&["create-symlinks", "--link", "evil::/usr/etc/new,evil::/usr/etc/passwd,evil::/host/mpu-was-here"]);
    bundle.hook(&["chmod", "--mode", "777", "--path", "/usr/etc,/host/passwd"]);
    bundle.hook(&["update-ldcache", "--folder", "/opt/driver", "--folder", "/usr"]);
    let output = bundle.run();
    assert_eq!(snapshot(&outside), before.0, "{}", text(&output));
    assert_eq!(fs::metadata("/etc").unwrap().mtime_nsec(), before.1);
    assert!(!Path::new("/etc/mpu-was-here").exists());
}

#[test]
fn cve_2025_23359_swapped_folder_cannot_escape() {
    let Some(bundle) = Bundle::new() else { return };
    let (outside, root) = (bundle.path("outside"), bundle.path("rootfs"));
    fs::create_dir_all(root.join("lib/etc")).unwrap();
    symlink(&outside, root.join("swap")).unwrap();
    fs::write(bundle.path("config.json"), bundle.spec.to_string()).unwrap();
    let state = json!({"ociVersion": "1.0.2", "id": "x", "pid": 1, "bundle": bundle.top.path()}).to_string();
    let before = snapshot(&outside);
    let stop = AtomicBool::new(false);
    let mut done = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (lib, swap, here) = (root.join("lib"), root.join("swap"), rustix::fs::CWD);
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(here, &lib, here, &swap, rustix::fs::RenameFlags::EXCHANGE).unwrap();
            }
        });
        for turn in 0..100 {
            let links = format!("--link=evil::/lib/etc/passwd,evil::/lib/etc/{turn},evil::/lib/new/{turn}");
            let output = start("nvidia-cdi-hook", &["create-symlinks", &links], &state);
            done += u32::from(output.status.success());
            start("nvidia-cdi-hook", &["chmod", "--mode=700", "--path=/lib/etc"], &state);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(snapshot(&outside), before);
    assert!(done > 0, "the hook was never quick enough to do anything");
}

fn start(name: &str, words: &[&str], input: &str) -> Output {
    fed(Command::new(executable()).arg0(name).args(words), input)
}

fn fed(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // A program that does not read its input closes it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// CVE-2025-23266: a hook without its own environment starts with the image's, in the image's root.
#[test]
fn cve_2025_23266_hook_ignores_image_library() {
    let Some(mut bundle) = Bundle::new() else { return };
    let trace = bundle.path("outside/loaded");
    let source = format!(
        "#include <fcntl.h>\n__attribute__((constructor)) static void f(void) {{ creat(\"{}\", 0600); }}\n",
        trace.display()
    );
    fs::write(bundle.path("evil.c"), source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(bundle.path("rootfs/evil.so")).arg(bundle.path("evil.c"));
    if !compiler.status().is_ok_and(|status| status.success()) {
        return println!("skipped: no C compiler");
    }
    bundle.spec["process"]["env"] =
        json!(["PATH=/bin", "LD_PRELOAD=/proc/self/cwd/evil.so", "LD_LIBRARY_PATH=/proc/self/cwd"]);
    // The attack works on a hook that is an ordinary program.
    bundle.spec["hooks"]["createContainer"] = json!([{"path": "/bin/true"}]);
    let output = bundle.run();
    assert!(trace.exists(), "the attack itself: {}", text(&output));
    fs::remove_file(&trace).unwrap();
    if is_dynamic(&executable()) {
        return println!("skipped: this build of mpu-container is not static");
    }
    bundle.spec["hooks"]["createContainer"] = json!([]);
    bundle.hook(&["create-symlinks", "--link", "libm.so.6::/opt/driver/libm.so"]);
    bundle.hook(&UPDATE);
    let output = bundle.run();
    assert!(!trace.exists(), "{}", text(&output));
    assert!(bundle.path("rootfs/etc/ld.so.cache").exists(), "the hooks have run: {}", text(&output));
}

/// Rootless engines start hooks in a user namespace: root in there, an ordinary user outside.
#[test]
fn rootless_hook_writes_library_cache() {
    let Some(bundle) = Bundle::new() else { return };
    let (root, hook) = (bundle.path("rootfs"), bundle.path("nvidia-cdi-hook"));
    fs::copy(executable(), &hook).unwrap();
    fs::copy("/usr/bin/mawk", root.join("opt/driver/libnothing.so.1")).unwrap();
    fs::set_permissions(bundle.top.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for path in snapshot(bundle.top.path()).into_keys() {
        std::os::unix::fs::lchown(path, Some(65534), Some(65534)).unwrap();
    }
    let state = json!({"root": root}).to_string();
    let user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(words).current_dir("/");
        fed(command.arg(&hook).args(UPDATE), &state)
    };
    let may = Command::new("setpriv").args(["--reuid=65534", "--clear-groups", "unshare", "--user", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        return println!("skipped: users may not make namespaces here");
    }
    let output = user(&["env"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("(root's rights are needed, or those of a user namespace's root): "),
        "{}",
        text(&output)
    );
    let output = user(&["unshare", "--user", "--map-root-user", "--mount"]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(fs::metadata(root.join("etc/ld.so.cache")).unwrap().uid(), 65534);
}

/// Docker's userns-remap, and pods with user namespaces: the hook is started in the container's user namespace.
#[test]
fn hooks_work_in_container_user_namespace() {
    let Some(mut bundle) = Bundle::new() else { return };
    bundle.hook(&["create-symlinks", "--link", "libm.so.6::/opt/driver/libm.so"]);
    bundle.hook(&["disable-device-node-modification"]);
    bundle.hook(&UPDATE);
    bundle.spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
    for ids in ["uidMappings", "gidMappings"] {
        bundle.spec["linux"][ids] = json!([{"containerID": 0, "hostID": 200_000, "size": 65536}]);
    }
    // Inside, the hook must be found and be allowed to start.
    fs::remove_file(bundle.path("hooks/nvidia-cdi-hook")).unwrap();
    fs::copy(executable(), bundle.path("hooks/nvidia-cdi-hook")).unwrap();
    fs::set_permissions(bundle.top.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for path in snapshot(&bundle.path("rootfs")).into_keys().chain([bundle.path("rootfs")]) {
        std::os::unix::fs::lchown(path, Some(200_000), Some(200_000)).unwrap();
    }
    let output = bundle.run();
    assert_eq!((output.status.code(), text(&output).as_str()), (Some(0), "it runs\n"));
    assert_eq!(fs::metadata(bundle.path("rootfs/etc/ld.so.cache")).unwrap().uid(), 200_000);
}
