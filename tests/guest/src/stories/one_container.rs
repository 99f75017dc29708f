//! One container on a GPU that others use, too.

use crate::client::pids;
use crate::right;
use crate::stage::Stage;
use crate::story::{Fault, Story, Without};

/// The table shows exactly the container's processes, by the container's PIDs, with their memory.
pub const SEES_ITS_OWN_PROCESSES: Story = Story {
    name: "container_sees_its_own_processes",
    without: |stage| match stage.era {
        0 => Without::Wrong("shows []"),
        _ => Without::Wrong("the table shows"),
    },
    run: sees_its_own_processes,
};

fn sees_its_own_processes(stage: &Stage) -> Result<(), Fault> {
    let _foreign = stage.hold(&["--mem", "300"])?;
    let container = stage.container("own")?;
    // Two clients of one process, which releases from 535 on list twice; and one whose client a second thread made.
    let first = container.hold(&["--mem", "40", "--clients", "2"])?;
    let second = container.hold(&["--mem", "43", "--thread"])?;
    let rows = container.client().table()?;
    let mut own = vec![first.inside, second.inside];
    own.sort_unstable();
    right!(pids(&rows) == own, "the table shows {:?}, the container's own are {own:?}", pids(&rows));
    let shown = |pid| rows.iter().find(|row| row.pid == pid).and_then(|row| row.mib);
    right!(
        shown(first.inside) == Some(80),
        "process {} holds 80 MiB, the table shows {:?}",
        first.inside,
        shown(first.inside)
    );
    right!(
        shown(second.inside) == Some(43),
        "process {} holds 43 MiB, the table shows {:?}",
        second.inside,
        shown(second.inside)
    );
    Ok(())
}
