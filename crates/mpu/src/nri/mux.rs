//! The connection to a container engine: two streams of ttrpc messages over one socket.
//!
//! A frame is the stream's number and a length, each four bytes, big-endian, and the payload. A message is a header of ten bytes
//! (length, call number, kind, flags) and the payload; it may span frames. A length above the protocol's limit ends the connection
//! before memory is allocated.
//!
//! Source: `pkg/net/multiplex/mux.go` of containerd/nri 0.12; `PROTOCOL.md` and `channel.go` of containerd/ttrpc 1.2.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The stream of the engine's requests.
pub const PLUGIN: u32 = 1;
/// The stream of the plugin's requests.
pub const RUNTIME: u32 = 2;

pub const REQUEST: u8 = 1;
pub const RESPONSE: u8 = 2;

/// The longest message (`messageLengthMax`).
const MAX_MESSAGE: usize = 4 << 20;
const MESSAGE_HEADER: usize = 10;
const FRAME_HEADER: usize = 8;
/// The size of the buffer into which the engine reads a frame, unless it expects a longer one.
const FIRST_FRAME: usize = 4096;
/// How long a started frame or message may take. An engine writes it at once.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// A message of a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// [`PLUGIN`] or [`RUNTIME`].
    pub stream: u32,
    /// The call's number, as in its answer.
    pub call: u32,
    /// [`REQUEST`] or [`RESPONSE`]; others are ignored here.
    pub kind: u8,
    pub payload: Vec<u8>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum MuxError {
    /// The engine closed the connection.
    #[error("the container engine closed the connection")]
    Closed,
    #[error("the connection to the container engine failed")]
    Io(#[from] io::Error),
    /// The time limit passed without a message.
    #[error("the container engine did not answer in {} seconds", .0.as_secs())]
    Silent(Duration),
    /// The rest of a message did not arrive.
    #[error("the container engine sent a part of a message and then nothing for {} seconds", MESSAGE_TIMEOUT.as_secs())]
    Stuck,
    /// The message is too long.
    #[error("the container engine announced {0} bytes; NRI's messages have {MAX_MESSAGE} at most")]
    TooLong(u64),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    Message(Message),
    /// A signal asked this process to end.
    Stop,
}

pub struct Mux<'a> {
    socket: UnixStream,
    stop: BorrowedFd<'a>,
    /// The incomplete message of each stream, and when it began. A queue, so that a long frame of many short messages
    /// takes linear time.
    buffers: HashMap<u32, (VecDeque<u8>, Instant)>,
}

impl<'a> Mux<'a> {
    /// Uses a connected socket. A readable `stop` ends the wait for messages.
    pub fn new(socket: UnixStream, stop: BorrowedFd<'a>) -> Result<Mux<'a>, MuxError> {
        socket.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
        Ok(Mux {
            socket,
            stop,
            buffers: [PLUGIN, RUNTIME].map(|stream| (stream, (VecDeque::new(), Instant::now()))).into(),
        })
    }

    /// The next message within `timeout`, or without limit.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Incoming, MuxError> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Incoming::Message(message));
            }
            // A started message has its own time limit, also without `timeout`.
            let started = self
                .buffers
                .values()
                .filter(|(buffers, _)| !buffers.is_empty())
                .map(|(_, since)| *since + MESSAGE_TIMEOUT);
            let stuck = started.min();
            let deadline = stuck.into_iter().chain(until).min();
            match self.wait(deadline)? {
                WaitResult::Stop => return Ok(Incoming::Stop),
                WaitResult::Ready => self.read_frame()?,
                WaitResult::TimedOut if stuck.is_some() && stuck == deadline => return Err(MuxError::Stuck),
                WaitResult::TimedOut => return Err(MuxError::Silent(timeout.unwrap_or_default())),
            }
        }
    }

    pub fn send(&mut self, message: &Message) -> Result<(), MuxError> {
        if message.payload.len() > MAX_MESSAGE {
            return Err(MuxError::TooLong(message.payload.len() as u64));
        }
        let mut bytes = Vec::with_capacity(MESSAGE_HEADER + message.payload.len());
        bytes.extend((message.payload.len() as u32).to_be_bytes());
        bytes.extend(message.call.to_be_bytes());
        bytes.extend([message.kind, 0]);
        bytes.extend(&message.payload);
        let (first, rest) = bytes.split_at(bytes.len().min(FIRST_FRAME));
        for part in [first, rest].into_iter().filter(|part| !part.is_empty()) {
            let mut frame = Vec::with_capacity(FRAME_HEADER + part.len());
            frame.extend(message.stream.to_be_bytes());
            frame.extend((part.len() as u32).to_be_bytes());
            frame.extend(part);
            self.socket.write_all(&frame).map_err(mux_error)?;
        }
        Ok(())
    }

    /// Takes a complete message out of the buffers.
    fn take_message(&mut self) -> Result<Option<Message>, MuxError> {
        for (stream, (buffers, since)) in &mut self.buffers {
            let mut header = [0; MESSAGE_HEADER];
            if buffers.len() < MESSAGE_HEADER {
                continue;
            }
            header.iter_mut().zip(buffers.iter()).for_each(|(into, byte)| *into = *byte);
            let [a, b, c, d, e, f, g, h, kind, _flags] = header;
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length > MAX_MESSAGE {
                return Err(MuxError::TooLong(length as u64));
            }
            if buffers.len() < MESSAGE_HEADER + length {
                continue;
            }
            let payload = buffers.drain(..MESSAGE_HEADER + length).skip(MESSAGE_HEADER).collect();
            *since = Instant::now();
            return Ok(Some(Message { stream: *stream, call: u32::from_be_bytes([e, f, g, h]), kind, payload }));
        }
        Ok(None)
    }

    /// Reads one frame. Unknown streams are ignored, as the protocol requires.
    fn read_frame(&mut self) -> Result<(), MuxError> {
        let until = Instant::now() + MESSAGE_TIMEOUT;
        let mut header = [0; FRAME_HEADER];
        self.fill(&mut header, until)?;
        let [a, b, c, d, e, f, g, h] = header;
        let (stream, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]) as usize);
        if length > MESSAGE_HEADER + MAX_MESSAGE {
            return Err(MuxError::TooLong(length as u64));
        }
        let mut part = vec![0; length];
        self.fill(&mut part, until)?;
        if let Some((buffers, since)) = self.buffers.get_mut(&stream) {
            if buffers.is_empty() {
                *since = Instant::now();
            }
            buffers.extend(part);
        }
        Ok(())
    }

    fn fill(&mut self, mut into: &mut [u8], until: Instant) -> Result<(), MuxError> {
        while !into.is_empty() {
            match self.wait(Some(until))? {
                // Complete a started frame before handling the stop signal.
                WaitResult::Ready | WaitResult::Stop => {}
                WaitResult::TimedOut => return Err(MuxError::Stuck),
            }
            // After the stop signal, `wait` returns at once, so the read needs the timeout.
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(MuxError::Stuck);
            }
            self.socket.set_read_timeout(Some(remaining))?;
            let got = self.socket.read(into).map_err(mux_error)?;
            if got == 0 {
                return Err(MuxError::Closed);
            }
            into = &mut into[got..];
        }
        Ok(())
    }

    fn wait(&self, until: Option<Instant>) -> Result<WaitResult, MuxError> {
        loop {
            let remaining = until.map(|until| until.saturating_duration_since(Instant::now()));
            let remaining = remaining.map(|remaining| Timespec {
                tv_sec: remaining.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: remaining.subsec_nanos().into(),
            });
            let mut on = [PollFd::new(&self.socket, PollFlags::IN), PollFd::from_borrowed_fd(self.stop, PollFlags::IN)];
            match poll(&mut on, remaining.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(io::Error::from(error).into()),
                Ok(0) => return Ok(WaitResult::TimedOut),
                Ok(_) if !on[1].revents().is_empty() => return Ok(WaitResult::Stop),
                Ok(_) => return Ok(WaitResult::Ready),
            }
        }
    }
}

enum WaitResult {
    Ready,
    Stop,
    TimedOut,
}

fn mux_error(error: io::Error) -> MuxError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => MuxError::Closed,
        io::ErrorKind::WouldBlock => MuxError::Stuck,
        _ => MuxError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Shutdown;
    use std::os::fd::AsFd;

    /// The messages in some bytes, and the error that ends them.
    fn read(bytes: &[u8]) -> (Vec<Message>, MuxError) {
        let (mut engine, plugin) = UnixStream::pair().unwrap();
        let (_write_end, stop) = UnixStream::pair().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || {
            let _ = engine.write_all(&bytes);
            let _ = engine.shutdown(Shutdown::Write);
            engine
        });
        let mut mux = Mux::new(plugin, stop.as_fd()).unwrap();
        let mut messages = Vec::new();
        let ended = loop {
            match mux.next(None) {
                Ok(Incoming::Message(message)) => messages.push(message),
                Ok(Incoming::Stop) => panic!("no signal was sent"),
                Err(why) => break why,
            }
        };
        drop(mux);
        writer.join().unwrap();
        (messages, ended)
    }

    fn frame(stream: u32, part: &[u8]) -> Vec<u8> {
        [&stream.to_be_bytes()[..], &(part.len() as u32).to_be_bytes(), part].concat()
    }

    #[test]
    fn frame_of_many_messages_takes_linear_time() {
        let began = Instant::now();
        let (messages, ended) = read(&frame(PLUGIN, &vec![0; MAX_MESSAGE]));
        assert_eq!(messages.len(), MAX_MESSAGE / MESSAGE_HEADER);
        assert!(matches!(ended, MuxError::Closed), "{ended}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_bytes_end_connection(bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..200)) {
            let (_, ended) = read(&bytes);
            prop_assert!(matches!(ended, MuxError::Closed | MuxError::TooLong(_)), "{}", ended);
        }

        #[test]
        fn messages_split_over_frames_are_joined(payload in prop::collection::vec(any::<u8>(), 0..300), cut in 1..40usize) {
            let packed: Vec<u8> = [&(payload.len() as u32).to_be_bytes()[..], &[0, 0, 0, 7, REQUEST, 0], &payload].concat();
            let bytes: Vec<u8> = packed.chunks(cut).flat_map(|part| [frame(PLUGIN, part), frame(5, part)].concat()).collect();
            let (messages, _) = read(&bytes);
            prop_assert_eq!(messages, [Message { stream: PLUGIN, call: 7, kind: REQUEST, payload }]);
        }
    }
}
