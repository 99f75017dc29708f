//! Addresses of the exporter, and their sockets.

use super::error::MetricsError;
use mpu_os::socket::connect;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// The default address. Prometheus' list of exporters' ports (9100 to 9999) is full, and asks others to stay out of that range.
pub const DEFAULT: &str = "127.0.0.1:19567";

/// An address to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
    /// The sockets that systemd hands over.
    Systemd,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        if text == "systemd" {
            return Ok(Address::Systemd);
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return match Path::new(path).is_absolute() {
                true => Ok(Address::Unix(PathBuf::from(path))),
                false => Err("the path of a socket must begin with /".to_string()),
            };
        }
        text.parse().map(Address::Tcp).map_err(|_| {
            format!("not an address: wanted is IP:PORT ({DEFAULT}, 0.0.0.0:19567, [::]:19567), unix:/PATH or systemd")
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Systemd => f.write_str("systemd"),
        }
    }
}

/// A listening socket. Dropping it removes its file, if it created one.
#[derive(Debug)]
pub enum Socket {
    Tcp(TcpListener),
    /// In the file system. The path is none for a socket of systemd's.
    Unix(UnixListener, Option<SocketPath>),
}

/// The file of a socket, removed on drop.
#[derive(Debug)]
pub struct SocketPath(PathBuf);

impl Drop for SocketPath {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Socket {
    /// The actual address: port 0 becomes a port.
    pub fn address(&self) -> String {
        match self {
            Socket::Tcp(listener) => listener.local_addr().map(|a| a.to_string()).unwrap_or_default(),
            Socket::Unix(_, Some(SocketPath(path))) => format!("unix:{}", path.display()),
            Socket::Unix(_, None) => "a socket of systemd's".to_string(),
        }
    }
}

/// Opens an address. The sockets are non-blocking.
pub fn open(address: &Address) -> Result<Vec<Socket>, MetricsError> {
    let opened = match address {
        Address::Tcp(at) => tcp(*at, TcpListener::bind).map(|listener| vec![Socket::Tcp(listener)]),
        Address::Unix(path) => unix(path).map(|listening| vec![listening]),
        Address::Systemd => inherited(),
    };
    let failed = |source| MetricsError::Listen { address: address.to_string(), source };
    let opened = opened.map_err(failed)?;
    if opened.is_empty() {
        return Err(MetricsError::NoSocket);
    }
    for listening in &opened {
        let set = match listening {
            Socket::Tcp(listener) => listener.set_nonblocking(true),
            Socket::Unix(listener, _) => listener.set_nonblocking(true),
        };
        set.map_err(failed)?;
    }
    Ok(opened)
}

/// Binds an address. `[::]` includes IPv4; on a host without IPv6 it becomes `0.0.0.0`.
fn tcp<T>(at: SocketAddr, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    match bind(at) {
        Err(error) if at.ip() == Ipv6Addr::UNSPECIFIED && lacks_ipv6(&error) => {
            bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, at.port())))
        }
        bound => bound,
    }
}

/// The kernel has no IPv6 (`ipv6.disable=1`), or no address (`net.ipv6.conf.all.disable_ipv6=1`).
fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

fn unix(path: &Path) -> io::Result<Socket> {
    let found = std::fs::symlink_metadata(path).ok().map(|meta| meta.file_type().is_socket());
    if found == Some(false) {
        // bind(2) would report an address in use.
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file is at that path"));
    }
    // A killed exporter leaves its socket file behind.
    if found == Some(true) && connect(path, Duration::ZERO).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let socket_path = SocketPath(path.to_path_buf());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(Socket::Unix(listener, Some(socket_path)))
}

fn inherited() -> io::Result<Vec<Socket>> {
    let mut sockets = listenfd::ListenFd::from_env();
    let mut out = Vec::new();
    for index in 0..sockets.len() {
        // For a socket of another kind, the second call's error names the descriptor.
        match sockets.take_tcp_listener(index) {
            Ok(Some(listener)) => out.push(Socket::Tcp(listener)),
            _ => out.extend(sockets.take_unix_listener(index)?.map(|listener| Socket::Unix(listener, None))),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::Explain;

    #[test]
    fn addresses_are_read_and_written() {
        for text in [DEFAULT, "0.0.0.0:0", "[::]:19567", "unix:/run/mpu/metrics.sock", "systemd"] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        for text in ["", "localhost", "127.0.0.1", ":19567", "unix:relative", "tcp:1.2.3.4:5"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn wildcard_address_binds_available_ip_families() {
        let bind_twice = |at: &str, errno: i32| {
            let tried = std::cell::RefCell::new(Vec::new());
            let bound = tcp(at.parse().expect("an address"), |at| {
                tried.borrow_mut().push(at.to_string());
                if at.is_ipv6() { Err(io::Error::from_raw_os_error(errno)) } else { Ok(()) }
            });
            (bound.map_err(|error| error.raw_os_error()), tried.into_inner())
        };
        let both = || vec!["[::]:19567".to_string(), "0.0.0.0:19567".to_string()];
        assert_eq!(bind_twice("[::]:19567", libc::EAFNOSUPPORT), (Ok(()), both()));
        assert_eq!(bind_twice("[::]:19567", libc::EADDRNOTAVAIL), (Ok(()), both()));
        assert_eq!(bind_twice("[::]:19567", libc::EADDRINUSE), (Err(Some(libc::EADDRINUSE)), both()[..1].to_vec()));
        let other = bind_twice("[::1]:19567", libc::EADDRNOTAVAIL);
        assert_eq!(other, (Err(Some(libc::EADDRNOTAVAIL)), vec!["[::1]:19567".to_string()]), "one that was named");
        let open = open(&"[::]:0".parse().expect("an address")).expect("open");
        let port = open[0].address().rsplit(':').next().and_then(|port| port.parse::<u16>().ok()).expect("a port");
        std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("IPv4 reaches it");
    }

    #[test]
    fn only_dead_socket_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("metrics.sock");
        let address = Address::Unix(path.clone());
        drop(UnixListener::bind(&path).expect("a socket left behind"));
        // A child of another test inherits the socket until it executes its program.
        let began = std::time::Instant::now();
        let first = loop {
            match open(&address) {
                Err(_) if began.elapsed().as_secs() < 5 => std::thread::sleep(std::time::Duration::from_millis(20)),
                done => break done.expect("replaced"),
            }
        };
        let error = open(&address).expect_err("in use");
        assert!(matches!(error, MetricsError::Listen { .. }), "{error:?}");
        assert!(path.exists(), "the refusal took nothing away");
        drop(first);
        assert!(!path.exists(), "the end takes it away");
    }

    #[test]
    fn file_is_never_replaced() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = open(&Address::Unix(file.path().to_path_buf())).expect_err("a file");
        assert!(error.fix().starts_with("move it away"), "{}", error.fix());
        assert!(file.path().exists());
    }
}
