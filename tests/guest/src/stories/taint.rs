//! Marks everything outside a container with numbers that never occur by chance, and searches all answers of the driver for them.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::stories::common::*;

/// The numbers outside: 2fee01 to 2feefe. Nothing else has these two bytes side by side.
const FROM: u32 = 0x2f_ee01;
const TO: u32 = 0x2f_eeff;
/// The first PID of the scanning programs in each round. The scene's processes have lower PIDs.
const SCAN_PID: u32 = FROM + 150;
const PID_MAX: &str = "/proc/sys/kernel/pid_max";

/// Calls for each two reloads of a row: with `x test --full` about 10⁶ in all.
const CALLS: u32 = 10_000;
/// Calls of one program: a debug kernel takes ten times as long, and no program may take minutes.
const AT_ONCE: u32 = 2_500;
/// The same with an engine in user space, where a call takes ten times as long.
const SUPERVISED_CALLS: u32 = 1_000;
/// Calls without an engine, enough for a hit.
const BARE_CALLS: u32 = 2_000;
/// Calls with racing threads, for each reload.
const RACED_CALLS: u32 = 200;

/// Only the calls of tests/gpu/taint.sh for a real GPU: each row once, then random ones.
const ALLOWED: &str = "--allowed /bin/taint.allowed --rate 2000";
const ALLOWED_CALLS: u32 = 300;

/// Permitted loss of free memory over all calls: 560 bytes for each of a full row's 6·10⁴.
const MAY_LACK_KIB: u64 = 32 << 10;

/// docs/notify.md: the caller makes this call itself, and the answer has the caller's host PID.
const REPORT: &str = " control 0x607 ";

/// nvtaint's row that only drivers from 610 on answer.
const ACCOUNTING_V2: &str = "record-610";

pub const STORIES: &[Story] = &[story!(tainted_pids_never_reach_a_container, [3];
        "Every process outside has a PID that occurs nowhere by chance. A program in a container makes every call it \
        can, seeded: each control and layout right, torn and raced, other controls, allocations, escapes, files. No \
        such PID comes back in either byte order, no kernel address, and no figures. What limits.md and notify.md \
        leave open is seen. 10⁴ calls in each row, with `x test --full` about 10⁶ in all; a tenth of that \
        through the supervisor.")
.real(Real::Knob)
.wrong("came back")];

fn tainted_pids_never_reach_a_container(stage: &Stage) -> Result<(), Fault> {
    stage.clear_scene();
    // These PIDs may be reused, and a dead process's record hides that of a new process with its PID (docs/limits.md).
    nvctl::query(&[], "nvctl", &["acct-clear"])?;
    let _high = Setting::set(PID_MAX, "4194304")?;
    // The supervisor restarts, so that its PID is in the set.
    let restarts = stage.engine == Engine::Notify;
    if restarts {
        stage.unload_engine()?;
    }
    processes::set_next_host_pid(FROM)?;
    if restarts {
        stage.load_engine()?;
    }
    let scene = stage.scene_from(FROM + 20)?;
    let foreign = Holder::on_host(&["--hwpm", "--error"])?;
    // Accounting keeps a record of this process.
    drop(Holder::on_host(&["--mem", "70"])?);
    let last = scene.host_pids().into_iter().chain([foreign.host_pid]).max().unwrap_or(TO);
    ensure_set(last)?;
    stage.set_driver("client_allocs", "1")?;
    run_calls(stage, &scene)
}

fn ensure_set(last: u32) -> Result<()> {
    ensure!((FROM..SCAN_PID).contains(&last), "a process of the scene is {last}, which is not below {SCAN_PID}");
    Ok(())
}

fn run_calls(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    if !stage.has_engine() {
        let run = TaintRun::start(scene, BARE_CALLS, "")?;
        // Drivers from 570 on leave addresses in samples.
        run.require_hit("number")?;
        if stage.era >= 3 {
            run.require_hit("address")?;
        }
        let by_list = TaintRun::start(scene, ALLOWED_CALLS, ALLOWED)?;
        by_list.require_hit("number")?;
        return run.allow_only(|_| false);
    }
    let notify = stage.engine == Engine::Notify;
    let allowed: &[&str] = if notify { &[REPORT] } else { &[] };
    let known = |hit: &str| allowed.iter().any(|one| hit.contains(one));
    // A racing thread cannot tell the report's hits from those of other controls.
    let raced = if notify { "--raced buffers --leave-out report" } else { "--raced buffers" };
    let each = if notify { SUPERVISED_CALLS } else { CALLS };
    let at_once = each.min(AT_ONCE);
    let rounds = (stage.reloads / 2).max(1) * each / at_once;
    let raced_calls = RACED_CALLS * at_once / each;
    let (mut seen, mut refused) = (String::new(), Vec::new());
    let free_before = free_kib()?;
    for _ in 0..rounds {
        let run =
            TaintRun::start(scene, at_once, "--read /dev/nvidiactl --read /dev/nvidia0 --read /proc/driver/nvidia")?;
        run.allow_only(known)?;
        refused.extend(run.refused());
        seen.extend(run.hits());
        TaintRun::start(scene, raced_calls, raced)?.allow_only(known)?;
        if !notify {
            TaintRun::start(scene, raced_calls, "--raced argument")?.allow_only(known)?;
        }
    }
    let never = refused
        .iter()
        .filter(|row| stage.has_accounting_v2() || *row != ACCOUNTING_V2)
        .find(|row| refused.iter().filter(|other| other == row).count() == rounds as usize);
    check!(never.is_none(), "the driver never answered {never:?} in {rounds} rounds of {at_once} calls");
    let missing: Vec<&&str> = allowed.iter().filter(|one| !seen.contains(**one)).collect();
    check!(missing.is_empty(), "{missing:?} was not seen, which the pages say is not translated");
    TaintRun::start(scene, ALLOWED_CALLS, ALLOWED)?.allow_only(known)?;
    let free_after = free_kib()?;
    println!(
        "guest: {} calls, none told of anybody else; free memory {free_before} to {free_after} KiB",
        at_once * rounds
    );
    check!(free_after + MAY_LACK_KIB > free_before, "{free_before} KiB were free before, and {free_after} after that");
    if notify {
        // docs/notify.md: the kernel reads a passed-on argument again.
        return residual(
            scene,
            "an argument that is exchanged once it was passed on",
            "--raced argument --leave-out report",
        );
    }
    published(stage, scene)?;
    // docs/limits.md, "Without the driver's copy functions".
    stage.set_driver("bypass", "1")?;
    residual(scene, "an answer past the driver's copy functions", "--raced buffers")?;
    stage.set_driver("bypass", "0")?;
    check_own_list(scene, "the list")
}

fn free_kib() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("no meminfo")?;
    let free = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    free.context("no MemAvailable")?.trim().parse().context("MemAvailable is no number")
}

/// Maximum runs until a hit. The first run nearly always has one. On a machine whose guests had twice its processors, one guest needed more
/// than 20.
const RESIDUAL_RUNS: u32 = 100;

/// Fails unless a documented leak is seen. Without a hit here, the other runs would prove nothing.
fn residual(scene: &Scene, what: &str, how: &str) -> Result<(), Fault> {
    for _ in 0..RESIDUAL_RUNS {
        if TaintRun::start(scene, RACED_CALLS, how)?.hits().next().is_some() {
            return Ok(());
        }
    }
    Err(Fault::Wrong(format!("{what} was not seen, which the pages say can be")))
}

/// Checks the module's parameter files in a container while another container's caller is blocked in the driver.
fn published(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    scene.b.script("nvctl stall params 60 >/dev/null 2>&1 & echo $! >/tmp/held")?;
    wait_until("no caller is held in the driver", || Ok(stage.engine_state("holder").is_some()))?;
    scene.a.script("mkdir -p /tmp/sys; mount -t sysfs sysfs /tmp/sys")?;
    let state = scene.a.script("cat /tmp/sys/module/mpu/parameters/state")?;
    let run =
        TaintRun::start(scene, 1, "--read /tmp/sys/module/mpu/parameters --read /tmp/sys/module/nvidia/parameters");
    scene.a.script("umount /tmp/sys")?;
    scene.b.script("kill -9 $(cat /tmp/held)")?;
    check!(state.contains("inside=") && !state.contains("holder="), "the module's state in a container is {state:?}");
    run?.allow_only(|_| false)
}

struct TaintRun {
    text: String,
}

impl TaintRun {
    /// Runs nvtaint in the scene's first container.
    fn start(scene: &Scene, calls: u32, how: &str) -> Result<Self> {
        processes::set_next_host_pid(SCAN_PID)?;
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let own: Vec<String> = scene.own().iter().map(|pid| format!("--own {pid}")).collect();
        let own = own.join(" ");
        let text =
            scene.a.script(&format!("nvtaint --seed {seed} --calls {calls} {how} {own} {FROM} {TO}; echo ended $?"))?;
        let has_ended = text.lines().any(|line| line.starts_with("hits "));
        ensure!(has_ended, "nvtaint did not come to its end with the seed {seed}: {text}");
        Ok(Self { text })
    }

    fn hits(&self) -> impl Iterator<Item = &str> {
        self.text.lines().filter(|line| line.starts_with("hit "))
    }

    fn require_hit(&self, kind: &str) -> Result<()> {
        let none = format!(" {kind} 0 ");
        let sums = self.text.lines().find(|line| line.starts_with("hits ")).unwrap_or_default();
        ensure!(!sums.contains(&none), "nvtaint finds no {kind} in what the bare driver gives: {sums}");
        Ok(())
    }

    fn allow_only(&self, is_known: impl Fn(&str) -> bool) -> Result<(), Fault> {
        let hits: Vec<&str> = self.hits().filter(|hit| !is_known(hit)).collect();
        let seed = self.text.lines().next().unwrap_or_default();
        check!(
            hits.is_empty(),
            "with {seed}, {} kinds came back: {}",
            hits.len(),
            hits[..hits.len().min(12)].join(", ")
        );
        Ok(())
    }

    /// Rows that the driver never accepted.
    fn refused(&self) -> impl Iterator<Item = String> + '_ {
        self.text.lines().filter_map(|line| line.strip_prefix("unanswered ")).map(str::to_owned)
    }
}
