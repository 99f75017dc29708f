//! Runs the notify engine's supervisor in the guest, reads its state, and starts callers under it. Speaks the documented protocol of the
//! control socket directly.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::wait::{self, TIMEOUT};

const LISTENER: &str = "/run/mpu/notify/listener.sock";
const CONTROL: &str = "/run/mpu/notify/control.sock";
/// Exists while the supervisor takes no new container. Its socket stays open for its present ones.
const RETIRED: &str = "/run/mpu/notify/retired";
const LOG: &str = "/run/mpu-notify.log";
/// The architectures whose programs this kernel runs: a filter kills programs of any other.
const ARCHITECTURES: &[&str] = match cfg!(target_arch = "aarch64") {
    true => &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"],
    false => &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
};

/// `mpu notify hold`, which restarts the supervisor.
pub struct Supervisor {
    hold: Child,
}

impl Supervisor {
    /// Starts both, and returns once the supervisor takes containers.
    pub fn start() -> Result<Self> {
        let log = std::fs::File::create(LOG)?;
        let mut command = Command::new("/bin/mpu");
        command.args(["notify", "hold"]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let hold = command.spawn().context("cannot start mpu notify hold")?;
        let supervisor = Self { hold };
        wait_until("the supervisor takes no container", || Ok(state()?.is_some() && takes_containers()))?;
        Ok(supervisor)
    }

    /// Retires the supervisor, and waits until it has ended. It must have no container left.
    pub fn end(mut self) -> Result<()> {
        send("retire\n")?;
        let mut ended = None;
        wait_until("a supervisor whose last listener has gone does not end", || {
            ended = self.hold.try_wait()?;
            Ok(ended.is_some())
        })?;
        ensure!(ended.is_some_and(|status| status.success()), "the keeper ended with {ended:?}: {}", log());
        ensure!(!Path::new(LISTENER).exists() && !Path::new(CONTROL).exists(), "the supervisor left its sockets");
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.hold.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        // `hold` first: it would start another supervisor.
        let _ = self.hold.kill();
        let _ = self.hold.wait();
        if let Ok(Some(pid)) = pid() {
            let _ = crate::command::run(&["kill", "-9", &pid.to_string()]);
        }
    }
}

/// Its state; none if it does not run.
pub fn state() -> Result<Option<Value>> {
    match request_answer("state\n") {
        Ok(text) => Ok(Some(serde_json::from_str(&text).with_context(|| format!("the supervisor says {text:?}"))?)),
        Err(_) => Ok(None),
    }
}

/// Its PID; none if it does not run.
pub fn pid() -> Result<Option<u32>> {
    Ok(state()?.and_then(|state| u32::try_from(state["pid"].as_u64()?).ok()))
}

pub fn send(request: &str) -> Result<()> {
    let answer = request_answer(request)?;
    let answer: Value = serde_json::from_str(&answer).with_context(|| format!("the supervisor says {answer:?}"))?;
    ensure!(answer["ok"] == true, "the supervisor refuses {request:?}: {answer}");
    Ok(())
}

pub fn request_answer(request: &str) -> Result<String> {
    let mut stream = UnixStream::connect(CONTROL).context("no supervisor")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the supervisor does not answer")?;
    Ok(answer)
}

/// The command prefix that runs a program under the supervisor; empty while the supervisor takes no container.
pub fn join_command() -> &'static [&'static str] {
    if takes_containers() { &["mpu", "notify", "join", "--"] } else { &[] }
}

/// The seccomp section of a container's spec, by which the runtime sends the listener; none if no supervisor takes it.
pub fn seccomp() -> Option<Value> {
    // Ioctl numbers: a control of 32 bytes, an event and the XFER wrapper of 16, with any type and direction.
    let rules: Vec<Value> = [0x0020_002a_u32, 0x0010_0052, 0x0010_00d3]
        .into_iter()
        .map(|request| {
            let argument =
                json!({"index": 1, "op": "SCMP_CMP_MASKED_EQ", "value": 0x3fff_00ff_u32, "valueTwo": request});
            json!({"names": ["ioctl"], "action": "SCMP_ACT_NOTIFY", "args": [argument]})
        })
        .collect();
    takes_containers().then(|| {
        json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ARCHITECTURES,
            "listenerPath": LISTENER,
            "syscalls": rules,
        })
    })
}

/// Waits for a condition. The error has the end of both programs' log.
pub fn wait_until(otherwise: &str, holds: impl FnMut() -> Result<bool>) -> Result<()> {
    wait::wait_until(otherwise, holds).with_context(log)
}

/// The last lines of the log of `hold` and supervisor.
fn log() -> String {
    let text = std::fs::read_to_string(LOG).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(8).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

fn takes_containers() -> bool {
    Path::new(LISTENER).exists() && !Path::new(RETIRED).exists()
}
