//! `mpu doctor` on hosts with one fault each. It must find the fault, with its level, exit code and fix.

mod schema;

use assert_cmd::Command;
use mpu_host::host::fake::{CONFIG, FakeHost, RELEASE};
use mpu_notify::client::State;
use mpu_notify::fake::{self, FakeSupervisor};
use serde_json::Value;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const STATE: &str = "sys/module/mpu/parameters/state";
const ENABLED_UNIT: &str = "etc/systemd/system/multi-user.target.wants/mpu.service";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const NVML: &str = "libnvidia-ml.so.550.163.01";

struct Host(FakeHost);

impl Deref for Host {
    type Target = FakeHost;

    fn deref(&self) -> &FakeHost {
        &self.0
    }
}

impl Host {
    /// A healthy host.
    fn in_order() -> Host {
        let host = Host(FakeHost::in_order());
        // systemctl is-failed: it has not.
        host.tool("systemctl", "exit 1");
        for (path, text) in [
            ("dev/nvidiactl", ""),
            ("dev/nvidia0", ""),
            (&format!("{LIBRARIES}/{NVML}"), ""),
            (STATE, &format!("version={VERSION}\nabi=1\nstate=armed\nhooks=os_memcpy_to_user\ninside=0\n")),
            (
                "sys/module/mpu/parameters/counters",
                "translated.GPU_GET_PIDS=9\npassed.unknown_size=0\npassed.exempt=3\n",
            ),
            ("sys/module/mpu/parameters/policy", ""),
            ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
            ("sys/kernel/tracing/enabled_functions", "os_memcpy_to_user [nvidia] (1) D   M  tramp: mpu_enter\n"),
            ("usr/lib/systemd/system/mpu.service", ""),
        ] {
            host.write(path, text);
        }
        host.link(&format!("{LIBRARIES}/libnvidia-ml.so.1"), NVML);
        host.link(ENABLED_UNIT, "/usr/lib/systemd/system/mpu.service");
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.host().at(path)
    }

    fn down(&self) {
        self.remove("sys/module/mpu");
        self.remove("sys/kernel/tracing/enabled_functions");
    }

    fn command(&self) -> Command {
        let mut command = Command::cargo_bin("mpu").unwrap();
        command.arg("--host-root").arg(self.dir.path()).arg("doctor");
        command
    }

    fn examine(&self) -> (i32, Value) {
        let output = self.command().arg("--json").output().unwrap();
        schema::check(std::str::from_utf8(&output.stdout).unwrap());
        (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The level of a check and what it saw.
    fn seen(&self, check: &str) -> (String, String) {
        let (_, json) = self.examine();
        let found = json["findings"].as_array().unwrap().iter().find(|finding| finding["check"] == check).unwrap();
        (word(found, "level"), word(found, "seen"))
    }
}

fn word(finding: &Value, key: &str) -> String {
    finding[key].as_str().unwrap_or_default().to_string()
}

/// The findings that are not in order.
fn bad(json: &Value) -> Vec<Value> {
    let findings = json["findings"].as_array().unwrap().iter();
    findings.filter(|f| f["level"] == "attention" || f["level"] == "broken").cloned().collect()
}

/// Checks that doctor finds nothing on a host with these files.
fn check_no_finding(because: &str, files: &[(&str, &str)]) {
    let host = Host::in_order();
    files.iter().for_each(|(path, text)| host.write(path, text));
    assert_eq!(host.examine().0, 0, "{because}");
}

/// Checks that after `breakage` this check has a finding of this level with this fix, and that only `others` have
/// findings, too.
fn check_finding(check: &str, level: &str, fix: &str, others: &[&str], breakage: impl Fn(&Host)) {
    let host = Host::in_order();
    breakage(&host);
    let (code, json) = host.examine();
    let bad = bad(&json);
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

/// Checks that a fix can be typed unchanged: it is a comment or uses only these programs, a shell parses it, and it has
/// no placeholders.
fn is_safe_to_type(fix: &str) {
    const PROGRAMS: &str = "apt-get cat depmod dkms dmesg dnf grep journalctl ls lsmod mkdir modinfo modprobe mokutil mpu \
        nvidia-ctk nvidia-modprobe openssl rm rmmod sed sysctl systemctl tail zypper /usr/local/bin/mpu";
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
        assert!(PROGRAMS.split(' ').any(|program| program == first), "{first} in: {fix}");
        assert!(!part.contains("systemctl restart") && !part.contains("mpu down"), "{fix}");
    }
}

#[test]
fn packed_module_is_inspected_in_memory() {
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
fn healthy_host_has_no_findings() {
    let (code, json) = Host::in_order().examine();
    let findings = json["findings"].as_array().unwrap();
    let skipped: Vec<_> =
        findings.iter().filter(|f| f["level"] != "ok").map(|f| f["check"].as_str().unwrap()).collect();
    // Only the running host has containers. This host has a module of format 1, which does not report its redirect or
    // the argument's source, no DKMS tree, and no notify engine.
    let notify =
        ["notify_kernel", "notify_wrapper", "notify_keeper", "notify_restarts", "notify_rootless", "notify_nri"];
    let other = ["containers", "container_gpus", "redirect", "argument", "dkms"];
    assert_eq!(skipped, [&other[..], &notify].concat(), "{json}");
    assert_eq!((code, &json["ok"]), (0, &Value::Bool(true)));
}

#[test]
fn doctor_checks_kernel() {
    check_finding("root", "attention", "sudo mpu doctor", &[], |h| {
        h.write("proc/self/status", "CapEff:\t0000000000000000\n")
    });
    let boot = format!("boot/config-{RELEASE}");
    let without = |words: &[&str]| {
        let lines = CONFIG.lines().filter(|line| !words.iter().any(|word| line.contains(word)));
        lines.map(|line| line.to_string() + "\n").collect::<String>()
    };
    check_finding("kernel", "broken", "KPROBES", &[], |h| h.write(&boot, &without(&["KPROBES"])));
    check_finding("kernel", "broken", "DIRECT_CALLS", &[], |h| {
        h.write(&boot, &without(&["DIRECT_CALLS", "WITH_REGS"]))
    });
    check_no_finding("a handler redirects as well", &[(&boot, &without(&["DIRECT_CALLS"]))]);
    check_finding("modules_allowed", "broken", "reboot", &["engine"], |h| {
        h.down();
        h.write("proc/sys/kernel/modules_disabled", "1");
    });
    check_finding("modules_allowed", "attention", "systemctl enable", &[], |h| {
        h.write("proc/sys/kernel/modules_disabled", "1")
    });
    check_finding("function_tracing", "broken", "ftrace_enabled=1", &[], |h| {
        h.write("proc/sys/kernel/ftrace_enabled", "0")
    });
}

#[test]
fn doctor_checks_signatures() {
    let locked = |h: &Host| {
        h.down();
        h.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    };
    check_finding("signatures", "broken", "mpu up --build-only", &["engine"], locked);
    check_finding("signatures", "broken", "openssl req -new", &["engine"], |h| {
        locked(h);
        h.write("sys/firmware/efi/mok-variables/MokListRT", "");
    });
    // A key, but no signing tool.
    check_finding("signatures", "broken", "linux-headers-6.1.0-28-amd64", &["engine"], |h| {
        locked(h);
        h.write("var/lib/dkms/mok.key", "key");
        h.write("var/lib/dkms/mok.pub", "0\u{2}");
    });
    check_finding("signatures", "broken", "mokutil", &["engine"], |h| {
        h.down();
        h.write("sys/firmware/efi/mok-variables/MokListRT", "");
        h.write("sys/module/module/parameters/sig_enforce", "Y");
    });
}

#[test]
fn doctor_checks_build_tools_and_modules() {
    check_finding("headers", "attention", "linux-headers-6.1.0-28-amd64", &[], |h| {
        h.remove(&format!("lib/modules/{RELEASE}/build"))
    });
    check_finding("headers", "broken", "linux-headers-6.1.0-28-amd64", &["engine"], |h| {
        h.down();
        h.remove(&format!("lib/modules/{RELEASE}/build"));
    });
    check_finding("headers", "attention", "gcc-12", &[], |h| h.remove("usr/bin/gcc-12"));
    check_finding("next_kernel", "attention", "linux-headers-6.1.0-30-amd64", &[], |h| {
        h.write("lib/modules/6.1.0-30-amd64/modules.order", "");
    });
    let older = ["lib/modules/6.1.0-9-amd64/modules.order", "lib/modules/6.1.0-amd64/modules.order"];
    check_no_finding("older kernels", &older.map(|path| (path, "")));
    check_finding("headers", "attention", "apt-get install pahole", &[], |h| {
        h.write(&format!("lib/modules/{RELEASE}/build/vmlinux"), "");
        let config = format!("lib/modules/{RELEASE}/build/.config");
        h.write(&config, &format!("{CONFIG}CONFIG_DEBUG_INFO_BTF_MODULES=y\n"));
    });
    check_finding("dkms", "attention", "dkms install", &[], |h| h.write("var/lib/dkms/mpu/kernel", ""));
    let without_zstd = |h: &Host| h.write(&format!("lib/modules/{RELEASE}/updates/dkms/mpu.ko.zst"), "packed");
    check_finding("module_file", "attention", "mend the file as described", &[], without_zstd);
    check_finding("dkms", "attention", "dkms install", &["module_file"], |h| {
        h.write("var/lib/dkms/mpu/kernel", "");
        without_zstd(h);
    });
    check_finding("dkms", "attention", "make.log", &[], |h| {
        h.write(&format!("var/lib/dkms/mpu/{VERSION}/build/make.log"), "error");
    });
}

#[test]
fn doctor_checks_driver() {
    check_finding("driver", "attention", "modprobe nvidia", &["engine"], |h| {
        h.remove("sys/module/nvidia");
        h.remove("sys/kernel/tracing/enabled_functions");
        h.write(STATE, &format!("version={VERSION}\nabi=1\nstate=waiting\nhooks=\n"));
    });
    check_finding("driver", "attention", "sudo mpu probe", &["driver_library"], |h| {
        h.write("sys/module/nvidia/version", "700.10")
    });
    check_finding("driver", "broken", "drivers", &["driver_library"], |h| {
        h.write("sys/module/nvidia/version", "700.10");
        h.write("etc/mpu/config.toml", "drivers = \"known\"\n");
    });
    check_finding("driver_library", "broken", "reboot", &[], |h| h.write("sys/module/nvidia/version", "550.127.05"));
    // A link to a link; a stale link in another folder; a loop; the folder of Debian's arm64.
    let linked = |h: &Host| {
        h.remove(&format!("{LIBRARIES}/libnvidia-ml.so.1"));
        h.write(&format!("{LIBRARIES}/nvidia/{NVML}"), "");
        h.link(&format!("{LIBRARIES}/libnvidia-ml.so.1"), "libnvidia-ml.so.550");
    };
    let whole = |h: &Host| {
        linked(h);
        h.link(&format!("{LIBRARIES}/libnvidia-ml.so.550"), format!("./nvidia/../nvidia/{NVML}"));
    };
    let stale = |h: &Host| {
        whole(h);
        h.write("usr/lib64/libnvidia-ml.so.470.1", "");
        h.link("usr/lib64/libnvidia-ml.so.1", "libnvidia-ml.so.470.1");
    };
    let loops = |h: &Host| {
        linked(h);
        h.link(&format!("{LIBRARIES}/libnvidia-ml.so.550"), "libnvidia-ml.so.1");
    };
    let arm64 = |h: &Host| {
        h.remove(&format!("{LIBRARIES}/libnvidia-ml.so.1"));
        h.write(&format!("usr/lib/aarch64-linux-gnu/{NVML}"), "");
        h.link("usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1", NVML);
    };
    let changes: [&dyn Fn(&Host); 4] = [&whole, &stale, &loops, &arm64];
    for (change, level) in changes.into_iter().zip(["ok", "ok", "skipped", "ok"]) {
        let host = Host::in_order();
        change(&host);
        let (found, seen) = host.seen("driver_library");
        assert_eq!((&*found, seen == "550.163.01"), (level, level == "ok"), "{seen}");
    }
    check_finding("device_nodes", "attention", "nvidia-modprobe", &[], |h| h.remove("dev/nvidiactl"));
    check_finding("device_nodes", "attention", "nvidia-modprobe", &[], |h| h.remove("dev/nvidia0"));
}

#[test]
fn doctor_checks_engine() {
    check_finding("engine", "broken", "sudo mpu up", &[], Host::down);
    let module_state =
        |text: &'static str| move |h: &Host| h.write(STATE, &format!("version={VERSION}\nabi=1\n{text}\n"));
    let gone = &["other_redirects"];
    check_finding("engine", "broken", "mpu up", gone, module_state("state=refused\nrefused=os_memcpy_to_user:16"));
    check_finding("engine", "broken", "mpu up", gone, module_state("state=waiting"));
    check_finding("engine", "broken", "--replace", gone, module_state("state=retired"));
    let older = |h: &Host| {
        h.down();
        h.write("sys/module/mpu/initstate", "live\n");
        h.write("sys/module/mpu/version", "0.1-pre\n");
    };
    check_finding("engine", "broken", "sudo rmmod mpu && sudo mpu up", &["foreign_module"], older);
    check_finding("foreign_module", "broken", "sudo rmmod mpu && sudo mpu up", &["engine"], older);
    let removal = "sudo rm /etc/modules-load.d/matpool-mpu.conf && sudo depmod";
    check_finding("foreign_module", "attention", removal, &[], |h| {
        h.write("etc/modules-load.d/matpool-mpu.conf", "mpu\n")
    });
    let page = "/etc/modules   # docs/moving.md";
    check_finding("foreign_module", "attention", page, &[], |h| h.write("etc/modules", "mpu\n"));
    check_finding("engine", "broken", "reboot", gone, module_state("abi=2\nstate=stuck"));
    check_finding(
        "engine",
        "broken",
        "ftrace_enabled=1",
        gone,
        module_state("state=refused\nrefused=kernel.ftrace_enabled:16"),
    );
    check_finding(
        "argument",
        "attention",
        "kprobes/enabled",
        &[],
        module_state("state=armed\nhooks=a\nargument=claimed:2\nentered=1\ntranslated=1"),
    );
    let redirect = |state: &str| {
        let host = Host::in_order();
        host.write(STATE, &format!("version={VERSION}\nabi=2\nprobes=direct=one handler=regs\n{state}\n"));
        host.seen("redirect").1
    };
    let armed = "state=armed\nhooks=os_memcpy_to_user\nargument=driver\nentered=1\ntranslated=1";
    assert_eq!(redirect(&format!("{armed}\nredirect=direct")), "direct calls; built with direct=one handler=regs");
    assert!(redirect(&format!("{armed}\nredirect=ipmodify")).starts_with("ipmodify, which costs more"));
    check_finding("redirect", "attention", "the next load counts", &[], |h: &Host| {
        h.write(STATE, &format!("version={VERSION}\nabi=1\n{armed}\nredirect=direct\n"));
        h.write("etc/mpu/config.toml", "redirect = \"ipmodify\"\n");
    });
    check_finding(
        "orphans",
        "attention",
        "dmesg",
        &[],
        module_state("state=armed\nhooks=a\nargument=driver\nentered=1\ntranslated=1\norphans=2"),
    );
    let host = Host::in_order();
    module_state("state=placed\nhooks=a\nargument=driver\nentered=0\ntranslated=0\norphans=0")(&host);
    let (level, seen) = host.seen("engine");
    assert!(level == "ok" && seen.starts_with("placed, 1 redirects: no translation was seen yet"), "{level}: {seen}");
    assert_eq!(host.examine().0, 0);
    check_finding("engine_version", "attention", "mpu up --replace", &[], |h| {
        h.write(STATE, "version=0.0.1\nstate=armed\n")
    });
    check_finding("swap", "attention", "mpu up --replace", &[], |h| {
        h.write("sys/module/mpu_next/parameters/state", "version=0\nstate=retired\n");
    });
    check_finding("untranslated", "attention", "mpu status", &[], |h| {
        h.write("sys/module/mpu/parameters/counters", "passed.unknown_size=4\n");
    });
}

#[test]
fn doctor_checks_installation() {
    check_finding("service", "attention", "sudo mpu install", &[], |h| h.remove("usr/lib/systemd/system/mpu.service"));
    check_finding("service", "attention", "systemctl enable mpu.service", &[], |h| {
        h.remove(ENABLED_UNIT);
    });
    check_finding("service", "broken", "journalctl -u mpu", &[], |h| h.tool("systemctl", "exit 0"));
    let host = Host::in_order();
    host.remove("usr/bin/systemctl");
    host.remove("usr/lib/systemd");
    assert_eq!((host.examine().0, &*host.seen("service").0), (0, "skipped"), "without systemd");
    check_finding("installation", "broken", "mpu install", &[], |h| h.write("var/lib/mpu/journal/undo.json", ""));
    check_finding("installation", "attention", "uninstall", &[], |h| {
        h.write("var/lib/dpkg/info/mpu.md5sums", "d41d8cd98f00b204e9800998ecf8427e  usr/bin/mpu\n");
        let record = r#"{"version":"0.1.0","layout":"local","files":[],"directories":[],"dkms":true,"service":true}"#;
        h.write("var/lib/mpu/install.json", record);
    });
}

#[test]
fn unreadable_configuration_is_reported_with_cause() {
    let host = Host::in_order();
    host.link("etc/mpu/config.toml", "/nowhere");
    let (_, seen) = host.seen("configuration");
    assert!(seen.contains("a link to /nowhere, which is not there"), "{seen}");
}

#[test]
fn doctor_checks_policy() {
    check_finding("configuration", "broken", "mpu config check", &[], |h| {
        h.write("etc/mpu/config.toml", "visibility = 3\n")
    });
    check_finding("configuration", "attention", "mpu config check", &["policy"], |h| {
        h.write("etc/mpu/config.toml", "[[rule]]\nsees = \"own\"\ncgroup = \"/a/\"\n")
    });
    let rule = "[[rule]]\nsees = \"host\"\ncgroup = \"/monitors\"\n";
    check_finding("policy", "attention", "mpu config apply", &[], |h| h.write("etc/mpu/config.toml", rule));
    check_finding("policy", "attention", "unified_cgroup_hierarchy", &[], |h| {
        h.write("etc/mpu/config.toml", rule);
        h.remove("sys/fs/cgroup");
    });
}

#[test]
fn doctor_finds_conflicting_redirects_and_preloads() {
    check_finding("livepatch", "broken", "livepatch/fix/enabled", &[], |h| {
        h.write("sys/kernel/livepatch/another/nvidia/rm_ioctl,1/x", "");
        h.write("sys/kernel/livepatch/fix/nvidia/os_memcpy_to_user,1/x", "");
    });
    check_finding("livepatch", "attention", "mpu probe", &[], |h| {
        h.write("sys/kernel/livepatch/fix/nvidia/patched", "1\n");
        h.write("sys/kernel/livepatch/fix/nvidia/nvidia_open,1/x", "");
    });
    check_no_finding(
        "of the kernel's own functions",
        &[("sys/kernel/livepatch/fix/vmlinux/os_memcpy_to_user,1/x", "")],
    );
    check_finding("other_redirects", "broken", "unload it", &["engine"], |h| {
        h.down();
        let line = "nvidia_unlocked_ioctl [nvidia] (1) R I     \ttramp: 0xffffffffc0a5b000\n";
        h.write("sys/kernel/tracing/enabled_functions", line);
    });
    check_finding("preload", "attention", "ld.so.preload", &[], |h| {
        h.write("usr/lib/shim.so", "\0nvmlDeviceGetComputeRunningProcesses_v3\0");
        h.write("etc/ld.so.preload", "/usr/lib/shim.so\n");
    });
    let preload = "etc/ld.so.preload";
    check_no_finding("an allocator", &[("usr/lib/allocator.so", "\0malloc\0"), (preload, "/usr/lib/allocator.so\n")]);
    check_no_finding("a comment", &[(preload, "# nothing is preloaded here\n")]);
}

#[test]
fn doctor_text_lists_worst_first() {
    let host = Host::in_order();
    host.down();
    host.remove("dev/nvidia0");
    let text = String::from_utf8(host.command().output().unwrap().stdout).unwrap();
    assert!(text.starts_with("1 thing is broken, 1 needs attention"), "{text}");
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    assert!(at("broken  engine:") < at("fix: sudo mpu up") && at("fix: sudo mpu up") < at("attention  device_nodes:"));
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    let list = host.command().arg("--list").output().unwrap();
    assert!(String::from_utf8(list.stdout).unwrap().lines().count() >= 20);
}

/// A supervisor in this state, on a host that cannot load the module.
fn supervisor(host: &Host, state: &str) -> FakeSupervisor {
    host.down();
    host.can_notify();
    host.write("run/systemd/system/x", "");
    host.write("usr/lib/systemd/system/mpu-notify.service", "");
    host.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
    let (state, died) = state.split_once(" after ").unwrap_or((state, "0"));
    let state = State {
        state: state.to_string().into(),
        restarts: 11,
        restarts_last_hour: died.parse().unwrap(),
        ..fake::state(&[&"a".repeat(24)])
    };
    FakeSupervisor::at(host.path("run/mpu/notify/control.sock"), state)
}

impl Host {
    /// Containers are started through the wrapper.
    fn has_wrapper(&self) {
        self.tool("mpu-container", "exit 0");
        self.link("usr/bin/nvidia-container-runtime", "mpu-container");
        self.write("etc/docker/daemon.json", r#"{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}"#);
    }
}

/// The findings on a locked-down host with the notify engine in this state, after `breakage`.
fn supervised(state: &str, breakage: impl Fn(&Host)) -> Vec<(String, String, String)> {
    let host = Host::in_order();
    let supervisor = supervisor(&host, state);
    host.has_wrapper();
    breakage(&host);
    let (_, json) = host.examine();
    drop(supervisor);
    json["findings"].as_array().unwrap().iter().filter_map(|f| f["fix"].as_str()).for_each(is_safe_to_type);
    bad(&json).iter().map(|f| (word(f, "check"), word(f, "level"), word(f, "fix"))).collect()
}

#[test]
fn doctor_checks_notify_engine() {
    let check_finding = |check: &str, level: &str, fix: &str, state: &str, breakage: &dyn Fn(&Host)| {
        let found = supervised(state, breakage);
        let [(name, found_level, found_fix)] = found.as_slice() else { panic!("{check}: {found:?}") };
        assert_eq!((name.as_str(), found_level.as_str()), (check, level));
        assert!(found_fix.contains(fix), "{found_fix}");
    };
    assert_eq!(supervised("armed", |_| ()), []);
    // A kernel that cannot load a module at all, like that of the H200 in docs/evidence.md.
    let without_module = |h: &Host| {
        h.write(&format!("boot/config-{RELEASE}"), "CONFIG_MODULES=y\n");
        h.write("proc/sys/kernel/modules_disabled", "1\n");
        h.write("proc/sys/kernel/ftrace_enabled", "0\n");
        h.remove(&format!("lib/modules/{RELEASE}/build"));
        h.remove("usr/bin/make");
        h.write("lib/modules/6.1.0-30-amd64/modules.order", "");
        h.write("sys/kernel/livepatch/fix/nvidia/os_memcpy_to_user,1/x", "");
    };
    assert_eq!(supervised("armed", without_module), [], "what the module lacks does not matter");
    check_finding("engine", "broken", "sudo mpu up", "retired", &|_| ());
    check_finding("notify_wrapper", "attention", "mpu-container_*.deb", "armed", &|h| {
        h.remove("usr/bin/nvidia-container-runtime")
    });
    check_finding(
        "notify_wrapper",
        "attention",
        "dnf install --allowerasing ./mpu-container-[0-9]*.rpm",
        "armed",
        &|h| {
            h.remove("usr/bin/nvidia-container-runtime");
            h.write("etc/os-release", "ID=rocky\nID_LIKE=rhel\n");
        },
    );
    check_finding("notify_wrapper", "attention", "replaces it", "armed", &|h| {
        h.remove("usr/bin/nvidia-container-runtime");
        h.tool("nvidia-container-runtime", "exit 0");
    });
    check_finding("notify_wrapper", "attention", "runtime configure", "armed", &|h| h.remove("etc/docker/daemon.json"));
    check_finding("notify_wrapper", "attention", "runtime configure --runtime=podman", "armed", &|h| {
        h.remove("etc/docker/daemon.json");
        h.tool("podman", "exit 0");
        h.tool("nvidia-ctk", "exit 0");
    });
    check_finding("notify_keeper", "attention", "mpu down && sudo mpu up", "armed", &|h| {
        h.write("run/mpu/notify/keeper.sock", "")
    });
    check_finding("notify_keeper", "attention", "sudo mpu install", "armed", &|h| {
        h.write("run/mpu/notify/keeper.sock", "");
        h.remove("usr/lib/systemd/system/mpu-notify.service");
    });
    check_finding("policy", "attention", "mpu config apply", "armed", &|h| {
        h.write("etc/mpu/config.toml", "notify_cpu_percent = 5\n")
    });
    // Three restarts may be an operator's own kills.
    assert_eq!(supervised("armed after 3", |_| ()), []);
    check_finding("notify_restarts", "attention", "journalctl -u mpu-notify.service", "armed after 4", &|_| ());
    let lock = std::cell::RefCell::new(None);
    check_finding("notify_restarts", "attention", "tail -n 50 /run/mpu/notify/log", "armed after 8", &|h| {
        h.write("run/mpu/notify/keeper.lock", "");
        let file = fs::File::open(h.path("run/mpu/notify/keeper.lock")).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        lock.replace(Some(file));
    });
    check_finding("notify_rootless", "attention", "as root", "armed", &|h| {
        h.write("run/user/1000/podman/podman.sock", "")
    });
    check_finding("notify_kernel", "broken", "5.9", "armed", &|h| h.write("proc/sys/kernel/yama/ptrace_scope", "3"));
}

impl Host {
    /// A process that has the GPU open, in the given PID namespace.
    fn uses_gpu(&self, pid: u32, namespace: &str, cgroup: &str, filtered: bool) {
        let of = |name: &str| format!("proc/{pid}/{name}");
        self.write(&format!("proc/{pid}/status"), if filtered { "Seccomp:\t2\n" } else { "Seccomp:\t0\n" });
        self.write(&format!("proc/{pid}/cgroup"), cgroup);
        for (name, to) in [("ns/pid", namespace), ("fd/0", "/dev/null"), ("fd/3", "/dev/nvidiactl")] {
            self.link(&of(name), to);
        }
    }
}

#[test]
fn doctor_finds_container_started_without_wrapper() {
    const INSIDE: &str = "pid:[4026532500]";
    let docker = |digit: &str| format!("0::/system.slice/docker-{}.scope\n", digit.repeat(64));
    // The supervisor has one container: twenty-four digits of an id.
    for (namespace, cgroup, filtered, is_found, because) in [
        (INSIDE, docker("a"), true, false, "it is served"),
        ("pid:[4026531836]", docker("b"), true, false, "it sees the host's numbers anyway"),
        (INSIDE, "0::/user.slice\n".to_string(), true, false, "whose filter it is cannot be seen"),
        (INSIDE, docker("b"), true, true, "another container"),
        (INSIDE, "0::/user.slice\n".to_string(), false, true, "no filter"),
    ] {
        let found = supervised("armed", |h| h.uses_gpu(70, namespace, &cgroup, filtered));
        let matches = |(check, level, fix): &(String, String, String)| {
            check == "notify_unserved" && level == "attention" && fix.contains("through the wrapper")
        };
        assert!(found.len() == usize::from(is_found) && found.iter().all(matches), "{because}: {found:?}");
    }
}

#[test]
fn doctor_finds_dead_notify_socket() {
    check_finding("notify_socket", "broken", "mpu up --engine notify", &[], |h| {
        fs::create_dir_all(h.path("run/mpu/notify")).unwrap();
        drop(UnixListener::bind(h.path("run/mpu/notify/control.sock")).unwrap());
    });
}

#[test]
fn unprivileged_doctor_skips_root_only_checks() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can become another user");
    }
    let host = Host::in_order();
    host.down();
    host.write("etc/mpu/config.toml", "engine = \"notify\"\nnri = true\n");
    fs::create_dir_all(host.path("run/mpu/nri")).unwrap();
    let close = |path: &str, mode| fs::set_permissions(host.path(path), PermissionsExt::from_mode(mode)).unwrap();
    close("run/mpu/nri", 0o700);
    // The build folder may be readable for root only.
    close("", 0o755);
    // Another process copies it: a child of another test would inherit our descriptor, and execution would fail with ETXTBSY.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_mpu")).arg(host.path("mpu")).status();
    assert!(copied.unwrap().success());
    let levels = |id| {
        let mut command = std::process::Command::new(host.path("mpu"));
        command.arg("--host-root").arg(host.path("")).args(["doctor", "--json"]).uid(id).gid(id);
        let json: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let findings = json["findings"].as_array().unwrap().clone();
        let level = |check: &str| findings.iter().find(|f| f["check"] == check).unwrap()["level"].clone();
        ["notify_nri", "notify_wrapper"].map(level)
    };
    assert_eq!(levels(0), ["attention", "attention"], "no plugin runs, and there is no wrapper");
    assert_eq!(levels(65_534), ["skipped", "skipped"], "whether one runs is not known");
}
