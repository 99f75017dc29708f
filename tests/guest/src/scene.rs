//! The scene of most stories: a busy GPU process on the host, and two containers with own processes, one by crun, one by runc. PIDs outside
//! start high, so that a foreign PID is never one of a container's own.

use anyhow::Result;

use crate::container::Container;
use crate::holder::Holder;
use crate::processes;
use crate::real;

/// The first host PID of a scene.
const OUTSIDE: u32 = 20_000;

pub struct Scene {
    /// On the host: 300 MiB, all kinds of sessions, accounted.
    pub foreign: Holder,
    /// In `a`: two clients of 40 MiB, two encoder sessions and a capture session. Drivers from 535.113 on list it twice.
    pub first: Holder,
    /// In `a`: 43 MiB; its client was made by a second thread, which lives. Drivers 535.113 to 570.144 list the thread.
    pub second: Holder,
    /// In `b`: two clients of 50 MiB, an encoder session and a capture session.
    pub other: Holder,
    pub a: Container,
    pub b: Container,
}

impl Scene {
    /// Creates it for a client's release, on a simulated driver or a real one.
    pub fn create(client: &str, is_real: bool) -> Result<Self> {
        Self::create_from(client, is_real, OUTSIDE)
    }

    pub fn create_from(client: &str, is_real: bool, outside: u32) -> Result<Self> {
        processes::set_next_host_pid(outside)?;
        let foreign = Holder::on_host(&["--acct", "--mem", "300", "--util", "40", "--enc", "--fbc"])?;
        let a = Container::start("crun", "a", client)?;
        let b = Container::start("runc", "b", client)?;
        let first = a.hold(&["--mem", "40", "--clients", "2", "--util", "30", "--enc=2", "--fbc"])?;
        let other = b.hold(&["--mem", "50", "--clients", "2", "--util", "10", "--enc", "--fbc"])?;
        let second = a.hold(&["--mem", "43", "--thread", "--util", "20"])?;
        let busy = [(&foreign, 40), (&first, 30), (&other, 10), (&second, 20)];
        if is_real {
            // With the simulated driver gpu-hold sets its own utilisation.
            real::set_samples(&busy.map(|(holder, percent)| (holder.host_pid, percent)))?;
        }
        Ok(Self { foreign, first, second, other, a, b })
    }

    /// The PIDs of container `a`'s GPU processes, in its namespace.
    pub fn own(&self) -> Vec<u32> {
        sorted([self.first.view_pid, self.second.view_pid])
    }

    /// The host PIDs of all GPU processes.
    pub fn host_pids(&self) -> Vec<u32> {
        sorted([self.foreign.host_pid, self.first.host_pid, self.second.host_pid, self.other.host_pid])
    }
}

pub fn sorted(pids: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut pids: Vec<u32> = pids.into_iter().collect();
    pids.sort_unstable();
    pids
}
