//! Interrupts an installation at each step, on fake hosts. The host must be as before.

use super::journal::{self, JournalState};
use super::plan::{Kind, sha256};
use super::*;
use mpu_engine::module::load::fake::FakeKernel;
use mpu_engine::module::raise::fake::{BUILDS_BOTH, Setup};
use mpu_engine::module::state::ARMED;
use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use mpu_host::host::fake::FakeHost;
use mpu_notify::fake::{self, FakeSupervisor};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A dkms that keeps a tree, and a systemctl and udevadm that log; each fails at the call that a file names.
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

struct Node {
    setup: Setup,
    options: InstallOptions,
}

impl Node {
    fn new() -> Node {
        let setup = Setup::new();
        let fake = &setup.fake;
        let root = fake.dir.path().to_str().expect("a path").trim_start_matches('/').to_string();
        for (tool, body) in [("dkms", DKMS), ("systemctl", SYSTEMCTL), ("udevadm", SYSTEMCTL)] {
            fake.tool(tool, &body.replace("ROOT", &root));
        }
        fake.tool("make", BUILDS_BOTH);
        for folder in ["run/systemd/system", "etc", "etc/on", "etc/runs"] {
            fake.write(&format!("/{folder}/x"), "");
        }
        // An installed program that logs its arguments.
        fake.program("/mpu", &format!("echo \"$*\" >>/{root}/calls_of_mpu"));
        let source = Some(setup.sources.path().to_path_buf());
        let options = InstallOptions { source, executable: Some(fake.host().at("/mpu")), ..InstallOptions::default() };
        Node { setup, options }
    }

    fn installed() -> Node {
        let node = Node::new();
        node.install().expect("installed");
        node
    }

    /// Version 0.0.9 is installed, with its program and its engine up.
    fn with_older() -> Node {
        let node = Node::new();
        node.record("0.0.9");
        let log = node.host().at("/calls_of_mpu");
        node.fake().program("/usr/local/bin/mpu", &format!("echo \"old $*\" >>{}", log.display()));
        for unit in ["mpu", "mpu-nri"] {
            node.write(&format!("/etc/runs/{unit}.service"), "runs\n");
        }
        node
    }

    fn record(&self, version: &str) {
        let file = format!("/usr/src/mpu-{version}/Kbuild");
        let files = [&*file, "/usr/local/bin/mpu"].map(|path| Installed { path: path.into(), sha256: "x".into() });
        let files = files.to_vec();
        let record = Record { version: version.into(), files, directories: Vec::new(), dkms: true, service: true };
        self.write(RECORD, &serde_json::to_string(&record).expect("JSON"));
        self.write(&file, "old");
        let built = ["add", "build", "install"].map(|step| format!("{version} {step}\n")).concat();
        self.write(&format!("/var/lib/dkms/mpu-{version}"), &built);
        self.write("/sys/module/mpu/parameters/state", &format!("version={version}\nstate=armed\n"));
    }

    fn fake(&self) -> &FakeHost {
        &self.setup.fake
    }

    fn host(&self) -> Host {
        self.fake().host()
    }

    fn write(&self, path: &str, text: &str) {
        self.fake().write(path, text);
    }

    fn text(&self, path: &str) -> Option<String> {
        self.host().text(path)
    }

    fn calls(&self) -> usize {
        self.text("/calls").map_or(0, |text| text.parse().expect("a number"))
    }

    fn install(&self) -> Result<Outcome, Explained> {
        self.install_with(&self.setup.kernel(), &self.options)
    }

    fn install_with(&self, kernel: &dyn Kernel, options: &InstallOptions) -> Result<Outcome, Explained> {
        let pages = ["mpu", "mpu-up", "mpu-agent-run"].map(|name| (name.to_string(), b".TH".to_vec()));
        install(&self.host(), kernel, options, &Documents { pages: pages.to_vec(), ..Documents::default() })
    }

    fn plan(&self) -> Result<Outcome, Explained> {
        self.install_with(&self.setup.kernel(), &InstallOptions { dry_run: true, ..self.options.clone() })
    }

    fn uninstall(&self) -> Result<Outcome, Explained> {
        uninstall(&self.host(), &self.setup.kernel(), false, false)
    }

    /// The host's files, without those of the fakes and of the build's cache.
    fn state(&self) -> Vec<String> {
        let is_of_fakes = |name: &str| {
            ["calls", "fail", "restarts", "calls_of_mpu", "run/mpu"].iter().any(|p| name.starts_with(p))
                || name.starts_with("var/lib/mpu/6.")
                || ["var/lib/mpu/", "var/lib/", "var/"].contains(&name)
                || name.starts_with("sys/module/mpu")
        };
        let all = self.fake().snapshot().into_iter().filter(|(name, _)| !is_of_fakes(name));
        all.map(|(name, bytes)| format!("{name} {:.8}", sha256(&bytes))).collect()
    }
}

#[test]
fn repeated_installation_is_unchanged() {
    let node = Node::new();
    let done = node.install().expect("installed");
    assert!(done.missing.is_empty(), "{:?}", done.missing);
    for path in
        ["/usr/local/bin/mpu", "/etc/systemd/system/mpu.service", "/etc/mpu/config.toml", RECORD, "/etc/on/mpu.service"]
    {
        assert!(node.host().at(path).is_file(), "{path}");
    }
    assert_eq!(node.text("/usr/local/bin/mpu"), node.text("/mpu"));
    assert_eq!(node.text(&format!("/var/lib/dkms/mpu-{VERSION}")).expect("a dkms tree").lines().count(), 3);
    assert!(state::is_loaded(&node.host()));
    let before = node.fake().snapshot();
    assert_eq!(node.install().expect("nothing to do").result, InstallResult::Unchanged);
    assert_eq!(node.fake().snapshot(), before);
}

#[test]
fn dry_run_lists_steps_without_changes() {
    let node = Node::new();
    let before = node.fake().snapshot();
    let planned = node.plan().expect("planned");
    assert_eq!(node.fake().snapshot(), before);
    let done = node.install().expect("installed");
    assert_eq!((planned.result, done.result), (InstallResult::Planned, InstallResult::Installed));
    assert_eq!(planned.steps, done.steps);
    let places = ["/usr/local/bin/mpu", "dkms add", "dkms install", "systemctl enable", "mpu up", "mpu status"]
        .map(|what| planned.steps.iter().position(|step| step.what.starts_with(what)).expect(what));
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn unsuitable_host_installs_notify_engine() {
    let node = Node::new();
    node.fake().can_notify();
    node.write("/sys/kernel/security/lockdown", "none [integrity] confidentiality");
    let supervisor = FakeSupervisor::on(node.fake(), fake::state(&["a"]));
    let done = node.install().expect("installed");
    assert!(!done.steps.iter().any(|step| step.what.starts_with("dkms")), "{:?}", done.steps);
    assert!(done.missing.contains(&NOT_BUILT), "{:?}", done.missing);
    let unit = node.host().at("/etc/systemd/system/mpu-notify.service");
    assert!(!state::is_loaded(&node.host()) && unit.is_file());
    assert_eq!(node.install().expect("nothing to do").result, InstallResult::Unchanged);

    node.uninstall().expect("removed");
    assert_eq!(*supervisor.commands.lock().expect("ours"), ["retire\n"]);
    assert!(node.host().at("/run/mpu/notify/control.sock").exists(), "a container still has its filter");
    assert!(!unit.exists());
}

#[test]
fn second_install_adds_buildable_module() {
    let node = Node::new();
    node.fake().can_notify();
    let [make, away] = ["/usr/bin/make", "/usr/bin/make.away"].map(|path| node.host().at(path));
    fs::rename(&make, &away).expect("moved");
    let supervisor = FakeSupervisor::on(node.fake(), fake::state(&["a"]));
    node.install().expect("installed");
    assert!(supervisor.commands.lock().expect("ours").is_empty());

    fs::rename(&away, &make).expect("moved");
    let done = node.install().expect("installed again");
    assert!(done.result == InstallResult::Installed && done.missing.is_empty(), "{done:?}");
    assert!(node.text(&format!("/var/lib/dkms/mpu-{VERSION}")).is_some() && state::is_loaded(&node.host()));
    assert_eq!(*supervisor.commands.lock().expect("ours"), ["retire\n"]);
    assert_eq!(node.install().expect("nothing to do").result, InstallResult::Unchanged);
}

#[test]
fn uninstall_restores_previous_state() {
    let node = Node::new();
    let before = node.state();
    node.install().expect("installed");
    assert_ne!(node.state(), before);
    node.uninstall().expect("removed");
    assert_eq!(node.state(), before);
    let host = node.host();
    assert!(!host.at("/var/lib/mpu").exists() && !host.at("/run/mpu").exists() && !state::is_loaded(&host));
    let error = node.uninstall().expect_err("nothing there");
    assert_eq!((error.code(), error.exit()), ("not_installed", Exit::NotReady));
}

#[test]
fn uninstall_keeps_files_in_use() {
    const FOLDER: &str = "/usr/lib/mpu/modules";
    for (file, run_stays, folder_stays) in [
        ("/run/mpu/agents/one", true, false),
        ("/run/mpu/nri/one", false, false),
        ("/usr/lib/mpu/modules/6.1.0/mpu.ko", false, true),
    ] {
        let node = Node::installed();
        let folder = fs::metadata(node.host().at(FOLDER)).expect("a folder");
        assert_eq!((folder.is_dir(), folder.mode() & 0o777), (true, 0o755));
        node.write(file, "");
        node.write("/run/mpu/other", "");
        node.uninstall().expect("removed");
        let is_there = |path: &str| node.host().at(path).exists();
        assert!(is_there(file), "{file}");
        let stays = ["/run/mpu/other", FOLDER, "/usr/lib/mpu"].map(is_there);
        assert_eq!(stays, [run_stays, folder_stays, folder_stays], "{file}");
    }
}

#[test]
fn failed_command_restores_host() {
    let mut failed = 0;
    for call in 1.. {
        let node = Node::new();
        let before = node.state();
        node.write("/fail", &call.to_string());
        let Err(error) = node.install() else { break };
        assert!(error.code() == "rolled_back" && error.to_string().contains("no luck"), "{error}");
        failed += 1;
        assert_eq!(node.state(), before, "call {call}");
        assert!(!state::is_loaded(&node.host()) || call > 6, "call {call}");
    }
    assert_eq!(failed, 7, "dkms add, build, install; daemon-reload, udevadm, enable, start");
}

#[test]
fn failed_file_restores_host() {
    let is_file = |step: &StepView| step.kind == Kind::Write && !step.what.ends_with("/modules");
    let planned = Node::new().plan().expect("planned").steps.into_iter();
    let files: Vec<String> = planned.filter(is_file).map(|step| step.what).collect();
    assert!(files.len() > 16, "{files:?}");
    for file in files {
        let node = Node::new();
        // A directory in the file's place.
        node.write(&format!("{file}/in/the/way"), "");
        let before = node.state();
        let error = node.install().expect_err("a folder is in the way");
        assert_eq!((error.code(), node.state()), ("rolled_back", before), "{file}");
    }
}

#[test]
fn file_in_place_of_folder_restores_host() {
    let node = Node::new();
    node.write("/etc/mpu", "");
    let before = node.state();
    let error = node.install().expect_err("a file is in the way");
    assert_eq!((error.code(), node.state()), ("rolled_back", before));
    assert!(error.to_string().ends_with("the host is as it was"), "{error}");
}

#[test]
fn pipe_in_place_of_file_is_refused() {
    let node = Node::new();
    let pipe = node.host().at("/usr/local/bin/mpu");
    fs::create_dir_all(pipe.parent().expect("a folder")).expect("made");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    let error = node.install().expect_err("a pipe is in the way");
    assert!(error.code() == "rolled_back" && error.to_string().contains("it is not a file"), "{error}");
    assert!(fs::symlink_metadata(&pipe).expect("there").file_type().is_fifo());
}

#[test]
fn foreign_files_stop_first_installation() {
    const UNIT: &str = "/etc/systemd/system/mpu.service";
    const RULES: &str = "/etc/udev/rules.d/71-mpu.rules";
    const COMMAND: &str = "/usr/local/bin/mpu";
    let node = Node::new();
    node.write(UNIT, "own");
    // As `systemctl mask` makes it, and one without a target.
    node.fake().link(RULES, "/dev/null");
    node.fake().link(COMMAND, "nowhere");
    let before = node.state();
    for result in [node.plan(), node.install()] {
        let error = result.expect_err("refused");
        assert_eq!((error.code(), error.exit(), &node.state()), ("foreign_files", Exit::Failed, &before));
        assert!([UNIT, RULES, COMMAND].iter().all(|path| error.to_string().contains(path)), "{error}");
    }
    assert_eq!(node.uninstall().expect_err("nothing is installed").code(), "not_installed");

    [UNIT, RULES, COMMAND].iter().for_each(|path| node.fake().remove(path));
    node.write(COMMAND, "");
    let command = node.host().at(COMMAND);
    fs::copy(node.host().at("/mpu"), &command).expect("a file equal to ours");
    fs::set_permissions(&command, fs::Permissions::from_mode(0o644)).expect("ours");
    // As `apt-get remove mpu` leaves it.
    node.fake().link(UNIT, "/dev/null");
    node.write("/var/lib/systemd/deb-systemd-helper-masked/mpu.service", "");
    assert_eq!(node.install().expect("taken over").result, InstallResult::Installed);
    assert_eq!(fs::metadata(&command).expect("there").permissions().mode() & 0o777, 0o755);
    assert!(fs::symlink_metadata(node.host().at(UNIT)).expect("there").is_file());
}

#[test]
fn upgrade_refuses_foreign_file() {
    const UNIT: &str = "/etc/systemd/system/mpu-nri.service";
    let node = Node::new();
    node.record("0.0.9");
    node.write(UNIT, "own");
    let before = node.state();
    let error = node.install().expect_err("the old version had no such file");
    assert!(error.code() == "foreign_files" && error.to_string().contains(UNIT), "{error}");
    assert_eq!(node.state(), before);
}

#[test]
fn failed_engine_start_rolls_back_installation() {
    let node = Node::new();
    let before = node.state();
    let kernel = node.setup.kernel();
    kernel.inserts.borrow_mut().push(libc::EKEYREJECTED);
    let error = node.install_with(&kernel, &node.options).expect_err("refused");
    assert_eq!((error.code(), node.state()), ("rolled_back", before));
    assert!(error.fix().contains("sign the module"), "{}", error.fix());
}

/// Writes each file through a new journal.
fn change<'a>(host: &'a Host, files: &[&str]) -> Journal<'a> {
    let mut journal = Journal::begin(host).expect("a journal");
    for file in files {
        journal.write(Path::new(file), 0o600, Some(b"changed")).expect("written");
    }
    journal
}

#[test]
fn killed_change_is_undone_by_next() {
    let node = Node::new();
    node.write("/etc/y", "before");
    let (before, host) = (node.state(), node.host());
    let mut journal = change(&host, &["/usr/local/bin/mpu", "/etc/x"]);
    journal.record_undo_command(&["systemctl".into(), "disable".into()]).expect("noted");
    journal.remove(Path::new("/etc/y")).expect("removed");
    assert_eq!(journal::read_state(&host), JournalState::Running, "this process has it");
    assert_eq!(Journal::begin(&host).err().expect("it goes on").code(), "lock_held");
    journal.simulate_kill();
    assert_eq!(state_at_rest(&host), JournalState::Interrupted);
    assert_ne!(node.state(), before);
    drop(Journal::begin(&host).expect("undone"));
    assert_eq!((node.state(), node.calls(), journal::read_state(&host)), (before, 1, JournalState::Idle));
    node.install().expect("installed");
}

#[test]
fn concurrent_installation_is_refused() {
    let node = Node::new();
    node.write("/etc/x", "before");
    let (before, host) = (node.state(), node.host());
    let journal = change(&host, &["/etc/x"]);
    let during = node.state();
    for error in [node.install().expect_err("refused"), node.uninstall().expect_err("refused")] {
        assert_eq!((error.code(), error.exit()), ("lock_held", Exit::Failed));
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        assert_eq!(node.state(), during);
    }
    assert_eq!(journal.roll_back(), [""; 0]);
    assert_eq!(node.state(), before);
}

/// A removal must finish its last steps before another change begins. Otherwise it would remove the other change's
/// files.
#[test]
fn removal_holds_lock_until_all_is_removed() {
    let node = Node::installed();
    let host = node.host();
    node.write("/var/lib/mpu/built", "");
    let socket = host.at(mpu_notify::CONTROL_SOCKET);
    fs::create_dir_all(socket.parent().expect("a folder")).expect("a folder");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let (seen, below) = (Arc::new(Mutex::new(Vec::new())), host.clone());
    let states = Arc::clone(&seen);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (mut request, mut state) = (String::new(), fake::state(&["a"]));
            stream.read_to_string(&mut request).expect("a request");
            state.state = mpu_host::phase::Phase::Retired;
            states.lock().expect("ours").push((journal::read_state(&below), below.at("/var/lib/mpu/built").exists()));
            let _ = match request.starts_with("state") {
                true => stream.write_all(serde_json::to_string(&state).expect("JSON").as_bytes()),
                false => stream.write_all(b"{\"ok\":true}"),
            };
        }
    });
    node.uninstall().expect("removed");
    let seen = seen.lock().expect("ours");
    assert!(seen.iter().all(|(state, _)| *state == JournalState::Running), "{seen:?}");
    assert!(seen.last().is_some_and(|(_, built)| !built), "the last look comes after all: {seen:?}");
    assert!(!host.at("/var/lib/mpu").exists());
}

/// The state once no child holds the lock: a child that another test forks has it until its exec.
fn state_at_rest(host: &Host) -> JournalState {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match journal::read_state(host) {
            JournalState::Running if Instant::now() < end => sleep(Duration::from_millis(5)),
            state => return state,
        }
    }
}

#[test]
fn unrestorable_bytes_stay_in_journal() {
    let node = Node::new();
    for file in ["/etc/x", "/etc/y", "/etc/z"] {
        node.write(file, "before");
    }
    let host = node.host();
    let mut journal = change(&host, &["/etc/x", "/etc/y", "/etc/new"]);
    journal.remove(Path::new("/etc/z")).expect("removed");
    journal.record_undo_command(&["systemctl", "restart", "a.service"].map(str::to_string)).expect("noted");
    node.fake().remove("/etc/x");
    node.write("/etc/x/in/the/way", "");
    let failures = journal.roll_back();
    assert!(
        failures.len() == 1 && failures[0].contains("/etc/x") && failures[0].contains("what it was is in"),
        "{failures:?}"
    );
    assert_eq!(["/etc/y", "/etc/z"].map(|file| node.text(file)), [(); 2].map(|()| Some("before".to_string())));
    assert_eq!(fs::read_dir(host.at(journal::DIR)).expect("a journal").count(), 2, "the list, and the bytes of /etc/x");

    // The administrator continues; nothing else is undone.
    node.write("/etc/y", "since");
    node.write("/etc/new", "since");
    assert_eq!(node.install().expect_err("not yet").code(), "not_restored");
    assert_eq!(state_at_rest(&host), JournalState::Interrupted);
    node.fake().remove("/etc/x");
    drop(Journal::begin(&host).expect("undone"));
    let texts = ["/etc/x", "/etc/y", "/etc/new", "/restarts"].map(|file| node.text(file).unwrap_or_default());
    assert_eq!(texts, ["before", "since", "since", "a.service"]);
    assert_eq!(journal::read_state(&host), JournalState::Idle);
}

#[test]
fn unknown_journal_entry_stops_undo() {
    let node = Node::new();
    node.write("/etc/x", "before");
    let host = node.host();
    change(&host, &["/etc/x"]).simulate_kill();
    let list = "/var/lib/mpu/journal/undo.json";
    let noted = node.text(list).expect("a list");
    node.write(list, &noted.replacen('[', "[{\"Renamed\":\"/etc/y\"},", 1));
    let error = Journal::begin(&host).err().expect("not ours");
    assert!(error.code() == "unknown_change" && error.fix().contains("the version of mpu"), "{error}: {}", error.fix());
    assert_eq!(node.text("/etc/x").as_deref(), Some("changed"), "what comes before it may hang on it");
    node.write(list, &noted);
    drop(Journal::begin(&host).expect("undone"));
    assert_eq!(node.text("/etc/x").as_deref(), Some("before"));
}

#[test]
fn missing_backup_is_reported() {
    let node = Node::new();
    node.write("/etc/x", "before");
    let host = node.host();
    let broken_off = || {
        let journal = change(&host, &["/etc/x"]);
        node.fake().remove("/var/lib/mpu/journal/0");
        journal
    };
    let failures = broken_off().roll_back();
    assert!(failures.len() == 1 && failures[0].contains("/etc/x: what it was is lost"), "{failures:?}");
    broken_off().simulate_kill();
    let error = Journal::begin(&host).err().expect("lost");
    assert!(error.code() == "not_restored" && error.fix().contains("look at these files"), "{error}: {}", error.fix());
    drop(Journal::begin(&host).expect("no more can be done, and it was reported"));
    assert_eq!(journal::read_state(&host), JournalState::Idle);
}

#[test]
fn owner_of_file_comes_back() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can give a file to another user");
    }
    let node = Node::new();
    let host = node.host();
    node.write("/etc/x", "before");
    if std::os::unix::fs::chown(host.at("/etc/x"), Some(65534), Some(65534)).is_err() {
        return println!("skipped: root of a user namespace without another user");
    }
    assert_eq!(change(&host, &["/etc/x"]).roll_back(), [""; 0]);
    let owner = fs::metadata(host.at("/etc/x")).expect("there");
    assert_eq!((node.text("/etc/x").as_deref(), owner.uid(), owner.gid()), (Some("before"), 65534, 65534));
}

#[test]
fn folders_and_links_come_back() {
    let node = Node::new();
    let host = node.host();
    node.write("/etc/deep/er/x", "before");
    node.write("/opt/mpu", "elsewhere");
    let links = [("/etc/a", host.at("/opt/mpu")), ("/etc/b", "nowhere".into()), ("/etc/c", "nowhere".into())];
    for (link, to) in &links {
        symlink(to, host.at(link)).expect("a link");
    }
    let before = node.state();
    let mut journal = change(&host, &["/etc/deep/er/x", "/etc/a", "/etc/b"]);
    journal.remove(Path::new("/etc/c")).expect("removed");
    node.fake().remove("/etc/deep");
    assert_eq!(node.text("/opt/mpu").as_deref(), Some("elsewhere"));
    assert_eq!(journal.roll_back(), [""; 0]);
    assert_eq!(node.state(), before);
    let modes = ["/etc/deep", "/etc/deep/er"].map(|path| fs::metadata(host.at(path)).expect("there").mode() & 0o777);
    assert_eq!(modes, [0o755; 2]);
    for (link, to) in &links {
        assert_eq!(fs::read_link(host.at(link)).ok().as_ref(), Some(to), "{link}");
    }
}

#[test]
fn changed_configuration_survives_everything_but_purge() {
    let node = Node::new();
    node.write(mpu_host::config::FILE, "visibility = \"pod\"\n");
    for purge in [false, true] {
        node.install().expect("installed");
        assert_eq!(node.text(mpu_host::config::FILE).as_deref(), Some("visibility = \"pod\""));
        uninstall(&node.host(), &node.setup.kernel(), false, purge).expect("removed");
        assert_eq!(node.text(mpu_host::config::FILE).is_none(), purge);
    }
}

#[test]
fn install_replaces_older_version_only() {
    let node = Node::new();
    node.record("9.0.0");
    assert_eq!(node.install().expect_err("a newer one is there").code(), "newer_installed");
    node.fake().remove("/usr/src/mpu-9.0.0");
    node.fake().remove("/var/lib/dkms/mpu-9.0.0");
    node.record("0.0.9");
    let before = node.state();
    let kernel = node.setup.kernel();
    kernel.inserts.borrow_mut().push(libc::ETIMEDOUT);
    let error = node.install_with(&kernel, &node.options).expect_err("callers stay inside");
    assert_eq!((error.code(), node.state()), ("rolled_back", before));
    let version = || state::read(&node.host()).expect("readable").expect("up").version;
    assert_eq!(version(), "0.0.9", "the old engine continues");

    let done = node.install().expect("upgraded");
    assert_eq!((done.result, done.before.as_deref()), (InstallResult::Upgraded, Some("0.0.9")));
    let gone = ["/usr/src/mpu-0.0.9", "/var/lib/dkms/mpu-0.0.9"].map(|path| !node.host().at(path).exists());
    assert_eq!(gone, [true; 2]);
    assert_eq!((version(), Record::read(&node.host()).expect("a record").version), (VERSION.into(), VERSION.into()));
}

#[test]
fn edited_unit_survives_reinstallation() {
    const UNIT: &str = "/etc/systemd/system/mpu-nri.service";
    let node = Node::installed();
    node.write(UNIT, "edited");
    let done = node.install().expect("installed again");
    assert!(done.steps.iter().any(|step| step.kind == Kind::Keep && step.what == UNIT), "{:?}", done.steps);
    assert_eq!(node.text(UNIT).as_deref(), Some("edited"));
    node.uninstall().expect("removed");
    assert!(!node.host().at(UNIT).exists());
}

#[test]
fn upgrade_keeps_edited_old_file() {
    const EDITED: &str = "/etc/systemd/system/mpu-old.service";
    const UNTOUCHED: &str = "/etc/udev/rules.d/70-mpu-old.rules";
    let node = Node::new();
    node.record("0.0.9");
    let mut record = Record::read(&node.host()).expect("a record");
    for (path, text) in [(EDITED, "edited"), (UNTOUCHED, "shipped")] {
        record.files.push(Installed { path: path.into(), sha256: sha256(b"shipped") });
        node.write(path, text);
    }
    node.write(RECORD, &serde_json::to_string(&record).expect("JSON"));
    let done = node.install().expect("upgraded");
    assert!(done.steps.iter().any(|step| step.kind == Kind::Keep && step.what == EDITED), "{:?}", done.steps);
    assert_eq!([EDITED, UNTOUCHED].map(|path| node.text(path)), [Some("edited".to_string()), None]);
}

#[test]
fn removed_package_is_not_installed() {
    let node = Node::new();
    node.write("/var/lib/dpkg/info/mpu.list", "/etc/mpu/config.toml\n");
    assert_eq!(package(&node.host()), None);
}

#[test]
fn package_or_missing_rights_refuse_install() {
    const DPKG: (&str, &str) = ("/var/lib/dpkg/info/mpu.md5sums", "d41d8cd98f00b204e9800998ecf8427e  usr/bin/mpu\n");
    const RPM: (&str, &str) = ("/usr/share/licenses/mpu/LICENSE", "MIT\n");
    const DKMS: (&str, &str) = ("/usr/src/mpu-0.0.1/dkms.conf", "");
    const ROCKY: (&str, &str) = ("/etc/os-release", "ID=rocky\nID_LIKE=rhel\n");
    const SLES: (&str, &str) = ("/etc/os-release", "ID=sles\nID_LIKE=suse\n");
    const USER: (&str, &str) = ("/proc/self/status", "CapEff:\t0000000000000000\n");
    type Files = &'static [(&'static str, &'static str)];
    let rows: [(Files, bool, &str, &str); 6] = [
        (&[DPKG], true, "is_a_package", "apt-get install ./mpu_*.deb"),
        (&[DPKG], false, "is_a_package", "apt-get purge mpu"),
        (&[RPM], true, "is_a_package", "mpu-nodkms"),
        (&[RPM, ROCKY, DKMS], true, "is_a_package", "dnf install --allowerasing ./mpu-[0-9]*.rpm"),
        (&[RPM, SLES, DKMS], false, "is_a_package", "zypper remove mpu"),
        (&[USER], true, "not_root", "sudo"),
    ];
    for (files, is_install, code, fix) in rows {
        let node = Node::new();
        files.iter().for_each(|(path, text)| node.write(path, text));
        let before = node.fake().snapshot();
        let error = if is_install { node.install() } else { node.uninstall() }.expect_err(code);
        assert_eq!((error.code(), error.exit(), node.fake().snapshot()), (code, Exit::Refused, before));
        assert!(error.fix().contains(fix), "{}", error.fix());
    }
}

#[test]
fn install_works_without_dkms_and_systemd() {
    let node = Node::new();
    for gone in ["/usr/bin/dkms", "/usr/bin/systemctl", "/run/systemd"] {
        node.fake().remove(gone);
    }
    let done = node.install_with(&FakeKernel::taking(node.fake(), ARMED), &node.options).expect("installed");
    assert_eq!(done.missing, [NO_DKMS, NO_SYSTEMD]);
    assert!(done.steps.iter().all(|step| step.kind != Kind::Run), "{:?}", done.steps);
    assert!(state::is_loaded(&node.host()));
}

#[test]
fn failed_removal_restores_units_and_engine() {
    // What is enabled and what runs when the removal begins, and whether there is systemd.
    let cases: [(&[&str], &[&str], bool); 4] = [
        (&["mpu", "mpu-nri"], &["mpu", "mpu-metrics"], true),
        (&["mpu-metrics"], &["mpu-nri"], true),
        (&[], &[], true),
        (&[], &[], false),
    ];
    for (enabled, running, has_systemd) in cases {
        let with_units = || {
            let node = Node::new();
            if !has_systemd {
                node.fake().remove("/usr/bin/systemctl");
            }
            node.install().expect("installed");
            for (folder, names) in [("on", enabled), ("runs", running)] {
                let _ = fs::remove_file(node.host().at(format!("/etc/{folder}/mpu.service")));
                // As systemctl writes it.
                let put = |name| node.write(&format!("/etc/{folder}/{name}.service"), &format!("{folder}\n"));
                names.iter().for_each(put);
            }
            node
        };
        let whole = with_units();
        whole.uninstall().expect("removed");
        let links = |folder: &str| fs::read_dir(whole.host().at(folder)).expect("a folder").count();
        assert_eq!((links("/etc/on"), links("/etc/runs")), (1, 1), "nothing is enabled and nothing runs");

        let node = with_units();
        let before = node.state();
        node.write("/fail", &whole.calls().to_string());
        let error = node.uninstall().expect_err("the last command fails");
        assert!(error.to_string().ends_with("the host is as it was"), "{error}");
        assert_eq!(node.state(), before, "{enabled:?} {running:?}");
        assert_eq!(
            node.text("/calls_of_mpu").as_deref(),
            Some("up"),
            "the engine, which no unit brought up in this test"
        );
    }
}

#[test]
fn late_upgrade_failure_restores_old_services() {
    let whole = Node::with_older();
    let done = whole.install().expect("upgraded");
    assert_eq!(whole.text("/restarts").as_deref(), Some("mpu-nri.service"), "{:?}", done.steps);
    assert_eq!(whole.text("/calls_of_mpu"), None, "nothing was undone");

    let node = Node::with_older();
    let before = node.state();
    node.write("/fail", &whole.calls().to_string());
    let error = node.install().expect_err("DKMS does not let the old one go");
    assert!(error.to_string().ends_with("the host is as it was"), "{error}");
    assert_eq!((node.state(), node.text("/calls_of_mpu").as_deref()), (before, Some("old up --replace")));
    assert_eq!(node.text("/restarts").as_deref(), Some("mpu-nri.service\nmpu-nri.service"), "each program once");
}
