//! A fake notify engine: a socket that receives listeners and answers their calls.
//!
//! RM controls get an error that no driver returns, so that a program can recognize the engine's answer; wrapped requests continue.
//!
//! Source: OCI runtime specification 1.2, `config-linux.md`: "The container process state".

use std::fs;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;

use crate::sys::{self, Response};

/// The answer to RM controls: "Invalid cross-device link".
pub const ENGINE_ERRNO: i32 = libc::EXDEV;

/// Builds the calling program (`caller.c`), statically linked.
pub fn build_caller(at: &Path) {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/notify/caller.c");
    let built = Command::new("cc").args(["-static", "-O1", "-o"]).arg(at).arg(source).status().expect("cc runs");
    assert!(built.success(), "cc cannot build {source}");
}

#[derive(Default)]
struct Record {
    containers: Vec<Value>,
    calls: Vec<(String, u64)>,
    /// Connections without a message.
    probes: usize,
}

/// An engine at a socket, until dropped.
pub struct Engine {
    path: PathBuf,
    record: Arc<Mutex<Record>>,
}

impl Engine {
    pub fn at(path: &Path) -> Engine {
        let _ = fs::remove_file(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let socket = UnixListener::bind(path).expect("a socket");
        let record = Arc::new(Mutex::new(Record::default()));
        let shared = record.clone();
        std::thread::spawn(move || {
            for stream in socket.incoming() {
                let shared = shared.clone();
                std::thread::spawn(move || serve(&stream.expect("a connection"), &shared));
            }
        });
        Engine { path: path.into(), record }
    }

    /// The messages of runtimes, in order.
    pub fn containers(&self) -> Vec<Value> {
        self.record.lock().expect("no panic").containers.clone()
    }

    /// Containers, each with a request that it made.
    pub fn calls(&self) -> Vec<(String, u64)> {
        self.record.lock().expect("no panic").calls.clone()
    }

    /// The number of connections without a message, such as the wrapper's. Waits for the first.
    pub fn probes(&self) -> usize {
        let began = Instant::now();
        loop {
            let probes = self.record.lock().expect("no panic").probes;
            if probes > 0 || began.elapsed() > Duration::from_secs(60) {
                return probes;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // No program can connect any more.
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(stream: &UnixStream, record: &Mutex<Record>) {
    let Some((state, listener)) = receive(stream) else {
        record.lock().expect("no panic").probes += 1;
        return;
    };
    let id = state["state"]["id"].as_str().expect("a container's name").to_owned();
    record.lock().expect("no panic").containers.push(state);
    loop {
        let mut wait = [PollFd::new(&listener, PollFlags::IN)];
        if poll(&mut wait, None).is_err() || !wait[0].revents().contains(PollFlags::IN) {
            // No process is left to call.
            return;
        }
        let Ok(call) = sys::receive(&listener) else { continue };
        record.lock().expect("no panic").calls.push((id.clone(), call.request));
        let response = if call.request & 0xff == 0x2a { Response::Error(ENGINE_ERRNO) } else { Response::Continue };
        // A caller that was killed meanwhile needs no answer.
        let _ = sys::respond(&listener, &call, response);
    }
}

/// One message with one descriptor; none if the peer closes without it.
fn receive(stream: &UnixStream) -> Option<(Value, OwnedFd)> {
    let (mut text, mut descriptor) = (Vec::new(), None);
    loop {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(descriptors) = message else { continue };
            for one in descriptors {
                assert!(descriptor.replace(one).is_none(), "one descriptor");
            }
        }
        text.extend_from_slice(&bytes[..received.bytes]);
        if let (Ok(state), Some(_)) = (serde_json::from_slice(&text), &descriptor) {
            return Some((state, descriptor?));
        }
        if received.bytes == 0 {
            assert!(text.is_empty() && descriptor.is_none(), "half a message: {}", String::from_utf8_lossy(&text));
            return None;
        }
    }
}
