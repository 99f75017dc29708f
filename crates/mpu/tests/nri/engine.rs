//! A fake container engine: NRI's socket, its two streams, and its calls.
//!
//! It reads as strictly as containerd's reader: a frame must not exceed the reader's buffer. Debian has no engine that
//! can set a profile (containerd 2.1 in sid), so this replaces one.
//!
//! Source: `pkg/net/multiplex/mux.go` and `pkg/adaptation/plugin.go` of containerd/nri 0.12.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::wire::{Fields, bytes, message, number};

const PLUGIN: u32 = 1;
const RUNTIME: u32 = 2;
/// The size of containerd's read buffer for a frame, unless it expects a longer one.
const BUFFER: usize = 4096;
/// How long the plugin may take for anything here.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Engine(UnixListener);

impl Engine {
    pub fn at(path: &Path) -> Engine {
        let _ = std::fs::remove_file(path);
        let socket = UnixListener::bind(path).expect("a socket");
        socket.set_nonblocking(true).expect("set");
        Engine(socket)
    }

    /// The next plugin that connects.
    pub fn accept(&self) -> Connection {
        let began = Instant::now();
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).expect("set");
                    stream.set_read_timeout(Some(PATIENCE)).expect("set");
                    return Connection { stream, pending: [Vec::new(), Vec::new()], call: 1 };
                }
                Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => panic!("no plugin came: {error}"),
            }
        }
    }

    /// The next plugin, registered and configured by an engine of this name and version.
    pub fn serve(&self, name: &str, version: &str) -> Connection {
        let mut connection = self.accept();
        assert_eq!(connection.registration(), ("mpu".to_owned(), "90".to_owned()));
        let configured = connection.configure(name, version);
        assert_eq!(configured.number(2), 1 << 3, "containers that are made, and nothing else");
        connection
    }
}

pub struct Connection {
    stream: UnixStream,
    pending: [Vec<u8>; 2],
    call: u32,
}

impl Connection {
    /// Accepts the registration. Returns the plugin's name and index.
    pub fn registration(&mut self) -> (String, String) {
        let (call, request) = self.receive(RUNTIME, 1);
        let request = Fields::of(&request);
        assert_eq!(
            (request.text(1), request.text(2)),
            ("nri.pkg.api.v1alpha1.Runtime".into(), "RegisterPlugin".into())
        );
        let plugin = request.inner(3);
        self.send(RUNTIME, call, 2, &[]);
        (plugin.text(1), plugin.text(2))
    }

    pub fn refuse(&mut self, why: &str) {
        let (call, _) = self.receive(RUNTIME, 1);
        self.send(RUNTIME, call, 2, &bytes(1, message(&[number(1, 2), bytes(2, why)])));
    }

    /// Configures the plugin, and sends it the running containers.
    pub fn configure(&mut self, name: &str, version: &str) -> Fields {
        let configure =
            message(&[bytes(2, name), bytes(3, version), number(4, 5000), number(5, 2000), bytes(6, "v0.12.0")]);
        let configured = self.call("Configure", &configure).expect("it is configured");
        let running = message(&[bytes(2, bytes(1, "running")), number(3, 1)]);
        assert_eq!(self.call("Synchronize", &running).expect("it takes parts").number(2), 1);
        assert!(self.call("Synchronize", &[]).expect("it takes the last part").is_empty());
        configured
    }

    /// Creates a container. Returns the whole answer to `CreateContainer`.
    pub fn create(&mut self, container: &[u8]) -> Fields {
        let pod = message(&[bytes(1, "sandbox"), bytes(2, "train"), bytes(4, "default")]);
        self.call("CreateContainer", &message(&[bytes(1, pod), bytes(2, container)])).expect("no container fails")
    }

    /// Calls the plugin. Returns the answer, or the status code of a failure.
    pub fn call(&mut self, method: &str, payload: &[u8]) -> Result<Fields, u64> {
        let request = message(&[
            bytes(1, "nri.pkg.api.v1alpha1.Plugin"),
            bytes(2, method),
            bytes(3, payload),
            number(4, 2_000_000_000),
        ]);
        self.call += 2;
        let call = self.call;
        self.send(PLUGIN, call, 1, &request);
        let (answered, response) = self.receive(PLUGIN, 2);
        assert_eq!(answered, call);
        let response = Fields::of(&response);
        match response.inner(1).number(1) {
            0 => Ok(Fields::of(&response.all(2).pop().unwrap_or_default())),
            code => Err(code),
        }
    }

    /// A ttrpc message.
    pub fn packed(call: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
        [&(payload.len() as u32).to_be_bytes()[..], &call.to_be_bytes(), &[kind, 0], payload].concat()
    }

    pub fn send(&mut self, stream: u32, call: u32, kind: u8, payload: &[u8]) {
        let packed = Connection::packed(call, kind, payload);
        let (first, rest) = packed.split_at(packed.len().min(BUFFER));
        for part in [first, rest].into_iter().filter(|part| !part.is_empty()) {
            self.frame(stream, part);
        }
    }

    pub fn frame(&mut self, stream: u32, part: &[u8]) {
        self.raw(&[&stream.to_be_bytes()[..], &(part.len() as u32).to_be_bytes(), part].concat());
    }

    /// Sends raw bytes, which may be no frame. Ignores errors.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Whether the plugin closes the connection.
    pub fn is_closed_by_plugin(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            // The plugin closed it with unread data.
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    fn receive(&mut self, stream: u32, kind: u8) -> (u32, Vec<u8>) {
        loop {
            let pending = &mut self.pending[stream as usize - 1];
            if pending.len() >= 10 {
                let length = u32::from_be_bytes(pending[..4].try_into().expect("four")) as usize;
                if pending.len() >= 10 + length {
                    let whole: Vec<u8> = pending.drain(..10 + length).collect();
                    assert_eq!(whole[8], kind);
                    return (u32::from_be_bytes(whole[4..8].try_into().expect("four")), whole[10..].to_vec());
                }
            }
            let mut header = [0; 8];
            self.stream.read_exact(&mut header).expect("a frame");
            let of = u32::from_be_bytes(header[..4].try_into().expect("four")) as usize;
            let mut part = vec![0; u32::from_be_bytes(header[4..].try_into().expect("four")) as usize];
            let pending = &mut self.pending[of - 1];
            let missing = match pending.len() {
                0..10 => 0,
                have => 10 + u32::from_be_bytes(pending[..4].try_into().expect("four")) as usize - have,
            };
            assert!(part.len() <= BUFFER.max(missing), "containerd's reader takes no frame of {} here", part.len());
            self.stream.read_exact(&mut part).expect("the frame's rest");
            pending.extend(part);
        }
    }
}
