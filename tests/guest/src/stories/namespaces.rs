//! PID namespaces in PID namespaces: each level sees its own processes and those below, by its own numbers.

use crate::client::Client;
use crate::client::pids;
use crate::stories::common::*;

pub const STORIES: &[Story] = &[
    story!(namespaces_2_deep_show_own_numbers, [1];
        "Each level sees itself and the levels below by its own numbers; the innermost also by nvidia-smi.")
    .real(Real::Client)
    .every_client(),
    story!(namespaces_4_deep_show_own_numbers, [1];
        "The same, four deep."),
];

fn namespaces_2_deep_show_own_numbers(stage: &Stage) -> Result<(), Fault> {
    let levels = nest(2)?;
    every_level(&levels)?;
    // nvctl checked every level. The real client checks the innermost, too.
    let innermost = levels.last().context("no level")?;
    let rows = Client::through(innermost.enter_command(), &stage.client).table()?;
    check_pids("the innermost table", &pids(&rows), &[1])?;
    check!(rows[0].mib == Some(80), "the innermost process holds 80 MiB, the table shows {:?}", rows[0].mib);
    Ok(())
}

fn namespaces_4_deep_show_own_numbers(_: &Stage) -> Result<(), Fault> {
    every_level(&nest(4)?)
}

/// One level: its process 1 is a GPU process with two clients.
struct Level {
    _holder: Holder,
    /// Its process 1 in the init namespace.
    host_pid: u32,
    mib: u64,
}

impl Level {
    fn enter_command(&self) -> Vec<String> {
        crate::container::enter_command(self.host_pid)
    }
}

fn nest(depth: u64) -> Result<Vec<Level>> {
    let mut levels: Vec<Level> = Vec::new();
    for level in 1..=depth {
        let outermost = || supervisor::join_command().iter().map(|word| (*word).to_owned()).collect();
        let before: Vec<String> = levels.last().map_or_else(outermost, Level::enter_command);
        let each = (20 * level).to_string();
        let new = ["unshare", "-p", "-m", "-f", "--mount-proc", "gpu-hold", "--clients", "2", "--mem", each.as_str()];
        let holder = Holder::start(&behind(&before, &new), |_| Ok(0))?;
        let host_pid = processes::deepest_descendant(holder.started());
        let numbers = processes::ns_pids(host_pid).context("the process has ended")?;
        anyhow::ensure!(numbers.len() as u64 == level + 1, "level {level} has the numbers {numbers:?}");
        levels.push(Level { _holder: holder, host_pid, mib: 40 * level });
    }
    Ok(levels)
}

fn every_level(levels: &[Level]) -> Result<(), Fault> {
    for (at, level) in levels.iter().enumerate() {
        // The init namespace's PID comes first.
        let number =
            |below: &Level| processes::ns_pids(below.host_pid).and_then(|numbers| numbers.get(at + 1).copied());
        let own: Vec<u32> = levels[at..].iter().filter_map(number).collect();
        let list = nvctl::query(&level.enter_command(), "nvctl", &["pids"])?;
        check_pids(&format!("level {}", at + 1), &list.pids(), &sorted(own.iter().copied()))?;
        for (pid, below) in own.iter().zip(&levels[at..]) {
            let memory =
                nvctl::query(&level.enter_command(), "nvctl", &["pidinfo", &pid.to_string()])?.one("mem")? >> 20;
            check!(memory == below.mib, "level {} shows {memory} MiB of process {pid}, it holds {}", at + 1, below.mib);
        }
    }
    Ok(())
}
