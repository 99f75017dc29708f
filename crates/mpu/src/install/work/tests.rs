//! Every way in which an installation can break off, on made-up hosts: each must leave the host as it was.

use super::*;
use crate::install::journal::{self, Left};
use mpu_engine::module::load::fake::FakeKernel;
use mpu_engine::module::raise::fake::Setup;
use mpu_engine::module::state::ARMED;
use mpu_host::host::fake::FakeHost;
use mpu_notify::fake::{self, FakeSupervisor};

/// A dkms that keeps a tree, and a systemctl and udevadm that keep a log; each fails at the call that a file names.
const DKMS: &str = r#"
n=$(cat /ROOT/calls 2>/dev/null || echo 0); n=$((n+1)); echo $n >/ROOT/calls
[ "$n" = "$(cat /ROOT/fail 2>/dev/null)" ] && { echo "no luck" >&2; exit 6; }
tree=/ROOT/var/lib/dkms
case $1 in
add|build|install) mkdir -p $tree; for step in add build install; do
  grep -qsx "$5 $step" $tree/mpu-$5 || echo "$5 $step" >>$tree/mpu-$5; [ $step != $1 ] || break
done;;
remove) rm -f "$tree/mpu-$5"; rmdir $tree;;
esac
exit 0"#;
const SYSTEMCTL: &str = r#"
case $1 in
is-enabled) [ -e /ROOT/etc/on/$2 ] && echo enabled && exit 0; echo disabled; exit 1;;
is-active) [ -e /ROOT/etc/runs/$2 ] && echo active && exit 0; echo inactive; exit 3;;
esac
n=$(cat /ROOT/calls 2>/dev/null || echo 0); n=$((n+1)); echo $n >/ROOT/calls
[ "$n" = "$(cat /ROOT/fail 2>/dev/null)" ] && { echo "no luck" >&2; exit 6; }
now=; for a; do [ "$a" != --now ] || now=1; done
for a; do case $1/$a in
enable/*.service) echo on >/ROOT/etc/on/$a; [ -z "$now" ] || echo runs >/ROOT/etc/runs/$a;;
disable/*.service) rm -f /ROOT/etc/on/$a; [ -z "$now" ] || rm -f /ROOT/etc/runs/$a;;
start/*.service) echo runs >/ROOT/etc/runs/$a;;
stop/*.service) rm -f /ROOT/etc/runs/$a;;
restart/*.service) echo runs >/ROOT/etc/runs/$a; echo $a >>/ROOT/restarts;;
try-restart/*.service) [ ! -e /ROOT/etc/runs/$a ] || echo $a >>/ROOT/restarts;;
esac; done; exit 0"#;

/// As many as a page of each kind needs.
fn documents() -> Documents {
    let pages = ["mpu", "mpu-up", "mpu-agent-run"].map(|name| (name.to_string(), b".TH".to_vec()));
    Documents { pages: pages.to_vec(), ..Documents::default() }
}

struct Node {
    setup: Setup,
    options: InstallOptions,
}

impl Node {
    fn new() -> Node {
        let setup = Setup::new();
        let fake = &setup.fake;
        let root = fake.dir.path().to_str().expect("a path").trim_start_matches('/').to_string();
        let kept = |body: &str| body.replace("ROOT", &root);
        fake.tool("dkms", &kept(DKMS));
        fake.tool("systemctl", &kept(SYSTEMCTL));
        fake.tool("udevadm", &kept(SYSTEMCTL));
        let both = r#"for a; do case $a in M=*) for k in mpu mpu_next; do echo m >"${a#M=}/$k.ko"; done;; esac; done"#;
        fake.tool("make", both);
        fake.write("/run/systemd/system/x", "");
        for folder in ["etc", "etc/on", "etc/runs"] {
            fake.write(&format!("/{folder}/x"), "");
        }
        fake.write("/mpu", "the executable");
        let options = InstallOptions {
            source: Some(setup.sources.path().to_path_buf()),
            executable: Some(fake.host().at("/mpu")),
            ..InstallOptions::default()
        };
        Node { setup, options }
    }

    fn fake(&self) -> &FakeHost {
        &self.setup.fake
    }

    /// With an installed program that keeps a log of how it is called.
    fn that_logs() -> Node {
        let node = Node::new();
        let told = node.fake().host().at("/told");
        node.fake().program("/mpu", &format!("echo \"$*\" >>{}", told.display()));
        node
    }

    fn calls(&self) -> usize {
        self.fake().host().text("/calls").map_or(0, |text| text.parse().expect("a number"))
    }

    fn install(&self, kernel: &dyn Kernel) -> Result<Outcome, InstallError> {
        install(&self.fake().host(), kernel, &self.options, &documents())
    }

    /// All that an administrator would call the host: not the fakes' own files, nor what a build keeps for the next try.
    fn state(&self) -> Vec<String> {
        let ours = |name: &str| {
            ["calls", "fail", "restarts", "told", "run/mpu"].iter().any(|p| name.starts_with(p))
                || name.starts_with("var/lib/mpu/6.")
                || ["var/lib/mpu/", "var/lib/", "var/"].contains(&name)
                || name.starts_with("sys/module/mpu")
        };
        let all = self.fake().snapshot().into_iter().filter(|(name, _)| !ours(name));
        all.map(|(name, bytes)| format!("{name} {:.8}", plan::sha256(&bytes))).collect()
    }
}

#[test]
fn an_installation_is_complete_and_a_second_one_changes_nothing() {
    let node = Node::new();
    let kernel = node.setup.kernel();
    let done = node.install(&kernel).expect("installed");
    assert!(done.missing.is_empty(), "{:?}", done.missing);
    let host = node.fake().host();
    for path in
        ["/usr/local/bin/mpu", "/etc/systemd/system/mpu.service", "/etc/mpu/config.toml", RECORD, "/etc/on/mpu.service"]
    {
        assert!(host.at(path).is_file(), "{path}");
    }
    assert_eq!(host.text("/usr/local/bin/mpu").as_deref(), Some("the executable"));
    let built = host.text(format!("/var/lib/dkms/mpu-{}", layout::VERSION)).expect("a dkms tree");
    assert_eq!(built.lines().count(), 3);
    assert!(state::is_loaded(&host));
    let before = node.fake().snapshot();
    let done = node.install(&kernel).expect("nothing to do");
    assert!(done.nothing);
    assert_eq!(node.fake().snapshot(), before);
}

#[test]
fn a_dry_run_changes_nothing_and_lists_what_a_run_does() {
    let node = Node::new();
    let before = node.fake().snapshot();
    let options = InstallOptions { dry_run: true, ..node.options.clone() };
    let planned = install(&node.fake().host(), &node.setup.kernel(), &options, &documents()).expect("planned");
    assert_eq!(node.fake().snapshot(), before);
    let done = node.install(&node.setup.kernel()).expect("installed");
    assert_eq!(planned.steps, done.steps);
    let order: Vec<&str> = planned.steps.iter().map(|step| step.what.as_str()).collect();
    let at = |what: &str| order.iter().position(|step| step.starts_with(what)).unwrap_or_else(|| panic!("{what}"));
    assert!(at("/usr/local/bin/mpu") < at("dkms add") && at("dkms install") < at("systemctl enable"));
    assert!(at("systemctl enable") < at("mpu up") && at("mpu up") < at("mpu status"));
}

#[test]
fn where_the_module_cannot_be_had_the_notify_engine_is_installed_and_raised() {
    let node = Node::new();
    let host = node.fake().host();
    node.fake().can_notify();
    node.fake().write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    let supervisor = FakeSupervisor::on(node.fake(), fake::state(&["a"]));
    let done = node.install(&node.setup.kernel()).expect("installed");
    assert!(!done.steps.iter().any(|step| step.what.starts_with("dkms")), "{:?}", done.steps);
    assert!(done.missing.iter().any(|missing| missing.contains("the notify engine")), "{:?}", done.missing);
    assert!(!state::is_loaded(&host) && host.at("/etc/systemd/system/mpu-notify.service").is_file());
    assert!(node.install(&node.setup.kernel()).expect("nothing to do").nothing);

    uninstall(&host, &node.setup.kernel(), false, false).expect("removed");
    assert_eq!(*supervisor.told.lock().expect("ours"), ["retire\n"]);
    assert!(host.at("/run/mpu/notify/control.sock").exists(), "a container still has its filter");
    assert!(!host.at("/etc/systemd/system/mpu-notify.service").exists());
}

#[test]
fn a_host_that_can_have_the_module_by_now_gets_it_by_another_install() {
    let node = Node::new();
    node.fake().can_notify();
    let make = node.fake().host().at("/usr/bin/make");
    let kept = std::fs::read(&make).expect("make");
    node.fake().remove("/usr/bin/make");
    let supervisor = FakeSupervisor::on(node.fake(), fake::state(&["a"]));
    node.install(&node.setup.kernel()).expect("installed");
    assert!(supervisor.told.lock().expect("ours").is_empty());

    std::fs::write(&make, kept).expect("make again");
    std::fs::set_permissions(&make, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let done = node.install(&node.setup.kernel()).expect("installed again");
    assert!(!done.nothing && done.missing.is_empty(), "{done:?}");
    let host = node.fake().host();
    assert!(host.at(format!("/var/lib/dkms/mpu-{}", layout::VERSION)).is_file() && state::is_loaded(&host));
    assert_eq!(*supervisor.told.lock().expect("ours"), ["retire\n"]);
    assert!(node.install(&node.setup.kernel()).expect("nothing to do").nothing);
}

#[test]
fn removing_leaves_nothing() {
    let node = Node::new();
    let before = node.state();
    node.install(&node.setup.kernel()).expect("installed");
    assert_ne!(node.state(), before);
    let host = node.fake().host();
    uninstall(&host, &node.setup.kernel(), false, false).expect("removed");
    assert_eq!(node.state(), before);
    assert!(!host.at("/var/lib/mpu").exists() && !host.at("/run/mpu").exists() && !state::is_loaded(&host));
    let error = uninstall(&host, &node.setup.kernel(), false, false).expect_err("nothing there");
    assert_eq!((error.code(), error.exit()), ("not_installed", Exit::NotReady));
}

#[test]
fn removing_leaves_the_names_of_those_who_live_in_pods() {
    for (theirs, other_goes) in [("/run/mpu/agents/one", false), ("/run/mpu/nri/one", true)] {
        let node = Node::new();
        node.install(&node.setup.kernel()).expect("installed");
        node.fake().write(theirs, "");
        node.fake().write("/run/mpu/other", "");
        let host = node.fake().host();
        uninstall(&host, &node.setup.kernel(), false, false).expect("removed");
        assert!(host.at(theirs).is_file(), "{theirs}");
        assert_eq!(!host.at("/run/mpu/other").exists(), other_goes, "{theirs}");
    }
}

#[test]
fn a_failure_at_any_command_leaves_the_host_as_it_was() {
    let mut failed = 0;
    for call in 1.. {
        let node = Node::new();
        let before = node.state();
        node.fake().write("/fail", &call.to_string());
        match node.install(&node.setup.kernel()) {
            Ok(_) => break,
            Err(error) => {
                assert_eq!(error.code(), "rolled_back", "{error}");
                assert!(error.to_string().contains("no luck"), "{error}");
            }
        }
        failed += 1;
        assert_eq!(node.state(), before, "call {call}");
        assert!(!state::is_loaded(&node.fake().host()) || call > 5, "call {call}");
    }
    assert_eq!(failed, 7, "dkms add, build, install; daemon-reload, enable, udevadm, start");
}

#[test]
fn a_failure_at_any_file_leaves_the_host_as_it_was() {
    let node = Node::new();
    let options = InstallOptions { dry_run: true, ..node.options.clone() };
    let planned = install(&node.fake().host(), &node.setup.kernel(), &options, &documents()).expect("planned");
    let files: Vec<String> = planned
        .steps
        .into_iter()
        .filter(|step| step.kind == Kind::Write && step.note != "folder")
        .map(|step| step.what)
        .collect();
    assert!(files.len() > 16, "{files:?}");
    for file in files {
        let node = Node::new();
        // A directory in the file's place.
        node.fake().write(&format!("{file}/in/the/way"), "");
        let before = node.state();
        let error = node.install(&node.setup.kernel()).err().unwrap_or_else(|| panic!("{file} was written"));
        assert_eq!((error.code(), node.state()), ("rolled_back", before), "{file}");
    }
}

#[test]
fn an_engine_that_does_not_come_up_undoes_all() {
    let node = Node::new();
    let before = node.state();
    let kernel = node.setup.kernel();
    kernel.inserts.borrow_mut().push(libc::EKEYREJECTED);
    let error = node.install(&kernel).expect_err("refused");
    assert_eq!((error.code(), node.state()), ("rolled_back", before));
    assert!(error.fix().contains("sign the module"), "{}", error.fix());
}

/// What another test starts at this moment has the journal's descriptor until it runs its own program.
fn is_broken_off(host: &Host) -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        journal::left(host) == Left::BrokenOff
    })
}

#[test]
fn what_a_killed_process_left_is_undone_by_the_next() {
    let node = Node::new();
    let before = node.state();
    let host = node.fake().host();
    let mut journal = Journal::begin(&host).expect("a journal");
    journal.write(Path::new("/usr/local/bin/mpu"), 0o755, b"new").expect("written");
    journal.write(Path::new("/etc/x"), 0o600, b"changed").expect("written");
    journal.run(&["systemctl".into(), "enable".into()], Some(vec!["systemctl".into(), "disable".into()])).expect("run");
    journal.remove(Path::new("/mpu")).expect("removed");
    assert_eq!(journal::left(&host), Left::Running, "this process has it");
    let error = journal::recover(&host).expect_err("it goes on");
    assert_eq!(error.code(), "lock_held");
    journal.die();
    assert!(is_broken_off(&host));
    assert_ne!(node.state(), before);
    // A line that was cut off by the power going.
    use std::io::Write;
    let mut log = std::fs::File::options().append(true).open(host.at("/var/lib/mpu/journal/log")).expect("a log");
    log.write_all(b"{\"Made\":\"/etc/").expect("written");
    journal::recover(&host).expect("recovered");
    assert_eq!(node.state(), before);
    assert_eq!(journal::left(&host), Left::Nothing);
    node.install(&node.setup.kernel()).expect("installed");
}

#[test]
fn a_second_installation_at_once_is_refused_and_changes_nothing() {
    let node = Node::new();
    let host = node.fake().host();
    node.fake().write("/etc/x", "before");
    let before = node.state();
    let mut journal = Journal::begin(&host).expect("a journal");
    journal.write(Path::new("/etc/x"), 0o600, b"changed").expect("written");
    let during = node.state();
    let kernel = node.setup.kernel();
    let refused =
        [node.install(&kernel).expect_err("refused"), uninstall(&host, &kernel, false, true).expect_err("refused")];
    for error in refused {
        assert_eq!((error.code(), error.exit()), ("lock_held", Exit::Failed));
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert_eq!(node.state(), during);
    }
    assert_eq!(journal.roll_back(), [""; 0]);
    assert_eq!(node.state(), before);
}

/// What is not undone, a removal does while nobody else can begin: it would take another's files.
#[test]
fn a_removal_is_the_only_one_until_all_is_removed() {
    use std::io::{Read, Write};
    let node = Node::new();
    let host = node.fake().host();
    node.install(&node.setup.kernel()).expect("installed");
    node.fake().write("/var/lib/mpu/built", "");
    let socket = host.at(mpu_notify::CONTROL_SOCKET);
    std::fs::create_dir_all(socket.parent().expect("a folder")).expect("a folder");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let (seen, below) = (std::sync::Arc::new(std::sync::Mutex::new(Vec::new())), host.clone());
    let states = std::sync::Arc::clone(&seen);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut request, mut state) = (String::new(), fake::state(&["a"]));
            stream.read_to_string(&mut request).expect("a request");
            state.state = mpu_host::phase::Phase::Retired;
            states.lock().expect("ours").push((journal::left(&below), below.at("/var/lib/mpu/built").exists()));
            let _ = match request.starts_with("state") {
                true => stream.write_all(serde_json::to_string(&state).expect("JSON").as_bytes()),
                false => stream.write_all(b"{\"ok\":true}"),
            };
        }
    });
    uninstall(&host, &node.setup.kernel(), false, false).expect("removed");
    let seen = seen.lock().expect("ours");
    assert!(seen.iter().all(|(left, _)| *left == Left::Running), "{seen:?}");
    assert!(seen.last().is_some_and(|(_, built)| !built), "the last look comes after all: {seen:?}");
    assert!(!host.at("/var/lib/mpu").exists());
}

#[test]
fn bytes_that_cannot_be_put_back_are_kept_until_they_can() {
    let node = Node::new();
    let host = node.fake().host();
    for file in ["/etc/x", "/etc/y"] {
        node.fake().write(file, "before");
    }
    let before = node.state();
    let mut journal = Journal::begin(&host).expect("a journal");
    journal.write(Path::new("/etc/x"), 0o600, b"changed").expect("written");
    journal.remove(Path::new("/etc/y")).expect("removed");
    node.fake().remove("/etc/x");
    node.fake().write("/etc/x/in/the/way", "");
    let left = journal.roll_back();
    assert!(left.len() == 1 && left[0].contains("/etc/x") && left[0].contains("what it was is in"), "{left:?}");
    assert_eq!(host.text("/etc/y").as_deref(), Some("before"), "the other is back");
    let error = node.install(&node.setup.kernel()).expect_err("not yet");
    assert_eq!(error.code(), "not_restored");
    assert!(is_broken_off(&host));
    node.fake().remove("/etc/x");
    journal::recover(&host).expect("recovered");
    assert_eq!(node.state(), before);
}

#[test]
fn a_journal_that_is_kept_has_only_what_could_not_be_undone() {
    let node = Node::new();
    let host = node.fake().host();
    for file in ["/etc/x", "/etc/y"] {
        node.fake().write(file, "before");
    }
    let mut journal = Journal::begin(&host).expect("a journal");
    for file in ["/etc/x", "/etc/y", "/etc/new"] {
        journal.write(Path::new(file), 0o600, b"changed").expect("written");
    }
    let command = ["systemctl".to_string(), "restart".to_string(), "a.service".to_string()];
    journal.will_undo(command.to_vec()).expect("noted");
    node.fake().remove("/etc/x");
    node.fake().write("/etc/x/in/the/way", "");
    assert_eq!(journal.roll_back().len(), 1);
    assert_eq!(host.text("/etc/y").as_deref(), Some("before"));
    let files = std::fs::read_dir(host.at("/var/lib/mpu/journal")).expect("a journal").flatten();
    let mut files: Vec<_> = files.map(|file| file.file_name()).collect();
    files.sort();
    assert_eq!(files.len(), 2, "the log, and the bytes of /etc/x: {files:?}");

    // Since then the administrator went on.
    node.fake().write("/etc/y", "since");
    node.fake().write("/etc/new", "since");
    assert_eq!(journal::recover(&host).expect_err("not yet").code(), "not_restored");
    node.fake().remove("/etc/x");
    journal::recover(&host).expect("recovered");
    let texts = ["/etc/x", "/etc/y", "/etc/new"].map(|file| host.text(file).unwrap_or_default());
    assert_eq!(texts, ["before", "since", "since"]);
    assert_eq!(host.text("/restarts").as_deref(), Some("a.service"), "it ran once");
    assert_eq!(journal::left(&host), Left::Nothing);
}

#[test]
fn a_change_that_another_version_noted_stops_everything_and_a_cut_line_nothing() {
    let node = Node::new();
    let host = node.fake().host();
    node.fake().write("/etc/x", "before");
    let log = "/var/lib/mpu/journal/log";
    let mut journal = Journal::begin(&host).expect("a journal");
    journal.write(Path::new("/etc/x"), 0o600, b"changed").expect("written");
    journal.die();
    let noted = host.text(log).expect("a log");
    node.fake().write(log, &format!("{{\"Renamed\":\"/etc/y\"}}\n{noted}"));
    let error = journal::recover(&host).expect_err("not ours");
    assert!(error.code() == "unknown_change" && error.fix().contains("the version of mpu"), "{error}: {}", error.fix());
    assert_eq!(host.text("/etc/x").as_deref(), Some("changed"), "what comes before it may hang on it");
    node.fake().write(log, &format!("{noted}\n{{\"Renamed\":\"/et"));
    journal::recover(&host).expect("recovered");
    assert_eq!(host.text("/etc/x").as_deref(), Some("before"));
}

#[test]
fn bytes_that_are_gone_are_not_called_restored() {
    let node = Node::new();
    let host = node.fake().host();
    node.fake().write("/etc/x", "before");
    let broken_off = || {
        let mut journal = Journal::begin(&host).expect("a journal");
        journal.write(Path::new("/etc/x"), 0o600, b"changed").expect("written");
        let lines = host.text("/var/lib/mpu/journal/log").expect("a log");
        let backups = (0..lines.lines().count()).map(|number| format!("/var/lib/mpu/journal/{number}"));
        backups.filter(|file| host.at(file).exists()).for_each(|file| node.fake().remove(&file));
        journal
    };
    let left = broken_off().roll_back();
    assert!(left.len() == 1 && left[0].contains("/etc/x: what it was is lost"), "{left:?}");

    broken_off().die();
    let error = journal::recover(&host).expect_err("lost");
    assert!(error.code() == "not_restored" && error.fix().contains("look at these files"), "{error}: {}", error.fix());
    journal::recover(&host).expect("nobody can do more, and it was said");
    assert_eq!(journal::left(&host), Left::Nothing);
}

#[test]
fn a_folder_that_went_is_made_again_for_what_was_in_it() {
    let node = Node::new();
    let host = node.fake().host();
    node.fake().write("/etc/deep/er/x", "before");
    let before = node.state();
    let mut journal = Journal::begin(&host).expect("a journal");
    journal.write(Path::new("/etc/deep/er/x"), 0o600, b"changed").expect("written");
    node.fake().remove("/etc/deep");
    assert_eq!(journal.roll_back(), [""; 0]);
    assert_eq!((node.state(), host.text("/etc/deep/er/x").as_deref()), (before, Some("before")));
    let mode = |path: &str| std::fs::metadata(host.at(path)).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode("/etc/deep"), mode("/etc/deep/er")), (0o755, 0o755));
}

#[test]
fn a_link_that_is_written_over_is_a_link_again() {
    let node = Node::new();
    let host = node.fake().host();
    node.fake().write("/opt/mpu", "elsewhere");
    let links = [("/etc/a", host.at("/opt/mpu")), ("/etc/b", "nowhere".into()), ("/etc/c", "nowhere".into())];
    for (link, to) in &links {
        std::os::unix::fs::symlink(to, host.at(link)).expect("a link");
    }
    let mut journal = Journal::begin(&host).expect("a journal");
    journal.write(Path::new("/etc/a"), 0o600, b"changed").expect("written");
    journal.write(Path::new("/etc/b"), 0o600, b"changed").expect("written");
    journal.remove(Path::new("/etc/c")).expect("removed");
    assert_eq!(host.text("/opt/mpu").as_deref(), Some("elsewhere"));
    assert_eq!(journal.roll_back(), [""; 0]);
    for (link, to) in &links {
        assert_eq!(std::fs::read_link(host.at(link)).ok().as_ref(), Some(to), "{link}");
    }
}

#[test]
fn a_changed_configuration_survives_everything_but_a_purge() {
    let node = Node::new();
    let kernel = node.setup.kernel();
    let host = node.fake().host();
    node.fake().write(mpu_host::config::FILE, "visibility = \"pod\"\n");
    node.install(&kernel).expect("installed");
    assert_eq!(host.text(mpu_host::config::FILE).as_deref(), Some("visibility = \"pod\""));
    uninstall(&host, &kernel, false, false).expect("removed");
    assert_eq!(host.text(mpu_host::config::FILE).as_deref(), Some("visibility = \"pod\""));
    node.install(&kernel).expect("installed");
    uninstall(&host, &kernel, false, true).expect("removed");
    assert!(!host.at(mpu_host::config::FILE).exists());
}

#[test]
fn an_older_version_is_replaced_and_a_newer_one_is_not() {
    let node = Node::new();
    let host = node.fake().host();
    let old = |version: &str| {
        let file =
            super::super::Installed { path: format!("/usr/src/mpu-{version}/Kbuild").into(), sha256: "x".into() };
        let record = Record {
            version: version.into(),
            layout: Layout::Local,
            files: vec![file],
            directories: Vec::new(),
            dkms: true,
            service: true,
        };
        node.fake().write(RECORD, &serde_json::to_string(&record).expect("JSON"));
        node.fake().write(&format!("/usr/src/mpu-{version}/Kbuild"), "old");
        node.fake().write(&format!("/var/lib/dkms/mpu-{version}"), "old");
        node.fake().write("/sys/module/mpu/parameters/state", &format!("version={version}\nstate=armed\n"));
    };
    old("9.0.0");
    let error = node.install(&node.setup.kernel()).expect_err("a newer one is there");
    assert_eq!(error.code(), "newer_installed");

    node.fake().remove("/usr/src/mpu-9.0.0");
    node.fake().remove("/var/lib/dkms/mpu-9.0.0");
    old("0.0.9");
    let before = node.state();
    let kernel = node.setup.kernel();
    kernel.inserts.borrow_mut().push(libc::ETIMEDOUT);
    let error = node.install(&kernel).expect_err("callers stay inside");
    assert_eq!((error.code(), node.state()), ("rolled_back", before));
    assert_eq!(state::read(&host).expect("readable").expect("up").version, "0.0.9", "the old engine goes on");

    let done = node.install(&node.setup.kernel()).expect("upgraded");
    assert_eq!(done.before.as_deref(), Some("0.0.9"));
    assert!(!host.at("/usr/src/mpu-0.0.9").exists() && !host.at("/var/lib/dkms/mpu-0.0.9").exists());
    assert_eq!(state::read(&host).expect("readable").expect("up").version, layout::VERSION);
    assert_eq!(Record::read(&host).expect("a record").version, layout::VERSION);
}

#[test]
fn who_may_not_is_told_before_anything_changes() {
    let node = Node::new();
    let host = node.fake().host();
    node.fake().write("/var/lib/dpkg/info/mpu.list", "/usr/bin/mpu\n");
    let error = node.install(&node.setup.kernel()).expect_err("a package");
    assert_eq!((error.code(), error.exit()), ("is_a_package", Exit::Refused));
    assert!(error.fix().contains("apt-get install ./mpu_*.deb"), "no repository has it: {}", error.fix());
    let error = uninstall(&host, &node.setup.kernel(), false, false).expect_err("a package");
    assert!(error.fix().contains("apt-get purge mpu"));
    node.fake().remove("/var/lib/dpkg/info/mpu.list");
    node.fake().write("/usr/share/licenses/mpu/LICENSE", "MIT\n");
    let error = node.install(&node.setup.kernel()).expect_err("an RPM");
    assert!(error.fix().contains("mpu-nodkms"), "the one without DKMS: {}", error.fix());
    node.fake().write("/etc/os-release", "ID=rocky\nID_LIKE=rhel\n");
    node.fake().write("/usr/src/mpu-0.0.1/dkms.conf", "");
    let error = node.install(&node.setup.kernel()).expect_err("an RPM");
    assert!(error.fix().contains("dnf install --allowerasing ./mpu-[0-9]*.rpm"), "{}", error.fix());
    node.fake().write("/etc/os-release", "ID=sles\nID_LIKE=suse\n");
    let error = uninstall(&host, &node.setup.kernel(), false, false).expect_err("an RPM");
    assert!(error.fix().contains("zypper remove mpu"), "{}", error.fix());
    node.fake().write("/etc/os-release", "ID=debian\n");
    node.fake().remove("/usr/src/mpu-0.0.1/dkms.conf");
    node.fake().remove("/usr/share/licenses/mpu/LICENSE");

    node.fake().write("/proc/self/status", "CapEff:\t0000000000000000\n");
    let before = node.fake().snapshot();
    let error = node.install(&node.setup.kernel()).expect_err("not root");
    assert_eq!((error.code(), node.fake().snapshot()), ("not_root", before));
    let upgrade = InstallOptions { upgrade: true, dry_run: true, ..node.options.clone() };
    let error = install(&host, &node.setup.kernel(), &upgrade, &documents()).expect_err("nothing to upgrade");
    assert_eq!(error.code(), "not_installed");
}

#[test]
fn a_host_without_dkms_and_systemd_is_served_and_told() {
    let node = Node::new();
    for gone in ["/usr/bin/dkms", "/usr/bin/systemctl", "/run/systemd"] {
        node.fake().remove(gone);
    }
    let kernel = FakeKernel::taking(node.fake(), ARMED);
    let done = node.install(&kernel).expect("installed");
    assert_eq!(done.missing.len(), 2);
    assert!(done.steps.iter().all(|step| step.kind != Kind::Run), "{:?}", done.steps);
    assert!(state::is_loaded(&node.fake().host()));
}

#[test]
fn a_removal_that_breaks_off_leaves_units_and_engine_as_they_were() {
    // What is enabled and what runs when the removal begins.
    let cases: [(&[&str], &[&str]); 3] =
        [(&["mpu", "mpu-nri"], &["mpu", "mpu-metrics"]), (&["mpu-metrics"], &["mpu-nri"]), (&[], &[])];
    let node = || {
        let node = Node::that_logs();
        node.install(&node.setup.kernel()).expect("installed");
        node
    };
    for (enabled, running) in cases {
        let with_units = || {
            let node = node();
            for (folder, names) in [("on", enabled), ("runs", running)] {
                let _ = std::fs::remove_file(node.fake().host().at(format!("/etc/{folder}/mpu.service")));
                names.iter().for_each(|name| node.fake().write(&format!("/etc/{folder}/{name}.service"), folder));
            }
            node
        };
        let whole = with_units();
        uninstall(&whole.fake().host(), &whole.setup.kernel(), false, false).expect("removed");
        let left = |folder: &str| std::fs::read_dir(whole.fake().host().at(folder)).expect("a folder").count();
        assert_eq!((left("/etc/on"), left("/etc/runs")), (1, 1), "nothing is enabled and nothing runs");

        let node = with_units();
        let host = node.fake().host();
        for (folder, names) in [("on", enabled), ("runs", running)] {
            // As systemctl writes it.
            let text = if folder == "on" { "on\n" } else { "runs\n" };
            names.iter().for_each(|name| node.fake().write(&format!("/etc/{folder}/{name}.service"), text));
        }
        let before = node.state();
        node.fake().write("/fail", &whole.calls().to_string());
        let error = uninstall(&host, &node.setup.kernel(), false, false).expect_err("the last command fails");
        assert!(error.to_string().ends_with("the host is as it was"), "{error}");
        assert_eq!(node.state(), before, "{enabled:?} {running:?}");
        assert_eq!(host.text("/told").as_deref(), Some("up"), "the engine, which no unit brought up in this test");
    }
}

#[test]
fn without_systemd_too_the_engine_comes_back_when_a_removal_breaks_off() {
    let node = Node::that_logs();
    node.fake().remove("/usr/bin/systemctl");
    node.install(&node.setup.kernel()).expect("installed");
    node.fake().write("/fail", &(node.calls() + 1).to_string());
    let host = node.fake().host();
    let before = node.state();
    uninstall(&host, &node.setup.kernel(), false, false).expect_err("DKMS fails");
    assert_eq!((node.state(), host.text("/told").as_deref()), (before, Some("up")));
}

#[test]
fn the_folder_for_modules_from_elsewhere_comes_and_goes_unless_somebody_uses_it() {
    use std::os::unix::fs::MetadataExt;
    const FOLDER: &str = "/usr/lib/mpu/modules";
    for used in [false, true] {
        let node = Node::new();
        node.install(&node.setup.kernel()).expect("installed");
        let host = node.fake().host();
        let folder = std::fs::metadata(host.at(FOLDER)).expect("a folder");
        assert_eq!((folder.is_dir(), folder.mode() & 0o777), (true, 0o755));
        if used {
            node.fake().write(&format!("{FOLDER}/6.1.0/mpu.ko"), "theirs");
        }
        uninstall(&host, &node.setup.kernel(), false, false).expect("removed");
        assert_eq!(host.at(FOLDER).exists(), used);
        assert_eq!(host.at("/usr/lib/mpu").exists(), used);
    }
}

/// Makes 0.0.9 what is installed, with its program and its engine up.
fn older(node: &Node) {
    let record = Record {
        version: "0.0.9".into(),
        layout: Layout::Local,
        files: Vec::new(),
        directories: Vec::new(),
        dkms: true,
        service: true,
    };
    node.fake().write(RECORD, &serde_json::to_string(&record).expect("JSON"));
    node.fake().write("/var/lib/dkms/mpu-0.0.9", "0.0.9 add\n0.0.9 build\n0.0.9 install\n");
    node.fake().write("/sys/module/mpu/parameters/state", "version=0.0.9\nstate=armed\n");
    let told = node.fake().host().at("/told");
    node.fake().program("/usr/local/bin/mpu", &format!("echo \"old $*\" >>{}", told.display()));
    for unit in ["mpu", "mpu-nri"] {
        node.fake().write(&format!("/etc/runs/{unit}.service"), "runs\n");
    }
}

#[test]
fn after_an_upgrade_services_that_ran_run_the_new_program() {
    let node = Node::that_logs();
    older(&node);
    let done = node.install(&node.setup.kernel()).expect("upgraded");
    let host = node.fake().host();
    assert_eq!(host.text("/restarts").as_deref(), Some("mpu-nri.service"), "{:?}", done.steps);
    assert_eq!(host.text("/told"), None, "nothing was undone");
}

#[test]
fn an_upgrade_that_breaks_off_late_leaves_the_old_engine_and_services() {
    let whole = Node::that_logs();
    older(&whole);
    whole.install(&whole.setup.kernel()).expect("upgraded");

    let node = Node::that_logs();
    older(&node);
    let before = node.state();
    node.fake().write("/fail", &whole.calls().to_string());
    let error = node.install(&node.setup.kernel()).expect_err("DKMS does not let the old one go");
    assert!(error.to_string().ends_with("the host is as it was"), "{error}");
    let host = node.fake().host();
    assert_eq!(node.state(), before);
    assert_eq!(host.text("/told").as_deref(), Some("old up --replace"));
    assert_eq!(host.text("/restarts").as_deref(), Some("mpu-nri.service\nmpu-nri.service"), "each program once");
}
