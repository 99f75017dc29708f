//! The command line of `nvidia-ctk-installer`.
//!
//! Each flag has one or more environment variables, because the GPU Operator sets only variables. A flag overrides a variable.
//!
//! Source: `nvidia-ctk-installer --help` of NVIDIA Container Toolkit 1.20; `controllers/object_controls.go` of the GPU
//! Operator 26.7 for the variables that it sets.

use crate::engines::command::parse_switch;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::ffi::OsString;

/// NVIDIA's value for the path or mode of the engine's packages.
const ENGINE_DEFAULT: &str = "RUNTIME_SPECIFIC_DEFAULT";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Text(&'static str),
    /// One of these values.
    OneOf(&'static str, &'static [&'static str]),
    List(&'static str),
    /// Accepted without effect.
    Ignored,
}

struct Flag {
    name: &'static str,
    aliases: &'static [&'static str],
    /// The environment variables of the flag. The first one that is not empty is used.
    variables: &'static [&'static str],
    kind: Kind,
    default: &'static str,
    about: &'static str,
}

const fn flag(
    name: &'static str,
    aliases: &'static [&'static str],
    variables: &'static [&'static str],
    kind: Kind,
    default: &'static str,
    about: &'static str,
) -> Flag {
    Flag { name, aliases, variables, kind, default, about }
}

use Kind::{Ignored, List, OneOf, Switch, Text};

#[rustfmt::skip]
const FLAGS: &[Flag] = &[
    flag("runtime", &[], &["RUNTIME"], OneOf("ENGINE", &["docker", "containerd", "crio"]), "docker", "The engine to configure"),
    flag("toolkit-install-dir", &["root"], &["TOOLKIT_INSTALL_DIR", "ROOT"], Text("DIR"), "/usr/local/nvidia",
        "Where the programs go: into its folder toolkit. The path must be the host's, too"),
    flag("no-daemon", &[], &["NO_DAEMON"], Switch, "false", "End once all is set up, and undo nothing"),
    flag("no-runtime-config", &[], &["NO_RUNTIME_CONFIG"], Switch, "false", "Install the programs and leave the engine alone"),
    flag("pid-file", &[], &["TOOLKIT_PID_FILE", "PID_FILE"], Text("FILE"), "/run/nvidia/toolkit/toolkit.pid",
        "Held while this runs, so that no second one does; its name must be toolkit.pid"),

    flag("config", &[], &["RUNTIME_CONFIG", "CONTAINERD_CONFIG", "DOCKER_CONFIG", "CRIO_CONFIG"], Text("FILE"), ENGINE_DEFAULT,
        "The file that the engine starts with"),
    flag("drop-in-config", &[], &["RUNTIME_DROP_IN_CONFIG"], Text("FILE"), ENGINE_DEFAULT,
        "The file of containerd or CRI-O that gets the runtimes"),
    flag("drop-in-config-host-path", &[], &["RUNTIME_DROP_IN_CONFIG_HOST_PATH"], Text("FILE"), "",
        "What the host calls that file; containerd's imports name it so"),
    flag("config-source", &["config-sources"], &["RUNTIME_CONFIG_SOURCES", "RUNTIME_CONFIG_SOURCE"], List("SOURCE"), "command,file",
        "Where options of the present default runtime are read: command, file, file=FILE; the first that can be read"),
    flag("executable-path", &[], &["RUNTIME_EXECUTABLE_PATH"], Text("PROGRAM"), "", "The engine's program, below the host's root"),
    flag("host-root", &[], &["HOST_ROOT_MOUNT"], Text("DIR"), HOST_MOUNT, "Where the host's root is; / where there is no such folder"),
    flag("socket", &[], &["RUNTIME_SOCKET", "CONTAINERD_SOCKET", "DOCKER_SOCKET"], Text("SOCKET"), ENGINE_DEFAULT,
        "The engine's socket: who answers there is signalled"),
    flag("restart-mode", &[], &["RUNTIME_RESTART_MODE"], OneOf("MODE", &["signal", "systemd", "none"]), ENGINE_DEFAULT,
        "How the engine reads its files again; signal is SIGHUP [default: systemd for crio, else signal]"),
    flag("runtime-name", &["nvidia-runtime-name", "runtime-class"], &["NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME"],
        Text("NAME"), "nvidia", "What users call the runtime; nvidia-cdi and nvidia-legacy come with it"),
    flag("set-as-default", &[], &["NVIDIA_RUNTIME_SET_AS_DEFAULT", "CONTAINERD_SET_AS_DEFAULT", "DOCKER_SET_AS_DEFAULT"], Switch, "true",
        "Containers that name no runtime get this one"),
    flag("enable-cdi-in-runtime", &[], &["RUNTIME_ENABLE_CDI"], Switch, "false", "The engine reads CDI files [default: as --cdi-enabled]"),
    flag("runtime-type", &[], &["CONTAINERD_RUNTIME_TYPE"], Text("TYPE"), "io.containerd.runc.v2", "containerd's runtime_type"),
    flag("config-mode", &[], &["CRIO_CONFIG_MODE"], OneOf("MODE", &["config", "hook"]), "config", "For CRI-O; hook writes a hook file (deprecated)"),
    flag("hooks-dir", &[], &["CRIO_HOOKS_DIR"], Text("DIR"), "/usr/share/containers/oci/hooks.d", "For CRI-O: where hook files are"),
    flag("hook-filename", &[], &["CRIO_HOOK_FILENAME"], Text("NAME"), "oci-nvidia-hook.json", "For CRI-O: the hook file"),

    flag("driver-root", &["nvidia-driver-root"], &["NVIDIA_DRIVER_ROOT", "DRIVER_ROOT"], Text("DIR"), "/run/nvidia/driver",
        "The driver's root, as the host calls it"),
    flag("driver-root-ctr-path", &[], &["DRIVER_ROOT_CTR_PATH"], Text("DIR"), "/run/nvidia/driver", "The same, as it is called here"),
    flag("dev-root", &[], &["NVIDIA_DEV_ROOT", "DEV_ROOT"], Text("DIR"), "", "The root below whose dev the nodes are [default: the driver's]"),
    flag("dev-root-ctr-path", &[], &["DEV_ROOT_CTR_PATH"], Text("DIR"), "", "The same, as it is called here"),
    flag("cdi-enabled", &["enable-cdi"], &["CDI_ENABLED", "ENABLE_CDI"], Switch, "false", "Write a CDI file for management containers"),
    flag("cdi-output-dir", &[], &["CDI_OUTPUT_DIR"], Text("DIR"), "/var/run/cdi", "Where the CDI file goes; none if empty"),
    flag("cdi-kind", &[], &["CDI_KIND"], Text("VENDOR/CLASS"), "management.nvidia.com/gpu", "What the CDI file's device is"),
    flag("create-device-nodes", &[], &["CREATE_DEVICE_NODES"], List("WHICH"), "control",
        "With --cdi-enabled: control makes the driver's control nodes, none makes none"),

    flag("nvidia-container-runtime.mode", &["nvidia-container-runtime-mode"], &["NVIDIA_CONTAINER_RUNTIME_MODE"], Text("MODE"), "",
        "This key of config.toml, as the next ones"),
    flag("nvidia-container-runtime.debug", &["nvidia-container-runtime-debug"], &["NVIDIA_CONTAINER_RUNTIME_DEBUG"], Text("FILE"), "", ""),
    flag("nvidia-container-runtime.log-level", &["nvidia-container-runtime-debug-log-level"], &["NVIDIA_CONTAINER_RUNTIME_LOG_LEVEL"],
        Text("LEVEL"), "", ""),
    flag("nvidia-container-runtime.modes.cdi.default-kind", &[], &["NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND"], Text("KIND"), "", ""),
    flag("nvidia-container-runtime.modes.cdi.annotation-prefixes", &[], &["NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES"],
        List("PREFIX"), "", ""),
    flag("nvidia-container-runtime.runtimes", &[], &["NVIDIA_CONTAINER_RUNTIME_RUNTIMES"], List("PROGRAM"), "",
        "[default: those of the engine's default runtime, runc and crun]"),
    flag("nvidia-container-cli.debug", &["nvidia-container-cli-debug"], &["NVIDIA_CONTAINER_CLI_DEBUG"], Text("FILE"), "", ""),
    flag("nvidia-container-runtime-hook.skip-mode-detection", &[], &["NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION"], Switch, "true", ""),
    flag("accept-nvidia-visible-devices-envvar-when-unprivileged", &[], &["ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"],
        Switch, "true", ""),
    flag("accept-nvidia-visible-devices-as-volume-mounts", &[], &["ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS"], Switch, "false", ""),
    flag("opt-in-features", &[], &["NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES"], List("FEATURE"), "", "Keys of features to switch on"),
    flag("set", &[], &["MPU_CONFIG_SET"], Text("KEY=VALUE"), "", "More keys of config.toml, separated by commas: mpu.notify=opt-in"),

    flag("runtime-args", &[], &["RUNTIME_ARGS"], Text("FLAGS"), "", "Flags in one text, as images before 1.14 took them"),
    flag("enable-nri-plugin", &[], &["ENABLE_NRI_PLUGIN"], Switch, "false", "Refused: there is no NRI plug-in in this program"),
    flag("use-legacy-config", &[], &["CONTAINERD_USE_LEGACY_CONFIG"], Switch, "false", "Refused: for containerd before 1.3"),
    flag("ignore-errors", &[], &[], Switch, "false", "Install what can be installed"),
    flag("debug", &[], &["TOOLKIT_DEBUG"], Ignored, "", ""),
    flag("toolkit-source-root", &[], &["TOOLKIT_SOURCE_ROOT"], Ignored, "", ""),
    flag("toolkit-package-type", &[], &["TOOLKIT_PACKAGE_TYPE"], Ignored, "", ""),
    flag("runtime-config-override", &[], &["RUNTIME_CONFIG_OVERRIDE", "CONTAINERD_RUNTIME_CONFIG_OVERRIDE"], Ignored, "", ""),
    flag("nri-plugin-index", &[], &["NRI_PLUGIN_INDEX"], Ignored, "", ""),
    flag("nri-socket", &[], &["NRI_SOCKET"], Ignored, "", ""),
    flag("nri-namespace", &[], &["NRI_NAMESPACE"], Ignored, "", ""),
    flag("nri-management-cdi-device-namespaces", &[], &["NRI_MANAGEMENT_CDI_DEVICE_NAMESPACES"], Ignored, "", ""),
];

const EXAMPLES: &str = "Examples:
  nvidia-ctk-installer --runtime=containerd                    as the GPU Operator runs it: until a signal ends it
  nvidia-ctk-installer --runtime=docker --no-daemon --host-root=/ --restart-mode=systemd
  nvidia-ctk-installer --no-runtime-config --no-daemon         the programs alone

At SIGTERM, SIGINT, SIGQUIT or SIGHUP the engine's files are put back, the engine reads them, and the program ends.
The programs stay, for containers that run.";

pub fn command() -> Command {
    let flags = FLAGS.iter().map(|flag| {
        let variables: Vec<String> = flag.variables.iter().map(|name| format!("{name}=")).collect();
        let variables = if variables.is_empty() { String::new() } else { format!("[env: {}]", variables.join(", ")) };
        let help = [flag.about, &variables].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let arg = Arg::new(flag.name).long(flag.name).visible_aliases(flag.aliases.iter().copied()).help(help);
        let arg = match flag.default {
            "" | ENGINE_DEFAULT => arg.default_value(flag.default).hide_default_value(true),
            default => arg.default_value(default),
        };
        match flag.kind {
            Switch => {
                let arg = arg.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true");
                arg.value_parser(parse_switch)
            }
            Text(value) | List(value) => arg.value_name(value).allow_hyphen_values(true),
            OneOf(value, values) => {
                // Scripts also pass the default itself, or an empty value for it.
                let hidden = [ENGINE_DEFAULT, ""].into_iter().filter(|_| flag.default == ENGINE_DEFAULT);
                let values = values.iter().copied().map(PossibleValue::new);
                let hidden = hidden.map(|value| PossibleValue::new(value).hide(true));
                arg.value_name(value).value_parser(PossibleValuesParser::new(values.chain(hidden)))
            }
            Ignored => arg.hide(true).num_args(0..=1).default_missing_value("true"),
        }
        .action(ArgAction::Set)
    });
    let short = |arg: Arg| match arg.get_id().as_str() {
        "runtime" => arg.short('r'),
        "no-daemon" => arg.short('n'),
        "enable-nri-plugin" => arg.short('p'),
        _ => arg,
    };
    Command::new("nvidia-ctk-installer")
        .about(
            "Installs the programs on a host and makes them known to its engine: the GPU Operator's toolkit container",
        )
        .version(env!("CARGO_PKG_VERSION"))
        .args_override_self(true)
        .args(flags.map(short))
        .after_help(EXAMPLES)
}

pub fn has_any(words: &[OsString], variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let mut variables = FLAGS.iter().flat_map(|flag| flag.variables);
    words.len() > 1 || variables.any(|name| variable(name).is_some_and(|value| !value.is_empty()))
}

/// The default directory in a toolkit container where the host's root is mounted.
pub const HOST_MOUNT: &str = "/host";

#[derive(Debug)]
pub struct Options(ArgMatches);

impl Options {
    pub fn read(words: Vec<OsString>, variable: impl Fn(&str) -> Option<OsString>) -> Result<Options, clap::Error> {
        let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let mut all: Vec<OsString> = words.first().cloned().into_iter().collect();
        for flag in FLAGS.iter().filter(|flag| flag.name != "runtime-args") {
            if let Some(value) = flag.variables.iter().find_map(set) {
                let mut word = OsString::from(format!("--{}=", flag.name));
                word.push(value);
                all.push(word);
            }
        }
        // Old images have flags in one variable. Explicit flags come later, so they override these.
        let explicit = Options(command().try_get_matches_from(&words)?);
        let old = set(&"RUNTIME_ARGS").and_then(|value| value.into_string().ok());
        let old = old.unwrap_or_else(|| explicit.text("runtime-args").to_string());
        all.extend(old.split_whitespace().map(OsString::from));
        all.extend(words.into_iter().skip(1));
        Ok(Options(command().try_get_matches_from(all)?))
    }

    pub fn text(&self, flag: &str) -> &str {
        match self.0.get_one::<String>(flag).map_or("", String::as_str) {
            ENGINE_DEFAULT => "",
            text => text,
        }
    }

    pub fn is_on(&self, flag: &str) -> bool {
        self.0.get_one(flag).copied().unwrap_or(false)
    }

    pub fn list(&self, flag: &str) -> Vec<String> {
        self.text(flag).split(',').map(|word| word.trim().to_string()).filter(|word| !word.is_empty()).collect()
    }

    pub fn is_given(&self, flag: &str) -> bool {
        self.0.value_source(flag) == Some(ValueSource::CommandLine)
    }

    pub fn ignored(&self) -> Vec<&'static str> {
        let passed = FLAGS.iter().filter(|flag| flag.kind == Ignored).map(|flag| flag.name);
        passed.filter(|name| self.is_given(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str], variables: &[(&str, &str)]) -> Options {
        let words = ["nvidia-ctk-installer"].iter().chain(words).map(OsString::from).collect();
        let variable = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into());
        Options::read(words, variable).expect("understood")
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn flags_override_variables() {
        let options = read(&[], &[]);
        assert_eq!(
            (options.text("runtime"), options.is_on("set-as-default"), options.text("config")),
            ("docker", true, "")
        );
        assert!(!options.is_given("runtime"));
        let variables = [
            ("RUNTIME", "containerd"),
            ("CONTAINERD_CONFIG", "/b"),
            ("RUNTIME_CONFIG", "/a"),
            ("ROOT", "/r"),
            ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "false"),
            ("ENABLE_CDI", "1"),
            ("NVIDIA_CONTAINER_RUNTIME_RUNTIMES", "crun, /opt/runc"),
            ("CDI_KIND", ""),
        ];
        let options = read(&["--runtime=crio", "-n"], &variables);
        assert_eq!((options.text("runtime"), options.text("config")), ("crio", "/a"));
        assert_eq!(
            (options.text("toolkit-install-dir"), options.text("cdi-kind")),
            ("/r", "management.nvidia.com/gpu")
        );
        assert_eq!(
            [options.is_on("set-as-default"), options.is_on("cdi-enabled"), options.is_on("no-daemon")],
            [false, true, true]
        );
        assert_eq!(options.list("nvidia-container-runtime.runtimes"), ["crun", "/opt/runc"]);
    }

    #[test]
    fn bare_call_requests_no_installation() {
        let has_any = |words: &[&str], variables: &[(&str, &str)]| {
            let words: Vec<OsString> = ["nvidia-toolkit"].iter().chain(words).map(OsString::from).collect();
            has_any(&words, |name| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into()))
        };
        assert!(!has_any(&[], &[]) && !has_any(&[], &[("PATH", "/bin"), ("ROOT", "")]));
        assert!(
            has_any(&["--no-daemon"], &[])
                && has_any(&[], &[("CONTAINERD_CONFIG", "/a")])
                && has_any(&[], &[("ROOT", "/r")])
        );
    }

    #[test]
    fn runtime_args_variable_is_parsed() {
        let variables = [("RUNTIME_ARGS", "--socket /s --restart-mode=none"), ("RUNTIME_SOCKET", "/other")];
        let options = read(&["--restart-mode=systemd"], &variables);
        assert_eq!((options.text("socket"), options.text("restart-mode")), ("/s", "systemd"));
        assert_eq!(read(&["--restart-mode=", "--restart-mode=RUNTIME_SPECIFIC_DEFAULT"], &[]).text("restart-mode"), "");
        assert_eq!(read(&["--runtime-args=--socket=/s", "--root", "/x"], &[]).text("socket"), "/s");
        assert_eq!(read(&["--debug", "--nri-socket=/x"], &[]).ignored(), ["debug", "nri-socket"]);
    }
}
