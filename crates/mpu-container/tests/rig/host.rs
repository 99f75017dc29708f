//! A fake GPU host: a tree of `xtask/rig.toml` in its own namespaces (`host.sh`). It is removed completely on drop.
//!
//! Only the GPUs are fake: they have procfs files and device nodes, but no driver behind the nodes. So the executable runs unchanged, but
//! calls to the driver fail.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{env, fs};

use crate::facts;

/// The driver of a host.
#[derive(Clone, Copy)]
pub enum Driver {
    None,
    /// This release's files, facts and nodes of so many GPUs.
    Release(&'static str, u32),
    /// The same on a host with the newest containerd.
    Newest(&'static str, u32),
    /// The same, but the files are those of a driver container, only in [`ELSEWHERE`].
    Contained(&'static str, u32),
    /// [`R550`] and so many GPUs, on another host than the engines': one of `[[tools]]` in `xtask/rig.toml`.
    Tools(&'static str, u32),
}

/// The newer of the releases in `xtask/rig.toml`.
pub const R550: &str = "550.163.01";
pub const R535: &str = "535.261.03";

/// The root of driver containers on the host.
pub const ELSEWHERE: &str = "/run/nvidia/driver";

pub struct Host {
    namespace_process: Child,
    init: u32,
    work: tempfile::TempDir,
}

impl Host {
    /// Starts a host. Returns none if this machine cannot run it; `./x test` counts the printed skip.
    pub fn start(driver: Driver) -> Option<Host> {
        let Some(trees) = env::var_os("MPU_RIG") else {
            println!("skipped: no MPU_RIG; `./x containers` makes what this needs");
            return None;
        };
        let work = tempfile::tempdir().expect("a folder");
        fs::create_dir(work.path().join("rig")).expect("a folder in it");
        let (tree, nodes) = match driver {
            Driver::None => ("host".to_owned(), String::new()),
            Driver::Release(release, gpus) | Driver::Newest(release, gpus) => {
                facts::write(work.path(), release, gpus).expect("facts");
                let tree = if matches!(driver, Driver::Newest(..)) { "newest" } else { "host" };
                (format!("{tree}-{release}"), facts::nodes(gpus))
            }
            Driver::Contained(release, gpus) => {
                facts::write(work.path(), release, gpus).expect("facts");
                ("host".to_owned(), facts::nodes(gpus))
            }
            Driver::Tools(name, gpus) => {
                facts::write(work.path(), R550, gpus).expect("facts");
                (format!("host-{name}"), facts::nodes(gpus))
            }
        };
        let mut namespace_process = Command::new("unshare")
            .args("--mount --pid --net --ipc --uts --fork --kill-child sh -c".split(' '))
            .arg(include_str!("host.sh"))
            .env("TREES", trees)
            .env("HOST", tree)
            .env("WORK", work.path())
            // The caller can name a static executable, as in a release.
            .env("PROGRAM", env::var_os("MPU_CONTAINER").unwrap_or_else(|| env!("CARGO_BIN_EXE_mpu-container").into()))
            .env("NODES", nodes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let mut line = String::new();
        BufReader::new(namespace_process.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
        if line != "ready\n" {
            let output = namespace_process.wait_with_output().expect("it ends").stderr;
            let output = String::from_utf8_lossy(&output).trim().to_owned();
            // A container on a shared runner may not be allowed to mount. Any other error is a test failure.
            assert!(
                output.contains("Operation not permitted") || output.contains("permission denied"),
                "no host: {output}"
            );
            println!("skipped: no host can be made on this machine: {output}");
            return None;
        }
        let children = format!("/proc/{0}/task/{0}/children", namespace_process.id());
        let init = fs::read_to_string(children).expect("children").trim().parse().expect("one child");
        let host = Host { namespace_process, init, work };
        host.write("/usr/bin/rig-world", include_str!("world.sh"));
        host.write("/usr/bin/rig-runc", include_str!("low.sh"));
        if let Driver::Contained(release, _) = driver {
            host.ok(&format!("mkdir -p {ELSEWHERE}; mount --bind /rig/trees/host-{release} {ELSEWHERE}; mount -o remount,bind,ro {ELSEWHERE}"));
        }
        host.ok("cd /usr/bin; chmod 755 rig-world rig-runc; ln -s rig-runc rig-crun");
        Some(host)
    }

    /// The PID of its first process, which is unique among running hosts.
    pub fn init(&self) -> u32 {
        self.init
    }

    /// The path of a host's file for this test process.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/{}", self.init, path.trim_start_matches('/')))
    }

    pub fn write(&self, path: &str, text: &str) {
        let place = self.path(path);
        fs::create_dir_all(place.parent().expect("a folder")).expect("the folder is made");
        fs::write(&place, text).unwrap_or_else(|error| panic!("{path}: {error}"));
    }

    /// Runs a shell's script in the host. Background programs must not keep its output.
    pub fn sh(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.to_string()]);
        command.args("--mount --pid --net --ipc --uts --root --wd".split(' '));
        // No script needs more than a second, so a timeout is a failure.
        command
            .args(["timeout", "--kill-after=5", "60", "/bin/sh", "-c", script])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin")
            .env("HOME", "/root");
        command.stdin(Stdio::null()).output().expect("nsenter runs")
    }

    /// The output of a script, whatever its exit status.
    pub fn output(&self, script: &str) -> String {
        let done = self.sh(script);
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    }

    /// The output of a script that must succeed.
    pub fn ok(&self, script: &str) -> String {
        let done = self.sh(script);
        let out = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{script}\n{}{out}{}", done.status, String::from_utf8_lossy(&done.stderr));
        out
    }

    /// All paths that differ from the host's tree, each with its kind of change. /run, /tmp and /var/lib are not part of the tree.
    pub fn changes(&self) -> Vec<String> {
        layer(&self.path("/rig/upper"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.namespace_process.stdin.take());
        let _ = self.namespace_process.wait();
        // Removes cgroups that engines and killed runtimes have left.
        let named = format!("*rig-{}-*", self.init);
        let _ = Command::new("find")
            .args(["/sys/fs/cgroup", "-depth", "-type", "d", "-path", &named, "-exec", "rmdir", "{}", ";"])
            .stderr(Stdio::null())
            .status();
        let _ = &self.work;
    }
}

/// The paths of an overlay's upper layer, sorted, each with its kind and size. Directories with entries are not listed themselves.
pub fn layer(upper: &Path) -> Vec<String> {
    let mut found = Vec::new();
    walk(upper, upper, &mut found);
    found.sort();
    found
}

fn walk(upper: &Path, folder: &Path, found: &mut Vec<String>) {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let entries: Vec<_> = fs::read_dir(folder).expect("an upper layer").map(|entry| entry.expect("an entry")).collect();
    if entries.is_empty() && folder != upper {
        found.push(format!("{}/", folder.strip_prefix(upper).expect("below").display()));
    }
    for entry in entries {
        let path = entry.path();
        let meta = fs::symlink_metadata(&path).expect("an entry");
        let name = path.strip_prefix(upper).expect("below").display().to_string();
        let kind = meta.file_type();
        if kind.is_dir() {
            walk(upper, &path, found);
        } else if kind.is_symlink() {
            found.push(format!("{name} -> {}", fs::read_link(&path).expect("a link").display()));
        } else if kind.is_char_device() && meta.rdev() == 0 {
            found.push(format!("{name} removed"));
        } else {
            found.push(format!("{name} {}", meta.len()));
        }
    }
}
