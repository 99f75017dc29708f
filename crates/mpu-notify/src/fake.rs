//! A fake supervisor for tests: it answers on the control socket of a fake host. Tests of the real one are in `crates/mpu/tests/notify`.

use super::CONTROL_SOCKET;
use super::client::{Cost, State};
use mpu_host::host::fake::FakeHost;
use mpu_host::phase::Phase;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Runs until it is dropped.
pub struct FakeSupervisor {
    path: PathBuf,
    /// Its answer to `state`.
    pub state: Arc<Mutex<State>>,
    /// The requests that it received, in order, without `state`.
    pub commands: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

/// State of a supervisor of this version with these containers.
pub fn state(containers: &[&str]) -> State {
    State {
        version: env!("CARGO_PKG_VERSION").to_string(),
        state: Phase::Armed,
        pid: mpu_core::HostPid::new(4711).expect("not 0"),
        since: 1_795_205_700,
        restarts: 0,
        restarts_last_hour: 0,
        listeners: containers.len(),
        containers: containers.iter().map(|id| id.to_string()).collect(),
        costs: containers
            .iter()
            .map(|id| Cost { container: id.to_string(), cpu_microseconds: 1_500_000, held_back_microseconds: 0 })
            .collect(),
        cpu_percent: Some(100),
        inside: 1,
        lookup: "kernel".to_string(),
        passed_on: 1234,
        translated: [("GPU_GET_PIDS".to_string(), 7)].into(),
        passed: [("exempt".to_string(), 2), ("no_memory".to_string(), 0)].into(),
        policy: Vec::new(),
    }
}

impl FakeSupervisor {
    /// Starts one on a host.
    pub fn on(fake: &FakeHost, state: State) -> FakeSupervisor {
        FakeSupervisor::at(fake.host().at(CONTROL_SOCKET), state)
    }

    /// Starts one with its control socket at a path.
    pub fn at(path: PathBuf, state: State) -> FakeSupervisor {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let listener = UnixListener::bind(&path).expect("a socket");
        let (state, commands) = (Arc::new(Mutex::new(state)), Arc::default());
        let thread = std::thread::spawn({
            let (path, state, commands) = (path.clone(), Arc::clone(&state), Arc::clone(&commands));
            move || {
                while answer(&listener, &state, &commands) {}
                let _ = std::fs::remove_file(path);
            }
        });
        FakeSupervisor { path, state, commands, thread: Some(thread) }
    }
}

/// Answers one request; false if the supervisor ends.
fn answer(listener: &UnixListener, state: &Mutex<State>, commands: &Mutex<Vec<String>>) -> bool {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut request = String::new();
    stream.read_to_string(&mut request).expect("a request");
    let mut state = state.lock().expect("ours");
    let (command, rest) = request.split_once('\n').unwrap_or((&request, ""));
    if command == "state" {
        let _ = stream.write_all(serde_json::to_string(&*state).expect("JSON").as_bytes());
        return true;
    }
    commands.lock().expect("ours").push(request.clone());
    match command {
        "retire" => state.state = Phase::Retired,
        "resume" => state.state = Phase::Armed,
        "policy" => state.policy = rest.lines().map(str::to_string).collect(),
        "budget" => state.cpu_percent = rest.trim().parse().ok(),
        "again" => {
            state.pid = mpu_core::HostPid::new(state.pid.get() + 1).expect("not 0");
            state.version = env!("CARGO_PKG_VERSION").to_string();
        }
        _ => return false,
    }
    let _ = stream.write_all(b"{\"ok\":true}");
    state.state != Phase::Retired || state.listeners > 0
}

impl Drop for FakeSupervisor {
    fn drop(&mut self) {
        if let Ok(mut stream) = std::os::unix::net::UnixStream::connect(&self.path) {
            let _ = stream.write_all(b"end");
        }
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
