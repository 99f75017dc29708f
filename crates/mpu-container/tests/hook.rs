//! The hook as engines call it: the executable under NVIDIA's name, a state on its standard input, a bundle.
//!
//! The container CLI's arguments and their order are what engines' logs, scripts and NVIDIA's own CLI know, so they are
//! what is tested; `/bin/echo` stands in for the CLI and prints them. What the CLI does with them is its own tests'.

use serde_json::{json, Value};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A bundle, and what the hook makes of it.
struct Bundle {
    folder: tempfile::TempDir,
}

impl Bundle {
    fn new(spec: &Value, config: &str) -> Bundle {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), spec.to_string()).expect("written");
        std::fs::write(folder.path().join("config.toml"), config).expect("written");
        Bundle { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn state(&self) -> String {
        json!({"ociVersion": "1.2.0", "id": "x", "pid": 4242, "status": "creating", "bundle": self.path()}).to_string()
    }

    fn run(&self, arguments: &[&str], state: &str) -> Output {
        run("nvidia-container-runtime-hook", arguments, state, |command| {
            command.env("NVIDIA_CTK_CONFIG_FILE_PATH", self.path().join("config.toml"));
        })
    }
}

fn run(name: &str, arguments: &[&str], input: &str, more: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpu-container"));
    command.arg0(name).args(arguments).current_dir("/").env_remove("NVIDIA_CTK_CONFIG_FILE_PATH");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    more(&mut command);
    let mut child = command.spawn().expect("started");
    // A program that does not read its input closes it.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    child.wait_with_output().expect("ended")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim_end().to_string()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim_end().to_string()
}

/// A specification: variables between semicolons; `+CAPABILITY` is in the bounding set.
fn spec(words: &str) -> Value {
    let words = words.split(';').map(str::trim).filter(|word| !word.is_empty());
    let (bounding, env): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('+'));
    let bounding: Vec<&str> = bounding.iter().map(|word| &word[1..]).collect();
    json!({"ociVersion": "1.2.0", "root": {"path": "rootfs"}, "process": {"env": env, "capabilities": {"bounding": bounding}}})
}

/// What the CLI is called with: `…` in `expected` is what every call has at that place, and the end is left out.
/// Nothing for no call; `error: PART` for a refusal.
#[track_caller]
fn case(words: &str, config: &str, expected: &str) {
    let usual = [("path", "'/bin/echo'"), ("ldconfig", "'@/sbin/l'")];
    let missing = usual.iter().filter(|(key, _)| !config.contains(&format!("cli.{key} =")));
    let config: String =
        missing.map(|(key, value)| format!("nvidia-container-cli.{key} = {value}\n")).collect::<String>()
            + &config.replace("cli.", "nvidia-container-cli.").replace("runtime.", "nvidia-container-runtime.");
    let bundle = Bundle::new(&spec(words), &config);
    let output = bundle.run(&["prestart"], &bundle.state());
    let told = format!("{words} with {config}: {}\n{}", out(&output), err(&output));
    if let Some(part) = expected.strip_prefix("error: ") {
        assert!(err(&output).contains(part) && output.status.code() == Some(1) && output.stdout.is_empty(), "{told}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{told}");
    let whole = match expected {
        "" => String::new(),
        _ => format!("{expected} --pid=4242 {}", bundle.path().join("rootfs").display()),
    };
    let whole = whole.replace('…', "configure --cuda-compat-mode=ldconfig --ldconfig=@/sbin/l");
    assert_eq!(out(&output), whole, "{told}");
}

#[test]
fn what_the_container_asks_for_reaches_the_cli_in_the_known_order() {
    for (words, expected) in [
        ("", ""),
        ("NVIDIA_VISIBLE_DEVICES=void", ""),
        ("NVIDIA_VISIBLE_DEVICES=", ""),
        ("NVIDIA_DRIVER_CAPABILITIES=nonsense; NVIDIA_MIG_CONFIG_DEVICES=all", ""),
        ("NVIDIA_VISIBLE_DEVICES=all", "--load-kmods … --device=all --compute --utility"),
        ("NVIDIA_VISIBLE_DEVICES=none", "--load-kmods … --compute --utility"),
        ("NVIDIA_VISIBLE_DEVICES=0, 2", "--load-kmods … --device=0,2 --compute --utility"),
        ("NVIDIA_VISIBLE_DEVICES=GPU-1f,MIG-2,0:1", "--load-kmods … --device=GPU-1f,MIG-2,0:1 --compute --utility"),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_VISIBLE_DEVICES=1", "--load-kmods … --device=1 --compute --utility"),
        (
            "NVIDIA_VISIBLE_DEVICES=0; NVIDIA_DRIVER_CAPABILITIES=all",
            "--load-kmods … --device=0 --compat32 --compute --display --graphics --ngx --utility --video",
        ),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_DRIVER_CAPABILITIES=video,compat32", "--load-kmods … --device=0 --compat32 --video"),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_DRIVER_CAPABILITIES=,", "--load-kmods … --device=0"),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_DRIVER_CAPABILITIES=", "--load-kmods … --device=0 --compute --utility"),
        (
            "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=470; NVIDIA_VISIBLE_DEVICES=0; NVIDIA_REQUIRE_ARCH=arch>8",
            "--load-kmods … --device=0 --compute --utility --require=cuda>=12.4 brand=tesla,driver>=470 --require=arch>8",
        ),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_REQUIRE_X=", "--load-kmods … --device=0 --compute --utility --require="),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_REQUIRE_JETPACK=x", "--load-kmods … --device=0 --compute --utility"),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_REQUIRE_X=a; NVIDIA_DISABLE_REQUIRE=1", "--load-kmods … --device=0 --compute --utility"),
        (
            "NVIDIA_VISIBLE_DEVICES=0; NVIDIA_REQUIRE_X=a; NVIDIA_DISABLE_REQUIRE=yes",
            "--load-kmods … --device=0 --compute --utility --require=a",
        ),
        (
            "CUDA_VERSION=8.0.61",
            "--load-kmods … --device=all --compat32 --compute --display --graphics --ngx --utility --video --require=cuda>=8.0",
        ),
        (
            "+CAP_SYS_ADMIN; NVIDIA_VISIBLE_DEVICES=0; NVIDIA_IMEX_CHANNELS=0,1; NVIDIA_MIG_CONFIG_DEVICES=all; \
             NVIDIA_MIG_MONITOR_DEVICES=1; NVIDIA_DRIVER_CAPABILITIES=utility; NVIDIA_REQUIRE_A=cuda>1",
            "--load-kmods … --device=0 --mig-config=all --mig-monitor=1 --imex-channel=0,1 --utility --require=cuda>1",
        ),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_IMEX_CHANNELS=all", "--load-kmods … --device=0 --compute --utility"),
        ("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_GDS=enabled", "--load-kmods … --device=0 --compute --utility"),
        ("NVIDIA_VISIBLE_DEVICES=0,nvidia.com/gpu=1", "--load-kmods … --device=0,nvidia.com/gpu=1 --compute --utility"),
        ("DOCKER_RESOURCE_GPU=3; NVIDIA_VISIBLE_DEVICES=0", "--load-kmods … --device=0 --compute --utility"),
    ] {
        case(words, "", expected);
    }
}

#[test]
fn what_the_administrator_says_stands_before_it() {
    let zero = "NVIDIA_VISIBLE_DEVICES=0";
    let end = "--device=0 --compute --utility";
    for (config, expected) in [
        ("cli.root = '/run/nvidia/driver'", "--root=/run/nvidia/driver --load-kmods … E"),
        ("cli.load-kmods = false", "… E"),
        ("features.disable-imex-channel-creation = true", "--load-kmods --no-create-imex-channels … E"),
        ("cli.no-pivot = true", "--load-kmods --no-pivot … E"),
        ("cli.debug = '/log'", "--load-kmods --debug=/log … E"),
        ("cli.ldcache = '/cache'", "--load-kmods --ldcache=/cache … E"),
        ("cli.user = 'root:video'", "--load-kmods --user=root:video … E"),
        ("cli.no-cgroups = true", "--load-kmods … --no-cgroups E"),
        (
            "cli.root = '/r'\ncli.no-pivot = true\ncli.debug = '/d'\ncli.ldcache = '/c'\ncli.user = 'u'\ncli.no-cgroups = true\n\
             features.disable-imex-channel-creation = true",
            "--root=/r --load-kmods --no-create-imex-channels --no-pivot --debug=/d --ldcache=/c --user=u … --no-cgroups E",
        ),
        ("runtime.modes.legacy.cuda-compat-mode = 'mount'", "--load-kmods configure --cuda-compat-mode=mount --ldconfig=@/sbin/l E"),
        ("runtime.modes.legacy.cuda-compat-mode = 'hook'", "--load-kmods configure --cuda-compat-mode=disabled --ldconfig=@/sbin/l E"),
        ("runtime.modes.legacy.cuda-compat-mode = 'disabled'", "--load-kmods configure --cuda-compat-mode=disabled --ldconfig=@/sbin/l E"),
        ("runtime.modes.legacy.cuda-compat-mode = ''", "--load-kmods configure --cuda-compat-mode=disabled --ldconfig=@/sbin/l E"),
        (
            "runtime.modes.legacy.cuda-compat-mode = ''\nfeatures.allow-cuda-compat-libs-from-container = true",
            "--load-kmods configure --ldconfig=@/sbin/l E",
        ),
        (
            "cli.ldconfig = '/sbin/ldconfig'\nfeatures.allow-ldconfig-from-container = true",
            "--load-kmods configure --cuda-compat-mode=ldconfig --ldconfig=/sbin/ldconfig E",
        ),
        (
            "cli.ldconfig = ''\nfeatures.allow-ldconfig-from-container = true",
            "--load-kmods configure --cuda-compat-mode=ldconfig E",
        ),
        ("supported-driver-capabilities = 'utility'", "--load-kmods … --device=0 --utility"),
        ("runtime.mode = 'legacy'", "--load-kmods … E"),
        ("runtime.mode = 'cdi'\nnvidia-container-runtime-hook.skip-mode-detection = true", "--load-kmods … E"),
        ("unknown = 1\n[unknown-table]\nx = 1", "--load-kmods … E"),
    ] {
        case(zero, config, &expected.replace('E', end));
    }
    case(
        "A=2; B=3; NVIDIA_VISIBLE_DEVICES=0",
        "swarm-resource = 'A,B'",
        "--load-kmods … --device=2,3 --compute --utility",
    );
    case(
        "NVIDIA_VISIBLE_DEVICES=0; NVIDIA_REQUIRE_A=x",
        "disable-require = true",
        "--load-kmods … --device=0 --compute --utility",
    );
    case(zero, "accept-nvidia-visible-devices-envvar-when-unprivileged = false", "");
    let imex = "NVIDIA_VISIBLE_DEVICES=0; NVIDIA_IMEX_CHANNELS=0";
    case(imex, "features.ignore-imex-channel-requests = true", "--load-kmods … --device=0 --compute --utility");
}

#[test]
fn refusals_exit_with_1_and_say_why() {
    for (words, config, part) in [
        (
            "NVIDIA_VISIBLE_DEVICES=0; NVIDIA_DRIVER_CAPABILITIES=video,sound",
            "",
            "unsupported capabilities found in 'sound,video' (allowed 'video')\n",
        ),
        (
            "NVIDIA_VISIBLE_DEVICES=0; NVIDIA_MIG_CONFIG_DEVICES=all",
            "",
            "cannot set MIG_CONFIG_DEVICES in non privileged container",
        ),
        (
            "NVIDIA_VISIBLE_DEVICES=0; NVIDIA_MIG_MONITOR_DEVICES=0",
            "",
            "cannot set MIG_MONITOR_DEVICES in non privileged container",
        ),
        ("CUDA_VERSION=x", "", "invalid CUDA version x"),
        ("NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=0", "", "invoking the NVIDIA Container Runtime Hook directly"),
        (
            "NVIDIA_VISIBLE_DEVICES=0",
            "runtime.mode = 'cdi'",
            "is not supported. Please use the NVIDIA Container Runtime",
        ),
        ("NVIDIA_VISIBLE_DEVICES=0", "runtime.mode = 'jit-cdi'", "the mode is jit-cdi"),
        ("NVIDIA_VISIBLE_DEVICES=0", "runtime.mode = 'csv'", "the mode is csv"),
        ("", "runtime.mode = 'fast'", "config.toml, line 3: nvidia-container-runtime.mode: \"fast\" is none of"),
        ("", "cli.ldconfig = '/sbin/ldconfig'", "is not host-relative (does not start with a '@')"),
        ("", "supported-driver-capabilities = 'sound'", "\"sound\" is no driver capability"),
        ("NVIDIA_VISIBLE_DEVICES=0", "cli.path = '/no/such'", "exec failed: /no/such: No such file"),
    ] {
        case(words, config, &format!("error: {part}"));
    }
}

#[test]
fn a_refusal_is_a_line_and_a_fix() {
    let bundle = Bundle::new(&spec("NVIDIA_VISIBLE_DEVICES=0; NVIDIA_MIG_CONFIG_DEVICES=all"), "");
    let output = bundle.run(&["prestart"], &bundle.state());
    let expected = "nvidia-container-runtime-hook: cannot set MIG_CONFIG_DEVICES in non privileged container\n\
                    nvidia-container-runtime-hook: fix: give the container CAP_SYS_ADMIN, or take the variable away";
    assert_eq!(err(&output), expected);
}

#[test]
fn mounts_ask_where_that_is_allowed() {
    let mut spec = spec("NVIDIA_VISIBLE_DEVICES=0");
    let target = "/var/run/nvidia-container-devices";
    spec["mounts"] = json!([
        {"source": "/dev/null", "destination": format!("{target}/GPU-1")},
        {"source": "/dev/null", "destination": format!("{target}/2")},
        {"source": "/dev/null", "destination": format!("{target}/imex/3")},
    ]);
    let config = "nvidia-container-cli.path = '/bin/echo'\naccept-nvidia-visible-devices-as-volume-mounts = true";
    let bundle = Bundle::new(&spec, config);
    let output = bundle.run(&["prestart"], &bundle.state());
    assert!(
        out(&output).contains(" --device=GPU-1,2 --imex-channel=3 --compute --utility --pid=4242 "),
        "{}",
        out(&output)
    );
}

#[test]
fn the_root_is_found_from_the_bundle() {
    for (path, from_bundle) in [("rootfs", "rootfs"), ("./a/../b", "a/../b"), ("/abs//root/", "/abs/root")] {
        let mut spec = spec("NVIDIA_VISIBLE_DEVICES=0");
        spec["root"]["path"] = path.into();
        let bundle = Bundle::new(&spec, "nvidia-container-cli.path = '/bin/echo'");
        let expected = bundle.path().join(from_bundle);
        let output = bundle.run(&["prestart"], &bundle.state());
        assert!(out(&output).ends_with(&format!(" {}", expected.display())), "{path}: {}", out(&output));
        // A relative bundle, in the old field, is the working directory's.
        let old = json!({"pid": 1, "bundlePath": bundle.path().strip_prefix("/").expect("absolute")}).to_string();
        assert!(out(&bundle.run(&["prestart"], &old)).ends_with(&format!(" --pid=1 {}", expected.display())), "{path}");
    }
}

#[test]
fn broken_states_and_bundles_are_refused() {
    let sound = Bundle::new(&spec("NVIDIA_VISIBLE_DEVICES=0"), "nvidia-container-cli.path = '/bin/echo'");
    let bundle = sound.path().display().to_string();
    for (state, part) in [
        (String::new(), "could not decode container state: there is nothing on the standard input"),
        ("{".into(), "could not decode container state: EOF"),
        (
            json!({"pid": 1, "bundle": "/no/such"}).to_string(),
            "could not open OCI spec: cannot read /no/such/config.json: No such file",
        ),
        (json!({"bundle": bundle}).to_string(), "could not decode container state: it has no pid"),
    ] {
        let output = sound.run(&["prestart"], &state);
        assert!(err(&output).contains(part) && output.status.code() == Some(1), "{state}: {}", err(&output));
    }
    for (spec, part) in [
        ("{", "could not decode OCI spec: "),
        ("[]", "could not decode OCI spec: "),
        (r#"{"process":{},"root":{"path":"r"}}"#, "Version is empty in OCI spec"),
        (r#"{"ociVersion":"1.0.0","root":{"path":"r"}}"#, "Process is empty in OCI spec"),
        (r#"{"ociVersion":"1.0.0","process":{"env":[]},"root":null}"#, "Root is empty in OCI spec"),
        (
            r#"{"ociVersion":"1.0.0","process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]},"root":{}}"#,
            "root.path is empty in OCI spec",
        ),
        (
            r#"{"ociVersion":"1.0.0","process":{"env":[1]},"root":{}}"#,
            "could not decode OCI spec: process.env[0] is not a text",
        ),
    ] {
        std::fs::write(sound.path().join("config.json"), spec).expect("written");
        let output = sound.run(&["prestart"], &sound.state());
        assert!(err(&output).contains(part) && output.status.code() == Some(1), "{spec}: {}", err(&output));
    }
}

#[test]
fn the_cli_s_exit_code_and_environment_are_passed_through() {
    let zero = spec("NVIDIA_VISIBLE_DEVICES=0");
    // A shell that is given such options refuses with 2, which the hook itself never says here.
    let shell = Bundle::new(&zero, "nvidia-container-cli.path = '/bin/sh'");
    assert_eq!(shell.run(&["prestart"], &shell.state()).status.code(), Some(2));
    let config = "nvidia-container-cli.path = '/usr/bin/env'\nnvidia-container-cli.load-kmods = false\n\
                  nvidia-container-cli.environment = ['HELLO=there', 'nothing']\n";
    // `env configure …` would start a program named configure: the first argument is the CLI's command.
    let output = Bundle::new(&zero, config).run_with_program("configure", "#!/bin/sh\nprintf '%s' \"$HELLO\"\n");
    assert_eq!(out(&output), "there", "{}", err(&output));
    assert!(err(&output).contains("passing over \"nothing\""));
}

impl Bundle {
    /// Runs the hook with a program of this name first on the path.
    fn run_with_program(&self, name: &str, text: &str) -> Output {
        // Another process writes it: a file that this one has open for writing could not be started meanwhile.
        let program = self.path().join(name);
        let script = format!("cat > '{0}' && chmod +x '{0}'", program.display());
        let mut shell = Command::new("/bin/sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().expect("started");
        shell.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
        assert!(shell.wait().expect("ended").success());
        let path = format!("{}:/usr/bin:/bin", self.path().display());
        run("nvidia-container-runtime-hook", &["prestart"], &self.state(), |command| {
            command.env("PATH", path).env("NVIDIA_CTK_CONFIG_FILE_PATH", self.path().join("config.toml"));
        })
    }
}

#[test]
fn the_cli_is_this_executable_unless_another_is_named() {
    let empty = tempfile::tempdir().expect("a folder");
    let config = format!("nvidia-container-cli = {{root = {:?}, load-kmods = false}}", empty.path());
    let bundle = Bundle::new(&spec("NVIDIA_VISIBLE_DEVICES=0"), &config);
    let output = bundle.run(&["prestart"], &bundle.state());
    // There is no driver below that root, nor a container: the CLI says so, in its own name.
    assert!(err(&output).starts_with("nvidia-container-cli: ") && output.status.code() == Some(1), "{}", err(&output));
}

#[test]
fn names_flags_and_commands() {
    let bundle = Bundle::new(&spec("NVIDIA_VISIBLE_DEVICES=0"), "nvidia-container-cli.path = '/bin/echo'");
    let config = bundle.path().join("config.toml").display().to_string();
    let call = |name: &str, arguments: &[&str]| run(name, arguments, &bundle.state(), |_| ());
    for name in ["nvidia-container-runtime-hook", "/usr/bin/nvidia-container-toolkit"] {
        let output = call(name, &["-config", &config, "prestart"]);
        assert!(out(&output).starts_with("--load-kmods configure "), "{name}: {}", err(&output));
        let output = call(name, &["--debug", &format!("--config={config}"), "prestart"]);
        assert!(out(&output).starts_with("--load-kmods --debug=/dev/stderr configure "), "{name}: {}", err(&output));
        assert!(err(&output).contains("running /bin/echo --load-kmods"), "{}", err(&output));
    }
    assert!(out(&call("mpu-container", &["hook", "-config", &config, "prestart"])).starts_with("--load-kmods"));
    for command in ["poststart", "poststop"] {
        let output = call("nvidia-container-runtime-hook", &[command]);
        assert_eq!((output.status.code(), out(&output), err(&output)), (Some(0), String::new(), String::new()));
    }
    for arguments in [&[][..], &["prestop"], &["-loud", "prestart"], &["-config"]] {
        let output = call("nvidia-container-runtime-hook", arguments);
        assert!(output.status.code() == Some(2) && err(&output).contains("Usage of ") && output.stdout.is_empty());
    }
    assert!(out(&call("nvidia-container-toolkit", &["-version"])).starts_with("NVIDIA Container Runtime Hook version "));
    let help = call("nvidia-container-runtime-hook", &["-help"]);
    assert!(help.status.success() && out(&help).contains("Examples:"));
}

#[test]
fn a_named_configuration_must_be_there() {
    let bundle = Bundle::new(&spec(""), "");
    let output = run("nvidia-container-runtime-hook", &["-config", "/no/such", "prestart"], &bundle.state(), |_| ());
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("error getting hook config: cannot read /no/such: No such file"), "{}", err(&output));
    let usual = run("nvidia-container-runtime-hook", &["prestart"], &bundle.state(), |command| {
        command.env("XDG_CONFIG_HOME", bundle.path().join("nothing"));
    });
    assert_eq!((usual.status.code(), err(&usual)), (Some(0), String::new()), "the usual one need not");
}

#[test]
fn requests_that_are_ignored_are_warned_of() {
    let config = "accept-nvidia-visible-devices-envvar-when-unprivileged = false";
    let bundle = Bundle::new(&spec("NVIDIA_VISIBLE_DEVICES=0"), config);
    let output = bundle.run(&["prestart"], &bundle.state());
    assert_eq!(output.status.code(), Some(0));
    assert!(err(&output)
        .contains("warning: ignoring devices requested by environment variable(s) in unprivileged container"));
}
