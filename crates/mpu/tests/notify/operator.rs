//! The notify engine through the operator's commands, each test with its own `/run` and `/etc/mpu`.

use super::run_script;
use serde_json::Value;

/// Runs a script, which must succeed, and returns its output lines as JSON; none if it cannot run here.
fn answers(script: &str) -> Option<Vec<Value>> {
    let own = "mount -t tmpfs none /run; mkdir -p /run/etc; [ ! -d /etc/mpu ] || mount --bind /run/etc /etc/mpu";
    let out = run_script(&format!("set -e; {own}\n{script}\necho true"))?;
    let json = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let mut answers: Vec<Value> = out.lines().map(json).collect();
    assert_eq!(answers.pop(), Some(true.into()), "{out}");
    Some(answers)
}

#[test]
fn repeated_up_and_down_report_their_results() {
    let Some(all) = answers(
        "$MPU up --engine notify --any-driver --json\n\
         $MPU up --engine notify --any-driver --json\n\
         $MPU status --json\n\
         $MPU config apply --json\n\
         $MPU config show --json\n\
         $MPU down --json\n\
         $MPU down --json\n\
         $MPU status --json || true\n\
         [ ! -e /run/mpu/notify/listener.sock ]; [ ! -e /run/mpu/notify/control.sock ]\n\
         for i in $(seq 3000); do [ -e /run/mpu/notify/keeper.sock ] || break; sleep 0.02; done\n\
         [ ! -e /run/mpu/notify/keeper.sock ]",
    ) else {
        return;
    };
    let words: Vec<_> = all.iter().map(|answer| answer["result"].as_str().unwrap_or("-")).collect();
    assert_eq!(words, ["started", "already_up", "-", "applied", "-", "ended", "not_up", "-"]);
    assert_eq!((&all[2]["engine"], &all[2]["notify_state"]["state"]), (&"notify".into(), &"armed".into()));
    assert_eq!((&all[4]["applied"], &all[7]["up"]), (&true.into(), &false.into()));
}

#[test]
fn running_container_keeps_retired_supervisor() {
    let Some(all) = answers(
        "$MPU up --engine notify --any-driver --json\n\
         mkfifo /run/go; $MPU run -- cat /run/go >/dev/null & run=$!\n\
         for i in $(seq 1200); do $MPU status --json | grep -q '\"listeners\":1' && break; sleep 0.05; done\n\
         $MPU status --json\n\
         $MPU down --json\n\
         $MPU status --json || true\n\
         $MPU up --engine notify --any-driver --json\n\
         $MPU down --json\n\
         echo >/run/go; wait $run\n\
         for i in $(seq 1200); do [ -e /run/mpu/notify/control.sock ] || break; sleep 0.05; done\n\
         $MPU down --json",
    ) else {
        return;
    };
    assert_eq!(all[1]["notify_state"]["containers"].as_array().map(Vec::len), Some(1));
    assert_eq!((&all[2]["result"], &all[2]["containers"]), (&"retired".into(), &1.into()));
    assert_eq!((&all[3]["notify_state"]["state"], &all[3]["exit"]), (&"retired".into(), &3.into()));
    let rest: Vec<_> = all[4..].iter().map(|answer| answer["result"].as_str().unwrap_or("-")).collect();
    assert_eq!(rest, ["resumed", "retired", "not_up"]);
}

#[test]
fn killed_supervisor_restarts_with_its_containers() {
    let Some(all) = answers(
        "$MPU up --engine notify --any-driver --json >/run/up\n\
         mkfifo /run/go; $MPU run -- cat /run/go >/dev/null & run=$!\n\
         for i in $(seq 1200); do $MPU status --json | grep -q '\"listeners\":1' && break; sleep 0.05; done\n\
         pid() { $MPU status --json | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/'; }\n\
         old=$(pid); kill -9 $old\n\
         for i in $(seq 1200); do [ \"$(pid)\" = $old ] || ! $MPU status --json | grep -q '\"listeners\":1' || break; sleep 0.05; done\n\
         $MPU status --json\n\
         echo >/run/go; wait $run; $MPU down --json",
    ) else {
        return;
    };
    assert_eq!(all[0]["notify_state"]["listeners"], 1);
    assert_eq!(all[1]["result"], "ended");
}
