//! Events that programs subscribe to and fetch.

use crate::command::run;
use crate::nvctl;
use crate::right;
use crate::scene::{sorted, Scene};
use crate::stage::Stage;
use crate::stories::common::once;
use crate::story::{Engines, Fault, Story, Without};

/// Which client is over its memory limit is told by the caller's numbers, and of nobody else's. Other events stay as they are.
pub const MEMORY_LIMIT: Story = Story {
    name: "an_event_of_the_memory_limit_names_own_processes_only",
    engines: Engines::Module("an event is no control, and no other request comes to the supervisor"),
    without: |stage| match stage.is_newest() {
        true => once(stage, Without::Wrong("events name")),
        false => Without::Moot("drivers have these events from 615 on"),
    },
    run: |stage| {
        let scene = stage.scene()?;
        by_own_numbers(&scene)?;
        on_the_host(stage, &scene.foreign.outside.to_string())
    },
};

/// A container's events name its own processes by their numbers there, and nobody else.
pub fn by_own_numbers(scene: &Scene) -> Result<(), Fault> {
    let word = scene.foreign.outside.to_string();
    for how in [&["limits", &word][..], &["--xfer", "limits", &word]] {
        let answer = scene.a.ask(how)?;
        let own = sorted(scene.own().into_iter().chain([0]));
        let (named, words) = (answer.distinct_pids(), answer.numbers("word"));
        right!(named == own, "events name {named:?}, the container's own are {:?}: {}", scene.own(), answer.text);
        right!(words == [scene.foreign.outside], "the word of another event is {words:?}, not {word}");
    }
    Ok(())
}

/// A caller on the host is told the driver's own.
fn on_the_host(stage: &Stage, word: &str) -> Result<(), Fault> {
    let everybody = stage.scene()?.everybody();
    let done = run(&["nvctl", "limits", word])?;
    let named = nvctl::read(&done.out)?.distinct_pids();
    right!(named == everybody, "on the host events name {named:?}, not {everybody:?}");
    Ok(())
}
