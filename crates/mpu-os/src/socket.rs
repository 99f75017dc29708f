//! Connects, reads and writes Unix sockets without an endless wait.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect as connect_socket, socket_with};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Interval between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(5);
/// Attempts within any timeout but zero. On a starved host, a short timeout may be over before the second attempt.
const MIN_ATTEMPTS: u32 = 4;
/// Bytes of one read or write.
const PART_SIZE: usize = 4096;

/// Connects to a stream socket. While the queue of the other side is full, tries again until `timeout`, and [`MIN_ATTEMPTS`] times at
/// least. Zero means one attempt. (The standard library waits without limit.)
///
/// # Errors
/// `EAGAIN` (`WouldBlock`) if the queue stayed full, `InvalidInput` if no socket can have this path, else as connect(2).
pub fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let deadline = Instant::now() + timeout;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let address = SocketAddrUnix::new(path).map_err(|error| {
        let message = format!("{} cannot be the path of a socket (107 bytes at most): {error}", path.display());
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })?;
    let mut due_attempts = if timeout.is_zero() { 1 } else { MIN_ATTEMPTS };
    loop {
        due_attempts = due_attempts.saturating_sub(1);
        match connect_socket(&socket, &address) {
            Err(Errno::AGAIN) if due_attempts > 0 || Instant::now() < deadline => sleep(PAUSE),
            connected => break connected?,
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Reads to the end of a stream, at most `limit` bytes.
///
/// # Errors
/// `WouldBlock` if the other side has not closed its end, nor sent `limit` bytes, within `timeout`, however often it sends some.
pub fn read_to_end(stream: &UnixStream, limit: u64, timeout: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + timeout;
    let (mut bytes, mut stream) = (Vec::new(), stream.take(limit));
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        stream.get_ref().set_read_timeout(Some(remaining))?;
        let mut part = [0; PART_SIZE];
        match stream.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes all bytes.
///
/// # Errors
/// `WouldBlock` if the other side has not made room for them within `timeout`, however often it reads some.
pub fn write_all(mut stream: &UnixStream, mut bytes: &[u8], timeout: Duration) -> io::Result<()> {
    let deadline = Instant::now() + timeout;
    while !bytes.is_empty() {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        stream.set_write_timeout(Some(remaining))?;
        // The kernel splits a large write, and each piece has the whole timeout (`unix_stream_sendmsg` of net/unix/af_unix.c).
        match stream.write(&bytes[..bytes.len().min(PART_SIZE)]) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;

    /// A socket without accepts, and the connections that fill its queue.
    fn full(path: &Path) -> (UnixListener, Vec<UnixStream>) {
        let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(path).unwrap()).and_then(|()| listen(&socket, 0)).unwrap();
        let queued = std::iter::from_fn(|| connect(path, Duration::ZERO).ok()).collect();
        (UnixListener::from(socket), queued)
    }

    #[test]
    fn full_queue_ends_connect_after_timeout_and_attempts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (_listener, queued) = full(&path);
        assert!(!queued.is_empty());
        let began = Instant::now();
        let error = connect(&path, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= Duration::from_millis(50));
        // This timeout is over before the first attempt.
        let began = Instant::now();
        let error = connect(&path, Duration::from_nanos(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(began.elapsed() >= PAUSE * (MIN_ATTEMPTS - 1));
    }

    #[test]
    fn connect_takes_first_free_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (listener, _queued) = full(&path);
        let late = std::thread::spawn(move || connect(&path, Duration::from_secs(60)));
        sleep(Duration::from_millis(50));
        let _accepted = listener.accept().unwrap();
        let stream = late.join().unwrap().expect("a place");
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let error = io::Read::read(&mut { &stream }, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "reading waits");
    }

    #[test]
    fn read_ends_at_end_limit_or_timeout() {
        let pair = || UnixStream::pair().unwrap();
        let (mut sender, receiver) = pair();
        io::Write::write_all(&mut sender, &[7; 10_000]).unwrap();
        assert_eq!(read_to_end(&receiver, 9_000, Duration::from_secs(60)).unwrap(), [7; 9_000]);
        drop(sender);
        assert_eq!(read_to_end(&receiver, 9_000, Duration::from_secs(60)).unwrap(), [7; 1_000]);
        // Each byte would renew a timeout of one read.
        let (mut sender, receiver) = pair();
        let drips = std::thread::spawn(move || {
            for _ in 0..500 {
                let _ = io::Write::write(&mut sender, b"x");
                sleep(Duration::from_millis(10));
            }
        });
        let error = read_to_end(&receiver, u64::MAX, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(receiver);
        drips.join().unwrap();
    }

    #[test]
    fn write_ends_at_end_or_timeout() {
        let bytes = vec![7; 16 << 20];
        // Each read makes room, so it would renew a timeout of one write.
        for (pause, timeout, ended) in [(0, 60_000, Ok(())), (10, 200, Err(io::ErrorKind::WouldBlock))] {
            let (sender, mut receiver) = UnixStream::pair().unwrap();
            let reader = std::thread::spawn(move || {
                let (mut part, mut received) = (vec![0; 64 << 10], 0);
                while let Ok(read @ 1..) = receiver.read(&mut part) {
                    received += read;
                    sleep(Duration::from_millis(pause));
                }
                received
            });
            let written = write_all(&sender, &bytes, Duration::from_millis(timeout));
            assert_eq!(written.map_err(|error| error.kind()), ended);
            drop(sender);
            assert_eq!(reader.join().unwrap() == bytes.len(), ended.is_ok());
        }
    }

    #[test]
    fn missing_socket_is_error_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let kind = |path: &Path| connect(path, Duration::from_secs(60)).unwrap_err().kind();
        let dead = folder.path().join("dead");
        drop(UnixListener::bind(&dead).unwrap());
        assert_eq!(kind(&folder.path().join("none")), io::ErrorKind::NotFound);
        assert_eq!(kind(&dead), io::ErrorKind::ConnectionRefused);
        let long = folder.path().join("n".repeat(200));
        let error = connect(&long, Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let message = error.to_string();
        assert!(message.contains(long.to_str().unwrap()) && message.contains("name too long"), "{message}");
    }
}
