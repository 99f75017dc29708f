//! `nvidia-ctk-installer` as the GPU Operator runs it: configured by variables, until a signal, beside the process of an engine.
//!
//! The engine is this test's own executable (`engine`), which answers at a socket. As containerd it ends at SIGHUP, as
//! Docker it continues. The rig has a real containerd.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A fake host in a folder, and the installer's variables.
struct Host {
    dir: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Host {
    fn new(runtime: &str) -> Host {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |path: &str| dir.path().join(path).display().to_string();
        let variables = [
            ("RUNTIME", runtime.to_string()),
            ("ROOT", at("opt")),
            ("TOOLKIT_PID_FILE", at("run/toolkit.pid")),
            ("HOST_ROOT_MOUNT", "/".into()),
            ("RUNTIME_CONFIG", at("etc/config")),
            ("RUNTIME_SOCKET", at("engine.sock")),
            ("RUNTIME_CONFIG_SOURCE", "file".into()),
            ("NVIDIA_CONTAINER_RUNTIME_MODE", "cdi".into()),
        ];
        let variables = variables.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        Host { dir, variables }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn set(mut self, name: &str, value: &str) -> Host {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Selects a drop-in file, in a directory that has another path on the host.
    fn drop_in(self, name: &str) -> Host {
        let own = self.at(&format!("dropped.d/{name}")).display().to_string();
        self.set("RUNTIME_DROP_IN_CONFIG", &own).set("RUNTIME_DROP_IN_CONFIG_HOST_PATH", &format!("/etc/conf.d/{name}"))
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().expect("a folder")).expect("made");
        fs::write(self.at(path), text).expect("written");
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_default()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
        command
            .arg0("nvidia-toolkit")
            .args(words)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn once(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("ended")
    }

    /// Starts it, and waits for the message that it waits for a signal.
    fn start(&self) -> Running {
        let mut child = self.command(&[]).spawn().expect("started");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut output = String::new();
        for line in lines.by_ref() {
            output += &(line.expect("text") + "\n");
            if output.contains("waiting for a signal") {
                let rest = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
                return Running { child, output, rest };
            }
        }
        panic!("it ended, {:?}: {output}", child.wait());
    }
}

struct Running {
    child: Child,
    output: String,
    rest: JoinHandle<String>,
}

impl Running {
    fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal");
        let status = self.child.wait().expect("ended");
        (status, self.output + &self.rest.join().expect("its last words"))
    }
}

/// An engine, and the thread that starts it again.
struct Engine {
    stop: Arc<AtomicBool>,
    keeper: JoinHandle<()>,
    pid: mpsc::Receiver<Pid>,
}

impl Engine {
    fn start(host: &Host, kind: &'static str) -> Engine {
        let (socket, log) = (host.at("engine.sock"), host.at("engine.log"));
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, pid) = mpsc::channel();
        let stopped = stop.clone();
        let keeper = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                let mut engine = Command::new(std::env::current_exe().expect("this test"))
                    .args(["--exact", "engine", "--nocapture"])
                    .env("ENGINE", kind)
                    .env("ENGINE_SOCKET", &socket)
                    .env("ENGINE_LOG", &log)
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("an engine");
                let _ = sender.send(Pid::from_child(&engine));
                engine.wait().expect("ended");
            }
        });
        Engine { stop, keeper, pid }
    }

    /// Stops it. Returns how often it was started.
    fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(200));
        let started: Vec<Pid> = self.pid.try_iter().collect();
        kill_process(*started.last().expect("it ran"), Signal::KILL).expect("stopped");
        self.keeper.join().expect("its keeper ends");
        started.len()
    }
}

/// The engine's process, if `ENGINE` is set: no test.
#[test]
fn engine() {
    let Some(kind) = std::env::var_os("ENGINE") else { return };
    let path = |name: &str| PathBuf::from(std::env::var_os(name).expect("set"));
    let (socket, log) = (path("ENGINE_SOCKET"), path("ENGINE_LOG"));
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).expect("a socket");
    if kind != "docker" {
        // The tests may inherit an ignored SIGHUP, as from nohup.
        let ends = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGHUP, 0, ends).expect("signals");
    } else {
        let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGHUP]).expect("signals");
        thread::spawn(move || {
            for _ in signals.forever() {
                let mut log = fs::File::options().create(true).append(true).open(&log).expect("a log");
                log.write_all(b"read again\n").expect("written");
            }
        });
    }
    for stream in listener.incoming() {
        let mut stream = stream.expect("a caller");
        if kind == "docker" {
            let mut request = [0; 16];
            let _ = stream.read(&mut request);
        }
        let _ = stream.write_all(b"I am here");
    }
}

#[test]
fn containerd_is_configured_until_sigterm() {
    let existing = "# theirs\nversion = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n\
                  BinaryName = \"/opt/their/runc\"\nSystemdCgroup = true\n";
    let host = Host::new("containerd").drop_in("99-nvidia.toml");
    host.write("etc/config", existing);
    // Files of an earlier NVIDIA installer.
    host.write("opt/toolkit/libnvidia-container.so.1", "");
    host.write("opt/toolkit/nvidia-container-runtime.real", "");
    let engine = Engine::start(&host, "containerd");
    let running = host.start();

    assert_eq!(host.text("run/toolkit.pid").trim(), running.child.id().to_string());
    let second = host.once(&[]);
    let output = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(1) && output.contains("another installer holds"), "{output}");
    assert_eq!(host.text("run/toolkit.pid").trim(), running.child.id().to_string(), "whose file it is stays");

    let imports = "# For nvidia-ctk's file: /etc/conf.d/*.toml\nimports = [\"/etc/conf.d/*.toml\"]\n";
    assert_eq!(host.text("etc/config"), existing.replace("version = 2\n", &format!("version = 2\n{imports}")));
    let own: toml_edit::DocumentMut = host.text("dropped.d/99-nvidia.toml").parse().expect("TOML");
    let containerd = &own["plugins"]["io.containerd.grpc.v1.cri"]["containerd"];
    assert_eq!(containerd["default_runtime_name"].as_str(), Some("nvidia"));
    let toolkit = host.at("opt/toolkit");
    for (name, program) in [
        ("nvidia", "nvidia-container-runtime"),
        ("nvidia-cdi", "nvidia-container-runtime.cdi"),
        ("nvidia-legacy", "nvidia-container-runtime.legacy"),
    ] {
        let options = &containerd["runtimes"][name]["options"];
        assert_eq!(options["BinaryName"].as_str().map(Path::new), Some(&*toolkit.join(program)), "{name}");
        assert_eq!(options["SystemdCgroup"].as_bool(), Some(true), "{name}");
    }
    let mut there: Vec<_> = fs::read_dir(&toolkit).expect("read").flatten().map(|entry| entry.file_name()).collect();
    there.sort();
    assert_eq!(
        there,
        [
            ".config",
            "mpu-container",
            "nvidia-cdi-hook",
            "nvidia-container-cli",
            "nvidia-container-runtime",
            "nvidia-container-runtime-hook",
            "nvidia-container-runtime.cdi",
            "nvidia-container-runtime.legacy",
            "nvidia-container-toolkit",
            "nvidia-ctk"
        ]
    );

    let (status, output) = running.end(Signal::TERM);
    assert!(status.success(), "{output}");
    assert_eq!(host.text("etc/config"), existing, "to the byte");
    assert!(!host.at("dropped.d/99-nvidia.toml").exists() && !host.at("run/toolkit.pid").exists(), "{output}");
    assert!(toolkit.join("nvidia-container-runtime").exists(), "containers that run need it still");
    assert_eq!(engine.stop(), 3, "it was started, and had to begin anew twice: {output}");
}

#[test]
fn docker_reads_its_file_again() {
    let host = Host::new("docker").set("DOCKER_SET_AS_DEFAULT", "false").set("CDI_ENABLED", "false");
    host.write("etc/config", "{\"log-driver\": \"local\"}\n");
    let engine = Engine::start(&host, "docker");
    let running = host.start();
    let configured: serde_json::Value = serde_json::from_str(&host.text("etc/config")).expect("JSON");
    assert_eq!(configured["runtimes"].as_object().map(|runtimes| runtimes.len()), Some(3), "{configured}");
    assert!(configured.get("default-runtime").is_none() && configured["log-driver"] == "local", "{configured}");
    let (status, output) = running.end(Signal::INT);
    assert!(status.success(), "{output}");
    let left: serde_json::Value = serde_json::from_str(&host.text("etc/config")).expect("JSON");
    assert_eq!(left, serde_json::json!({"log-driver": "local"}));
    for _ in 0..1000 {
        if host.text("engine.log").lines().count() >= 2 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(host.text("engine.log"), "read again\nread again\n", "{output}");
    assert_eq!(engine.stop(), 1, "it never ended");
}

#[test]
fn crio_default_runtime_is_restored() {
    let host = || Host::new("crio").drop_in("99-nvidia.conf").set("RUNTIME_RESTART_MODE", "none");
    check_crio_default(&host());
    // An empty name selects the default name.
    check_crio_default(&host().set("RUNTIME_ARGS", "--runtime-name="));
}

fn check_crio_default(host: &Host) {
    host.write(
        "dropped.d/10-crio.conf",
        "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\nruntime_path = \"/opt/crun\"\n\
         monitor_path = \"/opt/conmon\"\n",
    );
    let running = host.start();
    let own: toml_edit::DocumentMut = host.text("dropped.d/99-nvidia.conf").parse().expect("TOML");
    assert_eq!(own["crio"]["runtime"]["default_runtime"].as_str(), Some("nvidia"));
    let nvidia = &own["crio"]["runtime"]["runtimes"]["nvidia"];
    assert_eq!(nvidia["monitor_path"].as_str(), Some("/opt/conmon"));
    assert!(
        host.text("opt/toolkit/.config/nvidia-container-runtime/config.toml")
            .contains("runtimes = [\"/opt/crun\", \"runc\", \"crun\"]")
    );
    let (status, output) = running.end(Signal::TERM);
    assert!(status.success() && output.contains("not restarted"), "{output}");
    let left: toml_edit::DocumentMut = host.text("dropped.d/99-nvidia.conf").parse().expect("TOML");
    assert!(left["crio"]["runtime"].get("default_runtime").is_none());
    assert!(left["crio"]["runtime"]["runtimes"]["nvidia"].get("runtime_path").is_some());
}

#[test]
fn installed_programs_use_adjacent_config() {
    let host = Host::new("containerd")
        .set("NVIDIA_CONTAINER_RUNTIME_RUNTIMES", "/bin/echo")
        .set("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver")
        .set("MPU_CONFIG_SET", "mpu.notify=opt-in,disable-require");
    let done = host.once(&["--no-runtime-config", "--no-daemon"]);
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success() && !host.at("etc").exists() && !host.at("run/toolkit.pid").exists(), "{output}");
    let run = |name: &str, words: &[&str]| {
        let done = Command::new(host.at("opt/toolkit").join(name))
            .args(words)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output();
        String::from_utf8_lossy(&done.expect("ran").stdout).into_owned()
    };
    let config = run("nvidia-ctk", &["config"]);
    for line in [
        "mode = \"cdi\"",
        "root = \"/run/nvidia/driver\"",
        "ldconfig = \"@/run/nvidia/driver/sbin/ldconfig\"",
        "skip-mode-detection = true",
        "notify = \"opt-in\"",
        "disable-require = true",
        &format!("path = \"{}\"", host.at("opt/toolkit/nvidia-ctk").display()),
    ] {
        assert!(config.contains(line), "{line} is missing: {config}");
    }
    let engine = format!("--config={}", host.at("daemon.json").display());
    let docker =
        run("nvidia-ctk", &["runtime", "configure", "--runtime=docker", "--set-as-default", "--dry-run", &engine]);
    let beside = host.at("opt/toolkit/nvidia-container-runtime").display().to_string();
    assert!(docker.contains(&format!("\"path\": \"{beside}\"")), "the one beside it, though not in PATH: {docker}");
    // Without a loaded driver, the program passes the call on. On a machine with one, this is not checked.
    let loaded =
        fs::read_to_string("/proc/modules").unwrap_or_default().lines().any(|line| line.starts_with("nvidia "));
    for name in ["nvidia-container-runtime", "nvidia-container-runtime.cdi"] {
        let output = run(name, &["state", "it's one"]);
        assert!(loaded || output == "state it's one\n", "{name}: {output}");
    }
    // A second installation over existing, possibly running programs succeeds.
    assert!(host.once(&["--no-runtime-config", "--no-daemon"]).status.success());
}

/// A killed installer leaves our runtime as the engine's default, under any name of the operator's values. As low-level runtime, it would
/// call itself.
#[test]
fn second_run_ignores_runtime_of_first() {
    for (engine, name) in [("containerd", "gpu"), ("containerd", "runc"), ("docker", "gpu"), ("crio", "gpu")] {
        let mut host = Host::new(engine).set("NVIDIA_RUNTIME_NAME", name).set("RUNTIME_RESTART_MODE", "none");
        if engine != "docker" {
            host = host.drop_in("99-nvidia.toml");
        }
        for _ in 0..2 {
            let done = host.once(&["--no-daemon"]);
            assert!(done.status.success(), "{engine}: {}", String::from_utf8_lossy(&done.stderr));
        }
        let config = host.text("opt/toolkit/.config/nvidia-container-runtime/config.toml");
        assert!(config.contains("runtimes = [\"runc\", \"crun\"]"), "{engine}, {name}: {config}");
        let script = host.text("opt/toolkit/nvidia-container-runtime");
        assert!(script.contains("|| exec 'runc' "), "{engine}, {name}: {script}");
    }
    let host = Host::new("containerd").drop_in("99-nvidia.toml").set("RUNTIME_RESTART_MODE", "none");
    let low = |name: &str| {
        let at = format!("[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{name}");
        format!("{at}]\nruntime_type = \"io.containerd.runc.v2\"\n{at}.options]\nBinaryName = \"/usr/bin/{name}\"\n")
    };
    let default = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"crun\"\n";
    host.write("etc/config", &format!("version = 2\n{default}{}{}", low("runc"), low("crun")));
    for _ in 0..2 {
        assert!(host.once(&["--no-daemon"]).status.success());
        let config = host.text("opt/toolkit/.config/nvidia-container-runtime/config.toml");
        let runtimes = "runtimes = [\"/usr/bin/crun\", \"/usr/bin/runc\", \"runc\", \"crun\"]";
        assert!(config.contains(runtimes), "the engine's own default stays the first: {config}");
    }
    let host = Host::new("docker");
    let own = host.at("opt/toolkit/nvidia-container-runtime").display().to_string();
    let host = host.set("NVIDIA_CONTAINER_RUNTIME_RUNTIMES", &own);
    let done = host.once(&["--no-daemon"]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("is what this installs"), "{done:?}");
    assert!(!done.status.success() && !host.at("opt").exists());
}

#[test]
fn invalid_options_change_no_files() {
    for (words, part) in [
        (&["--enable-nri-plugin"][..], "nriPluginEnabled=false"),
        (&["--runtime=podman"], "[possible values: docker, containerd, crio]"),
        (&["--pid-file=/tmp/x.pid"], "toolkit.pid"),
        (&["--toolkit-install-dir=x"], "must begin with a slash"),
        (&["--cdi-kind=nvidia.com"], "--cdi-kind: 'nvidia.com' is not a CDI kind; it must read vendor/class"),
        (&["--create-device-nodes=all"], "neither control nor none"),
        (&["--runtime=crio", "--restart-mode=signal"], "at its start only"),
        (&["--restart-mode=magic"], "[possible values: signal, systemd, none]"),
        (&["--config-mode=magic"], "[possible values: config, hook]"),
        (&["--host-root=/nowhere"], "--host-root=/nowhere"),
        (&["--use-legacy-config"], "containerd before 1.3"),
        (&["--nvidia-container-runtime.mode=fast", "--no-runtime-config"], "\"fast\" is none of"),
    ] {
        let host = Host::new("containerd");
        let done = host.once(words);
        let output = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(2) && output.contains(part), "{words:?}: {output}");
        assert!(!host.at("etc").exists() && !host.at("run/toolkit.pid").exists(), "{words:?}: {output}");
    }
}

/// Runs as the user nobody if it can: a wrong program would install files.
#[test]
fn bare_installer_call_prints_usage() {
    if Path::new("/host").is_dir() {
        return println!("skipped: /host is here, as in a toolkit container");
    }
    let dir = tempfile::tempdir().expect("a folder");
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("for all");
    let program = dir.path().join("program");
    let mut copied = Command::new("install");
    copied.args(["-m", "755", env!("CARGO_BIN_EXE_mpu-container")]).arg(&program);
    assert!(copied.status().expect("install").success());
    for name in ["nvidia-ctk-installer", "nvidia-toolkit"] {
        let mut command = Command::new(&program);
        command.arg0(name).env_clear().env("PATH", "/usr/bin:/bin").current_dir("/").stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let done = command.output().expect("ended");
        let output = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{output}");
        assert!(done.stdout.is_empty() && output.contains("Usage: nvidia-ctk-installer"), "{output}");
        assert!(output.contains("--runtime=docker"), "{output}");
    }
}

#[test]
fn malformed_engine_file_is_left_alone() {
    let host = Host::new("containerd").drop_in("99-nvidia.toml");
    host.write("etc/config", "version = 2\n[plugins\n");
    let done = host.once(&[]);
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && output.contains("is left as it is"), "{output}");
    assert_eq!(host.text("etc/config"), "version = 2\n[plugins\n");
    assert!(!host.at("run/toolkit.pid").exists(), "the next one can start");
}

#[test]
fn docker_configuration_is_restored() {
    let existing = "{\n    \"default-runtime\": \"kata\",\n    \"runtimes\": {\n        \
                  \"nvidia\": {\n            \"path\": \"/their/nvidia\"\n        \
                  },\n        \"kata\": {\n            \"path\": \"/their/kata\"\n        }\n    }\n}\n";
    let host = Host::new("docker").set("RUNTIME_RESTART_MODE", "none").set("NVIDIA_RUNTIME_SET_AS_DEFAULT", "true");
    let host = host.set("RUNTIME_ENABLE_CDI", "true");
    host.write("etc/config", existing);
    let running = host.start();
    let now: serde_json::Value = serde_json::from_str(&host.text("etc/config")).expect("JSON");
    assert_eq!((&now["default-runtime"], &now["features"]["cdi"]), (&"nvidia".into(), &true.into()));
    // A killed installer restores nothing. The next one restores the file from before the killed one.
    let (status, _) = running.end(Signal::KILL);
    assert!(!status.success());
    let (status, output) = host.start().end(Signal::TERM);
    assert!(status.success(), "{output}");
    let left: serde_json::Value = serde_json::from_str(&host.text("etc/config")).expect("JSON");
    let before: serde_json::Value = serde_json::from_str(existing).expect("JSON");
    assert_eq!(left, before, "{output}");
    let kept = host.at("opt/toolkit/.config/nvidia-container-runtime/before.json");
    assert!(!kept.exists(), "and is forgotten");
}

#[test]
fn containerd_top_file_of_administrator_stays() {
    let existing = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n\
                  [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\nBinaryName = \"/their/nvidia\"\n";
    let host = Host::new("containerd").drop_in("99-nvidia.toml").set("RUNTIME_RESTART_MODE", "none");
    let host = host.set("RUNTIME_ENABLE_CDI", "true");
    host.write("etc/config", existing);
    let running = host.start();
    assert!(host.text("dropped.d/99-nvidia.toml").contains("enable_cdi = true"), "{}", running.output);
    let (status, output) = running.end(Signal::TERM);
    assert!(status.success(), "{output}");
    assert_eq!(host.text("etc/config"), existing);
    assert!(!host.at("dropped.d/99-nvidia.toml").exists(), "{output}");
}

#[test]
fn closed_stderr_does_not_end_installer() {
    let host = Host::new("docker").set("RUNTIME_RESTART_MODE", "none");
    host.write("etc/config", "{\"log-driver\": \"local\"}\n");
    let mut command = host.command(&[]);
    let mut child = command.spawn().expect("started");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    lines.next().expect("a line").expect("text");
    drop(lines);
    let configured = || host.text("etc/config").contains("nvidia-legacy");
    for _ in 0..500 {
        if configured() {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!(configured());
    thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("a signal");
    assert!(child.wait().expect("ended").success());
    let left: serde_json::Value = serde_json::from_str(&host.text("etc/config")).expect("JSON");
    assert_eq!(left.get("runtimes"), None);
}

#[test]
fn dry_run_fails_only_on_write_error() {
    let host = Host::new("docker");
    let run = |out: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
        let config = format!("--config={}", host.at("daemon.json").display());
        command.arg0("nvidia-ctk").args(["runtime", "configure", "--dry-run", &config]).stdout(out);
        let done = command.stderr(Stdio::piped()).output().expect("ran");
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let (code, output) = run(writer.into());
    assert_eq!(code, Some(0), "{output}");
    let (code, output) = run(fs::File::options().write(true).open("/dev/full").expect("a device").into());
    assert!(code == Some(1) && output.contains("standard output"), "{code:?} {output}");
}

#[test]
fn full_engine_queue_does_not_block_exit() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let host = Host::new("docker");
    host.write("etc/config", "{}");
    let socket = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
    let address = SocketAddrUnix::new(host.at("engine.sock")).expect("a name");
    let hung = socket(SocketFlags::CLOEXEC);
    bind(&hung, &address).expect("bound");
    listen(&hung, 0).expect("a queue");
    let waiting: Vec<_> = (0..4).map(|_| socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)).collect();
    assert!(waiting.iter().any(|one| rustix::net::connect(one, &address).is_err()), "the queue is full");
    let mut child = host.command(&[]).spawn().expect("started");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let (sender, received) = std::sync::mpsc::channel();
    let reading = thread::spawn(move || {
        let first_failure = lines.by_ref().map_while(Result::ok).find(|line| line.contains("does not answer yet"));
        let _ = sender.send(first_failure);
        lines
    });
    let failed = received.recv_timeout(Duration::from_secs(60)).expect("it says something");
    assert!(failed.is_some(), "it ended without a word of the engine");
    // The first signal ends the wait for the engine. The second, which comes with it, ends the wait after the file is restored.
    for signal in [Signal::INT, Signal::TERM] {
        kill_process(Pid::from_child(&child), signal).expect("a signal");
    }
    for _ in 0..500 {
        if let Some(status) = child.try_wait().expect("ours") {
            assert!(status.success(), "{status}");
            drop(reading);
            assert_eq!(host.text("etc/config"), "{}\n");
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("killed");
    panic!("it waits for an engine that does not answer");
}

/// Docker's `Reload` keeps the runtimes if the file has none, and the default runtime if the file has none. So the file gets "runc" once
/// ours is no longer the default. Docker enables CDI only at its start. A restart stops its containers, unless it has live-restore.
#[test]
fn docker_restart_is_advised_only_when_needed() {
    let host = Host::new("docker");
    let reload_commands = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
        let config = format!("--config={}", host.at("daemon.json").display());
        let program = format!("--nvidia-runtime-path={}", env!("CARGO_BIN_EXE_mpu-container"));
        command.arg0("nvidia-ctk").args(["runtime", "configure", &config, &program]).args(options);
        let output = String::from_utf8_lossy(&command.output().expect("ran").stderr).into_owned();
        let by = ["reload docker", "restart docker"].into_iter().filter(|by| output.contains(by)).collect::<Vec<_>>();
        by.join(" ")
    };
    for (options, by) in [
        (&[][..], "reload docker"),
        (&["--set-as-default"], "reload docker"),
        (&["--set-as-default=false"], "reload docker"),
        (&["--cdi.enabled"], "restart docker"),
        (&["--cdi.enabled"], ""),
        (&["--nvidia-runtime-name=second"], "reload docker"),
        (&["--nvidia-runtime-name=second", "--remove"], "reload docker"),
        (&["--remove"], "restart docker"),
    ] {
        assert_eq!(reload_commands(options), by, "{options:?}");
    }
}

/// No file may get a byte, as on a full disk.
#[test]
fn full_disk_leaves_no_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let script = "ulimit -f 0; trap '' XFSZ; exec \"$0\" ctk runtime configure --config=\"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_mpu-container")]).arg(dir.path().join("daemon.json"));
    let done = command.output().expect("ran");
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && output.contains("cannot write"), "{output}");
    let left: Vec<_> = fs::read_dir(dir.path()).expect("read").flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn failed_write_is_not_reported_written() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
    // Not even root can make a file there.
    command.arg0("nvidia-ctk").args(["runtime", "configure", "--config=/proc/mpu-has-no-such-file.json"]);
    let done = command.output().expect("ran");
    let output = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.code() == Some(1) && output.contains("cannot write"), "{output}");
    assert!(!output.contains("is written"), "{output}");
}
