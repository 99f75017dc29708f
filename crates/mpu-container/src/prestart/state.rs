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
