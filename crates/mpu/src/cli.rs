//! The command line: the grammar, and the texts of `--help`, the manual pages and the completions.

use crate::agent;
use crate::commands;
use crate::install;
use crate::listing;
use crate::metrics;
use crate::nri;
use crate::top;
use crate::who;
use clap::builder::{PossibleValuesParser, StyledStr, Styles};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use mpu_engine::module::other_kernel;
use mpu_engine::up;
use mpu_host::exit::Exit;
use std::ffi::OsString;
use std::path::PathBuf;

/// Makes nvidia-smi in a container show that container's own GPU processes. Runs on the host; containers need no change.
#[derive(Debug, Parser)]
#[command(name = "mpu", version, max_term_width = MAX_WIDTH, arg_required_else_help = true)]
#[command(help_template = help_template(), after_help = AFTER, after_long_help = long_after())]
pub struct Cli {
    /// Print one line of JSON on standard output instead of text
    #[arg(long, global = true)]
    pub json: bool,

    /// See the host through this directory instead of / (looks only: never loads or unloads)
    #[arg(long, global = true, value_name = "DIR", hide = true, value_hint = ValueHint::DirPath)]
    pub host_root: Option<PathBuf>,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

const MAX_WIDTH: usize = 110;

/// The commands in the second list of `--help`: few people type them.
pub const FOR_CLUSTERS: &[&str] = &["agent", "nri", "build", "schema", "man", "completions", "metrics"];

/// Lists the commands under two headings. Clap has one heading for all (<https://github.com/clap-rs/clap/issues/1553>), so
/// it renders each half of the list as a command of its own.
fn help_template() -> StyledStr {
    let commands = Command::augment_subcommands(clap::Command::new("mpu"))
        .max_term_width(MAX_WIDTH)
        .disable_help_flag(true)
        .help_template("{all-args}");
    let list = |commands: clap::Command, is_listed: fn(&str) -> bool| {
        let others_hidden = |command: clap::Command| match is_listed(command.get_name()) {
            true => command,
            false => command.hide(true),
        };
        commands.mut_subcommands(others_hidden).render_help().ansi().to_string()
    };
    let people = list(commands.clone(), |name| !FOR_CLUSTERS.contains(&name));
    let clusters = commands.subcommand_help_heading("For clusters, packagers and monitoring");
    let clusters = list(clusters.disable_help_subcommand(true), |name| FOR_CLUSTERS.contains(&name));
    let heading = *Styles::default().get_header();
    let options = format!("{heading}Options:{heading:#}\n{{options}}");
    format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{people}\n{clusters}\n{options}{{after-help}}")
        .into()
}

const AFTER: &str = "Examples:
  sudo mpu up              translate, from now on
  sudo mpu probe           does a container on this host see the right processes?
  sudo mpu status          what was translated, and what was not and why
  sudo mpu down            stop translating";

fn long_after() -> String {
    format!("{AFTER}\n  sudo mpu status --json | jq .translated\n\n{}", Exit::table())
}

/// The commands.
#[derive(Debug, Subcommand, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Command {
    /// Build the engine if needed, load it, and check that it works
    #[command(long_about = UP_LONG, after_long_help = UP_EXAMPLES)]
    Up(up::UpOptions),

    /// Unload the engine; containers then see the driver's own answers
    #[command(long_about = DOWN_LONG)]
    Down(Down),

    /// Show whether an engine is up, since when, and what it did
    #[command(long_about = STATUS_LONG)]
    Status,

    /// Find out what is wrong with MPU on this host, and how to fix it
    #[command(long_about = DOCTOR_LONG, after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorOptions),

    /// List the processes on all GPUs: host and container PID, container, pod, user, memory
    #[command(long_about = PS_LONG, after_long_help = PS_EXAMPLES)]
    Ps(listing::ListOptions),

    /// Watch GPUs and their processes, live
    #[command(long_about = TOP_LONG, after_long_help = TOP_EXAMPLES)]
    Top(top::TopOptions),

    /// List what keeps the driver or a GPU from being unloaded, reset or handed over, and what ends it
    #[command(long_about = WHO_LONG, after_long_help = WHO_EXAMPLES)]
    Who(who::WhoOptions),

    /// Run a command in a PID namespace of its own, with right answers, without a module or a container engine
    #[command(long_about = RUN_LONG, after_long_help = RUN_EXAMPLES)]
    Run {
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },

    /// Measure whether a container on this host gets right answers
    #[command(long_about = PROBE_LONG)]
    Probe,

    /// Check, show and apply /etc/mpu/config.toml: the engine, and which containers see more than their own processes
    #[command(long_about = CONFIG_LONG, after_help = CONFIG_EXAMPLES)]
    Config {
        /// What to do with it
        #[command(subcommand)]
        verb: ConfigVerb,
    },

    /// Install this mpu on this host: files, module, service; and start it
    #[command(alias = "upgrade", long_about = INSTALL_LONG, after_help = INSTALL_EXAMPLES)]
    Install(install::InstallOptions),

    /// Take MPU down and remove everything that was installed
    #[command(long_about = UNINSTALL_LONG)]
    Uninstall(Uninstall),

    /// Keep MPU up on a node, as the entry point of a Kubernetes DaemonSet
    #[command(long_about = AGENT_LONG, after_long_help = AGENT_EXAMPLES)]
    Agent {
        /// What to do
        #[command(subcommand)]
        verb: AgentVerb,
    },

    /// Give GPU containers of a container engine the notify engine's listener, by the Node Resource Interface (NRI)
    #[command(long_about = NRI_LONG, after_long_help = NRI_EXAMPLES)]
    Nri(nri::NriOptions),

    /// Build the module for another kernel, for nodes without headers and compiler
    #[command(long_about = BUILD_LONG, after_long_help = BUILD_EXAMPLES)]
    Build(other_kernel::BuildOptions),

    /// Print the JSON Schema of what a command prints with --json; without a command, list those that have one
    #[command(long_about = SCHEMA_LONG, after_help = SCHEMA_EXAMPLES)]
    Schema {
        /// The command
        #[arg(value_parser = PossibleValuesParser::new(commands::schema::commands()))]
        command: Option<String>,
        /// Print the fields and what they mean instead, as text
        #[arg(long, requires = "command")]
        fields: bool,
    },

    /// Print the manual page
    #[command(after_help = "Example:\n  mpu man | man -l -\n  mpu man config check | man -l -")]
    Man {
        /// Print the page of this command, such as `up` or `config check`
        command: Vec<String>,
    },

    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  mpu completions bash | sudo tee /usr/share/bash-completion/completions/mpu")]
    Completions {
        /// Which shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },

    /// Export to Prometheus what MPU does and which container uses which GPU
    #[command(long_about = METRICS_LONG, after_long_help = METRICS_EXAMPLES)]
    Metrics(metrics::MetricsOptions),

    /// Put the files of a package below a directory
    #[command(hide = true)]
    Stage {
        /// The directory
        root: PathBuf,
    },

    /// Parts of the notify engine, which `mpu up` and `mpu run` start
    #[command(hide = true)]
    Notify {
        /// Which part
        #[command(subcommand)]
        verb: NotifyVerb,
    },

    /// The child of `mpu metrics`
    #[command(hide = true)]
    MetricsChild,

    /// The child of `mpu probe`
    #[command(hide = true)]
    ProbeChild {
        /// Come under the notify engine's listener first
        #[arg(long)]
        supervised: bool,

        /// The driver's version
        driver: String,
    },
}

const UP_LONG: &str = "Build the engine if needed, load it, and check that it works.

First checks whether this host can run it, and changes nothing if it cannot. If DKMS has installed a module, it \
    is used unchanged. Otherwise compiles it for the running kernel with the host's own make, compiler and kernel \
    headers. Keeps it in /var/lib/mpu/<release> until the kernel or mpu changes. Without an NVIDIA driver the module \
    waits for one. If one needed redirect cannot be placed, none is placed, and the module is unloaded. Last, a \
    child in a PID namespace of its own asks the driver. If the answer was translated, the module is armed. If the \
    child's calls do not reach the module, the command fails and unloads the module. If nothing can ask, for \
    instance without a GPU, the module is only placed: its redirects are there, but no translation was seen.";

const UP_EXAMPLES: &str = "Examples:
  sudo mpu up
  sudo mpu up --build-only                # e.g. to sign the module before loading it
  sudo mpu up --module ./mpu.ko           # load a module that was built and signed before
  sudo mpu up --replace                   # after an upgrade of mpu: no call goes untranslated";

const DOWN_LONG: &str = "Unload the engine; containers then see the driver's own answers.

New callers reach the bare driver at once. The command waits for callers that are inside the driver. If a caller \
    stays longer than --wait, nothing is changed, and MPU translates for every container as before. The error names \
    the caller (process, program, container, control, time): stop or kill it and run mpu down again. A container \
    that sleeps inside the driver can only delay this.";

const STATUS_LONG: &str = "Show whether an engine is up, since when, and what it did.

Counters start when the engine is loaded. They count translated answers by control, and calls that were not \
    translated in the usual way by reason. Each reason has a sentence on what the caller got. The module is placed \
    when its redirects are there, and armed once a translation was seen. If it is only placed, this tests a \
    translation as root, as mpu probe does, and prints the result: a child in a PID namespace of its own becomes a \
    client of the driver for a moment. If nothing can ask, for instance without a GPU, the module stays placed. Exit \
    code 0 if an engine is up, 3 if none is up or it is retired. Exit code 1 if it is refused or stuck, or did not \
    translate when asked.";

const PROBE_LONG: &str = "Measure whether a container on this host gets right answers.

Starts a child in a PID namespace of its own. The child becomes a client of the driver as a container's programs \
    do, and takes 8 MiB of video memory for a moment. It asks the driver about itself, and ends. With the notify \
    engine up it does so under the engine's listener, like a container that the wrapper starts. Exit code 0 if the \
    answers are as expected: right with MPU up; without MPU, as this driver's release answers by itself. Exit code 1 \
    if not.";

const CONFIG_LONG: &str =
    "Check, show and apply /etc/mpu/config.toml: the engine, and which containers see more than their own processes.

Without the file, the defaults hold: the engine that suits the host best, and each container sees the processes \
    of its own PID namespace. Rules in the file let monitors keep the host's view, and let the containers of a pod \
    see each other.";

const CONFIG_EXAMPLES: &str = "Examples:
  mpu config default > config.toml        # a file to begin with: it has no rules yet
  mpu config check ./config.toml
  sudo mpu config apply";

/// Options of `mpu doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorOptions {
    /// List the checks and run none
    #[arg(long)]
    pub list: bool,

    /// Write a report for an issue into this file, or to standard output if it is -
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "mpu-report.txt", conflicts_with = "list")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,

    /// Replace the file if it exists
    #[arg(long, requires = "report")]
    pub force: bool,

    /// Also report free text, with names of this host, its containers and users
    #[arg(long, requires = "report")]
    pub with_names: bool,
}

const DOCTOR_EXAMPLES: &str = "Examples:
  sudo mpu doctor
  sudo mpu doctor --report        # mpu-report.txt, to read and attach to an issue
  sudo mpu doctor --json | jq '.findings[] | select(.level == \"broken\")'";

const DOCTOR_LONG: &str = "Find out what is wrong with MPU on this host, and how to fix it.

Checks the kernel and its restrictions, the driver, the engine, what a container sees right now, and other \
    software that redirects the same functions. Changes nothing. Each problem comes with a command that fixes it. \
    Exit code 0 if all is right, 1 if something needs attention, 2 if something is broken.

With --report it writes the facts for an issue about MPU into one file: versions, findings, settings, counters, \
    the module's messages, errors of the last build. Names, PIDs, paths and free text are left out, unless \
    --with-names is given. Only its owner can read the file. If the file was written, the exit code is 0.";

const INSTALL_LONG: &str = "Install this mpu on this host: files, module, service; and start it.

Copies this executable to /usr/local/bin, and the module's sources to /usr/src (for DKMS, if the host has it). \
    Also installs a systemd unit, a udev rule, completions, manual pages and the configuration. Builds the module, \
    starts it and checks that it is up. All of it or none: if a step fails, or the process is killed, the host is as \
    it was. If another file is in the place of one of them, nothing is installed. A second run changes nothing. A \
    configuration that you changed stays as it is.

If an older version is installed, this is an upgrade; `mpu upgrade` is another name of it. The new module takes \
    over from the running one. Callers wait for a moment, and none of them gets an untranslated answer. If the new \
    module does not come up, the old one keeps running and every file is as it was.";

const INSTALL_EXAMPLES: &str = "Examples:
  ./mpu install --dry-run     # every change, in order
  sudo ./mpu install";

const UNINSTALL_LONG: &str = "Take MPU down and remove everything that was installed.

Removes the files that `mpu install` installed, the modules that were built, and MPU's own records. A \
    configuration that you changed is kept unless --purge is given. If a step fails, the host is as it was.";

/// Options of `mpu uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// Say what would be done, in order, and do nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Also remove the configuration, even if you changed it
    #[arg(long)]
    pub purge: bool,
}

const AGENT_LONG: &str = "Keep MPU up on a node, as the entry point of a Kubernetes DaemonSet.

An agent waits for the NVIDIA driver and brings the engine up. It measures regularly whether a container gets \
    right answers, and brings the engine up again if it is gone. If a node has several agents, the youngest manages \
    the engine, and the last one to end takes it down. docs/kubernetes.md describes the installation.";

const AGENT_EXAMPLES: &str = "Examples:
  mpu agent run --id \"$POD_UID\"
  mpu agent ready --id \"$POD_UID\"       # a readiness probe: exit code 0 or 3
  mpu agent alive --id \"$POD_UID\"       # a liveness probe";

/// What `mpu agent` does.
#[derive(Debug, Subcommand)]
pub enum AgentVerb {
    /// Manage the engine until SIGTERM
    Run(agent::AgentOptions),

    /// Say whether a container on this node got a right answer recently
    Ready {
        /// The agent's name
        #[arg(long, env = agent::ID_VARIABLE)]
        id: String,

        /// How old a measurement may be
        #[arg(long, value_name = "SECONDS", default_value_t = 180)]
        within: u64,
    },

    /// Say whether the agent's loop runs
    Alive {
        /// The agent's name
        #[arg(long, env = agent::ID_VARIABLE)]
        id: String,

        /// How long one round of the loop may take: a round that builds the module takes minutes
        #[arg(long, value_name = "SECONDS", default_value_t = 900)]
        within: u64,
    },
}

/// What `mpu config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Say whether the file is valid, or which line is wrong and why
    Check {
        /// The file, or - for standard input; by default /etc/mpu/config.toml, which may be absent
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Show the configuration in force, and whether the running engine has its rules
    Show,
    /// Give the file's rules and notify_cpu_percent to the running engine, for every call from now on
    Apply,
    /// Print a file with every key, its default and its meaning
    Default,
}

const BUILD_LONG: &str = "Build the module for another kernel, for nodes without headers and compiler.

Takes the headers from a folder, and needs no root. Changes only the folder of --out, which gets \
    <RELEASE>/mpu.ko, mpu_next.ko and the log of the build. Checks that the result is for the requested kernel. Copy \
    the folder <RELEASE> to /usr/lib/mpu/modules on a node, owned by root: mpu up takes it first. docs/prebuilt.md \
    has the details.";

const BUILD_EXAMPLES: &str = "Examples:
  dpkg -x linux-headers-6.1.0-50-amd64_*.deb headers    # also its -common and linux-kbuild packages
  mpu build --for 6.1.0-50-amd64 --headers headers
  mpu build --for 6.1.0-50-amd64 --headers headers --sign-key mok.key --sign-cert mok.pub
  ssh root@node mkdir -p /usr/lib/mpu/modules && scp -r modules/6.1.0-50-amd64 root@node:/usr/lib/mpu/modules/";

const METRICS_LONG: &str = "Export to Prometheus what MPU does and which container uses which GPU.

Serves http://127.0.0.1:19567/metrics until a signal ends it, or writes the same page into a file for node_exporter's \
    textfile collector. Figures of GPU processes are sums per container. No label names a person or a command; a \
    label names a process only if you ask for it. The exporter opens the driver for each scrape and closes it \
    afterwards, so the driver can be unloaded in between. It never loads a driver. docs/metrics.md lists every \
    metric.";

const METRICS_EXAMPLES: &str = "Examples:
  sudo mpu metrics
  sudo mpu metrics --listen 0.0.0.0:19567                   # for a Prometheus on another host: see docs/metrics.md first
  sudo mpu metrics --textfile /var/lib/prometheus/node-exporter/mpu.prom
  sudo mpu metrics --once | promtool check metrics          # one page, to look at";

const NRI_LONG: &str =
    "Give GPU containers of a container engine the notify engine's listener, by the Node Resource Interface (NRI).

Needs no runtime wrapper and no RuntimeClass. Registers with the container engine as the plugin 90-mpu and \
    serves until SIGTERM. The container engine asks it about each new container. Containers with NVIDIA's device \
    nodes or CDI names get the listener in addition to their own seccomp profile, as with nvidia-container-runtime. \
    All others do not change, nor do those whose profile cannot be kept. When the container engine restarts, the \
    command connects again; containers that are made in between start without MPU.

Needs containerd 2.3 or later. containerd 2.2 shows a plugin only whether a container has a seccomp profile: \
    those without one get the listener. CRI-O does not show that either: none of its containers gets it. \
    docs/container/notify.md has the details. The log goes to standard error.";

const NRI_EXAMPLES: &str = "Examples:
  sudo mpu up --engine notify && sudo mpu nri
  sudo mpu nri --policy opt-in                # containers with MPU_NOTIFY=on in their environment
  sudo mpu status                             # the containers that the notify engine answers for";

const PS_LONG: &str = "List the processes on all GPUs: host and container PID, container, pod, user, memory.

Shows the host's view, whatever engine is up. Run it on the host, or in a container with the host's PID namespace. \
    Without root it shows everything except the names of containers and pods. On a terminal the table is cut to the width; in a pipe \
    nothing is cut. Notes go to standard error.";

const PS_EXAMPLES: &str = "Examples:
  sudo mpu ps
  sudo mpu ps --gpu 0 --sort -util
  sudo mpu ps --namespace vision --pod 'train-*' --wide
  mpu ps -o pid,cpid,container --no-headers      # for a script
  mpu ps --json | jq '.processes[] | select(.memory > 1e9) | .pid'";

const TOP_LONG: &str = "Watch GPUs and their processes, live.

Shows GPUs with their use and memory, and below them the same processes as `mpu ps`. Press ? for the keys: sort, filter, pause. \
    Reads once a second and sleeps in between. Without a terminal use --once or --batch; --json prints one line for each reading, \
    in the form of `mpu ps --json`.";

const TOP_EXAMPLES: &str = "Examples:
  sudo mpu top
  sudo mpu top --interval 0.5 --gpu 0 --sort -memory
  sudo mpu top --once
  sudo mpu top --batch -n 60 --json > minute.jsonl";

/// Parts of the notify engine.
#[derive(Debug, Subcommand)]
pub enum NotifyVerb {
    /// The supervisor: answers for the callers in containers
    Serve,
    /// The keeper: keeps the supervisor running, and its descriptors, where systemd does not
    Hold,
    /// Execute a command under the supervisor, with all that it starts: for entering a container without its runtime
    Join {
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// PID 1 of the namespace that `mpu run` makes
    Init {
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
}

const WHO_LONG: &str = "List what keeps the driver or a GPU from being unloaded, reset or handed over, and what ends it.

Lists each process that has one of the driver's nodes open or mapped, whatever it calls the node, with its container, pod, Slurm \
    job, systemd unit and user, and the command that ends it; then the kernel modules that use the driver. Needs root, and opens \
    nothing of the driver's. docs/who.md says what the kernel does not show.

With --wait it looks until the driver or the GPU is free. Exit code 0 if it is, 5 if the time is over before. Without --wait the \
    exit code is 0 also if something holds it.";

const WHO_EXAMPLES: &str = "Examples:
  sudo mpu who
  sudo mpu who --gpu 0 --wait 60 && sudo nvidia-smi --gpu-reset -i 0
  sudo mpu who --wait 600 && sudo modprobe -r nvidia_drm nvidia_uvm nvidia
  sudo mpu who --json | jq -r '.processes[].end'";

const RUN_LONG: &str =
    "Run a command in a PID namespace of its own, with right answers, without a module or a container engine.

The command gets a PID namespace with its own /proc, and nothing else of a container. For all processes in it, \
    the notify engine answers the driver's controls. This is the supervisor that `mpu up --engine notify` started; \
    if there is none, this process answers while the command runs. The exit code is the command's. If a signal ended \
    the command, it is 128 plus the number of the signal. 125: mpu failed. 126: the command cannot be executed. 127: \
    it does not exist.";

const RUN_EXAMPLES: &str = "Examples:
  sudo mpu run nvidia-smi
  sudo mpu run -- sh -c 'python3 train.py & sleep 20; nvidia-smi'
  sudo mpu run -- setpriv --reuid 1000 --regid 1000 --clear-groups nvidia-smi";

const SCHEMA_LONG: &str = "Print the JSON Schema of what a command prints with --json; without a command, list those that have one.

The schema (draft 2020-12) describes reports and failures. It describes this version of mpu: a later one may add fields, and values \
    to a list of values, without a new schema number.";

const SCHEMA_EXAMPLES: &str = "Examples:
  mpu schema status --fields
  mpu schema status > status.schema.json
  mpu schema ps | jq '.\"$defs\".GpuProcess.properties | keys'";

/// Options of `mpu down`.
#[derive(Debug, Args)]
pub struct Down {
    /// How long to wait for callers inside the driver
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub wait: u64,
}

impl Command {
    /// The name that was typed.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}

/// The completion script for a shell.
pub fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let (mut out, mut command) = (Vec::new(), Cli::command());
    command.build();
    clap_complete::generate(shell, &mut without_hidden(&command), "mpu", &mut out);
    out
}

/// A built command line without its hidden commands and options: clap_complete would list them, and clap has no method that removes them.
fn without_hidden(command: &clap::Command) -> clap::Command {
    // Clap accepts only names that live as long as the process, which ends soon.
    let name = |name: &str| -> &'static str { name.to_string().leak() };
    // The build has already added these, and has given global options to each command.
    clap::Command::new(name(command.get_name()))
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set()).map(|arg| arg.clone().global(false)))
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(without_hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammar_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_have_all_but_hidden_parts() {
        use clap_complete::Shell;
        let script = |shell| String::from_utf8(completions(shell)).expect("text");
        for script in [Shell::Bash, Shell::Zsh, Shell::Fish].map(script) {
            let has = |word: &&str| script.contains(*word);
            let visible = ["build-only", "textfile", "check", "json", "help", "version"];
            assert_eq!(visible.into_iter().find(|word| !has(word)), None, "{script}");
            let hidden = ["host-root", "any-driver", "metrics-child", "probe-child"];
            assert_eq!(hidden.into_iter().find(has), None, "{script}");
        }
        let script = script(Shell::Bash);
        // Of `mpu ps` and `mpu top`.
        let sort: Vec<&str> = script.split("--sort)").skip(1).filter_map(|rest| rest.split(";;").next()).collect();
        assert!(sort.len() == 2 && sort.iter().all(|words| words.contains("gpu mig pid")), "{sort:?}");
        // The first list has the words after `mpu`.
        let mut lists = script.lines().filter_map(|line| line.trim().strip_prefix("opts=\"")?.strip_suffix('"'));
        let list = lists.find(|list| !list.is_empty()).expect("a list");
        let mut listed: Vec<&str> = list.split(' ').filter(|word| !word.starts_with('-')).collect();
        let root = Cli::command();
        let visible = root.get_subcommands().filter(|command| !command.is_hide_set()).map(|command| command.get_name());
        let mut visible: Vec<&str> = visible.chain(["help"]).collect();
        listed.sort_unstable();
        visible.sort_unstable();
        assert_eq!(listed, visible);
    }

    #[test]
    fn help_has_examples_and_every_exit_code() {
        // Lines are wrapped to the terminal's width.
        let help = Cli::command().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("sudo mpu up"));
        for exit in Exit::ALL {
            assert!(help.contains(exit.meaning()), "{exit:?}");
        }
    }
}
