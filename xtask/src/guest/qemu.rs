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
    /// The status that process 1 reported; none if it never did.
    pub rc: Option<i32>,
    /// Lines that say the kernel is unwell, and whether time ran out.
    pub faults: Vec<String>,
    pub took: Duration,
    /// What it used of this machine's processors: the same whatever else this machine does, or nearly.
    pub used: Duration,
    /// Whether a story awaits an oops of the driver's: it judges what comes.
    pub expects_oops: bool,
}

/// One line, and what the guest had taken and used when it came.
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

/// What an oops says, and nothing else does: of these the guest's own reading of its log decides whose oops it was.
const OOPS: [&str; 6] = [
    "BUG: unable to handle",
    "BUG: kernel NULL pointer dereference",
    "Unable to handle kernel",
    "Oops: ",
    "kernel BUG at",
    "general protection fault",
];

/// What a kernel says when something is wrong with it. Anchored by words that no story prints.
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

/// All processors at once, by this machine's clock: for races and for people.
const FAST: [&str; 2] = ["-accel", "tcg,thread=multi"];

/// The emulator of a guest that runs on all processors at once.
pub fn emulator(arch: Arch) -> Command {
    let mut command = Command::new(arch.facts().qemu);
    command.args(FAST).args(arch.facts().machine);
    command
}

/// The words for a guest's clock. Emulated processors have one, this machine's: its frequency is passed on. Kernels doubt that clock, and ask a
/// slower one, which stops all processors for each look at it. They doubt the timer, too, which comes late where the emulator does not get a
/// processor in time; without it they do not boot. (For x86-64; others let such words pass.)
pub fn clock_arguments() -> String {
    let frequency = tsc::khz().map(|khz| format!(" tsc_early_khz={khz}")).unwrap_or_default();
    format!("tsc=reliable no_timer_check{frequency}")
}

/// A clock that counts instructions: a guest's nanosecond is one, whatever else this machine is doing. For figures.
const COUNTING: [&str; 6] = ["-accel", "tcg,thread=single", "-icount", "shift=0", "-cpu", "max"];

/// What figures are taken with, in MiB.
const COUNTING_MEMORY: u32 = 2048;

/// What a guest with a made-up GPU gets, in MiB, and what keeps its kernel off the half where that GPU's memory lies.
const REAL_MEMORY: u32 = 2048;
const REAL_MEMORY_LIMIT: &str = "mem=1G";

/// Boots a job's kernel with an image, and deletes the image. The console goes into `log` as it comes.
pub fn boot(job: &Job, image: &Path, log: &Path, loud: bool) -> Result<Console> {
    let kernel = kernels::ready(&job.kernel)?;
    let words = format!("quiet loglevel=4 {}", clock_arguments());
    let command = command(job, &kernel, image, &words, emulator(kernel.arch), kernel.memory);
    watch(command, image, job.limit * kernel.slower, log, loud)
}

/// The same with a clock that counts instructions.
pub fn boot_counting(job: &Job, image: &Path, log: &Path, loud: bool) -> Result<Console> {
    let kernel = kernels::ready(&job.kernel)?;
    let mut counting = Command::new(kernel.arch.facts().qemu);
    counting.args(COUNTING);
    watch(command(job, &kernel, image, "quiet loglevel=4", counting, COUNTING_MEMORY), image, job.limit, log, loud)
}

/// The same with a machine of the caller's making.
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
                if let Some(line) = console.lines.last() {
                    writeln!(log, "{line}").context("cannot write the log")?;
                }
                // One that prints without end is never late for the channel.
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
    // It has ended by itself unless it is late.
    let _ = child.kill();
    let _ = child.wait();
    let _ = std::fs::remove_file(image);
    console.took = began.elapsed();
    Ok(console)
}

/// Boots a machine of the caller's making for a person.
pub fn run_interactive(mut command: Command) -> Result<()> {
    let status = command.status().context("cannot start QEMU")?;
    run::print_progress(format!("the guest ended: {status}"));
    Ok(())
}

/// Boots for a person: console on the terminal, a shell in the guest.
pub fn shell(job: &Job, image: &Path) -> Result<()> {
    let kernel = kernels::ready(&job.kernel)?;
    run_interactive(command(job, &kernel, image, "quiet mpu.shell", emulator(kernel.arch), kernel.memory))?;
    Ok(std::fs::remove_file(image)?)
}

impl Console {
    fn add_line(&mut self, at: Duration, used: Duration, line: &str, loud: bool) {
        // Firmware and shells colour and clear; what matters comes after.
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
            // A second verdict is as bad as none.
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
    // An oops must not be survived: what follows it would be no verdict about the product. A story that wants one says so.
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
