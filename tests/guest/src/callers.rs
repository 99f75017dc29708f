//! Programs that repeat calls in a container while the engine or the driver changes.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::command::{behind, command, wait_for_end};
use crate::container::Container;
use crate::wait::{TIMEOUT, wait_until};

/// Programs that run over and over in a container until the story stops them.
pub struct Callers<'a> {
    container: &'a Container,
    running: Vec<Child>,
}

impl<'a> Callers<'a> {
    /// Starts them, and returns once each runs in the container.
    pub fn start(container: &'a Container, how_many: u32, call: &str) -> Result<Self> {
        Self::begin(container, vec![call.to_owned(); how_many as usize])
    }

    /// The same, with a loop that kills an nvctl of the container, at most three times a second.
    pub fn start_with_killer(container: &'a Container, how_many: u32, call: &str) -> Result<Self> {
        let mut calls = vec![call.to_owned(); how_many as usize];
        // On a slow machine the first of the list may have ended meanwhile.
        calls.push("sleep 0.3; for p in $(pidof nvctl); do kill -9 $p && echo killed && break; done".to_owned());
        Self::begin(container, calls)
    }

    fn begin(container: &'a Container, calls: Vec<String>) -> Result<Self> {
        container.script("rm -f /tmp/calls.*; touch /tmp/go")?;
        let mut callers = Self { container, running: Vec::new() };
        let how_many = calls.len();
        for (number, call) in calls.into_iter().enumerate() {
            let script = format!("while [ -e /tmp/go ]; do {call}; done >/tmp/calls.{number} 2>&1");
            let mut command = command(&behind(&container.enter_command(), &["sh", "-c", &script]));
            callers.running.push(command.stdin(Stdio::null()).spawn().context("cannot start a caller")?);
        }
        let has_started =
            |number| Path::new(&format!("/proc/{}/root/tmp/calls.{number}", container.init_host_pid())).exists();
        wait_until("the callers do not get into their container", || Ok((0..how_many).all(has_started)))?;
        Ok(callers)
    }

    /// Runs a step so many times, and then on until a caller was killed.
    ///
    /// # Errors
    ///
    /// The first failed step, or no killed caller within [`TIMEOUT`].
    pub fn repeat_until_killed(&self, times: u32, mut step: impl FnMut() -> Result<()>) -> Result<()> {
        let killer = format!("/proc/{}/root/tmp/calls.{}", self.container.init_host_pid(), self.running.len() - 1);
        let one_was_killed = || std::fs::read_to_string(&killer).is_ok_and(|text| text.contains("killed"));
        let began = Instant::now();
        let mut taken = 0;
        while taken < times || !one_was_killed() {
            if taken >= times && began.elapsed() > TIMEOUT {
                bail!("no caller was killed meanwhile, in {taken} steps");
            }
            step()?;
            taken += 1;
        }
        println!("guest: {taken} steps under callers took {:?}", began.elapsed());
        Ok(())
    }

    pub fn stop(mut self) -> Result<String> {
        self.end()?;
        self.container.script("cat /tmp/calls.* 2>/dev/null; true")
    }

    fn end(&mut self) -> Result<()> {
        // From outside: an engine's failure could keep a program in the container from starting.
        let _ = std::fs::remove_file(format!("/proc/{}/root/tmp/go", self.container.init_host_pid()));
        for mut caller in self.running.drain(..) {
            wait_for_end(&mut caller)?;
        }
        Ok(())
    }
}

impl Drop for Callers<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            println!("guest: callers do not stop: {error:#}");
        }
    }
}
