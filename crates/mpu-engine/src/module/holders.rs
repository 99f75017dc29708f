//! Describes the callers inside the driver that block the module's unloading.

use super::state::{CallKind, Holder, State};
use mpu_host::containers;
use mpu_host::host::Host;
use mpu_os::text::printable;
use std::fmt;

const MAX_NAMED: usize = 3;
/// The longest `comm`: 16 bytes and a newline (proc_pid_comm(5)).
const MAX_COMMAND: usize = 64;
const MAX_NAME: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderInfo {
    pub holder: Holder,
    /// The program's name from the kernel; none if the process is gone.
    pub command: Option<String>,
    /// Its container, by name or else by the beginning of its id.
    pub container: Option<String>,
}

/// The callers that the module lists, the longest first.
pub fn describe_holders(host: &Host, state: &State) -> Vec<HolderInfo> {
    let mut holders = state.holders.clone();
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.millis));
    let describe = |holder: Holder| {
        let comm = host.beginning(format!("/proc/{}/comm", holder.pid.get()), MAX_COMMAND);
        let command = comm.map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_string());
        let name = |container: containers::Container| {
            let short = container.short_id().to_string();
            container.name.unwrap_or(short)
        };
        // A user may put control characters into the name of a program or container.
        let clean = |text: String| printable(&text, MAX_NAME);
        let container = containers::of(host, holder.pid).map(name);
        HolderInfo { holder, command: command.map(clean), container: container.map(clean) }
    };
    holders.into_iter().map(describe).collect()
}

/// The control's name, if MPU translates it.
pub fn control_name(kind: CallKind) -> Option<&'static str> {
    let CallKind::Control(cmd) = kind else { return None };
    mpu_abi::ROWS.iter().find(|row| row.cmd == cmd).map(|row| row.control.name())
}

impl fmt::Display for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.holder.pid.get())?;
        match (&self.command, &self.container) {
            (Some(command), Some(container)) => write!(f, " ({command}, in container {container})")?,
            (Some(command), None) => write!(f, " ({command})")?,
            (None, Some(container)) => write!(f, " (in container {container})")?,
            (None, None) => {}
        }
        match (self.holder.control, control_name(self.holder.control)) {
            (CallKind::Control(cmd), Some(name)) => write!(f, " in control {name} (0x{:08x})", cmd.0)?,
            (CallKind::Control(cmd), None) => write!(f, " in control 0x{:08x}", cmd.0)?,
            (CallKind::NotKnown, _) => write!(f, ", whose argument the driver still reads,")?,
            (CallKind::Other, _) => write!(f, " in an ioctl that is not a control")?,
        }
        write!(f, " for {:.1} s", self.holder.millis as f64 / 1000.0)
    }
}

/// All of them on one line; `inside` also counts callers that the module does not list.
pub fn in_words(inside: u64, holders: &[HolderInfo]) -> String {
    let callers = if inside == 1 { "1 caller is".to_string() } else { format!("{inside} callers are") };
    if holders.is_empty() {
        return format!("{callers} inside the driver");
    }
    let mut named: Vec<String> = holders.iter().take(MAX_NAMED).map(HolderInfo::to_string).collect();
    match holders.len().saturating_sub(MAX_NAMED) {
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
    fn holder_line_has_process_container_control_time() {
        let fake = FakeHost::in_order();
        let id = "a1b2c3d4e5f6".repeat(6)[..64].to_string();
        fake.write("/proc/4242/comm", "pyth\u{1b}on3\n");
        fake.write("/proc/4242/cgroup", &format!("0::/system.slice/docker-{id}.scope\n"));
        fake.write("/sys/module/mpu/parameters/state", HELD);
        let state = state::read(&fake.host()).expect("readable").expect("up");
        let holders = describe_holders(&fake.host(), &state);
        let words = in_words(state.inside, &holders);
        assert_eq!(
            words,
            "2 callers are inside the driver: process 4242 (pyth\u{fffd}on3, in container a1b2c3d4e5f6) in control \
                0x00000283 for 12.3 s; \
             process 70, whose argument the driver still reads, for 0.2 s"
        );
        let pids = mpu_abi::ROWS.iter().find(|row| row.control.name() == "GPU_GET_PIDS").expect("a row").cmd;
        assert_eq!(control_name(CallKind::Control(pids)), Some("GPU_GET_PIDS"));
        let many = vec![holders[0].clone(); 5];
        assert!(in_words(5, &many).ends_with("and 2 more, which `mpu status` lists"));
        assert_eq!(in_words(1, &[]), "1 caller is inside the driver");
    }
}
