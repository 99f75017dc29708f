//! Why there are no metrics.

use mpu_host::exit::Exit;
use mpu_host::explain::{Explain, Facts};
use std::io;
use std::path::{Path, PathBuf};

/// Why `mpu metrics` failed.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// An address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen { address: String, source: io::Error },
    /// Sockets of systemd are configured, and there are none.
    #[error("systemd handed over no socket")]
    NoSocket,
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The path is no regular file: writing would replace a device by a file.
    #[error("{} is not a file", path.display())]
    NoFile { path: PathBuf },
    /// The kernel gives no thread, timer or signal.
    #[error("cannot start the exporter")]
    Setup { source: io::Error },
}

impl Explain for MetricsError {
    fn facts(&self) -> Facts {
        use io::ErrorKind::{AddrInUse, AlreadyExists, NotFound, PermissionDenied};
        match self {
            MetricsError::Listen { source, address } => {
                let exit = if source.kind() == PermissionDenied { Exit::Refused } else { Exit::Failed };
                let fix = match source.kind() {
                    AddrInUse => format!(
                        "something listens there already: `ss -ltnxp` shows what; or choose another address than {address} with --listen"
                    ),
                    AlreadyExists => "move it away, or choose another path with --listen".to_string(),
                    _ => "choose an address of this host with --listen".to_string(),
                };
                ("cannot_listen", exit, fix)
            }
            MetricsError::NoSocket => {
                let fix = "start it through a systemd socket unit, or give an address with --listen";
                ("no_socket", Exit::NotReady, fix.to_string())
            }
            MetricsError::Write { source, path } => {
                let exit = match source.kind() {
                    PermissionDenied => Exit::Refused,
                    NotFound => Exit::NotReady,
                    _ => Exit::Failed,
                };
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let fix = format!(
                    "make the directory {} and let this user write there; it is what node_exporter got as --collector.textfile.directory",
                    folder.display()
                );
                ("cannot_write", exit, fix)
            }
            MetricsError::NoFile { .. } => {
                let fix = "name a file, e.g. --textfile /var/lib/prometheus/node-exporter/mpu.prom; --once alone prints the page";
                ("no_file", Exit::Refused, fix.to_string())
            }
            MetricsError::Setup { .. } => {
                let fix = "the system is short of threads or file descriptors: look at `ulimit -a`";
                ("cannot_start", Exit::Failed, fix.to_string())
            }
        }
    }
}
