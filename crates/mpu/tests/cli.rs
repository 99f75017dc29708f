//! The `mpu` command in a shell: output streams, exit codes, and broken hosts.
//!
//! A broken host is a directory for `--host-root`, with the same files as on a real host. Tests in QEMU guests load the
//! module.

mod schema;

use assert_cmd::Command;
use clap::CommandFactory;
use mpu_host::host::fake::{CONFIG, FakeHost, RELEASE};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

const STATE: &str = "/sys/module/mpu/parameters/state";
const BUILD: &str = "/lib/modules/6.1.0-28-amd64/build";

/// A host in a directory, with the module's sources beside it.
struct Host {
    fake: FakeHost,
    sources: tempfile::TempDir,
}

impl Host {
    /// A healthy host, except that it is not the running one.
    fn in_order() -> Host {
        let host = Host { fake: FakeHost::in_order(), sources: tempfile::tempdir().unwrap() };
        host.fake.tool("make", "for a; do case $a in M=*) echo module >\"${a#M=}/mpu.ko\";; esac; done");
        for (name, text) in [("Kbuild", "obj-m := mpu.o\n"), ("mpu_core.o_shipped", "object"), ("mpu_main.c", "")] {
            fs::write(host.sources.path().join(name), text).unwrap();
        }
        host
    }

    fn write(&self, path: &str, text: &str) {
        self.fake.write(path, text);
    }

    fn command(&self) -> Command {
        let mut command = Command::cargo_bin("mpu").unwrap();
        command.arg("--host-root").arg(self.fake.dir.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Run {
        run(self.command().args(arguments))
    }

    /// `mpu up` with this host's sources.
    fn up(&self, more: &[&str]) -> Run {
        let sources = ["--source", self.sources.path().to_str().unwrap()];
        let sources = if more.contains(&"--module") { &[][..] } else { &sources };
        self.run(&[&["up"], sources, more].concat())
    }
}

struct Run {
    code: i32,
    out: String,
    err: String,
}

impl Run {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

fn run(command: &mut Command) -> Run {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    if command.get_args().any(|argument| argument == "--json") {
        schema::check(&text(&output.stdout));
    }
    Run { code: output.status.code().unwrap(), out: text(&output.stdout), err: text(&output.stderr) }
}

fn mpu(arguments: &[&str]) -> Run {
    run(Command::cargo_bin("mpu").unwrap().args(arguments))
}

/// `mpu up` on a host that `breakage` broke: the exit code, one line with the cause, one with the fix, and nothing
/// changed. The same as JSON.
fn refuses(code: i32, cause: &str, fix: &str, more: &[&str], breakage: impl Fn(&Host)) {
    let host = Host::in_order();
    breakage(&host);
    let before = host.fake.snapshot();
    let run = host.up(more);
    assert_eq!(run.code, code, "{}", run.err);
    let lines: Vec<&str> = run.err.lines().collect();
    assert_eq!((lines.len(), run.out.as_str()), (2, ""), "{}", run.err);
    assert!(lines[0].starts_with("mpu: MPU is not up: ") && lines[0].contains(cause), "{}", run.err);
    assert!(lines[1].starts_with("fix: ") && lines[1].contains(fix), "{}", run.err);
    let run = host.up(&[more, &["--json"]].concat());
    let json = run.json();
    assert_eq!((run.code, &json["exit"], &json["ok"], &*run.err), (code, &code.into(), &false.into(), ""), "{json}");
    assert!(json["error"]["message"].as_str().unwrap().contains(cause), "{json}");
    assert_eq!(host.fake.snapshot(), before, "something was changed");
}

#[test]
fn up_with_one_wrong_file_is_refused() {
    const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
    const OLD_KERNEL: &str = "CONFIG_MODULES=y\nCONFIG_KPROBES=y\n";
    const HEADER: &str = "/lib/modules/6.1.0-28-amd64/build/include/generated/utsrelease.h";
    let integrity = (LOCKDOWN, "none [integrity] confidentiality");
    let confidential = (LOCKDOWN, "none integrity [confidentiality]");
    let user = ("/proc/self/status", "CapEff:\t0000000000000000\n");
    let unknown = ("/sys/module/nvidia/version", "700.10\n");
    let known = ("/etc/mpu/config.toml", "drivers = \"known\"\n");
    let kernel = (&*format!("/boot/config-{RELEASE}"), OLD_KERNEL);
    let others_headers = (HEADER, "#define UTS_RELEASE \"6.1.0-27-amd64\"\n");
    let types = format!("{CONFIG}CONFIG_DEBUG_INFO_BTF_MODULES=y\n");
    let types = [(&*format!("{BUILD}/.config"), &*types), (&*format!("{BUILD}/vmlinux"), "its type information")];
    let foreign = |name| {
        [(format!("/sys/module/{name}/version"), "0.1-pre\n"), (format!("/sys/module/{name}/initstate"), "live\n")]
    };
    let [mpu, next] = [foreign("mpu"), foreign("mpu_next")];
    let [mpu, next] = [&mpu, &next].map(|files| files.each_ref().map(|(path, text)| (path.as_str(), *text)));
    let older = "an older MPU (matpool, lengrongfu or biubushy) is loaded as mpu";
    let (other_root, no_calls) =
        ("is not the root of the running host", "without CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS");
    let remove = "sudo rmmod mpu && sudo mpu up";
    type Files<'a> = &'a [(&'a str, &'a str)];
    let rows: [(i32, &str, &str, &[&str], Files<'_>); 17] = [
        (4, "needs root", "sudo mpu", &[], &[user, kernel]),
        (4, "locked down (integrity)", "--build-only", &[], &[integrity]),
        (4, "locked down (confidentiality)", "sign the module", &[], &[confidential]),
        (4, "signed modules only", "sign the module", &[], &[("/sys/module/module/parameters/sig_enforce", "Y")]),
        (4, "kernel.modules_disabled", "reboot", &[], &[("/proc/sys/kernel/modules_disabled", "1\n")]),
        (4, "ftrace_enabled = 0", "kernel.ftrace_enabled=1", &[], &[("/proc/sys/kernel/ftrace_enabled", "0\n")]),
        (3, no_calls, "boot a kernel", &[], &[kernel]),
        (3, "NVIDIA driver 700.10", "drivers = \"known\"", &[], &[unknown, known]),
        // Without a word about it, the next thing that is wrong is reported.
        (4, other_root, "--host-root", &[], &[unknown]),
        (4, other_root, "--host-root", &["--any-driver"], &[unknown]),
        (4, other_root, "--host-root", &[], &[]),
        (3, "those of kernel 6.1.0-27-amd64", "apt-get install", &[], &[others_headers]),
        (3, "no pahole", "apt-get install pahole", &[], &types),
        (1, "MPU 0.0.1 is loaded", "mpu up --replace", &[], &[(STATE, "version=0.0.1\nstate=armed\n")]),
        (4, older, remove, &[], &mpu),
        (4, older, remove, &["--replace"], &mpu),
        (4, "is loaded as mpu_next", "sudo rmmod mpu_next && sudo mpu up", &[], &next),
    ];
    for (code, cause, fix, more, files) in rows {
        refuses(code, cause, fix, more, |host| files.iter().for_each(|(path, text)| host.write(path, text)));
    }
}

#[test]
fn up_without_build_tools_is_refused() {
    for (cause, fix, gone) in [
        ("headers of kernel", "apt-get install linux-headers-6.1.0-28-amd64", BUILD),
        ("no make", "apt-get install make", "/usr/bin/make"),
        ("no gcc-12", "apt-get install make gcc-12", "/usr/bin/gcc-12"),
        ("release cannot be read", "mount /proc", "/proc/sys/kernel/osrelease"),
    ] {
        refuses(3, cause, fix, &[], |host| host.fake.remove(gone));
    }
}

#[test]
fn up_with_wrong_module_file_is_refused() {
    let other = tempfile::NamedTempFile::new().unwrap();
    fs::write(other.path(), mpu_engine::module::sources::fake::module("5.10.0-30-amd64")).unwrap();
    for (cause, fix, file) in [
        ("built for kernel 5.10.0-30-amd64", "without --module", other.path().to_str().unwrap()),
        ("is no kernel module", "--build-only", "/bin/sh"),
        ("cannot read the module", "exists", "/nonexistent.ko"),
    ] {
        refuses(3, cause, fix, &["--module", file], |_| {});
    }
}

#[test]
fn up_with_empty_source_directory() {
    let empty = tempfile::tempdir().unwrap();
    let host = Host::in_order();
    let run = host.run(&["up", "--build-only", "--source", empty.path().to_str().unwrap()]);
    assert_eq!((run.code, run.err.contains("no Kbuild")), (3, true), "{}", run.err);
}

#[test]
fn failed_build_names_its_log() {
    let host = Host::in_order();
    host.fake.tool("make", "echo 'mpu_main.c:9:1: error: unknown type' >&2; exit 2");
    let run = host.up(&["--build-only"]);
    assert_eq!(run.code, 1);
    assert!(run.err.contains("mpu_main.c:9:1: error: unknown type") && run.err.contains("build.log"), "{}", run.err);
    assert!(host.fake.host().at(format!("/var/lib/mpu/{RELEASE}/build.log")).is_file());
}

#[test]
fn second_build_only_reuses_first() {
    let host = Host::in_order();
    let first = host.up(&["--build-only", "--json"]).json();
    assert!(first["build_seconds"].is_number() && first["result"] == "built" && first["engine"] == "module", "{first}");
    let second = host.up(&["--build-only", "--json"]).json();
    assert!(second["build_seconds"].is_null() && second["module"] == first["module"], "{second}");
}

#[test]
fn down_without_engine_succeeds() {
    let host = Host::in_order();
    let run = host.run(&["down"]);
    assert_eq!((run.code, run.out.as_str()), (0, "MPU is not up; nothing was changed\n"));
    host.write(STATE, "version=0.1.0\nstate=armed\n");
    assert_eq!(host.run(&["down"]).code, 4, "another root's module is not ours to unload");
    host.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    let run = host.run(&["down"]);
    assert!(run.code == 4 && run.err.contains("CAP_SYS_MODULE"), "{}", run.err);
}

#[test]
fn probe_without_driver_device_or_rights() {
    const USER: (&str, &str) = ("/proc/self/status", "CapEff:\t0000000000000000\n");
    const DEVICE: (&str, &str) = ("/dev/nvidiactl", "a plain file");
    for (file, has_driver, code, words) in [
        (Some(DEVICE), true, 1, "cannot become a client of the driver: the driver's ioctl"),
        (None, true, 3, "nvidiactl: No such file"),
        (Some(USER), true, 4, "CAP_SYS_ADMIN"),
        (Some(USER), false, 4, "needs root"),
        (None, false, 3, "driver"),
    ] {
        let host = Host::in_order();
        file.iter().for_each(|(path, text)| host.write(path, text));
        if !has_driver {
            host.fake.remove("/sys/module/nvidia");
        }
        let run = host.run(&["probe"]);
        assert!(run.code == code && run.err.contains(words), "{}", run.err);
        let json = host.run(&["probe", "--json"]).json();
        assert_eq!(json["error"]["code"] == "no_driver", (code, has_driver) == (3, false), "{json}");
    }
}

#[test]
fn privileged_commands_report_not_root_first() {
    let host = Host::in_order();
    host.write("/proc/self/status", "CapEff:\t0000000000000000\n");
    host.write("/etc/mpu/config.toml", "nonsense");
    host.fake.remove("/sys/module/nvidia");
    for line in [
        &["up"][..],
        &["down"],
        &["probe"],
        &["who"],
        &["install"],
        &["upgrade"],
        &["uninstall"],
        &["config", "apply"],
        &["agent", "run", "--id", "x"],
    ] {
        let run = host.run(&[line, &["--json"]].concat());
        assert_eq!((run.code, run.json()["error"]["code"].as_str()), (4, Some("not_root")), "{line:?}: {}", run.out);
    }
}

#[test]
fn configuration_is_checked_from_pipe_too() {
    let host = Host::in_order();
    let check = |file: &str, text: &str| run(host.command().args(["config", "check", file]).write_stdin(text));
    for file in ["-", "/dev/stdin", "/proc/self/fd/0"] {
        let sound = check(file, "visibility = \"pod\"\n");
        assert_eq!((sound.code, sound.err.as_str()), (0, ""), "{file}");
        assert!(sound.out.contains("0 rules, sound"), "{}", sound.out);
        let wrong = check(file, "\nvisibility = 3\n");
        assert!(wrong.code == 1 && wrong.err.contains(", line 2: "), "{file}: {}", wrong.err);
        let long = check(file, &"#\n".repeat(1 << 20));
        assert!(long.code == 1 && long.err.contains("more than 1048576 bytes"), "{file}: {}", long.err);
    }
    assert!(check("-", "x = 1\n").err.contains("mpu config check /dev/stdin"), "a name that it takes again");
}

#[test]
fn quoted_control_characters_do_not_reach_terminal() {
    let host = Host::in_order();
    let text = r#""\u001b[31mred\u202e" = 1"#;
    let wrong = run(host.command().args(["config", "check", "-"]).write_stdin(text));
    assert!(wrong.code == 1 && wrong.err.contains("[31mred"), "{:?}", wrong.err);
    assert!(!wrong.err.contains(['\u{1b}', '\u{202e}']), "{:?}", wrong.err);
}

#[test]
fn init_started_by_hand_fails() {
    let run = mpu(&["notify", "init", "--", "true"]);
    assert!(run.code == 125 && run.err.starts_with("mpu: "), "{}: {}", run.code, run.err);
}

#[test]
fn only_capable_terminal_gets_colours() {
    let host = Host::in_order();
    let line = format!(
        "{} --host-root {} doctor",
        assert_cmd::cargo::cargo_bin("mpu").display(),
        host.fake.dir.path().display()
    );
    for (term, no_color, has_colours) in [("xterm", "", true), ("dumb", "", false), ("xterm", "1", false)] {
        // `script` provides the terminal.
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh").stdin(Stdio::null());
        script.env("TERM", term).env("NO_COLOR", no_color);
        let Ok(output) = script.output() else { return println!("skipped: no script") };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("headers") && text.contains('\u{1b}') == has_colours, "{term} {no_color:?}: {text}");
    }
}

#[test]
fn ps_outside_host_namespace_fails() {
    let host = Host::in_order();
    for line in [&["ps"][..], &["ps", "--json"]] {
        let run = host.run(line);
        assert_eq!(run.code, 3, "{} {}", run.out, run.err);
        assert!((run.out + &run.err).contains("--pid=host"), "{line:?}");
    }
}

#[test]
fn top_without_terminal_suggests_ps() {
    let run = mpu(&["top"]);
    assert_eq!(run.code, 2, "{}", run.err);
    assert!(run.err.contains("not a terminal") && run.err.contains("mpu ps"), "{}", run.err);
    assert!(run.out.is_empty());
}

#[test]
fn ps_without_nvidias_library() {
    let host = Host::in_order();
    host.fake.can_notify();
    let run = host.run(&["ps"]);
    // A machine with a driver has the library, and is then asked.
    if run.code != 0 {
        assert!(run.code == 3 && run.err.contains("fix: "), "{}", run.err);
        assert!(run.err.contains("libnvidia-ml.so.1") || run.err.contains("no NVIDIA driver"), "{}", run.err);
    }
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    for line in [
        &["fly"][..],
        &["up", "--engine", "magic"],
        &["down", "--wait", "-1"],
        &["up", "--module", "x.ko", "--build-only"],
        &["ps", "--sort", "colour"],
        &["ps", "-o", "pid,colour"],
        &["ps", "--runtime", "rkt"],
        &["top", "--interval", "0"],
        &["top", "-n", "3"],
        &["schema", "man"],
        &["schema", "--fields"],
    ] {
        assert_eq!(mpu(line).code, 2, "{line:?}");
    }
    assert_eq!(mpu(&["man", "nonsense"]).code, 2);
    // As docs/cli.md and docs/exit-codes.md describe JSON and standard output.
    for line in [&["--json", "--nonsense"][..], &["status", "--json", "--nonsense"], &["doctor", "--json", "x"]] {
        let run = mpu(line);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{line:?}");
        assert!(run.err.contains("error: "), "{line:?}: {}", run.err);
    }
}

#[test]
fn help_version_completions_and_manual_are_there() {
    for (line, text) in [
        (&["--help"][..], "Exit codes:"),
        (&["-h"], "sudo mpu up"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["up", "--help"], "--build-only"),
        (&["schema"], "status\n"),
        (&["schema", "status"], "draft/2020-12"),
        (&["schema", "ps", "--fields"], "gpus[].memory.total\n    Bytes in all.\n"),
        (&["schema", "up", "--fields"], "      kept: Built here by an earlier `mpu up`.\n"),
        (&["completions", "bash"], "complete -F"),
        (&["completions", "zsh"], "#compdef mpu"),
        (&["completions", "fish"], "complete -c mpu"),
        (&["man"], ".TH \"mpu\""),
        (&["man", "up"], ".TH \"mpu-up\""),
        (&["man", "config", "check"], ".TH \"mpu-config-check\""),
    ] {
        let run = mpu(line);
        assert!(run.code == 0 && run.out.contains(text), "{line:?}: {} {}", run.out, run.err);
    }
}

#[test]
fn help_lists_each_command_once_under_its_heading() {
    let mut defined = mpu::cli::Cli::command();
    defined.build();
    let defined: Vec<&str> = defined.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name()).collect();
    for flag in ["-h", "--help"] {
        let help = mpu(&[flag]).out;
        let list = |heading: &str| -> Vec<String> {
            let (_, list) = help.split_once(heading).unwrap_or_else(|| panic!("no {heading:?}: {help}"));
            let lines = list.lines().skip(1).take_while(|line| !line.is_empty());
            let names = lines.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
            names.filter_map(|line| line.split(' ').next()).map(str::to_string).collect()
        };
        let (people, clusters) = (list("\nCommands:"), list("\nFor clusters, packagers and monitoring:"));
        let is_for_clusters = |name: &&str| mpu::cli::FOR_CLUSTERS.contains(name);
        assert_eq!(clusters.iter().filter(|name| is_for_clusters(&name.as_str())).count(), clusters.len(), "{help}");
        assert_eq!(defined.iter().filter(|name| is_for_clusters(name)).count(), mpu::cli::FOR_CLUSTERS.len());
        let mut listed: Vec<&str> = people.iter().chain(&clusters).map(String::as_str).collect();
        let mut expected = defined.clone();
        listed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(listed, expected, "{flag}: {help}");
    }
}

#[test]
fn closed_stdout_is_no_failure() {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("mpu"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn full_stdout_is_reported_on_stderr() {
    for words in [&["--help"][..], &["--version"], &["schema"], &["config", "check", "/nonexistent", "--json"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("mpu"));
        let output = command.args(words).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(output.stderr.starts_with(b"mpu: "), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Each installed shell must parse its script. Only bash is required.
#[test]
fn shells_can_read_their_completions() {
    let dir = tempfile::tempdir().unwrap();
    let mut read = Vec::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = dir.path().join(shell);
        fs::write(&script, mpu(&["completions", shell]).out).unwrap();
        let Ok(checked) = std::process::Command::new(shell).arg("-n").arg(&script).output() else {
            println!("skipped: no {shell}");
            continue;
        };
        assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr));
        read.push(shell);
    }
    assert!(read.contains(&"bash"), "{read:?}");
}

/// Each command's JSON must match its schema. Other tests cover the text.
#[test]
fn every_command_answers_as_its_schema_says() {
    let host = Host::in_order();
    let bad = host.fake.host().at("/bad.toml");
    fs::write(&bad, "[[rule]]\nsees = \"everything\"\n").unwrap();
    let no_path = format!("/{}", "x".repeat(200));
    let lines = [
        &["up"][..],
        &["down"],
        &["status"],
        &["probe"],
        &["doctor"],
        &["install", "--dry-run"],
        &["install"],
        &["uninstall"],
        &["config", "show"],
        &["config", "apply"],
        &["config", "check", bad.to_str().unwrap()],
        &["build", "--for", "6.1.0", "--headers", "/nonexistent"],
        &["metrics", "--once", "--textfile", "/nonexistent/mpu.prom"],
        &["agent", "ready", "--id", "absent"],
        &["agent", "alive", "--id", "../x"],
        &["nri", "--socket", &no_path],
        &["ps"],
        &["top", "--once"],
    ];
    // The others are asked without arguments.
    let tried: BTreeSet<&str> = lines.iter().map(|line| line[0]).collect();
    let all: BTreeSet<&str> = mpu::commands::schema::commands().collect();
    assert!(tried.is_subset(&all), "{tried:?}");
    let others: Vec<[&str; 1]> = all.difference(&tried).map(|name| [*name]).collect();
    for line in lines.into_iter().chain(others.iter().map(|line| &line[..])) {
        let run = host.run(&[line, &["--json"]].concat());
        let answer = run.json();
        assert_eq!((&answer["command"], answer["exit"].as_i64()), (&line[0].into(), Some(run.code.into())), "{answer}");
    }
}
