//! `mpu agent` as Kubernetes runs it: in a container, with the privileges of either manifest, on a real kernel.

use std::path::Path;

use crate::pod::{Pod, PRIVILEGED, RUNTIME_CLASS};
use crate::right;
use crate::stage::Stage;
use crate::stories::common::{exactly, once};
use crate::story::{Engines, Fault, Story, Without};
use crate::wait::until;

const ARGUMENTS: [&str; 3] = ["--module=/mpu/mpu.ko", "--interval=1", "--measure-every=2"];

/// From the driver's coming to the last agent's end: ready means right, a handover leaves no gap, and nothing is left.
pub const NODE: Story = Story {
    name: "agent_in_a_container_keeps_the_node_right",
    engines: Engines::Module("the agent is played with the module"),
    without: |stage| match stage.era {
        _ if !Path::new(PRIVILEGED).exists() => {
            Without::Moot("no manifest was rendered into this guest: the chart's tools could not be fetched")
        }
        1 | 4 => once(stage, Without::Right("the story has the engine loaded itself")),
        _ => Without::Moot("an agent does not look at the era: played in 1 and 4"),
    },
    run: |stage| {
        stage.clear_scene();
        stage.unload_all()?;
        let old = Pod::start("runc", RUNTIME_CLASS, "old", &ARGUMENTS)?;
        right!(old.wait("alive", 0)?.contains("waiting for the NVIDIA driver"), "alive, it does not say what for");
        right!(old.probe("ready")?.status == 3, "without a driver it is ready");
        right!(stage.engine_state("state").is_none(), "without a driver an engine is up");

        stage.load_driver(&[])?;
        let said = old.wait("ready", 0)?;
        right!(said.contains("is seen right"), "ready, it says {said}");
        seen_right(stage, "ready")?;

        // What died does no harm, and comes back.
        old.end("KILL")?;
        right!(
            stage.engine_state("state").as_deref() == Some("armed"),
            "the agent was killed, and the engine went, too"
        );
        let old = Pod::start("crun", PRIVILEGED, "old", &ARGUMENTS)?;
        old.wait("ready", 0)?;

        // A rolling upgrade: the new one comes first.
        let new = Pod::start("runc", PRIVILEGED, "new", &ARGUMENTS)?;
        new.wait("ready", 0)?;
        old.end("TERM")?;
        right!(stage.engine_state("state").as_deref() == Some("armed"), "the old agent took the engine with it");
        seen_right(stage, "handed over")?;

        stage.unload_engine()?;
        let raised = until("nobody raised it again", || Ok(stage.engine_state("state").as_deref() == Some("armed")));
        right!(raised.is_ok(), "the engine went down: {raised:?}");
        new.wait("ready", 0)?;
        new.end("TERM")?;
        right!(stage.engine_state("state").is_none(), "the last agent went, and the engine is still up");
        let native = seen_right(stage, "gone");
        right!(matches!(native, Err(Fault::Wrong(_))), "without an engine this driver shows a container what is right");
        let left: Vec<_> = std::fs::read_dir("/run/mpu/agents")?.flatten().map(|entry| entry.file_name()).collect();
        right!(left == ["gate"], "the agents left {left:?}");
        Ok(())
    },
};

/// The real nvidia-smi in an ordinary container shows that container's own processes.
fn seen_right(stage: &Stage, when: &str) -> Result<(), Fault> {
    let scene = stage.scene()?;
    let rows = scene.a.client().compute_apps()?;
    exactly(&format!("{when}, nvidia-smi"), &crate::client::pids(&rows), &scene.own())
}
