//! Callers without root: the same answers, and no additional right.

use crate::stories::common::*;
use crate::stories::counting::FOREIGN_CLIENT;

/// A user who is not root, neither on the host nor in the container.
const USER: &str = "1000:1000";

pub const STORIES: &[Story] = &[
    story!(scene unprivileged_user_gets_same_answers, [1];
        "A user who is not root, in a container of root's, gets list, memory and sessions right."),
    story!(scene caller_privileges_stay_unchanged, [5];
        "A list that needs a capability, a client of another process, a caller that has since changed users: each gets \
        the driver's own yes or no.")
    .real(Real::Knob)
    .right("these are the driver's own answers"),
    story!(scene caller_after_setuid_sees_own_only, [1, 3];
        "Root makes a client, and the process, or one of its threads, becomes another user: it sees its own rows, \
        and no others.")
    .real(Real::Engines),
];

fn unprivileged_user_gets_same_answers(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    check_pids("as a user, the list", &as_user(scene, &["pids"])?.pids(), &scene.own())?;
    let own = scene.first.view_pid.to_string();
    let memory = as_user(scene, &["pidinfo", &own])?.one("mem")? >> 20;
    check!(memory == 80, "process {own} holds 80 MiB, a user gets {memory}");
    if stage.release().is_some() {
        // A made-up GPU has no capture sessions.
        return Ok(());
    }
    check_pids("as a user, fbc", &as_user(scene, &["fbc"])?.pids(), &[scene.first.view_pid])
}

fn caller_privileges_stay_unchanged(stage: &Stage, scene: &Scene) -> Result<(), Fault> {
    let query = || {
        // No release's process list requires a capability.
        stage.set_driver("guarded", "1")?;
        let as_root = scene.a.query(&["pids"])?.status;
        let as_user = as_user(scene, &["pids"])?.status;
        stage.set_driver("guarded", "0")?;
        // A client of another process; and a caller that was root when it made its own client.
        let foreign = scene.a.query(&["--client", FOREIGN_CLIENT, "pids"])?.status;
        let was_root = scene.a.query(&["--as", "1000", "pids"])?.status;
        Ok::<_, Fault>([as_root, as_user, foreign, was_root])
    };
    let with = query()?;
    let without = stage.with_engine_off(query)??;
    check!(without == [0, 0x1b, 0x23, 0], "the bare driver says {without:x?}");
    check!(with == without, "with the engine: {with:x?}; without: {without:x?}");
    Ok(())
}

fn caller_after_setuid_sees_own_only(_: &Stage, scene: &Scene) -> Result<(), Fault> {
    for option in ["--as", "--as-thread"] {
        let answer = scene.a.query(&[option, "1000", "fbc"])?;
        check_pids(&format!("after {option}, fbc"), &answer.pids(), &[scene.first.view_pid])?;
    }
    Ok(())
}

fn as_user(scene: &Scene, arguments: &[&str]) -> Result<Answer, Fault> {
    let Output { out, err, .. } =
        run(&[&["crun", "exec", "--user", USER, scene.a.name(), "nvctl"], arguments].concat())?;
    Ok(nvctl::read(&out).map_err(|error| error.context(err))?)
}
