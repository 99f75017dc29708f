//! A bundle, and its lifecycle with a low-level runtime: create, start, wait, delete.
//!
//! Its root is an image's tree under an overlay, as engines create it. The overlay's upper layer shows all changes of the root.

use serde_json::{Value, json};

use crate::host::{Host, layer};

/// A bundle in `/rig/c/NAME` of a host.
pub struct Container<'a> {
    host: &'a Host,
    name: String,
    /// The content of config.json. Tests change it before the run.
    pub config: Value,
}

/// The result of a container's run.
#[derive(Debug)]
pub struct RunResult {
    /// Whether create, start and delete succeeded. The exit code of the container's program does not count.
    pub ok: bool,
    pub out: String,
    /// Standard error of the container's program and the runtime.
    pub err: String,
    /// config.json after the run, with the wrapper's edits.
    pub config: Value,
}

impl<'a> Container<'a> {
    /// A bundle over the image `root-IMAGE` with these arguments.
    pub fn new(host: &'a Host, image: &str, arguments: &[&str]) -> Container<'a> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let name = format!("rig-{}-{}", host.init(), COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        host.ok(&format!(
            "cd /rig/c && mkdir {name} && cd {name} && mkdir upper work rootfs && \
             mount -t overlay -o lowerdir=/rig/trees/root-{image},upperdir=upper,workdir=work image rootfs"
        ));
        let config = config(&name, arguments);
        Container { host, name, config }
    }

    pub fn env(mut self, variables: &[&str]) -> Container<'a> {
        let env = self.config["process"]["env"].as_array_mut().expect("a list");
        env.extend(variables.iter().map(|variable| json!(variable)));
        self
    }

    /// The bundle's path in the host.
    pub fn folder(&self) -> String {
        format!("/rig/c/{}", self.name)
    }

    /// Runs it to its end.
    pub fn run(&self, runtime: &str) -> RunResult {
        let folder = self.folder();
        self.host.write(&format!("{folder}/config.json"), &self.config.to_string());
        let name = &self.name;
        // The container's program keeps the runtime's standard output, so that is a file.
        let done = self.host.sh(&format!(
            "cd /rig/c/{name}; {runtime} create --bundle /rig/c/{name} {name} > out 2> err < /dev/null || exit 1
             {runtime} start {name} 2>> err || {{ {runtime} delete --force {name}; exit 1; }}
             for i in $(seq 3000); do [ $({runtime} state {name} | jq -r .status) = stopped ] && break; sleep 0.02; done
             {runtime} delete {name} 2>> err"
        ));
        let read = |file: &str| std::fs::read(self.host.path(&format!("{folder}/{file}"))).unwrap_or_default();
        let text = |file: &str| String::from_utf8_lossy(&read(file)).into_owned();
        let tail = String::from_utf8_lossy(&done.stderr).into_owned();
        RunResult {
            ok: done.status.success(),
            out: text("out"),
            err: text("err") + &tail,
            config: serde_json::from_slice(&read("config.json")).expect("config.json"),
        }
    }

    /// The changes of the root compared with the image.
    pub fn changes(&self) -> Vec<String> {
        layer(&self.host.path(&format!("{}/upper", self.folder())))
    }
}

/// A specification as engines write it: few capabilities, no additional devices, its own namespaces.
fn config(name: &str, arguments: &[&str]) -> Value {
    let capabilities =
        json!(["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD", "CAP_SETGID", "CAP_SETUID"]);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": arguments,
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "noNewPrivileges": true
        },
        "root": { "path": "rootfs" },
        "hostname": "rig",
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"] },
            { "destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"] }
        ],
        "hooks": { "prestart": [{ "path": "/usr/bin/rig-world" }] },
        "linux": {
            "cgroupsPath": format!("/{name}"),
            "namespaces": [
                { "type": "pid" }, { "type": "network" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" }
            ],
            "resources": { "devices": [{ "allow": false, "access": "rwm" }, { "allow": true, "type": "c", "access": "m" }] },
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"]
        }
    })
}
