//! The policy: callers that see more than their own PID namespace.

use crate::stories::common::*;

const POD: &str = "/sys/fs/cgroup/pod";

pub const STORIES: &[Story] = &[story!(scene policy_shows_more_by_cgroup, [3, 4];
        "A rule of the policy shows a caller its group's processes, or exactly the host's bytes. Every other caller \
        sees its own, and a policy with a bad line is refused as a whole.")
.eras(&[0, 4], "rules decide alike in every era: played in 0, the simplest, and 4, which has every redirect")];

fn policy_shows_more_by_cgroup(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_own_list(scene, "the list")?;
    for group in ["x", "y"] {
        std::fs::create_dir_all(format!("{POD}/{group}"))?;
    }
    std::fs::write(format!("{POD}/y/cgroup.procs"), scene.other.host_pid.to_string())?;
    let verdict = each_rule(stage, scene);
    stage.set_policy("")?;
    verdict?;
    check_pids("without a policy the list", &in_pod(scene, &["pids"])?.pids(), &scene.own())
}

fn each_rule(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let foreign = scene.foreign.host_pid;
    let neighbour = scene.other.host_pid;
    stage.set_policy("host /elsewhere")?;
    check_pids("a rule for others: the list", &in_pod(scene, &["pids"])?.pids(), &scene.own())?;

    stage.set_policy("group /pod")?;
    let group = sorted(scene.own().into_iter().chain([neighbour]));
    check_pids("with its group the list", &in_pod(scene, &["pids"])?.pids(), &group)?;
    check_own_list(scene, "outside the group the list")?;
    let answer = in_pod(scene, &["pidinfo", &neighbour.to_string()])?;
    check!(answer.one("mem")? >> 20 == 100, "the neighbour's memory: {}", answer.text.trim());
    let answer = in_pod(scene, &["pidinfo", &foreign.to_string()])?;
    check!(!answer.text.contains(&(300u64 << 20).to_string()), "a stranger's memory is shown: {}", answer.text.trim());

    stage.set_policy("own /pod/x/deeper\nhost /po?/*\ngroup /pod")?;
    let before = stage.counter("passed.exempt").unwrap_or_default();
    let host_list = nvctl::query(&[], "nvctl", &["pids"])?;
    let shown = in_pod(scene, &["pids"])?;
    if !stage.host_sees_threads() {
        check_pids("exempt, the list", &shown.pids(), &scene.host_pids())?;
    }
    check!(shown.text == host_list.text, "the host's list is {}, an exempt caller's {}", host_list.text, shown.text);
    let answer = in_pod(scene, &["pidinfo", &foreign.to_string()])?;
    check!(answer.one("mem")? >> 20 == 300, "exempt, a stranger's memory: {}", answer.text.trim());
    let after = stage.counter("passed.exempt").unwrap_or_default();
    check!(after == before + 2, "two exempt calls were counted {} times", after - before);

    let before = stage.policy()?;
    check!(stage.set_policy("host /a\nhots /b").is_err(), "a policy with a bad line was taken");
    let now = stage.policy()?;
    check!(now == before, "a refused policy changed {before} into {now}");
    Ok(())
}

/// nvctl in container `a`'s namespaces, and in the cgroup /pod/x.
pub fn in_pod(scene: &Scene, arguments: &[&str]) -> Result<Answer, Fault> {
    std::fs::create_dir_all(format!("{POD}/x"))?;
    let entered = scene.a.enter_command().join(" ");
    let enter = format!("echo $$ > {POD}/x/cgroup.procs && exec {entered} \"$@\"");
    let through = ["sh", "-c", &enter, "sh"].map(str::to_owned);
    Ok(nvctl::query(&through, "nvctl", arguments)?)
}
