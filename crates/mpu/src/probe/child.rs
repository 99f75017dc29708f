//! The probe's child: it becomes a client three times, twice from its main thread and once from another, and lists processes.
//!
//! Two clients of one thread show whether the driver lists a process twice. The client of the other thread is the only
//! one with memory. It shows whether the driver tracks processes or threads.

use mpu_host::driver::Release;
use mpu_rm::{Client, Nodes, PidInfo, RmError, Samples};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::thread;

/// Video memory of the second thread's client: clearly more than a client's own overhead.
const MEMORY_BYTES: u64 = 8 << 20;

/// What a caller in a fresh PID namespace saw of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
#[schemars(rename = "Sighting")]
pub struct ChildObservation {
    /// The process's number in its namespace.
    pub own_pid: u32,
    /// Its number in its parent's namespace.
    pub outer_pid: u32,
    /// The number, in its namespace, of the thread that made the third client.
    pub thread_id: u32,
    /// The answer of GET_PIDS.
    pub list: Vec<u32>,
    /// The numbers with details, if they could be measured.
    pub details: Option<Details>,
    /// Why the details are missing.
    pub details_error: Option<String>,
    /// The processes in the utilisation samples, if the release has them and the driver answered.
    pub samples: Option<Samples>,
}

/// Whether GET_PID_INFO found the memory under each of three numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema, Deserialize)]
pub struct Details {
    /// Under the process's number in its namespace.
    pub own: bool,
    /// Under the thread's.
    pub thread: bool,
    /// Under the process's number outside.
    pub outer: bool,
}

/// The clients that keep the process in the driver's list.
pub struct Clients {
    _main: [Client; 2],
    _other: Client,
}

/// Measures. `outer_pid` is this process's number in its parent's namespace.
pub fn measure(
    nodes: &(dyn Nodes + Sync),
    release: Release,
    outer_pid: u32,
) -> Result<(ChildObservation, Clients), RmError> {
    let main = [Client::of_first_gpu(nodes, release)?, Client::of_first_gpu(nodes, release)?];
    let client = &main[0];
    thread::scope(|scope| {
        // The other thread must live during the measurement: a driver that tracks threads drops an ended one.
        let (made, made_receiver) = std::sync::mpsc::channel();
        let (done, done_receiver) = std::sync::mpsc::channel::<()>();
        let other = scope.spawn(move || {
            let opened = Client::of_first_gpu(nodes, release);
            let memory = opened.as_ref().map(|client| client.alloc_video_memory(MEMORY_BYTES)).unwrap_or(Ok(()));
            let _ = made.send((rustix::thread::gettid(), memory));
            let _ = done_receiver.recv();
            opened
        });
        let (thread_id, memory) = made_receiver.recv().expect("the thread sends before it ends");
        let observation = query(client, outer_pid, thread_id.as_raw_nonzero().get() as u32, memory);
        drop(done);
        let other = other.join().expect("the thread does not panic")?;
        Ok((observation?, other))
    })
    .map(|(observation, other)| (observation, Clients { _main: main, _other: other }))
}

fn query(
    client: &Client,
    outer_pid: u32,
    thread_id: u32,
    memory: Result<(), RmError>,
) -> Result<ChildObservation, RmError> {
    let own_pid = std::process::id();
    let list = client.pids()?;
    let details = memory.and_then(|()| client.pid_info(&[own_pid, thread_id, outer_pid]));
    let details_error = details.as_ref().err().map(|error| error.to_string());
    let details = details.ok().map(|rows| {
        let found = |i: usize| rows.get(i).is_some_and(|row: &PidInfo| row.result == 0 && row.memory >= MEMORY_BYTES);
        Details { own: found(0), thread: found(1), outer: found(2) }
    });
    let samples = client.samples().ok().flatten();
    Ok(ChildObservation { own_pid, outer_pid, thread_id, list, details, details_error, samples })
}
