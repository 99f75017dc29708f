//! `mpu doctor` on hosts on which one thing is wrong: each is found, by name, with its level, the exit code and a way out.

mod schema;

use assert_cmd::Command;
use mpu_notify::client::State;
use mpu_notify::fake::{self, FakeSupervisor};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

const RELEASE: &str = "6.1.0-28-amd64";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const CONFIG: &str = "CONFIG_MODULES=y\nCONFIG_KPROBES=y\nCONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y\n\
    CONFIG_CC_VERSION_TEXT=\"gcc-12 (Debian 12.2.0-14) 12.2.0\"\n";
const STATE: &str = "sys/module/mpu/parameters/state";

struct Host(tempfile::TempDir);

impl Host {
    /// One on which nothing is wrong.
    fn in_order() -> Host {
        let host = Host(tempfile::tempdir().unwrap());
        let build = format!("lib/modules/{RELEASE}/build");
        host.write("proc/sys/kernel/osrelease", RELEASE);
        host.write("proc/self/status", "CapEff:\t000001ffffffffff\n");
        host.write("sys/kernel/security/lockdown", "[none] integrity confidentiality\n");
        host.write("etc/os-release", "ID=debian\n");
        host.write(&format!("boot/config-{RELEASE}"), CONFIG);
        host.write(&format!("{build}/Makefile"), "");
        host.write(&format!("{build}/.config"), CONFIG);
        host.write(&format!("{build}/include/generated/utsrelease.h"), &format!("#define UTS_RELEASE \"{RELEASE}\"\n"));
        host.tool("make", "exit 0");
        host.tool("gcc-12", "exit 0");
        // systemctl is-failed: it has not.
        host.tool("systemctl", "exit 1");
        host.write("sys/module/nvidia/version", "550.163.01");
        host.write("dev/nvidiactl", "");
        host.write("dev/nvidia0", "");
        host.write("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01", "");
        symlink("libnvidia-ml.so.550.163.01", host.path("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")).unwrap();
        host.write(STATE, &format!("version={VERSION}\nabi=1\nstate=armed\nhooks=os_memcpy_to_user\ninside=0\n"));
        host.write(
            "sys/module/mpu/parameters/counters",
            "translated.GPU_GET_PIDS=9\npassed.unknown_size=0\npassed.exempt=3\n",
        );
        host.write("sys/module/mpu/parameters/policy", "");
        host.write("sys/fs/cgroup/cgroup.controllers", "cpu\n");
        host.write("sys/kernel/tracing/enabled_functions", "os_memcpy_to_user [nvidia] (1) D   M  tramp: mpu_enter\n");
        host.write("usr/lib/systemd/system/mpu.service", "");
        fs::create_dir_all(host.path("etc/systemd/system/multi-user.target.wants")).unwrap();
        symlink(
            "/usr/lib/systemd/system/mpu.service",
            host.path("etc/systemd/system/multi-user.target.wants/mpu.service"),
        )
        .unwrap();
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    /// Another process writes the script: what another test starts meanwhile would inherit a descriptor of ours that is
    /// open for writing, and the kernel runs nothing that is being written (`ETXTBSY`).
    fn tool(&self, name: &str, body: &str) {
        let path = self.path(&format!("usr/bin/{name}"));
        let mut install = std::process::Command::new("install");
        install.args(["-D", "-m", "755", "/dev/stdin"]).arg(path).stdin(std::process::Stdio::piped());
        let mut child = install.spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), format!("#!/bin/sh\n{body}\n").as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    fn down(&self) {
        self.remove("sys/module/mpu");
        self.remove("sys/kernel/tracing/enabled_functions");
    }

    fn examine(&self) -> (i32, serde_json::Value) {
        let mut command = Command::cargo_bin("mpu").unwrap();
        let output = command.arg("--host-root").arg(self.0.path()).args(["doctor", "--json"]).output().unwrap();
        schema::check(std::str::from_utf8(&output.stdout).unwrap());
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
    }
}

/// With `breakage`, this check finds something of this level, its fix holds these words, and nothing else but `others` is found.
fn finds(check: &str, level: &str, fix: &str, others: &[&str], breakage: impl Fn(&Host)) {
    let host = Host::in_order();
    breakage(&host);
    let (code, json) = host.examine();
    let findings = json["findings"].as_array().unwrap();
    let bad: Vec<_> = findings.iter().filter(|f| f["level"] == "attention" || f["level"] == "broken").collect();
    let found = bad.iter().find(|f| f["check"] == check).unwrap_or_else(|| panic!("{check} is not among {bad:?}"));
    assert_eq!(found["level"], level, "{found}");
    assert!(found["fix"].as_str().unwrap().contains(fix), "{found}");
    for finding in &bad {
        is_safe_to_type(finding["fix"].as_str().unwrap());
        let name = finding["check"].as_str().unwrap();
        assert!(name == check || others.contains(&name), "{check}: {finding} is found, too");
    }
    let worst = if bad.iter().any(|f| f["level"] == "broken") { 2 } else { 1 };
    assert_eq!((code, json["exit"].as_i64().unwrap()), (worst, i64::from(worst)));
}

/// A fix can be typed as it is: it is a command of these, which look, install, load, start or remove another project's module, or it is a comment; a
/// shell understands it, and nothing in it stands for something else.
fn is_safe_to_type(fix: &str) {
    const PROGRAMS: [&str; 25] = [
        "apt-get",
        "cat",
        "depmod",
        "dkms",
        "dmesg",
        "dnf",
        "grep",
        "journalctl",
        "ls",
        "lsmod",
        "mkdir",
        "modinfo",
        "modprobe",
        "mokutil",
        "mpu",
        "nvidia-ctk",
        "nvidia-modprobe",
        "openssl",
        "rm",
        "rmmod",
        "sysctl",
        "systemctl",
        "tail",
        "zypper",
        "/usr/local/bin/mpu",
    ];
    let read = std::process::Command::new("sh").args(["-n", "-c", fix]).output().unwrap();
    assert!(read.status.success(), "{fix}: {}", String::from_utf8_lossy(&read.stderr));
    let command = match fix.strip_prefix('#') {
        Some(_) => return,
        None => fix.split(" # ").next().unwrap(),
    };
    assert!(!command.contains(['`', '…', '<', '>']), "{fix}");
    for part in command.split(" && ").flat_map(|part| part.split("; ")).flat_map(|part| part.split(" | ")) {
        let mut words = part.split_whitespace();
        let first = words.next().filter(|word| *word != "sudo").or_else(|| words.next()).unwrap();
        assert!(PROGRAMS.contains(&first), "{first} in: {fix}");
        assert!(!part.contains("systemctl restart") && !part.contains("mpu down"), "{fix}");
    }
}

#[test]
fn a_packed_module_is_looked_at_and_not_unpacked_to_disk() {
    let host = Host::in_order();
    host.tool("xz", "echo >>\"$0.ran\"; exec /bin/cat");
    let path = format!("lib/modules/{RELEASE}/updates/dkms/mpu.ko.xz");
    host.write(&path, "packed");
    host.write(&path.replace("mpu.ko", "mpu_next.ko"), "packed");
    host.examine();
    assert!(host.path("usr/bin/xz.ran").exists(), "it was looked at");
    assert!(!host.path("var/lib/mpu").exists());
}

#[test]
fn a_host_in_order_is_called_so() {
    let (code, json) = Host::in_order().examine();
    let findings = json["findings"].as_array().unwrap();
    let skipped: Vec<_> =
        findings.iter().filter(|f| f["level"] != "ok").map(|f| f["check"].as_str().unwrap()).collect();
    // Only the running host has containers to look into; this one has a module of format 1, which does not tell how it
    // redirects or what it believes, no tree of DKMS, and no notify engine.
    let notify =
        ["notify_kernel", "notify_wrapper", "notify_keeper", "notify_restarts", "notify_rootless", "notify_nri"];
    let told = ["containers", "container_gpus", "redirect", "argument", "dkms"];
    assert_eq!(skipped, [&told[..], &notify].concat(), "{json}");
    assert_eq!((code, &json["ok"]), (0, &serde_json::Value::Bool(true)));
}

#[test]
fn the_kernel_and_its_owner() {
    finds("root", "attention", "sudo mpu doctor", &[], |h| h.write("proc/self/status", "CapEff:\t0000000000000000\n"));
    let without = |option: &str| {
        let config = CONFIG.replace(&format!("{option}=y\n"), "");
        move |h: &Host| h.write(&format!("boot/config-{RELEASE}"), &config)
    };
    finds("kernel", "broken", "KPROBES", &[], without("CONFIG_KPROBES"));
    finds("kernel", "broken", "DIRECT_CALLS", &[], without("CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS"));
    let host = Host::in_order();
    host.write(&format!("boot/config-{RELEASE}"), &CONFIG.replace("WITH_DIRECT_CALLS", "WITH_REGS"));
    assert_eq!(host.examine().0, 0, "a handler redirects as well");
    finds("modules_allowed", "broken", "reboot", &["engine"], |h| {
        h.down();
        h.write("proc/sys/kernel/modules_disabled", "1");
    });
    finds("modules_allowed", "attention", "systemctl enable", &[], |h| {
        h.write("proc/sys/kernel/modules_disabled", "1")
    });
    finds("function_tracing", "broken", "ftrace_enabled=1", &[], |h| h.write("proc/sys/kernel/ftrace_enabled", "0"));
}

#[test]
fn signatures() {
    let locked = |h: &Host| {
        h.down();
        h.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    };
    finds("signatures", "broken", "mpu up --build-only", &["engine"], locked);
    finds("signatures", "broken", "openssl req -new", &["engine"], |h| {
        locked(h);
        h.write("sys/firmware/efi/mok-variables/MokListRT", "");
    });
    // A key, and nothing that signs with it.
    finds("signatures", "broken", "linux-headers-6.1.0-28-amd64", &["engine"], |h| {
        locked(h);
        h.write("var/lib/dkms/mok.key", "key");
        h.write("var/lib/dkms/mok.pub", "0\u{2}");
    });
    finds("signatures", "broken", "mokutil", &["engine"], |h| {
        h.down();
        h.write("sys/firmware/efi/mok-variables/MokListRT", "");
        h.write("sys/module/module/parameters/sig_enforce", "Y");
    });
}

#[test]
fn what_is_there_to_build_with() {
    finds("headers", "attention", "linux-headers-6.1.0-28-amd64", &[], |h| {
        h.remove(&format!("lib/modules/{RELEASE}/build"))
    });
    finds("headers", "broken", "linux-headers-6.1.0-28-amd64", &["engine"], |h| {
        h.down();
        h.remove(&format!("lib/modules/{RELEASE}/build"));
    });
    finds("headers", "attention", "gcc-12", &[], |h| h.remove("usr/bin/gcc-12"));
    finds("next_kernel", "attention", "linux-headers-6.1.0-30-amd64", &[], |h| {
        h.write("lib/modules/6.1.0-30-amd64/modules.order", "");
    });
    let host = Host::in_order();
    host.write("lib/modules/6.1.0-9-amd64/modules.order", "");
    host.write("lib/modules/6.1.0-amd64/modules.order", "");
    assert_eq!(host.examine().0, 0, "older kernels");
    finds("headers", "attention", "apt-get install pahole", &[], |h| {
        h.write(&format!("lib/modules/{RELEASE}/build/vmlinux"), "");
        let config = format!("lib/modules/{RELEASE}/build/.config");
        h.write(&config, &format!("{CONFIG}CONFIG_DEBUG_INFO_BTF_MODULES=y\n"));
    });
    finds("dkms", "attention", "dkms install", &[], |h| h.write("var/lib/dkms/mpu/kernel", ""));
    let without_zstd = |h: &Host| h.write(&format!("lib/modules/{RELEASE}/updates/dkms/mpu.ko.zst"), "packed");
    finds("module_file", "attention", "mend what is said of the file", &[], without_zstd);
    finds("dkms", "attention", "dkms install", &["module_file"], |h| {
        h.write("var/lib/dkms/mpu/kernel", "");
        without_zstd(h);
    });
    finds("dkms", "attention", "make.log", &[], |h| {
        h.write(&format!("var/lib/dkms/mpu/{VERSION}/build/make.log"), "error");
    });
}

#[test]
fn the_driver() {
    finds("driver", "attention", "modprobe nvidia", &["engine"], |h| {
        h.remove("sys/module/nvidia");
        h.remove("sys/kernel/tracing/enabled_functions");
        h.write(STATE, &format!("version={VERSION}\nabi=1\nstate=waiting\nhooks=\n"));
    });
    finds("driver", "attention", "sudo mpu probe", &["driver_library"], |h| {
        h.write("sys/module/nvidia/version", "700.10")
    });
    finds("driver", "broken", "drivers", &["driver_library"], |h| {
        h.write("sys/module/nvidia/version", "700.10");
        h.write("etc/mpu/config.toml", "drivers = \"known\"\n");
    });
    finds("driver_library", "broken", "reboot", &[], |h| h.write("sys/module/nvidia/version", "550.127.05"));
    // A link to a link, and one that another folder has from before.
    let linked = |more: &dyn Fn(&Host)| {
        let host = Host::in_order();
        let folder = "usr/lib/x86_64-linux-gnu";
        host.remove(&format!("{folder}/libnvidia-ml.so.1"));
        host.write(&format!("{folder}/nvidia/libnvidia-ml.so.550.163.01"), "");
        symlink("libnvidia-ml.so.550", host.path(&format!("{folder}/libnvidia-ml.so.1"))).unwrap();
        symlink("./nvidia/../nvidia/libnvidia-ml.so.550.163.01", host.path(&format!("{folder}/libnvidia-ml.so.550")))
            .unwrap();
        more(&host);
        let (_, json) = host.examine();
        let library =
            json["findings"].as_array().unwrap().iter().find(|f| f["check"] == "driver_library").unwrap().clone();
        (library["level"].as_str().unwrap().to_string(), library["seen"].as_str().unwrap().to_string())
    };
    assert_eq!(linked(&|_| ()), ("ok".to_string(), "550.163.01".to_string()));
    let stale = |h: &Host| {
        h.write("usr/lib64/libnvidia-ml.so.470.1", "");
        symlink("libnvidia-ml.so.470.1", h.path("usr/lib64/libnvidia-ml.so.1")).unwrap();
    };
    assert_eq!(linked(&stale), ("ok".to_string(), "550.163.01".to_string()));
    let loops = |h: &Host| {
        h.remove("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550");
        symlink("libnvidia-ml.so.1", h.path("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550")).unwrap();
    };
    assert_eq!(linked(&loops).0, "skipped");
    let arm64 = |h: &Host| {
        h.remove("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1");
        h.write("usr/lib/aarch64-linux-gnu/libnvidia-ml.so.550.163.01", "");
        symlink("libnvidia-ml.so.550.163.01", h.path("usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1")).unwrap();
    };
    let (_, json) = {
        let host = Host::in_order();
        arm64(&host);
        host.examine()
    };
    let library = json["findings"].as_array().unwrap().iter().find(|f| f["check"] == "driver_library").unwrap();
    assert_eq!(library["level"], "ok", "where Debian's arm64 has it: {library}");
    finds("device_nodes", "attention", "nvidia-modprobe", &[], |h| h.remove("dev/nvidiactl"));
    finds("device_nodes", "attention", "nvidia-modprobe", &[], |h| h.remove("dev/nvidia0"));
}

#[test]
fn the_engine() {
    finds("engine", "broken", "sudo mpu up", &[], Host::down);
    let says = |text: &'static str| move |h: &Host| h.write(STATE, &format!("version={VERSION}\nabi=1\n{text}\n"));
    let gone = &["other_redirects"];
    finds("engine", "broken", "mpu up", gone, says("state=refused\nrefused=os_memcpy_to_user:16"));
    finds("engine", "broken", "mpu up", gone, says("state=waiting"));
    finds("engine", "broken", "--replace", gone, says("state=retired"));
    let older = |h: &Host| {
        h.down();
        h.write("sys/module/mpu/initstate", "live\n");
        h.write("sys/module/mpu/version", "0.1-pre\n");
    };
    finds("engine", "broken", "sudo rmmod mpu && sudo mpu up", &["foreign_module"], older);
    finds("foreign_module", "broken", "sudo rmmod mpu && sudo mpu up", &["engine"], older);
    let left = "sudo rm /etc/modules-load.d/matpool-mpu.conf && sudo depmod";
    finds("foreign_module", "attention", left, &[], |h| h.write("etc/modules-load.d/matpool-mpu.conf", "mpu\n"));
    finds("engine", "broken", "reboot", gone, says("abi=2\nstate=stuck"));
    finds("engine", "broken", "ftrace_enabled=1", gone, says("state=refused\nrefused=kernel.ftrace_enabled:16"));
    finds(
        "argument",
        "attention",
        "kprobes/enabled",
        &[],
        says("state=armed\nhooks=a\nargument=claimed:2\nentered=1\ntranslated=1"),
    );
    let redirect = |state: &str| {
        let host = Host::in_order();
        host.write(STATE, &format!("version={VERSION}\nabi=2\nprobes=direct=one handler=regs\n{state}\n"));
        let (_, json) = host.examine();
        let findings = json["findings"].as_array().unwrap();
        findings.iter().find(|f| f["check"] == "redirect").unwrap()["seen"].as_str().unwrap().to_owned()
    };
    let armed = "state=armed\nhooks=os_memcpy_to_user\nargument=driver\nentered=1\ntranslated=1";
    assert_eq!(redirect(&format!("{armed}\nredirect=direct")), "direct calls; built with direct=one handler=regs");
    assert!(redirect(&format!("{armed}\nredirect=ipmodify")).starts_with("ipmodify, which costs more"));
    finds("redirect", "attention", "the next load counts", &[], |h: &Host| {
        h.write(STATE, &format!("version={VERSION}\nabi=1\n{armed}\nredirect=direct\n"));
        h.write("etc/mpu/config.toml", "redirect = \"ipmodify\"\n");
    });
    finds(
        "orphans",
        "attention",
        "dmesg",
        &[],
        says("state=armed\nhooks=a\nargument=driver\nentered=1\ntranslated=1\norphans=2"),
    );
    let host = Host::in_order();
    says("state=placed\nhooks=a\nargument=driver\nentered=0\ntranslated=0\norphans=0")(&host);
    let (code, json) = host.examine();
    let engine = json["findings"].as_array().unwrap().iter().find(|f| f["check"] == "engine").unwrap().clone();
    assert_eq!((code, &engine["level"]), (0, &"ok".into()), "{engine}");
    assert!(
        engine["seen"].as_str().unwrap().starts_with("placed, 1 redirects: no translation was seen yet"),
        "{engine}"
    );
    finds("engine_version", "attention", "mpu up --replace", &[], |h| h.write(STATE, "version=0.0.1\nstate=armed\n"));
    finds("swap", "attention", "mpu up --replace", &[], |h| {
        h.write("sys/module/mpu_next/parameters/state", "version=0\nstate=retired\n");
    });
    finds("untranslated", "attention", "mpu status", &[], |h| {
        h.write("sys/module/mpu/parameters/counters", "passed.unknown_size=4\n");
    });
}

#[test]
fn the_installation() {
    finds("service", "attention", "sudo mpu install", &[], |h| h.remove("usr/lib/systemd/system/mpu.service"));
    finds("service", "attention", "systemctl enable mpu.service", &[], |h| {
        h.remove("etc/systemd/system/multi-user.target.wants/mpu.service");
    });
    finds("service", "broken", "journalctl -u mpu", &[], |h| h.tool("systemctl", "exit 0"));
    let host = Host::in_order();
    host.remove("usr/bin/systemctl");
    host.remove("usr/lib/systemd");
    let (code, json) = host.examine();
    let service = json["findings"].as_array().unwrap().iter().find(|f| f["check"] == "service").unwrap().clone();
    assert_eq!((code, &service["level"]), (0, &"skipped".into()), "without systemd: {service}");
    finds("installation", "broken", "mpu install", &[], |h| h.write("var/lib/mpu/journal/log", ""));
    finds("installation", "attention", "uninstall", &[], |h| {
        h.write("var/lib/dpkg/info/mpu.list", "/usr/bin/mpu\n");
        let record = r#"{"version":"0.1.0","layout":"local","files":[],"directories":[],"dkms":true,"service":true}"#;
        h.write("var/lib/mpu/install.json", record);
    });
}

#[test]
fn a_configuration_that_cannot_be_read_is_told_with_its_cause() {
    let host = Host::in_order();
    fs::create_dir_all(host.path("etc/mpu")).unwrap();
    std::os::unix::fs::symlink("/nowhere", host.path("etc/mpu/config.toml")).unwrap();
    let (_, json) = host.examine();
    let found = json["findings"].as_array().unwrap().iter().find(|f| f["check"] == "configuration").unwrap();
    assert!(found["seen"].as_str().unwrap().contains("a link to /nowhere, which is not there"), "{found}");
}

#[test]
fn the_policy() {
    finds("configuration", "broken", "mpu config check", &[], |h| h.write("etc/mpu/config.toml", "visibility = 3\n"));
    finds("configuration", "attention", "mpu config check", &["policy"], |h| {
        h.write("etc/mpu/config.toml", "[[rule]]\nsees = \"own\"\ncgroup = \"/a/\"\n")
    });
    let rule = "[[rule]]\nsees = \"host\"\ncgroup = \"/monitors\"\n";
    finds("policy", "attention", "mpu config apply", &[], |h| h.write("etc/mpu/config.toml", rule));
    finds("policy", "attention", "unified_cgroup_hierarchy", &[], |h| {
        h.write("etc/mpu/config.toml", rule);
        h.remove("sys/fs/cgroup");
    });
}

#[test]
fn others_who_want_the_same_place() {
    finds("livepatch", "broken", "livepatch/fix/enabled", &[], |h| {
        h.write("sys/kernel/livepatch/another/nvidia/rm_ioctl,1/x", "");
        h.write("sys/kernel/livepatch/fix/nvidia/os_memcpy_to_user,1/x", "");
    });
    finds("livepatch", "attention", "mpu probe", &[], |h| {
        h.write("sys/kernel/livepatch/fix/nvidia/patched", "1\n");
        h.write("sys/kernel/livepatch/fix/nvidia/nvidia_open,1/x", "");
    });
    let host = Host::in_order();
    host.write("sys/kernel/livepatch/fix/vmlinux/os_memcpy_to_user,1/x", "");
    assert_eq!(host.examine().0, 0, "of the kernel's own functions");
    finds("other_redirects", "broken", "unload it", &["engine"], |h| {
        h.down();
        let line = "nvidia_unlocked_ioctl [nvidia] (1) R I     \ttramp: 0xffffffffc0a5b000\n";
        h.write("sys/kernel/tracing/enabled_functions", line);
    });
    finds("preload", "attention", "ld.so.preload", &[], |h| {
        h.write("usr/lib/shim.so", "\0nvmlDeviceGetComputeRunningProcesses_v3\0");
        h.write("etc/ld.so.preload", "/usr/lib/shim.so\n");
    });
    let host = Host::in_order();
    host.write("usr/lib/allocator.so", "\0malloc\0");
    host.write("etc/ld.so.preload", "/usr/lib/allocator.so\n");
    assert_eq!(host.examine().0, 0, "an allocator");
    let host = Host::in_order();
    host.write("etc/ld.so.preload", "# nothing is preloaded here\n");
    assert_eq!(host.examine().0, 0, "a comment");
}

#[test]
fn a_person_gets_the_worst_first_and_a_fix_for_each() {
    let host = Host::in_order();
    host.down();
    host.remove("dev/nvidia0");
    let mut command = Command::cargo_bin("mpu").unwrap();
    let output = command.arg("--host-root").arg(host.0.path()).arg("doctor").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("1 things are broken, 1 need attention"), "{text}");
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(at("broken  engine:") < at("fix: sudo mpu up") && at("fix: sudo mpu up") < at("attention  device_nodes:"));
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    let mut command = Command::cargo_bin("mpu").unwrap();
    let list = command.args(["doctor", "--list"]).output().unwrap();
    assert!(String::from_utf8(list.stdout).unwrap().lines().count() >= 20);
}

/// A supervisor that says one thing, on a host that can have no module.
fn supervisor(host: &Host, state: &str) -> FakeSupervisor {
    host.down();
    host.can_notify();
    host.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    let (state, died) = state.split_once(" after ").unwrap_or((state, "0"));
    let said = State {
        state: state.parse().unwrap(),
        restarts: 11,
        restarts_last_hour: died.parse().unwrap(),
        ..fake::state(&[&"a".repeat(24)])
    };
    FakeSupervisor::at(host.path("run/mpu/notify/control.sock"), said)
}

impl Host {
    fn can_notify(&self) {
        self.write("proc/sys/kernel/seccomp/actions_avail", "errno user_notif allow\n");
        fs::create_dir_all(self.path("proc/self/ns")).unwrap();
        let _ = symlink("pid:[4026531836]", self.path("proc/self/ns/pid"));
        self.write("run/systemd/system/x", "");
        self.write("usr/lib/systemd/system/mpu-notify.service", "");
    }

    /// Containers are started through the wrapper.
    fn has_wrapper(&self) {
        self.tool("mpu-container", "exit 0");
        symlink("mpu-container", self.path("usr/bin/nvidia-container-runtime")).unwrap();
        self.write("etc/docker/daemon.json", r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#);
    }
}

/// What is found of a host with the notify engine in this state beyond what a locked kernel has by itself.
fn supervised(state: &str, breakage: impl Fn(&Host)) -> Vec<(String, String, String)> {
    let host = Host::in_order();
    let supervisor = supervisor(&host, state);
    host.has_wrapper();
    breakage(&host);
    let (_, json) = host.examine();
    drop(supervisor);
    json["findings"].as_array().unwrap().iter().filter_map(|f| f["fix"].as_str()).for_each(is_safe_to_type);
    let word = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap_or_default().to_string();
    let findings = json["findings"].as_array().unwrap().iter();
    let bad = findings.filter(|f| f["level"] == "attention" || f["level"] == "broken");
    bad.map(|f| (word(f, "check"), word(f, "level"), word(f, "fix"))).collect()
}

#[test]
fn the_notify_engine() {
    let finds = |check: &str, level: &str, fix: &str, state: &str, breakage: &dyn Fn(&Host)| {
        let found = supervised(state, breakage);
        let [(name, found_level, found_fix)] = found.as_slice() else { panic!("{check}: {found:?}") };
        assert_eq!((name.as_str(), found_level.as_str()), (check, level));
        assert!(found_fix.contains(fix), "{found_fix}");
    };
    assert_eq!(supervised("armed", |_| ()), []);
    // A kernel that can have no module in any way, as that of the H200 of docs/evidence.md.
    let without_module = |h: &Host| {
        h.write(&format!("boot/config-{RELEASE}"), "CONFIG_MODULES=y\n");
        h.write("proc/sys/kernel/modules_disabled", "1\n");
        h.write("proc/sys/kernel/ftrace_enabled", "0\n");
        h.remove(&format!("lib/modules/{RELEASE}/build"));
        h.remove("usr/bin/make");
        h.write("lib/modules/6.1.0-30-amd64/modules.order", "");
        h.write("sys/kernel/livepatch/fix/nvidia/os_memcpy_to_user,1/x", "");
    };
    assert_eq!(supervised("armed", without_module), [], "what the module lacks is nobody's trouble");
    finds("engine", "broken", "sudo mpu up", "retired", &|_| ());
    finds("notify_wrapper", "attention", "mpu-container_*.deb", "armed", &|h| {
        h.remove("usr/bin/nvidia-container-runtime")
    });
    finds("notify_wrapper", "attention", "dnf install --allowerasing ./mpu-container-[0-9]*.rpm", "armed", &|h| {
        h.remove("usr/bin/nvidia-container-runtime");
        h.write("etc/os-release", "ID=rocky\nID_LIKE=rhel\n");
    });
    finds("notify_wrapper", "attention", "replaces it", "armed", &|h| {
        h.remove("usr/bin/nvidia-container-runtime");
        h.tool("nvidia-container-runtime", "exit 0");
    });
    finds("notify_wrapper", "attention", "runtime configure", "armed", &|h| h.remove("etc/docker/daemon.json"));
    finds("notify_keeper", "attention", "mpu down && sudo mpu up", "armed", &|h| {
        h.write("run/mpu/notify/keeper.sock", "")
    });
    finds("notify_keeper", "attention", "sudo mpu install", "armed", &|h| {
        h.write("run/mpu/notify/keeper.sock", "");
        h.remove("usr/lib/systemd/system/mpu-notify.service");
    });
    finds("policy", "attention", "mpu config apply", "armed", &|h| {
        h.write("etc/mpu/config.toml", "notify_cpu_percent = 5\n")
    });
    // The third may still be an operator's own kill.
    assert_eq!(supervised("armed after 3", |_| ()), []);
    finds("notify_restarts", "attention", "journalctl -u mpu-notify.service", "armed after 4", &|_| ());
    let lock = std::cell::RefCell::new(None);
    finds("notify_restarts", "attention", "tail -n 50 /run/mpu/notify/log", "armed after 8", &|h| {
        h.write("run/mpu/notify/keeper.lock", "");
        let file = fs::File::open(h.path("run/mpu/notify/keeper.lock")).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        lock.replace(Some(file));
    });
    finds("notify_rootless", "attention", "as root", "armed", &|h| h.write("run/user/1000/podman/podman.sock", ""));
    finds("notify_kernel", "broken", "5.9", "armed", &|h| h.write("proc/sys/kernel/yama/ptrace_scope", "3"));
}

impl Host {
    /// A process that has the GPU open, in a PID namespace of its own unless it is said otherwise.
    fn uses_gpu(&self, pid: u32, namespace: &str, cgroup: &str, filtered: bool) {
        let of = |name: &str| self.path(&format!("proc/{pid}/{name}"));
        self.write(&format!("proc/{pid}/status"), if filtered { "Seccomp:\t2\n" } else { "Seccomp:\t0\n" });
        self.write(&format!("proc/{pid}/cgroup"), cgroup);
        fs::create_dir_all(of("ns")).unwrap();
        fs::create_dir_all(of("fd")).unwrap();
        symlink(namespace, of("ns/pid")).unwrap();
        symlink("/dev/null", of("fd/0")).unwrap();
        symlink("/dev/nvidiactl", of("fd/3")).unwrap();
    }
}

#[test]
fn a_container_that_was_not_started_through_the_wrapper() {
    const INSIDE: &str = "pid:[4026532500]";
    let docker = |digit: &str| format!("0::/system.slice/docker-{}.scope\n", digit.repeat(64));
    let unserved = |breakage: &dyn Fn(&Host)| -> Vec<String> {
        let found = supervised("armed", breakage);
        found
            .iter()
            .map(|(check, level, fix)| format!("{check} {level} {}", fix.contains("through the wrapper")))
            .collect()
    };
    // The supervisor says that it has one container: twenty-four digits of an id.
    assert_eq!(unserved(&|h| h.uses_gpu(70, INSIDE, &docker("a"), true)), [""; 0], "it is served");
    assert_eq!(
        unserved(&|h| h.uses_gpu(70, "pid:[4026531836]", &docker("b"), true)),
        [""; 0],
        "it sees the host's numbers anyway"
    );
    assert_eq!(
        unserved(&|h| h.uses_gpu(70, INSIDE, "0::/user.slice\n", true)),
        [""; 0],
        "whose filter it is cannot be seen"
    );
    let told = ["notify_unserved attention true"];
    assert_eq!(unserved(&|h| h.uses_gpu(70, INSIDE, &docker("b"), true)), told);
    assert_eq!(unserved(&|h| h.uses_gpu(70, INSIDE, "0::/user.slice\n", false)), told);
}

#[test]
fn a_socket_that_nobody_answers() {
    finds("notify_socket", "broken", "mpu up --engine notify", &[], |h| {
        fs::create_dir_all(h.path("run/mpu/notify")).unwrap();
        drop(UnixListener::bind(h.path("run/mpu/notify/control.sock")).unwrap());
    });
}

#[test]
fn a_user_is_told_what_only_root_can_see() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can be somebody else");
    }
    let host = Host::in_order();
    host.down();
    host.write("etc/mpu/config.toml", "engine = \"notify\"\nnri = true\n");
    fs::create_dir_all(host.path("run/mpu/nri")).unwrap();
    let close = |path: &str, mode| fs::set_permissions(host.path(path), PermissionsExt::from_mode(mode)).unwrap();
    close("run/mpu/nri", 0o700);
    // The executable lies where only root may look.
    close("", 0o755);
    fs::copy(env!("CARGO_BIN_EXE_mpu"), host.path("mpu")).unwrap();
    let levels = |id| {
        let mut command = std::process::Command::new(host.path("mpu"));
        command.arg("--host-root").arg(host.path("")).args(["doctor", "--json"]).uid(id).gid(id);
        let json: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let findings = json["findings"].as_array().unwrap().clone();
        let level = |check: &str| findings.iter().find(|f| f["check"] == check).unwrap()["level"].clone();
        ["notify_nri", "notify_wrapper"].map(level)
    };
    assert_eq!(levels(0), ["attention", "attention"], "no plugin runs, and there is no wrapper");
    assert_eq!(levels(65_534), ["skipped", "skipped"], "whether one runs is not known");
}
