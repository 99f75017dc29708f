//! Callers inside the driver, which block the module's unloading.

use mpu_core::HostPid;
use mpu_host::containers;
use mpu_host::host::Host;
use mpu_os::text::printable;
use schemars::JsonSchema;
use serde::Serialize;

const MAX_NAMED: usize = 3;
/// The longest `comm`: 16 bytes and a newline (proc_pid_comm(5)).
const MAX_COMMAND: usize = 64;
const MAX_NAME: usize = 128;

/// A caller that stays inside the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "HolderView")]
pub struct HolderInfo {
    /// Its process's number on the host.
    #[schemars(with = "u32")]
    pub pid: HostPid,
    /// Its thread's.
    #[schemars(with = "u32")]
    pub thread: HostPid,
    /// The program's name; null when the process is gone.
    pub command: Option<String>,
    /// Its container's name, or the beginning of its id; null if it is in none.
    pub container: Option<String>,
    /// The control's number, as `0x20800a0f`; null of another ioctl, and before the driver has read it.
    pub control: Option<String>,
    /// The control's name, where it is one that MPU translates.
    pub control_name: Option<&'static str>,
    /// How long it has been inside.
    pub milliseconds: u64,
    /// The same as text.
    pub words: String,
}

impl HolderInfo {
    /// Parses `process thread control milliseconds`, and looks the process up. A line of another form is a newer module's.
    pub(super) fn parse(host: &Host, text: &str) -> Option<HolderInfo> {
        let mut fields = text.split_whitespace();
        let mut pid = || fields.next()?.parse().ok().and_then(HostPid::new);
        let (pid, thread) = (pid()?, pid()?);
        let number = match fields.next()? {
            "-" => None,
            number => Some(u32::from_str_radix(number.strip_prefix("0x")?, 16).ok()?),
        };
        let milliseconds: u64 = fields.next()?.parse().ok()?;
        let comm = host.beginning(format!("/proc/{}/comm", pid.get()), MAX_COMMAND);
        let command = comm.map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_string());
        let name = |container: containers::Container| {
            let short = container.short_id().to_string();
            container.name.unwrap_or(short)
        };
        // A user may put control characters into the name of a program or container.
        let clean = |text: String| printable(&text, MAX_NAME);
        let command = command.map(clean);
        let container = containers::of(host, pid).map(name).map(clean);
        // 0 while the driver still copies the argument.
        let known = number.filter(|number| *number != 0);
        let control = known.map(|number| format!("0x{number:08x}"));
        let control_name = known.and_then(control_name);
        let owner = match (&command, &container) {
            (Some(command), Some(container)) => format!(" ({command}, in container {container})"),
            (Some(command), None) => format!(" ({command})"),
            (None, Some(container)) => format!(" (in container {container})"),
            (None, None) => String::new(),
        };
        let call = match (&control, control_name) {
            (Some(number), Some(name)) => format!(" in control {name} ({number})"),
            (Some(number), None) => format!(" in control {number}"),
            (None, _) if number.is_some() => ", whose argument the driver still reads,".to_string(),
            (None, _) => " in an ioctl that is not a control".to_string(),
        };
        let words = format!("process {}{owner}{call} for {:.1} s", pid.get(), milliseconds as f64 / 1000.0);
        Some(HolderInfo { pid, thread, command, container, control, control_name, milliseconds, words })
    }
}

/// The control's name, if MPU translates it.
fn control_name(number: u32) -> Option<&'static str> {
    mpu_abi::ROWS.iter().find(|row| row.cmd.0 == number).map(|row| row.control.name())
}

/// All of them on one line; `inside` also counts callers that the module does not list.
pub fn in_words(inside: u64, holders: &[HolderInfo]) -> String {
    let callers = if inside == 1 { "1 caller is".to_string() } else { format!("{inside} callers are") };
    if holders.is_empty() {
        return format!("{callers} inside the driver");
    }
    let mut named: Vec<String> = holders.iter().take(MAX_NAMED).map(|holder| holder.words.clone()).collect();
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
        let state = state::read(&fake.host()).expect("readable").expect("up").with_holders(&fake.host());
        assert_eq!(
            in_words(state.inside, &state.holders),
            "2 callers are inside the driver: process 4242 (pyth\u{fffd}on3, in container a1b2c3d4e5f6) in control \
                0x00000283 for 12.3 s; \
             process 70, whose argument the driver still reads, for 0.2 s"
        );
        let pids = mpu_abi::ROWS.iter().find(|row| row.control.name() == "GPU_GET_PIDS").expect("a row").cmd;
        assert_eq!(control_name(pids.0), Some("GPU_GET_PIDS"));
        let many = vec![state.holders[0].clone(); 5];
        assert!(in_words(5, &many).ends_with("and 2 more, which `mpu status` lists"));
        assert_eq!(in_words(1, &[]), "1 caller is inside the driver");
    }
}
