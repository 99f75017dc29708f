//! The stage of a story: one driver, simulated or real, one client release, one engine or none. Loads and unloads them.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use mpu_plan::Row;

use crate::client::Client;
use crate::command::run_ok;
use crate::container::Container;
use crate::engine::Engine;
use crate::kernel_log;
use crate::real::{self, Loaded, Real};
use crate::scene::Scene;
use crate::supervisor::{self, Supervisor};
use crate::wait::unload_unused;

const POLICY: &str = "/sys/module/mpu/parameters/policy";

/// Parameters of the simulated driver that are off between stories.
const KNOBS: [&str; 6] = ["bypass", "client_allocs", "guarded", "overcounts", "stale", "ghosts"];

/// Suffix of an era: the simulated driver as of 615.
const NEWEST: char = 'n';

/// A story's access to its stage.
pub struct Stage {
    /// The driver's era: 0 to 4.
    pub era: u32,
    /// The driver's era as the plan has it; `1f` is era 1 behind the older entry symbol, `4n` era 4 as of 615, `1@550.163.01` a real driver of
    /// that release.
    pub era_name: String,
    /// The last loaded driver with its parameters; empty before the first load.
    driver: RefCell<String>,
    real: Cell<Option<Loaded>>,
    /// The release of nvidia-smi and NVML, such as `550.163.01`.
    pub client: String,
    /// Whether the client starts on the real driver; set at the first try.
    client_starts: OnceCell<bool>,
    pub engine: Engine,
    /// Whether this client is the era's first in the plan: stories without NVIDIA's client run once per era.
    pub first_of_era: bool,
    pub reloads: u32,
    /// The processes that many stories share. The first story makes them.
    scene: RefCell<Option<Rc<Scene>>>,
    /// The engine in user space, while it is up.
    supervisor: RefCell<Option<Supervisor>>,
    /// Whether the running story expects an oops of the driver.
    expects_oops: Cell<bool>,
    /// Whether an oops happened: lockdep is off from then on.
    had_oops: Cell<bool>,
}

impl Stage {
    /// The stage of a row with one of its engines; nothing is loaded yet.
    pub fn new(row: &Row, engine: Engine, first_of_era: bool) -> Result<Self> {
        let number = row.era.split('@').next().unwrap_or_default();
        Ok(Stage {
            era: number.trim_end_matches(['f', NEWEST]).parse().context("an era is a number")?,
            era_name: row.era.clone(),
            driver: RefCell::default(),
            real: Cell::new(None),
            client: row.client.clone(),
            client_starts: OnceCell::new(),
            engine,
            first_of_era,
            reloads: row.reloads,
            scene: RefCell::new(None),
            supervisor: RefCell::new(None),
            expects_oops: Cell::new(false),
            had_oops: Cell::new(false),
        })
    }

    pub fn client_major(&self) -> u32 {
        self.client.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
    }

    /// nvidia-smi on the host, in the init PID namespace.
    pub fn host(&self) -> Client<'_> {
        Client::on_host(&self.client)
    }

    /// Starts a container by crun.
    pub fn container(&self, name: &str) -> Result<Container> {
        Container::start("crun", name, &self.client)
    }

    /// The shared containers and GPU processes, made at the first call.
    pub fn scene(&self) -> Result<Rc<Scene>> {
        if let Some(scene) = &*self.scene.borrow() {
            return Ok(Rc::clone(scene));
        }
        let scene = Rc::new(Scene::create(&self.client, self.release().is_some())?);
        *self.scene.borrow_mut() = Some(Rc::clone(&scene));
        Ok(scene)
    }

    /// A scene for one story, with other host PIDs.
    pub fn scene_from(&self, outside: u32) -> Result<Scene> {
        Scene::create_from(&self.client, self.release().is_some(), outside)
    }

    /// From here on the story expects one oops of the driver. A missing oops, and any other kernel warning, fails the story.
    pub fn expect_oops(&self) -> Result<()> {
        self.expects_oops.set(true);
        self.had_oops.set(true);
        kernel_log::announce_oops()
    }

    /// Why a story cannot run on the stage's driver; none if it can.
    pub fn skip_reason(&self, story: Real) -> Option<String> {
        let is_closed = real::is_closed(self.release()?);
        real::skip_reason(story, is_closed, || self.has_client()).map(str::to_owned)
    }

    /// The kernel's warnings during the story that ended.
    pub fn complaints(&self, lines: &[String]) -> Result<Vec<String>> {
        let mut lines = lines.to_vec();
        if !self.has_gpu() {
            // The kernel prints this once for a proprietary module.
            lines.retain(|line| !line.contains("Disabling lock debugging due to kernel taint"));
        }
        if !self.expects_oops.take() {
            return Ok(kernel_log::complaints(&lines));
        }
        kernel_log::announce_end_of_oops()?;
        Ok(kernel_log::complaints_beside_an_oops(&lines, "nvidia"))
    }

    pub fn had_oops(&self) -> bool {
        self.had_oops.get()
    }

    /// Ends the scene's processes, for a story that needs the GPUs or the driver alone.
    pub fn clear_scene(&self) {
        self.scene.borrow_mut().take();
    }

    /// The release of the driver, if it is a real one.
    pub fn release(&self) -> Option<&str> {
        Some(self.era_name.split_once('@')?.1)
    }

    /// Whether the driver is the simulated one as of 615, which has an additional control and additional events.
    pub fn is_newest(&self) -> bool {
        self.era_name.ends_with(NEWEST)
    }

    /// Whether the driver has GPUACCT_GET_PROC_ACCOUNTING_INFO_V2, which came with 610.
    pub fn has_accounting_v2(&self) -> bool {
        let branch = self.release().and_then(|release| release.split('.').next()?.parse::<u32>().ok());
        self.is_newest() || branch.is_some_and(|branch| branch >= 610)
    }

    /// The duration of a race; `at_most` is that of the full run. Racing threads occupy every processor. Without an engine nearly every race
    /// succeeds at once.
    pub fn race_seconds(&self, at_most: f64) -> f64 {
        match self.engine {
            Engine::None => at_most / 4.0,
            _ => at_most * (f64::from(self.reloads) / 4.0).clamp(0.5, 1.0),
        }
    }

    /// Whether the driver has a working GPU. A closed driver cannot start one in a guest.
    pub fn has_gpu(&self) -> bool {
        !self.release().is_some_and(real::is_closed)
    }

    /// Another driver of the same kind in this guest, as a name for [`Stage::load_driver_of`].
    pub fn other_driver(&self) -> Result<Option<String>> {
        let Some(release) = self.release() else {
            return Ok((self.era == 4).then(|| "1f".to_owned()));
        };
        let releases = real::releases()?;
        let newer = releases.iter().find(|other| other.as_str() > release);
        Ok(newer.or_else(|| releases.iter().find(|other| *other != release)).cloned())
    }

    /// Whether the client works on the driver. On a real driver, a client of another release may not.
    pub fn has_client(&self) -> bool {
        let Some(release) = self.release() else { return true };
        let starts = || release == self.client || self.host().smi(&["-L"]).is_ok_and(|done| done.status == 0);
        real::is_usable_on(&self.client, release) && *self.client_starts.get_or_init(starts)
    }

    /// Loads the driver of this stage, a simulated one with module parameters.
    pub fn load_driver(&self, parameters: &[&str]) -> Result<()> {
        self.load_driver_of(self.release().unwrap_or(&self.era_name), parameters)
    }

    /// Loads a driver of the same kind: a build of the simulated one by its era, a real one by its release.
    pub fn load_driver_of(&self, name: &str, parameters: &[&str]) -> Result<()> {
        if self.release().is_some() {
            ensure!(parameters.is_empty(), "a real driver has no {parameters:?}");
            self.real.set(Some(real::load(name)?));
        } else {
            let file = format!("/sim/era{name}/nvidia.ko");
            run_ok(&[&["insmod", file.as_str()], parameters].concat()).context("cannot load the simulated driver")?;
        }
        *self.driver.borrow_mut() = loaded_with(name, parameters);
        Ok(())
    }

    pub fn set_driver(&self, parameter: &str, value: &str) -> Result<()> {
        let file = format!("/sys/module/nvidia/parameters/{parameter}");
        std::fs::write(&file, value).with_context(|| format!("cannot write {file}"))
    }

    pub fn unload_driver(&self) -> Result<()> {
        if self.release().is_some() {
            let mut loaded = self.real.take().context("the real driver is not loaded")?;
            let unloaded = loaded.unload();
            if unloaded.is_err() {
                self.real.set(Some(loaded));
            }
            return unloaded;
        }
        run_ok(&["rmmod", "nvidia"]).map(drop).context("cannot unload the simulated driver")
    }

    /// Unloads the driver while callers open it now and then: unloading works between two calls.
    pub fn unload_driver_in_use(&self) -> Result<()> {
        if self.release().is_some() {
            return self.unload_driver();
        }
        unload_unused(c"nvidia")
    }

    pub fn load_engine(&self) -> Result<()> {
        if self.engine == Engine::Notify {
            self.supervisor.replace(Some(Supervisor::start()?));
            return Ok(());
        }
        run_ok(&["insmod", "/mpu/mpu.ko"]).map(drop).context("cannot load mpu.ko")
    }

    pub fn reload_engine(&self) -> Result<()> {
        self.unload_engine()?;
        self.load_engine()
    }

    /// Whether this stage has an engine.
    pub fn has_engine(&self) -> bool {
        matches!(self.engine, Engine::Module | Engine::Notify)
    }

    /// Whether the host gets thread ids, as from releases 535.113 to 570.144. The module corrects that for the host, too; the engine in user
    /// space only for containers.
    pub fn host_sees_threads(&self) -> bool {
        self.engine == Engine::Notify && (1..=3).contains(&self.era)
    }

    /// Whether the engine is a module, which a story can load and unload beside the driver.
    pub fn has_module(&self) -> bool {
        self.engine == Engine::Module
    }

    /// Runs `act` while the engine translates nothing, and switches it on again.
    pub fn with_engine_off<T>(&self, act: impl FnOnce() -> T) -> Result<T> {
        if self.has_module() {
            self.unload_engine()?;
        } else {
            supervisor::send("retire\n")?;
        }
        let done = act();
        if self.has_module() {
            self.load_engine()?;
        } else {
            supervisor::send("resume\n")?;
        }
        Ok(done)
    }

    pub fn set_policy(&self, rules: &str) -> Result<()> {
        match self.engine {
            Engine::Notify => supervisor::send(&format!("policy\n{rules}")),
            _ => std::fs::write(POLICY, format!("{rules}\n")).context("the module does not take the policy"),
        }
    }

    pub fn policy(&self) -> Result<String> {
        match self.engine {
            Engine::Notify => Ok(supervisor::state()?.context("no supervisor")?["policy"].to_string()),
            _ => std::fs::read_to_string(POLICY).context("no policy"),
        }
    }

    pub fn unload_all(&self) -> Result<()> {
        self.unload_engines()?;
        if loaded("nvidia")? {
            self.unload_driver()?;
        }
        Ok(())
    }

    fn unload_engines(&self) -> Result<()> {
        unload_if_loaded("mpu_next")?;
        if loaded("mpu")? || self.supervisor.borrow().is_some() { self.unload_engine() } else { Ok(()) }
    }

    /// Restores engine and driver after a story: one that failed half-way, or that leaves this to its runner.
    pub fn restore(&self) -> Result<()> {
        // Later stories must test the stage's driver.
        let own = loaded_with(self.release().unwrap_or(&self.era_name), &[]);
        if loaded("nvidia")? && *self.driver.borrow() != own {
            self.clear_scene();
            self.unload_engines()?;
            self.unload_driver_in_use()?;
        }
        if !loaded("nvidia")? {
            self.load_driver(&[])?;
        }
        if self.release().is_none() {
            KNOBS.iter().try_for_each(|knob| self.set_driver(knob, "0"))?;
        }
        unload_if_loaded("mpu_next")?;
        if loaded("rival")? {
            // Beside it, a module has redirected nothing.
            unload_if_loaded("mpu")?;
            run_ok(&["rmmod", "rival"])?;
        }
        if self.has_module() && self.state_value("state") == "retired" {
            run_ok(&["rmmod", "mpu"])?;
        }
        let has_own = self.supervisor.borrow().is_some();
        if self.engine == Engine::Notify && !has_own && supervisor::pid()?.is_some() {
            supervisor::send("retire\n")?;
            supervisor::wait_until("a story's supervisor does not end", || Ok(supervisor::pid()?.is_none()))?;
        }
        let is_up = match self.engine {
            Engine::Module => loaded("mpu")?,
            Engine::Notify => has_own,
            Engine::None | Engine::Later => true,
        };
        if !is_up {
            self.load_engine()?;
        }
        Ok(())
    }

    /// Takes the engine down. The engine in user space ends with its last container only.
    pub fn unload_engine(&self) -> Result<()> {
        if let Some(supervisor) = self.supervisor.take() {
            return supervisor.end();
        }
        unload_module("mpu")
    }

    /// A value of the engine's state, such as `state`; none if the engine is not up.
    pub fn engine_state(&self, key: &str) -> Option<String> {
        if self.engine == Engine::Notify {
            let value = supervisor::state().ok()??.get(key)?.clone();
            return Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
        parameter("state", key)
    }

    /// The same; empty if the engine is not up.
    pub fn state_value(&self, key: &str) -> String {
        self.engine_state(key).unwrap_or_default()
    }

    /// A counter of the engine, such as `passed.unknown_size`; none if the engine is not up.
    pub fn counter(&self, name: &str) -> Option<u64> {
        if self.engine == Engine::Notify {
            let (kind, name) = name.split_once('.')?;
            return supervisor::state().ok()??.get(kind)?.get(name)?.as_u64();
        }
        parameter("counters", name)?.parse().ok()
    }

    pub fn set_up(&self) -> Result<()> {
        self.load_driver(&[])?;
        if !self.has_engine() {
            return Ok(());
        }
        self.load_engine()?;
        let state = self.engine_state("state").context("the engine has no state")?;
        // The module reports `armed` only after its first translation.
        let ready = if self.has_module() { "placed" } else { "armed" };
        ensure!(
            state == ready,
            "the engine is {state}, not {ready}: {}",
            self.engine_state("refused").unwrap_or_default()
        );
        Ok(())
    }

    pub fn tear_down(&self) -> Result<()> {
        self.clear_scene();
        self.unload_all()
    }
}

/// The name of a loaded driver with its parameters.
fn loaded_with(name: &str, parameters: &[&str]) -> String {
    [&[name], parameters].concat().join(" ")
}

fn loaded(module: &str) -> Result<bool> {
    let modules = std::fs::read_to_string("/proc/modules")?;
    Ok(modules.lines().any(|line| line.split(' ').next() == Some(module)))
}

fn parameter(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/module/mpu/parameters/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

pub fn unload_if_loaded(name: &str) -> Result<()> {
    if loaded(name)? { unload_module(name) } else { Ok(()) }
}

/// Retires an instance of the module, which waits for the callers inside, and unloads it.
pub fn unload_module(name: &str) -> Result<()> {
    let retire = format!("/sys/module/{name}/parameters/retire");
    std::fs::write(&retire, "20000").with_context(|| format!("{name} does not retire"))?;
    run_ok(&["rmmod", name]).map(drop).with_context(|| format!("cannot unload {name}.ko"))
}
