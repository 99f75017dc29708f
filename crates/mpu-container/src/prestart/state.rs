//! A container's state, as a hook receives it.
//!
//! Source: OCI runtime specification, `runtime.md`, "State"; before it, Docker's runc of 17.03 wrote
//! `bundlePath`.

use rustix::process::Pid;
use serde::Deserialize;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

/// More than any state: it holds a few fields and the annotations.
const LIMIT: u64 = 16 << 20;

#[derive(Debug)]
pub struct State {
    /// The container's first process, in our PID namespace.
    pub pid: Option<Pid>,
    /// The directory with config.json: absolute.
    pub bundle: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot read the standard input")]
    Read(#[source] io::Error),
    #[error("there is nothing on the standard input")]
    Empty,
    /// It is no JSON, or a field is not what it must be.
    #[error(transparent)]
    Json(serde_json::Error),
    #[error("the bundle '{}' is relative, and there is no working directory", bundle.display())]
    NoDirectory { bundle: PathBuf, source: io::Error },
    #[error("it has no pid")]
    NoProcess,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    pid: Option<i32>,
    bundle: Option<PathBuf>,
    bundle_path: Option<PathBuf>,
}

impl State {
    /// Reads the first JSON value of a stream, so that a runtime may leave its end open.
    pub fn read(input: impl Read) -> Result<State, StateError> {
        let mut values = serde_json::Deserializer::from_reader(BufReader::new(input.take(LIMIT))).into_iter::<Raw>();
        let raw = values.next().ok_or(StateError::Empty)?.map_err(|error| match error.is_io() {
            true => StateError::Read(error.into()),
            false => StateError::Json(error),
        })?;
        let given = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let bundle = given(raw.bundle).or_else(|| given(raw.bundle_path)).unwrap_or_else(|| PathBuf::from("."));
        let bundle = std::path::absolute(&bundle).map_err(|source| StateError::NoDirectory { bundle, source })?;
        Ok(State { pid: raw.pid.filter(|pid| *pid > 0).and_then(Pid::from_raw), bundle })
    }

    /// A path of the specification; a relative one begins at the bundle. Removes `.` and double slashes, but not `..`, whose meaning
    /// depends on links.
    pub fn within_bundle(&self, path: &str) -> PathBuf {
        let whole = self.bundle.join(Path::new(path));
        whole.components().filter(|part| *part != Component::CurDir).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A runtime that keeps its end open.
    struct Open;

    impl Read for Open {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("waited for more"))
        }
    }

    #[test]
    fn state_is_read_from_stream_without_end() {
        let state = State::read(br#"{"pid": 7, "bundle": "/b"}"#.chain(Open)).unwrap();
        assert_eq!((state.pid.map(Pid::as_raw_pid), state.bundle.to_str()), (Some(7), Some("/b")));
        let cut = State::read(br#"{"pid": 7,"#.chain(Open)).unwrap_err();
        assert!(matches!(&cut, StateError::Read(error) if error.to_string() == "waited for more"), "{cut:?}");
        assert!(matches!(State::read(io::empty()), Err(StateError::Empty)));
        assert!(matches!(State::read(&b"["[..]), Err(StateError::Json(_))));
    }
}
