//! `mpu top` without a terminal: each reading as plain text, or as a line of JSON.

use super::error::TopError;
use super::options::TopOptions;
use super::view;
use crate::listing::{self, ProcessList};
use crate::processes::Monitor;
use crate::report::{self, Report, Style};
use mpu_host::exit::Exit;
use mpu_host::host::Host;
use mpu_host::time;
use std::io::{self, Write};
use std::thread;
use std::time::Instant;

/// Prints the requested number of readings, or until the pipe closes. Returns the last reading's exit code.
pub fn print(host: &Host, mut monitor: Monitor, options: &TopOptions, json: bool) -> Result<Exit, TopError> {
    let count = if options.once { Some(1) } else { options.count };
    let list_options = listing::ListOptions {
        columns: options.columns.clone(),
        sort: vec![options.sort],
        filter: options.filter.clone(),
        ..listing::ListOptions::default()
    };
    let mut done = 0;
    loop {
        let began = Instant::now();
        let seen = monitor.snapshot(host)?;
        if done == 0 {
            list_options.filter.check(&seen.gpus)?;
        }
        let listed = listing::select(host, seen, &list_options, None);
        let text = match json {
            true => report::json_of("top", &listed) + "\n",
            false => page(&listed),
        };
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(listed.exit()),
            written => written.map_err(|source| TopError::Output { source })?,
        }
        drop(out);
        done += 1;
        if count.is_some_and(|count| done >= count) {
            return Ok(listed.exit());
        }
        thread::sleep(options.interval.saturating_sub(began.elapsed()));
    }
}

/// The time, the GPUs, the processes, and the notes; an empty line at the end.
fn page(listed: &ProcessList) -> String {
    let mut lines = vec![format!("at {}", time::stamp(listed.at))];
    lines.extend(listed.gpus.iter().map(view::gpu_text));
    lines.extend(listed.stderr_lines());
    format!("{}\n{}\n", lines.join("\n"), listed.text(Style::Plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;

    #[test]
    fn page_has_gpus_and_processes() {
        let fake = FakeHost::in_order();
        let listed = listing::select(&fake.host(), listing::tests::seen(), &listing::ListOptions::default(), None);
        let page = page(&listed);
        assert!(page.starts_with("at 2023-11-14T23:15:25Z\n 0 NVIDIA H200"), "{page}");
        assert!(page.contains(" 40% ") && page.contains("9000/143771 MiB  41°C  212/700 W"), "{page}");
        assert!(page.contains("20001     5  1000  train") && page.ends_with("\n\n"), "{page}");
    }
}
