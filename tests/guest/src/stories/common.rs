//! What most stories use, and what most say: that a container sees exactly its own processes.

pub(super) use std::time::{Duration, Instant};

pub(super) use anyhow::{anyhow, bail, ensure, Context, Result};

pub(super) use crate::answer::answer;
pub(super) use crate::callers::Callers;
pub(super) use crate::command::{must, run, Output};
pub(super) use crate::container::Container;
pub(super) use crate::engine::Engine;
pub(super) use crate::holder::Holder;
pub(super) use crate::nvctl::{self, Answer};
pub(super) use crate::processes;
pub(super) use crate::real::Real;
pub(super) use crate::scene::{sorted, Scene};
pub(super) use crate::stage::{unload_module, Stage};
pub(super) use crate::story::{once, Fault, Story, Without};
pub(super) use crate::supervisor;
pub(super) use crate::wait::until;

/// Where [`Stage::host_sees_threads`].
pub const THREADS_TO_THE_HOST: &str =
    "these drivers name a thread to the host, which an engine in user space does not change";

/// Lists longer than this are told by their differences.
const LEGIBLE: usize = 12;

/// A wrong answer unless what is shown are exactly the own PIDs, each once.
pub fn exactly(what: &str, shown: &[u32], own: &[u32]) -> Result<(), Fault> {
    if own.len() <= LEGIBLE {
        right!(shown == own, "{what} shows {shown:?}, the container's own are {own:?}");
    }
    let without = |pids: &[u32], others: &[u32]| {
        let left = pids.iter().filter(|pid| !others.contains(pid)).copied();
        left.take(LEGIBLE).collect::<Vec<_>>()
    };
    let (extra, missing) = (without(shown, own), without(own, shown));
    right!(
        shown == own,
        "{what} shows {} rows, the container's own are {}: {extra:?} too many, {missing:?} missing",
        shown.len(),
        own.len()
    );
    Ok(())
}

/// A wrong answer unless the list in a container has exactly these PIDs.
pub fn lists(container: &Container, what: &str, own: &[u32]) -> Result<(), Fault> {
    exactly(what, &container.ask(&["pids"])?.pids(), own)
}

/// The same of the scene's container `a`.
pub fn own_list(scene: &Scene, what: &str) -> Result<(), Fault> {
    lists(&scene.a, what, &scene.own())
}

/// As nvctl takes a list.
pub fn words(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// A wrong answer unless callers that spin were answered by their first list more often than that.
pub fn answered(text: &str, more_than: u64) -> Result<(), Fault> {
    let matched: u64 = text.lines().filter_map(|line| line.strip_prefix("list 0 matched ")?.parse::<u64>().ok()).sum();
    right!(matched > more_than, "only {matched} answers: {text}");
    Ok(())
}

pub fn nobody_inside(stage: &Stage) -> Result<(), Fault> {
    let inside = stage.said("inside");
    right!(inside == "0", "all callers have ended, and {inside} count as inside");
    Ok(())
}
