//! A check that cannot run is a failure, unless the servers that it needs are unreachable: then it is skipped.

use crate::apt;
use crate::guest::verdict::{Ending, Tally};

/// The result of a failed download: skipped if the servers are unreachable. A wrong checksum or a missing package is a failure.
pub fn ending(error: &anyhow::Error) -> Ending {
    if apt::is_unreachable(error) { Ending::Skip } else { Ending::Fail }
}

/// A tool, or nothing, counted as skipped or failed: see [`ending`].
pub fn available<T>(tally: &mut Tally, name: &str, tool: anyhow::Result<T>) -> Option<T> {
    tool.map_err(|error| tally.check(name, ending(&error), &format!("not to be had here: {error:#}"))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;
    use anyhow::anyhow;

    #[test]
    fn only_unreachable_tools_are_skipped() {
        let out_of_reach =
            apt::mark_if_unreachable(anyhow!("E: Could not connect"), |_| true).context("cannot fetch the index");
        for (error, outcome) in [(out_of_reach, Outcome::Passed), (anyhow!("Hash Sum mismatch"), Outcome::Failed)] {
            let mut tally = Tally::default();
            tally.check("another", Ending::Pass, "");
            assert!(available::<()>(&mut tally, "promtool", Err(error)).is_none());
            assert_eq!(tally.outcome(), outcome);
        }
    }
}
