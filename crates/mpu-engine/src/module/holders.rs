//! Who is inside the driver and keeps the module in the kernel, in words that a person can act on.

use super::state::{Asks, Holder, State};
use mpu_host::containers;
use mpu_host::host::Host;
use mpu_os::text::printable;
use std::fmt;

const NAMED: usize = 3;
/// How much of `comm` there can be: 16 bytes and a line's end (proc_pid_comm(5)).
const COMMAND: usize = 64;
const LONGEST_NAME: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub holder: Holder,
    /// The program's name, as the kernel has it; none when the process is gone.
    pub command: Option<String>,
    /// Its container, by name or else by the beginning of its id.
    pub container: Option<String>,
}

/// The callers inside that the module names, the longest first.
pub fn look(host: &Host, state: &State) -> Vec<Held> {
    let mut holders = state.holders.clone();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.millis));
    let held = |holder: Holder| {
        let comm = host.beginning(format!("/proc/{}/comm", holder.pid.get()), COMMAND);
        let command = comm.map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_string());
        let name = |container: containers::Container| {
            let short = container.short_id().to_string();
            container.name.unwrap_or(short)
        };
        // A user who names a program or a container may put control characters into the name.
        let clean = |text: String| printable(&text, LONGEST_NAME);
        let container = containers::of(host, holder.pid).map(name);
        Held { holder, command: command.map(clean), container: container.map(clean) }
    };
    holders.into_iter().map(held).collect()
}

/// The control's name, where it is one that carries PIDs.
pub fn name_of(asks: Asks) -> Option<&'static str> {
    let Asks::Control(cmd) = asks else { return None };
    mpu_abi::ROWS.iter().find(|row| row.cmd == cmd).map(|row| row.control.name())
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.holder.pid.get())?;
        match (&self.command, &self.container) {
            (Some(command), Some(container)) => write!(f, " ({command}, in container {container})")?,
            (Some(command), None) => write!(f, " ({command})")?,
            (None, Some(container)) => write!(f, " (in container {container})")?,
            (None, None) => {}
        }
        match (self.holder.control, name_of(self.holder.control)) {
            (Asks::Control(cmd), Some(name)) => write!(f, " in control {name} (0x{:08x})", cmd.0)?,
            (Asks::Control(cmd), None) => write!(f, " in control 0x{:08x}", cmd.0)?,
            (Asks::NotKnown, _) => write!(f, ", whose argument the driver still reads,")?,
            (Asks::Other, _) => write!(f, " in an ioctl that is not a control")?,
        }
        write!(f, " for {:.1} s", self.holder.millis as f64 / 1000.0)
    }
}

/// All of them in one line; `inside` counts also those that the module does not name.
pub fn in_words(inside: u64, held: &[Held]) -> String {
    let callers = if inside == 1 { "1 caller is".to_string() } else { format!("{inside} callers are") };
    if held.is_empty() {
        return format!("{callers} inside the driver");
    }
    let mut named: Vec<String> = held.iter().take(NAMED).map(Held::to_string).collect();
    match held.len().saturating_sub(NAMED) {
        0 => {}
        more => named.push(format!("and {more} more, which `mpu status` lists")),
    }
    format!("{callers} inside the driver: {}", named.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::state::{self, HELD};
    use super::*;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn holder_is_named_by_process_program_container_control_and_time() {
        let fake = FakeHost::in_order();
        let id = "a1b2c3d4e5f6".repeat(6)[..64].to_string();
        fake.write("/proc/4242/comm", "pyth\u{1b}on3\n");
        fake.write("/proc/4242/cgroup", &format!("0::/system.slice/docker-{id}.scope\n"));
        fake.write("/sys/module/mpu/parameters/state", HELD);
        let state = state::read(&fake.host()).expect("readable").expect("up");
        let held = look(&fake.host(), &state);
        let words = in_words(state.inside, &held);
        assert_eq!(
            words,
            "2 callers are inside the driver: process 4242 (pyth\u{fffd}on3, in container a1b2c3d4e5f6) in control \
                0x00000283 for 12.3 s; \
             process 70, whose argument the driver still reads, for 0.2 s"
        );
        let pids = mpu_abi::ROWS.iter().find(|row| row.control.name() == "GPU_GET_PIDS").expect("a row").cmd;
        assert_eq!(name_of(Asks::Control(pids)), Some("GPU_GET_PIDS"));
        let many = vec![held[0].clone(); 5];
        assert!(in_words(5, &many).ends_with("and 2 more, which `mpu status` lists"));
        assert_eq!(in_words(1, &[]), "1 caller is inside the driver");
    }
}
