//! Starts `mpu nri` and reads its log.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A folder with the sockets of a container engine and of the notify engine.
pub struct TestDir {
    folder: tempfile::TempDir,
    notify: Option<UnixListener>,
}

impl TestDir {
    /// A folder in which the notify engine listens.
    pub fn new() -> TestDir {
        let folder = tempfile::tempdir().expect("a folder");
        let notify = UnixListener::bind(folder.path().join("listener.sock")).expect("a socket");
        TestDir { folder, notify: Some(notify) }
    }

    pub fn end_notify(&mut self) {
        self.notify = None;
    }

    /// Where the container engine listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("nri.sock")
    }

    /// Where the notify engine listens.
    pub fn listener(&self) -> PathBuf {
        self.folder.path().join("listener.sock")
    }

    /// The folder of plugins' state files, as on a host below this folder.
    pub fn presence(&self) -> PathBuf {
        self.folder.path().join("run/mpu/nri")
    }

    /// Where systemd listens, if it does.
    pub fn systemd(&self) -> PathBuf {
        self.folder.path().join("systemd.sock")
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// A plugin, for as long as the value lives.
pub struct Plugin {
    child: Child,
    log: PathBuf,
}

impl Plugin {
    pub fn start(dir: &TestDir, options: &[&str]) -> Plugin {
        let log = dir.path().join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpu"));
        command.arg("nri").arg("--socket").arg(dir.socket()).arg("--listener").arg(dir.listener()).args(options);
        command.arg("--presence").arg(dir.presence()).env("NOTIFY_SOCKET", dir.systemd());
        command.env_remove("JOURNAL_STREAM").stderr(File::create(&log).expect("a log"));
        Plugin { child: command.spawn().expect("it starts"), log }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits until the log has this text so many times.
    pub fn wait_for_log(&self, words: &str, times: usize) {
        let began = Instant::now();
        while self.log().matches(words).count() < times {
            assert!(began.elapsed() < Duration::from_secs(20), "{words:?} is not said {times} times: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGTERM. Returns the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().expect("kill runs").success());
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            assert!(began.elapsed() < Duration::from_secs(30), "it does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The peak memory in KiB.
    pub fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
