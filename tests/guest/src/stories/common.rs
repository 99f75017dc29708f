//! What most stories say: that a container sees exactly its own processes, and that a story is told once for each era.

use crate::stage::Stage;
use crate::story::{Fault, Without};

/// Lists longer than this are told by their differences.
const LEGIBLE: usize = 12;

/// A wrong answer unless what is shown are exactly the own PIDs, each once.
pub fn exactly(what: &str, shown: &[u32], own: &[u32]) -> Result<(), Fault> {
    if own.len() <= LEGIBLE {
        crate::right!(shown == own, "{what} shows {shown:?}, the container's own are {own:?}");
    }
    let without = |pids: &[u32], others: &[u32]| {
        let left = pids.iter().filter(|pid| !others.contains(pid)).copied();
        left.take(LEGIBLE).collect::<Vec<_>>()
    };
    let (extra, missing) = (without(shown, own), without(own, shown));
    crate::right!(
        shown == own,
        "{what} shows {} rows, the container's own are {}: {extra:?} too many, {missing:?} missing",
        shown.len(),
        own.len()
    );
    Ok(())
}

/// For stories that nvctl alone tells: once for each era, and not for each client again.
pub fn once(stage: &Stage, without: Without) -> Without {
    if stage.first_of_era {
        without
    } else {
        Without::Moot("no client of NVIDIA's takes part: played with the era's first client")
    }
}
