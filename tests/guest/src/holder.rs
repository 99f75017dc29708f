//! A process that uses the GPU (gpu-hold), on the host or in a container, with its PID on both sides. It ends when dropped.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, bail};

use crate::command::{LIMIT, command, is_readable_within};
use crate::processes;

pub struct Holder {
    child: Child,
    input: Option<ChildStdin>,
    /// Its PID in its own namespace.
    pub view_pid: u32,
    /// Its PID in the init namespace.
    pub host_pid: u32,
    /// The PIDs, in its namespace, of the children that `--fork` made.
    pub children: Vec<u32>,
    output: BufReader<ChildStdout>,
}

impl Holder {
    pub fn on_host(arguments: &[&str]) -> Result<Self> {
        Self::on_host_as("/bin/gpu-hold", arguments)
    }

    /// Starts one on the host under another name of gpu-hold.
    pub fn on_host_as(program: &str, arguments: &[&str]) -> Result<Self> {
        Self::start(&[&[program], arguments].concat(), Ok)
    }

    /// Starts one in the container of this process 1. Its host PID is 0 if it has ended.
    pub fn start_in(init: u32, words: &[&str]) -> Result<Self> {
        Self::start(words, |view_pid| Ok(processes::host_pid(init, view_pid).unwrap_or(0)))
    }

    /// Starts one by a command that leads to gpu-hold. `host_pid` finds its host PID.
    pub fn start(words: &[&str], host_pid: impl FnOnce(u32) -> Result<u32>) -> Result<Self> {
        let mut command = command(words);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start gpu-hold")?;
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().context("gpu-hold has no output")?);
        let mut children = Vec::new();
        loop {
            let mut line = String::new();
            if output.buffer().is_empty() && !is_readable_within(output.get_ref(), LIMIT)? {
                child.kill()?;
                bail!("gpu-hold is not ready, and was killed: {:?}", child.wait()?);
            }
            if output.read_line(&mut line)? == 0 {
                bail!("gpu-hold ended before it was ready: {:?}", child.wait()?);
            }
            if let Some(pid) = line.strip_prefix("child ") {
                children.push(pid.trim().parse()?);
            } else if let Some(pid) = line.strip_prefix("ready ") {
                let view_pid = pid.trim().parse()?;
                return Ok(Self { child, input, view_pid, host_pid: host_pid(view_pid)?, children, output });
            }
        }
    }

    /// The PID of the start command, which can be an ancestor.
    pub fn started(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // gpu-hold ends when its input closes. Reading its output to the end waits for its children, too.
        drop(self.input.take());
        let mut rest = [0; 4096];
        let has_ended = loop {
            match is_readable_within(self.output.get_ref(), LIMIT) {
                Ok(true) if self.output.read(&mut rest).is_ok_and(|size| size > 0) => {}
                Ok(is_readable) => break is_readable,
                Err(_) => break false,
            }
        };
        if !has_ended {
            println!("guest: gpu-hold does not end");
            std::process::exit(1);
        }
        let _ = self.child.wait();
    }
}
