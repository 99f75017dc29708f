//! The stage that stories play on: one simulated driver, one client release, one engine or none. Loads and unloads them, runs the stories
//! of a plan's row, and prints their verdicts.

use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::rc::Rc;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};

use crate::client::Client;
use crate::command::must;
use crate::container::Container;
use crate::demo;
use crate::holder::Holder;
use crate::kernel_log::KernelLog;
use crate::plan::Row;
use crate::stories;
use crate::stories::scene::Scene;
use crate::story::{judge, Fault, Story, Verdict, Without};

/// What a story can ask about where it plays, and what it can make there.
pub struct Stage {
    /// The driver's era: 0 to 4.
    pub era: u32,
    /// The driver's era as the plan has it; `1f` is era 1 behind the older entry symbol.
    pub era_name: String,
    /// The release of nvidia-smi and NVML, such as `550.163.01`.
    pub client: String,
    /// `none`, `module`, or `later`.
    pub engine: String,
    /// Whether this client is the first that the plan has for the era: stories in which no client of NVIDIA's takes part play once.
    pub first_of_era: bool,
    /// How often the module is reloaded under load.
    pub reloads: u32,
    /// Processes that many stories look at, made by the first of them.
    scene: RefCell<Option<Rc<Scene>>>,
}

impl Stage {
    /// The client's major version.
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

    /// Starts a container by a runtime of choice: `crun` or `runc`.
    pub fn container_by(&self, runtime: &'static str, name: &str) -> Result<Container> {
        Container::start(runtime, name, &self.client)
    }

    /// Starts a GPU process on the host.
    pub fn hold(&self, arguments: &[&str]) -> Result<Holder> {
        Holder::on_host(arguments)
    }

    /// Containers and GPU processes that stories only look at; made when first asked for, and kept.
    pub fn scene(&self) -> Result<Rc<Scene>> {
        if let Some(scene) = &*self.scene.borrow() {
            return Ok(Rc::clone(scene));
        }
        let scene = Rc::new(Scene::set(self)?);
        *self.scene.borrow_mut() = Some(Rc::clone(&scene));
        Ok(scene)
    }

    /// Ends what [`Stage::scene`] made, for a story that needs the GPUs or the driver for itself.
    pub fn clear_scene(&self) {
        self.scene.borrow_mut().take();
    }

    /// Loads the simulated driver of this stage, with module parameters.
    pub fn load_driver(&self, parameters: &[&str]) -> Result<()> {
        let file = format!("/sim/era{}/nvidia.ko", self.era_name);
        must(&[&["insmod", file.as_str()], parameters].concat()).map(drop).context("cannot load the simulated driver")
    }

    /// Unloads the simulated driver.
    pub fn unload_driver(&self) -> Result<()> {
        must(&["rmmod", "nvidia"]).map(drop).context("cannot unload the simulated driver")
    }

    /// Loads the engine's module.
    pub fn load_engine(&self) -> Result<()> {
        must(&["insmod", "/mpu/mpu.ko"]).map(drop).context("cannot load mpu.ko")
    }

    /// Whether an engine is at work on this stage.
    pub fn has_engine(&self) -> bool {
        self.engine == "module"
    }

    /// Unloads engine and driver, whichever are loaded.
    pub fn unload_all(&self) -> Result<()> {
        if loaded("mpu")? {
            self.unload_engine()?;
        }
        if loaded("nvidia")? {
            self.unload_driver()?;
        }
        Ok(())
    }

    /// Puts engine and driver back as stories find them, after one that failed half-way.
    fn restore(&self) -> Result<()> {
        if !loaded("nvidia")? {
            self.load_driver(&[])?;
        }
        if self.has_engine() && !loaded("mpu")? {
            self.load_engine()?;
        }
        Ok(())
    }

    /// Unloads the engine's module.
    pub fn unload_engine(&self) -> Result<()> {
        must(&["rmmod", "mpu"]).map(drop).context("cannot unload mpu.ko")
    }

    /// One line of the module's state, such as `state` or `hooks`; none when no module is loaded.
    pub fn engine_state(&self, key: &str) -> Option<String> {
        parameter("state", key)
    }

    /// One of the module's counters, such as `passed.unknown_size`; none when no module is loaded.
    pub fn counter(&self, name: &str) -> Option<u64> {
        parameter("counters", name)?.parse().ok()
    }

    fn raise(&self) -> Result<()> {
        self.load_driver(&[])?;
        match self.engine.as_str() {
            // `later`: the story loads the engine itself.
            "none" | "later" => Ok(()),
            "module" => {
                self.load_engine()?;
                let state = self.engine_state("state").context("mpu.ko has no state")?;
                ensure!(
                    state == "armed",
                    "mpu.ko is {state}, not armed: {}",
                    self.engine_state("refused").unwrap_or_default()
                );
                Ok(())
            }
            other => bail!("no engine {other}"),
        }
    }

    fn strike(&self) -> Result<()> {
        self.clear_scene();
        self.unload_all()
    }
}

/// Runs a row of the plan, and returns how many stories failed.
pub fn perform(row: &Row, first_of_era: bool) -> Result<usize> {
    let mut failed = 0;
    let named = |name: &str| row.stories.iter().any(|wanted| wanted == name);
    let usual = stories::ALL.iter().filter(|story| named("all") || named(story.name));
    let wanted = usual.chain([&demo::DEMO].into_iter().filter(|_| named("demo")));
    let wanted: Vec<&Story> = wanted.collect();
    for name in &row.stories {
        ensure!(name == "all" || wanted.iter().any(|story| story.name == name), "no story is called {name}");
    }
    let era = row.era.trim_end_matches('f').parse().context("an era is a number")?;
    for engine in &row.engines {
        let stage = Stage {
            era,
            era_name: row.era.clone(),
            client: row.client.clone(),
            engine: engine.clone(),
            first_of_era,
            reloads: row.reloads,
            scene: RefCell::new(None),
        };
        let mut log = KernelLog::from_now()?;
        let raised = stage.raise();
        for story in &wanted {
            let began = Instant::now();
            let verdict = match &raised {
                Ok(()) => play(story, &stage, &mut log)?,
                Err(error) => Verdict::Fail(format!("the stage did not stand: {error:#}")),
            };
            failed += usize::from(matches!(verdict, Verdict::Fail(_)));
            tell(story, &stage, &verdict, began);
        }
        if let Err(error) = stage.strike() {
            println!("guest: cannot clear the stage of era {} with {engine}: {error:#}", row.era);
            return Ok(failed + 1);
        }
        for complaint in log.complaints()? {
            println!("guest: the kernel complained while the stage was cleared: {complaint}");
            failed += 1;
        }
    }
    Ok(failed)
}

fn play(story: &Story, stage: &Stage, log: &mut KernelLog) -> Result<Verdict> {
    let without = (story.without)(stage);
    match (&without, stage.engine.as_str()) {
        (Without::Moot(reason), _) | (Without::Right(reason), "none") => {
            return Ok(Verdict::Skip((*reason).to_owned()))
        }
        _ => {}
    }
    let ending = catch_unwind(AssertUnwindSafe(|| (story.run)(stage)));
    let ending = ending.unwrap_or_else(|_| Err(Fault::Rig(anyhow::anyhow!("the story panicked"))));
    stage.restore().context("cannot restore the stage")?;
    let complaints = log.complaints()?;
    if let Some(first) = complaints.first() {
        return Ok(Verdict::Fail(format!("the kernel complained: {first}")));
    }
    Ok(judge(ending, &stage.engine, &without))
}

fn tell(story: &Story, stage: &Stage, verdict: &Verdict, began: Instant) {
    let (word, reason) = match verdict {
        Verdict::Pass(note) => ("pass", note),
        Verdict::Fail(why) => ("fail", why),
        Verdict::Skip(why) => ("skip", why),
    };
    // One line, whatever the reason holds.
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    let Stage { era_name, client, engine, .. } = stage;
    println!("STORY {} engine={engine} era={era_name} client={client} verdict={word} {reason}", story.name);
    println!("guest: {} took {:.1} s", story.name, began.elapsed().as_secs_f64());
}

fn loaded(module: &str) -> Result<bool> {
    let modules = std::fs::read_to_string("/proc/modules")?;
    Ok(modules.lines().any(|line| line.split(' ').next() == Some(module)))
}

fn parameter(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/module/mpu/parameters/{file}")).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}
