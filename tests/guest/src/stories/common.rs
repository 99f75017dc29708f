//! Shared checks: above all that a container sees exactly its own processes.

pub(super) use std::time::{Duration, Instant};

pub(super) use anyhow::{Context, Result, anyhow, bail, ensure};

pub(super) use crate::callers::Callers;
pub(super) use crate::command::{Output, behind, command, run, run_ok, wait_for_end};
pub(super) use crate::container::Container;
pub(super) use crate::engine::Engine;
pub(super) use crate::holder::Holder;
pub(super) use crate::mpu_json::valid_answer;
pub(super) use crate::nvctl::{self, Answer};
pub(super) use crate::processes;
pub(super) use crate::real::Real;
pub(super) use crate::scene::{Scene, sorted};
pub(super) use crate::stage::{Stage, unload_if_loaded, unload_module};
pub(super) use crate::story::{BareResult, Fault, Story, once};
pub(super) use crate::supervisor;
pub(super) use crate::wait::{unload_unused, wait_until};

/// The reason to skip where [`Stage::host_sees_threads`].
pub const THREADS_TO_THE_HOST: &str =
    "these drivers name a thread to the host, which an engine in user space does not change";

/// The message about a longer list has only the differences.
const MAX_LISTED: usize = 12;

/// Fails unless the shown PIDs are exactly the container's own, each once.
pub fn check_pids(what: &str, shown: &[u32], own: &[u32]) -> Result<(), Fault> {
    if own.len() <= MAX_LISTED {
        check!(shown == own, "{what} shows {shown:?}, the container's own are {own:?}");
    }
    let without = |pids: &[u32], others: &[u32]| {
        let missing = pids.iter().filter(|pid| !others.contains(pid)).copied();
        missing.take(MAX_LISTED).collect::<Vec<_>>()
    };
    let (extra, missing) = (without(shown, own), without(own, shown));
    check!(
        shown == own,
        "{what} shows {} rows, the container's own are {}: {extra:?} too many, {missing:?} missing",
        shown.len(),
        own.len()
    );
    Ok(())
}

/// Fails unless the process list in a container has exactly these PIDs.
pub fn check_list(container: &Container, what: &str, own: &[u32]) -> Result<(), Fault> {
    check_pids(what, &container.query(&["pids"])?.pids(), own)
}

/// The same for the scene's container `a`.
pub fn check_own_list(scene: &Scene, what: &str) -> Result<(), Fault> {
    check_list(&scene.a, what, &scene.own())
}

/// Waits until the module's probe is armed, which a container's first call triggers. Before that, a race can win.
pub fn wait_until_probe_armed(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_own_list(scene, "the list")?;
    Ok(wait_until("the probe is not armed", || Ok(stage.state_value("hooks").contains("rm_ioctl")))?)
}

/// The PIDs as arguments of nvctl.
pub fn pid_words(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Fails unless `nvctl spin` got its first list more than so many times, and nothing else.
pub fn check_answers(when: &str, text: &str, more_than: u64) -> Result<(), Fault> {
    check!(!text.contains("wrong"), "{when}, an answer was lost or wrong: {text}");
    let matched: u64 = text.lines().filter_map(|line| line.strip_prefix("list 0 matched ")?.parse::<u64>().ok()).sum();
    check!(matched > more_than, "{when}, there were only {matched} answers: {text}");
    Ok(())
}

/// The first process that gets its host PID. Another fork can take one.
pub fn with_host_pid(pids: impl IntoIterator<Item = u32>, start: impl Fn(u32) -> Result<Holder>) -> Result<Holder> {
    for pid in pids {
        let holder = start(pid)?;
        if holder.host_pid == pid {
            return Ok(holder);
        }
    }
    bail!("no process gets the wanted host PID")
}

/// Runs `act` while the GPU has hand-made samples.
pub fn with_samples<T>(slots: &[String], act: impl FnOnce() -> T) -> Result<T> {
    let words: Vec<&str> = ["ring"].into_iter().chain(slots.iter().map(String::as_str)).collect();
    nvctl::query(&[], "nvctl", &words)?;
    let done = act();
    nvctl::query(&[], "nvctl", &["ring"])?;
    Ok(done)
}

pub fn check_no_caller_inside(stage: &Stage) -> Result<(), Fault> {
    let inside = stage.state_value("inside");
    check!(inside == "0", "all callers have ended, and {inside} count as inside");
    Ok(())
}

/// Fails if a PID is shown that is not the container's own.
pub fn check_no_foreign_pid(what: &str, shown: impl IntoIterator<Item = u32>, own: &[u32]) -> Result<(), Fault> {
    let foreign: Vec<u32> = shown.into_iter().filter(|pid| !own.contains(pid)).collect();
    check!(foreign.is_empty(), "{what} {foreign:?}, the container's own are {own:?}");
    Ok(())
}

/// Fails unless a container shows this memory of a process.
pub fn check_memory(container: &Container, pid: u32, mib: u64) -> Result<(), Fault> {
    let memory = container.query(&["pidinfo", &pid.to_string()])?.one("mem")?;
    check!(memory >> 20 == mib && (mib > 0 || memory == 0), "process {pid} holds {mib} MiB, it shows {memory} bytes");
    Ok(())
}

/// Compares the text with the engine line by line with the text while the engine translates nothing. Returns the text.
pub fn same_with_engine_off(stage: &Stage, query: impl Fn() -> Result<String, Fault>) -> Result<String, Fault> {
    let (with, without) = (query()?, stage.with_engine_off(&query)??);
    for (with, without) in with.lines().zip(without.lines()) {
        check!(with == without, "with the engine: {with}; without: {without}");
    }
    check!(with.lines().count() == without.lines().count(), "with the engine: {with}; without: {without}");
    Ok(with)
}

/// Parses the output of programs with racing threads: the number of calls, and the PIDs that they saw.
pub fn parse_race(text: &str, at_least: u32) -> Result<(u32, Vec<u32>), Fault> {
    let first = text.lines().next().unwrap_or_default();
    let counts: Vec<u32> = first.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[made, accepted] = counts.as_slice() else { return Err(anyhow!("no counts in {text}").into()) };
    check!(made >= at_least && accepted > 0, "{accepted} of {made} racing calls were accepted: {text}");
    Ok((made, text.lines().filter_map(|line| line.strip_prefix("saw ")?.parse().ok()).collect()))
}

/// Waits until a caller hangs in the driver: the driver then resets its parameter.
pub fn wait_until_hung() -> Result<()> {
    let is_hung = || Ok(std::fs::read_to_string("/sys/module/nvidia/parameters/hang")?.trim() == "0");
    wait_until("no caller hangs in the driver", is_hung)
}

/// The result, and the time that it took.
pub fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = act();
    (done, began.elapsed())
}

/// The result of a thread; an error if it panicked.
pub fn join_result<T>(thread: std::thread::Result<T>) -> Result<T> {
    thread.map_err(|_| anyhow!("a thread of the rig died"))
}

/// Replaces the instance `mpu_next` by `mpu`.
pub fn back_to_mpu() -> Result<()> {
    unload_module("mpu")?;
    run_ok(&["insmod", "/mpu/mpu.ko"])?;
    unload_module("mpu_next")
}

/// Fails unless a program has this exit status, and this text in its output.
pub fn check_exit(what: &str, done: &Output, status: i32, text: &str) -> Result<(), Fault> {
    let Output { status: seen, out, err } = done;
    check!(
        *seen == status && out.contains(text),
        "{what} ends with {seen}, and not with {status} and {text:?}: {out} {err}"
    );
    Ok(())
}

/// Fails unless `nvctl spin` with two lists got each of them, and no other.
pub fn check_both_lists_answered(text: &str) -> Result<(), Fault> {
    check!(!text.contains("wrong"), "an answer was neither right nor the driver's: {text}");
    for list in ["list 0 matched ", "list 1 matched "] {
        let matched: u64 = text.lines().filter_map(|line| line.strip_prefix(list)?.parse::<u64>().ok()).sum();
        check!(matched > 0, "no answer came with the engine out, or none with it in: {text}");
    }
    Ok(())
}

/// Switches ftrace on or off, and with it every redirect.
pub fn set_ftrace(on: bool) -> std::io::Result<()> {
    std::fs::write("/proc/sys/kernel/ftrace_enabled", if on { "1" } else { "0" })
}

/// A setting of the kernel, put back when dropped.
pub struct Setting {
    file: &'static str,
    before: String,
}

impl Setting {
    pub fn set(file: &'static str, value: &str) -> Result<Self> {
        let before = std::fs::read_to_string(file).with_context(|| format!("no {file}"))?;
        std::fs::write(file, value).with_context(|| format!("cannot set {file}"))?;
        Ok(Self { file, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(self.file, self.before.trim()) {
            println!("guest: cannot put {} back: {error}", self.file);
        }
    }
}

/// Mounts debugfs unless this file exists.
pub fn mount_debugfs(file: &str) -> Result<()> {
    if !std::path::Path::new(file).exists() {
        run_ok(&["mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug"])?;
    }
    Ok(())
}
