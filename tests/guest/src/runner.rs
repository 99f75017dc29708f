//! Runs the stories of a plan's row on its stage with one engine after the other, and prints their verdicts.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use mpu_plan::{Ending, Row, STAGE_READY};

use crate::demo;
use crate::engine::Engine;
use crate::kernel_log::{self, KernelLog};
use crate::stage::Stage;
use crate::stories;
use crate::story::{BareResult, Fault, Story, Verdict, judge};

/// Selects every story, besides named ones.
const ALL: &str = "all";

/// Reads the host's plan for this guest, one row per driver and client.
pub fn read_plan(path: &str) -> Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let rows: Vec<Row> = serde_json::from_str(&text).with_context(|| format!("{path} is no plan"))?;
    ensure!(!rows.is_empty(), "{path} is empty");
    Ok(rows)
}

/// Runs a row of the plan, and returns how many stories failed.
pub fn run_row(row: &Row, first_of_era: bool) -> Result<usize> {
    let mut failed = 0;
    let named = |name: &str| row.stories.iter().any(|selected| selected == name);
    let everything = row.stories.is_empty() || named(ALL);
    let usual = stories::usual().filter(|story| everything || named(story.name));
    let by_name_alone = stories::LAST.iter().chain([&demo::DEMO]);
    let selected = usual.chain(by_name_alone.filter(|story| named(story.name)));
    let selected: Vec<&Story> = selected.collect();
    for name in &row.stories {
        ensure!(name == ALL || selected.iter().any(|story| story.name == name), "no story is called {name}");
    }
    let engines = row.engines.iter().map(|name| Engine::named(name)).collect::<Result<Vec<_>>>()?;
    for &engine in &engines {
        let stage = Stage::new(row, engine, first_of_era)?;
        let mut log = KernelLog::from_now()?;
        let set_up = stage.set_up();
        println!("{STAGE_READY}");
        for story in &selected {
            let began = Instant::now();
            let verdict = match &set_up {
                Ok(()) => match story.engines.skip_reason(engine, &engines).or_else(|| stage.skip_reason(story.real)) {
                    None => run_story(story, &stage, &mut log)?,
                    Some(reason) => Verdict::Skip(reason),
                },
                Err(error) => Verdict::Fail(format!("the stage did not stand: {error:#}")),
            };
            failed += usize::from(matches!(verdict, Verdict::Fail(_)));
            print_verdict(story, &stage, &verdict, began);
        }
        if let Err(error) = stage.tear_down() {
            println!("guest: cannot clear the stage of era {} with {}: {error:#}", row.era, engine.name());
            return Ok(failed + 1);
        }
        for complaint in stage.complaints(&log.lines()?)? {
            println!("guest: the kernel complained while the stage was cleared: {complaint}");
            failed += 1;
        }
        if !stage.had_oops() && kernel_log::is_lockdep_off() {
            println!("guest: lockdep has switched itself off, and no story made the kernel oops");
            failed += 1;
        }
    }
    Ok(failed)
}

fn run_story(story: &Story, stage: &Stage, log: &mut KernelLog) -> Result<Verdict> {
    let bare = story.bare_result(stage);
    match (&bare, stage.engine) {
        (BareResult::Skip(reason), _) | (BareResult::Right(reason), Engine::None) => {
            return Ok(Verdict::Skip((*reason).to_owned()));
        }
        _ => {}
    }
    let ending = (story.run)(stage);
    stage.restore().with_context(|| format!("cannot restore the stage after {ending:?}"))?;
    let lines = log.lines()?;
    for line in lines.iter().filter(|line| line.starts_with("stale: a breakpoint")) {
        println!("guest: {line}");
    }
    let complaints = stage.complaints(&lines)?;
    if let Some(first) = complaints.first() {
        return Ok(Verdict::Fail(format!("the kernel complained: {first}")));
    }
    // "ended with 139" does not show where a program crashed. The kernel's line does.
    let crash = lines.into_iter().find(|line| line.contains(" segfault at "));
    let ending = match (ending, crash) {
        (Err(Fault::Rig(error)), Some(crash)) => Err(Fault::Rig(error.context(crash))),
        (ending, _) => ending,
    };
    Ok(judge(ending, stage.engine, &bare))
}

fn print_verdict(story: &Story, stage: &Stage, verdict: &Verdict, began: Instant) {
    let (result, reason) = match verdict {
        Verdict::Pass(note) => (Ending::Pass, note),
        Verdict::Fail(why) => (Ending::Fail, why),
        Verdict::Skip(why) => (Ending::Skip, why),
    };
    let line = mpu_plan::Verdict {
        story: story.name.to_owned(),
        engine: stage.engine.name().to_owned(),
        era: stage.era_name.clone(),
        client: stage.client.clone(),
        result,
        reason: reason.clone(),
    };
    println!("{line}");
    println!("guest: {} took {:.1} s", story.name, began.elapsed().as_secs_f64());
}
