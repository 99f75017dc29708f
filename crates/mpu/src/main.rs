//! The `mpu` command: parses the command line, runs the command, prints its report or failure, and exits with the
//! documented code.

use anyhow::Context;
use clap::Parser;
use clap::error::ErrorKind;
use hyper::body::Bytes;
use mpu::agent::note::KubeletProbe;
use mpu::cli::{self, AgentVerb, Cli, Command, ConfigVerb, NotifyVerb};
use mpu::commands::{agent, config, doctor, fields, schema, status, up};
use mpu::install;
use mpu::issue;
use mpu::listing;
use mpu::manual;
use mpu::metrics::collect::Timeouts;
use mpu::metrics::{self, MetricsOptions, source};
use mpu::nri;
use mpu::processes;
use mpu_engine as engine;
use mpu_engine::module::load::Running;
use mpu_host::config::{Config, rules};
use mpu_host::progress::{Progress, print_line, takes_escapes};
use mpu_notify::{self as notify, error::NotifyError, supervisor};

use mpu::report::{self, Report, Style};
use mpu_host::explain::Explained;
use mpu_host::{Exit, Host};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print_usage_error(&error),
    };
    let code = match &cli.command {
        Command::Run { command } => run_supervised(&cli, command),
        Command::Notify { verb } => run_notify_part(&cli, verb),
        _ => run(&cli).unwrap_or_else(|error| print_failure(cli.json, &cli, &error)).code(),
    };
    ExitCode::from(code)
}

/// Runs `mpu run`. Returns the exit code of its command.
fn run_supervised(cli: &Cli, command: &[OsString]) -> u8 {
    let program = supervisor::keeper::this_program().context("cannot find this executable");
    let ended = program.and_then(|program| {
        let ended = notify::run::run(&Host::this(), &program, &["notify", "init", "--"], command);
        ended.map_err(Explained::from).context("the command did not run")
    });
    ended.unwrap_or_else(|error| {
        // Text, never JSON: standard output belongs to the command. All exit codes but one do, too.
        print_failure(false, cli, &error);
        notify::run::OWN_FAILURE
    })
}

/// Runs a part of the notify engine. Its parent process reads the exit code.
fn run_notify_part(cli: &Cli, verb: &NotifyVerb) -> u8 {
    let ended = match verb {
        NotifyVerb::Serve => supervisor::daemon::serve(&Host::this()).map(|end| end.code()),
        NotifyVerb::Hold => supervisor::keeper::this_program()
            .map_err(|source| NotifyError::Start { what: "the keeper".to_string(), source })
            .and_then(|program| supervisor::keeper::hold(&program, &["notify", "serve"])),
        NotifyVerb::Join { command } => Err(notify::run::join(&Host::this(), command)),
        NotifyVerb::Init { command } => Ok(notify::run::init(command)),
    };
    ended.unwrap_or_else(|error| {
        print_failure(cli.json, cli, &anyhow::Error::from(Explained::from(error)).context("the engine cannot go on"))
            .code()
    })
}

/// Warns if rules with a label match no pod.
fn warn_about_unmatched_rules(host: &Host) {
    let why = Config::of(host).ok().and_then(|config| rules::without_pods(host, &config));
    if let Some(why) = why {
        print_line(format_args!("mpu: warning: {why}"));
    }
}

fn run(cli: &Cli) -> anyhow::Result<Exit> {
    let host = cli.host_root.as_deref().map_or_else(Host::this, Host::below);
    match &cli.command {
        Command::Up(options) => {
            let options = engine::up::UpOptions { probe: Some(mpu::probe::call_driver), ..options.clone() };
            let done = up::up(&host, &Running, &options).context("MPU is not up")?;
            warn_about_unmatched_rules(&host);
            print_report(cli, &done)
        }
        Command::Down(options) => {
            let done = engine::down::down(&host, &Running, Duration::from_secs(options.wait));
            print_report(cli, &done.context("MPU is not down")?)
        }
        Command::Status => {
            print_report(cli, &status::status(&host, mpu::probe::call_driver).context("the state is not known")?)
        }
        Command::Probe => {
            let found = mpu::probe::compare::probe(&host).map_err(Explained::from);
            print_report(cli, &found.context("nothing was measured")?)
        }
        Command::Install(options) => {
            let documents = manual::documents().context("cannot render the manual pages")?;
            let outcome = install::install(&host, &Running, options, &documents);
            print_report(cli, &outcome.context("MPU is not installed")?)
        }
        Command::Uninstall(options) => {
            let outcome = install::uninstall(&host, &Running, options.dry_run, options.purge);
            print_report(cli, &outcome.context("MPU is not removed")?)
        }
        Command::Stage { root } => {
            install::stage(root, &manual::documents()?).context("nothing is staged")?;
            Ok(Exit::Ok)
        }
        Command::Config { verb } => match verb {
            ConfigVerb::Check { file } => {
                print_report(cli, &config::check(&host, file.as_deref()).context("the configuration is not valid")?)
            }
            ConfigVerb::Show => print_report(cli, &config::show(&host).context("the configuration is not known")?),
            ConfigVerb::Apply => {
                let applied = engine::apply::apply(&host).context("nothing was applied")?;
                warn_about_unmatched_rules(&host);
                print_report(cli, &applied)
            }
            ConfigVerb::Default => print(mpu_host::config::DEFAULT.as_bytes()),
        },
        Command::Build(options) => {
            let done = engine::module::other_kernel::build(&host, options).map_err(Explained::from);
            print_report(cli, &done.context("there is no module for that kernel")?)
        }
        Command::Metrics(options) => {
            match run_metrics(&host, options).map_err(Explained::from).context("there are no metrics")? {
                Some(page) => print(&page),
                None => Ok(Exit::Ok),
            }
        }
        Command::Nri(options) => {
            let log = |line: &str| print_line(format_args!("{}mpu: {line}", mpu_host::time::of_line()));
            nri::run_until_signal(options, &log).map_err(Explained::from).context("the plugin does not serve")?;
            Ok(Exit::Ok)
        }
        Command::Ps(options) => list(cli, &host, options),
        Command::Top(options) => {
            mpu::top::top(&host, options, cli.json).map_err(Explained::from).context("there is nothing to watch")
        }
        Command::Who(options) => {
            let log = |line: &str| print_line(format_args!("mpu: {line}"));
            let who = mpu::who::who(&host, options, &log).map_err(Explained::from);
            let who = who.context("the holders of the driver are not known")?;
            if !cli.json {
                who.notes.iter().for_each(|line| print_line(format_args!("mpu: {line}")));
            }
            print_report(cli, &who)
        }
        Command::Agent { verb } => run_agent(cli, &host, verb),
        Command::Doctor(options) => match &options.report {
            _ if options.list => print(doctor::list().as_bytes()),
            None => print_report(cli, &doctor::examine(&host)),
            Some(file) if file.as_os_str() == "-" => print(issue::report(&host, options.with_names).as_bytes()),
            Some(file) => {
                let reported = doctor::report(&host, file, options.with_names, options.force);
                print_report(cli, &reported.context("there is no report")?)
            }
        },
        Command::Run { .. } | Command::Notify { .. } => unreachable!("they end with codes of their own"),
        Command::Schema { command: None, .. } => print(schema::list().as_bytes()),
        Command::Schema { command: Some(name), fields } => {
            let text = if *fields { fields::render(name) } else { schema::render(name) };
            print(text.unwrap_or_default().as_bytes())
        }
        Command::Completions { shell } => print(&cli::completions(*shell)),
        Command::Man { command } => match manual::page(command) {
            Some(page) => print(&page.context("cannot render the manual page")?),
            None => {
                print_line(format_args!("mpu: there is no command {}\nfix: mpu --help lists them", command.join(" ")));
                Ok(Exit::Usage)
            }
        },
        Command::MetricsChild => print(&source::run_child(&host)),
        Command::ProbeChild { supervised, driver } => {
            if *supervised {
                notify::supervised_child::wait_for_supervisor()
                    .context("the notify engine does not accept this child")?;
            }
            mpu::probe::run_child(&host, driver).context("this command is for `mpu probe` to start")?;
            Ok(Exit::Ok)
        }
    }
}

/// Runs the exporter. Addresses go to standard error once they are open.
fn run_metrics(host: &Host, options: &MetricsOptions) -> Result<Option<Bytes>, metrics::MetricsError> {
    let on_listening =
        |addresses: &[String]| print_line(format_args!("mpu: metrics: listening at {}", addresses.join(", ")));
    metrics::run(
        source::sources(host),
        options.label.clone(),
        Timeouts::default(),
        &options.output_mode(),
        on_listening,
    )
}

fn list(cli: &Cli, host: &Host, options: &listing::ListOptions) -> anyhow::Result<Exit> {
    let width = io::stdout().is_terminal().then(listing::table::terminal_width).flatten();
    let listed = {
        let _progress = Progress::of("asking the driver");
        let seen = processes::snapshot(host, processes::Depth::Everything);
        let seen = seen.and_then(|seen| options.filter.check(&seen.gpus).map(|()| seen));
        let seen = seen.map_err(Explained::from).context("GPU processes are not known")?;
        listing::select(host, seen, options, width)
    };
    if !cli.json {
        listed.stderr_lines().iter().for_each(|line| print_line(format_args!("mpu: {line}")));
    }
    print_report(cli, &listed)
}

fn run_agent(cli: &Cli, host: &Host, verb: &AgentVerb) -> anyhow::Result<Exit> {
    let (question, id, within) = match verb {
        AgentVerb::Ready { id, within } => (KubeletProbe::Ready, id, *within),
        AgentVerb::Alive { id, within } => (KubeletProbe::Alive, id, *within),
        AgentVerb::Run(options) => {
            let mut wait = wait_for_signal()?;
            for signal in [SIGTERM, SIGINT] {
                signal_hook::flag::register(signal, Arc::clone(&options.stopped))
                    .context("cannot install signal handlers")?;
            }
            return print_report(
                cli,
                &agent::run(host, &Running, options.clone(), &mut wait).context("the agent cannot go on")?,
            );
        }
    };
    print_report(cli, &agent::probe(host, question, id, within).context("it is not known")?)
}

/// Returns a pause function, whose result is whether a stop signal came. Without a handler, a container's PID 1 ignores
/// signals.
fn wait_for_signal() -> anyhow::Result<impl FnMut(Duration) -> bool> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("cannot install signal handlers")?;
    let (sender, received) = mpsc::channel();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            let _ = sender.send(signal);
        }
    });
    Ok(move |pause| {
        let stops = received.recv_timeout(pause).is_ok();
        if stops {
            print_line("mpu: stopped by a signal");
        }
        stops
    })
}

/// Prints a report and returns its exit code.
fn print_report<R: Report>(cli: &Cli, report: &R) -> anyhow::Result<Exit> {
    let colour = takes_escapes(&io::stdout()) && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let text = match cli.json {
        true => report::json_of(cli.command.name(), report) + "\n",
        false => report.text(if colour { Style::Colour } else { Style::Plain }),
    };
    print(text.as_bytes())?;
    Ok(report.exit())
}

/// Writes to standard output. A closed pipe is no error.
fn print(bytes: &[u8]) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Ok),
        written => written.map(|()| Exit::Ok).context("cannot write the report"),
    }
}

/// Prints a failure as a chain of causes, and its fix. If the line of JSON cannot be written, too.
fn print_failure(json: bool, cli: &Cli, error: &anyhow::Error) -> Exit {
    let explained = error.downcast_ref::<Explained>();
    if let (true, Some(explained)) = (json, explained) {
        let line = report::json_of_error(cli.command.name(), &**explained) + "\n";
        if print(line.as_bytes()).is_ok() {
            return explained.exit();
        }
    }
    let causes: Vec<String> = error.chain().map(|cause| cause.to_string()).collect();
    print_line(format_args!("mpu: {}", make_harmless(&causes.join(": "))));
    match explained {
        Some(explained) => {
            print_line(format_args!("fix: {}", make_harmless(&explained.fix())));
            explained.exit()
        }
        None => Exit::Failed,
    }
}

/// Replaces control characters: a message can quote a file of somebody else. Line breaks stay.
fn make_harmless(text: &str) -> String {
    let lines = text.split('\n').map(|line| mpu_os::text::printable(&line.replace('\t', " "), usize::MAX));
    lines.collect::<Vec<_>>().join("\n")
}

/// Prints a usage error, or the requested help.
fn print_usage_error(error: &clap::Error) -> ExitCode {
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let exit = match error.print() {
        Err(source) if is_help && source.kind() != io::ErrorKind::BrokenPipe => {
            print_line(format_args!("mpu: cannot write standard output: {source}"));
            Exit::Failed
        }
        _ if is_help => Exit::Ok,
        _ => Exit::Usage,
    };
    ExitCode::from(exit.code())
}
