//! Reads an engine's state, in one form for all engines.

use super::{Engine, module::state};
use crate::module::record::Record;
use mpu_host::explain::Explained;
use mpu_host::host::Host;
use mpu_host::phase::Phase;
use mpu_notify::client;
pub use mpu_notify::client::Cost;

/// An engine that is up, or was loaded and refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub engine: Engine,
    pub version: String,
    pub state: Phase,
    /// The driver's function that could not be redirected, and the kernel's errno, if that is why it refused.
    pub refused: Option<(String, i32)>,
    pub inside: u64,
    /// Callers whose task died inside the driver, if the engine counts them.
    pub orphans: Option<u64>,
    /// Whether it uses the caller's copy of an argument, if there are two copies now.
    pub claimed: Option<bool>,
    /// Whether function tracing, which its redirects need, is on; none if it has no redirects.
    pub tracing: Option<bool>,
    /// Seconds since 1970 at which `mpu up` raised it.
    pub since: Option<u64>,
    /// The containers that it serves, if it counts them.
    pub containers: Option<u64>,
    /// Calls without PIDs that it passed on to the driver, if such calls reach it.
    pub forwarded: Option<u64>,
    /// How often a new process replaced a dead one, if it has processes.
    pub restarts: Option<u64>,
    /// Its cost by container, if it accounts by container.
    pub costs: Vec<Cost>,
    pub translated: Vec<(String, u64)>,
    /// Calls not translated in the usual way, by reason.
    pub passed: Vec<(String, u64)>,
}

/// Every engine that is up on the host.
pub fn all(host: &Host) -> Result<Vec<Observed>, Explained> {
    let observed = Engine::ALL.iter().map(|engine| observe(*engine, host));
    observed.filter_map(Result::transpose).collect()
}

/// Reads one engine; none if it is not up.
pub fn observe(engine: Engine, host: &Host) -> Result<Option<Observed>, Explained> {
    match engine {
        Engine::Module => module(host),
        Engine::Notify => notify(host),
    }
}

fn notify(host: &Host) -> Result<Option<Observed>, Explained> {
    let Some(state) = client::state(host)? else { return Ok(None) };
    Ok(Some(Observed {
        engine: Engine::Notify,
        version: state.version,
        state: state.state,
        refused: None,
        inside: state.inside,
        orphans: None,
        claimed: None,
        tracing: None,
        since: Some(state.since),
        containers: Some(state.containers.len() as u64),
        forwarded: Some(state.passed_on),
        restarts: Some(state.restarts),
        costs: state.costs,
        translated: state.translated.into_iter().collect(),
        passed: state.passed.into_iter().collect(),
    }))
}

fn module(host: &Host) -> Result<Option<Observed>, Explained> {
    let Some(state) = state::read(host)? else { return Ok(None) };
    // The module may be unloaded between the two reads.
    let Some(counters) = state::read_counters(host)? else { return Ok(None) };
    let is_old = state.abi == "1";
    Ok(Some(Observed {
        engine: Engine::Module,
        version: state.version,
        state: state.phase,
        refused: state.refused.map(|refused| (refused.symbol, refused.errno)),
        inside: state.inside,
        orphans: (!is_old).then_some(state.orphans),
        claimed: state.argument.map(|argument| argument.errno.is_some()),
        tracing: Some(!host.ftrace_disabled()),
        since: Record::read(host).map(|record| record.since),
        containers: None,
        forwarded: None,
        restarts: None,
        costs: Vec::new(),
        translated: counters.translated,
        passed: counters.passed,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;
    use mpu_notify::fake::{self, FakeSupervisor};

    #[test]
    fn running_supervisor_yields_one_row() {
        let fake = FakeHost::in_order();
        let state = fake::state(&["a", "b"]);
        let supervisor = FakeSupervisor::on(&fake, state.clone());
        let rows = all(&fake.host()).expect("no error");
        let [row] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((row.engine, &row.state, &row.version), (Engine::Notify, &Phase::Armed, &state.version));
        assert_eq!((row.inside, row.since, row.containers, row.forwarded), (1, Some(state.since), Some(2), Some(1234)));
        assert_eq!(row.costs, state.costs);
        assert_eq!(row.translated, [("GPU_GET_PIDS".to_string(), 7)]);
        assert_eq!(row.passed, [("exempt".to_string(), 2), ("no_memory".to_string(), 0)]);
        fake.write("/sys/module/mpu/parameters/state", state::ARMED);
        fake.write("/sys/module/mpu/parameters/counters", "translated.GPU_GET_PIDS=7\n");
        let engines: Vec<Engine> = all(&fake.host()).expect("no error").iter().map(|row| row.engine).collect();
        assert_eq!(engines, Engine::ALL, "each that is up has its row");
        drop(supervisor);
        assert_eq!(all(&fake.host()).expect("no error").len(), 1);
    }

    #[test]
    fn stopped_engines_yield_no_rows() {
        assert_eq!(all(&FakeHost::in_order().host()).expect("no error"), []);
    }

    #[test]
    fn loaded_module_yields_one_row() {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", "version=0.1.0\nstate=refused\nrefused=os_is_init_ns:-16\n");
        fake.write("/sys/module/mpu/parameters/counters", "translated.GPU_GET_PIDS=7\npassed.no_memory=2\n");
        let rows = all(&fake.host()).expect("no error");
        let [row] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!((row.engine, &row.state, row.version.as_str()), (Engine::Module, &Phase::Refused, "0.1.0"));
        assert_eq!(row.refused, Some(("os_is_init_ns".to_string(), 16)));
        assert_eq!(row.translated, [("GPU_GET_PIDS".to_string(), 7)]);
        assert_eq!(row.passed, [("no_memory".to_string(), 2)]);
        assert_eq!((row.orphans, row.claimed, row.tracing), (None, None, Some(true)), "format 1 does not say");
        fake.write("/sys/module/mpu/parameters/state", state::HELD);
        fake.write("/proc/sys/kernel/ftrace_enabled", "0\n");
        let rows = all(&fake.host()).expect("no error");
        assert_eq!((rows[0].orphans, rows[0].claimed, rows[0].tracing), (Some(1), Some(true), Some(false)));
        fake.write("/sys/module/mpu/parameters/state", state::PLACED);
        let rows = all(&fake.host()).expect("no error");
        assert_eq!((&rows[0].state, rows[0].orphans, rows[0].claimed), (&Phase::Placed, Some(0), Some(false)));
    }

    #[test]
    fn malformed_module_state_is_error() {
        let fake = FakeHost::in_order();
        fake.write("/sys/module/mpu/parameters/state", "version=1\nstate=refused\n");
        assert!(all(&fake.host()).is_err());
    }
}
