//! Why there are no metrics.

use mpu_host::exit::Exit;
use mpu_host::explain::Explain;
use std::io;
use std::path::{Path, PathBuf};

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// An address cannot be listened at.
    #[error("cannot listen at {address}")]
    Listen { address: String, source: io::Error },
    /// Systemd's sockets were asked for and there are none.
    #[error("systemd handed over no socket")]
    NoSocket,
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// Something else than a file has the name: a device would be replaced by a file.
    #[error("{} is not a file", path.display())]
    NoFile { path: PathBuf },
    /// The kernel gives no thread, timer or signal.
    #[error("cannot start the exporter")]
    Setup { source: io::Error },
}

impl Explain for MetricsError {
    fn code(&self) -> &'static str {
        match self {
            MetricsError::Listen { .. } => "cannot_listen",
            MetricsError::NoSocket => "no_socket",
            MetricsError::Write { .. } => "cannot_write",
            MetricsError::NoFile { .. } => "no_file",
            MetricsError::Setup { .. } => "cannot_start",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            MetricsError::Listen { source, .. } | MetricsError::Write { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Refused
            }
            MetricsError::NoFile { .. } => Exit::Refused,
            MetricsError::NoSocket => Exit::NotReady,
            MetricsError::Write { source, .. } if source.kind() == io::ErrorKind::NotFound => Exit::NotReady,
            _ => Exit::Failed,
        }
    }

    fn fix(&self) -> String {
        match self {
            MetricsError::Listen { source, address } if source.kind() == io::ErrorKind::AddrInUse => {
                format!("something listens there already: `ss -ltnxp` shows what; or choose another address than {address} with --listen")
            }
            MetricsError::Listen { .. } => "choose an address of this host with --listen".to_string(),
            MetricsError::NoSocket => {
                "start it through a systemd socket unit, or give an address with --listen".to_string()
            }
            MetricsError::Write { path, .. } => format!(
                "make the directory {} and let this user write there; it is what node_exporter got as --collector.textfile.directory",
                path.parent().unwrap_or(Path::new("/")).display()
            ),
            MetricsError::NoFile { .. } => {
                "name a file, e.g. --textfile /var/lib/prometheus/node-exporter/mpu.prom; --once alone prints the page".to_string()
            }
            MetricsError::Setup { .. } => "the system is short of threads or file descriptors: look at `ulimit -a`".to_string(),
        }
    }
}
