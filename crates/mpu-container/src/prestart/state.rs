//! A container's state, as a hook receives it.
//!
//! Source: OCI runtime specification, `runtime.md`, "State"; before it, Docker's runc of 17.03 wrote
//! `bundlePath`.

use rustix::process::Pid;
use serde::Deserialize;
use std::io::{self, Read};
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
    /// Reads the first JSON value; what follows has no meaning.
    pub fn read(input: impl Read) -> Result<State, StateError> {
        let mut text = Vec::new();
        input.take(LIMIT).read_to_end(&mut text).map_err(StateError::Read)?;
        let mut values = serde_json::Deserializer::from_slice(&text).into_iter::<Raw>();
        let raw = values.next().ok_or(StateError::Empty)?.map_err(StateError::Json)?;
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

    fn read(text: &str) -> Result<State, StateError> {
        State::read(text.as_bytes())
    }

    #[test]
    fn states_old_and_new_are_read() {
        let state =
            read(r#"{"ociVersion":"1.2.0","id":"a","status":"created","pid":42,"bundle":"/b/","x":[1]} trailing"#);
        let state = state.expect("a state");
        assert_eq!((state.pid, state.bundle.as_path()), (Pid::from_raw(42), Path::new("/b/")));
        assert_eq!(read(r#"{"bundle":"","bundlePath":"/old"}"#).expect("a state").bundle, Path::new("/old"));
        assert!(read("{}").expect("a state").bundle.is_absolute());
        for pid in ["0", "-1", "null"] {
            assert_eq!(read(&format!(r#"{{"pid":{pid}}}"#)).expect("a state").pid, None);
        }
    }

    #[test]
    fn invalid_states_are_refused() {
        assert!(matches!(read(" "), Err(StateError::Empty)));
        for text in ["[]", "{", "1", r#"{"pid":"1"}"#, r#"{"pid":99999999999}"#, r#"{"bundle":1}"#] {
            assert!(matches!(read(text), Err(StateError::Json(_))), "{text}");
        }
    }

    #[test]
    fn root_is_the_bundles() {
        let state = read(r#"{"bundle":"/b/c"}"#).expect("a state");
        for (path, whole) in
            [("rootfs", "/b/c/rootfs"), ("./r//s/", "/b/c/r/s"), ("/abs/", "/abs"), ("../r", "/b/c/../r")]
        {
            assert_eq!(state.within_bundle(path).as_os_str(), whole, "{path}");
        }
    }
}
