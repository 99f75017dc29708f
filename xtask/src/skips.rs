//! Decides what may be skipped: a check that cannot be made is a failure, unless the servers that it needs are unreachable.

use crate::apt;
use crate::guest::verdict::{Ending, Tally};

/// Something without which checks cannot be made: skipped where no server that has it can be reached, a failure otherwise.
pub fn skip_or_fail(tally: &mut Tally, what: &str, error: &anyhow::Error) {
    let ending = if apt::is_unreachable(error) { Ending::Skip } else { Ending::Fail };
    tally.check(what, ending, &format!("not to be had here: {error:#}"));
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
        for (error, outcome) in [(out_of_reach, Outcome::Passed), (anyhow!("a wrong hash"), Outcome::Failed)] {
            let mut tally = Tally::default();
            tally.check("another", Ending::Pass, "");
            skip_or_fail(&mut tally, "promtool", &error);
            assert_eq!(tally.outcome(), outcome, "{error:#}");
        }
    }
}
