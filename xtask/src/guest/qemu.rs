//! Boots a guest and watches its console until it is done, dead or late. Always software emulation: it behaves the same on every machine,
//! nested or not.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fs_err::File;
use mpu_plan::{ExitLine, OOPS_EXPECTED, OOPS_OVER};

use super::job::Job;
use super::tsc;
use crate::arch::Arch;
use crate::kernels::{self, Kernel};
use crate::{processor, run};

#[derive(Default)]
pub struct Console {
    pub lines: Vec<Line>,
    /// The exit status that process 1 printed, if it did.
    pub rc: Option<i32>,
    /// Kernel errors on the console, and a missed time limit.
    pub faults: Vec<String>,
    pub took: Duration,
    /// Processor time, which hardly depends on other load.
    pub used: Duration,
    /// Whether a story expects an oops of the driver. The story checks it.
    pub expects_oops: bool,
}

/// One line, with elapsed time and processor time.
pub struct Line {
    pub at: Duration,
    pub used: Duration,
    pub text: String,
}

#[cfg(test)]
impl Line {
    pub fn at_once(text: &str) -> Self {
        Self { at: Duration::ZERO, used: Duration::ZERO, text: text.to_owned() }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:7.2} {:7.2} {}", self.at.as_secs_f64(), self.used.as_secs_f64(), self.text)
    }
}

/// Parts of lines that only an oops has. The guest checks in its own log which module caused it.
const OOPS: [&str; 6] = [
    "BUG: unable to handle",
    "BUG: kernel NULL pointer dereference",
    "Unable to handle kernel",
    "Oops: ",
    "kernel BUG at",
    "general protection fault",
];

/// Parts of lines that report a kernel error. No story prints them.
const KERNEL_FAULTS: [&str; 15] = [
    "Kernel panic",
    "BUG: ",
    "kernel BUG at",
    "Oops: ",
    "general protection fault",
    "WARNING: CPU",
    "WARNING: possible",
    "WARNING: suspicious",
    "soft lockup",
    "rcu_sched self-detected stall",
    "rcu_preempt self-detected stall",
    "detected stalls on CPUs",
    "blocked for more than",
    "unable to handle",
    "Unable to handle kernel",
];

/// Runs all processors in parallel, with this machine's clock.
const FAST: [&str; 2] = ["-accel", "tcg,thread=multi"];

/// The emulator of a guest with parallel processors.
pub fn emulator(arch: Arch) -> Command {
    let mut command = Command::new(arch.facts().qemu);
    command.args(FAST).args(arch.facts().machine);
    command
}

/// The kernel's arguments for the clock. Emulated processors use this machine's time-stamp counter, so its frequency is passed on. Otherwise
/// kernels distrust the counter, and use a slower clock whose reads stop all processors. They also distrust a late timer, and do not boot
/// without it. (For x86-64; other kernels ignore the arguments.)
pub fn clock_arguments() -> String {
    let frequency = tsc::khz().map(|khz| format!(" tsc_early_khz={khz}")).unwrap_or_default();
    format!("tsc=reliable no_timer_check{frequency}")
}

/// A clock that counts instructions: one nanosecond of the guest is one instruction, whatever the load. For figures.
const COUNTING: [&str; 6] = ["-accel", "tcg,thread=single", "-icount", "shift=0", "-cpu", "max"];

/// The memory of the measuring guest, in MiB.
const COUNTING_MEMORY: u32 = 2048;

/// The memory of a guest with a made-up GPU, in MiB. Its kernel uses half; the other half is that GPU's memory.
const REAL_MEMORY: u32 = 2048;
const REAL_MEMORY_LIMIT: &str = "mem=1G";

/// Boots a job's kernel with an image, and deletes the image. Writes the console to `log`.
pub fn boot(job: &Job, image: &Path, log: &Path, loud: bool) -> Result<Console> {
    let kernel = kernels::ready(&job.kernel)?;
    let arguments = format!("quiet loglevel=4 {}", clock_arguments());
    let command = command(job, &kernel, image, &arguments, emulator(kernel.arch), kernel.memory);
    watch(command, image, job.limit * kernel.slower, log, loud)
}

/// The same with a clock that counts instructions.
pub fn boot_counting(job: &Job, image: &Path, log: &Path) -> Result<Console> {
    let kernel = kernels::ready(&job.kernel)?;
    let mut counting = Command::new(kernel.arch.facts().qemu);
    counting.args(COUNTING);
    watch(command(job, &kernel, image, "quiet loglevel=4", counting, COUNTING_MEMORY), image, job.limit, log, false)
}

/// The same with the caller's QEMU command.
pub fn watch(mut command: Command, image: &Path, limit: Duration, log: &Path, loud: bool) -> Result<Console> {
    let mut log = File::create(log)?;
    let began = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start QEMU")?;
    let pipe = child.stdout.take().context("QEMU has no output")?;
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()).is_err() {
                return;
            }
        }
    });
    let mut console = Console::default();
    let pid = child.id();
    let deadline = began + limit;
    loop {
        match receive.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                console.add_line(began.elapsed(), processor::used(pid), &line, loud);
                if let Some(Err(error)) = console.lines.last().map(|line| writeln!(log, "{line}")) {
                    console.faults.push(format!("cannot write the log: {error}"));
                    break;
                }
                // A guest that prints endlessly never times out in the channel.
                if Instant::now() >= deadline {
                    console.faults.push(format!("prints on after {} s", limit.as_secs()));
                    break;
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                console.faults.push(format!("not done after {} s", limit.as_secs()));
                break;
            }
        }
    }
    console.used = processor::used(pid);
    // After the time limit it still runs.
    let _ = child.kill();
    let _ = child.wait();
    let _ = std::fs::remove_file(image);
    console.took = began.elapsed();
    Ok(console)
}

/// Runs the caller's QEMU command on the terminal.
pub fn run_interactive(mut command: Command) -> Result<()> {
    let status = command.status().context("cannot start QEMU")?;
    run::print_progress(format!("the guest ended: {status}"));
    Ok(())
}

/// Boots with the console on the terminal, and a shell in the guest.
pub fn shell(job: &Job, image: &Path) -> Result<()> {
    let kernel = kernels::ready(&job.kernel)?;
    run_interactive(command(job, &kernel, image, "quiet mpu.shell", emulator(kernel.arch), kernel.memory))?;
    Ok(std::fs::remove_file(image)?)
}

impl Console {
    fn add_line(&mut self, at: Duration, used: Duration, line: &str, loud: bool) {
        // Firmware and shells print escape sequences before the text.
        let line = match line.rsplit_once('\u{1b}') {
            Some((_, rest)) => after_escape(rest),
            None => line,
        };
        if loud {
            println!("{line}");
        }
        match line {
            OOPS_EXPECTED => self.expects_oops = true,
            OOPS_OVER => self.expects_oops = false,
            _ => {}
        }
        let is_expected = self.expects_oops && OOPS.iter().any(|word| line.contains(word));
        if KERNEL_FAULTS.iter().any(|fault| line.contains(fault)) && !line.starts_with("STORY ") && !is_expected {
            self.faults.push(line.to_owned());
        }
        if let Some(last) = ExitLine::read(line) {
            // A second exit line is as bad as none.
            self.rc = if self.rc.is_none() { last.ok().map(|ExitLine(rc)| rc) } else { None };
        }
        self.lines.push(Line { at, used, text: line.to_owned() });
    }
}

fn after_escape(rest: &str) -> &str {
    let end = rest.find(|c: char| c.is_ascii_alphabetic()).map_or(rest.len(), |at| at + 1);
    &rest[end..]
}

fn command(job: &Job, kernel: &Kernel, image: &Path, more: &str, mut command: Command, memory: u32) -> Command {
    let (memory, memory_limit) =
        if job.is_real() { (memory.max(REAL_MEMORY), REAL_MEMORY_LIMIT) } else { (memory, "") };
    command.args(["-m", &memory.to_string()]);
    command.args(["-nodefaults", "-no-user-config", "-nographic"]);
    command.args(["-serial", "stdio", "-no-reboot", "-smp", &job.cpus.to_string()]);
    command.arg("-kernel").arg(kernel.vmlinux()).arg("-initrd").arg(image);
    // An oops must end the guest: later verdicts would be worthless. A story that expects one switches this off.
    let console = kernel.arch.facts().console;
    command.args([
        "-append",
        &format!("console={console} panic=-1 oops=panic {more} {} {memory_limit}", kernel.arguments),
    ]);
    command
}

#[cfg(test)]
mod tests {
    use super::{Console, Duration};

    fn faults(lines: &[&str]) -> usize {
        let mut console = Console::default();
        lines.iter().for_each(|line| console.add_line(Duration::ZERO, Duration::ZERO, line, false));
        console.faults.len()
    }

    #[test]
    fn oops_is_death_unless_story_awaits_it() {
        let oops = "[    9.1] BUG: unable to handle page fault for address: ffff888000000010";
        let freed = "[    9.1] BUG: KASAN: slab-use-after-free in mpu_leave+0x10/0x20 [mpu]";
        assert_eq!(faults(&[oops]), 1);
        assert_eq!(faults(&["OOPS-AWAITED", oops, "OOPS-OVER"]), 0);
        assert_eq!(faults(&["OOPS-AWAITED", freed, "OOPS-OVER"]), 1, "only an oops is awaited");
        assert_eq!(faults(&["OOPS-AWAITED", "OOPS-OVER", oops]), 1, "only until the story is over");
        assert_eq!(faults(&["OOPS-AWAITED", "[    9.1] Kernel panic - not syncing: Fatal exception"]), 1);
    }
}
