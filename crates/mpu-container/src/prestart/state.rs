//! A container's state on a hook's standard input.
//!
//! Source: OCI runtime specification, `runtime.md`, "State". Docker's runc of 17.03 wrote `bundlePath`.

use rustix::process::Pid;
use serde::Deserialize;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

/// Limit of a state, which has a few fields and the annotations.
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug)]
pub struct State {
    /// The container's first process, in our PID namespace.
    pub pid: Option<Pid>,
    /// The absolute path of the directory with config.json.
    pub bundle: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot read the standard input")]
    Read(#[source] io::Error),
    #[error("there is nothing on the standard input")]
    Empty,
    /// Not JSON, or a field has the wrong type.
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
    /// Reads the first JSON value of a stream, because a runtime may leave the stream open.
    pub fn read(input: impl Read) -> Result<State, StateError> {
        let mut values =
            serde_json::Deserializer::from_reader(BufReader::new(input.take(MAX_BYTES))).into_iter::<Raw>();
        let raw = values.next().ok_or(StateError::Empty)?.map_err(|error| match error.is_io() {
            true => StateError::Read(error.into()),
            false => StateError::Json(error),
        })?;
        let given = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let bundle = given(raw.bundle).or_else(|| given(raw.bundle_path)).unwrap_or_else(|| PathBuf::from("."));
        let bundle = std::path::absolute(&bundle).map_err(|source| StateError::NoDirectory { bundle, source })?;
        Ok(State { pid: raw.pid.filter(|pid| *pid > 0).and_then(Pid::from_raw), bundle })
    }

    /// Resolves a path of the specification, relative to the bundle. Removes `.` and double slashes, but not `..`, because that depends on
    /// links.
    pub fn within_bundle(&self, path: &str) -> PathBuf {
        let whole = self.bundle.join(Path::new(path));
        whole.components().filter(|part| *part != Component::CurDir).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that stays open.
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
