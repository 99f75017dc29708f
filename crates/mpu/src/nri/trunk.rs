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

/// Requests of the engine.
pub const PLUGIN: u32 = 1;
/// Requests to the engine.
pub const RUNTIME: u32 = 2;

pub const REQUEST: u8 = 1;
pub const RESPONSE: u8 = 2;

/// The longest message (`messageLengthMax`).
const LONGEST: usize = 4 << 20;
const HEADER: usize = 10;
const FRAME_HEADER: usize = 8;
/// The buffer in which the engine's reader takes a frame, unless it waits for a longer one.
const FIRST_FRAME: usize = 4096;
/// How long a frame or message may take once it has begun. An engine writes it at once.
const UNDER_WAY: Duration = Duration::from_secs(5);

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
pub enum TrunkError {
    /// The engine closed the connection.
    #[error("the container engine closed the connection")]
    Closed,
    #[error("the connection to the container engine failed")]
    Io(#[from] io::Error),
    /// The time limit passed without a message.
    #[error("the container engine did not answer in {} seconds", .0.as_secs())]
    Silent(Duration),
    /// A message did not become complete.
    #[error("the container engine sent a part of a message and then nothing for {} seconds", UNDER_WAY.as_secs())]
    Stuck,
    /// The message is too long.
    #[error("the container engine announced {0} bytes; NRI's messages have {LONGEST} at most")]
    TooLong(u64),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    Message(Message),
    /// A signal asked this process to end.
    Stop,
}

pub struct Trunk<'a> {
    socket: UnixStream,
    stop: BorrowedFd<'a>,
    /// Incomplete messages of each stream, and when each began. A queue: many short messages in one long frame cost no more than
    /// others.
    buffers: HashMap<u32, (VecDeque<u8>, Instant)>,
}

impl<'a> Trunk<'a> {
    /// Opens a trunk over a socket. A readable `stop` ends it.
    pub fn new(socket: UnixStream, stop: BorrowedFd<'a>) -> Result<Trunk<'a>, TrunkError> {
        socket.set_write_timeout(Some(UNDER_WAY))?;
        Ok(Trunk {
            socket,
            stop,
            buffers: [PLUGIN, RUNTIME].map(|stream| (stream, (VecDeque::new(), Instant::now()))).into(),
        })
    }

    /// The next message within `patience`, or without limit.
    pub fn next(&mut self, patience: Option<Duration>) -> Result<Came, TrunkError> {
        let until = patience.map(|patience| Instant::now() + patience);
        loop {
            if let Some(message) = self.whole()? {
                return Ok(Came::Message(message));
            }
            // A started message must end in time, also without `patience`.
            let begun =
                self.buffers.values().filter(|(buffers, _)| !buffers.is_empty()).map(|(_, since)| *since + UNDER_WAY);
            let stuck = begun.min();
            let deadline = stuck.into_iter().chain(until).min();
            match self.wait(deadline)? {
                Waited::Stop => return Ok(Came::Stop),
                Waited::Ready => self.frame()?,
                Waited::Late if stuck.is_some() && stuck == deadline => return Err(TrunkError::Stuck),
                Waited::Late => return Err(TrunkError::Silent(patience.unwrap_or_default())),
            }
        }
    }

    pub fn send(&mut self, message: &Message) -> Result<(), TrunkError> {
        if message.payload.len() > LONGEST {
            return Err(TrunkError::TooLong(message.payload.len() as u64));
        }
        let mut bytes = Vec::with_capacity(HEADER + message.payload.len());
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
            self.socket.write_all(&frame).map_err(ended)?;
        }
        Ok(())
    }

    /// Takes a complete message out of the buffers.
    fn whole(&mut self) -> Result<Option<Message>, TrunkError> {
        for (stream, (buffers, since)) in &mut self.buffers {
            let mut header = [0; HEADER];
            if buffers.len() < HEADER {
                continue;
            }
            header.iter_mut().zip(buffers.iter()).for_each(|(into, byte)| *into = *byte);
            let [a, b, c, d, e, f, g, h, kind, _flags] = header;
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            if length > LONGEST {
                return Err(TrunkError::TooLong(length as u64));
            }
            if buffers.len() < HEADER + length {
                continue;
            }
            let payload = buffers.drain(..HEADER + length).skip(HEADER).collect();
            *since = Instant::now();
            return Ok(Some(Message { stream: *stream, call: u32::from_be_bytes([e, f, g, h]), kind, payload }));
        }
        Ok(None)
    }

    /// Reads one frame. Unknown streams are ignored, as the protocol requires.
    fn frame(&mut self) -> Result<(), TrunkError> {
        let until = Instant::now() + UNDER_WAY;
        let mut header = [0; FRAME_HEADER];
        self.fill(&mut header, until)?;
        let [a, b, c, d, e, f, g, h] = header;
        let (stream, length) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]) as usize);
        if length > HEADER + LONGEST {
            return Err(TrunkError::TooLong(length as u64));
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

    fn fill(&mut self, mut into: &mut [u8], until: Instant) -> Result<(), TrunkError> {
        while !into.is_empty() {
            match self.wait(Some(until))? {
                // A started frame is completed before the signal to end is handled.
                Waited::Ready | Waited::Stop => {}
                Waited::Late => return Err(TrunkError::Stuck),
            }
            // After the signal nothing else is waited for above.
            let remaining = until.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(TrunkError::Stuck);
            }
            self.socket.set_read_timeout(Some(remaining))?;
            let got = self.socket.read(into).map_err(ended)?;
            if got == 0 {
                return Err(TrunkError::Closed);
            }
            into = &mut into[got..];
        }
        Ok(())
    }

    fn wait(&self, until: Option<Instant>) -> Result<Waited, TrunkError> {
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
                Ok(0) => return Ok(Waited::Late),
                Ok(_) if !on[1].revents().is_empty() => return Ok(Waited::Stop),
                Ok(_) => return Ok(Waited::Ready),
            }
        }
    }
}

enum Waited {
    Ready,
    Stop,
    Late,
}

fn ended(error: io::Error) -> TrunkError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => TrunkError::Closed,
        io::ErrorKind::WouldBlock => TrunkError::Stuck,
        _ => TrunkError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Shutdown;
    use std::os::fd::AsFd;

    /// The messages in some bytes, and the error that ends them.
    fn read(bytes: &[u8]) -> (Vec<Message>, TrunkError) {
        let (mut engine, plugin) = UnixStream::pair().unwrap();
        let (_told, stop) = UnixStream::pair().unwrap();
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || {
            let _ = engine.write_all(&bytes);
            let _ = engine.shutdown(Shutdown::Write);
            engine
        });
        let mut trunk = Trunk::new(plugin, stop.as_fd()).unwrap();
        let mut messages = Vec::new();
        let ended = loop {
            match trunk.next(None) {
                Ok(Came::Message(message)) => messages.push(message),
                Ok(Came::Stop) => panic!("no signal was sent"),
                Err(why) => break why,
            }
        };
        drop(trunk);
        writer.join().unwrap();
        (messages, ended)
    }

    fn frame(stream: u32, part: &[u8]) -> Vec<u8> {
        [&stream.to_be_bytes()[..], &(part.len() as u32).to_be_bytes(), part].concat()
    }

    #[test]
    fn frame_of_many_messages_takes_linear_time() {
        let began = Instant::now();
        let (messages, ended) = read(&frame(PLUGIN, &vec![0; LONGEST]));
        assert_eq!(messages.len(), LONGEST / HEADER);
        assert!(matches!(ended, TrunkError::Closed), "{ended}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_comes_ends_with_reason(bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), any::<u8>()], 0..200)) {
            let (_, ended) = read(&bytes);
            prop_assert!(matches!(ended, TrunkError::Closed | TrunkError::TooLong(_)), "{}", ended);
        }

        #[test]
        fn messages_come_whole_however_they_are_cut(payload in prop::collection::vec(any::<u8>(), 0..300), cut in 1..40usize) {
            let packed: Vec<u8> = [&(payload.len() as u32).to_be_bytes()[..], &[0, 0, 0, 7, REQUEST, 0], &payload].concat();
            let bytes: Vec<u8> = packed.chunks(cut).flat_map(|part| [frame(PLUGIN, part), frame(5, part)].concat()).collect();
            let (messages, _) = read(&bytes);
            prop_assert_eq!(messages, [Message { stream: PLUGIN, call: 7, kind: REQUEST, payload }]);
        }
    }
}
