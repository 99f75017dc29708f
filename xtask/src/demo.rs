//! The demonstration: one guest, one container, and the same real nvidia-smi before and after MPU is loaded.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::arch::Arch;
use crate::guest::verdict::Ending;
use crate::guest::{self, DEMO, Job, Row};
use crate::outcome::Outcome;
use crate::run::print_progress;

#[derive(clap::Args)]
pub struct Args {
    /// Kernel, by its name in kernels.toml: 6.1 unless named, 6.12 on arm64
    #[arg(long)]
    kernel: Option<String>,
    /// Architecture of the kernel
    #[arg(long, default_value = "amd64")]
    arch: Arch,
    /// Driver era
    #[arg(long, default_value = "1")]
    era: String,
    /// Release of nvidia-smi
    #[arg(long, default_value = "550.163.01")]
    client: String,
}

pub fn demo(args: &Args) -> Result<Outcome> {
    guest::prepare(args.arch)?;
    let kernel = args.arch.kernel(args.kernel.as_deref());
    let began = Instant::now();
    print_progress("building mpu, the module, the simulated driver and a guest; the first time takes minutes");
    let row = Row {
        era: args.era.clone(),
        client: args.client.clone(),
        engines: vec!["later".to_owned()],
        stories: vec![DEMO.to_owned()],
        reloads: 0,
    };
    let job = Job { kernel, rows: vec![row], cpus: 2, limit: Duration::from_secs(300), redirect: None };
    let image = guest::build_image(&job)?;
    print_progress(format!(
        "booting Linux {} in QEMU, with a simulated driver and the real nvidia-smi {}",
        job.kernel, args.client
    ));
    let report = guest::boot_image(&job, &image, false)?;
    let text = std::fs::read_to_string(&report.log)?;
    for line in text.lines().filter_map(demo_line) {
        println!("{line}");
    }
    let failed = report.verdicts.iter().filter(|verdict| verdict.result == Ending::Fail).map(|verdict| &verdict.reason);
    for trouble in report.troubles.iter().chain(failed) {
        println!("{trouble} (log: {})", report.log.display());
    }
    print_progress(format!("done in {} s", began.elapsed().as_secs()));
    Ok(Outcome::of(report.is_good()))
}

/// The demonstration's text in a line of the log, behind the two times.
fn demo_line(line: &str) -> Option<&str> {
    line.split_once(" demo: ").map(|(_, shown)| shown)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::demo_line;
    use crate::guest::qemu::Line;

    #[test]
    fn guest_demo_lines_are_found_in_log() {
        let line = |text: &str| {
            let (at, used) = (Duration::from_secs(1234), Duration::from_secs(99));
            Line { at, used, text: text.to_owned() }.to_string()
        };
        assert_eq!(demo_line(&line("demo: | GPU |")), Some("| GPU |"));
        assert_eq!(demo_line(&line("demo: ")), Some(""));
        assert_eq!(demo_line(&line("booted")), None);
    }
}
