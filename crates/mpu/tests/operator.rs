//! The notify engine through the operator's commands: real supervisors on this kernel, each with its own `/run`.
//!
//! Needs root, the host's PID namespace and a kernel with listeners. Otherwise the tests print a reason and are
//! skipped.

use serde_json::Value;
use std::process::{Command, Output};

/// Why the tests cannot run here, if so.
fn lacking() -> Option<&'static str> {
    let has = |path: &str, words: &str| std::fs::read_to_string(path).is_ok_and(|text| text.contains(words));
    let own = std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == "pid:[4026531836]");
    let listens = has("/proc/sys/kernel/seccomp/actions_avail", "user_notif");
    let reasons = [
        (has("/proc/self/status", "\nUid:\t0\t0\t0\t0\n"), "a supervisor needs root"),
        (own, "this is not the host's PID namespace"),
        (listens, "this kernel has no listeners for system calls"),
        (Command::new("unshare").arg("--version").output().is_ok(), "there is no unshare"),
    ];
    reasons.into_iter().find_map(|(is_met, reason)| (!is_met).then_some(reason))
}

/// Kills all processes in a script's mount namespace when the script ends.
const END: &str = "end() { here=$(readlink /proc/self/ns/mnt)\n\
    for p in /proc/[0-9]*; do [ \"$(readlink $p/ns/mnt)\" != \"$here\" ] || [ $p = /proc/$$ ] || kill -9 ${p#/proc/} 2>/dev/null || true; done; }\n\
    trap end EXIT\n";

/// Runs a script of bash below a `/run` and an `/etc/mpu` of its own.
fn below_own_run(script: &str) -> Output {
    let own =
        "set -eu\nmount -t tmpfs tmpfs /run\nmkdir -p /run/etc; [ ! -d /etc/mpu ] || mount --bind /run/etc /etc/mpu\n";
    let whole = format!("{own}{END}mpu={}\n{script}", env!("CARGO_BIN_EXE_mpu"));
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "bash", "-c", &whole]);
    command.output().expect("unshare, of util-linux")
}

/// Runs a script and returns its output lines as JSON; none if it cannot run here.
fn answers(script: &str) -> Option<Vec<Value>> {
    if let Some(why) = lacking() {
        println!("skipped: {why}");
        return None;
    }
    let output = below_own_run(script);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let json = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}\n{err}"));
    Some(out.lines().map(json).collect())
}

#[test]
fn repeated_up_and_down_report_their_results() {
    let Some(all) = answers(
        "$mpu up --engine notify --any-driver --json\n\
         $mpu up --engine notify --any-driver --json\n\
         $mpu status --json\n\
         $mpu config apply --json\n\
         $mpu config show --json\n\
         $mpu down --json\n\
         $mpu down --json\n\
         $mpu status --json || true\n\
         ! [ -e /run/mpu/notify/listener.sock ] && ! [ -e /run/mpu/notify/control.sock ]\n\
         for i in $(seq 3000); do [ -e /run/mpu/notify/keeper.sock ] || break; sleep 0.02; done\n\
         ! [ -e /run/mpu/notify/keeper.sock ]",
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
        "$mpu up --engine notify --any-driver --json\n\
         mkfifo /run/go; $mpu run -- cat /run/go >/dev/null & run=$!\n\
         for i in $(seq 1200); do $mpu status --json | grep -q '\"listeners\":1' && break; sleep 0.05; done\n\
         $mpu status --json\n\
         $mpu down --json\n\
         $mpu status --json || true\n\
         $mpu up --engine notify --any-driver --json\n\
         $mpu down --json\n\
         echo >/run/go; wait $run\n\
         for i in $(seq 1200); do [ -e /run/mpu/notify/control.sock ] || break; sleep 0.05; done\n\
         $mpu down --json",
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
        "$mpu up --engine notify --any-driver --json >/run/up\n\
         mkfifo /run/go; $mpu run -- cat /run/go >/dev/null & run=$!\n\
         for i in $(seq 1200); do $mpu status --json | grep -q '\"listeners\":1' && break; sleep 0.05; done\n\
         pid() { $mpu status --json | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/'; }\n\
         old=$(pid); kill -9 $old\n\
         for i in $(seq 1200); do [ \"$(pid)\" = $old ] || ! $mpu status --json | grep -q '\"listeners\":1' || break; sleep 0.05; done\n\
         $mpu status --json\n\
         echo >/run/go; wait $run; $mpu down --json",
    ) else {
        return;
    };
    assert_eq!(all[0]["notify_state"]["listeners"], 1);
    assert_eq!(all[1]["result"], "ended");
}
