//! `mpu agent` as Kubernetes runs it: in a container, with the privileges of either manifest, on a real kernel.

use std::path::Path;

use crate::pod::PRIVILEGED;
use crate::pod::Pod;
use crate::pod::RUNTIME_CLASS;
use crate::stories::common::*;

const ARGUMENTS: [&str; 3] = ["--module=/mpu/mpu.ko", "--interval=1", "--measure-every=2"];

pub const STORIES: &[Story] = &[story!(agent_container_keeps_the_engine_up, [1, 7];
        "`mpu agent` in a container with the Kubernetes manifest's privileges waits for the driver, is ready when \
        nvidia-smi in another container is right, survives a kill, hands over, brings the engine up again, and \
        leaves nothing.")
.module("the agent is played with the module")
.real(Real::Client)
.only(
    |_| Path::new(PRIVILEGED).exists(),
    "no manifest was rendered into this guest: the chart's tools could not be fetched",
)
.eras(&[1, 4], "an agent does not look at the era: played in 1 and 4")
.right("the story has the engine loaded itself")];

fn agent_container_keeps_the_engine_up(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    stage.unload_all()?;
    let old = Pod::start("runc", RUNTIME_CLASS, "old", &ARGUMENTS)?;
    check!(old.wait("alive", 0)?.contains("waiting for the NVIDIA driver"), "alive, it does not say what for");
    check!(old.probe("ready")?.status == 3, "without a driver it is ready");
    check!(stage.engine_state("state").is_none(), "without a driver an engine is up");

    stage.load_driver(&[])?;
    let reply = old.wait("ready", 0)?;
    check!(reply.contains("is seen right"), "ready, it says {reply}");
    check_container_view(stage, "ready")?;

    // A killed agent leaves the engine in place, and can start again.
    old.end("KILL")?;
    check!(stage.engine_state("state").as_deref() == Some("armed"), "the agent was killed, and the engine went, too");
    let old = Pod::start("crun", PRIVILEGED, "old", &ARGUMENTS)?;
    old.wait("ready", 0)?;

    // A rolling upgrade: the new agent starts first.
    let new = Pod::start("runc", PRIVILEGED, "new", &ARGUMENTS)?;
    new.wait("ready", 0)?;
    old.end("TERM")?;
    check!(stage.engine_state("state").as_deref() == Some("armed"), "the old agent took the engine with it");
    check_container_view(stage, "handed over")?;

    stage.unload_engine()?;
    let raised =
        wait_until("the agent loads no engine", || Ok(stage.engine_state("state").as_deref() == Some("armed")));
    check!(raised.is_ok(), "the engine went down: {raised:?}");
    new.wait("ready", 0)?;
    new.end("TERM")?;
    check!(stage.engine_state("state").is_none(), "the last agent went, and the engine is still up");
    let native = check_container_view(stage, "gone");
    check!(matches!(native, Err(Fault::Wrong(_))), "without an engine this driver shows a container what is right");
    let remaining: Vec<_> = std::fs::read_dir("/run/mpu/agents")?.flatten().map(|entry| entry.file_name()).collect();
    check!(remaining == ["gate"], "the agents left {remaining:?}");
    Ok(())
}

/// The real nvidia-smi in an ordinary container shows that container's own processes.
fn check_container_view(stage: &Stage, when: &str) -> Result<(), Fault> {
    let scene = stage.scene()?;
    let rows = scene.a.client().compute_apps()?;
    check_pids(&format!("{when}, nvidia-smi"), &crate::client::pids(&rows), &scene.own())
}
